"""weight=: what a worker's contribution counts for in the mean."""

import math
import threading

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import bandoneon
import bandoneon.torch as bdn
from cluster_helpers import (
    ONEBIT,
    assert_same,
    fill,
    grads,
    make_batch,
    make_model,
    model_hash,
    recorded_pushes,
    run_job,
    sgd,
)

SAMPLES = [3, 5]
building = threading.Lock()


def samples(count, first):
    """Whole multiples of 15, so that means over 3, 5 and 8 of them are exact."""
    drawn = torch.randint(-9, 9, (8, 6), generator=torch.Generator().manual_seed(1)) * 15.0
    return drawn[first : first + count] / 16


def own_samples(rank):
    return samples(SAMPLES[rank], first=rank * SAMPLES[0])


def linear():
    """Its gradient is the mean of the samples, the same in each row."""
    model = torch.nn.Linear(6, 3)
    fill(model)
    return model


def loss_over(model, batch):
    return model(batch).sum(dim=1).mean()


def grads_at_once():
    model = linear()
    loss_over(model, samples(8, 0)).backward()
    return grads(model)


@pytest.mark.parametrize("overlap", ["backward", False])
@pytest.mark.parametrize("how", ["a number", "a function"])
def test_3_and_5_samples_are_8_at_once_bit_for_bit(overlap, how):
    def job(worker):
        model = linear()
        count = SAMPLES[worker.rank]
        weight = count if how == "a number" else lambda: count
        optimizer = sgd(worker, model, weight=weight, overlap=overlap)
        results = []
        for _ in range(3):
            optimizer.zero_grad()
            loss_over(model, own_samples(worker.rank)).backward()
            results.append(grads(model))
        return results

    for results in run_job(job):
        for result in results:
            assert_same(result, grads_at_once())


def test_3_and_5_samples_are_8_at_once_to_rounding():
    def loss(model, batch):
        return model(batch).square().mean()

    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model, weight=SAMPLES[worker.rank])
        for step in range(3):
            optimizer.zero_grad()
            rows = torch.cat([make_batch(0, step, rows=3), make_batch(1, step, rows=5)])
            loss(model, rows[:3] if worker.rank == 0 else rows[3:]).backward()
            optimizer.step()
        return dict(model.named_parameters())

    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        loss(model, torch.cat([make_batch(0, step, rows=3), make_batch(1, step, rows=5)])).backward()
        optimizer.step()
    for found in run_job(job):
        assert_same(found, dict(model.named_parameters()), rtol=1e-5, atol=1e-6)


def test_the_function_is_asked_once_an_exchange_and_the_sum_over_the_passes_has_its_weight():
    def job(worker):
        model = linear()
        asked = []

        def weight():
            asked.append(len(asked))
            return SAMPLES[worker.rank]

        optimizer = sgd(worker, model, weight=weight, backward_passes_per_step=2)
        for _ in range(2):
            optimizer.zero_grad()
            own = own_samples(worker.rank)
            for part in (own[:1], own[1:]):  # Each divided by the samples of both.
                (model(part).sum() / len(own)).backward()
            assert_same(grads(model), grads_at_once())
            optimizer.step()
            fill(model)
        return len(asked)

    assert run_job(job) == [2, 2]


@pytest.mark.parametrize("value", [math.nan, 1.0])
def test_0_adds_nothing_whatever_the_gradients_are(value):
    """As the mean over no samples, which is NaN."""

    def job(worker):
        model = linear()
        optimizer = sgd(worker, model, weight=5 * worker.rank)
        batch = own_samples(1) if worker.rank else torch.full((1, 6), value)
        loss_over(model, batch).backward()
        result = grads(model)
        optimizer.step()
        return result, model_hash(model)

    model = linear()
    loss_over(model, own_samples(1)).backward()
    found = run_job(job)
    for result, _ in found:
        assert_same(result, grads(model))
    assert found[0][1] == found[1][1]


def test_where_every_weight_is_0_nobody_steps():
    def job(worker):
        model = linear()
        optimizer = sgd(worker, model, weight=lambda: 0, inner_momentum=0.9)
        loss_over(model, own_samples(worker.rank)).backward()
        result = grads(model)
        optimizer.step()
        return result, model_hash(model)

    for result, digest in run_job(job):
        assert set(result.values()) == {None}
        assert digest == model_hash(linear())


def test_what_error_feedback_owes_stays_owed_while_the_weight_is_0():
    def job(worker):
        model = make_model(width=128)
        weights = iter([2, 0])
        optimizer = sgd(worker, model, weight=lambda: next(weights) if worker.rank else 1, **ONEBIT)
        states = []
        for step in range(2):
            optimizer.zero_grad()
            model(make_batch(worker.rank, step, width=128)).square().mean().backward()
            optimizer.step()
            states.append(optimizer.comm_state_dict()["tensors"]["0.weight"]["residual"])
        return states, model_hash(model)

    (first, second) = run_job(job, min_compress_bytes="1KiB")
    assert first[1] == second[1]
    assert not torch.equal(*first[0])
    assert torch.equal(*second[0]) and second[0][0].any()


def test_a_weighted_worker_that_leaves_a_parameter_out_counts_with_zeros():
    def job(worker):
        model = torch.nn.ModuleList([linear(), linear()])
        optimizer = sgd(worker, model, weight=SAMPLES[worker.rank])  # noqa: F841
        loss = loss_over(model[0], own_samples(worker.rank))
        if worker.rank == 1:
            loss = loss + loss_over(model[1], own_samples(1))
        loss.backward()
        return grads(model)

    own = linear()
    loss_over(own, own_samples(1)).backward()
    for result in run_job(job):
        assert torch.equal(result["1.weight"], own.weight.grad * 5 / 8)


@pytest.mark.parametrize("weighted", [True, False])
def test_in_join_who_has_run_out_counts_for_nothing_only_where_there_are_weights(weighted):
    def job(worker):
        model = linear()
        optimizer = sgd(worker, model, weight=SAMPLES[worker.rank] if weighted else None)
        seen = []

        def step():
            seen.append(grads(model))
            optimizer.step()

        with optimizer.join(step):
            for _ in range(1 + worker.rank):
                optimizer.zero_grad()
                loss_over(model, own_samples(worker.rank)).backward()
                step()
        return seen

    own = linear()
    loss_over(own, own_samples(1)).backward()
    for seen in run_job(job):
        assert len(seen) == 2
        assert torch.equal(seen[1]["weight"], own.weight.grad / (1 if weighted else 2))


@pytest.mark.parametrize("bad", [-1, math.nan, math.inf, 1e39, "many", None])
def test_what_is_no_weight_is_refused(bad):
    def job(worker):
        if bad is not None:  # Which is no weight of a function's alone.
            with pytest.raises(bandoneon.InvalidArgument, match="weight=.*0 or more"):
                sgd(worker, linear(), weight=bad, prefix="number/")
        model = linear()
        optimizer = sgd(worker, model, weight=lambda: bad, prefix="function/")  # noqa: F841
        with pytest.raises(bandoneon.InvalidArgument, match="weight=.*0 or more"):
            loss_over(model, own_samples(0)).backward()

    run_job(job)


# ---- Other ways to exchange ----


@pytest.fixture
def group_of_one(tmp_path):
    """Each thread's DDP believes to be alone, so that all that is exchanged goes through the hook."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("without", [None, 0])
def test_ddps_hook(group_of_one, monkeypatch, without):
    monkeypatch.setattr(DistributedDataParallel, "_active_ddp_module", None)

    def job(worker):
        model = linear()
        with building:
            wrapped = DistributedDataParallel(model)
        weight = 0 if worker.rank == without else SAMPLES[worker.rank]
        with recorded_pushes(worker, lambda push: push.weight) as weights:
            state = bdn.DDPState(
                model.named_parameters(), worker=worker, links=bdn.Links(scaler=None, weight=lambda: weight)
            )
            wrapped.register_comm_hook(state, bdn.ddp_hook)
            for _ in range(2):
                wrapped.zero_grad()
                loss_over(wrapped, own_samples(worker.rank)).backward()
        assert set(sum(weights, [])) == {float(weight)} | {1.0}  # 1: what checks the replicas.
        return grads(model)

    expected = grads_at_once()
    if without == 0:
        own = linear()
        loss_over(own, own_samples(1)).backward()
        expected = grads(own)
    for result in run_job(job):
        assert_same(result, expected)


def test_ddps_hook_where_every_weight_is_0(group_of_one, monkeypatch):
    monkeypatch.setattr(DistributedDataParallel, "_active_ddp_module", None)

    def job(worker):
        model = linear()
        with building:
            wrapped = DistributedDataParallel(model)
        state = bdn.DDPState(model.named_parameters(), worker=worker, links=bdn.Links(scaler=None, weight=0))
        wrapped.register_comm_hook(state, bdn.ddp_hook)
        loss_over(wrapped, own_samples(worker.rank)).backward()
        return grads(model)

    for result in run_job(job):
        assert not any(grad.any() for grad in result.values())


def plain_step(batch):
    model = linear()
    loss_over(model, batch).backward()
    torch.optim.SGD(model.parameters(), lr=0.125).step()
    return dict(model.named_parameters())


def test_a_server_optimizer():
    def job(worker):
        model = linear()
        optimizer = bdn.ServerOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.125),
            model.named_parameters(),
            links=bdn.Links(weight=lambda: weight),
            worker=worker,
        )
        found = []
        for weights, batch in ((SAMPLES, own_samples(worker.rank)), ([0, 5], own_samples(1))):
            weight = weights[worker.rank]
            if not weight:
                batch = torch.full((1, 6), math.nan)
            optimizer.zero_grad()
            loss_over(model, batch).backward()
            optimizer.step()
            found.append({name: p.detach().clone() for name, p in model.named_parameters()})
        return found, optimizer.skipped_steps

    second = plain_step(samples(8, 0))
    step = {name: value - plain_step(own_samples(1))[name] for name, value in linear().named_parameters()}
    for found, skipped in run_job(job):
        assert skipped == 0
        assert_same(found[0], second, rtol=1e-6, atol=1e-6)
        assert_same(
            found[1], {n: v - step[n] for n, v in second.items()}, rtol=1e-5, atol=1e-5
        )


def test_local_steps_average_by_weight():
    def job(worker):
        model = linear()
        optimizer = bdn.LocalSteps(
            torch.optim.SGD(model.parameters(), lr=0.125),
            model.named_parameters(),
            tau=1,
            outer=bdn.algorithms.Average(),
            links=bdn.Links(weight=lambda: weights[worker.rank]),
            worker=worker,
        )
        found = []
        for weights in (SAMPLES, [0, 0]):
            optimizer.zero_grad()
            loss_over(model, own_samples(worker.rank)).backward()
            optimizer.step()
            found.append({name: p.detach().clone() for name, p in model.named_parameters()})
        return found

    for first, second in run_job(job):
        assert_same(first, plain_step(samples(8, 0)), rtol=1e-5, atol=1e-5)
        assert_same(second, first)  # Nobody counted, and all went back to the common weights.
