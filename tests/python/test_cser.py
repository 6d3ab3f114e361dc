import numpy as np
import pytest
import torch

import algorithms
import bandoneon
import bandoneon.torch as bdn
from cluster_helpers import linked, make_model, run_job, train
from reference_helpers import (
    STEPS,
    WORKERS,
    Quadratic,
    assert_close,
    assert_same_bits,
    distance,
    run_ranks,
    values,
)

LR, PERIOD = 0.02, 5
BLOCKS = dict(gradient=4, reset=2, block=8)
TOPK = dict(gradient="topk(ratio=0.1)", reset="topk(ratio=0.5)")


def cser(lr=LR, mu=0.0, period=PERIOD, **options):
    """For run_ranks."""
    return lambda worker, params: bdn.algorithms.CSER(
        torch.optim.SGD(params.values(), lr, momentum=mu, nesterov=mu > 0),
        params.items(),
        period=period,
        worker=worker,
        **linked(**options),
    )


def common(optimizer, params):
    with optimizer.common_weights():
        return values(params)


def both(optimizer, params):
    """(own parameters, common ones)"""
    return values(params), common(optimizer, params)


def run_reference(problem, gradient, reset, mu=0.0, period=PERIOD, lr=LR, steps=STEPS):
    """gradient and reset are codecs of every step and parameter, or functions for them."""
    return algorithms.cser(
        problem.start, problem.gradient, steps, lr, mu, WORKERS, gradient, reset, period
    )


def always(codec):
    return lambda t, b: codec


class DrawnBlocks:
    """Watches what an optimizer's codecs sent: the codecs of the reference, by kind, step and
    parameter."""

    def __init__(self, make_optimizer, period):
        self._make = make_optimizer
        self._period = period
        self._kept = [{} for _ in range(WORKERS)]

    def __call__(self, worker, params):
        optimizer = self._make(worker, params)
        kept = self._kept[worker.rank]
        exchange = optimizer._exchange

        def watched(links, tensors):
            result = exchange(links, tensors)
            kind = "reset" if links is optimizer._reset else "gradient"
            for b, rest in enumerate(result[1]):
                kept[kind, optimizer.steps, b] = (rest == 0).numpy()
            return result

        optimizer._exchange = watched
        return optimizer

    def codec(self, kind):
        def at(t, b):
            masks = [kept[kind, t, b] for kept in self._kept]
            return lambda p: np.where(masks[0], p, 0.0)

        return at

    def assert_all_drew_alike(self):
        for kept in self._kept[1:]:
            assert kept.keys() == self._kept[0].keys()
            for key, mask in kept.items():
                # After a reset some errors are 0 in one worker and not left out, but near it.
                if key[0] == "gradient":
                    assert np.array_equal(mask, self._kept[0][key]), key

    def shares(self, kind):
        """What part was sent, a number a parameter and step."""
        return [mask.mean() for key, mask in self._kept[0].items() if key[0] == kind]


def assert_equals(ranks, history):
    """Own and common weights, after every step, on every worker."""
    for t, expected in enumerate(history):
        for rank, (own, errors) in enumerate(expected):
            actual, xhat = ranks[rank][t]
            assert_close(actual, own)
            assert_close(xhat, [x - e for x, e in zip(own, errors)])


@pytest.mark.parametrize("mu", [0.0, 0.9])
def test_with_topk_it_equals_its_reference(mu):
    problem = Quadratic()
    ranks = run_ranks(problem, cser(mu=mu, **TOPK), look=both)
    topk = algorithms.topk
    assert_equals(ranks, run_reference(problem, always(topk(0.1)), always(topk(0.5)), mu))


@pytest.mark.parametrize("mu", [0.0, 0.9])
def test_with_blocks_it_equals_its_reference(mu):
    problem = Quadratic()
    drawn = DrawnBlocks(cser(mu=mu, **BLOCKS), PERIOD)
    ranks = run_ranks(problem, drawn, look=both)
    drawn.assert_all_drew_alike()
    assert 0.15 < np.mean(drawn.shares("gradient")) < 0.35
    history = run_reference(problem, drawn.codec("gradient"), drawn.codec("reset"), mu)
    assert_equals(ranks, history)


@pytest.mark.parametrize("options", [BLOCKS, TOPK], ids=["blocks", "topk"])
def test_the_common_weights_have_the_same_bits_in_all_workers_at_every_step(options):
    ranks = run_ranks(Quadratic(), cser(mu=0.9, **options), steps=23, look=both)
    moved = set()
    for step in zip(*ranks):
        assert_same_bits([xhat for _, xhat in step])
        assert distance(step[0][0], step[1][0]) > 0  # The models themselves differ.
        moved.add(step[0][1][0].tobytes())
    assert len(moved) == 23


def test_the_common_weights_follow_the_mean_model():
    # The residuals move the models by what has mean 0 over all workers, up to errors.
    ranks = run_ranks(Quadratic(), cser(**dict(TOPK, reset="none", period=1)), 20, look=both)
    for step in zip(*ranks):
        assert_close(step[0][0], step[0][1])


@pytest.mark.parametrize(
    "options",
    [
        dict(reset=2, block=8, period=1),
        dict(reset="randomk(ratio=0.3)", period=1),
        dict(reset=2, block=8, period=PERIOD),
    ],
    ids=["blocks", "randomk", "every fifth step"],
)
def test_the_two_implementations_agree_where_only_resets_are(options):
    residual = run_ranks(Quadratic(), cser(mu=0.9, **options), steps=20)
    model = run_ranks(Quadratic(), cser(mu=0.9, **options, implementation="model"), steps=20)
    for a, b in zip(residual, model):
        for ours, theirs in zip(a, b):
            assert_close(ours, theirs)


def test_the_model_implementations_common_weights_are_the_mean():
    ranks = run_ranks(Quadratic(), cser(**BLOCKS, implementation="model"), steps=7, look=both)
    for step in zip(*ranks):
        assert_same_bits([mean for _, mean in step])
        means = [sum(own[b] for own, _ in step) / WORKERS for b in range(len(step[0][0]))]
        assert_close(step[0][1], means)


def test_without_a_gradient_codec_and_period_1_it_is_csea():
    problem = Quadratic()
    ranks = run_ranks(problem, cser(reset="topk(ratio=0.2)", period=1))
    # Error assimilation: x_i = xhat + r_i, xhat moves by the mean of C(e_i), e_i = r_i - lr g_i.
    common_weights = [x.astype(np.float64) for x in problem.start]
    rests = [[np.zeros(x.shape) for x in problem.start] for _ in range(WORKERS)]
    codec = algorithms.topk(0.2)
    for t in range(1, STEPS + 1):
        local = [
            problem.gradient(i, t, [x + r for x, r in zip(common_weights, rests[i])])
            for i in range(WORKERS)
        ]
        for b in range(len(common_weights)):
            errors = [rests[i][b] - LR * local[i][b] for i in range(WORKERS)]
            sent = [codec(e) for e in errors]
            common_weights[b] = common_weights[b] + sum(sent) / WORKERS
            for i in range(WORKERS):
                rests[i][b] = errors[i] - sent[i]
    for i in range(WORKERS):
        assert_close(ranks[i][-1], [x + r for x, r in zip(common_weights, rests[i])])


def test_without_a_gradient_codec_it_is_partial_local_sgd():
    problem = Quadratic()
    drawn = DrawnBlocks(cser(reset=2, block=8), PERIOD)
    ranks = run_ranks(problem, drawn)
    # Local SGD whose workers average only the drawn blocks of their models.
    own = [[x.astype(np.float64) for x in problem.start] for _ in range(WORKERS)]
    for t in range(1, STEPS + 1):
        own = [
            [x - LR * g for x, g in zip(own[i], problem.gradient(i, t, own[i]))]
            for i in range(WORKERS)
        ]
        if t % PERIOD == 0:
            for b in range(len(problem.start)):
                mean = sum(own[i][b] for i in range(WORKERS)) / WORKERS
                mask = drawn.codec("reset")(t, b)(np.ones(mean.shape)) > 0
                for i in range(WORKERS):
                    own[i][b] = np.where(mask, mean, own[i][b])
    for i in range(WORKERS):
        assert_close(ranks[i][-1], own[i])


def test_resetting_uncompressed_without_a_gradient_codec_is_local_sgd():
    problem = Quadratic()
    ranks = run_ranks(problem, cser(reset="none"))
    links = [algorithms.TwoWayErrorFeedback(WORKERS) for _ in problem.start]
    rules = [algorithms.Average() for _ in links]
    expected = algorithms.local_steps(
        problem.start, problem.gradient, STEPS, PERIOD, lambda t: LR, rules, links
    )
    for rank in ranks:
        assert_close(rank[-1], expected)


@pytest.mark.parametrize("options", [dict(period=2), dict(period=2, implementation="model")])
def test_how_parameters_lie_in_memory_changes_no_bit(options):
    def train_in(memory_format):
        def job(worker):
            weights = torch.arange(960.0).view(4, 8, 5, 6) / 960
            param = torch.nn.Parameter(weights.to(memory_format=memory_format))
            optimizer = cser(**BLOCKS, **options)(worker, {"p": param})
            for step in range(4):
                draw = torch.Generator().manual_seed(10 * step + worker.rank)
                grad = torch.randn(param.shape, generator=draw)
                param.grad = grad.to(memory_format=memory_format)
                optimizer.step()
            return [param.detach().numpy()]

        return run_job(job, min_compress_bytes=1)

    rows = train_in(torch.contiguous_format)
    for ours, theirs in zip(train_in(torch.channels_last), rows):
        assert_same_bits([ours, theirs])


@pytest.mark.parametrize(
    "options",
    [
        dict(gradient="blocks(ratio=0.25,size=8) for 2; topk(ratio=0.1)"),
        dict(gradient="blocks(ratio=0.25,size=8) for 2; randomk(ratio=0.1)"),
        dict(gradient="blocks(ratio=0.25,size=8)", overrides={"p": dict(push="topk(ratio=0.1)")}),
        dict(gradient="blocks(ratio=0.25,size=8)", overrides={"p": dict(push="none")}),
    ],
    ids=["a schedule", "a linear schedule", "an override", "an override with all"],
)
def test_replies_lose_nothing_of_what_was_sent(options):
    def job(worker):
        param = torch.nn.Parameter(torch.zeros(300))
        optimizer = cser(lr=1.0, reset="none", period=100, **options)(worker, {"p": param})
        expected = torch.zeros(300)
        for step in range(5):
            draws = [torch.Generator().manual_seed(10 * step + rank) for rank in range(WORKERS)]
            grads = [torch.randn(300, generator=draw) for draw in draws]
            param.grad = grads[worker.rank].clone()
            optimizer.step()
            expected -= sum(grads) / WORKERS
            # What was left out moved the models, and the rest the common weights.
            with optimizer.averaged_weights():
                torch.testing.assert_close(param.detach(), expected)

    run_job(job, workers=WORKERS, min_compress_bytes=1)


def test_uncompressed_gradients_make_it_synchronous_sgd():
    problem = Quadratic()
    ranks = run_ranks(problem, cser(gradient="none", reset="none"))
    links = [algorithms.TwoWayErrorFeedback(WORKERS) for _ in problem.start]
    rules = [algorithms.SGD(LR) for _ in links]
    expected = algorithms.every_step(problem.start, problem.gradient, STEPS, rules, links)
    for rank in ranks:
        assert_close(rank[-1], expected)


def test_gradient_and_reset_are_two_declared_tensors():
    def job(worker):
        param = torch.nn.Parameter(torch.ones(100))
        inner = torch.optim.SGD([param], 0.1)
        optimizer = bdn.algorithms.CSER(
            inner, [("p", param)], gradient=4, reset=2, links=bdn.Links(prefix="mine/"), worker=worker
        )
        assert optimizer.steps == 0
        return {name for name in worker._declared if name.startswith("mine/")}

    assert run_job(job) == [{"mine/gradient/p", "mine/reset/p"}] * 2


@pytest.mark.parametrize(
    "options", [dict(BLOCKS, gradient=2, reset="none"), TOPK], ids=["blocks", "topk"]
)
def test_it_reaches_the_optimum(options):
    problem, steps = Quadratic(), 150
    ranks = run_ranks(
        problem, cser(lr=0.0, **options), steps, lambda t: 0.1 * (1 - (t - 1) / steps), common
    )
    best = problem.optimum()
    assert distance(ranks[0][-1], best) < 0.05 < 3 < distance(problem.start, best)


def test_it_is_stable_at_a_rate_where_error_feedback_diverges():
    problem, topk = Quadratic(noise=0.0), algorithms.topk(0.05)
    lr = 0.25
    diverged = algorithms.ef_sgd(problem.start, problem.gradient, STEPS, lr, 0.9, WORKERS, topk)
    ranks = run_ranks(
        problem,
        cser(lr=lr, mu=0.9, gradient="topk(ratio=0.05)", reset="topk(ratio=0.5)"),
        look=common,
    )
    best = problem.optimum()
    assert distance(ranks[0][-1], best) < 3 < 100 < distance(diverged, best)


def test_a_gradient_that_is_not_finite_in_one_worker_moves_nobody():
    def job(worker):
        params = {name: torch.nn.Parameter(torch.ones(40)) for name in "ab"}
        optimizer = cser(period=2, gradient=2, reset=2, block=8)(worker, params)
        for step in range(5):
            optimizer.zero_grad()
            sum((p * p * (1 + worker.rank)).sum() for p in params.values()).backward()
            before = values(params), common(optimizer, params)
            if step == 2 and worker.rank == 1:
                params["a"].grad[3] = float("nan")
            optimizer.step()
            if step == 2:  # Not a reset.
                assert np.array_equal(before[0][0], values(params)[0])
                assert np.array_equal(before[1][0], common(optimizer, params)[0])
        assert all(p.isfinite().all() for p in params.values())
        return common(optimizer, params)

    assert_same_bits(run_job(job))


def test_a_model_that_is_not_finite_goes_back_to_the_common_weights_at_the_reset():
    def job(worker):
        params = {"p": torch.nn.Parameter(torch.ones(40))}
        optimizer = cser(period=3, reset="none")(worker, params)
        for step in range(6):
            optimizer.zero_grad()
            (params["p"] ** 2).sum().backward()
            if step == 1 and worker.rank == 1:
                params["p"].grad[3] = float("inf")
            optimizer.step()
        assert params["p"].isfinite().all()
        return common(optimizer, params)

    assert_same_bits(run_job(job))


def test_without_common_weights_to_go_back_to_it_is_an_error():
    def job(worker):
        params = {"p": torch.nn.Parameter(torch.ones(40))}
        optimizer = cser(period=1, reset=2, block=8, implementation="model")(worker, params)
        params["p"].grad = torch.full((40,), float("inf") if worker.rank else 1.0)
        with pytest.raises(bandoneon.OutOfRange, match="'p' is not finite.*implementation='model'"):
            optimizer.step()

    run_job(job)


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(reset=0.5), "reset=0.5 is neither a codec spec nor a ratio, which is 1 or more"),
        (dict(reset=2, gradient=0), "gradient=0 is neither"),
        (dict(reset=None), "reset=None is neither"),
        (dict(reset=2, period=0), "period=0"),
        (dict(reset="bloks"), "did you mean blocks"),
        (
            dict(reset="ef(onebit)"),
            r"reset='ef\(onebit\)' keeps what it leaves out, which is CSER's",
        ),
        (dict(reset="delta(int4)"), r"delta\(int4\) is for pulling weights"),
        (dict(reset=2, implementation="third"), "'third' is neither residual nor model"),
        (
            dict(reset="topk(ratio=0.1)", implementation="model"),
            "reset='topk.*does not do with implementation='model'",
        ),
        (dict(reset=2, overrides={"p": dict(warmup=2)}), "warmup=2 is for gradients .* CSER"),
        (
            dict(reset=2, overrides={"p": dict(push="none", momentum=0.9)}),
            "momentum=0.9 is for gradients .* CSER",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_contradicts_itself_is_refused_at_construction(options, message):
    def job(worker):
        param = torch.nn.Parameter(torch.ones(100))
        with pytest.raises(bandoneon.InvalidArgument, match=message):
            bdn.algorithms.CSER(torch.optim.SGD([param], 0.1), [("p", param)], worker=worker, **linked(**options))

    run_job(job)


def test_averaged_weights_are_the_mean_of_the_models():
    def job(worker):
        model = make_model()
        optimizer = bdn.algorithms.CSER(
            torch.optim.SGD(model.parameters(), lr=0.1),
            model.named_parameters(),
            gradient=8,
            reset=4,
            period=4,
            block=4,
            worker=worker,
        )
        train(worker, model, optimizer, steps=6)
        own = [p.detach().clone() for p in model.parameters()]
        with optimizer.averaged_weights():
            mean = [p.detach().clone() for p in model.parameters()]
        assert all(torch.equal(a, b) for a, b in zip(own, model.parameters()))
        return own, mean

    results = run_job(job, workers=2, min_compress_bytes=0)
    (own0, mean0), (own1, mean1) = results
    for a, b, mean, other in zip(own0, own1, mean0, mean1):
        assert torch.equal(mean, other) and not torch.equal(a, b)
        torch.testing.assert_close(mean, (a + b) / 2)
