"""LocalSteps(tau=Pace(...)): each worker makes as many steps between two meetings as it has time for."""

import json
import threading

import numpy as np
import pytest
import torch

import bandoneon
import bandoneon.torch as bdn
from bandoneon.torch import local_steps
from cluster_helpers import linked
from reference_helpers import SETTINGS, WORKERS, Quadratic, assert_close, assert_same_bits, values

ROUNDS = [[4, 4, 3, 5, 4], [2, 2, 2, 1, 2], [1, 1, 1, 1, 1]]  # by rank
RATE = 0.02


def write_log(path, rounds):
    for rank, steps in enumerate(rounds):
        lines = [json.dumps({"round": number, "steps": tau}) + "\n" for number, tau in enumerate(steps)]
        path.with_name(f"{path.name}.{rank}").write_text("".join(lines))
    return path


def run(problem, pace, outer=bdn.algorithms.Average(), meetings=5, after_step=None, state=None, **options):
    """By rank, the common weights after each meeting. pace() makes a Pace."""

    def job(worker):
        params = problem.parameters()
        optimizer = bdn.LocalSteps(torch.optim.SGD(params.values(), RATE), params.items(), tau=pace(), outer=outer,
                                   worker=worker, **linked(**options))
        if state is not None:
            for param, saved in zip(params.values(), state[worker.rank]["model"]):
                param.data.copy_(torch.from_numpy(saved))
            optimizer.load_comm_state_dict(state[worker.rank]["comm"])
        seen = []
        while optimizer.meetings < meetings:
            before = optimizer.meetings
            optimizer.zero_grad()
            model = [p.detach().numpy() for p in params.values()]
            grads = map(torch.from_numpy, problem.gradient(worker.rank, optimizer.local_steps + 1, model))
            sum((p * g).sum() for p, g in zip(params.values(), grads)).backward()
            if after_step is not None:
                after_step(worker, optimizer)
            optimizer.step()
            if optimizer.meetings > before:
                seen.append(values(params))
        return seen, {"model": values(params), "comm": optimizer.comm_state_dict()}

    with bandoneon.LocalCluster(**SETTINGS) as cluster:
        return cluster.run(job)


def expected(problem, rounds, weigh=lambda tau: 1.0, momentum=None):
    """The common weights after each meeting, in NumPy."""
    common = [x.astype(np.float64) for x in problem.start]
    speed = [np.zeros_like(x) for x in common]
    done, seen = [0] * WORKERS, []
    for number in range(len(rounds[0])):
        moved, weights = [], [weigh(rounds[rank][number]) for rank in range(WORKERS)]
        for rank in range(WORKERS):
            own = [x.copy() for x in common]
            for _ in range(rounds[rank][number]):
                done[rank] += 1
                own = [x - RATE * g for x, g in zip(own, problem.gradient(rank, done[rank], own))]
            moved.append([x - y for x, y in zip(common, own)])
        for b in range(len(common)):
            mean = sum(w * m[b] for w, m in zip(weights, moved)) / sum(weights)
            if momentum is None:
                common[b] = common[b] - mean
            else:
                speed[b] = momentum * speed[b] + mean
                common[b] = common[b] - 0.7 * (mean + momentum * speed[b])
        seen.append([x.copy() for x in common])
    return seen


@pytest.mark.parametrize("outer, momentum", [(bdn.algorithms.Average(), None), (bdn.algorithms.Nesterov(), 0.9)],
                         ids=["average", "nesterov"])
@pytest.mark.parametrize("weight", [None, "steps"])
def test_the_mean_is_over_workers_or_over_steps(tmp_path, outer, momentum, weight):
    problem = Quadratic()
    log = write_log(tmp_path / "pace", ROUNDS)
    ranks = run(problem, lambda: bdn.algorithms.Pace(1, replay=log), outer, weight=weight)
    want = expected(problem, ROUNDS, (lambda tau: tau) if weight else (lambda tau: 1.0), momentum)
    other = expected(problem, ROUNDS, (lambda tau: 1.0) if weight else (lambda tau: tau), momentum)
    for seen, _ in ranks:
        for got, right in zip(seen, want):
            assert_close(got, right)
    assert max(abs(a - b).max() for a, b in zip(want[-1], other[-1])) > 1e-3, "the two means differ"


class Clocks:
    """A clock for each thread, which stands until the worker there adds to it."""

    def __init__(self, monkeypatch):
        self.now = {}
        monkeypatch.setattr(local_steps.time, "monotonic", lambda: self.now.get(threading.get_ident(), 0.0))

    def add(self, seconds):
        self.now[threading.get_ident()] = self.now.get(threading.get_ident(), 0.0) + seconds


SPEEDS = [1.0, 0.5, 0.25]


@pytest.fixture
def clocks(monkeypatch):
    real = local_steps.time

    class Time:
        monotonic = staticmethod(real.monotonic)

    monkeypatch.setattr(local_steps, "time", Time)
    return Clocks(monkeypatch)


def rounds_of(log, count=WORKERS):
    return [[json.loads(line)["steps"] for line in log.with_name(f"{log.name}.{rank}").read_text().splitlines()]
            for rank in range(count)]


def test_each_worker_makes_the_steps_that_it_has_time_for(tmp_path, clocks):
    log = tmp_path / "pace"
    run(Quadratic(), lambda: bdn.algorithms.Pace(8, log=log), meetings=6, after_step=lambda worker, _: clocks.add(1 / SPEEDS[worker.rank]))
    # A first round of one step, whose duration is not known: it has no step before it.
    assert rounds_of(log) == [[1, 1, 8, 8, 8, 8], [1, 1, 4, 4, 4, 4], [1, 1, 2, 2, 2, 2]]


def test_a_worker_that_grows_slow_makes_fewer_once_its_median_has_changed(tmp_path, clocks):
    log = tmp_path / "pace"

    def take_time(worker, optimizer):
        clocks.add(4.0 if worker.rank == 1 and optimizer.local_steps >= 40 else 1.0)

    run(Quadratic(), lambda: bdn.algorithms.Pace(8, least=2, log=log), meetings=12, after_step=take_time)
    first, second, _ = rounds_of(log)
    assert first == [2] + [8] * 11
    assert second[:5] == [2] + [8] * 4 and second[-1] == 2


def test_durations_bound_by_least_and_most():
    pace = bdn.algorithms.Pace(10, least=3, most=50)
    assert pace._steps(0) == 3
    pace._note_step(0.1)
    assert pace._steps(1) == 50
    for _ in range(20):
        pace._note_step(30.0)
    assert pace._steps(2) == 3
    for _ in range(11):
        pace._note_step(2.0)
    assert pace._steps(3) == 5
    for duration, steps in ((2.1, 5), (1.7, 6), (2.9, 3)):
        for _ in range(20):
            pace._note_step(duration)
        assert pace._steps(3) == steps, duration
    for _ in range(20):
        pace._note_step(0.0)
    assert pace._steps(4) == 50


@pytest.mark.parametrize("push", ["none", "ef(onebit)"])
def test_a_run_by_the_clock_is_repeated_to_the_bit_by_its_log(tmp_path, push):
    problem = Quadratic()
    log = tmp_path / "pace"
    run_once = run(problem, lambda: bdn.algorithms.Pace(0.004, log=log), push=push, meetings=6)
    again = run(problem, lambda: bdn.algorithms.Pace(1, replay=log, log=tmp_path / "again"), push=push, meetings=6)
    assert rounds_of(tmp_path / "again") == rounds_of(log)
    for (seen, _), (repeated, _) in zip(run_once, again):
        for models in zip(seen, repeated):
            assert_same_bits(models)


def test_it_goes_on_from_a_checkpoint_with_its_times_and_its_log(tmp_path, clocks):
    problem, whole, parts = Quadratic(), tmp_path / "whole", tmp_path / "parts"
    take_time = lambda worker, _: clocks.add(1 / SPEEDS[worker.rank])  # noqa: E731
    undisturbed = run(problem, lambda: bdn.algorithms.Pace(8, log=whole), meetings=7, after_step=take_time)
    half = run(problem, lambda: bdn.algorithms.Pace(8, log=parts), meetings=4, after_step=take_time)
    states = [state for _, state in half]
    assert [state["comm"]["met"] for state in states] == [4] * WORKERS
    rest = run(problem, lambda: bdn.algorithms.Pace(8, log=parts), meetings=7, after_step=take_time, state=states)
    assert rounds_of(parts) == rounds_of(whole)
    for (seen, _), (repeated, _) in zip(undisturbed, rest):
        assert_same_bits([seen[-1], repeated[-1]])


def test_durations_of_a_state_that_are_none_are_refused():
    with pytest.raises(bandoneon.InvalidArgument, match=r"durations of steps are \['long'\]"):
        bdn.algorithms.Pace(1)._load(["long"])


def by_schedule(tmp_path, outer):
    """Each worker's learning rate falls by its own steps."""

    def fall(worker, optimizer):
        for group in optimizer.param_groups:
            group["lr"] = RATE / (1 + optimizer.local_steps)

    log = write_log(tmp_path / "pace", ROUNDS)
    return run(Quadratic(), lambda: bdn.algorithms.Pace(1, replay=log), outer, after_step=fall)


@pytest.mark.parametrize("outer", [bdn.algorithms.Nesterov(), bdn.algorithms.SignMomentum(rate=0.01), bdn.algorithms.SlowMo(rate=0.01)],
                         ids=["nesterov", "sign", "slowmo"])
def test_rates_that_differ_by_the_number_of_steps_are_no_matter(tmp_path, outer):
    for models in zip(*(seen for seen, _ in by_schedule(tmp_path, outer))):
        assert_same_bits(models)


def test_the_outer_step_is_of_its_own_rate(tmp_path):
    ranks = by_schedule(tmp_path, bdn.algorithms.SignMomentum(decay=0, rate=0.25))
    before, after = ranks[0][0][-2:]
    for old, new in zip(before, after):
        np.testing.assert_allclose(abs(new - old), 0.25, rtol=1e-4)


def test_what_is_exchanged_at_meetings_is_of_one_step(tmp_path):
    log = write_log(tmp_path / "pace", ROUNDS)
    means = {rank: [] for rank in range(WORKERS)}

    def average_loss(worker, optimizer):
        if optimizer.meetings > len(means[worker.rank]):
            loss = torch.tensor([float(worker.rank)])
            bdn.push_pull(loss, "loss", worker=worker).wait()
            means[worker.rank].append(loss.item())

    run(Quadratic(), lambda: bdn.algorithms.Pace(1, replay=log), after_step=average_loss)
    assert list(means.values()) == [[1.0] * 4] * WORKERS


def test_meetings_are_counted_whatever_calls_for_them():
    def job(worker):
        param = torch.nn.Parameter(torch.ones(4))
        optimizer = bdn.LocalSteps(torch.optim.SGD([param], 0.1), [("p", param)], tau=3, outer=bdn.algorithms.Average(), worker=worker)
        counts = []
        for step in range(1, 8):
            param.grad = torch.full((4,), float("nan") if step == 6 else 1.0)
            optimizer.step()
            if step == 4:
                optimizer.synchronize()
            counts.append(optimizer.meetings)
        return counts, optimizer.skipped_rounds, optimizer.comm_state_dict()["meetings"]

    with bandoneon.LocalCluster(**SETTINGS) as cluster:
        assert cluster.run(job) == [([0, 0, 1, 2, 2, 3, 3], 1, [6, 9])] * WORKERS


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: bdn.algorithms.Pace(0), "seconds=0 is not a finite number above 0"),
        (lambda: bdn.algorithms.Pace(float("nan")), "seconds=nan"),
        (lambda: bdn.algorithms.Pace(float("inf")), "seconds=inf"),
        (lambda: bdn.algorithms.Pace(1, least=0), "least=0"),
        (lambda: bdn.algorithms.Pace(1, most=1.5), "most=1.5"),
        (lambda: bdn.algorithms.Pace(1, least=5, most=4), "most=4 is less than least=5"),
        (lambda: bdn.algorithms.SlowMo(rate=-1.0), "rate=-1.0 is negative"),
        (lambda: bdn.algorithms.SignMomentum(rate=-1.0), "rate=-1.0 is negative"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_out_of_range_is_refused(make, message):
    with pytest.raises(bandoneon.InvalidArgument, match=message):
        make()


def make_one(tau, outer=bdn.algorithms.Average(), **options):
    def job(worker):
        param = torch.nn.Parameter(torch.ones(4))
        bdn.LocalSteps(torch.optim.SGD([param], 0.1), [("p", param)], tau=tau, outer=outer, worker=worker, **options)

    with bandoneon.LocalCluster(workers=1, servers=1) as cluster:
        cluster.run(job)


@pytest.mark.parametrize("outer", [bdn.algorithms.SignMomentum(), bdn.algorithms.SlowMo()], ids=["sign", "slowmo"])
def test_an_outer_step_by_the_workers_rate_is_refused(outer):
    with pytest.raises(bandoneon.InvalidArgument, match=rf"unequally many steps.*say {type(outer).__name__}\(rate=\.\.\.\)"):
        make_one(bdn.algorithms.Pace(1), outer)


def test_one_object_is_for_one_optimizer():
    pace = bdn.algorithms.Pace(1)
    make_one(pace)
    with pytest.raises(bandoneon.FailedPrecondition, match="another LocalSteps: make one for each"):
        make_one(pace)


@pytest.mark.parametrize("lines, line", [("nonsense\n", 1), ('{"round": 0, "steps": 2}\n{"round": 1, "steps": 0}\n', 2), ("[]\n", 1)])
def test_a_log_that_is_damaged_is_refused(tmp_path, lines, line):
    (tmp_path / "pace.0").write_text(lines)
    with pytest.raises(bandoneon.InvalidArgument, match=rf"replay: line {line} of .*pace\.0 is not"):
        make_one(bdn.algorithms.Pace(1, replay=tmp_path / "pace"))


def test_a_log_that_ends_too_early_is_refused(tmp_path):
    log = write_log(tmp_path / "pace", ROUNDS)
    with pytest.raises(bandoneon.InvalidArgument, match=r"pace\.\d lacks round 5: the run that wrote it ended before"):
        run(Quadratic(), lambda: bdn.algorithms.Pace(1, replay=log), meetings=6)


def test_a_weight_of_steps_is_for_local_steps_alone():
    def job(worker):
        param = torch.nn.Parameter(torch.ones(4))
        bdn.DistributedOptimizer(torch.optim.SGD([param], 0.1), [("p", param)], worker=worker, links=bdn.Links(weight="steps"))

    with bandoneon.LocalCluster(workers=1, servers=1) as cluster, pytest.raises(bandoneon.InvalidArgument, match="weight='steps'"):
        cluster.run(job)
