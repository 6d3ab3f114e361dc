"""save() and load(): a whole training in one directory, taken up by as many workers, more or fewer."""

import contextlib
import copy
import json
import os
import re
import warnings
from functools import partial

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp

import bandoneon
import bandoneon.torch as bdn
from bandoneon.torch.app_state import AppState
from bandoneon.torch.comm_state import CommState
from cluster_helpers import loss_of, make_batch, make_model, model_hash, run_job
from test_comm_state import OPTIMIZERS, SAVED, STEPS, cser, demo, distributed, ef21, lion, local, onebit_adam, server
from test_comm_state import rate, result_of, train
from reference_helpers import Quadratic, WORKERS, assert_same_bits, values

EF = "ef(onebit(block=32))"
JOB = dict(seed=5, min_compress_bytes=1)


def items(params, optimizer):
    return {"model": torch.nn.ParameterDict(params), "optimizer": optimizer}


def save_job(make, path, workers, servers=1, steps=8):
    """[(comm state, parameters) of each rank] of a job that saved after some steps."""
    problem = Quadratic()

    def job(worker):
        params = problem.parameters()
        optimizer = make(worker, params)
        train(problem, worker, params, optimizer, range(1, steps + 1))
        bdn.save(path, items(params, optimizer), worker=worker)
        return optimizer.comm_state_dict(), values(params)

    return run_job(job, workers=workers, servers=servers, **JOB)


def load_job(make, path, workers, servers=1, then=None):
    """[(comm state, parameters, then(worker, params, optimizer)) of each rank] right after load()."""
    problem = Quadratic()

    def job(worker):
        params = problem.parameters()
        optimizer = make(worker, params)
        bdn.load(path, items(params, optimizer), worker=worker)
        loaded = optimizer.comm_state_dict(), values(params)
        return *loaded, then(problem, worker, params, optimizer) if then else None

    return run_job(job, workers=workers, servers=servers, **JOB)


def mean_of(states, what):
    """What all ranks' links keep, as it comes to the mean: {name: float64}."""
    owed = {}
    for name, entry in states[0]["tensors"].items():
        if what in entry:
            owed[name] = sum(s["tensors"][name][what].double() for s in states) / len(states)
    for name in states[0].get("local", {}).get(what, {}):
        owed[name] = sum(s["local"][what][name].double() for s in states) / len(states)
    return owed


def assert_owed_to_the_mean_is_the_same(before, after):
    kept = 0
    for what in ("residual", "momentum", "tracked"):
        expected, actual = mean_of(before, what), mean_of(after, what)
        assert expected.keys() == actual.keys()
        for name, value in expected.items():
            kept += bool(value.any())
            torch.testing.assert_close(actual[name], value, rtol=1e-6, atol=1e-6)
    assert kept


def assert_same_in_servers(before, after):
    for name, entry in before["tensors"].items():
        mine = after["tensors"][name]
        assert mine["step"] == entry["step"] > 0
        assert mine["server"].keys() == entry["server"].keys()
        for what, value in entry["server"].items():
            same = torch.equal if isinstance(value, torch.Tensor) else lambda a, b: a == b
            assert same(mine["server"][what], value), (name, what)


# ---- As many workers ----


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_as_many_workers_go_on_bit_for_bit(name, tmp_path):
    make = OPTIMIZERS[name]
    problem = Quadratic()

    def whole(worker):
        params = problem.parameters()
        optimizer = make(worker, params)
        train(problem, worker, params, optimizer, range(1, SAVED + 1))
        bdn.save(tmp_path, items(params, optimizer), worker=worker)
        train(problem, worker, params, optimizer, range(SAVED + 1, STEPS + 1))
        return values(params), result_of(params, optimizer)

    def go_on(problem, worker, params, optimizer):
        train(problem, worker, params, optimizer, range(SAVED + 1, STEPS + 1))
        return values(params), result_of(params, optimizer)

    undisturbed = run_job(whole, workers=3, servers=2, **JOB)
    resumed = load_job(make, tmp_path, workers=3, servers=1, then=go_on)
    for (own, common), (_, _, (own_resumed, common_resumed)) in zip(undisturbed, resumed):
        assert_same_bits([own, own_resumed])
        assert_same_bits([common, common_resumed])


class Normed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = make_model()
        self.norm = torch.nn.BatchNorm1d(6)

    def forward(self, x):
        return self.net(self.norm(x))


def test_buffers_and_values_are_each_ranks_own_and_parameters_are_saved_once(tmp_path):
    def job(worker, loads):
        model = Normed()
        sgd = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        optimizer = bdn.DistributedOptimizer(
            sgd, model.named_parameters(), links=bdn.Links(push=EF, scaler=None), worker=worker
        )
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        state = {"model": model, "optimizer": optimizer, "schedule": schedule, "seen": worker.rank + 5}
        if loads:
            found = bdn.load(tmp_path, state, worker=worker)
            assert found == {"seen": worker.rank + 5}
            return model_hash(model), schedule.last_epoch
        for step in range(3):
            optimizer.zero_grad()
            loss_of(model, make_batch(worker.rank, step)).backward()
            optimizer.step()
            schedule.step()
        bdn.save(tmp_path, state, worker=worker)
        return model_hash(model), schedule.last_epoch

    saved = run_job(partial(job, loads=False), workers=2)
    assert saved[0] != saved[1]  # running statistics
    assert run_job(partial(job, loads=True), workers=2) == saved
    (shared,) = tmp_path.glob("*.shared.pt")
    assert set(torch.load(shared)["states"]["model"]) == {n for n, _ in Normed().named_parameters()}


# ---- More or fewer ----

RESIZED = {
    "distributed, ef": OPTIMIZERS["distributed, ef"],
    "distributed, momentum": OPTIMIZERS["distributed, momentum"],
    "distributed, correction": OPTIMIZERS["distributed, correction"],
    "one bit": partial(onebit_adam, warmup=4),
    "server, ef": partial(server, push=EF, pull="delta(int4)"),
    "local, signs": local,
    "local, delta": partial(local, outer=bdn.algorithms.Nesterov(), pull="delta(int4)"),
    "ef21": ef21,
    "lion": lion,
    "demo": demo,
}
SIZES = [(2, 3), (4, 2), (2, 1), (3, 2)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("name", RESIZED)
def test_what_is_owed_to_the_mean_stays_in_another_number_of_workers(name, sizes, tmp_path):
    make = RESIZED[name]
    before = save_job(make, tmp_path, sizes[0], servers=1)

    def go_on(problem, worker, params, optimizer):
        train(problem, worker, params, optimizer, range(9, 13))
        return values(params)

    after = load_job(make, tmp_path, sizes[1], servers=2, then=go_on)
    assert_owed_to_the_mean_is_the_same([s for s, _ in before], [s for s, _, _ in after])
    assert_same_in_servers(before[0][0], after[0][0])
    assert_same_bits([before[0][1]] + [params for _, params, _ in after])
    assert_same_bits([end for _, _, end in after])


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_what_was_owed_arrives(sizes, tmp_path):
    """With gradients of 0, the parameters move by what workers and servers owe less than before."""
    make = partial(
        distributed, inner=lambda p: torch.optim.SGD(p, 1.0), push="ef(topk(ratio=0.2))", pull=EF
    )
    save_job(make, tmp_path, sizes[0])

    def flush(problem, worker, params, optimizer):
        for _ in range(20):
            optimizer.zero_grad()
            sum((p * 0).sum() for p in params.values()).backward()
            optimizer.step()
        return optimizer.comm_state_dict(), values(params)

    def owed(states):
        of_server = {n: e["server"]["residual"].double() for n, e in states[0]["tensors"].items()}
        return {name: mean + of_server[name] for name, mean in mean_of(states, "residual").items()}

    def owed_by_savers():
        return owed([s for s, _ in save_job(make, tmp_path / "again", sizes[0])])

    ranks = load_job(make, tmp_path, sizes[1], then=flush)
    first, last = owed_by_savers(), owed([then[0] for _, _, then in ranks])
    (_, begun, (_, ended)) = ranks[0]
    lr = rate(8)  # Saved with the optimizer's state.
    for i, name in enumerate(first):
        moved = torch.from_numpy(begun[i] - ended[i]).double() / lr
        assert moved.abs().max() > 0.1
        torch.testing.assert_close(moved, first[name] - last[name], rtol=1e-3, atol=1e-3)


def test_residuals_left_at_other_rates_keep_what_they_are_worth():
    spec = "ef(onebit,correction=lr)"

    def job(worker):
        params = {"a": torch.nn.Parameter(torch.ones(4))}
        optimizer = distributed(worker, params, push=spec, pull="none")
        own = optimizer.comm_state_dict()
        states = [copy.deepcopy({**own, "rank": rank, "size": 2}) for rank in range(2)]
        states[1]["tensors"]["a"].pop("server", None)
        for state, lr in zip(states, (0.1, 0.2)):
            state["tensors"]["a"].update(residual=torch.full((4,), 3.0), learning_rate=lr)
        optimizer.load_comm_state_dict(states)
        return optimizer.comm_state_dict()["tensors"]["a"]

    (entry,) = run_job(job, workers=1, **JOB)
    assert entry["learning_rate"] == pytest.approx(0.1)
    # (1 / 2) (3 + 3 * 0.2 / 0.1)
    torch.testing.assert_close(entry["residual"], torch.full((4,), 4.5))


def test_local_steps_of_other_workers_are_left_out_with_a_word(tmp_path):
    save_job(local, tmp_path, 2, steps=6)  # tau=4
    problem = Quadratic()

    def job(worker):
        params = problem.parameters()
        optimizer = local(worker, params)
        bdn.load(tmp_path, items(params, optimizer), worker=worker)
        with optimizer.common_weights():
            common = values(params)
        return optimizer.local_steps, values(params), common

    with pytest.warns(RuntimeWarning, match="2 workers saved 2 steps after their last meeting"):
        ranks = run_job(job, workers=3, **JOB)
    for steps, own, common in ranks:
        assert steps == 4
        assert_same_bits([own, common, ranks[0][1]])


@pytest.mark.parametrize("workers", [1, 3])
def test_cser_says_that_it_cannot(workers, tmp_path):
    save_job(cser, tmp_path, 2)
    with pytest.raises(
        bandoneon.InvalidArgument,
        match=f"of a job of 2 workers, and this one has {workers}: every worker's model has drifted",
    ):
        load_job(cser, tmp_path, workers)


def test_a_single_state_of_another_number_of_workers_says_what_to_give():
    def job(worker):
        optimizer = distributed(worker, Quadratic().parameters(), push=EF)
        state = {**optimizer.comm_state_dict(), "rank": 2, "size": 4}
        with pytest.raises(
            bandoneon.InvalidArgument,
            match="job of 4 workers, and this one has 2: worker . also needs .*bandoneon.torch.load",
        ):
            optimizer.load_comm_state_dict(state)
        torn = [copy.deepcopy({**state, "rank": rank}) for rank in range(4)]
        torn[3]["tensors"]["first"]["step"] = torn[2]["tensors"]["first"]["step"] = 9
        with pytest.raises(bandoneon.InvalidArgument, match="'first' is at step 9 in the state of rank"):
            optimizer.load_comm_state_dict(torn)
        with pytest.raises(bandoneon.InvalidArgument, match="jobs of 4 and of 3 workers"):
            optimizer.load_comm_state_dict([state, {**state, "size": 3}])

    run_job(job, workers=2, **JOB)


FOREIGN = {
    "an optimizer's": lambda state: {"state": {}, "param_groups": []},
    "an earlier one": lambda state: {k: v for k, v in state.items() if k != "format"},
    "a later one": lambda state: {**state, "format": 99},
    "nothing": lambda state: None,
    "no rank": lambda state: {**state, "rank": -1},
    "no size": lambda state: {**state, "size": "3"},
    "an empty list": lambda state: [],
}


@pytest.mark.parametrize("what", FOREIGN)
def test_a_foreign_state_is_refused(what):
    def job(worker):
        optimizer = distributed(worker, Quadratic().parameters(), push=EF)
        state = FOREIGN[what](optimizer.comm_state_dict())
        with pytest.raises(bandoneon.InvalidArgument, match="format|says that it is of|empty list"):
            optimizer.load_comm_state_dict(state)

    run_job(job, workers=1)


# ---- Files ----


def small(worker, prefix="", **options):
    params = {"a": torch.nn.Parameter(torch.arange(40.0))}
    return params, distributed(worker, params, push=EF, prefix=prefix, **options)


class Unpicklable:
    def __reduce__(self):
        raise TypeError("this cannot be pickled")


def test_a_save_that_fails_in_one_worker_fails_in_all_and_leaves_the_checkpoint_before(tmp_path):
    def job(worker):
        params, optimizer = small(worker)
        bdn.save(tmp_path, {"model": torch.nn.ParameterDict(params), "at": 1}, worker=worker)
        worker.barrier("saved")
        files = set(os.listdir(tmp_path))
        worker.barrier("listed")
        bad = Unpicklable() if worker.rank == 1 else 2
        expected = Exception if worker.rank == 1 else bandoneon.FailedPrecondition
        with pytest.raises(expected, match="(?:^|worker 1 could not save .*: TypeError: )this cannot be pickled"):
            bdn.save(tmp_path, {"model": torch.nn.ParameterDict(params), "at": bad}, worker=worker)
        assert files <= set(os.listdir(tmp_path))
        assert bdn.load(tmp_path, {}, worker=worker) == {"at": 1}
        # What was not completed goes with the next one that is.
        bdn.save(tmp_path, {"at": 3}, worker=worker)
        worker.barrier("saved again")
        assert len(os.listdir(tmp_path)) == worker.size + 2
        assert bdn.load(tmp_path, {}, worker=worker) == {"at": 3}

    run_job(job, workers=2)


def test_a_directory_that_not_all_workers_see_is_refused(tmp_path):
    def job(worker):
        message = 'worker 0 does not see .*rank1.pt.*file system that all workers see; or layout="hosts".*layout="rank0"'
        with pytest.raises(bandoneon.FailedPrecondition, match=message):
            bdn.save(tmp_path / str(worker.rank), {"at": 1}, worker=worker)

    run_job(job, workers=2)
    assert not list(tmp_path.glob("*/checkpoint.json"))


def test_other_files_in_the_directory_stay(tmp_path):
    (tmp_path / "notes.pt").write_text("mine")

    def job(worker):
        for at in range(2):
            bdn.save(tmp_path, {"at": at}, worker=worker)

    run_job(job, workers=1)
    assert (tmp_path / "notes.pt").read_text() == "mine"


def break_manifest(path, **changes):
    manifest = json.loads((path / "checkpoint.json").read_text())
    (path / "checkpoint.json").write_text(json.dumps({**manifest, **changes}))


def truncate(path):
    for file in path.glob("*.rank0.pt"):
        file.write_bytes(file.read_bytes()[:100])


BROKEN = {
    "not there": (lambda path: os.remove(path / "checkpoint.json"), "there is no .*checkpoint.json"),
    "no JSON": (lambda path: (path / "checkpoint.json").write_text("{"), "is not what .* wrote"),
    "another format": (partial(break_manifest, format=7), "of format 7; this build reads format 1"),
    "an impossible size": (partial(break_manifest, size=0), "of 0 workers"),
    "an id that leads elsewhere": (partial(break_manifest, id="../../secret"), "has the id"),
    "a file missing": (
        lambda path: [os.remove(file) for file in path.glob("*.rank0.pt")],
        "the checkpoint lacks .*rank0.pt",
    ),
    "a file cut short": (truncate, "rank0.pt cannot be read"),
    "without the optimizer": (None, "has nothing for 'optimizer' to load_state_dict.*it is of model"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_wrong_with_a_checkpoint_is_said(what, tmp_path):
    damage, message = BROKEN[what]

    def job(worker):
        params, optimizer = small(worker)
        state = items(params, optimizer)
        saved = {"model": state["model"]} if damage is None else state
        bdn.save(tmp_path, saved, worker=worker)
        if damage is not None:
            damage(tmp_path)
        with pytest.raises(bandoneon.BandoneonError, match=message):
            bdn.load(tmp_path, state, worker=worker)

    run_job(job, workers=1)


# ---- Without a comm state ----


class Large:
    """Long enough that what codecs save is more than what frames cost."""

    def parameters(self):
        return {"a": torch.nn.Parameter(torch.zeros(20000))}

    def gradient(self, rank, t, model):
        return [np.linspace(-1, rank + t, 20000, dtype=np.float32)]


def resume_with_torch_only(make, steps=SAVED, resume=None, after=None):
    """([after() of each rank], what was said): of a job that goes on without comm_state_dict()."""
    problem = Large()

    def first(worker):
        params = problem.parameters()
        optimizer = make(worker, params)
        train(problem, worker, params, optimizer, range(1, steps + 1))
        return copy.deepcopy(optimizer.state_dict())

    saved = run_job(first, workers=2, servers=2, **JOB)

    def second(worker):
        params = problem.parameters()
        optimizer = make(worker, params)
        optimizer.load_state_dict(saved[worker.rank])
        if resume:
            resume(optimizer)
        train(problem, worker, params, optimizer, range(steps + 1, steps + 4))
        return after(worker, optimizer) if after else None

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = run_job(second, workers=2, servers=2, **JOB)
    told = [str(w.message) for w in caught if "comm_state_dict" in str(w.message)]
    return results, told


def adam(p):
    return torch.optim.Adam(p, 0.02)


FORGETFUL = {
    "ef": (partial(distributed, inner=adam, push=EF), "step 7, and its links stand at step 0"),
    "warm-up": (partial(distributed, inner=adam, push="dither", warmup=5), "step 7"),
    "schedule": (partial(distributed, inner=adam, push="none for 5; int8"), "step 7"),
    "SGD": (
        partial(distributed, inner=lambda p: torch.optim.SGD(p, 0.02, momentum=0.9), push=EF),
        "state is not new, and its links stand at step 0",
    ),
    "one bit": (partial(onebit_adam, warmup=4), "step 7, and its links stand at step 0"),
    "local": (local, "step 7, and its links stand at step 0"),
    "ef21": (ef21, "step 7, and its links stand at step 0"),
    "lion": (lion, "step 7, and its links stand at step 0"),
    "demo": (demo, "step 7, and its links stand at step 0"),
}


@pytest.mark.parametrize("name", FORGETFUL)
def test_links_that_begin_anew_beside_an_optimizer_that_does_not_are_said_once(name):
    make, message = FORGETFUL[name]
    _, told = resume_with_torch_only(make)
    assert len(told) == 2 and all(re.search(message, text) for text in told)  # one a worker


def test_nothing_is_said_where_nothing_is_lost():
    _, told = resume_with_torch_only(partial(distributed, inner=adam, push="int8"))
    assert not told


@pytest.mark.parametrize("name", ["distributed, LANS", "cser", "one bit", "ef21", "lion", "demo"])
def test_nothing_is_said_in_a_run_of_its_own_or_with_its_comm_state(name, tmp_path):
    def job():
        save_job(OPTIMIZERS[name], tmp_path, 3, steps=SAVED)
        load_job(
            OPTIMIZERS[name],
            tmp_path,
            3,
            then=lambda *given: train(*given, range(SAVED + 1, SAVED + 4)),
        )

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        job()


SCHEDULED = "none for 5; ef(topk(ratio=0.1))"


@pytest.mark.parametrize("by_hand", [None, SAVED])
@pytest.mark.parametrize(
    "make",
    [
        partial(distributed, inner=adam, push=SCHEDULED, pull="none for 5; onebit(block=32)"),
        partial(distributed, inner=adam, push=EF, pull=EF, warmup=5),
        partial(onebit_adam, warmup=5),
        partial(lion, push="none for 5; sign", pull="none for 5; sign"),
    ],
)
def test_links_go_on_at_the_optimizers_step(make, by_hand):
    def resume(optimizer):
        optimizer.resume_at(*[] if by_hand is None else [by_hand])

    def look(worker, optimizer):
        steps = {entry["step"] for entry in optimizer.comm_state_dict()["tensors"].values()}
        return steps, worker.stats()["bytes_pushed"], worker.stats()["bytes_pulled"]

    anew, told = resume_with_torch_only(make, after=look)
    assert told
    followed, told = resume_with_torch_only(make, resume=resume, after=look)
    assert not told
    for (steps, *sizes), (steps_anew, *sizes_anew) in zip(followed, anew):
        assert steps == {SAVED + 3} and steps_anew == {3}
        assert all(2 * mine < theirs for mine, theirs in zip(sizes, sizes_anew))


def test_the_step_is_rank_0s_and_must_be_one():
    def job(worker):
        _, optimizer = small(worker)
        for bad in (-1, 1.5, "7"):
            with pytest.raises(bandoneon.InvalidArgument, match="not a number of steps"):
                optimizer.resume_at(bad)
        optimizer.resume_at(7 + worker.rank)
        return optimizer.comm_state_dict()["tensors"]["a"]["step"]

    assert run_job(job, workers=2) == [7, 7]


def end_of(make, at, model=None, resume=None, steps=STEPS):
    """[(comm state, model, state_dict()) of each rank] after the steps from `at` on, of a job whose workers
    all load `model`, that of rank 0, and call `resume`."""
    problem = Quadratic()

    def job(worker):
        params = problem.parameters()
        optimizer = make(worker, params)
        if resume:
            load_values(params, model[1])
            optimizer.load_state_dict(copy.deepcopy(model[2]))
            resume(optimizer)
        train(problem, worker, params, optimizer, range(at + 1, steps + 1))
        return optimizer.comm_state_dict(), own_values(params), copy.deepcopy(optimizer.state_dict())

    return run_job(job, workers=3, servers=2, **JOB)


def own_values(params):
    return {name: p.detach().clone() for name, p in params.items()}


def load_values(params, values):
    with torch.no_grad():
        for name, p in params.items():
            p.copy_(values[name])


def steps_of(state):
    """Where its links stand, by kind."""
    kinds = state.get("links", {"": state})
    return {
        kind: {entry["step"] for entry in own["tensors"].values()} for kind, own in kinds.items()
    }


FOLLOWED = {
    "server": (partial(server, push=SCHEDULED, pull="delta(int4)"), (8,)),
    "local": (partial(local, outer=bdn.algorithms.Average(), push="none for 2; ef(onebit)"), ()),
    "local, signs": (local, ()),
    "ef21": (partial(ef21, push=SCHEDULED), ()),
    "cser": (cser, (8,)),
    "cser, model": (partial(cser, implementation="model"), (8,)),
    "cser, resets only": (partial(cser, gradient=None), (8,)),
}


@pytest.mark.parametrize("name", FOLLOWED)
def test_who_has_own_weights_goes_on_at_the_step(name):
    make, step = FOLLOWED[name]
    whole = end_of(make, 0)
    model = end_of(make, 0, steps=8)[0]  # after two meetings of `local`
    resumed = end_of(make, 8, model, lambda optimizer: optimizer.resume_at(*step))
    for (state, *_), (again, *_) in zip(whole, resumed):
        assert steps_of(again) == steps_of(state)
        for own in ("steps", "local_steps"):
            assert again.get(own) == state.get(own)


@pytest.mark.parametrize(
    "make, step",
    [
        (partial(local, outer=bdn.algorithms.Average(), push="none"), ()),
        (
            lambda worker, params: bdn.ServerOptimizer(
                torch.optim.SGD(params.values(), 0.02), params.items(), worker=worker
            ),
            (8,),
        ),
    ],
)
def test_what_remembers_nothing_but_weights_goes_on_bit_for_bit(make, step):
    """Of one rank's model: at a meeting it is everybody's. The optimizers inside remember, so those of
    LocalSteps are made anew in both."""

    def fresh(optimizer):
        optimizer.resume_at(*step or (8,))

    def halves(worker):
        params = problem.parameters()
        optimizer = make(worker, params)
        train(problem, worker, params, optimizer, range(1, 9))
        optimizer.inner.state.clear()
        models.append(own_values(params))
        train(problem, worker, params, optimizer, range(9, STEPS + 1))
        return values(params)

    def resumed(worker):
        params = problem.parameters()
        optimizer = make(worker, params)
        load_values(params, models[0])
        fresh(optimizer)
        train(problem, worker, params, optimizer, range(9, STEPS + 1))
        return values(params)

    problem, models = Quadratic(), []
    undisturbed = run_job(halves, workers=3, servers=2, **JOB)
    for own, again in zip(undisturbed, run_job(resumed, workers=3, servers=1, **JOB)):
        assert_same_bits([own, again])


@pytest.mark.parametrize("name", ["server", "local", "cser"])
def test_weights_to_go_on_from_must_be_the_same_in_all_workers(name):
    make, _ = FOLLOWED[name]

    def job(worker):
        params = Quadratic().parameters()
        optimizer = make(worker, params)
        with torch.no_grad():
            next(iter(params.values())).add_(worker.rank)
        with pytest.raises(bandoneon.InvalidArgument, match="Load the same checkpoint in all") as caught:
            optimizer.resume_at(8)
        return caught.value.tensor

    assert run_job(job, workers=2) == [next(iter(Quadratic().parameters()))] * 2


def test_steps_since_a_meeting_that_are_lost_are_said():
    def job(worker):
        params = Quadratic().parameters()
        optimizer = local(worker, params, tau=4)
        optimizer.resume_at(10)
        train(Quadratic(), worker, params, optimizer, range(11, 13))
        return steps_of(optimizer.comm_state_dict())

    with pytest.warns(RuntimeWarning, match="step 10 is 2 steps after a meeting"):
        assert run_job(job, workers=2) == [{"": {3}}] * 2


def test_a_server_optimizer_beside_the_state_of_another_one_says_so():
    def job(worker):
        params = {"a": torch.nn.Parameter(torch.ones(40))}
        plain = torch.optim.AdamW(params.values(), 0.02)
        params["a"].sum().backward()
        for _ in range(7):
            plain.step()
        optimizer = server(worker, params)
        optimizer.load_state_dict(plain.state_dict())
        optimizer.step()

    with pytest.warns(RuntimeWarning, match="step 7, and its links stand at step 0") as told:
        run_job(job, workers=2)
    assert all("resume_at(step)" in str(one.message) for one in told)


@pytest.mark.parametrize("inner", [adam, lambda p: torch.optim.SGD(p, 0.1)])
def test_a_step_must_be_said_where_no_state_was_loaded(inner):
    def job(worker):
        params = {"a": torch.nn.Parameter(torch.ones(40))}
        optimizer = distributed(worker, params, inner=inner, push=EF)
        with pytest.raises(bandoneon.InvalidArgument, match=r"counts no steps; say resume_at\(step\)"):
            optimizer.resume_at()
        optimizer.resume_at(0)

    run_job(job, workers=1)


def test_an_optimizer_that_counts_no_steps_asks_for_one():
    def job(worker):
        params = {"a": torch.nn.Parameter(torch.ones(40))}
        optimizer = distributed(
            worker, params, inner=lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), push=EF
        )
        params["a"].sum().backward()
        optimizer.step()
        with pytest.raises(bandoneon.InvalidArgument, match=r"counts no steps; say resume_at\(step\)"):
            optimizer.resume_at()

    run_job(job, workers=1)


# ---- torch.distributed.checkpoint ----


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("name", ["distributed, momentum", "distributed, LANS", "cser", "local, signs"])
def test_an_app_state_has_all_of_it(name, tmp_path):
    problem = Quadratic()

    def app(worker, params, optimizer):
        return {"app": AppState(torch.nn.ParameterDict(params), optimizer, worker=worker)}

    def whole(worker):
        params = problem.parameters()
        optimizer = OPTIMIZERS[name](worker, params)
        train(problem, worker, params, optimizer, range(1, SAVED + 1))
        path = tmp_path / str(worker.rank)  # Every rank is alone here, without a process group.
        dcp.save(app(worker, params, optimizer), checkpoint_id=path, no_dist=True)
        train(problem, worker, params, optimizer, range(SAVED + 1, STEPS + 1))
        return values(params)

    def resumed(worker):
        params = problem.parameters()
        optimizer = OPTIMIZERS[name](worker, params)
        path = tmp_path / str(worker.rank)
        dcp.load(app(worker, params, optimizer), checkpoint_id=path, no_dist=True)
        train(problem, worker, params, optimizer, range(SAVED + 1, STEPS + 1))
        return values(params)

    for pair in zip(run_job(whole, workers=3, **JOB), run_job(resumed, workers=3, **JOB)):
        assert_same_bits(pair)


def test_a_stateful_of_another_number_of_workers_says_what_to_give():
    def job(worker):
        _, optimizer = small(worker)
        state = CommState(optimizer, worker=worker).state_dict()
        state["rank0"]["size"] = 4
        with pytest.raises(bandoneon.InvalidArgument, match="of 4 workers, not 1; give saved_size=4"):
            CommState(optimizer, worker=worker).load_state_dict(state)

    run_job(job, workers=1)


def test_an_app_state_needs_what_exchanges():
    def job(worker):
        model = make_model()
        plain = torch.optim.SGD(model.parameters(), 0.1)
        with pytest.raises(bandoneon.InvalidArgument, match="SGD exchanges nothing: .*DDPState"):
            AppState(model, plain, worker=worker)
        with pytest.raises(bandoneon.InvalidArgument, match="saved_size=0 is not a number of workers"):
            AppState(model, small(worker)[1], saved_size=0, worker=worker)

    run_job(job, workers=1)


# ---- What is rank 0's for all ----


def sgd_with_momentum(worker, model):
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return bdn.DistributedOptimizer(inner, model.named_parameters(), worker=worker, links=bdn.Links(scaler=None))


def change_weight(model, optimizer):
    with torch.no_grad():
        model[2].bias[3] += 1e-6


def change_state(model, optimizer):
    optimizer.state[model[2].bias]["momentum_buffer"][3] += 1e-6


def change_rate(model, optimizer):
    optimizer.param_groups[0]["lr"] = 0.2


APART = {
    "'model'['2.bias']": change_weight,
    "'optimizer'['state'][3]['momentum_buffer']": change_state,
    "'optimizer'['param_groups'][0]['lr']": change_rate,
}


@pytest.mark.parametrize("name", APART)
def test_what_differs_between_workers_is_named_and_not_saved_as_rank_0s(name, tmp_path):
    def job(worker):
        model = make_model()
        optimizer = sgd_with_momentum(worker, model)
        state = {"model": model, "optimizer": optimizer, "own": worker.rank}
        loss_of(model, make_batch(worker.rank)).backward()
        optimizer.step()
        bdn.save(tmp_path, state, worker=worker)
        before = model_hash(model)
        if worker.rank == 1:
            APART[name](model, optimizer)
        with pytest.raises(bandoneon.InvalidArgument, match=re.escape(f"{name} is not the same in worker 1 as in worker 0")):
            bdn.save(tmp_path, state, worker=worker)
        bdn.load(tmp_path, state, worker=worker)  # The old one is still there.
        assert model_hash(model) == before
        if worker.rank == 1:
            APART[name](model, optimizer)
        bdn.save(tmp_path, state, check=False, worker=worker)
        bdn.load(tmp_path, state, worker=worker)
        return model_hash(model)

    before, loaded, _ = run_job(job, workers=3)
    assert before == loaded


def test_what_each_worker_has_of_its_own_is_saved_as_a_value(tmp_path):
    def job(worker):
        head = make_model(seed=worker.rank)
        bdn.save(tmp_path, {"head": head.state_dict()}, worker=worker)
        loaded = bdn.load(tmp_path, {"head": None}, worker=worker)["head"]
        assert all(map(torch.equal, loaded.values(), head.state_dict().values()))

    run_job(job)


@pytest.mark.parametrize("call", [bdn.save, bdn.load])
def test_a_wait_of_one_worker_alone_says_what_all_must_call(call, tmp_path):
    def job(worker):
        if worker.rank == 1:
            return None
        with pytest.raises(bandoneon.BandoneonError, match=f"{call.__name__}.., which all workers must call.*worker 1"):
            call(tmp_path, {"model": make_model()}, worker=worker)
        return "raised"

    with contextlib.suppress(bandoneon.BandoneonError):
        assert run_job(job)[0] == "raised"


class Versioned(torch.nn.Linear):
    """Migrates older states when it is loaded, as modules do whose layout has changed."""

    _version = 2

    def _load_from_state_dict(self, state, prefix, metadata, *args):
        if metadata.get("version") != 2:
            state[f"{prefix}weight"] = state[f"{prefix}weight"].t()
        super()._load_from_state_dict(state, prefix, metadata, *args)


@pytest.mark.parametrize("is_local", [False, True])
def test_the_versions_of_modules_are_saved(is_local, tmp_path):
    def make(worker):
        model = torch.nn.Sequential(Versioned(3, 3), torch.nn.BatchNorm1d(3))
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = bdn.LocalSteps(sgd, model.named_parameters(), tau=2, outer=bdn.algorithms.Average(), worker=worker)
        return {"model": model, "optimizer": optimizer} if is_local else {"model": model}

    def save(worker):
        state = make(worker)
        with torch.no_grad():
            state["model"][0].weight.copy_(torch.arange(9.0).view(3, 3))
        bdn.save(tmp_path, state, worker=worker)

    def load(worker):
        state = make(worker)
        bdn.load(tmp_path, state, worker=worker)
        return state["model"][0].weight.detach().tolist()

    run_job(save)
    assert run_job(load) == [torch.arange(9.0).view(3, 3).tolist()] * 2
