"""`bandoneon run --restarts`: the scheduler of a job is lost amid its steps, twice, and the job ends with the weights of one whose
scheduler was not. Real processes."""

import os
import pathlib
import re
import signal
import sys
import urllib.request

import pytest
from process_helpers import BIN, Process, children_of

PROGRAM = pathlib.Path(__file__).with_name("restarted_scheduler_program.py")
WORKERS = 2


class Run:
    """`bandoneon run` with two servers and workers."""

    def __init__(self, folder, *options):
        folder.mkdir()
        self.folder = folder
        env = {k: v for k, v in os.environ.items() if not k.startswith("BANDONEON_")}
        workers = ["-n", str(WORKERS)] if "--hosts" not in options else []
        command = [BIN / "bandoneon", "run", *workers, "-s", "2", "--seed", "7", "--set", "min-compress-bytes=1", *options,
                   "--", sys.executable, PROGRAM]
        self.process = Process("run", [str(part) for part in command], env | {"TEST_DIR": str(folder), "TMPDIR": str(folder)})

    def go(self, step):
        (self.folder / f"go-{step}").touch()

    def scheduler(self):
        """The pid of the one that runs."""
        (guardian,) = children_of(self.process.child.pid)
        (pid,) = [pid for pid in children_of(guardian)
                  if pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].endswith(b"/bandoneon-scheduler")]
        return pid

    def lose_scheduler(self, number):
        """Sends the signal, and returns the pid once another one goes on with the job."""
        restarts = "".join(self.process.lines).count("is started again")
        pid = self.scheduler()
        os.kill(pid, number)
        self.process.wait_for("is started again", times=restarts + 1)
        self.process.wait_for("this scheduler goes on with job", times=restarts + 1)
        return pid

    def page(self):
        """The status page, at the address that `run` told when the job began."""
        (url,) = re.findall(r"^\[run\] status page (\S+)$", "".join(self.process.lines), re.MULTILINE)
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.read().decode()

    def end(self):
        """The exit code and the output."""
        code = self.process.child.wait(90)
        return code, self.process.output()

    def close(self):
        if self.process.child.poll() is None:
            self.process.child.kill()
        self.process.child.wait()
        self.process.output()
        self.process.child.stdout.close()


@pytest.fixture
def start(tmp_path):
    runs = []

    def make(*options):
        runs.append(Run(tmp_path / f"run-{len(runs)}", *options))
        return runs[-1]

    yield make
    for run in runs:
        run.close()


def weights_of(output):
    """The checksums, which are those of all workers."""
    found = re.findall(r"^\[worker \d+\] weights (.*)$", output, re.MULTILINE)
    assert len(found) == WORKERS and len(set(found)) == 1, output[-3000:]
    return found[0]


def undisturbed(start, *options):
    run = start(*options)
    run.go(15)
    run.go(30)
    code, output = run.end()
    assert code == 0 and "started again" not in output, output[-3000:]
    return weights_of(output)


@pytest.mark.parametrize("options", [[], ["--transport", "network"], ["--hosts", "2"]], ids=["shm", "network", "hosts"])
def test_a_job_whose_scheduler_is_killed_twice_ends_as_one_whose_is_not(start, options):
    expected = undisturbed(start, *options)
    run = start("--restarts", "2", "--http-listen", "127.0.0.1:0", *options)
    run.process.wait_for("at 15", times=WORKERS)
    first = run.lose_scheduler(signal.SIGKILL)
    run.go(15)
    run.process.wait_for("at 30", times=WORKERS)
    second = run.lose_scheduler(signal.SIGKILL)
    assert "Bandoneon" in run.page()
    run.go(30)
    code, output = run.end()
    assert code == 0, output[-3000:]
    assert weights_of(output) == expected
    assert output.splitlines()[-1] == (
        f"[run] the scheduler was started again 2 times, after scheduler (pid {first}) was killed by signal 9 (Killed), "
        f"scheduler (pid {second}) was killed by signal 9 (Killed)")
    assert {path.name for path in run.folder.iterdir()} == {"go-15", "go-30"}, "the job's directory and its journal are gone"


def test_a_scheduler_that_is_told_to_end_leaves_the_job_to_the_next(start):
    run = start("--restarts", "1")
    run.process.wait_for("at 15", times=WORKERS)
    pid = run.lose_scheduler(signal.SIGTERM)
    run.go(15)
    run.go(30)
    code, output = run.end()
    assert code == 0 and weights_of(output) == undisturbed(start), output[-3000:]
    assert output.splitlines()[-1] == f"[run] the scheduler was started again once, after scheduler (pid {pid}) was told to end"


def test_once_its_restarts_are_used_up_a_lost_scheduler_is_the_end(start):
    run = start("--restarts", "1", "--linger", "1s")
    run.process.wait_for("at 15", times=WORKERS)
    first = run.lose_scheduler(signal.SIGKILL)
    second = run.scheduler()
    os.kill(second, signal.SIGKILL)
    code, output = run.end()
    assert code == 128 + signal.SIGKILL
    last = output.splitlines()[-1]
    assert last.startswith(f"[run] the job failed because scheduler (pid {second}) was killed by signal 9 (Killed)"), output[-3000:]
    assert last.endswith(f"; the scheduler was started again once, after scheduler (pid {first}) was killed by signal 9 (Killed)")


def test_an_interrupt_ends_a_job_whose_scheduler_was_restarted(start):
    run = start("--restarts", "5")
    run.process.wait_for("at 15", times=WORKERS)
    pid = run.lose_scheduler(signal.SIGKILL)
    run.process.child.send_signal(signal.SIGINT)
    code, output = run.end()
    assert code == 128 + signal.SIGINT and output.count("is started again") == 1
    assert output.splitlines()[-1].endswith(f"started again once, after scheduler (pid {pid}) was killed by signal 9 (Killed)")
