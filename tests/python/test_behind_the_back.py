"""What a program does behind an optimizer's back is said, and not trained on by each worker alone."""

import types
import warnings

import pytest
import torch

import bandoneon
import bandoneon.torch as bdn
from bandoneon.torch import round_notices
from cluster_helpers import run_job

OVERLAPS = [False, "backward", "forward"]


def two_layers():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 1, bias=False))
    for param in model.parameters():
        torch.nn.init.ones_(param)
    return model


def backward(model, worker):
    (model(torch.ones(1, 2)) * (1 + worker.rank)).sum().backward()


def distributed(worker, model, params, overlap):
    inner = torch.optim.SGD(params, lr=0.1)
    named = model if overlap == "forward" else model.named_parameters()
    return inner, bdn.DistributedOptimizer(inner, named, overlap=overlap, worker=worker)


@pytest.mark.parametrize("overlap", OVERLAPS)
@pytest.mark.parametrize("way", ["a group of the optimizer inside", "a list of parameters"])
def test_parameters_that_nothing_exchanges_are_named_by_group_and_place(overlap, way):
    def job(worker):
        model = two_layers()
        inner, optimizer = distributed(worker, model, model[1].parameters(), overlap)
        if way == "a list of parameters":
            optimizer.param_groups[0]["params"] += list(model[0].parameters())
        else:
            inner.add_param_group({"params": list(model[0].parameters())})
        before = [param.detach().clone() for param in model.parameters()]
        backward(model, worker)
        place = "parameter 1 of group 0" if way == "a list of parameters" else "parameter 0 of group 1"
        with pytest.raises(bandoneon.FailedPrecondition, match=f"{place}, 2 x 2 elements, has a gradient"):
            optimizer.step()
        assert all(map(torch.equal, before, model.parameters()))
        model[0].requires_grad_(False)  # Frozen, it is nobody's business.
        model[0].weight.grad = None
        optimizer.zero_grad()
        backward(model, worker)
        optimizer.step()
        optimizer.synchronize()
        return model[1].weight.tolist()

    first, second = run_job(job)
    assert first == second != [[1.0, 1.0]]


def test_weights_tied_by_their_memory_are_refused_where_steps_are_deferred():
    def job(worker):
        model = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2, bias=False))
        model[1].weight.data = model[0].weight.data
        with pytest.raises(bandoneon.InvalidArgument, match="same memory, and overlap='forward'"):
            distributed(worker, model, model.parameters(), "forward")
        distributed(worker, model, model.parameters(), "backward")

    run_job(job, workers=1)


def test_a_backward_pass_through_what_push_pull_replaced_is_refused():
    def job(worker):
        weight = torch.ones(2, requires_grad=True)
        exchanged = (weight * (1 + worker.rank)).exp()
        bdn.push_pull(exchanged, "exchanged", worker=worker).wait()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            exchanged.sum().backward()
        value = (weight * (1 + worker.rank)).exp()
        copy = bdn.push_pull(value.detach().clone(), "copy", worker=worker).wait()
        value.sum().backward()
        assert torch.allclose(weight.grad, (1 + worker.rank) * torch.full((2,), 1.0 + worker.rank).exp())
        return copy.tolist()

    first, second = run_job(job)
    assert first == second


@pytest.mark.parametrize("way", ["in no group", "frozen", "with lr=0", "of another optimizer"])
def test_a_named_parameter_in_no_group_is_warned_of_for_its_gradient_is_of_one_worker(way):
    def job(worker):
        model = two_layers()
        first, second = model[0].weight, model[1].weight
        groups = [{"params": [second]}] + [{"params": [first], "lr": 0.0}] * (way == "with lr=0")
        inner = torch.optim.SGD(groups, lr=0.1)
        optimizers = [bdn.DistributedOptimizer(inner, model.named_parameters(), worker=worker)]
        if way == "of another optimizer":
            inner = torch.optim.SGD([first], lr=0.1)
            links = bdn.Links(prefix="2/")
            optimizers.append(bdn.DistributedOptimizer(inner, model.named_parameters(), links=links, worker=worker))
        first.requires_grad_(way != "frozen")
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            for _ in range(2):
                model.zero_grad()
                backward(model, worker)
                norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                for optimizer in optimizers:
                    optimizer.step()
        return [str(one.message) for one in seen], norm.item(), second.tolist()

    # One worker at a time may catch warnings of its process.
    messages, *_ = run_job(job, workers=1)[0]
    assert len(messages) == (way == "in no group")
    assert all("'0.weight' has a gradient and is in no group" in message for message in messages)
    if way != "in no group":
        (_, *first), (_, *second) = run_job(job)
        assert first == second


WAYS_OF_COMING_LATE = {
    "replaced": lambda model: model.__setitem__(1, torch.nn.Linear(2, 1)),
    "deep inside": lambda model: model[0].register_parameter("scale", torch.nn.Parameter(torch.ones(()))),
    "frozen": lambda model: model.__setitem__(1, torch.nn.Linear(2, 1).requires_grad_(False)),
    "of its own": lambda model: torch.nn.Sequential(model[0], torch.nn.Linear(2, 1)),
    "given to the optimizer": lambda model: model.__setitem__(1, torch.nn.Linear(2, 1)),
}


@pytest.mark.parametrize("named", ["the model", "its named_parameters()"])
@pytest.mark.parametrize("way", WAYS_OF_COMING_LATE)
def test_a_parameter_that_comes_into_the_model_later_is_warned_of_once(way, named):
    def job(worker):
        model = two_layers()
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = bdn.DistributedOptimizer(
            inner, model if named == "the model" else model.named_parameters(), worker=worker
        )
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            backward(model, worker)
            optimizer.step()
            WAYS_OF_COMING_LATE[way](model)
            if way == "given to the optimizer":
                pairs = [(f"late.{name}", param) for name, param in model[1].named_parameters()]
                optimizer.add_param_group({"params": list(model[1].parameters())}, pairs)
            for _ in range(2):
                optimizer.zero_grad()
                backward(model, worker)
                for param in model[0].parameters():
                    param.grad = torch.ones_like(param)
                optimizer.step()
        return [str(one.message) for one in seen if "came into the model" in str(one.message)]

    # One worker at a time may catch warnings of its process.
    (messages,) = run_job(job, workers=1)
    assert len(messages) == (way in ("replaced", "deep inside"))
    name = "1.weight" if way == "replaced" else "0.scale"
    assert all(f"'{name}' has a gradient and came into the model after this" in message for message in messages)


def test_a_model_is_looked_through_for_late_parameters_only_when_it_has_changed():
    def job(worker):
        model = two_layers()
        optimizer = bdn.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, worker=worker)
        looked = []
        model.named_parameters = lambda: looked.append(1) or torch.nn.Module.named_parameters(model)
        for step in range(4):
            torch.nn.Sequential(torch.nn.Linear(2, 2))  # A loss, say: nothing of the model's.
            if step == 2:
                model.append(torch.nn.Tanh())
            optimizer.zero_grad()
            backward(model, worker)
            optimizer.step()
        return len(looked)

    assert run_job(job, workers=1) == [1]


def frozen_in_one(worker, model, optimizer):
    for _ in range(3):
        optimizer.zero_grad()
        backward(model, worker)
        optimizer.step()
        model[0].weight.requires_grad_(worker.rank == 0)


@pytest.mark.parametrize("overlap", OVERLAPS)
def test_a_parameter_that_is_frozen_in_one_worker_alone_is_named_in_all(overlap):
    def job(worker):
        model = two_layers()
        _, optimizer = distributed(worker, model, model.parameters(), overlap)
        try:
            frozen_in_one(worker, model, optimizer)
            optimizer.synchronize()
            worker.barrier("the end")
        except bandoneon.BandoneonError as error:
            heard[worker.rank] = str(error)
            raise

    heard = {}
    with pytest.raises(bandoneon.BandoneonError):
        run_job(job)
    assert all("'0.weight' requires no gradient in this worker" in heard[rank] for rank in range(2))


@pytest.mark.parametrize("count, said", [
    (1, "'0.weight' requires no gradient in this worker, and another worker has one of it"),
    (2, "'0.weight' and 1 other require no gradient in this worker, and another worker has gradients of them"),
    (3, "'0.weight' and 2 others require no gradient"),
])
def test_one_parameter_and_several_are_told_of_in_words_of_their_own(count, said):
    member = types.SimpleNamespace(name="0.weight")
    slots = [types.SimpleNamespace(member=member)] * count
    assert said in str(round_notices.frozen_here_alone(slots))


def server_optimizer(inner, named, worker):
    return bdn.ServerOptimizer(inner, named, worker=worker)


def cser(inner, named, worker):
    return bdn.algorithms.CSER(inner, named, gradient="none", reset="none", worker=worker)


def test_ef21_refuses_it_in_the_vote():
    def job(worker):
        model = two_layers()
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = bdn.algorithms.EF21(inner, model.named_parameters(), worker=worker)
        with pytest.raises(bandoneon.FailedPrecondition, match="the frozen parameters of this worker.*in all workers"):
            frozen_in_one(worker, model, optimizer)

    run_job(job)


@pytest.mark.parametrize("make", [server_optimizer, cser])
def test_where_weights_are_exchanged_one_that_is_frozen_in_one_worker_stays_the_same_in_all(make):
    def job(worker):
        model = two_layers()
        optimizer = make(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), worker)
        frozen_in_one(worker, model, optimizer)
        return [param.tolist() for param in model.parameters()]

    first, second = run_job(job)
    assert first == second
