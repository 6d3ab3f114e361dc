"""The guard of links: with codecs under which residuals grow without bound, and with those under which they do not."""

import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
import torch

import bandoneon
import bandoneon.torch as bdn
from bandoneon.calls import Declaration
from bandoneon.errors import InvalidArgument
from cluster_helpers import fill, run_job

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("BANDONEON_BIN", ROOT / "build" / "release" / "bin"))
N = 4096
# Each scales up what it drew for what it did not: under error feedback that comes back, larger every step.
DIVERGING = ["ef(randomk(ratio=0.05,unbiased=true))", "ef(dither(levels=1,norm=l2))", "ef(dither(levels=0))"]
HEALTHY = [
    "ef(onebit(block=64))",
    "ef(onebit(block=64,scale=bf16))",
    "ef(twobit(block=64))",
    "ef(topk(ratio=0.01))",
    "ef(randomk(ratio=0.05))",
    "ef(dither(levels=3,kind=natural))",
]
SETTLING = ["ef(int2)", "ef(dither(levels=1))"]  # After a while in which they leave out more than they are given.


def gradient(rank, step):
    generator = np.random.default_rng(1000 * step + rank)
    return generator.standard_normal(N).astype(np.float32)


def exchanges(worker, push, pull, steps, name="g"):
    """(the results, and what stats() says of the pushes)"""
    (tensor,) = worker.declare([Declaration(name, N, push=push, pull=pull)])
    results, bytes_pushed = [], []
    for step in range(steps):
        values = gradient(worker.rank, step)
        before = worker.stats()["bytes_pushed"]
        worker.wait(worker.push(tensor, values.ctypes.data, keep=values))
        bytes_pushed.append(worker.stats()["bytes_pushed"] - before)
        results.append(values)
    return results, bytes_pushed, worker.stats().get("quality", {"tensors": {}})["tensors"]


def run(push, pull, guard, steps=40):
    def job(worker):
        return exchanges(worker, push, pull, steps)

    with bandoneon.LocalCluster(workers=2, servers=1, min_compress_bytes=1, guard=guard, quality_every=1) as cluster:
        return cluster.run(job, guard=guard, quality_every=1)


def mean(step):
    return (gradient(0, step) + gradient(1, step)) * np.float32(0.5)


@pytest.mark.parametrize("spec", DIVERGING)
def test_a_push_that_diverges_goes_uncompressed_in_all_workers_from_one_step_on(spec):
    (first, bytes_pushed, quality), (second, other_bytes, _) = run(spec, "none", "fall back")
    assert all(np.array_equal(a, b) for a, b in zip(first, second)), "replicas differ"
    dense = [step for step, count in enumerate(bytes_pushed) if count > 4 * N]
    assert dense and dense == list(range(dense[0], 40)), "for good, once it is"
    assert dense == [step for step, count in enumerate(other_bytes) if count > 4 * N]
    assert 8 <= dense[0] <= 20
    assert quality["g"]["guard"] == "fallen back"
    # The first such step brings all that was owed, and nothing is owed after it.
    for step in range(dense[0] + 1, 40):
        np.testing.assert_allclose(first[step], mean(step), rtol=1e-6, atol=1e-6)
    assert quality["g"]["residual_ratio"] == 0
    # So nothing was lost: the results add up to the gradients, to rounding of numbers as large as those owed.
    largest = max(np.abs(values).max() for values in first)
    total = sum(values.astype(np.float64) for values in first)
    expected = sum(mean(step).astype(np.float64) for step in range(40))
    np.testing.assert_allclose(total, expected, atol=1e-4 * max(1.0, float(largest)))


@pytest.mark.parametrize("spec", DIVERGING[1:])  # What both draw alike may not be scaled up on the way back.
def test_so_does_a_reply(spec):
    (first, _, _), (second, _, _) = run("none", spec, "fall back")
    assert all(np.array_equal(a, b) for a, b in zip(first, second))
    np.testing.assert_allclose(first[-1], mean(39), rtol=1e-6, atol=1e-6)


def test_so_does_a_delta_of_weights():
    def job(worker):
        (tensor,) = worker.declare(
            [Declaration("w", N, push="none", pull="delta(dither(levels=1,norm=l2))", rule="sgd")]
        )
        weights = np.zeros(N, np.float32)
        if worker.rank == 0:
            worker.set_server_state(tensor, "weights", weights.ctypes.data, N)
        worker.barrier()
        worker.fetch_weights(tensor, weights.ctypes.data, N)
        results = []
        for step in range(40):
            values = gradient(worker.rank, step)
            worker.wait(worker.push(tensor, values.ctypes.data, keep=values, learning_rate=0.1))
            results.append(values)
        held = np.empty(N, np.float32)
        if worker.rank == 0:
            worker.get_server_state(tensor, "weights", held.ctypes.data, N)
            return results, held
        return results, None

    with bandoneon.LocalCluster(workers=2, servers=1, min_compress_bytes=1, guard="fall back", quality_every=1) as cluster:
        (first, held), (second, _) = cluster.run(job)
    assert all(np.array_equal(a, b) for a, b in zip(first, second))
    np.testing.assert_allclose(first[-1], held, rtol=1e-5, atol=1e-5)


def test_a_guard_that_warns_says_it_once_and_changes_nothing(capfd):
    warned = run(DIVERGING[1], "none", "warn")
    said = capfd.readouterr().err
    assert len(re.findall(r"tensor 'g' step \d+: what its push leaves out grows without bound", said)) == 2, said
    assert "quality-guard=fall-back" in said
    off = run(DIVERGING[1], "none", None)
    assert "without bound" not in capfd.readouterr().err
    assert all(np.array_equal(a, b) for mine, other in zip(warned, off) for a, b in zip(mine[0], other[0]))
    assert warned[0][2]["g"]["guard"] == "warned" and "guard" not in off[0][2]["g"]


@pytest.mark.parametrize("spec", HEALTHY)
def test_links_that_owe_a_bounded_number_of_steps_are_left_alone(spec):
    (_, _, quality), _ = run(spec, spec, "fall back", steps=60)
    assert "guard" not in quality["g"] and quality["g"]["residual_ratio"] <= 1


@pytest.mark.parametrize("spec", SETTLING)
def test_so_are_those_that_settle(spec):
    (_, _, quality), _ = run(spec, "none", "fall back", steps=120)
    assert "guard" not in quality["g"] and quality["g"]["owed_steps"] < 50


def test_a_healthy_training_is_left_alone_in_small_groups_too():
    def job(worker):
        model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 8))
        fill(model)
        optimizer = bdn.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.05),
            model,
            links=bdn.Links(push="ef(onebit(block=64))", pull="ef(onebit(block=64))", momentum=0.9),
            worker=worker,
        )
        generator = torch.Generator().manual_seed(worker.rank)
        for _ in range(100):
            optimizer.zero_grad()
            batch = torch.randn(16, 32, generator=generator)
            (model(batch) - batch[:, :8]).square().mean().backward()
            optimizer.step()
        return worker.stats()["quality"]["tensors"], [p.detach().clone() for p in model.parameters()]

    with bandoneon.LocalCluster(workers=2, servers=1, min_compress_bytes=1, guard="fall back", quality_every=1) as cluster:
        (quality, first), (_, second) = cluster.run(job, guard="fall back", quality_every=1)
    assert quality and all("guard" not in figures for figures in quality.values())
    assert all(torch.equal(a, b) for a, b in zip(first, second))


def test_the_tensor_of_a_group_that_does_it_is_named(capfd):
    def job(worker):
        tensors = worker.declare(
            [
                Declaration("calm", 64, push="ef(dither(levels=1,norm=l2))", fuse=True),
                Declaration("wild", N, push="ef(dither(levels=1,norm=l2))", fuse=True),
            ]
        )
        for step in range(12):
            values = [np.zeros(64, np.float32), gradient(worker.rank, step)]
            pushes = [worker.push(t, v.ctypes.data, keep=v) for t, v in zip(tensors, values)]
            for ticket in pushes:
                worker.wait(ticket)

    with bandoneon.LocalCluster(workers=1, servers=1, min_compress_bytes=1) as cluster:
        cluster.run(job, quality_every=1)
    assert "tensor 'wild' step" in capfd.readouterr().err


def test_settings_that_do_not_go_together_are_refused():
    with pytest.raises(InvalidArgument, match="None, \"warn\" and \"fall back\""):
        run_job(lambda worker: None, guard="panic")
    with pytest.raises(InvalidArgument, match="measures nothing"):
        run_job(lambda worker: None, guard="fall back", quality_every=0)


PROGRAM = """
import hashlib, sys
import numpy as np
import bandoneon
from bandoneon.calls import Declaration
N = 50_000
with bandoneon.init() as worker:
    good, bad = worker.declare([
        Declaration("good", N, push="ef(onebit(block=64))", pull="ef(onebit(block=64))"),
        Declaration("bad", N, push="ef(dither(levels=1,norm=l2))", pull="ef(onebit(block=64))")])
    digest = hashlib.sha256()
    for step in range(30):
        generator = np.random.default_rng(100 * step + worker.rank)
        for tensor in good, bad:
            values = generator.standard_normal(N).astype(np.float32)
            worker.wait(worker.push(tensor, values.ctypes.data, keep=values))
            digest.update(values.tobytes())
    quality = worker.stats()["quality"]["tensors"]
    assert quality["bad"]["guard"] == "fallen back" and "guard" not in quality["good"], quality
    print("digest", digest.hexdigest(), flush=True)
"""


def test_processes_fall_back_together(tmp_path):
    env = {k: v for k, v in os.environ.items() if not k.startswith("BANDONEON_") or k == "BANDONEON_LIBRARY"}
    settings = ["quality-every=4", "quality-guard=fall-back", "min-compress-bytes=1"]
    command = [BIN / "bandoneon", "run", "-n", "3", "-s", "2"]
    command += [word for setting in settings for word in ("--set", setting)]
    done = subprocess.run(
        [*command, "--", sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=120, check=False
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert len(re.findall(r"digest (\w+)", said)) == 3 and len(set(re.findall(r"digest (\w+)", said))) == 1, said
    assert re.search(r"tensor 'bad' goes uncompressed both ways from step \d+ on", said), said
    assert "tensor 'good'" not in said
