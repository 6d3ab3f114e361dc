"""`bandoneon run` and servers that are lost amid the steps: with --restarts each is started again, and without it the others do its work.
The job ends with the weights of one that lost none. Real processes."""

import os
import pathlib
import re
import signal
import sys

import pytest
from process_helpers import BIN, Process, children_of

PROGRAM = pathlib.Path(__file__).with_name("restarted_scheduler_program.py")
WORKERS = 2


class Run:
    """`bandoneon run` with workers that stop at steps 15 and 30 until they are told to go on."""

    def __init__(self, folder, servers, *options):
        folder.mkdir()
        self.folder = folder
        env = {k: v for k, v in os.environ.items() if not k.startswith("BANDONEON_")}
        workers = ["-n", str(WORKERS)] if "--hosts" not in options else []
        command = [BIN / "bandoneon", "run", *workers, "-s", str(servers), "--seed", "7", "--set", "min-compress-bytes=1", *options,
                   "--", sys.executable, PROGRAM]
        self.process = Process("run", [str(part) for part in command], env | {"TEST_DIR": str(folder), "TMPDIR": str(folder)})

    def go(self, step):
        (self.folder / f"go-{step}").touch()

    def daemon(self, *words):
        """The pid of the process that runs with these words in its command line."""
        (guardian,) = children_of(self.process.child.pid)
        (pid,) = [pid for pid in children_of(guardian)
                  if all(word in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode() for word in words)]
        return pid

    def kill(self, *words):
        """Kills the process, and returns what `run` says of its end."""
        pid = self.daemon(*words)
        os.kill(pid, signal.SIGKILL)
        self.process.wait_for(f"(pid {pid}) was killed by signal 9 (Killed)")
        name = "scheduler" if "bandoneon-scheduler" in words else f"server {words[-1].removeprefix('--rank=')}"
        return f"{name} (pid {pid}) was killed by signal 9 (Killed)"

    def end(self):
        """The exit code and the output."""
        code = self.process.child.wait(120)
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


def undisturbed(start, servers, *options):
    run = start(servers, *options)
    run.go(15)
    run.go(30)
    code, output = run.end()
    assert code == 0 and "was killed" not in output, output[-3000:]
    return weights_of(output)


@pytest.mark.parametrize("servers, options", [(1, []), (2, ["--transport", "network"]), (2, ["--hosts", "2"])],
                         ids=["one-shm", "two-network", "two-hosts"])
def test_a_job_whose_servers_are_started_again_ends_as_one_whose_are_not(start, servers, options):
    expected = undisturbed(start, servers, *options)
    run = start(servers, "--restarts", "2", *options)
    run.process.wait_for("at 15", times=WORKERS)
    first = run.kill("bandoneon-server", f"--rank={servers - 1}")
    run.go(15)
    run.process.wait_for("at 30", times=WORKERS)
    second = run.kill("bandoneon-server", "--rank=0")
    run.go(30)
    code, output = run.end()
    assert code == 0, output[-3000:]
    assert weights_of(output) == expected
    assert output.count("is started again") == 2
    told = (f"[run] server 0 was started again 2 times, after {first}, {second}" if servers == 1 else
            f"[run] server 0 was started again once, after {second}; server 1 was started again once, after {first}")
    assert output.splitlines()[-1] == told
    assert {path.name for path in run.folder.iterdir()} == {"go-15", "go-30"}, "the job's directory and its journal are gone"


@pytest.mark.parametrize("options", [[], ["--hosts", "2"]], ids=["shm", "hosts"])
def test_without_restarts_the_servers_that_are_left_do_the_work_of_one_that_is_lost(start, options):
    expected = undisturbed(start, 3, *options)
    run = start(3, *options)
    run.process.wait_for("at 15", times=WORKERS)
    first = run.kill("bandoneon-server", "--rank=1")
    run.go(15)
    run.process.wait_for("at 30", times=WORKERS)
    second = run.kill("bandoneon-server", "--rank=0")
    run.go(30)
    code, output = run.end()
    assert code == 0, output[-3000:]
    assert weights_of(output) == expected
    assert f"{second}; the job goes on with 1 of 3 servers" in output
    assert output.splitlines()[-1] == f"[run] the job has ended without those that it lost: {first}; {second}"


def test_scheduler_and_server_may_be_lost_at_once(start):
    expected = undisturbed(start, 2)
    run = start(2, "--restarts", "2")
    run.process.wait_for("at 15", times=WORKERS)
    scheduler = run.kill("bandoneon-scheduler")
    server = run.kill("bandoneon-server", "--rank=1")
    run.process.wait_for("this scheduler goes on with job")
    run.go(15)
    run.go(30)
    code, output = run.end()
    assert code == 0, output[-3000:]
    assert weights_of(output) == expected
    assert output.splitlines()[-1] == (
        f"[run] the scheduler was started again once, after {scheduler}; server 1 was started again once, after {server}")


def test_with_replay_steps_of_0_a_lost_server_is_the_end(start):
    run = start(2, "--restarts", "2", "--set", "replay-steps=0", "--linger", "5s")
    run.process.wait_for("at 15", times=WORKERS)
    killed = run.kill("bandoneon-server", "--rank=1")
    code, output = run.end()
    assert code == 128 + signal.SIGKILL
    assert output.splitlines()[-1].startswith(f"[run] the job failed because {killed}"), output[-3000:]
