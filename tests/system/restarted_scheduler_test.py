"""`bandoneon run --restarts`: the scheduler of a job is lost amid its steps, twice, and the job ends with the weights of one whose
scheduler was not. Real processes."""

import os
import re
import signal
import urllib.request

import pytest
from restarted_job import WORKERS, start, undisturbed, weights_of  # noqa: F401  (start is a fixture)


def lose_scheduler(run, number):
    """Sends the signal, and returns the pid once another one goes on with the job."""
    restarts = "".join(run.process.lines).count("is started again")
    pid = run.daemon("bandoneon-scheduler")
    os.kill(pid, number)
    run.process.wait_for("is started again", times=restarts + 1)
    run.process.wait_for("this scheduler goes on with job", times=restarts + 1)
    return pid


def page_of(run):
    """The status page, at the address that `run` told when the job began."""
    (url,) = re.findall(r"^\[run\] status page (\S+)$", "".join(run.process.lines), re.MULTILINE)
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


@pytest.mark.parametrize("options", [[], ["--transport", "network"], ["--hosts", "2"]], ids=["shm", "network", "hosts"])
def test_a_job_whose_scheduler_is_killed_twice_ends_as_one_whose_is_not(start, options):
    expected = undisturbed(start, *options)
    run = start("--restarts", "2", "--http-listen", "127.0.0.1:0", *options)
    run.process.wait_for("at 15", times=WORKERS)
    first = lose_scheduler(run, signal.SIGKILL)
    run.go(15)
    run.process.wait_for("at 30", times=WORKERS)
    second = lose_scheduler(run, signal.SIGKILL)
    assert "Bandoneon" in page_of(run)
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
    pid = lose_scheduler(run, signal.SIGTERM)
    run.go(15)
    run.go(30)
    code, output = run.end()
    assert code == 0 and weights_of(output) == undisturbed(start), output[-3000:]
    assert output.splitlines()[-1] == f"[run] the scheduler was started again once, after scheduler (pid {pid}) was told to end"


def test_once_its_restarts_are_used_up_a_lost_scheduler_is_the_end(start):
    run = start("--restarts", "1", "--linger", "1s")
    run.process.wait_for("at 15", times=WORKERS)
    first = lose_scheduler(run, signal.SIGKILL)
    second = run.daemon("bandoneon-scheduler")
    os.kill(second, signal.SIGKILL)
    code, output = run.end()
    assert code == 128 + signal.SIGKILL
    last = output.splitlines()[-1]
    assert last.startswith(f"[run] the job failed because scheduler (pid {second}) was killed by signal 9 (Killed)"), output[-3000:]
    assert last.endswith(f"; the scheduler was started again once, after scheduler (pid {first}) was killed by signal 9 (Killed)")


def test_an_interrupt_ends_a_job_whose_scheduler_was_restarted(start):
    run = start("--restarts", "5")
    run.process.wait_for("at 15", times=WORKERS)
    pid = lose_scheduler(run, signal.SIGKILL)
    run.process.child.send_signal(signal.SIGINT)
    code, output = run.end()
    assert code == 128 + signal.SIGINT and output.count("is started again") == 1
    assert output.splitlines()[-1].endswith(f"started again once, after scheduler (pid {pid}) was killed by signal 9 (Killed)")
