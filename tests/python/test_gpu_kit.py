"""The programs that a machine with a GPU runs, on one that has none: that they work themselves."""

import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CHECK = ROOT / "tests" / "gpu" / "gpu_torch_check.py"


def test_the_checks_that_need_no_gpu_pass_without_one(tmp_path):
    done = subprocess.run(
        [sys.executable, CHECK, "--device", "cpu", "--out", tmp_path, "--budget", "240"],
        capture_output=True,
        text=True,
        timeout=280,
    )
    report = json.loads((tmp_path / "torch.json").read_text())
    assert done.returncode == 0, done.stdout + json.dumps(report, indent=1)
    assert set(report) == {
        "environment", "same_bits_everywhere", "training", "ddp_hook", "ends_cleanly", "speed", "beside_backward"
    }  # fmt: skip
    assert report["same_bits_everywhere"]["result"]["jobs"] == 40


def test_a_check_that_fails_is_told_with_its_reason(tmp_path):
    missing = {**os.environ, "BANDONEON_LIBRARY": str(tmp_path / "none.so")}
    done = subprocess.run(
        [sys.executable, CHECK, "--device", "cpu", "--out", tmp_path, "--only", "training"],
        capture_output=True,
        text=True,
        timeout=120,
        env=missing,
    )
    assert done.returncode == 1
    entry = json.loads((tmp_path / "torch.json").read_text())["training"]
    assert entry["ok"] is False and "none.so" in entry["why"]
    assert "False" in done.stdout and "none.so" in done.stdout


def test_every_wait_between_streams_is_in_the_list_of_mutations():
    listed = subprocess.run([ROOT / "scripts" / "mutate_streams", "--list"], capture_output=True, text=True)
    assert listed.returncode == 0, listed.stderr
    expected = (ROOT / "tests" / "device" / "stream_mutations.txt").read_text()
    assert listed.stdout == expected, (
        "a Record, WaitFor or Await came or went: run scripts/mutate_streams, and when each of them fails a test, "
        "scripts/mutate_streams --list >tests/device/stream_mutations.txt"
    )
