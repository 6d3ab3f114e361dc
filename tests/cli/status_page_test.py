"""The status page of a real job: it says what `bandoneon status` says, and whom it answers."""

import json
import sys
import time
import urllib.error
import urllib.request

import pytest
from command_helpers import LIMIT, read_until

STEPS = 20
PROGRAM = f"""
import ctypes, sys
import bandoneon
from bandoneon.calls import Declaration

worker = bandoneon.init()
codec = "onebit(block=256)"
tensor, = worker.declare([Declaration("<b>w", 1 << 16, push=codec, pull=codec)])
data = (ctypes.c_float * (1 << 16))(*[1.0] * (1 << 16))
for step in range({STEPS}):
    worker.wait(worker.push(tensor, ctypes.addressof(data), keep=data))
    worker.report("loss", float("nan") if step == 5 else 20.0 - step + worker.rank, step)
    bandoneon.report("counted", step)
worker.barrier("over")
print("ready", flush=True)
sys.stdin.read()  # has no end: a pipe of the test
"""
ALONE = ("-n", 2)
HOSTED = ("--hosts", 1, "--procs-per-host", 2)


@pytest.fixture
def job(real, tmp_path, monkeypatch):
    """Starts a job of two processes: its URL, and its scheduler's address, once they have done their steps."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program.py").write_text(PROGRAM)
    started = []

    def start(*options, listen="127.0.0.1:0", heartbeats="50ms"):
        run = real.start("run", *options, "-s", 1, "--linger", "0s", "--set", f"heartbeat-interval={heartbeats}", "--set",
                         "min-compress-bytes=1KiB", "--http-listen", listen, "--", "sh", "-c",
                         f"mkfifo in.$RANK; exec {sys.executable} program.py 0<>in.$RANK")
        started.append(run)
        address = read_until(run.stderr, 1, "scheduler at")[-1].split()[-1]
        real.environment["BANDONEON_TOKEN_FILE"] = read_until(run.stderr, 1, "--token-file")[-1].split()[-1]
        url = read_until(run.stderr, 1, "[run] status page http")[-1].split()[-1]
        read_until(run.stdout, 2, "ready")
        return url, address

    yield start
    for run in started:
        run.terminate()
        run.communicate(timeout=LIMIT)


def ask(url, **headers):
    """(code, text)"""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=LIMIT) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def curves_of(found):
    return {curve["name"]: curve["points"] for curve in found["history"]["curves"]}


@pytest.mark.parametrize("processes", [ALONE, HOSTED], ids=["alone", "hosted"])
def test_it_says_what_status_says_and_what_was_reported(real, job, processes):
    url, address = job(*processes)
    # Two workers: what is shown is their mean.
    expected = {"counted": [[step, step] for step in range(STEPS)],
                "loss": [[step, None if step == 5 else 20.5 - step] for step in range(STEPS)]}

    def page():
        found = json.loads(ask(url + "api/status")[1])
        for node in found["nodes"]:
            node.pop("seconds_since_heard")
        return found

    deadline = time.monotonic() + LIMIT
    while True:  # heartbeats bring it
        found = page()
        if curves_of(found) == expected and all(node["step"] >= STEPS for node in found["nodes"]):
            status = json.loads(real.run("status", "--scheduler", address, "--json").stdout)
            # A heartbeat between the page and the command would have changed counters of one of them alone. The
            # history has the age of its events, which is another in each answer.
            if {**page(), "history": None} == {**found, "history": None}:
                break
        assert time.monotonic() < deadline, found
    history = found.pop("history")
    # The command says besides what each side speaks.
    assert status.pop("control_version") == status.pop("own_control_version") > 0
    for node in status["nodes"]:
        node.pop("seconds_since_heard")
    assert found == status
    assert [event["kind"] for event in history["events"]] == ["joined"] * len(found["nodes"]) + ["all joined"]
    assert found["nodes"] and history["waits"] == []


LAST_WORDS = """
import sys
import bandoneon

worker = bandoneon.init()
if worker.rank == 1:
    for step in range(3):
        bandoneon.report("loss", step / 2)
    print("ready", flush=True)
    bandoneon.shutdown()
else:
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_what_is_reported_last_is_there_when_its_worker_leaves(job, tmp_path):
    """No heartbeat comes in the time of this test."""
    (tmp_path / "program.py").write_text(LAST_WORDS)
    url, _ = job(*ALONE, "--set", "lease-timeout=1h", heartbeats="10m")
    deadline = time.monotonic() + LIMIT
    while curves_of(json.loads(ask(url + "api/status")[1])) != {"loss": [[0, 0.0], [1, 0.5], [2, 1.0]]}:
        assert time.monotonic() < deadline, ask(url + "api/status")


RESUMED = """
import ctypes, sys
import bandoneon
from bandoneon.calls import Declaration

worker = bandoneon.init()
tensor, = worker.declare([Declaration("w", 1 << 16)])
worker.set_step(tensor, 10000)
if worker.rank == 0:
    worker.set_server_counters(tensor, 0, 0.0, 10000)
worker.barrier("set")
data = (ctypes.c_float * (1 << 16))(*[1.0] * (1 << 16))
for step in range(400):
    worker.wait(worker.push(tensor, ctypes.addressof(data), keep=data))
worker.barrier("over")
print("ready", flush=True)
sys.stdin.read()
"""


def test_steps_before_a_resumption_are_in_no_rate(job, tmp_path):
    (tmp_path / "program.py").write_text(RESUMED)
    url, _ = job(*ALONE)
    deadline = time.monotonic() + LIMIT
    while True:  # heartbeats bring it
        found = json.loads(ask(url + "api/status")[1])
        if found["nodes"] and all(node["step"] == 10400 for node in found["nodes"]):
            break
        assert time.monotonic() < deadline, found
    history = found["history"]
    assert history["steps_per_second"] is not None
    assert len(history["windows"]) == len(found["nodes"]) == 3
    assert all(0 < window["steps"] <= 400 for window in history["windows"]), history["windows"]


# Coarser blocks back: signs of the pushes' blocks arrive as they are.
MEMORIES = (PROGRAM.replace('"onebit(block=256)"', '"ef(onebit(block=256))"')
            .replace("pull=codec", 'pull="ef(onebit(block=1024))"').replace("*[1.0] * (1 << 16)", "*range(1 << 16)"))


def test_links_with_a_memory_say_what_they_leave_out(job, tmp_path):
    (tmp_path / "program.py").write_text(MEMORIES)
    url, _ = job(*ALONE)
    deadline = time.monotonic() + LIMIT
    while True:  # heartbeats bring it
        quality = json.loads(ask(url + "api/status")[1])["history"]["quality"]
        if [[group["encodings"] for group in quality[way]] for way in ("pushes", "replies")] == [[2 * STEPS], [STEPS]]:
            break
        assert time.monotonic() < deadline, quality
    for group, in quality.values():
        assert group["tensors"] == "0" and group["nonfinite_share"] == 0 and "guard" not in group
        assert group["step"] == 16, "measured at steps 1, 2, 4 and so on"
        assert 0 < group["residual_ratio"] < 1 and 0 < group["decoded_cosine"] < 1 and group["owed_steps"] > 0


def test_who_asks_by_another_name_is_refused(job):
    url, _ = job(*ALONE)
    assert ask(url)[0] == 200
    assert ask(url + "api/status", Host="rebound.example")[0] == 403


def test_a_page_that_others_reach_is_for_who_has_the_token(real, job):
    refused = real.run("run", "--http-listen", "0.0.0.0:0", "--", "true")
    assert refused.returncode != 0 and "http-listen is 0.0.0.0:0, which other hosts reach" in refused.stderr
    url, _ = job(*ALONE, "--set", "insecure=true", listen="0.0.0.0:0")
    with open(real.environment["BANDONEON_TOKEN_FILE"], encoding="utf-8") as file:
        token = file.read().strip()
    assert ask(url + "api/status")[0] == 401
    assert ask(url + "api/status", Authorization=f"Bearer {token}x")[0] == 401
    assert ask(url + "api/status", Authorization=f"Bearer {token}")[0] == 200


def test_what_is_reported_is_checked():
    bandoneon = pytest.importorskip("bandoneon")
    with bandoneon.LocalCluster(workers=1, servers=1) as cluster:
        def check(worker):
            worker.report("loss", 1.5)
            for name, value, step in (("a b", 1.0, 0), ("", 1.0, 0), ("x" * 65, 1.0, 0), ("ä", 1.0, 0),
                                      ("loss", 1.0, -1), ("loss", 1.0, 1 << 64)):
                with pytest.raises(bandoneon.InvalidArgument):
                    worker.report(name, value, step)
        cluster.run(check)
    with pytest.raises(bandoneon.FailedPrecondition):
        bandoneon.report("loss", 1.0)
