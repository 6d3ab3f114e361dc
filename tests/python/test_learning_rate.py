"""The learning rate that travels with each push of DistributedOptimizer."""

import numpy as np
import pytest
import torch

import algorithms
import bandoneon
import bandoneon.torch as bdn
from cluster_helpers import loss_of, make_batch, make_model, run_job, sgd
from reference_helpers import Quadratic, assert_close, distributed, links, run_library

STEPS = 30


class ScheduledSGD(algorithms.SGD):
    """With rate(t) at step t."""

    def __init__(self, rate):
        super().__init__(None)
        self.rate, self.t = rate, 0

    def step(self, x, g):
        self.t += 1
        self.lr = self.rate(self.t)
        return super().step(x, g)


def falling(t):
    """Warm-up from 0, then halved every 8 steps."""
    return 0.0 if t == 1 else 0.04 * 0.5 ** (t // 8)


def run_scheduled(correction):
    option = ",correction=lr" if correction else ""
    spec = f"ef(topk(ratio=0.1){option})"
    make = distributed(lambda p: torch.optim.SGD(p, 0.0), push=spec, pull=spec)
    return run_library(Quadratic(), make, STEPS, falling)


@pytest.mark.parametrize("correction", [True, False])
def test_the_correction_brings_residuals_to_the_new_rate(correction):
    problem, topk = Quadratic(), algorithms.topk(0.1)
    ways = links(topk, topk, rate=falling if correction else None)
    rules = [ScheduledSGD(falling) for _ in ways]
    expected = algorithms.every_step(problem.start, problem.gradient, STEPS, rules, ways)
    assert_close(run_scheduled(correction), expected)


def test_the_correction_changes_something():
    assert not np.allclose(run_scheduled(True)[0], run_scheduled(False)[0], atol=1e-3)


def test_each_group_pushes_at_its_own_rate():
    def job(worker):
        model = make_model()
        groups = [
            {"params": [p for p in model.parameters() if p.dim() == 2], "lr": 0.1},
            {"params": [p for p in model.parameters() if p.dim() == 1], "lr": 0.3},
        ]
        spec = "ef(onebit,correction=lr)"
        optimizer = bdn.DistributedOptimizer(
            torch.optim.SGD(groups), model.named_parameters(), links=bdn.Links(push=spec, scaler=None), worker=worker
        )
        loss_of(model, make_batch(worker.rank)).backward()
        tensors = optimizer.comm_state_dict()["tensors"]
        return {name: round(entry["learning_rate"], 6) for name, entry in tensors.items()}

    for rates in run_job(job, min_compress_bytes=1):
        assert rates == {name: 0.1 if "weight" in name else 0.3 for name in rates}


def test_another_rate_in_one_worker_is_an_error_that_names_both():
    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model, lr=0.1 + worker.rank)  # noqa: F841
        loss_of(model, make_batch(worker.rank)).backward()

    with pytest.raises(bandoneon.BandoneonError, match="learning rate.*rank"):
        run_job(job)


@pytest.mark.parametrize("make", ["DistributedOptimizer", "ServerOptimizer"])
def test_rates_that_differ_by_worker_are_told_once_and_with_what_to_do(make):
    def job(worker):
        model = make_model()
        inner = torch.optim.SGD(model.parameters(), 0.1 / (1 + worker.rank))
        optimizer = getattr(bdn, make)(inner, model.named_parameters(), worker=worker)
        with pytest.raises(bandoneon.BandoneonError) as caught:
            loss_of(model, make_batch(worker.rank)).backward()
            optimizer.step()
        return str(caught.value), caught.value.tensor

    said = run_job(job)
    if make == "DistributedOptimizer":
        for text, tensor in said:
            assert text.startswith(f"tensor '{tensor}' step 1: rank ") and text.count(f"'{tensor}'") == 1, text
            assert "waiting for" not in text and text.count("has learning rate") == 1 and "ReduceLROnPlateau" in text
    else:
        assert all("are not those of all others" in text or "has learning rate" in text for text, _ in said)
