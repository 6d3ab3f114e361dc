"""Gradients that come in several parts, and where they lie."""

import contextlib
import gc
import os
import sys
import weakref

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import bandoneon
import bandoneon.torch as bdn
from cluster_helpers import (
    BreaksOff,
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


# ---- Reentrant checkpointing ----


class Checkpointed(torch.nn.Module):
    """One layer, used in two reentrant checkpoints and outside of them as told."""

    def __init__(self):
        super().__init__()
        self.inside = torch.nn.Linear(6, 6)
        self.shared = torch.nn.Linear(6, 6)
        self.outside = torch.nn.Linear(6, 3)
        fill(self)

    def forward(self, batch, reentrant=True, shared_last=True):
        x = batch.detach().clone().requires_grad_()
        for _ in range(2):
            if reentrant:
                x = checkpoint(self._block, x, use_reentrant=True)
            else:
                x = self._block(x)
        return self.outside(self.shared(x) if shared_last else x)

    def _block(self, x):
        return torch.tanh(self.inside(torch.tanh(self.shared(x))))


@pytest.mark.parametrize("shared_last", [True, False])
@pytest.mark.parametrize("overlap", [True, False])
def test_reentrant_checkpointing_accumulates(shared_last, overlap):
    def job(worker):
        model = Checkpointed()
        optimizer = sgd(worker, model, overlap=overlap)
        for step in range(3):
            optimizer.zero_grad()
            model(make_batch(worker.rank, step), shared_last=shared_last).square().mean().backward()
            result = grads(model)  # Before the step: backward has waited.
            expected = mean_grads(
                model,
                step=step,
                loss=lambda m, b: m(b, reentrant=False, shared_last=shared_last).square().mean(),
            )
            assert_same(result, expected, rtol=1e-5, atol=1e-7)
            optimizer.step()
        return model_hash(model)

    first, second = run_job(job)
    assert first == second


def test_everything_inside_one_checkpoint():
    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model)
        for step in range(2):
            optimizer.zero_grad()
            batch = make_batch(worker.rank, step).requires_grad_()
            checkpoint(model, batch, use_reentrant=True).square().mean().backward()
            assert_same(grads(model), mean_grads(model, step=step))
            optimizer.step()

    run_job(job)


def test_nested_checkpoints():
    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model)  # noqa: F841

        def inner(x):
            return checkpoint(model[:2], x, use_reentrant=True)

        batch = make_batch(worker.rank).requires_grad_()
        x = checkpoint(inner, batch, use_reentrant=True)
        model[2:](x).square().mean().backward()
        return grads(model)

    for result in run_job(job):
        assert_same(result, mean_grads(make_model()))


def test_a_second_gradient_that_comes_too_late_is_an_error_that_says_what_to_do():
    def job(worker):
        model = Checkpointed()
        optimizer = sgd(worker, model)
        x = make_batch(worker.rank)
        for _ in range(2):
            model.outside(model.inside(x)).square().mean().backward()
            optimizer.zero_grad()
        # `inside` now leaves at once; here it is used after a checkpoint that uses it again.
        y = checkpoint(
            lambda t: torch.tanh(model.inside(t)), x.requires_grad_(), use_reentrant=True
        )
        with pytest.raises(bandoneon.FailedPrecondition, match="'inside.*overlap=False"):
            (model.outside(y.detach()).sum() + model.inside(x).sum() * 1.0 + y.sum()).backward()
        return "raised"

    with contextlib.suppress(bandoneon.BandoneonError):
        assert run_job(job)[0] == "raised"


def test_after_a_backward_pass_that_broke_off_the_next_one_is_right():
    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model)
        after_backward(worker, model, optimizer)
        optimizer.zero_grad()
        batch = make_batch(worker.rank)
        if worker.rank == 0:
            with pytest.raises(RuntimeError, match="broke off"):
                model[2:](BreaksOff.apply(model[:2](batch))).square().mean().backward()
        else:
            loss_of(model, batch).backward()
        optimizer.zero_grad()
        return after_backward(worker, model, optimizer)

    for result in run_job(job):
        assert_same(result, mean_grads(make_model()))


# ---- Gradients in memory ----


def test_gradients_that_move_every_step_and_those_that_stay():
    for set_to_none in (True, False):

        def job(worker, set_to_none=set_to_none):
            model = make_model()
            optimizer = sgd(worker, model)
            for step in range(4):
                optimizer.zero_grad(set_to_none=set_to_none)
                junk = [
                    torch.empty(n) for n in (48, 8, 64, 24)
                ]  # Takes the places that were freed.
                result = after_backward(worker, model, optimizer, step)
                assert_same(result, mean_grads(model, step=step))
                optimizer.step()
                del junk

        run_job(job)


def test_channels_last_and_non_contiguous_gradients():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 4, 3)
            self.transposed = torch.nn.Parameter(torch.zeros(4, 5).t())
            fill(self)

        def forward(self, batch):
            image = batch.reshape(1, 3, 4, 4).contiguous(memory_format=torch.channels_last)
            return self.conv(image).mean((2, 3)) @ self.transposed.t()

    def batch_of(rank):
        return make_batch(rank, width=48, rows=1)

    def job(worker):
        # Worker 1 keeps another memory format; the values must not care.
        model = Net()
        if worker.rank == 0:
            model = model.to(memory_format=torch.channels_last)
        optimizer = sgd(worker, model)  # noqa: F841
        model(batch_of(worker.rank)).square().mean().backward()
        assert not model.transposed.grad.is_contiguous()
        return grads(model)

    per_rank = []
    for rank in range(2):
        model = Net()
        model(batch_of(rank)).square().mean().backward()
        per_rank.append(grads(model))
    expected = {name: (per_rank[0][name] + per_rank[1][name]) / 2 for name in per_rank[0]}
    for result in run_job(job):
        assert_same(result, expected, rtol=1e-5, atol=1e-7)


def test_sparse_gradients_are_refused_by_name_or_made_dense():
    def backward(worker, **options):
        model = torch.nn.Embedding(10, 3, sparse=True)
        fill(model)
        optimizer = sgd(worker, model, **options)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.tensor([1 + worker.rank, 5])).sum().backward()
        return model.weight.grad

    def refused(worker):
        with pytest.raises(
            bandoneon.InvalidArgument, match="'weight' is sparse.*sparse='dense'"
        ):
            backward(worker)

    with contextlib.suppress(bandoneon.JobFailed):
        run_job(refused)

    expected = torch.zeros(10, 3)
    expected[[1, 2]], expected[5] = 0.5, 1.0
    for grad in run_job(lambda worker: backward(worker, sparse_as_dense=True)):
        assert torch.equal(grad.to_dense(), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_types(dtype):
    def job(worker):
        model = make_model().to(dtype)
        optimizer = sgd(worker, model)
        return after_backward(worker, model, optimizer, loss=lambda m, b: loss_of(m, b.to(dtype)))

    expected = mean_grads(make_model().to(dtype), loss=lambda m, b: loss_of(m, b.to(dtype)))
    for result in run_job(job):
        assert_same(result, expected, rtol=1e-2, atol=1e-3)


def test_float64_with_a_codec_is_refused_by_name():
    def job(worker):
        with pytest.raises(bandoneon.InvalidArgument, match="'0.weight' is float64.*'none'"):
            sgd(worker, make_model().double(), push="fp16")

    run_job(job)


def swap_data(model):
    for param in model.parameters():
        param.data = torch.zeros(param.numel() + 1)


# What changes a model after its optimizer was made.
CHANGES = {
    "bfloat16": lambda model: model.bfloat16(),
    "double": lambda model: model.double(),
    "other sizes": swap_data,
}


def distributed_sgd(worker, model):
    return sgd(worker, model)


def onebit_adam(worker, model):
    return bdn.algorithms.OneBitAdam(model.parameters(), links=bdn.Links(warmup=1), worker=worker)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("make", [distributed_sgd, onebit_adam])
@pytest.mark.parametrize("has_gradients", [True, False])
def test_a_parameter_that_is_not_as_declared_any_more_is_refused(make, change, has_gradients):
    def job(worker):
        model = make_model()
        optimizer = make(worker, model)
        CHANGES[change](model)
        with pytest.raises(bandoneon.InvalidArgument, match="declared as 48 elements of torch.float32"):
            if has_gradients:
                sum(param.sum() for param in model.parameters()).backward()
            optimizer.step()

    run_job(job)


def test_where_float32_is_exchanged_a_parameter_may_change_its_type_but_not_its_size():
    def job(worker):
        model = make_model()
        inner = torch.optim.SGD(model.parameters(), lr=1.0)
        optimizer = bdn.ServerOptimizer(inner, model.named_parameters(), worker=worker)
        model.bfloat16()
        before = model[0].bias.float()
        sum(param.sum() for param in model.parameters()).backward()
        optimizer.step()
        moved = before - model[0].bias.float()
        swap_data(model)
        optimizer.zero_grad()
        with pytest.raises(bandoneon.InvalidArgument, match="now it is 49 of"):
            optimizer.step()
        return moved

    for moved in run_job(job):
        torch.testing.assert_close(moved, torch.ones(8), rtol=1e-2, atol=0)


def test_nan_in_one_workers_gradient_is_nan_everywhere_and_the_next_step_is_right():
    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model)
        batch = make_batch(worker.rank)
        if worker.rank == 1:
            batch[0, 0] = float("nan")
        loss_of(model, batch).backward()
        poisoned = grads(model)
        optimizer.zero_grad()
        return poisoned, after_backward(worker, model, optimizer)

    for poisoned, good in run_job(job):
        assert all(grad.isnan().all() for grad in poisoned.values())
        assert_same(good, mean_grads(make_model()))


def test_dtensor_is_refused_where_its_part_is_not_exchanged(tmp_path):
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_tensor

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        param = torch.nn.Parameter(distribute_tensor(torch.zeros(4), mesh))
    finally:
        dist.destroy_process_group()

    def job(worker):
        inner = torch.optim.SGD([param], lr=0.1)
        with pytest.raises(bandoneon.Unimplemented, match="'w' is a DTensor.*DistributedOptimizer and LocalSteps take"):
            bdn.ServerOptimizer(inner, [("w", param)], worker=worker)

    run_job(job)


def test_a_gradient_that_was_thrown_away_is_not_kept():
    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model)
        for step in range(3):
            loss_of(model, make_batch(worker.rank, step)).backward()
            held = [weakref.ref(param.grad) for param in model.parameters()]
            optimizer.zero_grad()
            assert [ref() for ref in held] == [None] * len(held)

    run_job(job)


def calls_of_a_step(worker, tensors):
    """Of this package's functions, once every parameter has been seen to have one gradient a pass."""
    package = os.path.dirname(bandoneon.__file__)
    params = {f"{tensors}.{i}": torch.nn.Parameter(torch.ones(8)) for i in range(tensors)}
    optimizer = bdn.DistributedOptimizer(
        torch.optim.SGD(params.values(), 0.1), params.items(), worker=worker
    )
    calls = 0

    def count(frame, event, _):
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename.startswith(package)

    # What other tests have left is retired when it is collected, by functions of this package.
    gc.collect()
    gc.disable()
    try:
        for profiler in (None, None, count):
            optimizer.zero_grad()
            sys.setprofile(profiler)
            sum(p.sum() for p in params.values()).backward()
            optimizer.step()
            sys.setprofile(None)
    finally:
        sys.setprofile(None)
        gc.enable()
    return calls


def test_what_a_parameter_costs_in_calls_is_bounded():
    def job(worker):
        return (calls_of_a_step(worker, 120) - calls_of_a_step(worker, 20)) / 100

    (calls,) = run_job(job, workers=1)
    assert calls <= 11
