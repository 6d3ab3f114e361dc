"""Who slows a job: four workers and two servers, of which one is slowed, and the scheduler's log names it and nobody else."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest
from process_helpers import BIN, ROOT, Process, children_of

PROGRAM = pathlib.Path(__file__).with_name("suspects_program.py")
QUIET = 90  # steps before a fault, in which the scheduler learns what is usual
# The scheduler's sentences, by kind: docs/troubleshooting.md, A slow job.
KINDS = {
    "compute": r"(\w+ \d+) on \S+ computes longer",
    "input": r"(\w+ \d+) on \S+ is longer between two steps",
    "gc": r"(\w+ \d+) on \S+ collects garbage longer",
    "host": r"(host) \S+ is busy",
    "link": r"frames to and from (\w+ \d+) on",
    "server": r"(\w+ \d+) on \S+ works on its keys longer",
    "stalled": r"(\w+ \d+) on \S+ (?:was not heard|has pushed nothing)",
}


class Job:
    def __init__(self, folder, fault="none", rank=-1, begin=QUIET, steps=QUIET + 60, workers=4, options=(), wrapper=""):
        env = {k: v for k, v in os.environ.items() if not k.startswith("BANDONEON_") or k == "BANDONEON_LIBRARY"}
        env |= {"SUSPECT_FAULT": fault, "SUSPECT_RANK": str(rank), "SUSPECT_FROM": str(begin), "SUSPECT_STEPS": str(steps),
                "TMPDIR": str(folder), "PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1"}
        program = f"{wrapper} exec {sys.executable} {PROGRAM}"
        command = [BIN / "bandoneon", "run", "-n", str(workers), "-s", "2", "--set", "heartbeat-interval=200ms", *options, "--",
                   "sh", "-c", program]
        self.process = Process("run", [str(part) for part in command], env)

    def pid(self, *words):
        """Of the daemon or worker whose command line and environment have these words."""
        (guardian,) = children_of(self.process.child.pid)
        for pid in children_of(guardian):
            text = "".join(pathlib.Path(f"/proc/{pid}/{name}").read_bytes().decode() for name in ("cmdline", "environ"))
            if all(word in text.replace("\0", " ") for word in words):
                return pid
        raise AssertionError(f"no process has {words}")

    def verdicts(self):
        """[(place, kind, the step after which it was said)], once the job is done."""
        assert self.process.child.wait(300) == 0, self.process.output()[-3000:]
        step, found = 0, []
        for line in self.process.output().splitlines():
            if said := re.search(r"step (\d+)$", line):
                step = int(said[1])
            if "slows the job no longer" in line:
                continue
            found += [(match[1], kind, step) for kind, text in KINDS.items() if (match := re.search(text, line))]
        return found

    def close(self):
        self.process.close()


@pytest.fixture
def start(tmp_path):
    """Starts a Job, which is ended with the test."""
    jobs = []

    def make(*args, **options):
        jobs.append(Job(tmp_path, *args, **options))
        return jobs[-1]

    yield make
    for job in jobs:
        job.close()


def check(verdicts, place, kind, within=40, begin=QUIET):
    """It is named, and nobody else is. A host that others load may be called busy, and then the rest goes unsaid."""
    others = [verdict for verdict in verdicts if verdict[:2] not in {(place, kind), ("host", "host")}]
    assert not others, verdicts
    steps = [step for who, what, step in verdicts if (who, what) == (place, kind)]
    is_busy = any(what == "host" for _, what, _ in verdicts)
    assert steps or (is_busy and kind != "stalled"), verdicts
    assert is_busy or steps[0] <= begin + within, verdicts


def without_numbers(sentence):
    return re.sub(r"\d+(\.\d+)?", "N", sentence)


def test_a_worker_that_was_stopped_is_named(start):
    job = start(steps=QUIET + 30)
    job.process.wait_for(f"step {QUIET}\n")
    pid = job.pid("BANDONEON_RANK=2 ")
    os.kill(pid, signal.SIGSTOP)
    time.sleep(3)
    os.kill(pid, signal.SIGCONT)
    check(job.verdicts(), "worker 2", "stalled", within=20)


def test_a_worker_that_computes_a_tenth_longer_is_named_by_log_status_and_heat(start):
    job = start("compute", 1, steps=QUIET + 80)
    job.process.wait_for("scheduler at ")
    address = re.search(r"scheduler at (\S+)", "".join(job.process.lines))[1]
    token = re.search(r"--token-file (\S+)", "".join(job.process.lines))[1]
    ask = [BIN / "bandoneon", "status", "--scheduler", address, "--token-file", token]
    job.process.wait_for(f"step {QUIET + 60}\n")
    status = json.loads(subprocess.run([*ask, "--json"], capture_output=True, check=True).stdout)
    text = subprocess.run([*ask, "--heat"], capture_output=True, check=True, text=True).stdout
    verdicts = job.verdicts()
    check(verdicts, "worker 1", "compute")
    nodes = {node["node"]: f"{node['role']} {node['rank']}" for node in status["nodes"]}
    heat = {nodes[row["node"]]: row["kinds"] for row in status["heat"]}
    assert set(heat) == {f"worker {rank}" for rank in range(4)} | {"server 0", "server 1"}
    for rank in range(4):
        assert heat[f"worker {rank}"]["compute"]["seconds"] > 0.045
    assert re.search(r"^HOST +NODE +COMPUTE +INPUT +GC +RUN QUEUE +LINK +SERVER$", text, re.MULTILINE)
    said = [(nodes.get(suspect["node"], "host"), suspect["kind"]) for suspect in status["suspects"]]
    assert set(said) <= {("worker 1", "compute"), ("host", "host")}
    # The text was asked for a moment after the JSON: its figures may be newer, its words are the same.
    lines = {without_numbers(line) for line in text.splitlines()}
    for suspect in status["suspects"]:
        assert any(line.startswith("slow: " + without_numbers(suspect["sentence"].split(",")[0])) for line in lines)


@pytest.mark.long
@pytest.mark.parametrize("fault", ["input", "gc"])
def test_a_worker_that_is_slow_between_steps_is_named_with_the_cause(start, fault):
    check(start(fault, 3).verdicts(), "worker 3", fault)


@pytest.mark.long
def test_a_worker_with_a_slow_link_is_named(start):
    job = start(options=("--link", "800mbit"), wrapper='[ "$BANDONEON_RANK" = 1 ] && export BANDONEON_LINK=100mbit;')
    check(job.verdicts(), "worker 1", "link", within=QUIET)


@pytest.mark.long
def test_a_server_that_gets_half_of_a_processor_is_named(start):
    job = start(steps=QUIET + 90)
    job.process.wait_for(f"step {QUIET}\n")
    pid = job.pid("bandoneon-server", "--rank=0 ")
    while not any(f"step {QUIET + 85}\n" in line for line in list(job.process.lines)):
        for what, seconds in ((signal.SIGSTOP, 0.03), (signal.SIGCONT, 0.03)):
            os.kill(pid, what)
            time.sleep(seconds)
    verdicts = job.verdicts()
    # Work and frames both wait while it is stopped.
    assert {who for who, _, _ in verdicts} <= {"server 0", "host"} and verdicts, verdicts


@pytest.mark.long
def test_a_foreign_load_makes_the_host_busy_and_nobody_slow(start):
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3 * os.cpu_count())]
    try:
        verdicts = start(steps=200).verdicts()
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    assert {kind for _, kind, _ in verdicts} == {"host"}, verdicts


@pytest.mark.long
def test_two_workers_are_compared_with_their_own_past(start):
    check(start("input", 1, workers=2).verdicts(), "worker 1", "input")


@pytest.mark.long
def test_a_thousand_quiet_steps_have_no_verdict(start):
    verdicts = start(steps=1000).verdicts()
    assert {kind for _, kind, _ in verdicts} <= {"host"}, verdicts
