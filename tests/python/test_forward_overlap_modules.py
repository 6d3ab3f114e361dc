"""overlap="forward", by modules: who reads which parameters, copies, compiled models, and what is refused."""

import copy
import gc
import io
import pickle
import warnings
import weakref

import pytest
import torch

import bandoneon
import bandoneon.torch as bdn
from cluster_helpers import fill, loss_of, make_batch, make_model, model_hash, run_job, train
from forward_overlap_helpers import assert_same_models, distributed


# ---- Who reads what ----


class Tied(torch.nn.Module):
    def __init__(self, functional):
        super().__init__()
        self.embed = torch.nn.Linear(6, 6, bias=False)
        self.block = torch.nn.Linear(6, 6)
        self.head = torch.nn.Linear(6, 6, bias=False)
        self.functional = functional
        if not functional:
            self.head.weight = self.embed.weight
        fill(self)

    def forward(self, batch):
        x = torch.tanh(self.block(torch.tanh(self.embed(batch))))
        x = torch.tanh(self.block(x))
        return torch.nn.functional.linear(x, self.embed.weight) + 0 * self.head(x) if self.functional else self.head(x)


class Attends(torch.nn.Module):
    """Of which out_proj's weights are read, and out_proj is not called."""

    def __init__(self):
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(6, 2, batch_first=True)
        self.scale = torch.nn.Parameter(torch.ones(6))
        self.shifts = torch.nn.ParameterList([torch.zeros(6), torch.zeros(6)])
        fill(self)

    def forward(self, batch):
        x = batch.unsqueeze(0)
        return self.attention(x, x, x)[0] * self.scale + self.shifts[0]


def old_weight_norm():
    model = make_model()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.nn.utils.weight_norm(model[0])
    return model


def new_weight_norm():
    model = make_model()
    torch.nn.utils.parametrizations.weight_norm(model[0])
    return model


def shared_module():
    torch.manual_seed(0)
    shared = torch.nn.Linear(6, 6)
    model = torch.nn.Sequential(shared, torch.nn.Tanh(), torch.nn.Sequential(shared, torch.nn.Linear(6, 3)))
    fill(model)
    return model


@pytest.mark.parametrize(
    "make",
    [
        lambda: Tied(functional=False),
        lambda: Tied(functional=True),
        Attends,
        old_weight_norm,
        new_weight_norm,
        shared_module,
        lambda: torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(6, 3)),
    ],
    ids="tied,tied by function,attention,old weight norm,weight norm,shared module,spectral norm".split(","),
)
def test_parameters_that_several_modules_or_others_read(make):
    state = make().state_dict()

    def job(worker, overlap):
        model = make()
        model.load_state_dict(state)
        optimizer = distributed(worker, model, overlap, lambda p: torch.optim.Adam(p, 0.02))
        train(worker, model, optimizer, steps=5)
        return model_hash(model)

    assert_same_models(job)


def test_parameters_that_one_module_holds_several_times():
    class Twice(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.one = self.other = torch.nn.Parameter(torch.zeros(6, 6))
            held = torch.nn.ParameterList([torch.zeros(6)])  # Which both read, and nobody calls.
            self.parts = torch.nn.ModuleList([Shift(held), Shift(held)])
            fill(self)

        def forward(self, batch):
            return self.parts[1](self.parts[0](batch @ self.one) @ self.other)

    class Shift(torch.nn.Module):
        def __init__(self, held):
            super().__init__()
            self.held = held

        def forward(self, batch):
            return torch.tanh(batch + self.held[0])

    def job(worker, overlap):
        model = Twice()
        optimizer = distributed(worker, model, overlap)
        return model_hash(train(worker, model, optimizer, steps=4))

    assert_same_models(job)


def test_a_model_with_hooks_can_be_copied_and_pickled():
    def job(worker):
        model = make_model()
        optimizer = distributed(worker, model, "forward")
        train(worker, model, optimizer, steps=2)
        optimizer.synchronize()
        others = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
        buffer = io.BytesIO()
        torch.save(model, buffer)
        buffer.seek(0)
        others.append(torch.load(buffer, weights_only=False))
        train(worker, model, optimizer, steps=1)
        before = [p.tolist() for p in model.parameters()]
        for other in others:
            assert loss_of(other, make_batch(0)).item() and model_hash(other)
        assert [p.tolist() for p in model.parameters()] == before  # Theirs do nothing.
        return model_hash(model) != model_hash(others[0])

    assert run_job(job) == [True, True]


def test_nothing_of_a_model_stays_that_is_gone():
    def job(worker):
        model = make_model()
        optimizer = distributed(worker, model, "forward")
        train(worker, model, optimizer, steps=2)
        gone = weakref.ref(model[0].weight)
        del model, optimizer
        gc.collect()
        found = gone() is None
        model = make_model()
        optimizer = distributed(worker, model, "forward")  # Takes the names up.
        train(worker, model, optimizer, steps=1)
        return found

    assert run_job(job, workers=1) == [True]  # A gc.collect() beside another thread's does nothing.

# ---- Compiled models ----


def compiled_and_given(model):
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    return compiled, compiled


def compiled_not_given(model):
    return model, torch.compile(model, backend="eager")


def compiled_in_place(model):
    model.compile(backend="eager")
    return model, model


def inner_in_place(model):
    model[2].compile(backend="eager")
    return model, model


def inner_wrapped(model):
    model[2] = torch.compile(model[2], backend="eager", fullgraph=True)
    return model, model


def compiled_function(model):
    return model, torch.compile(lambda batch: model(batch) * 1.0, backend="eager")


@pytest.mark.parametrize(
    "compile",
    [compiled_and_given, compiled_not_given, compiled_in_place, inner_in_place, inner_wrapped, compiled_function],
)
def test_compiled_models(compile):
    def job(worker, overlap):
        torch._dynamo.reset()  # What was compiled without hooks is taken for the same model with them.
        model = make_model()
        given, called = compile(model)
        optimizer = distributed(worker, given, overlap, lambda p: torch.optim.Adam(p, 0.01))
        train(worker, called, optimizer, steps=4)
        return model_hash(given)

    assert_same_models(job, workers=1)

# ---- What is refused ----


def test_a_forward_pass_that_reads_what_is_still_to_be_stepped_is_an_error():
    def read_around(model, batch):
        return model[2:](torch.nn.functional.linear(batch, model[0].weight)).square().mean()

    def job(worker):
        model = make_model()
        optimizer = distributed(worker, model, "forward")
        train(worker, model, optimizer, steps=2)
        optimizer.zero_grad()
        loss = read_around(model, make_batch(worker.rank))
        with pytest.raises(bandoneon.FailedPrecondition, match="'0.weight' got a gradient.*synchronize"):
            loss.backward()
        with pytest.raises(bandoneon.FailedPrecondition, match="'0.weight' got a gradient"):
            torch.autograd.grad(read_around(model, make_batch(worker.rank)), [model[0].weight])
        optimizer.synchronize()
        loss = read_around(model, make_batch(worker.rank))
        loss.backward()  # After which it may be read so.
        optimizer.step()
        return model_hash(model)

    first, second = run_job(job)
    assert first == second


class GroupNormalized(torch.optim.SGD):
    """Its steps depend on all gradients together."""


@pytest.mark.parametrize("make", [GroupNormalized, torch.optim.LBFGS])
def test_an_optimizer_that_may_not_step_one_by_one_is_refused(make):
    def job(worker):
        model = make_model()
        with pytest.raises(bandoneon.InvalidArgument, match=f"{make.__name__}.*overlap='backward'"):
            distributed(worker, model, "forward", lambda p: make(p, lr=0.1))
        train(worker, model, distributed(worker, model, "backward"), steps=1)  # Nothing was declared.

    run_job(job)


def test_it_needs_the_model():
    def job(worker):
        model = make_model()
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        for named in (None, model.named_parameters()):
            with pytest.raises(bandoneon.InvalidArgument, match="give DistributedOptimizer the model"):
                bdn.DistributedOptimizer(inner, named, worker=worker, overlap="forward")
        with pytest.raises(bandoneon.InvalidArgument, match="overlap='sideways'"):
            bdn.DistributedOptimizer(inner, model, worker=worker, overlap="sideways")
        optimizer = distributed(worker, model, "forward")
        other = torch.nn.Parameter(torch.zeros(3))
        with pytest.raises(bandoneon.InvalidArgument, match="'other'.*no module"):
            optimizer.add_param_group({"params": [other]}, [("other", other)])
        assert len(optimizer.param_groups) == 1

    run_job(job)
