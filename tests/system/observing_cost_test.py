"""tests/bench/observing_cost.py still runs, and reads what it says it reads."""

import importlib
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMIT = 240


def test_each_way_trains_and_is_read_as_often_as_it_says():
    done = subprocess.run([sys.executable, str(ROOT / "tests/bench/observing_cost.py"), "--rounds", "1", "--steps", "20", "--idle-seconds",
                           "2", "--tensors", "2", "--elements", "4096", "--json"], capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    ways = json.loads(done.stdout)["ways"]
    assert ways["unobserved"]["answers"][1] == 0
    assert ways["scraped every 15 s"]["answers"][1] == 3, "two servers and a scheduler, once"
    # At once and then every second: three daemons and the page.
    assert ways["scraped every second, page open"]["answers"][1] >= 2 * 4
    for row in ways.values():
        assert row["step_ms"][1] > 0 and row["cpu_ms_a_step"][1] >= row["daemons_cpu_ms_a_step"][1] >= 0
        assert 0 <= row["idle_cores"][1] < 1


def test_what_a_way_costs_is_of_the_same_round(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tests/bench")
    summary = importlib.import_module("observing_cost").summary
    rounds = [{"unobserved": {"step_ms": a, "cpu_ms_a_step": 5.0, "idle_cores": 0.01},
               "scraped every 15 s": {"step_ms": b, "cpu_ms_a_step": 5.0, "idle_cores": 0.02}}
              for a, b in ((10, 11), (20, 20), (40, 42))]
    found = summary("scraped every 15 s", rounds)
    least, median, greatest = (round(share, 6) for share in found["beyond_step_ms"])
    assert (least, median, greatest) == (0.0, 0.05, 0.1)
    # A hundredth of a core, of steps that use 5 ms of 20.
    assert round(found["reading_share_of_step"][1], 6) == 0.04
    assert summary("unobserved", rounds)["step_ms"] == (10, 20, 40)
