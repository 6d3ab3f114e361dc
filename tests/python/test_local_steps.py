import math

import numpy as np
import pytest
import torch

import algorithms
import bandoneon
import bandoneon.torch as bdn
from cluster_helpers import linked, run_job
from reference_helpers import (
    SETTINGS,
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

TAU = 5
OUTERS = {
    "average": (bdn.algorithms.Average(), algorithms.Average),
    "nesterov": (bdn.algorithms.Nesterov(), algorithms.Nesterov),
    "slowmo": (bdn.algorithms.SlowMo(beta=0.4, alpha=0.9), lambda: algorithms.SlowMo(0.4, 0.9)),
    "sign": (bdn.algorithms.SignMomentum(), algorithms.SignMomentum),
    **{
        f"prox, {penalty}": (
            bdn.algorithms.Prox(penalty, lam=0.05, theta=2.5, rho=0.5),
            lambda penalty=penalty: algorithms.Prox(penalty, 0.05, 2.5, 0.5 * WORKERS),
        )
        for penalty in ("l1", "scad", "mcp", "capped")
    },
    "sign, no decay": (bdn.algorithms.SignMomentum(decay=0), lambda: algorithms.SignMomentum(decay=0)),
}


def local(outer, tau=TAU, lr=0.02, **options):
    """For run_library."""
    return lambda worker, params: bdn.LocalSteps(
        torch.optim.SGD(params.values(), lr),
        params.items(),
        tau=tau,
        outer=outer,
        worker=worker,
        **linked(**options),
    )


def falling(t):
    return 0.03 * (1 - (t - 1) / STEPS)


@pytest.mark.parametrize("spec", ["none", "ef(topk(ratio=0.1))"])
@pytest.mark.parametrize("outer", OUTERS)
def test_it_equals_its_reference(outer, spec):
    problem = Quadratic()
    ours, reference = OUTERS[outer]
    result = run_library(problem, local(ours, push=spec), rates=falling)
    ways = links(algorithms.none if spec == "none" else algorithms.topk(0.1))
    rules = [reference() for _ in ways]
    expected = algorithms.local_steps(
        problem.start, problem.gradient, STEPS, TAU, falling, rules, ways
    )
    assert_close(result, expected)


def test_averaging_with_error_feedback_is_qsparse():
    problem = Quadratic()
    result = run_library(problem, local(bdn.algorithms.Average(), push="ef(topk(ratio=0.1))"))
    expected = algorithms.qsparse(
        problem.start, problem.gradient, STEPS, TAU, 0.02, WORKERS, algorithms.topk(0.1)
    )
    assert_close(result, expected)


def test_with_a_residual_that_decays_and_sparse_deltas_it_is_sparse_loco():
    problem, sparse = Quadratic(), algorithms.topk(0.1)
    spec = dict(push="ef(topk(ratio=0.1),decay=0.95)", pull="delta(topk(ratio=0.1))")
    result = run_library(problem, local(bdn.algorithms.Average(), **spec), rates=falling)
    expected = algorithms.sparse_loco(
        problem.start, problem.gradient, STEPS, lambda t: t % TAU == 0, falling, 0.95, WORKERS, sparse, sparse
    )
    assert_close(result, expected)


# ---- Residuals in the models ----

KEPT = {
    "none": ("none", "none", algorithms.none, algorithms.none),
    "topk": ("topk(ratio=0.1)", "none", algorithms.topk(0.1), algorithms.none),
    "both ways": ("topk(ratio=0.1)", "delta(topk(ratio=0.1))", algorithms.topk(0.1), algorithms.topk(0.1)),
}


def models_of(optimizer, params):
    with optimizer.common_weights():
        common = values(params)
    return common, values(params)


@pytest.mark.parametrize("codec", KEPT)
def test_what_a_push_leaves_out_may_stay_in_the_model(codec):
    push, pull, plain_push, plain_pull = KEPT[codec]
    problem = Quadratic()
    make = local(bdn.algorithms.Average(), local_residual=True, push=push, pull=pull)
    ranks = [seen[-1] for seen in run_ranks(problem, make, rates=falling, look=models_of)]
    assert_same_bits([common for common, _ in ranks])
    common, own = algorithms.local_steps_keeping(
        problem.start, problem.gradient, STEPS, TAU, falling, WORKERS, plain_push, plain_pull
    )
    for (library_common, library_own), expected in zip(ranks, own):
        assert_close(library_common, common)
        assert_close(library_own, expected)


@pytest.mark.parametrize("spec", ["onebit(block=32)", "twobit(block=32)"])
def test_with_residuals_in_the_models_it_ends_nearer_to_the_optimum(spec):
    problem, steps = Quadratic(), 400

    def error(**options):
        make = local(bdn.algorithms.Average(), 1, pull=f"delta({spec})", **options)
        ranks = run_ranks(problem, make, steps, lambda t: 0.1 * (1 - (t - 1) / steps))
        # In their mean is what pushes have left out.
        mean = [sum(parts) / WORKERS for parts in zip(*(seen[-1] for seen in ranks))]
        return max(np.abs(a - b).max() for a, b in zip(mean, problem.optimum()))

    start = max(np.abs(a - b).max() for a, b in zip(problem.start, problem.optimum()))
    assert error(push=spec, local_residual=True) < 0.5 * error(push=f"ef({spec})") < 0.15 < 3 < start


def test_residuals_in_models_do_not_depend_on_the_unit_of_weights():
    def common(weight):
        make = local(bdn.algorithms.Average(), local_residual=True, push="topk(ratio=0.1)", weight=weight)
        return run_ranks(Quadratic(), make, look=models_of)[1][-1]

    (one, one_own), (eight, eight_own) = common(1.0), common(8.0)
    assert_close(one, eight)
    assert_close(one_own, eight_own)


def test_who_counts_for_nothing_keeps_nothing():
    def job(worker):
        params = Quadratic().parameters()
        options = dict(local_residual=True, push="topk(ratio=0.1)", weight=float(worker.rank != 0))
        optimizer = local(bdn.algorithms.Average(), 1, **options)(worker, params)
        for p in params.values():
            p.grad = torch.ones_like(p)
        optimizer.step()
        common, own = models_of(optimizer, params)
        return all(np.array_equal(a, b) for a, b in zip(common, own))

    assert run_job(job, **SETTINGS) == [True, False, False]


def test_residuals_are_kept_once():
    def job(worker):
        params = Quadratic().parameters()
        with pytest.raises(bandoneon.InvalidArgument, match="without ef"):
            local(bdn.algorithms.Average(), local_residual=True, push="ef(onebit)")(worker, params)

    run_job(job, workers=1)


# ---- Meetings that grow rarer ----

GROWING = bdn.algorithms.QSR(alpha=0.04, least=2, most=9, warmup=4)


def meetings_of(rule, rate, steps):
    """The steps after which workers meet, by the rule's formula."""
    found, start = [], 0
    while start < steps:
        lr = rate(start + 1)
        tau = rule.least if start < rule.warmup or lr > rule.alpha else math.floor((rule.alpha / lr) ** 2)
        start += min(max(tau, rule.least), rule.most)
        found.append(start)
    return found


def test_meetings_grow_rarer_as_the_rate_falls():
    problem, sparse = Quadratic(), algorithms.topk(0.1)
    meetings = meetings_of(GROWING, falling, STEPS)
    gaps = np.diff([0, *meetings])
    assert list(gaps) == sorted(gaps) and len(set(gaps)) > 3 and gaps[0] == 2 and gaps[-1] == 9
    end = max(m for m in meetings if m <= STEPS)
    make = local(bdn.algorithms.Average(), GROWING, push="ef(topk(ratio=0.1))")

    def look(optimizer, params):
        with optimizer.common_weights():
            return values(params)

    ranks = run_ranks(problem, make, rates=falling, look=look)
    for models in zip(*ranks):
        assert_same_bits(models)
    expected = algorithms.sparse_loco(
        problem.start, problem.gradient, end, meetings.__contains__, falling, 1.0, WORKERS, sparse, algorithms.none
    )
    assert_close(ranks[0][-1], expected)
    changed = [t for t in range(2, STEPS + 1) if not np.array_equal(ranks[0][t - 1][0], ranks[0][t - 2][0])]
    assert changed == [m for m in meetings if m <= STEPS]


@pytest.mark.parametrize(
    "step, rate, steps",
    [(0, 1e-4, 4), (9, 0.1, 4), (10, 0.1, 4), (10, 0.01, 9), (10, 0.02, 4), (10, 0.03 / 31**0.5 * 1.0001, 30)]
    + [(10, 1e-200, 64), (10, 0.0, 64)],
)
def test_a_round_has_the_square_of_alpha_over_the_rate(step, rate, steps):
    assert bdn.algorithms.QSR(alpha=0.03, least=4, most=64, warmup=10).steps(step, rate) == steps


def test_workers_that_are_taken_up_elsewhere_leave_steps_since_a_grown_round():
    def job(worker, state=None, steps=7):
        param = torch.nn.Parameter(torch.ones(50))
        rule = bdn.algorithms.QSR(alpha=0.3, least=2, most=9)
        optimizer = bdn.LocalSteps(
            torch.optim.SGD([param], 0.15), [("p", param)], tau=rule, outer=bdn.algorithms.Average(), worker=worker
        )
        if state is not None:
            optimizer.load_comm_state_dict(state)
        for _ in range(steps):
            optimizer.zero_grad()
            param.square().sum().backward()
            optimizer.step()
        return optimizer.comm_state_dict()

    states = run_job(job, workers=2)
    assert [(s["local_steps"], s["meetings"]) for s in states] == [(7, [4, 8])] * 2
    with pytest.warns(RuntimeWarning, match="saved 3 steps after .* Save right after one to lose none"):
        resized = run_job(lambda worker: job(worker, states, 5), workers=3)
    assert [(s["local_steps"], s["meetings"]) for s in resized] == [(9, [8, 12])] * 3
    broken = [dict(s, meetings=[8, 12]) for s in states]
    with pytest.raises(bandoneon.InvalidArgument, match=r"local_steps=7 are not within its meetings=\[8, 12\]"):
        run_job(lambda worker: job(worker, broken), workers=2)


@pytest.mark.parametrize("push", ["none", "int8"])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_pulled_as_signs_the_weights_have_the_same_bits(decay, push):
    problem = Quadratic()
    outer = bdn.algorithms.SignMomentum(decay=decay)
    whole = run_library(problem, local(outer, pull="none", push=push), rates=falling)
    assert_same_bits([run_library(problem, local(outer, push=push), rates=falling), whole])


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_signs_of_an_embedding_row_never_seen_are_exact_zeros(decay):
    def job(worker, pull):
        table = torch.nn.Embedding(40, 8)
        with torch.no_grad():
            table.weight.copy_(torch.arange(320.0).view(40, 8) / 320)
        start = table.weight.detach().clone()
        optimizer = bdn.LocalSteps(
            torch.optim.SGD(table.parameters(), 0.01),
            table.named_parameters(),
            tau=2,
            outer=bdn.algorithms.SignMomentum(decay=decay),
            links=bdn.Links(pull=pull, prefix=f"{pull}/"),
            worker=worker,
        )
        for step in range(6):
            optimizer.zero_grad()
            table(torch.tensor([3, 4 + worker.rank, 7 + step])).square().sum().backward()
            optimizer.step()
        kept = start * (1 - decay * 0.01) ** 3
        torch.testing.assert_close(table.weight[20:], kept[20:])
        if decay == 0:
            assert torch.equal(table.weight[20:], start[20:])
        assert not torch.equal(table.weight[3], kept[3])
        return [table.weight.detach().numpy()]

    def both(worker):
        return [*job(worker, "sign"), *job(worker, "none")]

    signs, whole = zip(*run_job(both, workers=WORKERS, servers=2, min_compress_bytes=1))
    assert_same_bits([[array] for array in signs + whole])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("outer", [bdn.algorithms.SignMomentum(), bdn.algorithms.Nesterov(), bdn.algorithms.Average()])
def test_what_rounding_to_the_parameters_takes_away_is_no_movement(outer, dtype):
    def job(worker):
        param = torch.nn.Parameter((torch.arange(320.0) / 320 - 0.3).to(dtype))
        inner = torch.optim.SGD([param], 1e-3)
        optimizer = bdn.LocalSteps(inner, [("p", param)], tau=1, outer=outer, worker=worker)
        exchange = optimizer._links.update_weights
        moved = []

        def watched(tensors, *args, **facts):
            moved.append(tensors[0].abs().max().item())
            return exchange(tensors, *args, **facts)

        optimizer._links.update_weights = watched
        for step in range(5):
            param.grad = torch.full_like(param, 0.0 if step else 0.3)
            optimizer.step()
        assert moved[0] > 0 and moved[1:] == [0.0] * 4

    run_job(job)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rows_of_half_precision_never_seen_only_decay(dtype):
    def job(worker):
        table = torch.nn.Embedding(40, 8, dtype=dtype)
        with torch.no_grad():
            table.weight.copy_(torch.arange(320.0).view(40, 8) / 320)
        start = table.weight.detach().float()
        inner = torch.optim.SGD(table.parameters(), 1e-3)
        optimizer = bdn.LocalSteps(
            inner, table.named_parameters(), tau=2, outer=bdn.algorithms.SignMomentum(decay=0.1), worker=worker
        )
        for step in range(6):
            optimizer.zero_grad()
            table(torch.tensor([3, 4 + worker.rank])).square().sum().backward()
            optimizer.step()
            decayed = start[20:] * (1 - 1e-4) ** ((step + 1) // 2)
            torch.testing.assert_close(optimizer._common[0][20:], decayed)

    run_job(job)


def test_workers_part_between_meetings_and_are_equal_bit_for_bit_after_each():
    ranks = run_ranks(Quadratic(), local(bdn.algorithms.SignMomentum(), push="int8"), steps=12)
    for t, models in enumerate(zip(*ranks), 1):
        if t % TAU == 0:
            assert_same_bits(models)
        else:
            assert not np.array_equal(models[0][0], models[1][0])


def test_common_weights_are_those_of_the_last_meeting():
    def look(optimizer, params):
        own = values(params)
        with optimizer.common_weights():
            common = values(params)
        assert_same_bits([own, values(params)])
        return common

    ranks = run_ranks(Quadratic(), local(bdn.algorithms.Average()), steps=9, look=look)
    for models in zip(*ranks):
        assert_same_bits(models)
    first = ranks[0]
    assert_same_bits([Quadratic().start, *first[: TAU - 1]])
    assert_same_bits(first[TAU - 1 :])
    assert not np.array_equal(first[0][0], first[-1][0])


SIGN = bdn.algorithms.SignMomentum(beta1=0.6, beta2=0.8, decay=0)


@pytest.mark.parametrize(
    "outer, options, tau, lr, steps",
    [
        (bdn.algorithms.Average(), dict(push="ef(topk(ratio=0.25))"), 2, 0.05, 150),
        (bdn.algorithms.Average(), dict(pull="delta(int4(group=32))"), 3, 0.1, 150),
        (bdn.algorithms.SlowMo(), dict(push="ef(topk(ratio=0.25))"), 2, 0.03, 150),
        (bdn.algorithms.Nesterov(momentum=0.7), dict(push="int8"), 4, 0.03, 160),
        (SIGN, dict(push="int8"), 2, 0.08, 240),
    ],
    ids=["qsparse", "delta", "slowmo", "nesterov", "sign"],
)
def test_it_reaches_the_optimum(outer, options, tau, lr, steps):
    assert_reaches_the_optimum(local(outer, tau, 0.0, **options), lr, steps)


def test_parameters_that_are_not_finite_in_one_worker_send_all_back_to_the_common_weights():
    def job(worker):
        param = torch.nn.Parameter(torch.ones(50))
        optimizer = bdn.LocalSteps(
            torch.optim.SGD([param], 0.1),
            [("p", param)],
            tau=2,
            outer=bdn.algorithms.Nesterov(),
            worker=worker,
        )
        seen = []
        for step in range(6):
            optimizer.zero_grad()
            param.square().sum().backward()
            if step == 2 and worker.rank == 1:
                param.grad[3] = float("inf")
            optimizer.step()
            seen.append(param.detach().numpy().copy())
        assert optimizer.skipped_rounds == 1
        assert_same_bits([[seen[1]], [seen[3]]])
        assert np.isfinite(seen[5]).all() and not np.array_equal(seen[5], seen[3])
        return [seen[5]]

    assert_same_bits(run_job(job))


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(tau=0), "tau=0"),
        (dict(outer=None), r"outer=None is none of SignMomentum\(\)"),
        (dict(pull="sign"), "only the rule sign_momentum can be pulled as sign"),
        (dict(push="delta(int4)"), r"delta\(int4\) is for pulling weights"),
        (dict(pull="ef(onebit)"), r"ef\(onebit\) is for pulling gradients; weights take delta"),
        (dict(overrides={"p": dict(warmup=3)}), "warmup=3 is for gradients .* LocalSteps"),
        (
            dict(push="ef(onebit)", overrides={"p": dict(momentum=0.9)}),
            "momentum=0.9 is for gradients .* LocalSteps",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_contradicts_itself_is_refused_at_construction(options, message):
    def job(worker):
        param = torch.nn.Parameter(torch.ones(100))
        how = dict(dict(tau=2, outer=bdn.algorithms.Average()), **options)
        with pytest.raises(bandoneon.InvalidArgument, match=message):
            bdn.LocalSteps(torch.optim.SGD([param], 0.1), [("p", param)], worker=worker, **linked(**how))

    run_job(job)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: bdn.algorithms.SignMomentum(beta1=1.0), "beta1=1.0"),
        (lambda: bdn.algorithms.SignMomentum(eta=-1), "eta=-1"),
        (lambda: bdn.algorithms.Nesterov(momentum=1), "momentum=1"),
        (lambda: bdn.algorithms.SlowMo(beta=-0.1), "beta=-0.1"),
        (lambda: bdn.algorithms.QSR(alpha=-1, least=2, most=4), "alpha=-1"),
        (lambda: bdn.algorithms.QSR(alpha=1, least=0, most=4), "least=0"),
        (lambda: bdn.algorithms.QSR(alpha=1, least=5, most=4), "most=4 is less than least=5"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_outer_steps_out_of_range_are_refused(make, message):
    with pytest.raises(bandoneon.InvalidArgument, match=message):
        make()
