"""Models that are not the same in all workers are refused where gradients would go on keeping them so."""

import re

import pytest
import torch

import bandoneon
import bandoneon.torch as bdn
from cluster_helpers import linked, make_model, run_job, sgd


def adam(worker, model, **options):
    named = list(model.named_parameters())
    return bdn.algorithms.OneBitAdam(
        named, worker=worker, **linked(warmup=2, **options)
    )


def hook(worker, model, **options):
    return bdn.DDPState(model.named_parameters(), worker=worker, **linked(**options))


MAKERS = {"DistributedOptimizer": sgd, "DDPState": hook, "OneBitAdam": adam}


@pytest.mark.parametrize("who", MAKERS)
def test_other_values_are_refused_by_all_workers_and_named(who):
    def job(worker):
        model = make_model()
        if worker.rank == 1:
            with torch.no_grad():
                model[2].bias[3] += 1e-6
        with pytest.raises(bandoneon.InvalidArgument) as refusal:
            MAKERS[who](worker, model)
        bdn.broadcast_parameters(model, worker=worker)
        MAKERS[who](worker, model).close()  # The names are free again.
        return str(refusal.value)

    root, other = run_job(job)
    assert root == other, "whoever ends the job first, the reason is what differs"
    assert re.search(r"'2.bias' has other values in worker 1 than in worker 0 \(1 of 6 ", other)
    assert f"broadcast_parameters(model) before {who}" in other and "check=False" in other


@pytest.mark.parametrize("who", MAKERS)
def test_who_asks_for_no_check_has_none(who):
    run_job(lambda worker: MAKERS[who](worker, make_model(worker.rank), check=False))


def test_parameters_that_are_added_later_are_checked_too():
    def job(worker):
        optimizer = sgd(worker, make_model())
        head = make_model(worker.rank)
        names = [(f"head.{name}", param) for name, param in head.named_parameters()]
        with pytest.raises(bandoneon.InvalidArgument, match="differ"):
            optimizer.add_param_group({"params": list(head.parameters())}, names)
        assert len(optimizer.param_groups) == 1
        bdn.broadcast_parameters(head, worker=worker)
        optimizer.add_param_group({"params": list(head.parameters())}, names)

    run_job(job)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_values_of_every_type_are_compared(dtype):
    def job(worker):
        model = make_model().to(dtype)
        if worker.rank == 1:
            with torch.no_grad():
                model[0].weight[1, 1] = 7
        with pytest.raises(bandoneon.InvalidArgument, match="differ"):
            sgd(worker, model)

    run_job(job)
