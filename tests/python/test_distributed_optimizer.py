"""When gradients are exchanged, which of them, and with which optimizers."""

import contextlib
import copy
import io
import pickle
import threading

import pytest
import torch

import bandoneon
import bandoneon.torch as bdn
from cluster_helpers import (
    ONEBIT,
    after_backward,
    assert_same,
    fill,
    grads,
    loss_of,
    make_batch,
    make_model,
    mean_grads,
    model_hash,
    run_job,
    sgd,
    train,
)


# ---- The last action of backward waits ----


def test_backward_returns_with_the_mean_gradients():
    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model)
        for step in range(3):
            optimizer.zero_grad()
            result = after_backward(worker, model, optimizer, step)
            assert_same(result, mean_grads(model, step=step))

    run_job(job, servers=2)


def test_clipping_written_for_plain_torch_is_right():
    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model)  # noqa: F841
        loss_of(model, make_batch(worker.rank)).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        return norm, grads(model)

    reference = make_model()
    for param, grad in zip(reference.parameters(), mean_grads(reference).values()):
        param.grad = grad
    norm = torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.01)
    for result_norm, result in run_job(job):
        assert torch.equal(result_norm, norm)
        assert_same(result, grads(reference))


def test_pushes_leave_during_the_backward_pass_most_urgent_for_the_first_layer(monkeypatch):
    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model)
        after_backward(worker, model, optimizer)
        optimizer.step()
        optimizer.zero_grad()
        events, push = [], worker.push

        def record(tensor, data, **how):
            events.append((threading.get_ident(), how["priority"]))
            return push(tensor, data, **how)

        model[0].register_full_backward_hook(lambda *_: events.append("layer 0 is done"))
        worker.push = record
        model(make_batch(worker.rank).requires_grad_()).square().mean().backward()
        del worker.push
        return events

    for events in run_job(job):
        last = events.index("layer 0 is done")
        assert last >= 4  # Those of the last two layers were on their way before.
        priorities = [event[1] for event in events if event != "layer 0 is done"]
        assert len(set(priorities)) == 6 and priorities[0] < priorities[-1]


def test_errors_come_out_of_backward_as_what_they_are():
    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model, timeout=1.5)
        after_backward(worker, model, optimizer)
        if worker.rank == 0:
            with pytest.raises(bandoneon.DeadlineExceeded) as raised:
                after_backward(worker, model, optimizer)
            worker.barrier("done")
            return raised.value
        worker.barrier("done")

    error = run_job_that_may_end_badly(job)
    assert error.tensor is not None and error.step is not None and error.waiting_for is not None


def test_what_was_late_can_be_waited_for_again():
    def job(worker):
        model = torch.nn.Sequential(torch.nn.Linear(6, 8, bias=False), torch.nn.Linear(8, 6, bias=False))
        fill(model)
        first, last = model.parameters()
        inner = torch.optim.SGD([last, first], lr=0.1)
        named = [("last", last), ("first", first)]  # Collected in this order.
        optimizer = bdn.DistributedOptimizer(inner, named, worker=worker, scaler=None, timeout=1.5)
        train(worker, model, optimizer, steps=1)
        optimizer.zero_grad()
        if worker.rank == 1:
            first.register_hook(lambda _: worker.barrier("rank 0 has given up"))
            after_backward(worker, model, optimizer)
        else:
            with pytest.raises(bandoneon.DeadlineExceeded, match="'?first"):
                after_backward(worker, model, optimizer)
            worker.barrier("rank 0 has given up")
        optimizer.step()
        return model_hash(model)

    first, second = run_job(job, fusion_bytes=1)
    assert first == second


def run_job_that_may_end_badly(job):
    found = []

    def wrapped(worker):
        with contextlib.suppress(bandoneon.BandoneonError):
            found.append(job(worker))

    with contextlib.suppress(bandoneon.BandoneonError):
        run_job(wrapped)
    return next(value for value in found if value is not None)


# ---- Which gradients there are ----


class Branches(torch.nn.Module):
    """Uses the branches it is told to."""

    def __init__(self):
        super().__init__()
        self.branches = torch.nn.ModuleList(torch.nn.Linear(6, 3) for _ in range(3))
        fill(self)

    def forward(self, batch, used):
        return sum(self.branches[i](batch).square().mean() for i in used)


def test_an_unused_parameter_keeps_none_if_unused_everywhere_and_gets_the_mean_if_not():
    def job(worker):
        model = Branches()
        optimizer = sgd(worker, model)
        results = []
        for _ in range(2):
            optimizer.zero_grad()
            model(make_batch(worker.rank), used=[[0, 1], [0]][worker.rank]).backward()
            results.append(grads(model))
        return results

    local = Branches()
    local(make_batch(0), used=[1]).backward()
    for results in run_job(job):
        for result in results:
            assert result["branches.2.weight"] is None
            assert torch.equal(result["branches.1.weight"], local.branches[1].weight.grad / 2)
            assert result["branches.0.weight"] is not None


def test_a_worker_without_any_gradients_does_not_hold_up_the_others():
    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model)
        for step in range(3):
            optimizer.zero_grad()
            if worker.rank == 0 or step == 1:
                loss_of(model, make_batch(0, step)).backward()
            optimizer.step()
        return model_hash(model)

    first, second = run_job(job)
    assert first == second != model_hash(make_model())


@pytest.mark.parametrize(
    "throw_away",
    [
        lambda model, optimizer: optimizer.zero_grad(),
        lambda model, optimizer: optimizer.zero_grad(set_to_none=False),
        lambda model, optimizer: model.zero_grad(),
    ],
    ids=["zero_grad", "zero_grad in place", "the model's"],
)
def test_after_a_step_that_was_left_out_a_worker_without_gradients_holds_up_nobody(throw_away):
    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model, timeout=20)
        after_backward(worker, model, optimizer)  # No step: not finite, say.
        throw_away(model, optimizer)
        if worker.rank == 0:
            loss_of(model, make_batch(0, 1)).backward()
        optimizer.step()
        return model_hash(model)

    first, second = run_job(job)
    assert first == second != model_hash(make_model())


def test_freezing_and_unfreezing():
    def job(worker):
        model = make_model()
        model[0].requires_grad_(False)  # Frozen from the start: it has no hooks yet.
        optimizer = sgd(worker, model)
        first = after_backward(worker, model, optimizer)
        optimizer.zero_grad()
        model[0].requires_grad_(True)
        model[2].requires_grad_(False)
        second = after_backward(worker, model, optimizer)
        optimizer.zero_grad()
        model[2].requires_grad_(True)
        return first, second, after_backward(worker, model, optimizer)

    expected = mean_grads(make_model())
    for first, second, third in run_job(job):
        assert_same(first, {**expected, "0.weight": None, "0.bias": None})
        assert_same(second, {**expected, "2.weight": None, "2.bias": None})
        assert_same(third, expected)


def test_tied_weights_travel_once():
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Linear(6, 6, bias=False)
            self.head = torch.nn.Linear(6, 6, bias=False)
            self.head.weight = self.embed.weight
            fill(self)

        def forward(self, batch):
            return self.head(torch.tanh(self.embed(batch)))

    def job(worker):
        model = Tied()
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        names = model.named_parameters(remove_duplicate=False)
        optimizer = bdn.DistributedOptimizer(inner, names, worker=worker)
        assert list(optimizer.comm_state_dict()["tensors"]) == ["embed.weight"]
        return after_backward(worker, model, optimizer)

    for result in run_job(job):
        assert_same(result, mean_grads(Tied()))


def test_a_second_backward_before_the_step_accumulates():
    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model)
        results = []
        for _ in range(2):
            optimizer.zero_grad()
            after_backward(worker, model, optimizer, step=0)
            results.append(after_backward(worker, model, optimizer, step=1))
            optimizer.step()
            fill(model)
        return results

    model = make_model()
    one, two = mean_grads(model, step=0), mean_grads(model, step=1)
    for results in run_job(job):
        for result in results:
            assert_same(result, {name: one[name] + two[name] for name in one})


def test_a_second_backward_through_other_parameters_leaves_the_first_ones_means():
    def job(worker):
        model = Branches()
        optimizer = sgd(worker, model)  # noqa: F841
        model(make_batch(worker.rank), used=[0]).backward()
        first = grads(model)
        model(make_batch(worker.rank), used=[1] if worker.rank else [1, 2]).backward()
        return first, grads(model)

    for first, second in run_job(job):
        assert torch.equal(first["branches.0.weight"], second["branches.0.weight"])
        assert first["branches.1.weight"] is None and second["branches.1.weight"] is not None
        assert second["branches.2.weight"] is not None


def test_a_retained_graph_gives_the_same_again():
    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model)  # noqa: F841
        loss = loss_of(model, make_batch(worker.rank))
        loss.backward(retain_graph=True)
        loss.backward()
        return grads(model)

    expected = mean_grads(make_model())
    for result in run_job(job):
        assert_same(result, {name: 2 * value for name, value in expected.items()})


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("who", [{0}, {0, 1}])
def test_autograd_grad_hands_out_local_gradients_and_is_no_round(who, overlap):
    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model, overlap=overlap, timeout=20)
        params = list(model.parameters())
        for step in range(3):
            optimizer.zero_grad()
            loss = loss_of(model, make_batch(worker.rank, step))
            if worker.rank in who:
                local = torch.autograd.grad(loss, params, retain_graph=True)
                assert all(param.grad is None for param in params)
            loss.backward()  # Over the same nodes.
            if worker.rank in who:
                other = torch.autograd.grad(loss_of(model, make_batch(worker.rank, step)), params)
                assert all(torch.equal(a, b) for a, b in zip(local, other))
            assert_same(grads(model), mean_grads(model, step=step))
            optimizer.step()
        return {entry["step"] for entry in optimizer.comm_state_dict()["tensors"].values()}

    assert run_job(job) == [{3}, {3}]


def test_a_gradient_penalty():
    def loss(model, batch):
        batch = batch.detach().requires_grad_()
        value = loss_of(model, batch)
        inputs = [batch, model[0].weight]
        by_input, by_weight = torch.autograd.grad(value, inputs, create_graph=True)
        return value + by_input.square().sum() + by_weight.square().sum()

    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model)
        for step in range(3):
            optimizer.zero_grad()
            expected = mean_grads(model, step=step, loss=loss)
            assert_same(after_backward(worker, model, optimizer, step, loss), expected)
            optimizer.step()

    run_job(job)


def test_a_model_that_moves_to_other_nodes_is_exchanged_all_the_same():
    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model)
        for step in range(2):
            optimizer.zero_grad()
            model.double().float()  # As a move to another device: what accumulates is replaced.
            expected = mean_grads(model, step=step)
            assert_same(after_backward(worker, model, optimizer, step), expected)
            optimizer.step()

    run_job(job)


def test_no_sync_sums_locally_as_ddp():
    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model)
        for _ in range(2):
            optimizer.zero_grad()
            with optimizer.no_sync():
                local = after_backward(worker, model, optimizer, step=0)
            result = after_backward(worker, model, optimizer, step=1)
            optimizer.step()
            fill(model)
        return local, result

    def both(model, batch):
        seed = 0 if torch.equal(batch, make_batch(0)) else 1
        return loss_of(model, make_batch(seed, 0)) + loss_of(model, make_batch(seed, 1))

    expected = mean_grads(make_model(), loss=both)
    results = run_job(job)
    for _, result in results:
        assert_same(result, expected, rtol=1e-6, atol=1e-7)
    assert_same(results[0][1], results[1][1])
    assert not torch.equal(results[0][0]["0.weight"], results[1][0]["0.weight"])


def test_no_sync_leaves_the_residuals_alone():
    def job(worker):
        model = make_model(width=128)
        optimizer = sgd(worker, model, **ONEBIT)
        batch = make_batch(worker.rank, width=128)
        model(batch).square().mean().backward()
        before = optimizer.comm_state_dict()
        with optimizer.no_sync():
            model(batch).square().mean().backward()
        after = optimizer.comm_state_dict()
        for name, entry in before["tensors"].items():
            assert entry["step"] == after["tensors"][name]["step"] == 1
            assert torch.equal(entry["residual"], after["tensors"][name]["residual"])

    run_job(job)


def test_one_pass_for_two_optimizers_of_which_one_worker_reaches_one():
    def job(worker):
        body, head = torch.nn.Linear(6, 6), torch.nn.Linear(6, 6)
        fill(body)
        fill(head, seed=1)
        optimizers = [
            sgd(worker, body, prefix="body/", timeout=20),
            sgd(worker, head, prefix="head/", timeout=20),
        ]
        for step in range(2):
            for optimizer in optimizers:
                optimizer.zero_grad()
            hidden = body(make_batch(worker.rank, step))
            # In worker 1 the head's gradients come first, and so does the end of its round.
            (hidden if worker.rank == 0 else head(hidden)).square().mean().backward()
            for optimizer in optimizers:
                optimizer.step()
        return model_hash(body), model_hash(head)

    first, second = run_job(job)
    assert first == second


# ---- Optimizers ----


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


def test_closures_are_refused():
    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model)
        for call in (lambda: optimizer.step(lambda: 0), lambda: optimizer.step(closure=lambda: 0)):
            with pytest.raises(bandoneon.Unimplemented, match="closure"):
                call()

    run_job(job)


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


@pytest.mark.parametrize("how", [pickle.dumps, copy.deepcopy])
def test_a_copy_of_it_is_refused(how):
    def job(worker):
        with pytest.raises(bandoneon.Unimplemented, match="save state_dict.. and comm_state_dict"):
            how(sgd(worker, make_model()))

    run_job(job)
