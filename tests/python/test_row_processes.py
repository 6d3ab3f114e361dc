"""Tables on real daemons: the example."""

import json
import re
import subprocess
import sys

import numpy as np
from test_processes import BIN, ROOT, run_processes

EXAMPLE = ROOT / "examples" / "click_model.py"


def run(*options, workers=2, servers=1):
    command = [BIN / "bandoneon", "run", "-n", workers, "-s", servers, "--", sys.executable, EXAMPLE]
    done = subprocess.run(
        list(map(str, [*command, *options])), capture_output=True, text=True, timeout=170, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_rows_of_a_checkpoint_are_exported(tmp_path):
    run("--steps=3", "--batch=32", "--no-compare", f"--save={tmp_path}")
    command = [BIN / "bandoneon", "rows", "export", tmp_path, "tables.3", "--out", tmp_path / "served"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    ids = np.load(tmp_path / "served" / "ids.npy")
    rows = np.load(tmp_path / "served" / "rows.npy", mmap_mode="r")
    assert rows.shape == (len(ids), 8) and len(ids) > 50
    assert (np.diff(ids.astype(np.int64)) > 0).all() and np.isfinite(rows).all()


def exported(directory, out, *options):
    command = [BIN / "bandoneon", "rows", "export", directory, "rows", "--out", out, *options]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return dict(zip(np.load(out / "ids.npy").tolist(), np.load(out / "rows.npy").tolist()))


def test_changes_of_a_full_table_make_an_earlier_export_the_present_one(tmp_path):
    (counts, words), _ = run_processes(tmp_path, "holds_few_rows", tmp_path / "saved")
    assert 300 < counts["held"] <= 512 and counts["added"] - counts["removed"] == counts["held"]
    assert counts["removed"] > 100 and counts["not_admitted"] > counts["added"]
    assert re.search(r"server 0 has \d+ rows of tables: \d+ came, \d+ were removed, and \d+ gradients were of", words)
    before = exported(tmp_path / "saved.20", tmp_path / "before")
    changes = exported(tmp_path / "saved", tmp_path / "changes", "--since", 20)
    removed = np.load(tmp_path / "changes" / "removed.npy").tolist()
    now = exported(tmp_path / "saved", tmp_path / "now")
    # Counts come with heartbeats, and may be of some steps before.
    assert 300 < len(now) <= 512 and not set(removed) & set(now)
    kept = {row: value for row, value in before.items() if row not in set(removed)}
    assert 0 < len(kept) < len(before)
    assert {**kept, **changes} == now


def test_an_admission_leaves_out_the_ids_that_hardly_come_again(tmp_path):
    held = []
    for admit in (1, 2):
        directory = tmp_path / str(admit)
        run("--steps=6", "--batch=64", "--tail=0.3", f"--admit={admit}", "--no-compare", f"--save={directory}")
        command = [BIN / "bandoneon", "rows", "stat", directory, "--json"]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=60, check=True)
        held.append(sum(table["rows"] for table in json.loads(done.stdout)))
    assert 0 < held[1] < held[0] / 2


def test_pagerank_is_that_of_one_process_by_all_cuts():
    options = ("--vertices=2000", "--edges=20000", "--steps=4")
    command = [BIN / "bandoneon", "run", "-n", 3, "-s", 2, "--", sys.executable, ROOT / "examples" / "pagerank.py", *options]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0 and "equal to one process to 1e-6" in done.stdout, done.stdout + done.stderr
    size = {how: float(kb) for how, kb in re.findall(r"(\w+): \S+ workers a vertex, (\S+) kB a worker and step", done.stdout)}
    assert size["dbh"] < size["random"]


def test_the_click_model_is_the_same_on_any_number_of_servers():
    options = ("--steps=5", "--batch=64", "--push=int8", "--pull=int8", "--no-compare")
    first, second = run(*options), run(*options, servers=3)
    rows = [re.findall(r"\brows ([0-9a-f]{16})\b", output) for output in (first, second)]
    assert rows[0] == rows[1] and len(rows[0]) == 1
    areas = [float(area) for area in re.findall(r"AUC (\S+)", first)]
    assert len(areas) == 1 and 0.3 < areas[0] < 0.9
    assert len(re.findall(r"worker \d sent \d+ bytes and got \d+", first)) == 2
