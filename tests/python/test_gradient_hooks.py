"""Hooks of the program that change gradients between their accumulation and the end of the backward pass: what is
exchanged is what they leave, whenever they were registered."""

import contextlib

import pytest
import torch

import bandoneon
import bandoneon.torch as bdn
from cluster_helpers import (
    BreaksOff,
    assert_same,
    fill,
    grads,
    linked,
    loss_of,
    make_batch,
    model_hash,
    recorded_pushes,
    run_job,
)
from test_processes import run_processes

STEPS = 4
OVERLAPS = ["backward", "forward", False]


def make_model(*more):
    """Of layers that each leave by themselves."""
    model = torch.nn.Sequential(torch.nn.Linear(600, 400), torch.nn.Tanh(), torch.nn.Linear(400, 300), *more)
    fill(model)
    return model


def distributed(worker, model, overlap, **options):
    inner = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return bdn.DistributedOptimizer(inner, model, overlap=overlap, worker=worker, **linked(scaler=None, **options))


def backward(rank, step, model):
    loss_of(model, make_batch(rank, step, width=600)).backward()


def accumulator_of(param):
    return param.view_as(param).grad_fn.next_functions[0][0]


# ---- Ways to change a gradient: each takes a parameter, and what becomes of its gradient ----


def in_place(param, change):
    def write(p):
        p.grad.copy_(change(p.grad))

    return param.register_post_accumulate_grad_hook(write)


def by_another(param, change):
    def replace(p):
        p.grad = change(p.grad)

    return param.register_post_accumulate_grad_hook(replace)


def at_the_accumulator(param, change):
    param.accumulator = accumulator_of(param)  # Which lives as long as somebody has it.

    def write(*_):
        param.grad.copy_(change(param.grad))

    return param.accumulator.register_hook(write)


WAYS = [in_place, by_another, at_the_accumulator]


def scaled_by_rank(rank):
    return lambda grad: grad * (rank + 1.5)


def clipped(rank):
    return lambda grad: grad / grad.norm().clamp(min=1.0)


def trained_plainly(way, change, workers=2):
    """The model that plain torch ends with, on the mean of what the hooks leave in each worker."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(STEPS):
        local = []
        for rank in range(workers):
            optimizer.zero_grad()
            hooks = [way(param, change(rank)) for param in model.parameters()]
            backward(rank, step, model)
            local.append(grads(model))
            for hook in hooks:
                hook.remove()
        for name, param in model.named_parameters():
            param.grad = sum(g[name] for g in local) / workers
        optimizer.step()
    return model_hash(model)


@pytest.mark.parametrize("overlap", OVERLAPS)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("change", [scaled_by_rank, clipped], ids=lambda change: change.__name__)
def test_hooks_that_are_registered_after_the_optimizer(way, overlap, change):
    def job(worker):
        model = make_model()
        optimizer = distributed(worker, model, overlap)
        for param in model.parameters():
            way(param, change(worker.rank))
        for step in range(STEPS):
            optimizer.zero_grad()
            backward(worker.rank, step, model)
            optimizer.step()
        optimizer.synchronize()
        return model_hash(model)

    assert run_job(job) == 2 * [trained_plainly(way, change)]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_nothing_leaves_before_a_hook_has_changed_it(way):
    """Whatever the timing: the bytes are looked at when they leave."""

    def job(worker):
        model = make_model()
        optimizer = distributed(worker, model, "backward")
        for param in model.parameters():
            way(param, scaled_by_rank(worker.rank))
        for step in range(2):
            optimizer.zero_grad()
            with recorded_pushes(worker, lambda push: push.keep.clone()) as batches:
                loss = loss_of(model, make_batch(worker.rank, step, width=600))
                plain = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
                loss.backward()
            optimizer.step()
        assert len(batches) > 1  # They do leave while others are still being computed.
        sent = sorted((t for batch in batches for t in batch), key=lambda t: t.numel())
        expected = sorted((scaled_by_rank(worker.rank)(g) for g in plain), key=lambda t: t.numel())
        return all(torch.equal(a, b) for a, b in zip(sent, expected))

    assert run_job(job) == [True, True]


def test_accumulating_over_passes_hooks_see_what_each_pass_adds():
    """Under no_sync() a hook sees the sum, as in plain torch."""

    def local(rank, model):
        for step in range(2):
            backward(rank, step, model)

    def job(worker):
        model = make_model()
        optimizer = distributed(worker, model, "backward")
        backward(worker.rank, 5, model)
        optimizer.step()
        optimizer.zero_grad()
        for param in model.parameters():
            in_place(param, scaled_by_rank(worker.rank))
        start = {name: p.detach().clone() for name, p in model.named_parameters()}
        with optimizer.no_sync():
            backward(worker.rank, 0, model)
        backward(worker.rank, 1, model)
        return start, grads(model)

    results = run_job(job)
    expected = []
    for rank in range(2):
        model = make_model()
        with torch.no_grad():
            for name, param in model.named_parameters():
                param.copy_(results[0][0][name])
        for param in model.parameters():
            in_place(param, scaled_by_rank(rank))
        local(rank, model)
        expected.append(grads(model))
    mean = {name: (expected[0][name] + expected[1][name]) / 2 for name in expected[0]}
    for _, result in results:
        assert_same(result, mean)


# ---- By processes ----


@pytest.mark.parametrize("hosts", [0, 1], ids=["by themselves", "through a host's daemon"])
def test_the_optimizer_and_the_hook_get_what_ddp_gets_over_gloo(tmp_path, hosts):
    """Bit for bit where two are added up; a host's daemon and a local_group= add in another order."""
    found = run_processes(tmp_path, "changes_gradients", hosts=hosts)
    assert found[0] == found[1]
    models = torch.load(tmp_path / "models.pt", weights_only=True)
    rounded = [kind for kind in models if kind == "group" or (hosts and kind != "gloo")]
    assert len({found[0][kind] for kind in models if kind not in rounded}) == 1
    for kind in rounded:
        for name, value in models["gloo"].items():
            torch.testing.assert_close(models[kind][name], value, rtol=1e-5, atol=1e-6)


# ---- At the end of the pass, and too late ----


def clip_all_at_the_end(model, max_norm=1.0):
    """As callbacks of the engine do: once all gradients of the pass are there."""

    def end():
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)

    def begin(_):
        torch.autograd.Variable._execution_engine.queue_callback(end)

    return list(model.parameters())[-1].register_post_accumulate_grad_hook(begin)


def test_without_overlap_a_callback_at_the_end_of_the_pass_comes_before_the_exchange():
    def job(worker):
        model = make_model()
        distributed_one = distributed(worker, model, False)
        clip_all_at_the_end(model)
        backward(worker.rank, 0, model)
        return grads(model), distributed_one

    expected = []
    for rank in range(2):
        model = make_model()
        clip_all_at_the_end(model)
        backward(rank, 0, model)
        expected.append(grads(model))
    mean = {name: (expected[0][name] + expected[1][name]) / 2 for name in expected[0]}
    for result, _ in run_job(job):
        assert_same(result, mean)


@pytest.mark.parametrize("overlap", ["backward", "forward"])
@pytest.mark.parametrize("how", ["in place", "another"])
def test_a_change_that_comes_too_late_is_refused_by_name(overlap, how):
    """A hook of the first layer changes the gradient of the last, which has left."""

    def job(worker):
        model = make_model()
        optimizer = distributed(worker, model, overlap)

        def change(_):
            if how == "in place":
                model[2].weight.grad.mul_(2)
            else:
                model[2].weight.grad = model[2].weight.grad * 2

        for step in range(3):
            optimizer.zero_grad()
            if step == 2:
                model[0].bias.register_post_accumulate_grad_hook(change)
            refused = pytest.raises(bandoneon.FailedPrecondition, match="'2.weight'.*overlap=False")
            with refused if step == 2 else contextlib.nullcontext():
                backward(worker.rank, step, model)
            if step < 2:
                optimizer.step()
        return True

    assert run_job(job) == [True, True]


def in_one_buffer(model, detached):
    """Gives the gradients places in one flat tensor, which torch takes for one that is written to."""
    sizes = [param.numel() for param in model.parameters()]
    flat = torch.zeros(sum(sizes))
    for param, part in zip(model.parameters(), flat.split(sizes)):
        part = part.view(param.shape)
        param.grad = part.detach() if detached else part
    return flat


@pytest.mark.parametrize("detached", [False, True])
@pytest.mark.parametrize("overlap", ["backward", False])
def test_gradients_that_lie_in_one_buffer_are_not_taken_for_changed(overlap, detached):
    def job(worker):
        model = make_model()
        optimizer = distributed(worker, model, overlap)
        for step in range(STEPS):
            flat = in_one_buffer(model, detached)
            backward(worker.rank, step, model)
            assert torch.equal(flat[: 600 * 400], model[0].weight.grad.view(-1))
            optimizer.step()
        return model_hash(model)

    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(STEPS):
        local = []
        for rank in range(2):
            optimizer.zero_grad()
            backward(rank, step, model)
            local.append(grads(model))
        for name, param in model.named_parameters():
            param.grad = (local[0][name] + local[1][name]) / 2
        optimizer.step()
    assert run_job(job) == 2 * [model_hash(model)]


@pytest.mark.parametrize("overlap", ["backward", False])
def test_a_modules_own_backward_hook_changes_gradients_or_comes_too_late(overlap):
    """As of layers that are clipped by themselves, when the gradients of what came in are there."""

    def clip(module, *_):
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)

    def job(worker):
        model = make_model()
        optimizer = distributed(worker, model, overlap)
        model[2].register_full_backward_hook(clip)
        for step in range(3):
            optimizer.zero_grad()
            backward(worker.rank, step, model)
            optimizer.step()
        return model_hash(model)

    model = make_model()
    model[2].register_full_backward_hook(clip)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(3):
        local = []
        for rank in range(2):
            optimizer.zero_grad()
            backward(rank, step, model)
            local.append(grads(model))
        for name, param in model.named_parameters():
            param.grad = (local[0][name] + local[1][name]) / 2
        optimizer.step()
    # Beside the pass it may come too late, which is refused.
    with contextlib.suppress(bandoneon.FailedPrecondition) if overlap else contextlib.nullcontext():
        assert run_job(job) == 2 * [model_hash(model)]


def breaks_off(rank, step, model):
    """Between the two layers: the second one's gradients have been accumulated."""
    with pytest.raises(RuntimeError, match="broke off"):
        half = BreaksOff.apply(model[:2](make_batch(rank, step, width=600)))
        model[2:](half).square().mean().backward()


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("overlap", OVERLAPS)
def test_a_pass_that_broke_off_leaves_nothing_of_its_gradients_to_the_next_one(recwarn, overlap, set_to_none):
    def job(worker):
        model = make_model()
        optimizer = distributed(worker, model, overlap)
        backward(worker.rank, 0, model)
        optimizer.synchronize()
        optimizer.zero_grad()
        breaks_off(worker.rank, 1, model)
        optimizer.zero_grad(set_to_none=set_to_none)
        backward(worker.rank, 2, model)
        optimizer.synchronize()
        return grads(model)

    expected = []
    for rank in range(2):
        model = make_model()
        backward(rank, 2, model)
        expected.append(grads(model))
    for result in run_job(job):
        assert_same(result, {name: (expected[0][name] + expected[1][name]) / 2 for name in result})
    assert not [warning for warning in recwarn if "to None during backward" in str(warning.message)]


@pytest.mark.parametrize("overlap", OVERLAPS)
@pytest.mark.parametrize("culprit", [0, 1])
def test_a_pass_that_broke_off_in_one_worker_whose_step_others_took_ends_the_job_at_the_next(overlap, culprit):
    """Where DDP raises, too; and who had the error is told of which step."""
    said = {}

    def job(worker):
        model = make_model()
        optimizer = distributed(worker, model, overlap)
        for step in range(4):
            optimizer.zero_grad()
            if worker.rank == culprit and step == 2:
                breaks_off(worker.rank, step, model)
                continue
            try:
                backward(worker.rank, step, model)
                optimizer.step()
                if step == 3:
                    optimizer.synchronize()
            except bandoneon.BandoneonError as error:
                said[worker.rank] = step, str(error)
                raise
        raise AssertionError("replicas differ, and nobody has said so")

    with pytest.raises(bandoneon.BandoneonError, match="steps of its program"):
        run_job(job)
    step, text = said[culprit]
    assert step == 3 and "steps of its program" in text
    assert "backward() of step 3 has failed, and the step was left out" in text


@pytest.mark.parametrize("overlap", OVERLAPS)
def test_a_pass_that_broke_off_in_one_worker_is_left_out_by_all_who_agree_on_it(overlap):
    """And made again: the same as if it had not been."""

    def job(worker):
        model = make_model()
        optimizer = distributed(worker, model, overlap)
        for step in range(3):
            optimizer.zero_grad()
            if step == 1:
                broken = worker.rank == 0
                if broken:
                    breaks_off(worker.rank, 7, model)
                else:
                    backward(worker.rank, 7, model)
                optimizer.zero_grad()
            backward(worker.rank, step, model)
            optimizer.step()
        optimizer.synchronize()
        return model_hash(model)

    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(3):
        local = []
        for rank in range(2):
            optimizer.zero_grad()
            backward(rank, step, model)
            local.append(grads(model))
        for name, param in model.named_parameters():
            param.grad = (local[0][name] + local[1][name]) / 2
        optimizer.step()
    assert run_job(job) == 2 * [model_hash(model)]


@pytest.mark.parametrize("zeroes", [True, False], ids=["the model zeroes them", "nobody zeroes them"])
def test_adding_to_gradients_that_are_on_their_way_from_a_pass_that_broke_off_is_refused(zeroes):
    def job(worker):
        model = make_model(torch.nn.Linear(300, 300))
        optimizer = distributed(worker, model, "backward")
        backward(worker.rank, 0, model)
        optimizer.zero_grad()
        breaks_off(worker.rank, 1, model)  # Of the last two layers' gradients the last one's has left.
        if zeroes:
            model.zero_grad(set_to_none=False)
        with pytest.raises(bandoneon.FailedPrecondition, match="'3.weight' was on its way.*zero_grad"):
            backward(worker.rank, 2, model)
        return optimizer is not None

    assert run_job(job) == [True, True]


# ---- Hooks that take gradients away ----


def take(param):
    def hook(p):
        p.grad = None

    return param.register_post_accumulate_grad_hook(hook)


@pytest.mark.parametrize("overlap", OVERLAPS)
def test_a_gradient_that_a_hook_takes_away_counts_as_none(overlap):
    """In one worker, whose part of the mean is then nothing."""

    def job(worker):
        model = make_model()
        optimizer = distributed(worker, model, overlap)
        if worker.rank == 0:
            for param in model[2].parameters():
                take(param)
        for step in range(STEPS):
            optimizer.zero_grad()
            backward(worker.rank, step, model)
            optimizer.step()
        optimizer.synchronize()
        return model_hash(model)

    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(STEPS):
        local = []
        for rank in range(2):
            optimizer.zero_grad()
            backward(rank, step, model)
            local.append(grads(model))
        for name, param in model.named_parameters():
            first = torch.zeros_like(param) if name.startswith("2.") else local[0][name]
            param.grad = (first + local[1][name]) / 2
        optimizer.step()
    with pytest.warns(RuntimeWarning, match="'2.(weight|bias)'.*to None during backward"):
        assert run_job(job) == 2 * [model_hash(model)]


@pytest.mark.parametrize("overlap", OVERLAPS)
def test_gradients_that_hooks_take_away_in_all_workers_stay_none(overlap):
    """As where hooks step themselves: nothing is left for the optimizer."""

    def job(worker):
        model = make_model()
        optimizer = distributed(worker, model, overlap)
        for param in model.parameters():
            take(param)
        for step in range(3):
            optimizer.zero_grad()
            backward(worker.rank, step, model)
            optimizer.step()
        optimizer.synchronize()
        assert all(param.grad is None for param in model.parameters())
        return model_hash(model)

    with pytest.warns(RuntimeWarning, match="to None during backward"):
        assert run_job(job) == 2 * [model_hash(make_model())]
