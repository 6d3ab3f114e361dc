"""A parameter has one owner: two that exchange it would each take the other's means for gradients."""

import copy
import gc

import pytest
import torch

import bandoneon
import bandoneon.torch as bdn
from cluster_helpers import (
    assert_same,
    fill,
    grads,
    loss_of,
    make_batch,
    make_model,
    mean_grads,
    model_hash,
    run_job,
    train,
)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def onebit_adam(model, worker, prefix):
    return bdn.algorithms.OneBitAdam(
        model.named_parameters(), links=bdn.Links(warmup=1, prefix=prefix), worker=worker
    )


OWNERS = {
    "DistributedOptimizer": lambda model, worker, prefix: bdn.DistributedOptimizer(
        sgd(model), model.named_parameters(), worker=worker, links=bdn.Links(prefix=prefix, scaler=None)
    ),
    "DDPState": lambda model, worker, prefix: bdn.DDPState(
        model.named_parameters(), worker=worker, links=bdn.Links(prefix=prefix, scaler=None)
    ),
    "ServerOptimizer": lambda model, worker, prefix: bdn.ServerOptimizer(
        sgd(model), model.named_parameters(), worker=worker, links=bdn.Links(prefix=prefix)
    ),
    "LocalSteps": lambda model, worker, prefix: bdn.LocalSteps(
        sgd(model), model.named_parameters(), tau=2, outer=bdn.algorithms.Average(), worker=worker,
        links=bdn.Links(prefix=prefix)
    ),
    "CSER": lambda model, worker, prefix: bdn.algorithms.CSER(
        sgd(model), model.named_parameters(), gradient="none", reset="none", worker=worker,
        links=bdn.Links(prefix=prefix)
    ),
    "EF21": lambda model, worker, prefix: bdn.algorithms.EF21(
        sgd(model), model.named_parameters(), worker=worker, links=bdn.Links(prefix=prefix)
    ),
    "KFAC": lambda model, worker, prefix: bdn.algorithms.KFAC(
        model, sgd(model), worker=worker, links=bdn.Links(prefix=prefix)
    ),
    "OneBitAdam": onebit_adam,
}
REFUSED = "'0.weight' is already exchanged by another optimizer or hook.*close"


@pytest.mark.parametrize("second", OWNERS)
@pytest.mark.parametrize("first", ["DistributedOptimizer", "DDPState", "EF21", "CSER"])
def test_a_second_owner_of_a_parameter_is_refused_under_any_prefix(first, second):
    def job(worker):
        model = make_model()
        owner = OWNERS[first](model, worker, "one/")
        before = copy.deepcopy(model)
        with pytest.raises(bandoneon.InvalidArgument, match=REFUSED) as refused:
            OWNERS[second](model, worker, "two/")
        assert "prefix" not in str(refused.value) and refused.value.tensor == "0.weight"
        assert_same(dict(model.named_parameters()), dict(before.named_parameters()))
        owner.close()
        OWNERS[second](model, worker, "two/").close()
        return True

    assert run_job(job) == [True, True]


def test_optimizers_that_overlap_in_one_parameter():
    """As where a head is given to two of them: the gradients of the first stay right."""

    def job(worker):
        model = make_model()
        named = list(model.named_parameters())
        first = bdn.DistributedOptimizer(sgd(model), named, worker=worker, links=bdn.Links(scaler=None))
        with pytest.raises(bandoneon.InvalidArgument, match="'4.weight' is already exchanged"):
            bdn.DistributedOptimizer(
                torch.optim.SGD(model[4].parameters(), 0.1),
                [(f"4.{name}", p) for name, p in model[4].named_parameters()],
                worker=worker,
                links=bdn.Links(scaler=None, prefix="head/"),
            )
        loss_of(model, make_batch(worker.rank)).backward()
        return grads(model), first

    for result, _ in run_job(job):
        assert_same(result, mean_grads(make_model()))


def test_weights_that_two_models_have_in_common_have_the_name_of_their_owner():
    def job(worker):
        one, other = make_model(0), make_model(1)
        other[2].weight = one[2].weight
        owner = bdn.DistributedOptimizer(sgd(one), one.named_parameters(), worker=worker, links=bdn.Links(scaler=None))
        renamed = [(f"other.{name}", p) for name, p in other.named_parameters()]
        with pytest.raises(bandoneon.InvalidArgument, match="'other.2.weight' is already.*as '2.weight'"):
            bdn.DistributedOptimizer(sgd(other), renamed, worker=worker, links=bdn.Links(scaler=None))
        return owner is not None

    assert run_job(job) == [True, True]


def test_a_group_that_is_added_with_anothers_parameter_is_refused_and_left_out():
    def job(worker):
        one, other = make_model(0), make_model(1)
        first = bdn.DistributedOptimizer(sgd(one), one.named_parameters(), worker=worker, links=bdn.Links(scaler=None))
        second = bdn.DistributedOptimizer(
            sgd(other), other.named_parameters(), worker=worker, links=bdn.Links(scaler=None, prefix="other/")
        )
        with pytest.raises(bandoneon.InvalidArgument, match="already exchanged"):
            second.add_param_group({"params": [one[0].weight]}, [("added", one[0].weight)])
        return len(second.param_groups), first

    assert [count for count, _ in run_job(job)] == [1, 1]


def test_an_owner_that_is_gone_holds_nothing():
    def job(worker):
        model = make_model()
        for _ in range(3):
            owner = OWNERS["DistributedOptimizer"](model, worker, "")
            loss_of(model, make_batch(worker.rank)).backward()
            del owner
            gc.collect()
            model.zero_grad()
        return True

    assert run_job(job) == [True, True]


def test_different_parameters_of_one_name_are_told_of_prefixes():
    def job(worker):
        one, other = make_model(0), make_model(1)
        owner = OWNERS["DistributedOptimizer"](one, worker, "")
        with pytest.raises(bandoneon.InvalidArgument, match="prefix="):
            OWNERS["DistributedOptimizer"](other, worker, "")
        OWNERS["DistributedOptimizer"](other, worker, "other/").close()
        return owner is not None

    assert run_job(job) == [True, True]


# ---- Two parameters in the same memory, as models are tied by .data ----


def tied_by_memory():
    model = torch.nn.Sequential(torch.nn.Linear(6, 6, bias=False), torch.nn.Tanh(), torch.nn.Linear(6, 6, bias=False))
    fill(model)
    model[2].weight.data = model[0].weight.data
    return model


def test_parameters_in_the_same_memory_step_as_in_torch():
    def job(worker):
        model = tied_by_memory()
        optimizer = bdn.DistributedOptimizer(sgd(model), model, worker=worker, links=bdn.Links(scaler=None))
        train(worker, model, optimizer)
        return model_hash(model)

    model = tied_by_memory()
    optimizer = sgd(model)
    for step in range(3):
        local = []
        for rank in range(2):
            optimizer.zero_grad()
            loss_of(model, make_batch(rank, step)).backward()
            local.append(grads(model))
        for name, param in model.named_parameters():
            param.grad = (local[0][name] + local[1][name]) / 2
        optimizer.step()
    assert run_job(job) == 2 * [model_hash(model)]


@pytest.mark.parametrize("kind", ["ServerOptimizer", "LocalSteps", "CSER"])
def test_no_weights_come_back_of_two_parameters_in_the_same_memory(kind):
    def job(worker):
        with pytest.raises(bandoneon.InvalidArgument, match="'0.weight' and '2.weight' lie in the same memory"):
            OWNERS[kind](tied_by_memory(), worker, "")
        flat = torch.zeros(20)
        apart = [torch.nn.Parameter(flat[:12]), torch.nn.Parameter(flat[12:])]
        optimizer = bdn.ServerOptimizer(torch.optim.SGD(apart, 0.1), zip("ab", apart), worker=worker)
        (apart[0].sum() + 2 * apart[1].sum()).backward()
        optimizer.step()
        return flat

    for result in run_job(job):
        assert torch.equal(result, torch.cat([torch.full((12,), -0.1), torch.full((8,), -0.2)]))
