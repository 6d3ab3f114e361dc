"""LocalSteps(tau=Streaming(...)): the model meets in fragments, which travel while the workers step on."""

import io
import warnings

import numpy as np
import pytest
import torch

import algorithms
import bandoneon
import bandoneon.torch as bdn
from bandoneon.torch import sharded
from bandoneon.torch.algorithms.streaming import fragments_of
from cluster_helpers import fill, linked, loss_of, make_batch, recorded_pushes, run_job
from reference_helpers import (
    SETTINGS,
    SHAPES,
    WORKERS,
    Quadratic,
    assert_close,
    assert_same_bits,
    distance,
    links,
    run_ranks,
    values,
)

Streaming = bdn.algorithms.Streaming
# The problem's parameters have 96, 40 and 25 elements.
THREE, TWO, ONE = [[0], [1], [2]], [[0], [1, 2]], [[0, 1, 2]]
OUTERS = {
    "average": (bdn.algorithms.Average(), algorithms.Average),
    "nesterov": (bdn.algorithms.Nesterov(), algorithms.Nesterov),
    "slowmo": (bdn.algorithms.SlowMo(beta=0.4, alpha=0.9), lambda: algorithms.SlowMo(0.4, 0.9)),
    "sign": (bdn.algorithms.SignMomentum(), algorithms.SignMomentum),
    "prox": (bdn.algorithms.Prox("l1", lam=0.05, rho=0.5), lambda: algorithms.Prox("l1", 0.05, 3.7, 0.5 * WORKERS)),
}
RATE = 0.02


def local(tau, outer=bdn.algorithms.Average(), lr=RATE, **options):
    """For run_ranks."""
    return lambda worker, params: bdn.LocalSteps(
        torch.optim.SGD(params.values(), lr), params.items(), tau=tau, outer=outer, worker=worker, **linked(**options)
    )


def falling(t):
    return 0.03 * (1 - (t - 1) / 50)


def both(optimizer, params):
    """The common weights, and the worker's own."""
    own = values(params)
    with optimizer.common_weights():
        return values(params), own


# ---- What it computes ----


@pytest.mark.parametrize(
    "fragments, streaming",
    [
        (ONE, Streaming(4, 1, 1)),
        (ONE, Streaming(6, 1, 5, merge=0.5)),
        (TWO, Streaming(6, 2, 0)),
        (TWO, Streaming(6, 2, 2)),
        (THREE, Streaming(6, 3, 1)),
        (THREE, Streaming(12, 3, 3, merge=0.25)),
        (THREE, Streaming(9, 3, 2, merge=0)),
    ],
    ids=str,
)
@pytest.mark.parametrize("spec", ["none", "ef(topk(ratio=0.1))"])
@pytest.mark.parametrize("outer", OUTERS)
def test_it_equals_its_reference(outer, spec, fragments, streaming):
    problem, steps = Quadratic(), 30
    ours, reference = OUTERS[outer]
    ranks = run_ranks(problem, local(streaming, ours, push=spec), steps, falling, look=both)
    expected = algorithms.streaming(
        problem.start,
        problem.gradient,
        steps,
        streaming.tau,
        fragments,
        streaming.delay,
        streaming.merge,
        falling,
        [reference() for _ in SHAPES],
        links(algorithms.none if spec == "none" else algorithms.topk(0.1)),
    )
    for t, (common, own) in enumerate(expected):
        assert_same_bits([seen[t][0] for seen in ranks])
        assert_close(ranks[0][t][0], common)
        for seen, right in zip(ranks, own):
            assert_close(seen[t][1], right)


@pytest.mark.parametrize("streaming, fragments", [(Streaming(6, 2, 2), TWO), (Streaming(6, 3, 1, merge=0.5), THREE)])
def test_two_workers_equal_it_too(streaming, fragments):
    problem, steps = Quadratic(), 20
    ranks = run_ranks(problem, local(streaming, bdn.algorithms.Nesterov()), steps, falling, look=both, workers=2)
    ways = [algorithms.TwoWayErrorFeedback(2) for _ in SHAPES]
    rules = [algorithms.Nesterov() for _ in SHAPES]
    how = (streaming.tau, fragments, streaming.delay, streaming.merge, falling, rules, ways)
    expected = algorithms.streaming(problem.start, problem.gradient, steps, *how)
    assert len(ranks) == 2
    for t, (common, own) in enumerate(expected):
        assert_close(ranks[0][t][0], common)
        for seen, right in zip(ranks, own):
            assert_close(seen[t][1], right)


@pytest.mark.parametrize(
    "outer, spec",
    [
        (bdn.algorithms.Nesterov(), dict(push="ef(onebit(block=32))", pull="delta(int4)")),
        (bdn.algorithms.SignMomentum(), dict(push="int8")),
    ],
    ids=["nesterov", "sign"],
)
def test_in_one_fragment_without_a_delay_it_is_what_it_was_bit_for_bit(outer, spec):
    def run(tau):
        def job(worker):
            params = Quadratic().parameters()
            optimizer = local(tau, outer, **spec)(worker, params)
            seen = []
            facts = lambda push: (push.tensor, push.flags, push.priority, push.weight, push.learning_rate)  # noqa: E731
            with recorded_pushes(worker, facts) as pushes:
                for step in range(20):
                    for param in params.values():
                        param.grad = param.detach() - worker.rank + step % 3
                    optimizer.step()
                    seen += values(params)
            links = [member.facts for member in optimizer._links.members]
            return seen, pushes, links, optimizer.comm_state_dict()["settings"]

        return run_job(job, **SETTINGS)

    for (seen, *others), (same, *equal) in zip(run(4), run(Streaming(4))):
        assert others == equal and len(others[0]) == 10  # Five meetings with a vote each.
        assert_same_bits([seen, same])


def test_what_was_computed_meanwhile_is_moved_once():
    """By averaging without a codec the mean over the workers is that of workers that never met."""

    def job(worker):
        param = torch.nn.Parameter(torch.zeros(4))
        tau = Streaming(4, 1, 3)
        make = dict(tau=tau, outer=bdn.algorithms.Average(), worker=worker)
        optimizer = bdn.LocalSteps(torch.optim.SGD([param], 1.0), [("p", param)], **make)
        for step in range(1, 18):
            param.grad = torch.full((4,), float(-step * (worker.rank + 1)))
            optimizer.step()
        optimizer.synchronize()
        return param[0].item()

    assert run_job(job) == [1.5 * sum(range(1, 18))] * 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_what_rounding_takes_away_is_no_movement(dtype):
    def job(worker):
        param = torch.nn.Parameter((torch.arange(320.0) / 320 - 0.3).to(dtype))
        make = dict(tau=Streaming(2, 1, 1), outer=bdn.algorithms.Nesterov(), worker=worker)
        optimizer = bdn.LocalSteps(torch.optim.SGD([param], 1e-3), [("p", param)], **make)
        begin, moved = optimizer._links.begin, []

        def watched(tensors, **how):
            moved.append(tensors[0].abs().max().item())
            return begin(tensors, **how)

        optimizer._links.begin = watched
        for step in range(12):
            param.grad = torch.full_like(param, 0.0 if step else 0.3)
            optimizer.step()
        optimizer.synchronize()
        assert moved[0] > 0 and moved[1:5] == [0.0] * 4
        return [param.detach().float().numpy()]

    assert_same_bits(run_job(job))


# ---- Who travels when ----


def model_of_layers(layers=8, width=16):
    model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(layers)])
    fill(model)
    return model


def test_fragments_are_whole_modules_in_strides():
    named = list(model_of_layers().named_parameters())
    assert fragments_of(named, 4) == [[0, 1, 8, 9], [2, 3, 10, 11], [4, 5, 12, 13], [6, 7, 14, 15]]
    assert fragments_of(named, 1) == [list(range(16))]


def test_fragments_are_balanced_and_a_tied_weight_is_in_one():
    class Text(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.words = torch.nn.Embedding(100, 16)
            self.places = torch.nn.Parameter(torch.zeros(12, 16))
            self.blocks = torch.nn.ModuleList(
                torch.nn.Sequential(torch.nn.LayerNorm(16), torch.nn.Linear(16, 64), torch.nn.Linear(64, 16))
                for _ in range(6)
            )
            self.head = torch.nn.Linear(16, 100, bias=False)
            self.head.weight = self.words.weight

    named = list(Text().named_parameters())
    for count in (2, 3, 4):
        fragments = fragments_of(named, count)
        assert sorted(sum(fragments, [])) == list(range(len(named)))
        loads = [sum(named[index][1].numel() for index in part) for part in fragments]
        assert max(loads) - min(loads) <= 16 * 100 and max(loads) < 1.16 * sum(loads) / count
        for part in fragments:
            names = [named[index][0] for index in part]
            modules = {name.rpartition(".")[0] for name in names if "." in name}
            assert {n for n, _ in named if n.rpartition(".")[0] in modules and "." in n} <= set(names)
    assert [name for name, _ in named if name.startswith(("words", "head"))] == ["words.weight"]


def test_parameters_without_a_module_or_names_are_dealt_out_one_by_one():
    named = [(f"group0.param{i}", torch.zeros(n)) for i, n in enumerate((5, 4, 3, 3))]
    assert fragments_of(named, 2, are_named=False) == [[0, 3], [1, 2]]
    assert fragments_of([("a", torch.zeros(2)), ("b", torch.zeros(2))], 2) == [[0], [1]]
    assert fragments_of([], 1) == [[]]
    with pytest.raises(bandoneon.InvalidArgument, match="fragments=2, and the model has 1 modules.*fragments=1 or f"):
        fragments_of(named, 2)


def test_one_fragment_travels_at_a_time_and_a_step_has_a_quarter_of_the_bytes():
    steps = 24

    def job(worker, tau):
        model = model_of_layers(width=64)
        make = dict(tau=tau, outer=bdn.algorithms.Average(), worker=worker, links=bdn.Links(prefix=f"{tau}/"))
        optimizer = bdn.LocalSteps(torch.optim.SGD(model.parameters(), 1e-9), model, **make)
        pushed, travels, before = [], [], worker.stats()["bytes_pushed"]
        for _ in range(steps):
            model(torch.ones(2, 64)).sum().backward()
            optimizer.step()
            travel = optimizer._travel
            if travel is not None:
                optimizer._await(travel)  # So that its bytes are of this step.
            travels.append(None if travel is None else (travel.part[0] // 2, travel.ends_at))
            now = worker.stats()["bytes_pushed"]
            pushed.append(now - before)
            before = now
        optimizer.close() if tau == 8 else optimizer.synchronize()
        return pushed, travels

    def both_of(worker):
        return job(worker, 8), job(worker, Streaming(8, 4, 1))

    for (plain, _), (parts, travels) in run_job(both_of):
        assert max(parts) <= 0.26 * max(plain)
        # What met before tau steps were over is the difference.
        assert sum(parts) == pytest.approx(sum(plain), rel=0.02)
        # Fragment 1 meets first, after tau / 4 steps, and fragment 0 after tau.
        order = [1, 2, 3, 0] * 3
        assert travels == [entry for k, part in enumerate(order) for entry in (None, (part, 2 * k + 3))]


def test_fragments_share_no_frame():
    """Each has small tensors, which would be fused, and travels by itself."""

    def job(worker):
        model = model_of_layers(width=4)
        make = dict(tau=Streaming(8, 4, 1), outer=bdn.algorithms.Average(), worker=worker)
        optimizer = bdn.LocalSteps(torch.optim.SGD(model.parameters(), 1e-9), model, **make)
        groups = [member.terms.group for member in optimizer._links.members]
        for step in range(9):
            optimizer.zero_grad()
            loss_of(model, make_batch(worker.rank, step, width=4)).backward()
            optimizer.step()
        optimizer.synchronize()
        assert optimizer.skipped_rounds == 0
        return groups

    assert run_job(job) == [[0, 0, 1, 1, 2, 2, 3, 3] * 2] * 2


# ---- Equal weights ----


@pytest.mark.parametrize("streaming", [Streaming(6, 3, 1), Streaming(6, 1, 5), Streaming(6, 2)], ids=str)
def test_models_are_equal_after_synchronize(streaming):
    def look(optimizer, params):
        if optimizer.local_steps == 16:
            optimizer.synchronize()
            assert optimizer._travel is None and optimizer.is_together
        return both(optimizer, params)

    make = local(streaming, bdn.algorithms.Nesterov(), push="ef(onebit(block=32))")
    ranks = run_ranks(Quadratic(), make, 24, look=look)
    for t, seen in enumerate(zip(*ranks), 1):
        common, own = zip(*seen)
        assert_same_bits(common)
        if t == 16:
            assert_same_bits([*own, common[0]])
        else:
            assert not all(np.array_equal(a, b) for a, b in zip(own[0], own[1]))


def test_it_is_together_where_nothing_travels_and_all_have_merged_the_last():
    def look(optimizer, params):
        return optimizer.is_together

    delayed = run_ranks(Quadratic(), local(Streaming(9, 3, 2)), 9, look=look)[0]
    assert delayed == [False] * 4 + [True, False, False, True, False]
    assert run_ranks(Quadratic(), local(Streaming(9, 3)), 6, look=look)[0] == [False, False, True] * 2


@pytest.mark.parametrize("ends", ["close", "leave"])
def test_what_travels_at_the_end_is_merged_and_said(ends):
    def job(worker):
        params = Quadratic().parameters()
        optimizer = local(Streaming(4, 1, 2))(worker, params)
        for step in range(4):
            for param in params.values():
                param.grad = torch.full_like(param, float(worker.rank + 1))
            optimizer.step()
        own = values(params)
        with pytest.warns(RuntimeWarning, match="ended while a fragment.*call the optimizer's synchronize"):
            optimizer.close() if ends == "close" else worker.leave()
        start, merged = Quadratic().start, values(params)
        for x, mine, now in zip(start, own, merged):
            np.testing.assert_allclose(now, x - RATE * 4 * 2, rtol=1e-5, atol=1e-6)  # The mean of 1, 2 and 3.
            assert np.array_equal(now, mine) == (worker.rank == 1) or np.allclose(now, mine) == (worker.rank == 1)
        return merged

    assert_same_bits(run_job(job, **SETTINGS))


def test_after_close_another_optimizer_begins_anew():
    def job(worker):
        params = Quadratic().parameters()
        for _ in range(2):
            optimizer = local(Streaming(6, 3, 1), bdn.algorithms.Nesterov())(worker, params)
            for step in range(9):
                for param in params.values():
                    param.grad = torch.ones_like(param)
                optimizer.step()
            optimizer.synchronize()
            optimizer.close()
        return values(params)

    assert_same_bits(run_job(job, **SETTINGS))


# ---- What is not finite ----


class Breaks(Quadratic):
    """The gradient of worker 1 is not finite in some steps."""

    steps = (5,)
    value = np.nan

    def gradient(self, rank, t, model):
        gradients = super().gradient(rank, t, model)
        if rank == 1 and t in self.steps:
            gradients[1] = gradients[1].copy()
            gradients[1][35] = self.value
        return gradients


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e38])
@pytest.mark.parametrize("merge", ["shift", 0.5])
@pytest.mark.parametrize("spec", ["none", "ef(topk(ratio=0.1))"])
def test_weights_that_are_not_finite_send_all_back_to_the_common_ones(spec, merge, value):
    problem, steps, streaming = Breaks(), 24, Streaming(9, 3, 2, merge)
    problem.value = value

    def look(optimizer, params):
        return (*both(optimizer, params), optimizer.skipped_rounds)

    make = local(streaming, bdn.algorithms.Nesterov(), lr=10.0 if value == 1e38 else RATE, push=spec)
    rate = 10.0 if value == 1e38 else RATE
    calm = (lambda t: rate if t == 5 else RATE)
    ranks = run_ranks(problem, make, steps, calm, look=look)
    ways = links(algorithms.none if spec == "none" else algorithms.topk(0.1))
    rules = [algorithms.Nesterov() for _ in SHAPES]
    with np.errstate(all="ignore"):
        # Fragment 2, of the third parameter, meets after step 6, when weights of the second are not finite in worker 1
        # and all of the others are: its gradients are its own. Then fragment 0, the first, and then the second.
        how = (9, THREE, 2, merge, calm, rules, ways)
        expected = algorithms.streaming(problem.start, problem.gradient, steps, *how, skipped=(12,))
    for t, (common, own) in enumerate(expected):
        assert_same_bits([seen[t][0] for seen in ranks])
        assert_close(ranks[0][t][0], common)
        for rank, (seen, right) in enumerate(zip(ranks, own)):
            if rank != 1 or t + 1 < 5 or t + 1 >= 14:
                assert_close(seen[t][1], right)
    assert [seen[-1][2] for seen in ranks] == [1] * WORKERS
    assert [seen[12][2] for seen in ranks] == [0] * WORKERS


@pytest.mark.parametrize("pull", ["none", "delta(int4)"])
def test_one_value_that_is_not_finite_leaves_out_all_partitions_of_its_fragment(pull):
    def job(worker):
        first, second = (torch.nn.Parameter(torch.zeros(5000)) for _ in range(2))
        params = {"layer.weight": first, "layer.bias": second, "other.weight": torch.nn.Parameter(torch.zeros(100))}
        options = dict(push="ef(onebit)", pull=pull)
        optimizer = local(Streaming(4, 2, 1), bdn.algorithms.Nesterov(), **options)(worker, params)
        seen = []
        for step in range(1, 14):
            for param in params.values():
                param.grad = torch.full_like(param, float(worker.rank + 1))
            if step == 7 and worker.rank == 1:
                first.grad[4321] = float("nan")
            optimizer.step()
            seen.append(both(optimizer, params))
        # What met after step 8 came after step 9, and the one before after step 7.
        assert optimizer.skipped_rounds == 1
        (_, before), (common, own) = seen[7], seen[8]
        assert_same_bits([common, seen[6][0], own])
        assert not np.array_equal(before[0], own[0])
        optimizer.synchronize()
        return [values(params), common]

    for whole in zip(*run_job(job, servers=2, partition_bytes=4096, min_compress_bytes=1)):
        assert_same_bits(whole)
        assert np.isfinite(whole[0][0]).all()


def test_who_counts_for_nothing_takes_up_what_the_others_moved_whatever_it_has():
    def job(worker):
        params = Quadratic().parameters()
        optimizer = local(Streaming(4, 1, 2), weight=float(worker.rank != 0))(worker, params)
        for step in range(6):
            for param in params.values():
                gradient = float("nan") if worker.rank == 0 and step == 3 else float(worker.rank)
                param.grad = torch.full_like(param, gradient)
            optimizer.step()
        assert optimizer.skipped_rounds == 0
        return values(params)

    first, second, third = run_job(job, **SETTINGS)
    for start, zero, one, two in zip(Quadratic().start, first, second, third):
        np.testing.assert_allclose(zero, start - RATE * 4 * 1.5, rtol=1e-5, atol=1e-6)  # It has NaN until the merge.
        np.testing.assert_allclose(one, start - RATE * (4 * 1.5 + 2), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(two, start - RATE * (4 * 1.5 + 4), rtol=1e-5, atol=1e-6)


def test_a_fragment_that_nobody_has_moved_stays():
    def job(worker):
        params = Quadratic().parameters()
        optimizer = local(Streaming(4, 1, 2), weight=0.0)(worker, params)
        for step in range(6):
            for param in params.values():
                param.grad = torch.ones_like(param)
            optimizer.step()
        own = values(params)
        with optimizer.common_weights():
            return values(params), own

    for common, own in run_job(job, **SETTINGS):
        assert_same_bits([common, Quadratic().start])
        for start, mine in zip(Quadratic().start, own):
            np.testing.assert_allclose(mine, start - RATE * 2, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("streaming", [Streaming(6, 3, 1), Streaming(6, 1, 3), Streaming(6, 3)], ids=str)
def test_what_a_push_leaves_out_may_stay_in_the_model(streaming):
    """As with ef(...), of which it is another place, where nothing is computed by the weights."""

    def job(worker, push, keeps):
        params = Quadratic().parameters()
        options = dict(push=push, local_residual=keeps, prefix=f"{keeps}/")
        optimizer = local(streaming, bdn.algorithms.Average(), **options)(worker, params)
        draw = np.random.default_rng(worker.rank)
        seen = []
        for step in range(20):
            for param in params.values():
                param.grad = torch.from_numpy(draw.standard_normal(tuple(param.shape)).astype(np.float32))
            optimizer.step()
            seen.append(both(optimizer, params))
        return seen

    def two(worker):
        return job(worker, "topk(ratio=0.1)", True), job(worker, "ef(topk(ratio=0.1))", False)

    differs = False
    for kept, fed_back in run_job(two, **SETTINGS):
        for (common, own), (same, without) in zip(kept, fed_back):
            assert_close(common, same, rtol=1e-4, atol=1e-5)
            differs |= not np.allclose(own[0], without[0])
    assert differs


def test_steps_as_weights_are_those_since_the_last_meeting_of_all():
    def run(**options):
        return run_ranks(Quadratic(), local(Streaming(6, 3, 1), bdn.algorithms.Nesterov(), **options), 11, look=both)

    for seen, others in zip(run(), run(weight="steps")):
        for (common, own), (same, again) in zip(seen, others):
            assert_close(common, same)
            assert_close(own, again)


# ---- Others ----


def step_with(optimizer, params, gradient=1.0):
    for param in params.values():
        param.grad = torch.full_like(param, gradient)
    optimizer.step()


def test_a_worker_that_fails_while_a_fragment_travels_is_named():
    def job(worker):
        params = Quadratic().parameters()
        optimizer = local(Streaming(6, 3, 1))(worker, params)
        for _ in range(3 if worker.rank == 1 else 4):
            step_with(optimizer, params)
        if worker.rank == 1:
            raise ValueError("out of data")
        for _ in range(6):
            step_with(optimizer, params)

    with pytest.raises((ValueError, bandoneon.BandoneonError), match="out of data|worker 1"):
        run_job(job, **SETTINGS)


def test_a_worker_that_steps_more_often_hears_who_has_ended():
    def job(worker):
        params = Quadratic().parameters()
        optimizer = local(Streaming(6, 3, 1))(worker, params)
        for _ in range(9):
            step_with(optimizer, params)
        if worker.rank != 1:
            return "has ended"
        step_with(optimizer, params)
        with pytest.raises(bandoneon.BandoneonError, match="worker [02] is leaving the job and pushes no more") as end:
            step_with(optimizer, params)
        raise end.value

    with pytest.raises(bandoneon.BandoneonError, match="all workers must push it equally often"):
        run_job(job, **SETTINGS)


def test_who_merges_in_another_way_is_refused():
    def job(worker):
        local(Streaming(6, 3, 1 if worker.rank == 0 else 0))(worker, Quadratic().parameters())

    message = r"worker [12] has tau=Streaming\(.*, delay=0.*and worker 0 has Streaming\(tau=6, fragments=3, delay=1"
    with pytest.raises(bandoneon.InvalidArgument, match=message):
        run_job(job, **SETTINGS)


def test_groups_meet_for_themselves():
    def job(worker):
        group = sharded.new_group([worker.rank % 2, worker.rank % 2 + 2], worker=worker)
        params = Quadratic().parameters()
        optimizer = local(Streaming(6, 3, 1), bdn.algorithms.Nesterov())(group, params)
        for step in range(9):
            step_with(optimizer, params, float(worker.rank))
        optimizer.synchronize()
        return values(params)

    ranks = run_job(job, **{**SETTINGS, "workers": 4})
    assert_same_bits([ranks[0], ranks[2]])
    assert_same_bits([ranks[1], ranks[3]])
    assert not np.allclose(ranks[0][0], ranks[1][0])


def test_who_waits_in_vain_takes_no_further_step():
    def job(worker):
        params = Quadratic().parameters()
        optimizer = local(Streaming(4, 1, 2), timeout=1.0)(worker, params)
        for _ in range(3 if worker.rank == 1 else 5):
            step_with(optimizer, params)
        if worker.rank == 1:
            worker.barrier("the others have given up")
            return None
        with pytest.raises(bandoneon.DeadlineExceeded, match="tensor .first. step 1 .exchange."):
            step_with(optimizer, params)
        before = values(params)
        worker.barrier("the others have given up")
        for call in (optimizer.comm_state_dict, optimizer.synchronize):
            with pytest.raises(bandoneon.FailedPrecondition, match="left before its end"):
                call()
        optimizer.settle()
        optimizer.close()
        assert_same_bits([values(params), before])
        return "refused"

    assert run_job(job, **SETTINGS) == ["refused", None, "refused"]


def test_rates_that_differ_are_named_when_the_fragment_comes():
    messages = []

    def job(worker):
        params = Quadratic().parameters()
        optimizer = local(Streaming(4, 1, 2), bdn.algorithms.SlowMo(), lr=0.1 * (1 + worker.rank))(worker, params)
        for _ in range(5):
            step_with(optimizer, params)
        try:
            step_with(optimizer, params)
        except bandoneon.BandoneonError as error:
            messages.append(str(error))
            raise

    with pytest.raises(bandoneon.BandoneonError):
        run_job(job, **SETTINGS)
    assert any("has learning rate" in message for message in messages), messages


@pytest.mark.parametrize("outer", [bdn.algorithms.Nesterov(), bdn.algorithms.Average()])
def test_what_the_program_writes_after_a_fragment_has_met_is_said(outer):
    def job(worker):
        params = Quadratic().parameters()
        optimizer = local(Streaming(6, 3, 1), outer)(worker, params)
        told = []
        for step in range(1, 13):
            if step in (3, 5):  # After step 2 the second parameter has met, and after step 4 the third.
                params["second"].data.add_(1.0)
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                step_with(optimizer, params)
            told += [step for one in seen if "written to 'second' since the last meeting" in str(one.message)]
        optimizer.synchronize()
        return told

    def look(optimizer, params):
        return optimizer._travel and optimizer._travel.part

    assert run_ranks(Quadratic(), local(Streaming(6, 3, 1)), 4, look=look)[0][1:] == [[1], None, [2]]
    assert run_job(job, workers=1) == [[] if isinstance(outer, bdn.algorithms.Average) else [3]]


# ---- Checkpoints ----


def test_saving_while_a_fragment_travels_changes_nothing():
    def run(saves):
        def look(optimizer, params):
            if saves:
                optimizer.comm_state_dict()
            return both(optimizer, params)

        make = local(Streaming(9, 3, 2), bdn.algorithms.Nesterov(), push="ef(onebit(block=32))", pull="delta(int4)")
        return run_ranks(Quadratic(), make, 20, falling, look=look)

    for seen, others in zip(run(False), run(True)):
        for (common, own), (same, again) in zip(seen, others):
            assert_same_bits([common, same])
            assert_same_bits([own, again])


def saved_states(steps, streaming=Streaming(9, 3, 2), synchronizes=False, **settings):
    def job(worker):
        params = Quadratic().parameters()
        optimizer = local(streaming, push="ef(onebit(block=32))")(worker, params)
        for step in range(steps):
            step_with(optimizer, params, float(worker.rank + step))
        if synchronizes:
            optimizer.synchronize()
        with optimizer.common_weights():
            common = values(params)
        state = optimizer.comm_state_dict()
        worker.barrier("saved")
        if optimizer._travel is not None:
            optimizer._land()
        with optimizer.common_weights():
            return state, common, values(params)

    return run_job(job, **{**SETTINGS, **settings})


@pytest.mark.parametrize("steps", [7, 8, 9])
def test_another_number_of_workers_goes_on_from_the_common_weights_of_what_has_come(steps):
    saved = saved_states(steps)
    states = [state for state, _, _ in saved]
    assert (states[0]["travel"] is None) == (steps == 8)

    def job(worker):
        params = Quadratic().parameters()
        optimizer = local(Streaming(9, 3, 2), push="ef(onebit(block=32))")(worker, params)
        optimizer.load_comm_state_dict(states)
        taken = values(params)
        assert (optimizer.local_steps, optimizer._travel) == (steps // 3 * 3, None)
        for step in range(9):
            step_with(optimizer, params, float(worker.rank))
        optimizer.synchronize()
        return taken, values(params)

    with pytest.warns(RuntimeWarning, match="3 workers saved, and there are 2 now: .*synchronize.. before such a save"):
        ranks = run_job(job, **{**SETTINGS, "workers": 2})
    assert_same_bits([taken for taken, _ in ranks] + [saved[0][2]])
    assert_same_bits([end for _, end in ranks])


def test_a_travel_that_does_not_fit_is_refused():
    states = [state for state, _, _ in saved_states(7)]

    def job(worker, change, message):
        params = Quadratic().parameters()
        optimizer = local(Streaming(9, 3, 2), push="ef(onebit(block=32))", prefix=message)(worker, params)
        with pytest.raises(bandoneon.InvalidArgument, match=message):
            optimizer.load_comm_state_dict(change(states[worker.rank]))

    def other(**facts):
        def change(state):
            buffer = io.BytesIO()
            torch.save({**torch.load(io.BytesIO(state["travel"])), **facts}, buffer)
            return {**state, "travel": buffer.getvalue()}

        return change

    def all_of(worker):
        job(worker, lambda state: {**state, "travel": b"no state"}, "that travels cannot be read")
        job(worker, lambda state: {**state, "travel": 7}, "that travels cannot be read")
        job(worker, other(part=[7]), "that travels cannot be read")
        job(worker, other(part=[0]), r"of parameters \[0\] and to be merged after step 8")
        job(worker, other(ends_at=9), r"of parameters \[2\] and to be merged after step 9, .* at step 7")
        job(worker, other(ends_at="soon"), "that travels cannot be read")
        job(worker, other(new=None, met=[torch.zeros(3)]), r"of parameters \[2\]")

    run_job(all_of, **SETTINGS)


def test_a_state_takes_the_place_of_what_travels():
    states = [state for state, _, _ in saved_states(8)]

    def job(worker):
        params = Quadratic().parameters()
        optimizer = local(Streaming(9, 3, 2), push="ef(onebit(block=32))")(worker, params)
        for _ in range(7):
            step_with(optimizer, params, 5.0)
        worker.barrier("all have pushed")
        optimizer.load_comm_state_dict(states[worker.rank])
        assert optimizer._travel is None and optimizer.local_steps == 8
        optimizer.synchronize()
        return values(params)

    assert_same_bits(run_job(job, **SETTINGS))


def test_it_goes_on_from_a_model_alone():
    """Of a job that has called synchronize(); the outer step's moments begin at 0."""
    _, common, _ = saved_states(13, synchronizes=True)[0]

    def job(worker):
        params = Quadratic().parameters()
        with torch.no_grad():
            for param, x in zip(params.values(), common):
                param.copy_(torch.from_numpy(x))
        optimizer = local(Streaming(9, 3, 2))(worker, params)
        optimizer.resume_at(13)
        assert (optimizer.meetings, optimizer._links.steps) == (4, 1)
        for step in range(2):
            step_with(optimizer, params, float(worker.rank))
        assert optimizer._travel.part == [2]  # After step 15.
        optimizer.synchronize()
        return values(params)

    ranks = run_job(job, **SETTINGS)
    assert_same_bits(ranks)
    for x, now in zip(common, ranks[0]):
        np.testing.assert_allclose(now, x - RATE * 2, rtol=1e-5, atol=1e-6)


# ---- What is refused ----


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((0,), "tau=0 of Streaming is not a whole number, 1 or more"),
        ((8.0,), "tau=8.0 of Streaming is not"),
        ((8, 0), "fragments=0 of Streaming is not"),
        ((8, True), "fragments=True of Streaming is not"),
        ((8, 2, -1), "delay=-1 of Streaming is not a whole number, 0 or more"),
        ((8, 3), "fragments=3 do not divide tau=8.*take tau=6"),
        ((2, 3), "fragments=3 do not divide tau=2.*take tau=3"),
        ((8, 4, 2), "delay=2: a meeting comes every tau / fragments = 2 steps.*a delay of at most 1"),
        ((8, 8, 1), "at most 0"),
        ((8, 2, 1, "lerp"), "merge='lerp' is neither 'shift' nor a number"),
        ((8, 2, 1, 1.0), "merge=1.0 is neither"),
        ((8, 2, 1, -0.5), "merge=-0.5 is neither"),
        ((8, 2, 1, float("nan")), "merge=nan is neither"),
        ((8, 2, 1, True), "merge=True is neither"),
        ((8, 2, 0, 0.5), "merge=0.5 says what becomes.*leave it out, or give a delay"),
        ((bdn.algorithms.Pace(1), 2), r"a tau that stays the same.*LocalSteps the Pace without Streaming"),
        ((bdn.algorithms.QSR(0.1, 2, 8), 2), r"a tau that stays the same.*LocalSteps the QSR without Streaming"),
    ],
    ids=str,
)
def test_what_contradicts_itself_is_refused(arguments, message):
    with pytest.raises(bandoneon.InvalidArgument, match=message):
        Streaming(*arguments)


@pytest.mark.parametrize(
    "streaming, options, message",
    [
        (Streaming(8, 4), {}, "fragments=4, and the model has 3 modules with parameters"),
        (Streaming(6, 3, 1, 0.5), dict(local_residual=True), "merge=0.5 would mix what local_residual=True keeps"),
    ],
    ids=["modules", "residuals"],
)
def test_what_the_model_or_another_option_forbids_is_refused(streaming, options, message):
    def job(worker):
        with pytest.raises(bandoneon.InvalidArgument, match=message):
            local(streaming, **options)(worker, Quadratic().parameters())

    run_job(job, **SETTINGS)


def test_words_of_torchft_are_answered():
    model = torch.nn.Linear(2, 2)
    inner = torch.optim.SGD(model.parameters(), 0.1)
    for word in ("fragment_sync_delay", "fragment_update_alpha", "model_fragments"):
        with pytest.raises(TypeError, match=rf"LocalSteps\(\) has no argument '{word}': .*Streaming\("):
            bdn.LocalSteps(inner, model, tau=4, outer=bdn.algorithms.Nesterov(), **{word: 1})


# ---- What users of other libraries have met ----


@pytest.mark.parametrize(
    "streaming, outer, options, lr, steps",
    [
        (Streaming(6, 3, 1), bdn.algorithms.Average(), dict(push="int8"), 0.05, 400),
        (Streaming(4, 2, 1), bdn.algorithms.Average(), dict(push="ef(topk(ratio=0.25))"), 0.05, 800),
        (Streaming(4, 1, 3), bdn.algorithms.Average(), dict(pull="delta(int4(group=32))"), 0.05, 400),
        (Streaming(6, 2, 2), bdn.algorithms.Nesterov(momentum=0.7), dict(push="int8"), 0.03, 400),
        (Streaming(6, 3, 1), bdn.algorithms.SignMomentum(beta1=0.6, beta2=0.8, decay=0), {}, 0.08, 800),
    ],
    ids=["average", "topk", "delayed", "nesterov", "sign"],
)
def test_it_reaches_the_optimum(streaming, outer, options, lr, steps):
    """An outer step in the direction of what was moved would go away from it."""

    def look(optimizer, params):
        if optimizer.local_steps == steps:
            optimizer.synchronize()
        return values(params) if optimizer.local_steps == steps else None

    problem = Quadratic()
    make = local(streaming, outer, **options)
    ends = [seen[-1] for seen in run_ranks(problem, make, steps, lambda t: lr * (1 - (t - 1) / steps), look=look)]
    assert_same_bits(ends)
    assert distance(ends[0], problem.optimum()) < 0.05 < 3 < distance(problem.start, problem.optimum())


@pytest.mark.parametrize("merge", ["shift", 0.5])
def test_one_worker_alone_averages_with_nobody(merge):
    problem = Quadratic()
    ranks = run_ranks(problem, local(Streaming(6, 3, 1, merge)), 20, falling, workers=1)
    params = problem.parameters()
    plain = torch.optim.SGD(params.values(), RATE)
    for t in range(1, 21):
        plain.param_groups[0]["lr"] = falling(t)
        model = [p.detach().numpy() for p in params.values()]
        for param, grad in zip(params.values(), problem.gradient(0, t, model)):
            param.grad = torch.from_numpy(grad)
        plain.step()
        if merge == "shift":
            assert_close(ranks[0][t - 1], values(params))
    assert merge == "shift" or not np.allclose(ranks[0][-1][0], values(params)[0])


class Odd(torch.nn.Module):
    """Tensors of 0 to 4 dimensions, a tied weight, and one that is frozen."""

    def __init__(self, seed):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.empty(()))
        self.filter = torch.nn.Conv2d(2, 3, 3, padding=1)
        self.first = torch.nn.Linear(12, 12, bias=False)
        self.second = torch.nn.Linear(12, 12, bias=False)
        self.second.weight = self.first.weight
        self.frozen = torch.nn.Linear(12, 12)
        fill(self, seed)
        self.frozen.requires_grad_(False)

    def forward(self, x):
        x = self.filter(x).flatten(1)[:, :12]
        return self.scale * self.frozen(self.second(torch.tanh(self.first(x))))


def odd_training(worker, steps, **options):
    """Models that begin differently; two groups, of which one has another rate."""
    model = Odd(worker.rank)
    groups = [
        {"params": [model.scale, *model.filter.parameters()]},
        {"params": [model.first.weight, *model.frozen.parameters()], "lr": 0.01},
    ]
    inner = torch.optim.AdamW(groups, 0.02)
    make = dict(tau=Streaming(8, 4, 1), outer=bdn.algorithms.SignMomentum(), worker=worker, **linked(**options))
    optimizer = bdn.LocalSteps(inner, model, **make)
    step_odd(worker, model, optimizer, range(steps))
    return model, optimizer


def step_odd(worker, model, optimizer, steps):
    for step in steps:
        optimizer.zero_grad()
        x = torch.randn(3, 2, 4, 4, generator=torch.Generator().manual_seed(10 * step + worker.rank))
        model(x).square().sum().backward()
        optimizer.step()


@pytest.mark.parametrize("push", ["none", "int4", "ef(onebit(block=32))", "ef(topk(ratio=0.1))"])
def test_tensors_of_any_shape_tied_and_frozen_ones_and_several_groups(push):
    def job(worker):
        model, optimizer = odd_training(worker, 17, push=push)
        assert (optimizer.meetings, optimizer.local_steps) == (8, 17)
        assert model.first.weight is model.second.weight
        optimizer.synchronize()
        return [p.detach().numpy().copy() for p in model.parameters()]

    ranks = run_job(job, **SETTINGS)
    assert_same_bits(ranks)
    frozen = [p.detach().numpy() for p in Odd(0).frozen.parameters()]
    for mine, first in zip(ranks[0][-2:], frozen):
        np.testing.assert_allclose(mine, first * np.ones_like(first), rtol=0.05, atol=0.05)  # Only decay moves it.


@pytest.mark.parametrize("steps", [3, 5, 6])
def test_files_saved_while_a_fragment_travels_go_on_with_the_same_bits(tmp_path, steps):
    """Of a model with a tied weight."""
    path = tmp_path / "checkpoint"

    def whole(worker):
        model, optimizer = odd_training(worker, steps, push="ef(onebit(block=32))")
        bdn.save(path, {"model": model, "optimizer": optimizer}, worker=worker)
        step_odd(worker, model, optimizer, range(steps, 14))
        optimizer.synchronize()
        return [p.detach().numpy().copy() for p in model.parameters()]

    def resumed(worker):
        model, optimizer = odd_training(worker, 0, push="ef(onebit(block=32))")
        bdn.load(path, {"model": model, "optimizer": optimizer}, worker=worker)
        assert (optimizer._travel is None) == (steps % 2 == 1)
        step_odd(worker, model, optimizer, range(steps, 14))
        optimizer.synchronize()
        return [p.detach().numpy().copy() for p in model.parameters()]

    assert_same_bits(run_job(whole, **SETTINGS) + run_job(resumed, **SETTINGS))
