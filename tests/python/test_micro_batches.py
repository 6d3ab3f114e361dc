"""micro_batches(): against brute force, and what it refuses; TimeModel; and gradients weighted by tokens."""

import itertools
import math
import random
import statistics
import time

import pytest
import torch

import bandoneon
import bandoneon.torch as bdn
from bandoneon.micro_batches import karmarkar_karp
from cluster_helpers import run_job

# Of a decoder: a base, and attention's share, which is half at a length of 500.
COST = bandoneon.TimeModel(1.0, 1e-3, 2e-6)


def stepped(count, longest):
    """No polynomial: kernels that take tiles of 4 sequences and 64 places."""
    return 0.3 + math.ceil(count / 4) * math.ceil(longest / 64) ** 1.5


def concave(count, longest):
    return 0.1 + math.sqrt(count) * longest


def log_normal(count, seed=1, longest=2048):
    draw = random.Random(seed)
    return [max(1, min(longest, round(draw.lognormvariate(5.5, 0.8)))) for _ in range(count)]


def step_seconds(times, stages):
    return (stages - 1) * max(times) + sum(times)


def partitions(items):
    """All partitions of a set."""
    if not items:
        yield []
        return
    first, *rest = items
    for others in partitions(rest):
        yield [[first], *others]
        for i, part in enumerate(others):
            yield [*others[:i], [first, *part], *others[i + 1 :]]


def least_of_all(lengths, cost, stages, fits=lambda count, longest: True):
    """Of whatever sets, sorted or not."""
    best = math.inf
    for parts in partitions(lengths):
        sizes = [(len(part), max(part)) for part in parts]
        if all(fits(*size) for size in sizes):
            best = min(best, step_seconds([cost(*size) for size in sizes], stages))
    return best


def least_of_sorted(lengths, cost, stages):
    lengths = sorted(lengths)
    best = math.inf
    for cuts in itertools.product([False, True], repeat=len(lengths) - 1):
        ends = [i for i, cut in enumerate(cuts, 1) if cut] + [len(lengths)]
        times = [cost(end - begin, lengths[end - 1]) for begin, end in zip([0, *ends], ends)]
        best = min(best, step_seconds(times, stages))
    return best


@pytest.mark.parametrize("cost", [COST, stepped, concave], ids=["model", "stepped", "concave"])
@pytest.mark.parametrize("stages", [1, 4])
def test_no_other_sets_take_less(cost, stages):
    for seed in range(8):
        lengths = log_normal(1 + seed, seed)
        plan = bandoneon.micro_batches(lengths, seconds=cost, stages=stages)
        assert plan.step_seconds == pytest.approx(least_of_all(lengths, cost, stages), rel=1e-12), lengths


@pytest.mark.parametrize("cost", [COST, stepped], ids=["model", "stepped"])
def test_no_other_cuts_of_twelve_take_less(cost):
    for seed in range(4):
        for stages in (1, 3, 8):
            lengths = log_normal(12, seed)
            plan = bandoneon.micro_batches(lengths, seconds=cost, stages=stages)
            assert plan.step_seconds == pytest.approx(least_of_sorted(lengths, cost, stages), rel=1e-12)


@pytest.mark.parametrize("memory, fits", [
    (1500, lambda count, longest: count * longest <= 1500),
    (lambda count, longest: count <= 2, lambda count, longest: count <= 2),
], ids=["places", "function"])
def test_only_what_fits_is_made(memory, fits):
    for seed in range(6):
        lengths = log_normal(7, seed, longest=1500)
        plan = bandoneon.micro_batches(lengths, seconds=COST, memory=memory, stages=2)
        assert plan.step_seconds == pytest.approx(least_of_all(lengths, COST, 2, fits), rel=1e-12)
        assert all(fits(len(batch), max(lengths[i] for i in batch)) for batch in plan.batches[0])


def plain_cut(lengths, cost):
    """The least sum of times, by the program as it stands in books."""
    lengths = sorted(lengths)
    best = [0.0]
    for j in range(1, len(lengths) + 1):
        best.append(min(best[i] + cost(j - i, lengths[j - 1]) for i in range(j)))
    return best[-1]


@pytest.mark.parametrize("cost", [COST, stepped, concave, bandoneon.TimeModel(30.0, 1e-3, 0.0)],
                         ids=["model", "stepped", "concave", "large batches"])
def test_batches_of_more_than_a_block_are_cut_as_well(cost):
    """What is left out of the search has nothing that is less. Some batches have hundreds of sequences."""
    lengths = log_normal(600)
    plan = bandoneon.micro_batches(lengths, seconds=cost)
    assert plan.step_seconds == pytest.approx(plain_cut(lengths, cost), rel=1e-12)


@pytest.mark.parametrize("count, workers, stages", [(1, 1, 1), (3, 5, 1), (12, 3, 4), (512, 4, 1), (512, 1, 4), (900, 7, 2)])
def test_every_sequence_is_there_once_and_its_tokens_count(count, workers, stages):
    lengths = log_normal(count)
    plan = bandoneon.micro_batches(lengths, seconds=COST, workers=workers, stages=stages)
    assert len(plan.batches) == len(plan.tokens) == len(plan.seconds) == workers
    assert sorted(i for own in plan.batches for batch in own for i in batch) == list(range(count))
    for own, tokens, seconds in zip(plan.batches, plan.tokens, plan.seconds):
        assert tokens == sum(lengths[i] for batch in own for i in batch)
        times = [COST(len(batch), max(lengths[i] for i in batch)) for batch in own]
        assert seconds == pytest.approx(sum(times)) and max(times, default=0.0) <= plan.slowest
        longest = [max(lengths[i] for i in batch) for batch in own]
        assert longest == sorted(longest, reverse=True)
    assert plan.step_seconds == pytest.approx((stages - 1) * plan.slowest + max(plan.seconds))


def test_a_plan_is_the_same_wherever_it_is_made():
    lengths = log_normal(300)
    plans = [bandoneon.micro_batches(given, seconds=COST, workers=3) for given in (lengths, torch.tensor(lengths), iter(lengths))]
    assert plans[0] == plans[1] == plans[2]


def test_loads_are_within_four_thirds_of_the_least_possible():
    draw = random.Random(5)
    for _ in range(60):
        values = [draw.lognormvariate(0, 1) for _ in range(draw.randint(1, 8))]
        workers = draw.randint(1, 3)
        shares = karmarkar_karp(values, workers)
        assert sorted(i for share in shares for i in share) == list(range(len(values)))
        least = min(max(sum(v for v, where in zip(values, places) if where == w) for w in range(workers))
                    for places in itertools.product(range(workers), repeat=len(values)))
        assert max(sum(values[i] for i in share) for share in shares) <= 4 / 3 * least + 1e-12
    # Largest differencing finds what dealing the largest first does not: {8, 6} and {7, 5, 4} for 16 and 14.
    shares = karmarkar_karp([8.0, 7.0, 6.0, 5.0, 4.0], 2)
    assert sorted(sum([8, 7, 6, 5, 4][i] for i in share) for share in shares) == [14, 16]


def test_many_workers_are_loaded_alike():
    plan = bandoneon.micro_batches(log_normal(512), seconds=COST, workers=4)
    assert max(plan.seconds) <= 1.02 * sum(plan.seconds) / 4


# ---- Figures of docs/benchmarks.md ----


def sorted_by_tokens(lengths, most=8192):
    batches = [[]]
    for length in sorted(lengths):
        if (len(batches[-1]) + 1) * length > most:
            batches.append([])
        batches[-1].append(length)
    return [COST(len(batch), batch[-1]) for batch in batches]


def packed(lengths, room=2048):
    """First fit of falling lengths: rows of so many places, without padding but for the end."""
    rows = []
    for length in sorted(lengths, reverse=True):
        row = next((row for row in rows if sum(row) + length <= room), None)
        rows.append([length]) if row is None else row.append(length)
    return [COST(1, room) for _ in rows]


def test_a_pipeline_takes_less_than_with_sorted_batches_or_packed_ones():
    beside_sorted, beside_packed = [], []
    for seed in range(1, 11):
        lengths = log_normal(512, seed)
        plan = bandoneon.micro_batches(lengths, seconds=COST, stages=4)
        beside_sorted.append(plan.step_seconds / step_seconds(sorted_by_tokens(lengths), 4))
        beside_packed.append(plan.step_seconds / step_seconds(packed(lengths), 4))
    assert statistics.median(beside_sorted) <= 0.86 and max(beside_sorted) <= 0.88
    assert max(beside_packed) <= 0.5


def test_ten_thousand_are_cut_in_two_seconds_of_one_core():
    lengths = log_normal(10_000)
    begin = time.process_time()
    bandoneon.micro_batches(lengths, seconds=COST, stages=4, workers=8)
    assert time.process_time() - begin < 2


# ---- TimeModel ----

MEASURED = [(1, 64), (8, 64), (1, 256), (4, 256), (1, 512), (2, 512)]


def test_a_fit_finds_what_the_times_are_made_of():
    model = bandoneon.TimeModel(0.002, 3e-5, 4e-8)
    fit = bandoneon.TimeModel.fit((size, model(*size)) for size in MEASURED)
    assert (fit.base, fit.linear, fit.quadratic) == pytest.approx((0.002, 3e-5, 4e-8), rel=1e-6)


def test_a_fit_has_no_negative_terms():
    """Times that grow more slowly than lengths would have a negative quadratic term."""
    pairs = [(size, 0.01 + 1e-5 * size[0] * size[1] ** 0.7) for size in MEASURED]
    fit = bandoneon.TimeModel.fit(pairs)
    assert fit.quadratic == 0 and fit.base > 0 and fit.linear > 0
    assert all(abs(fit(*size) / seconds - 1) < 0.2 for size, seconds in pairs)


def test_of_few_batches_no_more_is_said_than_they_tell():
    one = bandoneon.TimeModel.fit([((4, 100), 0.2)])
    assert (one.base, one.linear, one.quadratic) == (0, pytest.approx(5e-4), 0)
    fit = bandoneon.TimeModel.fit([((1, 100), 0.3), ((4, 100), 0.6)])
    assert (fit(1, 100), fit(4, 100)) == pytest.approx((0.3, 0.6))


@pytest.mark.parametrize("make, message", [
    (lambda: bandoneon.TimeModel(-1.0, 1.0, 0.0), "base=-1.0 is not a finite number, 0 or more"),
    (lambda: bandoneon.TimeModel(0.0, math.nan, 0.0), "linear=nan"),
    (lambda: bandoneon.TimeModel(0.0, 1.0, "2"), "quadratic='2'"),
    (lambda: bandoneon.TimeModel(0, 0, 0), "all 0"),
    (lambda: bandoneon.TimeModel.fit([]), "pairs is empty"),
    (lambda: bandoneon.TimeModel.fit([(1, 2, 3)]), r"pairs: \(1, 2, 3\) is not \(\(count, longest\), seconds\)"),
    (lambda: bandoneon.TimeModel.fit([((1, 2), 0.0)]), "seconds of .* are not a finite number above 0"),
    (lambda: bandoneon.TimeModel.fit([((0, 2), 1.0)]), "count=0 is not a whole number, 1 or more"),
])
def test_a_model_of_wrong_numbers_is_refused(make, message):
    with pytest.raises(bandoneon.InvalidArgument, match=message):
        make()


@pytest.mark.parametrize("options, message", [
    (dict(lengths=[]), "lengths is empty"),
    (dict(lengths=3), "lengths=3 is not a list"),
    (dict(lengths=[4, 0]), r"lengths\[1\]=0 is not a whole number, 1 or more"),
    (dict(lengths=[4.0]), r"lengths\[0\]=4.0"),
    (dict(lengths=[True]), r"lengths\[0\]=True"),
    (dict(stages=0), "stages=0 is not a whole number, 1 or more"),
    (dict(workers=1.5), "workers=1.5"),
    (dict(seconds=3), "seconds=3 is not a function"),
    (dict(seconds=lambda n, longest: math.nan), r"seconds\(1, \d+\) is nan, and not a finite number above 0"),
    (dict(seconds=lambda n, longest: "1"), r"seconds\(1, \d+\) is '1'"),
    (dict(seconds=lambda n, longest: 0), r"seconds\(1, \d+\) is 0"),
    (dict(seconds=lambda n, longest: 9 - n), r"seconds\(2, \d+\)=7.* is less than seconds\(1, \d+\)=8"),
    (dict(seconds=lambda n, longest: 1 / longest), r"seconds\(1, 5\)=0.2 is less than seconds\(1, 3\)=0.3.*a longer sequence"),
    (dict(memory=6), "memory: one sequence of length 7 alone does not fit"),
    (dict(memory="8G"), "memory='8G' is neither"),
    (dict(memory=0), "memory=0 is neither"),
])
def test_bad_input_is_named(options, message):
    given = {"lengths": [5, 3, 7], "seconds": COST, **options}
    with pytest.raises(bandoneon.InvalidArgument, match=message):
        bandoneon.micro_batches(given.pop("lengths"), **given)


def test_it_stands_with_the_algorithms_too():
    assert bdn.algorithms.micro_batches([3, 4], seconds=COST) == bandoneon.micro_batches([3, 4], seconds=COST)


# ---- With workers ----


def test_a_plans_tokens_as_weights_give_the_mean_over_all_tokens():
    lengths = log_normal(20, longest=300)
    plan = bandoneon.micro_batches(lengths, seconds=COST, workers=3)
    draw = torch.Generator().manual_seed(1)
    data = [torch.randn(length, 4, generator=draw) for length in lengths]

    def gradient(indices, model):
        """Of the mean over the tokens of these sequences."""
        model.zero_grad()
        tokens = sum(lengths[i] for i in indices)
        for i in indices:
            (model(data[i]).square().sum() / tokens).backward()

    def make_model():
        model = torch.nn.Linear(4, 2)
        with torch.no_grad():
            for param in model.parameters():
                param.copy_(torch.linspace(-1, 1, param.numel()).view_as(param))
        return model

    whole = make_model()
    gradient(range(20), whole)

    def job(worker, weighted):
        model = make_model()
        links = bdn.Links(weight=float(plan.tokens[worker.rank]) if weighted else None)
        optimizer = bdn.DistributedOptimizer(torch.optim.SGD(model.parameters(), 1.0), model, links=links, worker=worker)
        mine = [i for batch in plan.batches[worker.rank] for i in batch]
        with optimizer.no_sync():
            gradient(mine[:-1], model)
            for param in model.parameters():
                param.grad *= sum(lengths[i] for i in mine[:-1]) / plan.tokens[worker.rank]
        (model(data[mine[-1]]).square().sum() / plan.tokens[worker.rank]).backward()
        return max((p.grad - q.grad).abs().max().item() for p, q in zip(model.parameters(), whole.parameters()))

    assert max(run_job(lambda worker: job(worker, True), workers=3)) < 1e-6
    assert max(run_job(lambda worker: job(worker, False), workers=3)) > 1e-3
