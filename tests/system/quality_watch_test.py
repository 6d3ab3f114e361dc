"""What links leave out, told by the daemons and programs of a job that runs."""

import json
import os
import re
import sys

import numpy as np
import pytest
from process_helpers import BIN, Process
from watched_job import job_in_the_middle, running_job, scrape

ELEMENTS = 40_000

# Exchanges a gradient with error feedback both ways, and weights as a delta, and goes on once somebody writes to its FIFO.
PROGRAM = f"""
import json, sys
import numpy as np
import bandoneon
from bandoneon.calls import Declaration

def gradient(n={ELEMENTS}):
    return np.sin(np.arange(n, dtype=np.float32)) * (1 + np.arange(n, dtype=np.float32) % 5)

def exchange(worker, tensor, values, step):
    worker.wait(worker.push(tensor, values.ctypes.data, keep=values, learning_rate=0.5))

with bandoneon.init() as worker:
    g, w = worker.declare([
        Declaration("gradient", {ELEMENTS}, push="ef(topk(ratio=0.25))", pull="ef(onebit(block=64))"),
        Declaration("matrix", {ELEMENTS}, push="none", pull="delta(twobit(block=64))", rule="sgd")])
    start = np.zeros({ELEMENTS}, np.float32)
    if worker.rank == 0:
        worker.set_server_state(w, "weights", start.ctypes.data, start.size, 0)
    worker.barrier()
    worker.fetch_weights(w, start.ctypes.data, start.size)
    for step in range(2):
        exchange(worker, g, gradient(), step)
        exchange(worker, w, gradient(), step)
    bad = gradient()
    bad[17] = np.nan
    exchange(worker, g, bad if worker.rank else gradient(), 2)
    exchange(worker, g, gradient(), 3)
    with open(sys.argv[1] + "/stats-" + str(worker.rank), "w") as file:
        json.dump(worker.stats(), file)
    with open(sys.argv[1] + "/text-" + str(worker.rank), "w") as file:
        file.write(bandoneon.metrics.text())
    print("half way", worker.rank, flush=True)
    open(sys.argv[1] + "/go-" + str(worker.rank)).read()
"""


def read(text):
    """{(name, value of the label): number}"""
    return {(m[1], m[2] or ""): float(m[3])
            for m in re.finditer(r'^bandoneon_(\w+)(?:\{\w+="([^"]*)"\})? (\S+)$', text, re.MULTILINE)}


def run(folder, how):
    """{process: its text or numbers}, of a job in the middle."""
    options = [*how, "--set", "quality-every=1", "--set", "min-compress-bytes=1"]
    with job_in_the_middle(folder, PROGRAM, *options) as ports:
        found = {name: read(scrape(port)) for name, port in ports.items()}
        found |= {path.name: read(path.read_text()) for path in folder.glob("text-*")}
        return found | {path.name: json.loads(path.read_text()) for path in folder.glob("stats-*")}


@pytest.fixture(scope="module", params=["alone", "through a daemon"])
def told(request, tmp_path_factory):
    how = ["-n", "2"] if request.param == "alone" else ["--hosts", "2", "--procs-per-host", "1"]
    return run(tmp_path_factory.mktemp("quality"), how)


def norm(values):
    return float(np.linalg.norm(values.astype(np.float64)))


def top(values):
    kept = np.zeros_like(values)
    largest = np.argsort(-np.abs(values), kind="stable")[: ELEMENTS // 4]
    kept[largest] = values[largest]
    return kept


def one_bit(values):
    blocks = values.reshape(-1, 64)
    return (np.where(np.signbit(blocks), -1, 1) * np.abs(blocks).mean(axis=1, keepdims=True)).reshape(-1)


def steps():
    """(what was given, what arrives, what came in) of pushes and of replies, step by step: NaN has changed no memory."""
    g = np.sin(np.arange(ELEMENTS, dtype=np.float32)) * (1 + np.arange(ELEMENTS, dtype=np.float32) % 5)
    up, down = np.zeros(ELEMENTS), np.zeros(ELEMENTS)
    for _ in range(3):
        given, came = g + up, top(g + up)
        up = given - came
        answered, arrives = came + down, one_bit(came + down)
        down = answered - arrives
        yield (given, came, g), (answered, arrives, came)


def figures(given, arrives, came_in):
    owed = given - arrives
    return {"residual_ratio": norm(owed) / norm(given), "owed_steps": norm(owed) / norm(came_in),
            "decoded_cosine": float(given @ arrives) / norm(given) / norm(arrives)}


def test_a_program_is_told_of_its_pushes_by_name(told):
    *_, (pushes, _) = steps()
    for rank in range(2):
        quality = told[f"stats-{rank}"]["quality"]
        mine = quality["tensors"]["gradient"]
        for name, value in figures(*pushes).items():
            assert mine[name] == pytest.approx(value, rel=1e-3), name
        assert set(quality["tensors"]) == {"gradient"}, "weights are pushed without a memory"
        assert mine["step"] == 4 and mine["encodings"] == 4
        assert mine["nonfinite_share"] == (0.25 if rank else 0)
        assert quality["groups"] == {"0": mine}
        told_of = told[f"text-{rank}"]
        assert told_of["worker_residual_ratio", "0"] == mine["residual_ratio"]
        assert told_of["worker_nonfinite_share", "0"] == mine["nonfinite_share"]


def test_a_server_tells_of_its_replies_by_number(told):
    *_, (_, replies) = steps()
    now = told["server 0"]
    for name, value in figures(*replies).items():
        assert now[f"server_{name}", "0"] == pytest.approx(value, rel=2e-3), name
    assert now["server_nonfinite_share", "0"] == 0.25
    # Weights that move by half a gradient, of whose difference two bits are told.
    assert 0.1 < now["server_residual_ratio", "1"] < 0.6
    assert now["server_nonfinite_share", "1"] == 0
    assert not [label for _, label in now if label in ("gradient", "matrix")]


def test_a_daemon_tells_what_its_process_tells(told):
    if "host 0" not in told:
        return
    for rank in range(2):
        mine = {key: value for key, value in told[f"text-{rank}"].items() if key[0].startswith("worker_") and key[1] == "0"}
        assert {key: told[f"host {rank}"][key] for key in mine} == pytest.approx(mine) and mine


def test_nothing_is_measured_where_it_is_off(tmp_path):
    program = """
import json
import numpy as np
import bandoneon
from bandoneon.calls import Declaration
with bandoneon.init() as worker:
    (g,) = worker.declare([Declaration("g", 5000, push="ef(onebit)", pull="ef(onebit)")])
    values = np.ones(5000, np.float32)
    worker.wait(worker.push(g, values.ctypes.data, keep=values))
    assert "quality" not in worker.stats(), worker.stats()
    assert "residual" not in bandoneon.metrics.text()
"""
    with running_job("-n", "1", "-s", "1", "--set", "quality-every=0", "--set", "min-compress-bytes=1", "--", sys.executable, "-c", program):
        pass
