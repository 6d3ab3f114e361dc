import numpy as np
import pytest
import torch

import algorithms
import bandoneon
import bandoneon.torch as bdn
from cluster_helpers import linked, loss_of, make_batch, make_model, model_hash, run_job
from reference_helpers import (
    CONVERGING,
    SHAPES,
    STEPS,
    WORKERS,
    Quadratic,
    assert_close,
    assert_reaches_the_optimum,
    assert_same_bits,
    links,
    run_library,
    run_ranks,
    values,
)

MU = 0.8
SGD = (lambda p: torch.optim.SGD(p, 0.1), lambda: algorithms.SGD(0.1))
ADAMW = (
    lambda p: torch.optim.AdamW(p, 0.02, betas=(0.0, 0.95), weight_decay=0.1),
    lambda: algorithms.AdamW(0.02, b1=0.0, b2=0.95, wd=0.1),
)
MUON = (
    lambda p: bdn.algorithms.Muon(p, 0.02, momentum=0.0, betas=(0.0, 0.95)),
    None,  # By shape.
)
CODECS = {
    "none": ("none", "none", algorithms.none),
    "onebit": ("ef(onebit)", "delta(onebit)", algorithms.onebit),
    "topk": ("ef(topk(ratio=0.1))", "delta(topk(ratio=0.1))", algorithms.topk(0.1)),
}


def rules_of(reference):
    if reference is not None:
        return [reference() for _ in SHAPES]
    matrix, other = lambda: algorithms.Muon(0.02, mu=0.0), lambda: algorithms.AdamW(0.02, b1=0.0, b2=0.95, wd=0.01)
    return [(matrix if len(shape) >= 2 else other)() for shape in SHAPES.values()]


def tracked(make_inner=SGD[0], momentum=MU, **options):
    """For run_library."""
    return lambda worker, params: bdn.algorithms.EF21(
        make_inner(list(params.values())), params.items(), momentum=momentum, worker=worker, **linked(**options)
    )


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("nesterov", [False, True], ids=["momentum", "nesterov"])
@pytest.mark.parametrize("inner", [SGD, ADAMW, MUON], ids=["SGD", "AdamW", "Muon"])
def test_it_equals_its_reference(inner, nesterov, codec):
    problem, (make_inner, reference) = Quadratic(), inner
    push, pull, plain = CODECS[codec]
    result = run_library(problem, tracked(make_inner, nesterov=nesterov, push=push, pull=pull))
    rules = rules_of(reference)
    expected = algorithms.ef21(
        problem.start, problem.gradient, STEPS, rules, MU, nesterov, WORKERS, plain, plain
    )
    assert_close(result, expected, rtol=1e-4, atol=2e-5)


def test_uncompressed_and_without_momentum_it_is_every_step_on_the_mean():
    problem = Quadratic()
    result = run_library(problem, tracked(momentum=0.0, push="none", pull="none"))
    rules = [algorithms.SGD(0.1) for _ in SHAPES]
    assert_close(result, algorithms.every_step(problem.start, problem.gradient, STEPS, rules, links()))


@pytest.mark.parametrize("spec", CONVERGING)
def test_it_reaches_the_optimum(spec):
    pull = spec.replace("ef(", "delta(")
    make = tracked(lambda p: torch.optim.SGD(p, 0.0), momentum=0.5, push=spec, pull=pull)
    assert_reaches_the_optimum(make, 0.1)


def test_what_is_left_out_vanishes_where_gradients_settle():
    """Error feedback of gradients does not: three workers' differ for good at the optimum of their mean."""

    def residuals(make):
        def look(optimizer, params):
            tensors = optimizer.comm_state_dict()["tensors"]
            return max(entry["residual"].abs().max().item() for entry in tensors.values())

        return max(seen[-1] for seen in run_ranks(Quadratic(noise=0), make, steps=400, look=look))

    spec = "ef(topk(ratio=0.25))"
    by_gradients = residuals(
        lambda worker, params: bdn.DistributedOptimizer(
            torch.optim.SGD(params.values(), 0.05), params.items(), links=bdn.Links(push=spec, scaler=None), worker=worker
        )
    )
    by_changes = residuals(
        tracked(lambda p: torch.optim.SGD(p, 0.05), push=spec, pull="delta(topk(ratio=0.25))")
    )
    assert by_changes < 1e-3 < 0.1 < by_gradients


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_parameters_of_other_types_stay_replicas_and_learn(dtype):
    def job(worker):
        param = torch.nn.Parameter(torch.linspace(-2, 2, 320).to(dtype))
        inner = bdn.algorithms.Muon([param], 0.02, momentum=0.0, betas=(0.0, 0.95))
        optimizer = bdn.algorithms.EF21(inner, [("p", param)], worker=worker)
        for step in range(200):
            optimizer.zero_grad()
            (param - 0.5 * worker.rank).square().sum().backward()
            optimizer.step()
        assert param.dtype == param.grad.dtype == dtype
        return param.detach().double().numpy()

    first, second = run_job(job, workers=2)
    assert np.array_equal(first, second)
    assert np.abs(first - 0.25).max() < 0.15


def test_replicas_are_equal_after_every_step_and_the_gradients_are_the_estimate():
    def look(optimizer, params):
        return values(params) + [p.grad.numpy().copy() for p in params.values()]

    make = tracked(MUON[0], push="ef(topk(ratio=0.1))", pull="delta(int4(group=32))")
    ranks = run_ranks(Quadratic(), make, steps=12, look=look)
    for models in zip(*ranks):
        assert_same_bits(models)
    assert not np.array_equal(ranks[0][0][0], ranks[0][-1][0])


def test_a_gradient_that_is_not_finite_in_one_worker_is_a_step_of_nobody():
    def job(worker):
        param = torch.nn.Parameter(torch.ones(50))
        optimizer = bdn.algorithms.EF21(torch.optim.SGD([param], 0.1), [("p", param)], worker=worker)
        seen = []
        for step in range(4):
            optimizer.zero_grad()
            param.square().sum().backward()
            if step == 1 and worker.rank == 1:
                param.grad[3] = float("nan")
            optimizer.step()
            seen.append(param.detach().numpy().copy())
        assert optimizer.skipped_steps == 1
        assert np.array_equal(seen[0], seen[1]) and not np.array_equal(seen[1], seen[2])
        assert np.isfinite(seen[3]).all()
        return [seen[3]]

    assert_same_bits(run_job(job))


@pytest.mark.parametrize("push", ["none", "ef(onebit)", "ef(topk(ratio=0.1))"])
def test_sharing_anew_changes_nothing_where_all_are_there(push):
    def train(asks):
        def job(worker):
            params = {name: torch.nn.Parameter(torch.linspace(-1, 1, size)) for name, size in (("large", 3000), ("small", 7))}
            optimizer = bdn.algorithms.EF21(
                torch.optim.SGD(params.values(), 0.05), params.items(), momentum=0.5, push=push, pull="none", worker=worker
            )
            for step in range(20):
                if asks and step in (5, 12) and worker.rank == 1:
                    optimizer._sharers = []  # As that of one that has just come into the job.
                optimizer.zero_grad()
                sum((param - worker.rank - step / 10).square().sum() for param in params.values()).backward()
                optimizer.step()
            assert optimizer._sharers == list(range(WORKERS))
            return [param.detach().numpy().copy() for param in params.values()]

        return run_job(job, workers=WORKERS)

    asked, undisturbed = train(True), train(False)
    for models in (asked, undisturbed):
        for parameters in zip(*models):
            assert_same_bits([[values] for values in parameters])
    for got, expected in zip(asked[0], undisturbed[0]):
        assert np.abs(got - expected).max() < 1e-5


def test_parameters_without_gradients_count_as_zeros_and_frozen_ones_stay():
    def job(worker):
        params = {name: torch.nn.Parameter(torch.ones(8)) for name in ("used", "unused", "frozen")}
        params["frozen"].requires_grad_(False)
        inner = torch.optim.SGD(params.values(), 0.5, weight_decay=0.1)
        optimizer = bdn.algorithms.EF21(
            inner, params.items(), momentum=0.0, push="none", pull="none", worker=worker
        )
        if worker.rank == 0:
            params["used"].sum().backward()
        optimizer.step()
        return {name: p[0].item() for name, p in params.items()}

    for seen in run_job(job, workers=2):
        assert seen == pytest.approx({"used": 1 - 0.5 * (0.5 + 0.1), "unused": 0.95, "frozen": 1.0})


def test_parameters_begin_as_rank_0s_and_gradients_accumulate():
    def job(worker, passes):
        model = make_model()
        with torch.no_grad():
            next(model.parameters()).add_(worker.rank)
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = bdn.algorithms.EF21(inner, model.named_parameters(), push="none", pull="none", worker=worker)
        for step in range(3):
            optimizer.zero_grad()
            for _ in range(passes):
                (loss_of(model, make_batch(worker.rank, step)) / passes).backward()
            optimizer.step()
        return model_hash(model), [p.detach().clone() for p in model.parameters()]

    whole, halves = (run_job(lambda worker: job(worker, passes)) for passes in (1, 2))
    assert whole[0][0] == whole[1][0] and halves[0][0] == halves[1][0]
    for one, other in zip(whole[0][1], halves[0][1]):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(momentum=1.0), "momentum=1.0"),
        (dict(push="onebit"), "push='onebit' loses some of what it leaves out, .* write push='ef"),
        (dict(push="ef(onebit,decay=0.9)"), "without decay"),
        (dict(overrides={"p": dict(push="int8")}), "push='int8' loses"),
        (dict(push="ef(onebit,correction=lr)"), "EF21 does not know"),
        (dict(pull="ef(onebit)"), r"ef\(onebit\) is for pulling gradients; weights take delta"),
        (dict(overrides={"p": dict(warmup=3)}), "warmup=3 is .* EF21 takes a momentum="),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_contradicts_itself_is_refused_at_construction(options, message):
    def job(worker):
        param = torch.nn.Parameter(torch.ones(100))
        with pytest.raises(bandoneon.InvalidArgument, match=message):
            bdn.algorithms.EF21(torch.optim.SGD([param], 0.1), [("p", param)], worker=worker, **linked(**options))

    run_job(job)


def test_a_state_whose_momentum_does_not_fit_is_refused_saying_which():
    def job(worker):
        param = torch.nn.Parameter(torch.ones(100))
        optimizer = bdn.algorithms.EF21(torch.optim.SGD([param], 0.1), [("p", param)], worker=worker)
        state = optimizer.comm_state_dict()
        state["local"]["tracked"]["p"] = torch.zeros(99)
        with pytest.raises(bandoneon.InvalidArgument, match=r"the tracked of 'p' in the state has the shape \[99\]"):
            optimizer.load_comm_state_dict(state)
        del state["local"]["tracked"]
        with pytest.raises(bandoneon.InvalidArgument, match="the tracked of 'p' in the state is not there"):
            optimizer.load_comm_state_dict(state)

    run_job(job)
