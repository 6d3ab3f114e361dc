"""`bandoneon run` and servers that are lost amid the steps: with --restarts each is started again, and without it the others do its work.
The job ends with the weights of one that lost none. Real processes."""

import os
import signal

import pytest
from restarted_job import WORKERS, start, undisturbed, weights_of  # noqa: F401  (start is a fixture)


def kill(run, *words):
    """Kills a daemon, and returns what `run` says of its end."""
    pid = run.daemon(*words)
    os.kill(pid, signal.SIGKILL)
    run.process.wait_for(f"(pid {pid}) was killed by signal 9 (Killed)")
    name = "scheduler" if "bandoneon-scheduler" in words else f"server {words[-1].removeprefix('--rank=')}"
    return f"{name} (pid {pid}) was killed by signal 9 (Killed)"


@pytest.mark.parametrize("servers, options", [(1, []), (2, ["--transport", "network"]), (2, ["--hosts", "2"])],
                         ids=["one-shm", "two-network", "two-hosts"])
def test_a_job_whose_servers_are_started_again_ends_as_one_whose_are_not(start, servers, options):
    expected = undisturbed(start, *options, servers=servers)
    run = start("--restarts", "2", *options, servers=servers)
    run.process.wait_for("at 15", times=WORKERS)
    first = kill(run, "bandoneon-server", f"--rank={servers - 1}")
    run.go(15)
    run.process.wait_for("at 30", times=WORKERS)
    second = kill(run, "bandoneon-server", "--rank=0")
    run.go(30)
    code, output = run.end()
    assert code == 0, output[-3000:]
    assert weights_of(output) == expected
    assert output.count("is started again") == 2
    told = (f"[run] server 0 was started again 2 times, after {first}, {second}" if servers == 1 else
            f"[run] server 0 was started again once, after {second}; server 1 was started again once, after {first}")
    assert output.splitlines()[-1] == told
    assert {path.name for path in run.folder.iterdir()} == {"go-15", "go-30"}, "the job's directory and its journal are gone"


def tell_to_go(run, rank):
    """Sends a server SIGTERM, and returns what `run` says of its end."""
    pid = run.daemon("bandoneon-server", f"--rank={rank}")
    os.kill(pid, signal.SIGTERM)
    told = f"server {rank} (pid {pid}) was told to end"
    run.process.wait_for(told)
    return told


@pytest.mark.parametrize("options", [[], ["--transport", "network"], ["--hosts", "2"]], ids=["shm", "network", "hosts"])
def test_servers_that_are_told_to_go_hand_their_work_over_at_once(start, options):
    expected = undisturbed(start, *options)
    # Nobody waits for the end of a drain, or of a lease.
    run = start("--restarts", "2", "--set", "drain-timeout=1h", "--set", "lease-timeout=1h", *options)
    run.process.wait_for("at 15", times=WORKERS)
    first = tell_to_go(run, 0)
    run.go(15)
    run.process.wait_for("at 30", times=WORKERS)
    second = tell_to_go(run, 1)
    run.go(30)
    code, output = run.end()
    assert code == 0, output[-3000:]
    assert weights_of(output) == expected
    assert output.splitlines()[-1] == (
        f"[run] server 0 was started again once, after {first}; server 1 was started again once, after {second}")


def test_a_server_that_hands_its_work_over_is_not_missed(start):
    expected = undisturbed(start)
    run = start("--set", "drain-timeout=1h")
    run.process.wait_for("at 15", times=WORKERS)
    first = tell_to_go(run, 0)
    run.go(15)
    run.process.wait_for("at 30", times=WORKERS)
    # The last one cannot go: it drains, and the job ends well meanwhile.
    last = run.daemon("bandoneon-server", "--rank=1")
    os.kill(last, signal.SIGTERM)
    run.process.wait_for("cannot leave the job that runs: no other server can answer for the keys of server 1")
    run.go(30)
    code, output = run.end()
    assert code == 0, output[-3000:]
    assert weights_of(output) == expected
    assert output.splitlines()[-1] == f"[run] the job has ended without those that it lost: {first}"


@pytest.mark.parametrize("options", [[], ["--hosts", "2"]], ids=["shm", "hosts"])
def test_without_restarts_the_servers_that_are_left_do_the_work_of_one_that_is_lost(start, options):
    expected = undisturbed(start, *options, servers=3)
    run = start(*options, servers=3)
    run.process.wait_for("at 15", times=WORKERS)
    first = kill(run, "bandoneon-server", "--rank=1")
    run.go(15)
    run.process.wait_for("at 30", times=WORKERS)
    second = kill(run, "bandoneon-server", "--rank=0")
    run.go(30)
    code, output = run.end()
    assert code == 0, output[-3000:]
    assert weights_of(output) == expected
    assert f"{second}; the job goes on with 1 of 3 servers" in output
    assert output.splitlines()[-1] == f"[run] the job has ended without those that it lost: {first}; {second}"


def test_scheduler_and_server_may_be_lost_at_once(start):
    expected = undisturbed(start)
    run = start("--restarts", "2")
    run.process.wait_for("at 15", times=WORKERS)
    scheduler = kill(run, "bandoneon-scheduler")
    server = kill(run, "bandoneon-server", "--rank=1")
    run.process.wait_for("this scheduler goes on with job")
    run.go(15)
    run.go(30)
    code, output = run.end()
    assert code == 0, output[-3000:]
    assert weights_of(output) == expected
    assert output.splitlines()[-1] == (
        f"[run] the scheduler was started again once, after {scheduler}; server 1 was started again once, after {server}")


def test_with_replay_steps_of_0_a_lost_server_is_the_end(start):
    run = start("--restarts", "2", "--set", "replay-steps=0", "--linger", "5s")
    run.process.wait_for("at 15", times=WORKERS)
    killed = kill(run, "bandoneon-server", "--rank=1")
    code, output = run.end()
    assert code == 128 + signal.SIGKILL
    assert output.splitlines()[-1].startswith(f"[run] the job failed because {killed}"), output[-3000:]
