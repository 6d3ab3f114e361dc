"""Trainings with torch that lose a worker by SIGKILL, and their checkpoints: the weights must be those of the workers that are
left, or the error must say why not."""

import os
import pathlib
import re
import subprocess
import sys

import pytest
from process_helpers import BIN

PROGRAM = pathlib.Path(__file__).with_name("lost_training_program.py")


def run(case, workers=3, **variables):
    """[the output of each worker that was not killed]"""
    env = {k: v for k, v in os.environ.items() if not k.startswith("BANDONEON_")}
    env.update(variables, TEST_CASE=case, PYTHONHASHSEED="0")
    command = [BIN / "bandoneon", "run", "-n", workers, "-s", "2", "--set", "min-workers=1", "--", sys.executable, PROGRAM]
    done = subprocess.run([str(part) for part in command], env=env, text=True, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = re.findall(r"^\[worker (\d+)\] (.*)$", done.stdout, re.MULTILINE)
    outputs = {}
    for rank, line in lines:
        outputs.setdefault(int(rank), []).append(line)
    return ["\n".join(lines) for _, lines in sorted(outputs.items()) if lines[-1] == "left"]


def line_of(output, what):
    (line,) = re.findall(rf"^{what} (.*)$", output, re.MULTILINE)
    return line


def same_line(outputs, what):
    lines = {line_of(output, what) for output in outputs}
    assert len(lines) == 1, lines
    return lines.pop()


LAYOUTS = [pytest.param("shared", marks=pytest.mark.long), "hosts", pytest.param("rank0", marks=pytest.mark.long)]


@pytest.mark.parametrize("optimizer", ["DistributedOptimizer", "EF21", "CSER", pytest.param("CSER-model", marks=pytest.mark.long)])
def test_those_that_are_left_train_to_their_own_optimum(optimizer):
    outputs = run(optimizer)
    assert len(outputs) == 2, outputs
    mean, spread, _ = same_line(outputs, "weights").split()
    # The optimum of workers 0 and 1 is 0.5, that of all three 1.
    assert abs(float(mean) - 0.5) < 0.02 and float(spread) < 0.1, outputs
    if optimizer == "CSER":
        same_line(outputs, "common")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_those_that_are_left_save_and_the_next_job_goes_on(layout, tmp_path):
    place = {"TEST_DIRECTORY": str(tmp_path), "TEST_LAYOUT": layout}
    outputs = run("save", **place)
    assert len(outputs) == 2, outputs
    saved = same_line(outputs, "saved")
    for workers in (2, 3):
        loaded = run("load", workers, TEST_SAVED_BY="2", **place)
        assert len(loaded) == workers and same_line(loaded, "loaded") == saved


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_checkpoint_before_a_loss_stays_whole(layout, tmp_path):
    place = {"TEST_DIRECTORY": str(tmp_path), "TEST_LAYOUT": layout}
    outputs = run("killed", **place)
    assert len(outputs) == 2, outputs
    saved = same_line(outputs, "saved")
    for output in outputs:
        assert "worker 2, which was lost amid a checkpoint that it had part in" in line_of(output, "refused:")
    loaded = run("load", 3, TEST_SAVED_BY="3", **place)
    assert len(loaded) == 3 and same_line(loaded, "loaded") == saved
