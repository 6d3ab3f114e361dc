"""tests/bench/compare.py still runs, and its ways agree about what they compare."""

import importlib
import json
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMIT = 300


def compare(tmp_path, *arguments):
    out = tmp_path / "figures.json"
    command = [sys.executable, ROOT / "tests/bench/compare.py", *arguments, "--rounds", 1, "--json", out]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text()), done.stdout


def test_where_two_ways_cross(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tests/bench")
    crossings = importlib.import_module("compare").crossings

    def rows(ours, theirs):
        return [{"mbit_per_s": rate, "ways": {"ours": {"step_s": {"median": a}}, "DDP, fp32": {"step_s": {"median": b}}}}
                for rate, a, b in zip((100, 1000, 10000), ours, theirs)]

    # Theirs falls from 2 s to half of one: on a line between logarithms it is at 1 s half way.
    ((rate, ms),) = crossings(rows((1, 1, 1), (4, 2, 0.5)), "ours")
    assert abs(rate - 1000 * 10**0.5) < 1e-6 and abs(ms - 1000) < 1e-6
    assert crossings(rows((1, 1, 1), (4, 3, 2)), "ours") == []
    assert crossings([{"mbit_per_s": 1, "ways": {"ours": {"step_s": {"median": 1}}}}], "ours") == []


@pytest.mark.long
def test_the_same_tensors(tmp_path):
    figures, table = compare(tmp_path, "tensors")
    assert set(figures["tensors"]) == {"shared memory", "TCP"}
    for way, ways in figures["tensors"].items():
        assert {"gloo, one buffer", "push and pull, none", "push and pull, ef(onebit)"} <= set(ways)
        assert way in table
        for name, facts in ways.items():
            assert 0 < facts["gb_per_s"]["least"] <= facts["gb_per_s"]["greatest"], name
            assert facts["cpu_s_per_gb"] > 0, name
            assert name in table
    has_mpi = shutil.which("mpicc") is not None and shutil.which("mpirun") is not None
    assert ("MPI, one buffer" in figures["tensors"]["shared memory"]) == has_mpi


@pytest.mark.long
def test_the_same_tensors_over_a_link(tmp_path):
    figures, table = compare(tmp_path, "links", "--rates", 2000)
    (row,) = figures["links"]
    assert row["mbit_per_s"] == 2000
    ways = row["ways"]
    assert {"push and pull, none", "push and pull, ef(onebit)"} <= set(ways)
    assert all(name in table and facts["gb_per_s"]["median"] > 0 for name, facts in ways.items())
    if row["emulated"] == "htb":
        assert 0 < ways["push and pull, none"]["share_of_link"] < 1.05
        assert 0 < ways["gloo, one buffer"]["share_of_link"] < 1.05


def test_training_steps_over_a_link(tmp_path):
    picture = tmp_path / "steps.svg"
    figures, table = compare(tmp_path, "steps", "--models", "vgg", "--workers", 2, "--rates", 2000, "--plot", picture)
    (row,) = figures["steps"]
    assert (row["model"], row["workers"], row["mbit_per_s"]) == ("vgg", 2, 2000)
    ways = row["ways"]
    assert all(facts["step_s"]["median"] > 0 for facts in ways.values())
    if row["emulated"] == "htb":
        # The same gradients, so the same losses, but for rounding.
        assert abs(ways["push and pull, none"]["loss"] - ways["DDP, fp32"]["loss"]) < 1e-4
    assert "vgg, 2 workers, 2000 Mbit/s" in table
    assert "</svg>" in picture.read_text()
