"""A program's default type and default device are its own: what is exchanged, saved and loaded is the same under any."""

import ast
import contextlib
import copy
import pathlib

import pytest
import torch

import bandoneon
import bandoneon.torch as bdn
from bandoneon.torch import exchange
from cluster_helpers import linked, loss_of, make_batch, make_model, run_job, sgd

SOURCES = pathlib.Path(bdn.__file__).resolve().parents[1]
# What torch makes of its own accord, of the default type and on the default device unless it is told.
FACTORIES = set(
    "arange empty empty_strided eye full linspace logspace ones rand randint randn randperm range scalar_tensor "
    "tensor zeros as_tensor asarray".split()
)


def calls_that_go_by_defaults(source):
    """(line, name) of calls of torch's factories without dtype= or device=."""
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        of_torch = isinstance(node.func.value, ast.Name) and node.func.value.id == "torch"
        if of_torch and node.func.attr in FACTORIES:
            if not {"dtype", "device"} <= {keyword.arg for keyword in node.keywords}:
                yield node.lineno, node.func.attr


def test_no_memory_of_the_packages_goes_by_the_programs_defaults():
    found = [
        f"{path.relative_to(SOURCES)}:{line}: torch.{name}()"
        for path in sorted(SOURCES.rglob("*.py"))
        for line, name in calls_that_go_by_defaults(path.read_text(encoding="utf-8"))
    ]
    assert not found, "give dtype= and device=, or take host_zeros() and its like of tensors.py"


def test_the_search_for_such_memory_finds_it():
    assert list(calls_that_go_by_defaults("x = torch.zeros(3)\ny = torch.empty(2, dtype=d)")) == [
        (1, "zeros"),
        (2, "empty"),
    ]
    assert not list(calls_that_go_by_defaults("torch.full(s, 1, dtype=d, device='cpu'); torch.stack(x)"))


@contextlib.contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def default_device(device):
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)


NONE = contextlib.nullcontext
# Of all threads, and of each: a default type is everybody's, a default device a thread's.
DEFAULTS = {
    "float64": (lambda: default_dtype(torch.float64), NONE),
    "bfloat16": (lambda: default_dtype(torch.bfloat16), NONE),
    "meta": (NONE, lambda: default_device("meta")),
    "context": (NONE, lambda: torch.device("meta")),
}


def inner(model, **options):
    return torch.optim.SGD(model.parameters(), lr=0.25, **options)


EF = dict(push="ef(onebit)", pull="ef(onebit)")
MAKERS = {
    "DistributedOptimizer": lambda model, **how: sgd(how.pop("worker"), model, lr=0.25, momentum=0.9, **EF, **how),
    "ServerOptimizer": lambda model, named, **how: bdn.ServerOptimizer(
        torch.optim.AdamW(model.parameters(), lr=0.25), named, **linked(push="ef(onebit)", pull="delta(int8)", **how)
    ),
    "LocalSteps": lambda model, named, **how: bdn.LocalSteps(
        inner(model, momentum=0.9), named, tau=2, outer=bdn.algorithms.SlowMo(),
        **linked(push="ef(onebit)", pull="delta(int8)", **how)
    ),
    "CSER": lambda model, named, **how: bdn.algorithms.CSER(
        inner(model), named, gradient=2, reset=2, period=2, block=2, **linked(**how)
    ),
    "EF21": lambda model, named, **how: bdn.algorithms.EF21(inner(model), named, **linked(**how)),
    "KFAC": lambda model, named, **how: bdn.algorithms.KFAC(model, inner(model), "fp16", 1, 2, **linked(**EF, **how)),
    "Lion": lambda model, named, **how: bdn.algorithms.Lion(named, 0.25, **linked(**how)),
    "DeMo": lambda model, named, **how: bdn.algorithms.DeMo(
        named, 0.25, **linked(push="topk(ratio=0.5)", pull="none", **how)
    ),
    "OneBitAdam": lambda model, named, **how: bdn.algorithms.OneBitAdam(
        named, 0.25, **linked(warmup=2, **how)
    ),
}
PLAIN = {
    "LANS": lambda params: bdn.algorithms.LANS(params, 0.25),
    "FrozenAdamW": lambda params: bdn.algorithms.FrozenAdamW(params, 0.25, freeze_after=2),
    "DecayMomentumSGD": lambda params: bdn.algorithms.DecayMomentumSGD(params, 0.25, weight_decay=0.1),
    "Muon": lambda params: bdn.algorithms.Muon(params, 0.25),
}


def make(kind, model, worker):
    if kind == "DistributedOptimizer":
        return MAKERS[kind](model, worker=worker)
    if kind in PLAIN:
        return bdn.DistributedOptimizer(
            PLAIN[kind](model.parameters()), model.named_parameters(), worker=worker, **linked(scaler=None, **EF)
        )
    return MAKERS[kind](model, list(model.named_parameters()), worker=worker)


def flat(value, path=""):
    """{path: a plain value or a tensor} in nested dicts and lists."""
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    else:
        return {path: value}
    return {k: v for key, of in items for k, v in flat(of, f"{path}/{key}").items()}


class Job:
    """Steps, a state, the same state taken up by another job, and steps again. The program's own tensors are made
    beforehand, so that only the library's go by the defaults."""

    def __init__(self, kind):
        self.kind = kind
        self.saved = {}

    def train(self, defaults, start=0, steps=3):
        of_all, of_each = defaults
        models = [make_model() for _ in range(2)]  # Here, for a default type is that of all threads.
        data = [[make_batch(rank, step) for step in range(start, start + steps)] for rank in range(2)]

        def job(worker):
            model, batches = models[worker.rank], data[worker.rank]
            with of_each():
                bdn.broadcast_parameters(model, worker=worker)
                optimizer = make(self.kind, model, worker)
                if start:
                    model.load_state_dict(self.saved[worker.rank]["model"])
                    optimizer.load_state_dict(self.saved[worker.rank]["optimizer"])
                    optimizer.load_comm_state_dict(self.saved[worker.rank]["comm"])
                for batch in batches:
                    optimizer.zero_grad()
                    loss_of(model, batch).backward()
                    optimizer.step()
                if start:
                    mean = bdn.push_pull(batches[0].clone(), "x", worker=worker).wait()
                    assert exchange.empty(3, worker=worker).tolist() is not None
                    return {"mean": mean, "model": model.state_dict()}
                comm = optimizer.comm_state_dict()
                bdn.broadcast_optimizer_state(optimizer, worker=worker)
            return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "comm": comm}

        with of_all():
            return run_job(job, min_compress_bytes=1)

    def __call__(self, defaults):
        """Of each rank, what it saved, and its end after having loaded that."""
        saved = self.train(defaults)
        self.saved = copy.deepcopy(saved)
        return saved, self.train(defaults, start=3)


_WITHOUT = {}


def without(kind):
    if kind not in _WITHOUT:
        _WITHOUT[kind] = Job(kind)((NONE, NONE))
    return _WITHOUT[kind]


@pytest.mark.parametrize("defaults", DEFAULTS)
@pytest.mark.parametrize("kind", [*MAKERS, *PLAIN])
def test_training_saving_and_loading_are_the_same_under_any(kind, defaults):
    expected, found = flat(without(kind)), flat(Job(kind)(DEFAULTS[defaults]))
    assert expected.keys() == found.keys()
    for path, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert found[path].dtype == value.dtype and found[path].device == value.device, path
            assert torch.equal(found[path], value), path
        else:
            assert found[path] == value, path


@pytest.mark.parametrize("defaults", DEFAULTS)
def test_a_checkpoint_a_join_and_objects_too(defaults, tmp_path):
    of_all, of_each = DEFAULTS[defaults]
    models = [make_model(seed) for seed in (0, 0, 1, 1)]
    data = [[make_batch(rank, step) for step in range(2 + rank)] for rank in range(2)]

    def job(worker):
        model, batches = models[worker.rank], data[worker.rank]
        with of_each():
            optimizer = sgd(worker, model, lr=0.25, **EF)
            with optimizer.join():
                for batch in batches:
                    optimizer.zero_grad()
                    loss_of(model, batch).backward()
                    optimizer.step()
            before = [param.detach().clone() for param in model.parameters()]
            bdn.save(tmp_path / "all", {"model": model, "optimizer": optimizer}, worker=worker)
            assert bdn.broadcast_object({"rank": worker.rank}, worker=worker) == {"rank": 0}
            optimizer.close()
            return [param.tolist() for param in before]

    def again(worker):
        model = models[2 + worker.rank]
        with of_each():
            optimizer = sgd(worker, model, lr=0.25, **{**EF, "check": False})
            bdn.load(tmp_path / "all", {"model": model, "optimizer": optimizer}, worker=worker)
            return [param.tolist() for param in model.parameters()]

    with of_all():
        assert run_job(job, min_compress_bytes=1) == run_job(again, min_compress_bytes=1)


def in_float64(kind):
    """A job that makes the optimizer of a float64 model, and steps."""

    def job(worker):
        model = make_model().to(torch.float64)
        optimizer = make(kind, model, worker)
        loss_of(model, make_batch(worker.rank).double()).backward()
        optimizer.step()
        return model

    return job


@pytest.mark.parametrize("kind", ["ServerOptimizer", "LocalSteps", "CSER", "KFAC", "OneBitAdam"])
def test_float64_is_refused_by_name_where_weights_or_codecs_would_round_it(kind):
    def job(worker):
        with pytest.raises(bandoneon.InvalidArgument, match="weight' is float64, .*(float32|no codec)") as said:
            in_float64(kind)(worker)
        assert said.value.tensor == "0.weight"
        assert kind in str(said.value) or "use float32 or no codec" in str(said.value)

    run_job(job)


@pytest.mark.parametrize("kind", ["EF21", "Lion", "DeMo"])
def test_float64_parameters_stay_so_where_only_what_moves_them_is_exchanged(kind):
    for model in run_job(in_float64(kind)):
        for param, start in zip(model.parameters(), make_model().to(torch.float64).parameters()):
            moved = param.detach() - start
            assert param.dtype == torch.float64 and moved.any()
            # What float32 weights would have lost.
            assert not torch.equal(param.detach(), param.detach().float().double())


def test_float64_without_a_codec_is_exchanged_as_it_is():
    def job(worker):
        model = make_model().to(torch.float64)
        optimizer = bdn.DistributedOptimizer(
            bdn.algorithms.Muon(model.parameters(), 0.1), model.named_parameters(), links=bdn.Links(scaler=None),
            worker=worker
        )
        loss_of(model, make_batch(worker.rank).double()).backward()
        optimizer.step()
        return [param.grad for param in model.parameters()]

    def plain(rank):
        model = make_model().to(torch.float64)
        loss_of(model, make_batch(rank).double()).backward()
        return [param.grad for param in model.parameters()]

    expected = [(a + b) / 2 for a, b in zip(plain(0), plain(1))]
    for found in run_job(job):
        assert all(f.dtype == torch.float64 and torch.equal(f, e) for f, e in zip(found, expected))
