"""Calls as other frameworks have them: what is said in their place."""

import inspect
import re

import pytest
import torch

import bandoneon
import bandoneon.torch as bdn
from bandoneon.torch import foreign_words
from cluster_helpers import (
    assert_same,
    linked,
    loss_of,
    make_batch,
    make_model,
    mean_grads,
    run_job,
)


def refused(call, kind=bandoneon.InvalidArgument):
    """What a call that is wrong is told, at one worker of a job."""

    def job(worker):
        model = make_model()
        with pytest.raises(kind) as caught:
            call(model, torch.optim.SGD(model.parameters(), 0.1), worker)
        return str(caught.value)

    return run_job(job, workers=1)[0]


WRAPPERS = {
    "DistributedOptimizer": lambda *args, **how: bdn.DistributedOptimizer(*args, **linked(**how)),
    "ServerOptimizer": lambda *args, **how: bdn.ServerOptimizer(*args, **linked(**how)),
    "LocalSteps": lambda *args, **how: bdn.LocalSteps(*args, tau=2, outer=bdn.algorithms.Average(), **linked(**how)),
    "CSER": lambda *args, **how: bdn.algorithms.CSER(*args, gradient=2, reset=2, period=2, **linked(**how)),
    "EF21": lambda *args, **how: bdn.algorithms.EF21(*args, **linked(**how)),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_parameters_without_names_are_told_where_names_come_from(name):
    said = refused(lambda model, sgd, worker: WRAPPERS[name](sgd, model.parameters(), worker=worker))
    assert "a tensor of shape [8, 6] without a name" in said and "give model.named_parameters()" in said


@pytest.mark.parametrize("name", WRAPPERS)
def test_who_puts_the_parameters_first_is_told_the_order(name):
    make = WRAPPERS[name]
    said = refused(lambda model, sgd, worker: make(model.named_parameters(), sgd, worker=worker))
    assert f"{name} takes the optimizer first, and got a generator" in said
    assert f"{name}(" in said.split("first, and got")[1] and "model.named_parameters())" in said
    said = refused(lambda model, sgd, worker: make(model, sgd, worker=worker))
    assert "got a model (Sequential)" in said
    said = refused(lambda model, sgd, worker: make(torch.optim.SGD, model.named_parameters(), worker=worker))
    assert "got the class SGD" in said


@pytest.mark.parametrize("given", ["a tensor", "names alone", "threes", "a number"])
def test_other_things_than_pairs_are_named(given):
    def named(model):
        return {
            "a tensor": torch.ones(2, 3),
            "names alone": [name for name, _ in model.named_parameters()],
            "threes": [(name, p, 0) for name, p in model.named_parameters()],
            "a number": 3,
        }[given]

    for make in (
        lambda model, sgd, worker: bdn.DistributedOptimizer(sgd, named(model), worker=worker),
        lambda model, sgd, worker: bdn.DDPState(named(model), worker=worker),
    ):
        assert "give model.named_parameters()" in refused(make)


def test_a_tensor_with_two_rows_is_no_pair():
    """It unpacks as one."""
    pairs = [torch.nn.Parameter(torch.ones(2, 3))]
    said = refused(lambda model, sgd, worker: bdn.broadcast_parameters(pairs, worker=worker))
    assert "parameters without names: broadcast_parameters(model)" in said
    said = refused(lambda model, sgd, worker: bdn.DDPState(pairs, worker=worker))
    assert "a tensor of shape [2, 3] without a name" in said


@pytest.mark.parametrize("form", ["the model", "pairs", "a dict"])
@pytest.mark.parametrize("name", ["DistributedOptimizer", "ServerOptimizer"])
def test_a_model_and_a_dict_are_as_good_as_pairs(name, form):
    """One step of plain SGD on the mean gradients."""

    def job(worker):
        model = make_model()
        named = {"the model": model, "pairs": model.named_parameters(), "a dict": dict(model.named_parameters())}[form]
        optimizer = WRAPPERS[name](torch.optim.SGD(model.parameters(), 0.5), named, worker=worker)
        loss_of(model, make_batch(worker.rank)).backward()
        optimizer.step()
        return {name: p.detach().clone() for name, p in model.named_parameters()}

    start = make_model()
    expected = {n: p.detach() - 0.5 * mean_grads(start)[n] for n, p in start.named_parameters()}
    for after in run_job(job, workers=2):
        assert_same(after, expected, rtol=0, atol=1e-7)


FOREIGN = {
    "Horovod's compression": (dict(compression=None), r"'compression': push= and pull= choose codecs.*push=\"fp16\""),
    "Horovod's op": (dict(op="Sum"), "'op': gradients .* are means over the workers; for the sum multiply"),
    "Horovod's groups": (dict(num_groups=2), "'num_groups': .*fusion-bytes"),
    "DDP's unused parameters": (dict(find_unused_parameters=True), "told to the other workers by itself: leave it out"),
    "DDP's buckets": (dict(bucket_cap_mb=25), "'bucket_cap_mb': the settings"),
    "BytePS's compressor": (dict(compression_params={}), "'compression_params': push= and pull="),
    "DeepSpeed's accumulation": (dict(gradient_accumulation_steps=2), "it is called backward_passes_per_step"),
    "DeepSpeed's clipping": (dict(gradient_clipping=1.0), "torch.nn.utils.clip_grad_norm_"),
    "a slip": (dict(moment=0.9), r"'moment'; did you mean links=Links\(momentum=\)\?"),
    "nobody's": (dict(xyzzy=1), "'xyzzy'; it has optimizer, named_parameters, push, pull"),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_a_foreign_argument_is_told_what_has_its_place(what):
    arguments, expected = FOREIGN[what]
    said = refused(lambda model, sgd, worker: bdn.DistributedOptimizer(sgd, model, **linked(**arguments)), TypeError)
    assert said.startswith("DistributedOptimizer() has no argument") and re.search(expected, said), said


def test_an_argument_in_anothers_place_is_named():
    """A compressor behind the optimizer, as with GRACE."""
    said = refused(
        lambda model, sgd, worker: bdn.DistributedOptimizer(sgd, "fp16", named_parameters=model), TypeError)
    assert said == ("DistributedOptimizer() takes optimizer, named_parameters by place and all else by name, and got a str "
                    "besides where named_parameters is, which is also given by name")
    said = refused(lambda model, sgd, worker: bdn.DistributedOptimizer(sgd, model, "fp16"), TypeError)
    assert said.endswith("takes optimizer, named_parameters by place and all else by name, and got a str besides")
    with pytest.raises(TypeError, match="push_pull.. takes tensor, name by place .* got a bool besides"):
        bdn.push_pull(torch.ones(1), "x", True)


def test_every_call_of_the_package_answers_them():
    """Those that take settings of any name leave it to the library to name them."""
    answered = set()
    for name in [*bdn.__all__, *bdn.algorithms.__all__]:
        thing = getattr(bdn if name in bdn.__all__ else bdn.algorithms, name)
        call = thing.__init__ if inspect.isclass(thing) else thing
        if not inspect.isfunction(call) or name == "ddp_hook":
            continue
        if any(p.kind is p.VAR_KEYWORD for p in inspect.signature(call).parameters.values()):
            continue
        with pytest.raises(TypeError, match=rf"^{name}\(\) has no argument 'process_set': give worker="):
            thing(process_set=None)
        answered.add(name)
    assert {"DistributedOptimizer", "LocalSteps", "Lion", "DDPState", "push_pull", "broadcast_object", "save"} <= answered


def test_words_of_other_frameworks_that_are_ours_in_another_call_say_so():
    with pytest.raises(TypeError, match=r"broadcast_parameters\(\) has no argument 'root_rank': it is called root"):
        bdn.broadcast_parameters({}, root_rank=0)
    with pytest.raises(TypeError, match=r"push_pull\(\) has no argument 'op': gradients and push_pull\(\) are means"):
        bdn.push_pull(torch.ones(1), "x", op="Sum")
    with pytest.raises(TypeError, match=r"OneBitAdam\(\) has no argument 'freeze_step': it is called warmup"):
        bdn.algorithms.OneBitAdam([torch.ones(1)], freeze_step=100)


@pytest.mark.parametrize("name, said", {
    "allreduce": "push_pull(tensor, \"name\").wait() replaces a tensor by the mean",
    "Compression": "push= and pull= choose codecs",
    "get_world_size": "it is called size()",
    "DistributedDataParallel": "torch's, with ddp_hook",
}.items())
def test_a_name_of_another_framework_is_told_what_is_called_here(name, said):
    with pytest.raises(AttributeError, match=re.escape(f"module 'bandoneon.torch' has no attribute '{name}': {said}")):
        getattr(bdn, name)


def test_a_name_of_nobodys_is_missing_as_ever():
    assert not hasattr(bdn, "xyzzy")
    with pytest.raises(AttributeError, match="^module 'bandoneon.torch' has no attribute 'xyzzy'$"):
        bdn.xyzzy
    assert not {name for name in foreign_words._CALLS if name in bdn.__all__}


def test_the_interface_still_says_its_own_arguments():
    assert list(inspect.signature(bdn.DistributedOptimizer).parameters)[:2] == ["optimizer", "named_parameters"]
    assert "Replaces the tensor, in place" in bdn.push_pull.__doc__
