"""The programs that a machine with a GPU runs, on one that has none: that they work themselves."""

import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CHECK = ROOT / "tests" / "gpu" / "gpu_torch_check.py"


@pytest.mark.long
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
        [sys.executable, CHECK, "--device", "cpu", "--out", tmp_path / "new", "--only", "training"],
        capture_output=True,
        text=True,
        timeout=120,
        env=missing,
    )
    assert done.returncode == 1
    entry = json.loads((tmp_path / "new" / "torch.json").read_text())["training"]
    assert entry["ok"] is False and "none.so" in entry["why"]
    assert "False" in done.stdout and "none.so" in done.stdout


def test_the_run_ends_each_step_on_a_bare_machine_without_a_gpu(tmp_path):
    """With programs that find no GPU, a Python that may have no pip, and an environment that has nothing."""
    kit, out = tmp_path / "kit", tmp_path / "out"
    kit.mkdir()
    with tarfile.open(kit / "programs.tar.gz", "w:gz") as programs:
        for program in ("device_gpu_test", "device_exchanges_test", "device_bench"):
            text = b"#!/bin/sh\nexit 77\n"
            entry = tarfile.TarInfo(f"bin/{program}")
            entry.size, entry.mode = len(text), 0o755
            programs.addfile(entry, io.BytesIO(text))
    (kit / "commit").write_text("none\n")
    shutil.copy(ROOT / "tests" / "gpu" / "run_kit", kit / "run")
    with zipfile.ZipFile(kit / "bandoneon-0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("bandoneon/__init__.py", "")
        wheel.writestr("bandoneon/__main__.py", "print('bandoneon 0')\n")
        wheel.writestr("bandoneon-0.dist-info/METADATA", "Metadata-Version: 2.1\nName: bandoneon\nVersion: 0\n")
        wheel.writestr("bandoneon-0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("bandoneon-0.dist-info/RECORD", "")
    run = ["env", "-i", "PATH=/usr/bin:/bin", f"PYTHON={sys.executable}", "bash", kit / "run", out]
    done = subprocess.run(run, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + (out / "facts.log").read_text()
    steps = dict(line.split("\t")[:2] for line in (out / "summary.tsv").read_text().splitlines())
    for step in ("facts", "unpack", "install", "version", "programs"):
        assert steps.pop(step) == "0", step
    assert steps and set(steps.values()) == {"77"}, steps
    assert len(list(out.iterdir())) <= 8
    assert "bandoneon 0" in (out / "facts.log").read_text()


def test_every_wait_between_streams_is_in_the_list_of_mutations():
    listed = subprocess.run([ROOT / "scripts" / "mutate_streams", "--list"], capture_output=True, text=True)
    assert listed.returncode == 0, listed.stderr
    expected = (ROOT / "tests" / "device" / "stream_mutations.txt").read_text()
    assert listed.stdout == expected, (
        "a Record, WaitFor or Await came or went: run scripts/mutate_streams, and when each of them fails a test, "
        "scripts/mutate_streams --list >tests/device/stream_mutations.txt"
    )
