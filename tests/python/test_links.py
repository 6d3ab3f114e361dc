"""Links, and what programs of before there was one: arguments and names at their old places."""

import copy
import dataclasses
import importlib
import inspect
import io
import pickle
import warnings

import pytest
import torch

import bandoneon
import bandoneon.torch as bdn
from bandoneon.torch import old_names
from cluster_helpers import loss_of, make_batch, make_model, model_hash, run_job

EF = "ef(onebit(block=32))"
DELTA = "delta(onebit(block=32))"


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


MAKERS = {
    "DistributedOptimizer": lambda model, **how: bdn.DistributedOptimizer(sgd(model), model, **how),
    "ServerOptimizer": lambda model, **how: bdn.ServerOptimizer(sgd(model), model, **how),
    "LocalSteps": lambda model, **how: bdn.LocalSteps(
        sgd(model), model, tau=2, outer=bdn.algorithms.Average(), **how),
    "CSER": lambda model, **how: bdn.algorithms.CSER(sgd(model), model, reset=2, gradient=4, period=2, **how),
    "EF21": lambda model, **how: bdn.algorithms.EF21(sgd(model), model, **how),
    "KFAC": lambda model, **how: bdn.algorithms.KFAC(model, sgd(model), every=2, inverses=2, **how),
    "Lion": lambda model, **how: bdn.algorithms.Lion(model, 0.01, **how),
    "DeMo": lambda model, **how: bdn.algorithms.DeMo(model, 0.01, **how),
    "OneBitAdam": lambda model, **how: bdn.algorithms.OneBitAdam(model, 0.01, **how),
}
CONSTRUCTORS = {name: getattr(bdn if name in bdn.__all__ else bdn.algorithms, name) for name in [*MAKERS, "DDPState"]}
# Arguments that each took before there was Links.
OVERRIDES = {"*.bias": dict(push="none", pull="none")}
BEFORE = {
    "DistributedOptimizer": dict(push=EF, pull=EF, momentum=0.9, warmup=1, overrides=OVERRIDES, prefix="a/", timeout=30.0,
                                 check=False, scaler=None, weight=2.0, average="before", sparse_as_dense=True),
    "ServerOptimizer": dict(push=EF, pull=DELTA, warmup=1, overrides=OVERRIDES, prefix="a/", timeout=30.0, weight=2.0),
    "LocalSteps": dict(push=EF, pull=DELTA, overrides=OVERRIDES, prefix="a/", timeout=30.0, weight=2.0),
    "CSER": dict(overrides={"*.bias": dict(push="none")}, prefix="a/", timeout=30.0),
    "EF21": dict(push=EF, pull=DELTA, overrides=OVERRIDES, prefix="a/", timeout=30.0),
    "KFAC": dict(push=EF, pull=EF, warmup=1, overrides=OVERRIDES, prefix="a/", timeout=30.0, check=False, weight=2.0),
    "Lion": dict(push="int8", pull="none", overrides=OVERRIDES, prefix="a/", timeout=30.0, check=False),
    "DeMo": dict(push="int8", pull="none", overrides=OVERRIDES, prefix="a/", timeout=30.0, check=False),
    "OneBitAdam": dict(push=EF, pull=EF, warmup=2, overrides=OVERRIDES, prefix="a/", timeout=30.0, check=False),
}


def trained(make, steps=4):
    """The hash of the model that every worker has in the end, and what the optimizer's links remember."""

    def job(worker):
        model = make_model()
        optimizer = make(model, worker)
        for step in range(steps):
            optimizer.zero_grad()
            loss_of(model, make_batch(worker.rank, step)).backward()
            optimizer.step()
        saved = optimizer.comm_state_dict()
        saved.pop("job", None)
        return model_hash(model), repr(saved)

    return run_job(job, min_compress_bytes=1)


@pytest.mark.parametrize("name", MAKERS)
def test_arguments_of_before_do_what_links_do(name):
    """The same bits, and a warning that names each and shows where the program has it."""
    make, before = MAKERS[name], BEFORE[name]
    new = trained(lambda model, worker: make(model, links=bdn.Links(**before), worker=worker))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        old = trained(lambda model, worker: make(model, worker=worker, **before))
    assert old == new
    said = [w for w in caught if issubclass(w.category, DeprecationWarning) and f"{name}()" in str(w.message)]
    assert {w.filename for w in said} == {__file__}
    short = [] if name == "OneBitAdam" else ["push", "pull"]
    for word in before:
        assert word in short or all(f"{word}=" in str(w.message) for w in said), word


def test_links_of_a_hook_and_those_of_before_are_the_same():
    before = dict(push=EF, pull=EF, momentum=0.9, warmup=1, overrides=OVERRIDES, prefix="a/", timeout=30.0, check=False,
                  scaler=None, weight=2.0, average="before")

    def job(worker):
        model = make_model()
        state = bdn.DDPState(model.named_parameters(), links=bdn.Links(**before), worker=worker)
        new = state.comm_state_dict()
        state.close()
        with pytest.warns(DeprecationWarning, match="DDPState.. takes no momentum=, warmup="):
            state = bdn.DDPState(model.named_parameters(), worker=worker, **before)
        old = state.comm_state_dict()
        return [repr({**saved, "job": None}) for saved in (old, new)]

    for old, new in run_job(job, workers=1):
        assert old == new


@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_a_constructor_has_nine_parameters_or_fewer(name):
    assert len(inspect.signature(CONSTRUCTORS[name]).parameters) <= 9


def test_the_package_has_twenty_five_names_or_fewer():
    assert len(bdn.__all__) <= 25


@pytest.mark.parametrize("name", MAKERS)
def test_links_and_an_argument_beside_them_are_refused(name):
    made, model = MAKERS[name], make_model()
    word = next(word for word in BEFORE[name])
    with pytest.raises(bandoneon.InvalidArgument, match=rf"{name}\(\) was given links= and {word}= beside it: say it in one"):
        made(model, links=bdn.Links(), **{word: BEFORE[name][word]})


@pytest.mark.parametrize("name", MAKERS)
def test_what_a_constructor_has_no_use_for_is_refused(name):
    every = {**BEFORE["DistributedOptimizer"], "scaler": None}
    for word, value in every.items():
        if word not in BEFORE[name]:
            with pytest.raises(bandoneon.InvalidArgument, match=rf"Links\({word}=.*would do nothing in {name}: leave it out"):
                MAKERS[name](make_model(), links=bdn.Links(**{word: value}))
            if (name, word) != ("EF21", "momentum"):  # It has one of its own.
                with pytest.raises(TypeError, match=rf"{name}\(\) has no argument '{word}'"):
                    MAKERS[name](make_model(), **{word: value})


@pytest.mark.parametrize("links", ["ef(onebit)", dict(push="none"), 3])
def test_other_things_than_links_are_named(links):
    with pytest.raises(bandoneon.InvalidArgument, match="links=.* is not made by Links: bandoneon.torch.Links"):
        bdn.DistributedOptimizer(sgd(make_model()), make_model(), links=links)


def test_codecs_that_are_none_are_as_if_not_given():
    """Of a program whose own defaults they are."""

    def job(worker):
        model = make_model()
        links = bdn.Links(push="int8", pull="none")
        optimizer = bdn.DistributedOptimizer(sgd(model), model, push=None, pull=None, links=links, worker=worker)
        return optimizer._bandoneon.parameters.links.common.push

    assert run_job(job, workers=1) == ["int8"]


def test_a_slip_is_named():
    model = make_model()
    with pytest.raises(TypeError, match=r"Links\(\) has no argument 'momentun'; did you mean 'momentum'\?"):
        bdn.Links(momentun=0.9)
    with pytest.raises(TypeError, match=r"no argument 'overide'; did you mean links=Links\(overrides=\)\?"):
        bdn.DistributedOptimizer(sgd(model), model, overide={})
    with pytest.raises(TypeError, match=r"Lion\(\) has no argument 'named_parameter'; did you mean 'named_parameters'\?"):
        bdn.algorithms.Lion(model, named_parameter=model)
    with pytest.raises(TypeError, match=r"LocalSteps\(\) has no argument 'check'"):
        MAKERS["LocalSteps"](model, check=False)


def test_of_nothing_given_nothing_is_said():
    def job(worker):
        with warnings.catch_warnings():
            warnings.simplefilter("error", DeprecationWarning)
            for name, make in MAKERS.items():
                how = dict(links=bdn.Links(warmup=2)) if name == "OneBitAdam" else dict(push=None, links=None)
                how.pop("push", None) if name in ("CSER", "KFAC", "OneBitAdam") else None
                how.pop("links") if "push" in how else None
                make(make_model(), worker=worker, **how).close()

    run_job(job, workers=1)


def test_onebit_adam_has_to_have_a_warm_up():
    with pytest.raises(bandoneon.InvalidArgument, match=r"give links=bandoneon.torch.Links\(warmup=steps\)"):
        bdn.algorithms.OneBitAdam(make_model(), links=bdn.Links(push=EF))


# ---- Links themselves ----


def test_links_are_values():
    links = bdn.Links(push=EF, overrides={"*": dict(pull="none")}, weight=2.0)
    assert links == bdn.Links(push=EF, overrides={"*": dict(pull="none")}, weight=2.0) != bdn.Links()
    assert pickle.loads(pickle.dumps(links)) == links == copy.copy(links)
    other = dataclasses.replace(links, prefix="critic/")
    assert (other.prefix, other.push, links.prefix) == ("critic/", EF, "")
    with pytest.raises(dataclasses.FrozenInstanceError):
        links.push = "none"
    assert pickle.loads(pickle.dumps(bdn.Links())).scaler == bdn.Links().scaler


def test_a_copy_of_links_has_the_programs_scaler_and_weight():
    """Of a configuration, as frameworks copy them: the scale of a GradScaler's copy is nobody's."""
    scaler, weight = torch.amp.GradScaler("cpu"), lambda: 2.0
    links = bdn.Links(scaler=scaler, weight=weight, overrides={"*": dict(pull="none")})
    copied = copy.deepcopy({"links": links})["links"]
    assert copied.scaler is scaler and copied.weight is weight and copied == links
    assert copied.overrides["*"] is not links.overrides["*"]
    with pytest.raises(bandoneon.InvalidArgument, match="a copy of the GradScaler scales nothing"):
        pickle.dumps(links)


# ---- Names with the parameters ----


def groups_of(model):
    named = list(model.named_parameters())
    return [{"params": named[:2], "lr": 0.02}, {"params": iter(named[2:])}]


@pytest.mark.parametrize("name", ["Lion", "DeMo", "OneBitAdam"])
@pytest.mark.parametrize("form", ["the model", "pairs", "groups of pairs"])
def test_parameters_bring_their_names(name, form):
    """An override by name shows that they arrived; the bits are those of names given apart, as before."""
    links = bdn.Links(overrides={"0.*": dict(push="none", pull="none")}, **(dict(warmup=1) if name == "OneBitAdam" else {}))
    make = getattr(bdn.algorithms, name)

    def together(model, worker):
        params = {"the model": model, "pairs": model.named_parameters(), "groups of pairs": groups_of(model)}[form]
        return make(params, 0.01, links=links, worker=worker)

    def apart(model, worker):
        plain = [{**group, "params": [p for _, p in group["params"]]} for group in groups_of(model)]
        params = plain if "groups" in form else model.parameters()
        if worker.rank == 0:
            return make(params, 0.01, named_parameters=model.named_parameters(), links=links, worker=worker)
        return make(params=params, lr=0.01, named_parameters=model, links=links, worker=worker)

    new = trained(together)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        assert trained(apart) == new


def test_parameters_of_which_some_have_no_names_are_refused():
    model = make_model()
    with pytest.raises(bandoneon.InvalidArgument, match="a tensor of shape .* without a name"):
        bdn.algorithms.Lion([*model.named_parameters(), torch.nn.Parameter(torch.ones(3))])
    with pytest.raises(TypeError, match="params"), pytest.warns(DeprecationWarning):
        bdn.algorithms.Lion(named_parameters=model)
    with pytest.raises(ValueError, match="empty parameter list"):
        bdn.algorithms.Lion([])
    with pytest.raises(TypeError):
        bdn.algorithms.Lion(torch.ones(3))


def test_the_state_of_an_optimizer_is_without_names():
    """As of optimizers that were given them apart: a checkpoint of either is for both."""

    def job(worker):
        model = make_model()
        return list(bdn.algorithms.Lion(model.named_parameters(), worker=worker).state_dict()["param_groups"][0])

    assert "param_names" not in run_job(job, workers=1)[0]


# ---- Other programs' ways ----


def test_a_subclass_hands_its_arguments_on():
    class Mine(bdn.LocalSteps):
        def __init__(self, optimizer, named, **how):
            super().__init__(optimizer, named, tau=2, outer=bdn.algorithms.Average(), **how)

    def job(worker):
        model = make_model()
        with pytest.warns(DeprecationWarning, match="prefix=") as caught:
            mine = Mine(sgd(model), model, prefix="mine/", worker=worker)
        assert caught[0].filename == __file__
        assert isinstance(mine, (bdn.LocalSteps, torch.optim.Optimizer)) and mine._links.prefix == "mine/"

    run_job(job, workers=1)


def test_instances_are_of_the_classes_at_both_places():
    model = make_model()

    def job(worker):
        optimizer = bdn.algorithms.Lion(model.parameters(), worker=worker)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            assert isinstance(optimizer, bdn.Lion)
        with pytest.raises(bandoneon.Unimplemented, match="cannot be pickled or copied"):
            copy.deepcopy(optimizer)

    run_job(job, workers=1)


# ---- Names at their old places ----


@pytest.mark.parametrize("name", old_names._MOVED_NAMES)
def test_a_name_of_before_is_there_with_a_warning(name):
    place = old_names._MOVED_NAMES[name]
    with pytest.warns(DeprecationWarning, match=f"bandoneon.torch.{name} is {place}.{name} now") as caught:
        thing = getattr(bdn, name)
    assert thing is getattr(importlib.import_module(place), name) and name not in bdn.__all__
    assert caught[0].filename == __file__
    with pytest.warns(DeprecationWarning):
        exec(f"from bandoneon.torch import {name}")


def test_every_algorithm_of_before_is_still_at_its_old_place():
    """A new one has no old place."""
    before = {
        "Average", "CSER", "DecayMomentumSGD", "DeMo", "EF21", "FrozenAdamW", "LANS", "Lion", "Muon", "muon_groups",
        "Nesterov", "OneBitAdam", "QSR", "SignMomentum", "SlowMo",
    }
    assert before <= old_names._MOVED_NAMES.keys()
    assert before <= set(bdn.algorithms.__all__)


@pytest.mark.parametrize("name", old_names._MOVED_MODULES)
def test_a_module_of_before_is_the_one_of_now(name):
    assert importlib.import_module(f"bandoneon.torch.{name}") is importlib.import_module(f"bandoneon.torch.algorithms.{name}")


PICKLED = {
    "SignMomentum": lambda: bdn.algorithms.SignMomentum(beta1=0.5),
    "Nesterov": lambda: bdn.algorithms.Nesterov(lr=0.5),
    "SlowMo": lambda: bdn.algorithms.SlowMo(beta=0.25),
    "Average": lambda: bdn.algorithms.Average(),
    "Prox": lambda: bdn.algorithms.Prox("mcp", theta=2.5),
    "QSR": lambda: bdn.algorithms.QSR(alpha=0.1, least=2, most=8),
    "LANS": lambda: bdn.algorithms.LANS([torch.ones(3)], lr=0.5),
    "Muon": lambda: bdn.algorithms.Muon([torch.ones(3, 3)], lr=0.5),
    "FrozenAdamW": lambda: bdn.algorithms.FrozenAdamW([torch.ones(3)], freeze_after=2),
    "DecayMomentumSGD": lambda: bdn.algorithms.DecayMomentumSGD([torch.ones(3)], lr=0.5),
}


@pytest.mark.parametrize("name", PICKLED)
def test_pickles_of_before_are_read(name):
    """They name the modules in which the classes were."""
    thing = PICKLED[name]()
    new = type(thing).__module__
    module = new.rsplit(".", 1)[1]
    old = f"bandoneon.torch.{'local_steps' if module in ('outer_steps', 'qsr') else module}"
    text = pickle.dumps(thing, protocol=0)
    assert new.encode() in text
    read = pickle.loads(text.replace(new.encode(), old.encode()))
    assert type(read) is type(thing)
    state = (lambda it: it.state_dict()) if isinstance(thing, torch.optim.Optimizer) else vars
    assert repr(state(read)) == repr(state(thing))
    with io.BytesIO() as file:
        torch.save(thing, file)
        file.seek(0)
        assert type(torch.load(file, weights_only=False)) is type(thing)
