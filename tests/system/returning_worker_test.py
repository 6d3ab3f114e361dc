"""Workers are lost amid their steps, and others take their ranks. Real processes; what each step must give is known."""

import pathlib
import re
import signal
import subprocess
import sys

import pytest
from lost_worker_test import FABRIC, NETWORK, Job, steps_of
from process_helpers import ROOT

PROGRAM = pathlib.Path(__file__).with_name("returning_worker_program.py")


@pytest.fixture
def start(tmp_path):
    jobs = []

    def make(settings, *flags):
        history = {"BANDONEON_HISTORY_FILE": str(tmp_path / "history")}
        jobs.append(Job(tmp_path, settings | history, "--min-workers=1", *flags, program=PROGRAM))
        return jobs[-1]

    yield make
    for job in jobs:
        job.close()


def come(job, rank, came=0):
    """Another process takes the rank; returns its name once it was taken in."""
    name = f"return {came} of worker {rank}"
    job._start(name, [sys.executable, PROGRAM], BANDONEON_RANK=str(rank), TEST_CAME=str(came))
    job.processes[name].wait_for(f"candidate {rank}")
    job.processes[name].wait_for("taken in")
    return name


def lose(job, name):
    job.processes[name].child.kill()
    job.processes[name].child.wait()
    for other in job.processes.values():
        if other is not job.processes[name] and other.name.startswith(("worker", "return")) and other.child.poll() is None:
            other.wait_for("the job goes on with 2 of 3 workers")


def check(job, names, tmp_path, servers=(0, 1), exact=True):
    """All of these have ended well, with the same bytes in every step that two of them have."""
    daemons = [f"server {rank}" for rank in servers] + ["scheduler"]
    assert set(job.wait(*names, *daemons, limit=90)) == {0}
    known = {}
    for name in names:
        output = job.processes[name].output()
        assert output.splitlines()[-1] == "left", output[-2000:]
        assert "present 0 1 2" in output
        for step, texts in steps_of(output).items():
            assert known.setdefault(step, texts) == texts, f"step {step} of {name} has other bytes"
    if exact:
        wanted = {sum((rank + 1) ** 2 for rank in ranks) / len(ranks) for ranks in ((0, 1, 2), (0, 2), (0, 1), (1, 2))}
        for step, texts in known.items():
            for text in texts:
                mean = float(text.split("/")[0]) / (step % 16 + 1)
                assert any(abs(mean - value) < 1e-4 for value in wanted), f"step {step} has the mean {mean}"
        last = max(known)
        all_three = sum((rank + 1) ** 2 for rank in range(3)) / 3
        assert abs(float(known[last][0].split("/")[0]) / (last % 16 + 1) - all_three) < 1e-4
    files = sorted(str(path) for path in tmp_path.glob("history.*"))
    found = subprocess.run([sys.executable, ROOT / "scripts" / "check_history", *files], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout


@pytest.mark.parametrize("settings", [*(pytest.param(way, marks=pytest.mark.long) for way in ({}, FABRIC)), NETWORK],
                         ids=["shm", "fabric", "network"])
def test_a_worker_comes_back_twice(start, tmp_path, settings):
    job = start(settings | {"TEST_RETURNS": "2"})
    lose(job, "worker 1")
    first = come(job, 1)
    lose(job, first)
    second = come(job, 1, 1)
    check(job, ["worker 0", "worker 2", second], tmp_path)
    output = job[0].output()
    assert output.count("the job goes on with 3 of 3 workers") == 2
    assert re.search(r"newcomers 1$", output, re.MULTILINE)


@pytest.mark.parametrize("links", [("ef(onebit)", "ef(onebit)", ""), ("none", "delta(int4)", "sgd")], ids=["onebit", "delta"])
def test_with_codecs_all_have_the_same_bytes(start, tmp_path, links):
    push, pull, rule = links
    job = start({"TEST_PUSH": push, "TEST_PULL": pull, "TEST_RULE": rule})
    lose(job, "worker 0")
    name = come(job, 0)
    check(job, ["worker 1", "worker 2", name], tmp_path, exact=False)


@pytest.mark.parametrize("links",
                         [pytest.param(("none", "none", ""), marks=pytest.mark.long), ("ef(onebit)", "ef(onebit)", "")],
                         ids=["none", "onebit"])
def test_a_server_may_be_lost_right_after(start, tmp_path, links):
    push, pull, rule = links
    job = start({"TEST_PUSH": push, "TEST_PULL": pull, "TEST_RULE": rule})
    lose(job, "worker 1")
    name = come(job, 1)
    job.processes["server 0"].child.kill()
    check(job, ["worker 0", "worker 2", name], tmp_path, servers=(1,), exact=push == "none")


def test_over_encrypted_links(start, tmp_path):
    job = start(NETWORK | {"BANDONEON_DATA_SECURITY": "encrypted", "BANDONEON_TOKEN": "secret"})
    lose(job, "worker 2")
    name = come(job, 2)
    check(job, ["worker 0", "worker 1", name], tmp_path)


def test_the_scheduler_may_be_lost_while_one_waits(start, tmp_path):
    journal = tmp_path / "journal"
    job = start({}, f"--journal={journal}", "--scheduler-timeout=60s")
    lose(job, "worker 1")
    name = "return 0 of worker 1"
    job._start(name, [sys.executable, PROGRAM], BANDONEON_RANK="1", TEST_CAME="0")
    job.processes[name].wait_for("candidate 1")
    job.processes["scheduler"].child.send_signal(signal.SIGKILL)
    job.processes["scheduler"].child.wait()
    job.restart_scheduler()
    job.processes[name].wait_for("taken in")
    check(job, ["worker 0", "worker 2", name], tmp_path)
