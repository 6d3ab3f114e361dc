"""tests/bench/marks_cost.py still runs, and compares what it says it compares."""

import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_both_ways_train_and_are_compared():
    few = ["--rounds", "3", "--steps", "2", "--tensors", "20", "--step-ms", "10", "--json"]
    command = [sys.executable, str(ROOT / "tests/bench/marks_cost.py"), *few]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(done.stdout)
    for name, (least, median, greatest) in rows.items():
        assert least <= median <= greatest, name
    us, share = rows["marks, us a step of CPU time"], rows["marks, share of 10 ms"]
    assert [round(one * 1e-3 / 10, 9) for one in us] == [round(one, 9) for one in share]
    for what in ("marks, ratio of CPU time", "noise, ratio of CPU time", "marks, ratio of wall time", "whole step, ms"):
        assert rows[what][0] > 0
