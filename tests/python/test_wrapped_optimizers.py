"""Which optimizers may be distributed, and that each stays what it is."""

import copy
import io
import threading

import pytest
import torch

import bandoneon
import bandoneon.torch as bdn
from cluster_helpers import (
    after_backward,
    assert_same,
    grads,
    make_batch,
    make_model,
    mean_grads,
    model_hash,
    run_job,
    sgd,
    train,
)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
        lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
        lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, fused=True),
        lambda p: torch.optim.RMSprop(p, lr=0.01),
    ],
    ids=["fused AdamW", "foreach AdamW", "fused SGD", "RMSprop"],
)
def test_any_optimizer_steps_on_the_means(make):
    def job(worker):
        model = make_model()
        optimizer = bdn.DistributedOptimizer(
            make(model.parameters()), model.named_parameters(), worker=worker
        )
        return model_hash(train(worker, model, optimizer))

    reference = make_model()
    optimizer = make(reference.parameters())
    for step in range(3):
        for param, grad in zip(reference.parameters(), mean_grads(reference, step=step).values()):
            param.grad = grad
        optimizer.step()
    assert run_job(job) == [model_hash(reference)] * 2


def test_it_is_the_optimizer_it_wraps():
    def job(worker):
        model = make_model()
        inner = torch.optim.Adam(model.parameters(), lr=0.1)
        optimizer = bdn.DistributedOptimizer(inner, model.named_parameters(), worker=worker)
        assert isinstance(optimizer, torch.optim.Adam) and isinstance(
            optimizer, torch.optim.Optimizer
        )
        assert optimizer.param_groups is inner.param_groups
        train(worker, model, optimizer, steps=1)
        plain = torch.optim.Adam(make_model().parameters(), lr=0.1)
        state = optimizer.state_dict()
        assert state.keys() == plain.state_dict().keys() == inner.state_dict().keys()
        plain.load_state_dict(state)
        optimizer.load_state_dict(copy.deepcopy(state))
        buffer = io.BytesIO()
        torch.save(state, buffer)
        with pytest.raises(bandoneon.InvalidArgument, match="already"):
            bdn.DistributedOptimizer(optimizer, worker=worker)

    run_job(job)


@pytest.mark.parametrize("scheduler_first", [True, False])
def test_schedulers_made_before_or_after(scheduler_first):
    def job(worker):
        model = make_model()
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        if scheduler_first:
            scheduler = torch.optim.lr_scheduler.StepLR(inner, 1, gamma=0.5)
        optimizer = bdn.DistributedOptimizer(inner, model.named_parameters(), worker=worker)
        if not scheduler_first:
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        rates = []
        for step in range(3):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.zero_grad()
            after_backward(worker, model, optimizer, step)
            optimizer.step()
            scheduler.step()
        return rates, model_hash(model)

    first, second = run_job(job)
    assert first == second and first[0] == [0.1, 0.05, 0.025]


def test_groups_with_rates_of_their_own():
    def job(worker):
        model = make_model()
        groups = [
            {"params": model[0].parameters(), "lr": 0.0},
            {"params": model[2:].parameters(), "lr": 0.1},
        ]
        optimizer = bdn.DistributedOptimizer(
            torch.optim.SGD(groups), model.named_parameters(), worker=worker
        )
        before = copy.deepcopy(model)
        train(worker, model, optimizer)
        assert torch.equal(before[0].weight, model[0].weight)
        assert not torch.equal(before[2].weight, model[2].weight)
        return model_hash(model)

    first, second = run_job(job)
    assert first == second


@pytest.mark.parametrize("form", [iter, list])
def test_add_param_group(form):
    def job(worker):
        model = make_model()
        inner = torch.optim.SGD(model[:4].parameters(), lr=0.1)
        optimizer = bdn.DistributedOptimizer(inner, model.named_parameters(), worker=worker)
        train(worker, model, optimizer, steps=1)
        optimizer.add_param_group({"params": form(model[4].parameters()), "lr": 0.5})
        model.zero_grad()
        before = model[4].bias.detach().clone()
        expected = mean_grads(model)
        assert_same(after_backward(worker, model, optimizer), expected)
        optimizer.step()
        assert torch.equal(model[4].bias, before - 0.5 * expected["4.bias"])

    run_job(job)


def test_add_param_group_of_one_number():
    def job(worker):
        model, late = make_model(), torch.nn.Parameter(torch.tensor(2.0))
        optimizer = sgd(worker, model)
        optimizer.add_param_group({"params": late, "lr": 0.5}, named_parameters=[("late", late)])
        (late * (worker.rank + 1)).backward()
        optimizer.step()
        return late.item()

    assert run_job(job) == [2.0 - 0.5 * 1.5] * 2


def test_add_param_group_without_a_name_changes_nothing():
    def job(worker):
        model, extra = make_model(), torch.nn.Parameter(torch.zeros(3))
        optimizer = sgd(worker, model)
        with pytest.raises(bandoneon.InvalidArgument, match="named_parameters"):
            optimizer.add_param_group({"params": [extra]})
        assert len(optimizer.param_groups) == 1
        optimizer.add_param_group({"params": [extra]}, named_parameters=[("extra", extra)])
        (extra * (worker.rank + 1)).sum().backward()
        return extra.grad

    for grad in run_job(job):
        assert torch.equal(grad, torch.full((3,), 1.5))


def test_names_are_made_where_none_are_given():
    def job(worker):
        model = make_model()
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = bdn.DistributedOptimizer(inner, worker=worker)
        return after_backward(worker, model, optimizer)

    for result in run_job(job):
        assert_same(result, mean_grads(make_model()))


def test_gradients_set_by_hand_are_averaged_in_every_step():
    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model, lr=1.0)
        moved = []
        for _ in range(3):
            before = model[0].bias.detach().clone()
            for param in model.parameters():
                param.grad = torch.full_like(param, 1.0 + worker.rank)
            optimizer.step()
            moved.append((before - model[0].bias).mean().item())
        return moved

    for moved in run_job(job):
        assert moved == pytest.approx([1.5, 1.5, 1.5])


def test_two_owners_of_one_name_are_refused():
    def job(worker):
        model = make_model()
        first = sgd(worker, model)
        with pytest.raises(bandoneon.InvalidArgument, match="prefix="):
            sgd(worker, make_model())
        sgd(worker, make_model(), prefix="second/")
        first.close()
        optimizer = sgd(worker, model)
        return after_backward(worker, model, optimizer)

    for result in run_job(job):
        assert_same(result, mean_grads(make_model()))


def test_a_closed_optimizer_is_a_plain_one():
    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model)
        optimizer.close()
        local = after_backward(worker, model, optimizer)
        optimizer.step()
        return local

    results = run_job(job)
    assert not torch.equal(results[0]["0.weight"], results[1]["0.weight"])


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_model(backend):
    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model)
        with compiling:  # The compiler's state belongs to the process.
            compiled = torch.compile(model, backend=backend)
            compiled(make_batch(worker.rank))
        for step in range(2):
            optimizer.zero_grad()
            with compiling:
                loss = compiled(make_batch(worker.rank, step)).square().mean()
            loss.backward()
            assert_same(grads(model), mean_grads(model, step=step), rtol=1e-5, atol=1e-7)
            optimizer.step()
        return model_hash(model)

    compiling = threading.Lock()
    first, second = run_job(job)
    assert first == second
