import numpy as np
import pytest
import torch

import algorithms
import bandoneon
import bandoneon.torch as bdn
from cluster_helpers import linked, loss_of, make_batch, make_model, model_hash, run_job
from reference_helpers import (
    STEPS,
    WORKERS,
    PartlyUnseen,
    Quadratic,
    assert_close,
    assert_same_bits,
    run_library,
    run_ranks,
    values,
)

LR, BETAS, WD = 0.02, (0.9, 0.97), 0.1
VOTES = {
    "majority": (dict(), np.sign, np.sign),
    "mean": (dict(vote="mean", pull="none"), np.sign, lambda mean: mean),
    "uncompressed": (dict(push="none", pull="none"), algorithms.none, np.sign),
}


def voting(lr=LR, betas=BETAS, weight_decay=WD, **options):
    """For run_library."""
    return lambda worker, params: bdn.algorithms.Lion(
        params.items(), lr, betas, weight_decay, worker=worker, **linked(**options)
    )


@pytest.mark.parametrize("name", VOTES)
def test_it_equals_its_reference(name):
    problem, (options, vote, reply) = Quadratic(), VOTES[name]
    result = run_library(problem, voting(**options))
    expected = algorithms.lion(
        problem.start, problem.gradient, STEPS, LR, *BETAS, WD, WORKERS, vote, reply
    )
    assert_close(result, expected, atol=5e-6)  # Steps do not shrink, nor does what rounding them adds up to.


@pytest.mark.parametrize("name", ["majority", "mean"])
def test_small_tensors_that_go_uncompressed_are_voted_on_alike(name):
    problem, (options, *_) = Quadratic(), VOTES[name]
    whole = run_library(problem, voting(**options), min_compress_bytes=1 << 20)
    assert_same_bits([run_library(problem, voting(**options)), whole])


def test_a_push_is_one_bit_an_element():
    def job(worker):
        param = torch.nn.Parameter(torch.ones(1 << 16))
        optimizer = bdn.algorithms.Lion([param], worker=worker)
        before = worker.stats()
        for _ in range(4):
            optimizer.zero_grad()
            param.sum().backward()
            optimizer.step()
        after = worker.stats()
        return [(after[what] - before[what]) / 4 / (1 << 13) for what in ("bytes_pushed", "bytes_pulled")]

    for pushed, pulled in run_job(job, min_compress_bytes=1):
        assert 1 <= pushed < 1.03 and 1 <= pulled < 1.03


@pytest.mark.parametrize("name, lr, steps", [("majority", 0.04, 300), ("mean", 0.06, 300)])
def test_it_comes_near_the_optimum(name, lr, steps):
    """Of workers with like gradients, whose majority is the sign of their mean."""
    problem, (options, *_) = Quadratic(noise=0.1), VOTES[name]
    problem.centres = [problem.centres[0]] * WORKERS
    make = voting(weight_decay=0.0, **options)
    result = run_library(problem, make, steps, lambda t: lr * (1 - (t - 1) / steps))
    for x, centre, start in zip(result, problem.centres[0], problem.start):
        assert np.abs(x - centre).max() < 0.2 < 2 < np.abs(start - centre).max()


def test_over_lossless_links_it_reaches_the_optimum_of_the_mean():
    make = voting(0.0, weight_decay=0.0, push="none", pull="none")
    problem = Quadratic(noise=0)
    result = run_library(problem, make, 400, lambda t: 0.05 * (1 - (t - 1) / 400))
    for x, best in zip(result, problem.optimum()):
        assert np.abs(x - best).max() < 0.05


@pytest.mark.parametrize("decay", [0.0, WD])
def test_what_no_gradient_reached_only_decays(decay):
    problem = PartlyUnseen()
    result = run_library(problem, voting(weight_decay=decay))
    for x, start in zip(result, problem.start):
        unseen = problem.is_unseen(x)
        np.testing.assert_allclose(x[unseen], start[unseen] * (1 - LR * decay) ** STEPS, rtol=1e-5)


def test_a_tie_is_no_step():
    def job(worker):
        param = torch.nn.Parameter(torch.ones(40))
        optimizer = bdn.algorithms.Lion([param], lr=0.5, weight_decay=0.0, worker=worker)
        (param[:20].sum() * (1 if worker.rank else -1) + param[20:].sum()).backward()
        optimizer.step()
        return param.tolist()

    assert run_job(job, workers=2, min_compress_bytes=1) == [[1.0] * 20 + [0.5] * 20] * 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_parameters_of_other_types_stay_replicas_and_learn(dtype):
    def job(worker):
        param = torch.nn.Parameter(torch.linspace(-2, 2, 320).to(dtype))
        optimizer = bdn.algorithms.Lion([param], betas=(0.9, 0.9), weight_decay=0.0, worker=worker)
        for step in range(150):
            optimizer.param_groups[0]["lr"] = 0.05 * (1 - step / 150)
            optimizer.zero_grad()
            (param - 0.5).square().sum().backward()
            optimizer.step()
        assert param.dtype == dtype
        return param.detach().double().numpy()

    first, second = run_job(job, workers=2, min_compress_bytes=1)
    assert np.array_equal(first, second)
    assert np.abs(first - 0.5).max() < 0.3


def test_replicas_are_equal_after_every_step():
    ranks = run_ranks(Quadratic(), voting(), steps=12, look=lambda optimizer, params: values(params))
    for models in zip(*ranks):
        assert_same_bits(models)


@pytest.mark.parametrize("name", VOTES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_in_one_worker_moves_nothing_of_that_parameter(name, bad):
    def job(worker):
        param = torch.nn.Parameter(torch.ones(50))
        optimizer = bdn.algorithms.Lion([param], lr=0.1, worker=worker, **linked(**VOTES[name][0]))
        seen = []
        for step in range(3):
            optimizer.zero_grad()
            param.square().sum().backward()
            if step == 1 and worker.rank == 1:
                param.grad[3] = bad
            optimizer.step()
            seen.append(param.detach().numpy().copy())
        assert np.array_equal(seen[0], seen[1])
        assert np.isfinite(seen[2]).all() and not np.array_equal(seen[1], seen[2])
        return [seen[2]]

    assert_same_bits(run_job(job))


def test_parameters_without_gradients_count_as_zeros_and_passes_add_up():
    def job(worker, passes):
        model = make_model()
        optimizer = bdn.algorithms.Lion(model.parameters(), lr=0.01, push="none", pull="none", worker=worker)
        for step in range(3):
            optimizer.zero_grad()
            for _ in range(passes if worker.rank == 0 else 0):
                (loss_of(model, make_batch(worker.rank, step)) / passes).backward()
            optimizer.step()
        return model_hash(model), [p.detach().clone() for p in model.parameters()]

    whole, halves = (run_job(lambda worker: job(worker, passes)) for passes in (1, 2))
    assert whole[0][0] == whole[1][0] != model_hash(make_model())
    assert halves[0][0] == halves[1][0]


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(lr=-1), "lr=-1"),
        (dict(betas=(0.9, 1.0)), "beta2=1.0"),
        (dict(vote="all"), "vote='all' is neither majority nor mean"),
        (dict(vote="mean"), "vote='mean' steps by the mean .* pull='sign' replies its sign alone"),
        (dict(overrides={"p": dict(momentum=0.9, push="ef(onebit)")}), "Lion has betas of its own"),
        (dict(push="ef(onebit,correction=lr)"), "Lion does not know"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_contradicts_itself_is_refused_at_construction(options, message):
    def job(worker):
        param = torch.nn.Parameter(torch.ones(100))
        with pytest.raises(bandoneon.InvalidArgument, match=message):
            bdn.algorithms.Lion([("p", param)], worker=worker, **linked(**options))

    run_job(job)
