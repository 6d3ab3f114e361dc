"""Which gradients a distributed optimizer exchanges, and what it makes of those that are not there."""

import contextlib
import warnings

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
)
from forward_overlap_helpers import distributed


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


@pytest.mark.parametrize("overlap", ["backward", "forward"])
@pytest.mark.parametrize("last", ["inside", "outside"])
def test_a_step_after_no_sync_alone_steps_by_local_gradients_as_ddp_does_and_is_warned_of(last, overlap):
    def job(worker):
        model, plain = make_model(), make_model()
        optimizers = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9), distributed(worker, model, overlap)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            for step in range(3):
                for optimizer, one in zip(optimizers, (plain, model)):
                    optimizer.zero_grad()
                    with getattr(optimizer, "no_sync", contextlib.nullcontext)():
                        loss_of(one, make_batch(0, step)).backward()
                    if last == "outside":
                        loss_of(one, make_batch(1, step)).backward()
                    optimizer.step()
        optimizers[1].synchronize()
        messages = [str(one.message) for one in seen]
        return messages, model_hash(model) == model_hash(plain)

    ((messages, is_plain),) = run_job(job, workers=1)
    assert is_plain
    assert len(messages) == (last == "inside")
    assert all("comes after a backward pass under no_sync()" in message for message in messages)


class Tempered(torch.nn.Module):
    """Its temperature's gradient comes from no backward pass."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(6, 3)
        fill(self)
        self.temperature = torch.nn.Parameter(torch.ones(()))

    def forward(self, batch):
        return self.layer(batch)


SETTERS = {
    "one that got none": lambda model, loss: setattr(model.temperature, "grad", loss.detach().clone()),
    "one that is frozen": lambda model, loss: setattr(
        model.temperature.requires_grad_(False), "grad", loss.detach().clone()
    ),
    "one that was exchanged": lambda model, loss: setattr(
        model.layer.bias, "grad", torch.full((3,), loss.item()) + 0 * model.layer.bias.grad
    ),
}


@pytest.mark.parametrize("overlap", [False, "backward", "forward"])
@pytest.mark.parametrize("which", SETTERS)
@pytest.mark.parametrize("then", ["step", "synchronize"])
def test_a_gradient_that_is_set_by_hand_after_the_backward_pass_is_exchanged(which, overlap, then):
    def steps(model, optimizer, ranks):
        for step in range(3):
            optimizer.zero_grad()
            loss = sum(loss_of(model, make_batch(rank, step)) for rank in ranks) / len(ranks)
            loss.backward()
            SETTERS[which](model, loss)
            if then == "synchronize" and hasattr(optimizer, "synchronize"):
                optimizer.synchronize()
            optimizer.step()

    def job(worker):
        model = Tempered()
        optimizer = distributed(worker, model, overlap)
        steps(model, optimizer, [worker.rank])
        optimizer.synchronize()
        return {name: param.detach() for name, param in model.named_parameters()}

    plain = Tempered()
    steps(plain, torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9), [0, 1])
    first, second = run_job(job)
    assert_same(first, second)
    assert_same(first, {name: param.detach() for name, param in plain.named_parameters()}, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("way, warnings_seen", [("replaced", 1), ("in place", 0), ("set", 0), ("set to None", 0)])
def test_a_gradient_that_is_exchanged_twice_a_step_is_warned_of(way, warnings_seen):
    def job(worker):
        model = Tempered()
        optimizer = distributed(worker, model, "backward")
        weight = model.layer.weight
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            for step in range(2):
                optimizer.zero_grad()
                loss_of(model, make_batch(0, step)).backward()
                if way == "replaced":
                    weight.grad = weight.grad.clamp(-0.1, 0.1)
                elif way == "in place":
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                elif way == "set":
                    model.temperature.grad = torch.ones(())
                else:
                    weight.grad = None
                optimizer.step()
        steps = {entry["step"] for entry in optimizer.comm_state_dict()["tensors"].values()}
        return [str(one.message) for one in seen], steps

    ((messages, steps),) = run_job(job, workers=1)
    assert len(messages) == warnings_seen
    assert all("'layer.weight' was replaced after backward()" in message for message in messages)
    assert steps == {4 if way in ("replaced", "set") else 2}


@pytest.mark.parametrize("last", [False, True])
def test_a_gradient_that_one_worker_alone_sets_by_hand_is_an_error_in_all_that_wait_for_it(last):
    def job(worker):
        model = Tempered()
        optimizer = distributed(worker, model, "backward")
        try:
            for step in range(1 if last else 3):
                optimizer.zero_grad()
                loss_of(model, make_batch(worker.rank, step)).backward()
                if worker.rank == 0:
                    model.temperature.grad = torch.ones(())
                optimizer.step()
        except bandoneon.BandoneonError as error:
            heard[worker.rank] = str(error)
            raise

    heard = {}
    with pytest.raises(bandoneon.BandoneonError):
        run_job(job)
    if last:
        assert "worker 1 is leaving the job" in heard[0] and 1 not in heard
    else:
        assert all("steps of its program and rank" in heard[rank] for rank in range(2))


@pytest.mark.parametrize("where", ["a scaler", "a scaler and links that remember", "join"])
def test_a_gradient_that_is_set_by_hand_where_step_cannot_exchange_it_is_refused(where):
    def job(worker):
        model = Tempered()
        links = ONEBIT if "remember" in where else dict(push="fp16")
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, enabled=where != "join")
        optimizer = sgd(worker, model, **links, scaler=scaler)
        with optimizer.join() if where == "join" else contextlib.nullcontext():
            for set_at in ("before", "synchronized", "after"):
                optimizer.zero_grad()
                if set_at == "before":
                    model.temperature.grad = torch.ones(())
                scaler.scale(loss_of(model, make_batch(worker.rank))).backward()
                if set_at != "before":
                    model.temperature.grad = torch.ones(())
                if set_at == "synchronized" and where != "join":
                    optimizer.synchronize()
                if set_at == "before" or where != "join":
                    scaler.step(optimizer)
                    scaler.update()
                else:
                    optimizer.step()

    reason = "inside join\\(\\) each step has one exchange" if where == "join" else "may be unscaled by now"
    with pytest.raises(bandoneon.FailedPrecondition, match=f"'temperature' was set, or replaced.*{reason}"):
        run_job(job)
