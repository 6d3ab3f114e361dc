"""`bandoneon tune --try`: plans are run, measured, and the one that is measured to be the fastest is written."""

import json
import sys

import pytest
from command_helpers import BIN, Command

LIMIT = 240  # seconds for up to four jobs on a busy machine
PROGRAM = """
import ctypes
import bandoneon
from bandoneon.calls import Declaration
SIZE = 200_000
with bandoneon.init() as worker:
    tensors = worker.declare([Declaration(f"tensor {i}", SIZE) for i in range(4)])
    arrays = [(ctypes.c_float * SIZE)() for _ in tensors]
    for step in range(12):
        tickets = [worker.push(tensor, ctypes.addressof(array), keep=array) for tensor, array in zip(tensors, arrays)]
        for ticket in tickets:
            worker.wait(ticket)
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    path = tmp_path_factory.mktemp("program") / "exchange.py"
    path.write_text(PROGRAM)
    return path


@pytest.fixture(scope="module")
def recordings(tmp_path_factory, program):
    """The recordings of two workers and one server, over links on which two servers are faster than one."""
    folder, temporary = tmp_path_factory.mktemp("recordings"), tmp_path_factory.mktemp("tmp")
    settings = ["--link", "100mbit", "--set", f"trace={folder}", "--set", "partition-bytes=256KiB"]
    run = Command(BIN, temporary).start("run", "-n", 2, "-s", 1, *settings, "--", sys.executable, program)
    _, error = run.communicate(timeout=LIMIT)
    assert run.returncode == 0, error
    return folder


def tune(real, *arguments):
    process = real.start("tune", *arguments)
    out, error = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, error
    return out, error


def test_the_plan_has_what_it_was_predicted_for(real, recordings, tmp_path):
    plan = tmp_path / "plan.json"
    out, _ = tune(real, recordings, "-o", plan, "--json")
    printed, written = json.loads(out), json.loads(plan.read_text())
    # The job's settings were the scheduler's alone, which records nothing.
    assert printed["recorded"]["settings"]["partition-bytes"] == str(256 << 10)
    assert {"servers", "partition-bytes", "fusion-bytes"} <= set(written["settings"])
    assert written["settings"]["servers"] == "1"
    low, high = written["interval_ms"]
    assert low < written["predicted_step_ms"] < high
    assert "measured_step_ms" not in written


def test_plans_are_run_and_the_best_as_measured_is_written(real, recordings, program, tmp_path):
    plan = tmp_path / "plan.json"
    out, error = tune(real, recordings, "--servers", 2, "--try", "--json", "-o", plan, "--", sys.executable, program)
    result, written = json.loads(out), json.loads(plan.read_text())
    assert "bandoneon tune: runs as recorded (round 1 of 1)" in error
    tried = [result["recorded"], *result["plans"]]
    assert len(tried) > 1 and all(one["measured_step_ms"] > 0 and "failure" not in one for one in tried)
    # The link of one server takes 2 x 3.2 MB a step at 12.5 MB/s.
    assert result["recorded"]["measured_step_ms"] > 250
    assert written["measured_step_ms"] == min(one["measured_step_ms"] for one in tried)
    assert written["settings"]["servers"] == "2" and written["measured_step_ms"] < written["measured_recorded_step_ms"]
    assert real.left_behind() == []


def test_a_run_that_fails_is_told(real, recordings, tmp_path):
    process = real.start("tune", recordings, "--try", "-o", tmp_path / "plan.json", "--", "false")
    out, error = process.communicate(timeout=LIMIT)
    assert process.returncode == 1 and "no run could be measured" in error and "failed" in out
    assert not (tmp_path / "plan.json").exists()


def test_a_run_ends_after_its_time(real, recordings, program, tmp_path):
    endless = tmp_path / "endless.py"
    endless.write_text(PROGRAM.replace("range(12)", "range(10**9)"))
    out, _ = tune(real, recordings, "--try", "--for", "8s", "--json", "--", sys.executable, endless)
    assert json.loads(out)["recorded"]["measured_step_ms"] > 0


@pytest.mark.parametrize("arguments,why", [
    (["--try"], "put it behind --"), (["--", "true"], "with --try alone"), (["--rounds", 2], "--rounds is of --try"),
    (["--try", "--set", "x", "--", "true"], "'x' is not NAME=VALUE"),
    (["--try", "--for", "soon", "--", "true"], "--for"),
])
def test_flags_are_checked(real, recordings, arguments, why):
    done = real.run("tune", recordings, *arguments)
    assert done.returncode == 2 and why in done.stderr
