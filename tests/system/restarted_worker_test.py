"""`bandoneon run --restarts` and workers that are lost amid the steps: each is started again, and the job takes it in. Real processes;
what each step must give is known."""

import os
import pathlib
import re
import signal
import subprocess
import sys

import pytest
from lost_worker_test import steps_of
from process_helpers import BIN, ROOT, Process, children_of

PROGRAM = pathlib.Path(__file__).with_name("returning_worker_program.py")
LEAVING = PROGRAM.with_name("leaving_workers_program.py")


class Run:
    """`bandoneon run` with three workers, one of which may stay alone."""

    def __init__(self, folder, returns, *options, command=(sys.executable, PROGRAM)):
        self.folder = folder
        env = {k: v for k, v in os.environ.items() if not k.startswith("BANDONEON_")}
        env |= {"TEST_RETURNS": str(returns), "TEST_CAME": "0", "TEST_DIR": str(folder), "TMPDIR": str(folder), "TEST_PROGRAM": str(PROGRAM)}
        words = [BIN / "bandoneon", "run", "-n", 3, "-s", 2, "--set", "min-workers=1", "--set", "lease-timeout=2s",
                 "--set", f"history-file={folder}/history", *options, "--", *command]
        self.process = Process("run", [str(word) for word in words], env)

    def worker(self, rank):
        """The pid of the worker."""
        (guardian,) = children_of(self.process.child.pid)
        (pid,) = [pid for pid in children_of(guardian)
                  if f"BANDONEON_RANK={rank}".encode() in pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")]
        return pid

    def kill(self, rank, number=signal.SIGKILL):
        """Returns what `run` says of the worker's end."""
        pid = self.worker(rank)
        os.kill(pid, number)
        return f"worker {rank} (pid {pid}) was killed by signal {number.value} ({signal.strsignal(number)})"

    def end(self):
        """The exit code and the output."""
        code = self.process.child.wait(90)
        return code, self.process.output()

    def close(self):
        self.process.close()


@pytest.fixture
def start(tmp_path):
    """Starts a Run with these options, whose workers are amid their steps then. It is ended with the test."""
    runs = []

    def make(*options, **more):
        runs.append(Run(tmp_path, *options, **more))
        runs[-1].process.wait_for("] running", times=3)
        return runs[-1]

    yield make
    for run in runs:
        run.close()


def check_steps(run, output):
    """The workers have the same bytes in each step, and the histories contradict nothing."""
    known = {}
    for rank in range(3):
        own = "\n".join(re.findall(rf"^\[worker {rank}\] (step .*)$", output, re.MULTILINE))
        for step, texts in steps_of(own).items():
            assert known.setdefault(step, texts) == texts, f"step {step} of worker {rank} has other bytes"
    files = sorted(str(path) for path in run.folder.glob("history.*"))
    found = subprocess.run([sys.executable, ROOT / "scripts" / "check_history", *files], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout


def test_workers_are_started_again_and_taken_in(start):
    run = start(3, "--restarts", "5")
    said = run.process
    first = run.kill(1)
    said.wait_for(f"[run] {first}; it is started again in 1 s, restart 1 of 5")
    said.wait_for("[worker 1] taken in")
    second = run.kill(1)
    said.wait_for(f"[run] {second}; it is started again in 2 s, restart 2 of 5")
    said.wait_for("[worker 1] taken in", times=2)
    # One that is out ends with status 75.
    pid = run.worker(2)
    os.kill(pid, signal.SIGSTOP)
    said.wait_for("with 2 of 3 workers: without worker 2")
    os.kill(pid, signal.SIGCONT)
    third = f"worker 2 (pid {pid}) exited with code 75"
    said.wait_for(f"[run] {third}; it is started again in 1 s, restart 3 of 5")
    code, output = run.end()
    assert code == 0, output[-3000:]
    assert output.splitlines()[-1] == (
        f"[run] worker 1 was started again 2 times, after {first}, {second}; worker 2 was started again once, after {third}")
    assert output.count("] taken in") == 3 and output.count("] left") == 3
    assert output.count("] present 0 1 2") == 3
    check_steps(run, output)


def test_daemons_and_a_worker_may_be_lost_together(start):
    run = start(1, "--restarts", "5", "--set", "scheduler-timeout=60s")
    (guardian,) = children_of(run.process.child.pid)
    daemons = {word: pid for pid in children_of(guardian) for word in ("bandoneon-scheduler", "--rank=0")
               if word.encode() in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()}
    run.kill(1)
    for pid in daemons.values():
        os.kill(pid, signal.SIGKILL)
    code, output = run.end()
    assert code == 0 and len(daemons) == 2, output[-3000:]
    last = output.splitlines()[-1]
    assert all(f"{who} was started again once" in last for who in ("the scheduler", "server 0", "worker 1"))
    check_steps(run, output)


def test_once_the_restarts_are_used_up_the_job_goes_on_without_the_worker(start):
    run = start(1, "--restarts", "1")
    first = run.kill(1)
    run.process.wait_for("[worker 1] taken in")
    second = run.kill(1)
    run.process.wait_for(f"[run] {second}; the job goes on with 2 of 3")
    code, output = run.end()
    assert code == 0, output[-3000:]
    assert output.splitlines()[-1] == (f"[run] the job has ended without those that it lost: {second}; "
                                       f"worker 1 was started again once, after {first}")
    check_steps(run, output)


def test_a_worker_that_fails_before_it_is_taken_in_disturbs_nobody(start):
    line = '[ "$TORCHELASTIC_RESTART_COUNT" ] && exit 3; exec "$0" "$TEST_PROGRAM"'
    run = start(0, "--restarts", "5", command=("sh", "-c", line, sys.executable))
    first = run.kill(1)
    run.process.wait_for("exited with code 3 before the job had taken it in; it is not started again")
    code, output = run.end()
    assert code == 0, output[-3000:]
    last = output.splitlines()[-1]
    assert re.fullmatch(r"\[run\] the job has ended without those that it lost: worker 1 \(pid \d+\) exited with code 3; "
                        + re.escape(f"worker 1 was started again once, after {first}"), last)


def test_a_worker_that_comes_when_the_job_is_over_is_ended_and_no_failure(start):
    # The others have work to do when they have left. The newcomer begins only then, and looks for a scheduler that has ended.
    line = """cd $TEST_DIR
        if [ "$TORCHELASTIC_RESTART_COUNT" ]; then while ! [ -e over ]; do sleep 0.1; done; exec "$0" "$TEST_PROGRAM"; fi
        [ $RANK = 1 ] && exec "$0" "$TEST_PROGRAM"
        "$0" "$TEST_PROGRAM"; code=$?; touch over; while ! [ -e go ]; do sleep 0.1; done; exit $code"""
    run = start(0, "--restarts", "5", "--linger", "1s", command=("sh", "-c", line, sys.executable))
    run.kill(1)
    run.process.wait_for("it is started again in 1 s")
    run.process.wait_for("the job is done without worker 1")
    (run.folder / "go").touch()
    code, output = run.end()
    assert code == 0, output[-3000:]
    assert "the job has ended without those that it lost: worker 1" in output.splitlines()[-1]
    assert "worker 1 was started again once" in output.splitlines()[-1]


def test_a_candidate_that_is_not_taken_in_before_the_end_is_no_failure(start):
    run = start(0, "--restarts", "5", command=(sys.executable, LEAVING))
    first = run.kill(1)
    run.process.wait_for("[worker 1] candidate 1")
    pid = run.worker(1)
    (run.folder / "leave").touch()
    code, output = run.end()
    assert code == 0, output[-3000:]
    assert "is done and takes no more" in output
    late = f"worker 1 (pid {pid}) exited with code 1"
    assert f"[run] {late} before the job had taken it in" in output
    assert output.splitlines()[-1] == (f"[run] the job has ended without those that it lost: {late}; "
                                       f"worker 1 was started again once, after {first}")


def test_exit_with_status_75_amid_the_job_fails_it(start):
    run = start(0, "--restarts", "5", command=(sys.executable, LEAVING))
    (run.folder / "exit-1").touch()
    code, output = run.end()
    assert code == 75, output[-3000:]
    assert re.search(r"^\[run\] the job failed because worker 1 \(pid \d+\) exited with code 75: .*exit status 75", output.splitlines()[-1])


def test_a_worker_that_is_gone_with_status_75_is_started_again(start):
    run = start(0, "--restarts", "5", command=(sys.executable, LEAVING))
    (run.folder / "_exit-1").touch()
    run.process.wait_for("exited with code 75; it is started again in 1 s, restart 1 of 5")
    (run.folder / "_exit-1").unlink()
    run.process.wait_for("[worker 1] candidate 1")
    (run.folder / "leave").touch()
    code, output = run.end()
    assert code == 0, output[-3000:]
