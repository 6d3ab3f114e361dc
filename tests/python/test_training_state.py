"""TrainingState in jobs of this process: what is handed over, who has which part, and what is refused. Workers that are killed and
come back are in tests/system/elastic_test.py."""

import inspect
import math
import time

import pytest
import torch

import bandoneon
import bandoneon.torch as bdn
from bandoneon.torch import handover, training_state
from bandoneon.torch.handover import Handover, hand_over, load_exactly
from bandoneon.torch.optimizer import _Distributed
from cluster_helpers import make_batch, make_model, model_hash, run_job


def state(worker, **changes):
    """What a worker has, of all kinds of leaves; the lent part is each worker's own."""
    generator = torch.Generator().manual_seed(1)
    common = {
        "matrix": torch.randn(3, 5, generator=generator),
        "transposed": torch.randn(4, 7, generator=generator).t(),
        "large": torch.randn(5 << 20, generator=generator),  # 20 MiB
        "half": torch.randn(9, generator=generator).bfloat16(),
        "number": torch.tensor(3, dtype=torch.int64),
        "flags": torch.tensor([True, False, True]),
        "complex": torch.randn(2, dtype=torch.complex64, generator=generator),
        "none": torch.zeros(0, 4),
        "not finite": torch.tensor([math.nan, math.inf, -0.0]),
        "list": [torch.ones(2), {"step": 7, "rate": math.nan, "name": "a"}, (None, 0.5, True)],
    }
    common.update(changes)
    return {"thing": Handover(common, {"own": torch.full((3,), float(worker.rank)), "rank": worker.rank})}


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def assert_equal(mine, theirs):
    assert type(mine) is type(theirs)
    if isinstance(mine, torch.Tensor):
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape and torch.equal(bits(mine), bits(theirs))
    elif isinstance(mine, dict):
        assert list(mine) == list(theirs)
        for key in mine:
            assert_equal(mine[key], theirs[key])
    elif isinstance(mine, (list, tuple)):
        assert len(mine) == len(theirs)
        for one, other in zip(mine, theirs):
            assert_equal(one, other)
    else:
        assert mine == theirs or (mine != mine and theirs != theirs)


@pytest.fixture(params=[1 << 20, 3 << 20, 32 << 20], ids=["many pieces", "some", "one"])
def piece_bytes(request, monkeypatch):
    monkeypatch.setattr(handover, "_PIECE_BYTES", request.param)


@pytest.mark.parametrize("giver", [0, 1])
@pytest.mark.usefixtures("piece_bytes")
def test_a_newcomer_gets_the_givers_state_to_the_bit(giver):
    def give(worker):
        mine = None if worker.rank == 2 else state(worker)
        received = hand_over(worker, mine, giver)
        assert received.differs is None
        assert received.num_bytes > 20 << 20
        if mine is not None:
            assert_equal(mine["thing"].common, state(worker)["thing"].common)
        return received.state["thing"]

    for received in run_job(give, workers=3):
        assert_equal(received.common, state(of_rank(giver))["thing"].common)
    assert_equal(received.lent, {"own": torch.full((3,), float(giver)), "rank": giver})


def of_rank(rank):
    return type("Rank", (), {"rank": rank})


@pytest.mark.parametrize(
    "changes, where",
    [
        ({"matrix": torch.zeros(3, 5)}, "thing[matrix]"),
        ({"large": torch.cat([torch.randn(5 << 20, generator=torch.Generator().manual_seed(1))])}, "thing[large]"),
        ({"matrix": torch.zeros(5, 3)}, "thing[matrix]"),
        ({"half": torch.zeros(9)}, "thing[half]"),
        ({"large": torch.randn(5 << 20, generator=torch.Generator().manual_seed(1)).nextafter(torch.tensor(9.0))}, "thing[large]"),
        ({"not finite": torch.tensor([math.nan, math.inf, 0.0])}, "thing[not finite]"),
        ({"list": [torch.ones(2), {"step": 8, "rate": math.nan, "name": "a"}, (None, 0.5, True)]}, "thing[list][1][step]"),
        ({"list": [torch.ones(2), {"step": 7.0, "rate": math.nan, "name": "a"}, (None, 0.5, True)]}, "thing[list][1][step]"),
        ({"more": 1}, "thing[more]"),
        ({"none": 3}, "thing[none]"),
    ],
)
def test_what_differs_in_what_is_common_is_named(changes, where):
    def give(worker):
        mine = state(worker, **changes) if worker.rank == 1 else state(worker)
        before = {key: bits(value).clone() for key, value in mine["thing"].common.items() if isinstance(value, torch.Tensor)}
        received = hand_over(worker, mine, 0)
        for key, value in before.items():
            assert torch.equal(bits(mine["thing"].common[key]), value), "the state of one who stays was written to"
        return received.differs

    assert run_job(give) == [None, where]


def test_state_that_is_wider_than_its_parameter_stays_so():
    param = torch.nn.Parameter(torch.zeros(4, dtype=torch.bfloat16))
    optimizer = torch.optim.SGD([param], lr=0.1)
    kept = torch.full((4,), 1 + 2**-20)
    load_exactly(optimizer, {"state": {0: {"exp_avg": kept, "step": 3}}, "param_groups": optimizer.state_dict()["param_groups"]})
    assert optimizer.state[param]["exp_avg"].dtype == torch.float32
    assert torch.equal(optimizer.state[param]["exp_avg"], kept) and optimizer.state[param]["step"] == 3


def test_every_class_that_exchanges_says_what_a_newcomer_takes_over():
    classes = [item for module in (bdn, bdn.algorithms) for item in (getattr(module, name) for name in module.__all__)]
    exchanging = [item for item in classes if inspect.isclass(item) and hasattr(item, "comm_state_dict")] + [_Distributed]
    assert len(exchanging) >= 9
    for item in exchanging:
        assert hasattr(item, "handover") and hasattr(item, "take_over") or item.refuses_newcomers(None), item


MAKERS = {
    "DistributedOptimizer": lambda model, worker: bdn.DistributedOptimizer(sgd_of(model), model, worker=worker),
    "ServerOptimizer": lambda model, worker: bdn.ServerOptimizer(sgd_of(model), model, worker=worker),
    "LocalSteps": lambda model, worker: bdn.LocalSteps(
        sgd_of(model), model, tau=2, outer=bdn.algorithms.Average(), worker=worker
    ),
    "KFAC": lambda model, worker: bdn.algorithms.KFAC(model, sgd_of(model), worker=worker),
    "CSER": lambda model, worker: bdn.algorithms.CSER(
        sgd_of(model), model, reset="topk(ratio=0.5)", gradient="topk(ratio=0.5)", worker=worker
    ),
    "Lion": lambda model, worker: bdn.algorithms.Lion(model.named_parameters(), 0.1, worker=worker),
    "DeMo": lambda model, worker: bdn.algorithms.DeMo(model.named_parameters(), 0.1, worker=worker),
    "EF21": lambda model, worker: bdn.algorithms.EF21(sgd_of(model), model.named_parameters(), worker=worker),
    "OneBitAdam": lambda model, worker: bdn.algorithms.OneBitAdam(
        model.named_parameters(), 0.1, links=bdn.Links(warmup=2), worker=worker
    ),
}


def sgd_of(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize("kind", MAKERS)
def test_an_optimizer_that_is_left_out_takes_nobody_in(kind):
    """A newcomer would count its steps from 0, and the first one would fail the job of all."""

    def run(worker):
        model = make_model()
        optimizer = MAKERS[kind](model, worker)
        refusals = []
        for objects in ({"model": model, "optimizer": optimizer}, {"model": model}):
            state = bdn.TrainingState(objects, worker=worker)
            for _ in state.steps(1):
                model(torch.ones(2, next(model.parameters()).shape[1])).sum().backward()
                optimizer.step()
            refusals.append(state._refusal)
        return refusals

    for given, left_out in run_job(run):
        assert given is None
        assert "is exchanged by an optimizer or hook that is not in the TrainingState" in left_out


def test_parts_of_a_batch_make_the_mean_of_all_samples():
    batches = [torch.randn(7, 6, generator=torch.Generator().manual_seed(step)) for step in range(5)]

    def train(worker):
        model = make_model()
        optimizer = bdn.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, worker=worker)
        state = bdn.TrainingState({"model": model, "optimizer": optimizer}, worker=worker)
        parts = []
        for step in state.steps(5):
            index, count = state.shard
            assert (index, count) == (worker.rank, 3)
            own = batches[step][index::count]
            assert state.count(7) == len(own)
            parts.append(len(own))
            optimizer.zero_grad()
            model(own).square().mean().backward()
            optimizer.step()
        return parts, {name: param.detach().clone() for name, param in model.named_parameters()}

    plain = make_model()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for batch in batches:
        optimizer.zero_grad()
        plain(batch).square().mean().backward()
        optimizer.step()
    results = run_job(train, workers=3)
    assert [parts for parts, _ in results] == [[3] * 5, [2] * 5, [2] * 5]
    for _, weights in results:
        for name, param in plain.named_parameters():
            assert torch.allclose(weights[name], param, atol=1e-6), name


@pytest.mark.parametrize("seconds, least, most", [(0.005, 2, 25), (0.12, 7, 11)])
def test_ballots_are_as_seldom_as_steps_are_short(seconds, least, most):
    steps = 10 if seconds > 0.1 else 60

    def train(worker):
        state = bdn.TrainingState({"model": make_model()}, worker=worker)
        for _ in state.steps(1):
            cast, casts = state._ballot.cast, []
            state._ballot.cast = lambda *arguments: (casts.append(state._step), cast(*arguments))
        for step in state.steps(steps):
            assert state.shard == (worker.rank, 2)
            time.sleep(seconds * (1 + worker.rank))  # They measure different times.
        return casts

    first, second = run_job(train)
    assert first == second
    assert least <= len(first) <= most, first


def test_loops_follow_each_other_and_may_be_left():
    def train(worker):
        state = bdn.TrainingState({"model": make_model()}, worker=worker)
        seen = []
        for step in state.steps(10):
            seen.append(step)
            if step == 3:
                break
        seen += list(state.steps(10))
        loop = state.steps(20)
        seen.append(next(loop))
        with pytest.raises(bandoneon.FailedPrecondition, match="runs already"):
            next(state.steps(20))
        return seen + list(loop)

    assert run_job(train) == [list(range(20))] * 2


def test_a_checkpoint_says_its_step(tmp_path):
    def train(worker, total):
        model = make_model()
        optimizer = bdn.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, worker=worker)
        state = bdn.TrainingState({"model": model, "optimizer": optimizer}, checkpoint=tmp_path, every=4, worker=worker)
        steps = []
        for step in state.steps(total):
            steps.append(step)
            optimizer.zero_grad()
            model(torch.ones(2, 6) * (step + worker.rank)).square().mean().backward()
            optimizer.step()
        return steps, model_hash(model)

    whole = run_job(lambda worker: train(worker, 0))
    assert [steps for steps, _ in whole] == [[], []]
    assert [steps for steps, _ in run_job(lambda worker: train(worker, 6))] == [list(range(6))] * 2
    later = run_job(lambda worker: train(worker, 10))
    assert [steps for steps, _ in later] == [list(range(6, 10))] * 2
    assert len({weights for _, weights in later}) == 1
    assert [steps for steps, _ in run_job(lambda worker: train(worker, 5))] == [[], []]  # It is behind that step.


def test_the_optimizer_inside_is_not_the_one_to_give():
    def make(worker):
        for outer in (
            lambda inner, model: bdn.DistributedOptimizer(inner, model, worker=worker),
            lambda inner, model: bdn.ServerOptimizer(inner, model.named_parameters(), links=bdn.Links(prefix="s/"), worker=worker),
        ):
            model = make_model()
            inner = torch.optim.SGD(model.parameters(), lr=0.1)
            outer(inner, model)
            with pytest.raises(bandoneon.InvalidArgument, match="is the optimizer inside a (Distributed|Server)Optimizer"):
                bdn.TrainingState({"model": model, "optimizer": inner}, worker=worker)

    run_job(make, workers=1)


def test_own_objects_that_differ_are_saved_and_come_back(tmp_path):
    def train(worker, value):
        own = torch.nn.Linear(2, 2)
        with torch.no_grad():
            own.weight.fill_(value + worker.rank)
        state = bdn.TrainingState({"model": make_model()}, own={"head": own}, checkpoint=tmp_path, worker=worker)
        steps = list(state.steps(3))
        return steps, own.weight[0, 0].item()

    assert run_job(lambda worker: train(worker, 5)) == [([0, 1, 2], 5), ([0, 1, 2], 6)]
    assert run_job(lambda worker: train(worker, 0)) == [([], 5), ([], 6)]


class Counter:
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


class Exchanging(Counter):
    def comm_state_dict(self):
        return {}


class Unpicklable(Counter):
    def state_dict(self):
        return {"function": lambda: 0}


@pytest.mark.parametrize(
    "arguments, error",
    [
        (dict(objects={"epoch": 3}), r"objects\['epoch'\] is a int, which has no state_dict\(\)"),
        (dict(objects={"a": Exchanging()}), r"objects\['a'\] is a Exchanging, which exchanges something and has no handover"),
        (dict(objects={"a": Unpicklable()}), "the state of 'a' cannot be pickled"),
        (dict(objects={1: Counter()}), "the name 1 is no text"),
        (dict(objects={"a": Counter()}, own={"a": Counter()}), "'a' is the name of two things"),
        (dict(objects={}, own={"a": 1}), r"own\['a'\] is a int"),
        (dict(objects={}, every=10), "every=10: .* with checkpoint="),
        (dict(objects={}, checkpoint="x", every=0), "every=0"),
        (dict(objects={}, on_sigterm="now"), "on_sigterm='now' is neither"),
        (dict(objects={}, join_interval=-1), "join_interval=-1 is not a number of seconds"),
        (dict(objects={}, heal_timeout=math.nan), "heal_timeout=nan"),
    ],
)
def test_bad_arguments_are_refused_by_name(arguments, error):
    def make(worker):
        with pytest.raises(bandoneon.InvalidArgument, match=error):
            bdn.TrainingState(**arguments, worker=worker)

    run_job(make, workers=1)


def test_numbers_of_steps_and_samples_are_checked():
    def make(worker):
        state = bdn.TrainingState({}, worker=worker)
        for total in (-1, 2.5, "3"):
            with pytest.raises(bandoneon.InvalidArgument, match="not a number of steps"):
                next(state.steps(total))
        for _ in state.steps(1):
            for total in (0, 1.5):
                with pytest.raises(bandoneon.InvalidArgument, match="not a number of samples"):
                    state.count(total)

    run_job(make, workers=1)


def test_count_and_a_weight_of_the_programs_exclude_each_other():
    def make(worker):
        model = make_model()
        optimizer = bdn.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, links=bdn.Links(weight=2.0), worker=worker)
        state = bdn.TrainingState({"optimizer": optimizer}, worker=worker)
        for _ in state.steps(1):
            with pytest.raises(bandoneon.InvalidArgument, match="leave weight= out"):
                state.count(8)
            model(torch.ones(1, 6)).sum().backward()
            optimizer.step()

    run_job(make, workers=1)


@pytest.mark.parametrize("waiting,said", [(1, 1), (0, 0)])
def test_objects_that_never_meet_after_one_step_are_named_where_a_process_waits(monkeypatch, caplog, waiting, said):
    monkeypatch.setattr(training_state, "_APART_SECONDS", 0.0)
    monkeypatch.setattr(bandoneon.Worker, "candidates", lambda worker: waiting)

    def job(worker):
        objects = {}
        for name, tau in (("odd", 2), ("even", 2)):
            model = make_model()
            objects[name] = bdn.LocalSteps(
                torch.optim.SGD(model.parameters(), 0.1), model, tau=tau, outer=bdn.algorithms.Average(),
                links=bdn.Links(prefix=name), worker=worker,
            )
        batch = make_batch(worker.rank)
        for step in bdn.TrainingState(objects, worker=worker).steps(6):
            for name, optimizer in objects.items():
                if name == "odd" or step > 0:  # so that one meets after even steps, and the other after odd ones
                    for param in optimizer.param_groups[0]["params"]:
                        param.grad = torch.ones_like(param) * batch.mean()
                    optimizer.step()
        for optimizer in objects.values():
            optimizer.close()

    with caplog.at_level("WARNING"):
        run_job(job)
    lines = [record.getMessage() for record in caplog.records if "waits to come into the job" in record.getMessage()]
    assert len(lines) == 2 * said
    assert all("met by 'odd', 'even'" in line for line in lines)
