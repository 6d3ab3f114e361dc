import math

import numpy as np
import pytest
import torch

import algorithms
import bandoneon
import bandoneon.torch as bdn
from bandoneon.torch.chunked_dct import ChunkedDCT
from cluster_helpers import linked, run_job
from reference_helpers import (
    STEPS,
    PartlyUnseen,
    Quadratic,
    assert_close,
    assert_same_bits,
    links,
    run_library,
    run_ranks,
    values,
)

LR, DECAY, WD, CHUNK = 0.02, 0.9, 0.1, 6
TOPK = "topk(ratio=0.1)"
PULLS = {"none": algorithms.none, f"ef({TOPK})": algorithms.topk(0.1)}


def decoupled(lr=LR, decay=DECAY, weight_decay=WD, chunk=CHUNK, push=TOPK, pull="none", **options):
    """For run_library."""
    return lambda worker, params: bdn.algorithms.DeMo(
        params.items(),
        lr,
        decay,
        weight_decay,
        chunk,
        worker=worker,
        **linked(push=push, pull=pull, **options),
    )


# ---- The transform ----

SHAPES = [(64, 64), (128, 192), (12, 7), (8, 12), (5, 5), (97,), (40,), (), (1, 1), (6, 3, 2, 2), (0,), (0, 4), (4, 0)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("chunk", [1, 6, 64])
def test_the_transform_is_its_definition_and_comes_back(shape, chunk):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    before = x.clone()
    transform = ChunkedDCT(shape, chunk)
    coefficients = transform.forward(x)
    assert coefficients.shape == x.shape and torch.equal(x, before)
    torch.testing.assert_close(transform.inverse(coefficients), x, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(coefficients.norm(), x.norm())
    if x.numel():
        expected = algorithms.dct_of_tiles(x.double().numpy(), chunk)
        np.testing.assert_allclose(coefficients, expected, rtol=1e-5, atol=1e-5)


def test_a_constant_is_one_coefficient_of_each_tile():
    coefficients = ChunkedDCT((128, 64), 64).forward(torch.ones(128, 64))
    first = torch.zeros(128, 64)
    first[0, 0] = first[64, 0] = 64
    torch.testing.assert_close(coefficients, first, rtol=0, atol=1e-4)


# ---- The rule ----


@pytest.mark.parametrize("chunk", [1, CHUNK, 64])
@pytest.mark.parametrize("pull", PULLS)
def test_it_equals_its_reference(pull, chunk):
    problem = Quadratic()
    result = run_library(problem, decoupled(pull=pull, chunk=chunk))
    expected = algorithms.demo(
        problem.start,
        problem.gradient,
        STEPS,
        LR,
        DECAY,
        WD,
        chunk,
        algorithms.topk(0.1),
        links(pull=PULLS[pull]),
    )
    assert_close(result, expected, atol=5e-6)  # As of Lion.


def test_where_all_is_sent_it_is_sign_descent_on_the_mean():
    problem = Quadratic()
    result = run_library(problem, decoupled(push="none", decay=0.0))
    none, sign = algorithms.none, np.sign
    expected = algorithms.lion(problem.start, problem.gradient, STEPS, LR, 0.0, 0.0, WD, 3, none, sign)
    assert_close(result, expected, atol=5e-6)


@pytest.mark.parametrize("pull", ["none", "ef(topk(ratio=0.25))"])
def test_it_comes_near_the_optimum(pull):
    problem, steps = Quadratic(noise=0.1), 600
    make = decoupled(0.0, 0.9, 0.0, push="topk(ratio=0.25)", pull=pull)
    result = run_library(problem, make, steps, lambda t: 0.04 * (1 - (t - 1) / steps))
    for x, best, start in zip(result, problem.optimum(), problem.start):
        error, before = (math.sqrt(np.square(model - best).mean()) for model in (x, start))
        assert error < 0.15 < 0.8 < before


@pytest.mark.parametrize("decay", [0.0, WD])
def test_what_no_gradient_reached_only_decays(decay):
    problem = PartlyUnseen()
    result = run_library(problem, decoupled(chunk=1, weight_decay=decay))
    for x, start in zip(result, problem.start):
        unseen = problem.is_unseen(x)
        np.testing.assert_allclose(x[unseen], start[unseen] * (1 - LR * decay) ** STEPS, rtol=1e-5)


def test_bytes_are_those_of_the_codecs():
    def job(worker):
        param = torch.nn.Parameter(torch.randn(256, 256, generator=torch.Generator().manual_seed(1)))
        optimizer = bdn.algorithms.DeMo([param], worker=worker)
        before = worker.stats()
        for _ in range(4):
            optimizer.zero_grad()
            (param * torch.randn(256, 256)).sum().backward()
            optimizer.step()
        after = worker.stats()
        return [(after[what] - before[what]) / 4 for what in ("bytes_pushed", "bytes_pulled")]

    payload = 6 * (1 << 16) / 32
    for pushed, pulled in run_job(job, min_compress_bytes=1):
        assert payload <= pushed < 1.05 * payload and payload <= pulled < 1.05 * payload


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_parameters_of_other_types_stay_replicas_and_learn(dtype):
    def job(worker):
        param = torch.nn.Parameter(torch.linspace(-2, 2, 320).to(dtype))
        optimizer = bdn.algorithms.DeMo([param], decay=0.9, push="topk(ratio=0.25)", worker=worker)
        for step in range(300):
            optimizer.param_groups[0]["lr"] = 0.04 * (1 - step / 300)
            optimizer.zero_grad()
            (param - 0.5 * worker.rank).square().sum().backward()
            optimizer.step()
        assert param.dtype == dtype
        return param.detach().double().numpy()

    first, second = run_job(job, workers=2, min_compress_bytes=1)
    assert np.array_equal(first, second)
    assert np.abs(first - 0.25).mean() < 0.15


def test_replicas_are_equal_after_every_step():
    make = decoupled(pull=f"ef({TOPK})")
    ranks = run_ranks(Quadratic(), make, steps=12, look=lambda optimizer, params: values(params))
    for models in zip(*ranks):
        assert_same_bits(models)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_in_one_worker_moves_nothing_of_that_parameter(bad):
    def job(worker):
        param = torch.nn.Parameter(torch.ones(50))
        optimizer = bdn.algorithms.DeMo([param], lr=0.1, worker=worker)
        seen, kept = [], []
        for step in range(3):
            optimizer.zero_grad()
            (param * torch.arange(50.0)).sum().backward()
            if step == 1 and worker.rank == 1:
                param.grad[3] = bad
            optimizer.step()
            seen.append(param.detach().numpy().copy())
            kept.append(optimizer.comm_state_dict()["local"]["momentum"]["group0.param0"])
        assert np.array_equal(seen[0], seen[1]) and torch.equal(kept[0], kept[1])
        assert np.isfinite(seen[2]).all() and not np.array_equal(seen[1], seen[2])
        assert kept[0].any() and not torch.equal(kept[1], kept[2])
        return [seen[2]]

    assert_same_bits(run_job(job, min_compress_bytes=1))


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(lr=-1), "lr=-1"),
        (dict(decay=1.0), "decay=1.0"),
        (dict(chunk=0), "chunk=0"),
        (dict(push="ef(topk(ratio=0.1))"), "keeps what it leaves out, which is DeMo's to keep"),
        (dict(overrides={"p": dict(warmup=2)}), "DeMo has a decay= of its own"),
        (dict(pull="ef(onebit,correction=lr)"), "DeMo does not know"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_contradicts_itself_is_refused_at_construction(options, message):
    def job(worker):
        param = torch.nn.Parameter(torch.ones(100))
        with pytest.raises(bandoneon.InvalidArgument, match=message):
            bdn.algorithms.DeMo([("p", param)], worker=worker, **linked(**options))

    run_job(job)
