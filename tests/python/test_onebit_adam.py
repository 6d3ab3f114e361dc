import io

import numpy as np
import pytest
import torch

import algorithms
import bandoneon
import bandoneon.torch as bdn
from cluster_helpers import linked, loss_of, make_batch, make_model, model_hash, run_job
from reference_helpers import (
    CODECS,
    CONVERGING,
    STEPS,
    PartlyUnseen,
    Quadratic,
    assert_close,
    assert_reaches_the_optimum,
    distributed,
    links,
    run_library,
)

WARMUP = 15


def onebit_adam(spec, lr=0.02, warmup=WARMUP, **options):
    """For run_library."""
    return lambda worker, params: bdn.algorithms.OneBitAdam(
        params.items(),
        lr=lr,
        worker=worker,
        **linked(warmup=warmup, push=spec, pull=spec, **options),
    )


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("kind", [Quadratic, PartlyUnseen])
def test_it_equals_its_reference(codec, weight_decay, kind):
    spec, function = CODECS[codec]
    problem = kind()
    result = run_library(problem, onebit_adam(spec, weight_decay=weight_decay))
    ways = links(function, function, warmup=WARMUP)
    expected = algorithms.onebit_adam(
        problem.start, problem.gradient, STEPS, WARMUP, ways, lr=0.02, wd=weight_decay
    )
    assert_close(result, expected)


def test_what_the_warm_up_has_not_seen_only_decays():
    problem = PartlyUnseen()
    result = run_library(problem, onebit_adam("ef(onebit)", weight_decay=0.1))
    for start, end in zip(problem.start, result):
        unseen = problem.is_unseen(start)
        decayed = start * (1 - 0.02 * 0.1) ** STEPS
        np.testing.assert_allclose(end[unseen], decayed[unseen], rtol=1e-5)


def test_without_compression_it_is_adam_with_a_frozen_second_moment():
    # The mean of the workers' momenta is the momentum of the mean gradient.
    problem = Quadratic()
    frozen = distributed(lambda p: bdn.algorithms.FrozenAdamW(p, lr=0.02, weight_decay=0, freeze_after=WARMUP))
    assert_close(run_library(problem, onebit_adam("none")), run_library(problem, frozen))


def test_the_momentum_is_the_same_on_all_workers_and_not_that_of_compressed_gradients():
    spec, _ = CODECS["onebit"]
    kept = []

    def keep(worker, params):
        optimizer = onebit_adam(spec)(worker, params)
        kept.append(optimizer)
        return optimizer

    problem = Quadratic()
    result = run_library(problem, keep)
    states = [list(optimizer.state_dict()["state"].values()) for optimizer in kept]
    for state in states[1:]:
        assert all(torch.equal(a["exp_avg"], b["exp_avg"]) for a, b in zip(states[0], state))
    frozen = distributed(
        lambda p: bdn.algorithms.FrozenAdamW(p, lr=0.02, weight_decay=0, freeze_after=WARMUP),
        push=spec,
        pull=spec,
        warmup=WARMUP,
    )
    assert not np.allclose(result[0], run_library(problem, frozen)[0], atol=1e-3)


@pytest.mark.parametrize("spec", CONVERGING)
def test_it_reaches_the_optimum(spec):
    assert_reaches_the_optimum(onebit_adam(spec, lr=0.0, warmup=130), lr=0.1)


def train(worker, model, optimizer, steps):
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, make_batch(worker.rank, step)).backward()
        optimizer.step()


def small_job(worker, **options):
    model = make_model()
    optimizer = bdn.algorithms.OneBitAdam(
        model.named_parameters(),
        worker=worker,
        **linked(warmup=2, **{"pull": "none", **options}),
    )
    return model, optimizer


def test_its_two_states_resume_where_it_was():
    checkpoints = {}

    def whole(worker):
        model, optimizer = small_job(worker)
        train(worker, model, optimizer, range(4))
        buffer = io.BytesIO()
        parts = model.state_dict(), optimizer.state_dict(), optimizer.comm_state_dict()
        torch.save(parts, buffer)
        checkpoints[worker.rank] = buffer.getvalue()
        train(worker, model, optimizer, range(4, 6))
        return model_hash(model)

    def resumed(worker):
        model, optimizer = small_job(worker)
        # The links of a new job begin with their warm-up; let it pass.
        train(worker, model, optimizer, range(2))
        parts = torch.load(io.BytesIO(checkpoints[worker.rank]), weights_only=True)
        model.load_state_dict(parts[0])
        optimizer.load_state_dict(parts[1])
        optimizer.load_comm_state_dict(parts[2])
        train(worker, model, optimizer, range(4, 6))
        return model_hash(model)

    assert run_job(whole, min_compress_bytes=1) == run_job(resumed, min_compress_bytes=1)


def test_what_is_not_finite_in_one_worker_leaves_the_parameter_as_it_is_in_all():
    def job(worker):
        model, optimizer = small_job(worker)
        train(worker, model, optimizer, range(3))
        before = model[0].weight.detach().clone()
        loss_of(model, make_batch(worker.rank, 3)).backward()
        if worker.rank == 1:
            model[0].weight.grad[0, 0] = float("inf")
        optimizer.step()
        assert torch.equal(before, model[0].weight)
        train(worker, model, optimizer, range(4, 6))
        assert all(param.isfinite().all() for param in model.parameters())
        return model_hash(model)

    first, second = run_job(job)
    assert first == second


def test_what_it_does_not_do_is_refused():
    def job(worker):
        model, optimizer = small_job(worker)
        with pytest.raises(bandoneon.Unimplemented, match="constructed"):
            optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))]})
        with pytest.raises(bandoneon.InvalidArgument, match="already exchanged"):
            bdn.DistributedOptimizer(optimizer, model.named_parameters(), worker=worker)
        with pytest.raises(bandoneon.InvalidArgument, match="OneBitAdam does not know"):
            bdn.algorithms.OneBitAdam(model.parameters(), links=bdn.Links(warmup=1, push="ef(onebit,correction=lr)"), worker=worker)

    run_job(job)
