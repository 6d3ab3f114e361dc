"""FSDP2 and tensor parallelism inside islands of two ranks, and Bandoneon across them: four real processes."""

import os
import pathlib
import re
import subprocess
import sys

from process_helpers import BIN

PROGRAM = pathlib.Path(__file__).with_name("sharded_program.py")


def test_sharded_models_train_as_one_process_does_on_the_whole_batch(tmp_path):
    env = {k: v for k, v in os.environ.items() if not k.startswith("BANDONEON_")}
    env["TEST_STORE"] = f"file://{tmp_path}/store"
    command = [BIN / "bandoneon", "run", "-n", "4", "-s", "2", "--set", "min-compress-bytes=1", "--", sys.executable, PROGRAM]
    done = subprocess.run([str(part) for part in command], env=env, capture_output=True, text=True, timeout=300)
    output = done.stdout + done.stderr
    assert done.returncode == 0, output[-6000:]
    right = re.findall(r"^\[worker 0\] case '(.*)': right$", output, re.MULTILINE)
    assert len(right) >= 40 and "WRONG" not in output, output[-6000:]
