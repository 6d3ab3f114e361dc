"""What follows an exchange inside step() that took too long."""

import contextlib

import pytest
import torch

import bandoneon
import bandoneon.torch as bdn
from cluster_helpers import linked, loss_of, make_batch, make_model, run_job


def around_sgd(kind, **options):
    def make(worker, model, **common):
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        return kind(inner, model.named_parameters(), worker=worker, **linked(**options, **common))

    return make


def onebit_adam(worker, model, **common):
    return bdn.algorithms.OneBitAdam(model.parameters(), worker=worker, **linked(warmup=1, **common))


def lion(worker, model, **common):
    return bdn.algorithms.Lion(model.parameters(), lr=0.01, worker=worker, **linked(**common))


OPTIMIZERS = {
    "OneBitAdam": onebit_adam,
    "ServerOptimizer": around_sgd(bdn.ServerOptimizer),
    "LocalSteps": around_sgd(bdn.LocalSteps, tau=1, outer=bdn.algorithms.Average()),
    "CSER": around_sgd(bdn.algorithms.CSER, gradient=4, reset=2),
    "Lion": lion,
    "DeMo": lambda worker, model, **common: bdn.algorithms.DeMo(model.parameters(), worker=worker, **linked(**common)),
    "EF21": around_sgd(bdn.algorithms.EF21),
}


def train(worker, model, optimizer, step=0):
    optimizer.zero_grad()
    loss_of(model, make_batch(worker.rank, step)).backward()
    optimizer.step()


def after_a_timeout(worker, make, look):
    """look(optimizer, model) of rank 0 after its second step timed out and ended all the same, with what
    it was before that step."""
    model = make_model()
    optimizer = make(worker, model, timeout=1.5)
    train(worker, model, optimizer)
    before = [p.detach().clone() for p in model.parameters()]
    if worker.rank == 0:
        with pytest.raises(bandoneon.DeadlineExceeded):
            train(worker, model, optimizer, step=1)
        worker.barrier("rank 0 has given up")
    else:
        worker.barrier("rank 0 has given up")
        with contextlib.suppress(bandoneon.DeadlineExceeded):
            train(worker, model, optimizer, step=1)
    worker.barrier("rank 1 has pushed")
    return look(optimizer, model, before) if worker.rank == 0 else None


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_no_step_follows_one_that_timed_out(make):
    def look(optimizer, model, before):
        for _ in range(2):
            with pytest.raises(bandoneon.FailedPrecondition, match="left.*waiting.*new job"):
                optimizer.step()
        return "refused"

    assert run_job(lambda worker: after_a_timeout(worker, make, look))[0] == "refused"


def test_a_step_that_timed_out_has_changed_nothing_and_is_not_counted():
    def look(optimizer, model, before):
        assert all(torch.equal(a, b) for a, b in zip(before, model.parameters()))
        with pytest.raises(bandoneon.FailedPrecondition):
            optimizer.comm_state_dict()
        return {state["step"] for state in optimizer.state.values()}

    assert run_job(lambda worker: after_a_timeout(worker, onebit_adam, look))[0] == {1}
