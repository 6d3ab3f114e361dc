"""Hyperparameters that a scheduler, or load_state_dict(), changes in mid-run: plain torch's digits, or a refusal that
names the group and the key, of every optimizer that is exported."""

import copy
import inspect

import pytest
import torch

import bandoneon
import bandoneon.torch as bdn
from cluster_helpers import linked, make_model, run_job

STEPS, CHANGED_AT, WORKERS = 8, 3, 2
# How torch computes a step, and not what it is.
HOW = {"foreach", "fused", "capturable", "differentiable", "decoupled_weight_decay"}


def gradients(rank, step, params):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return [torch.randn(param.shape, generator=generator) + 0.1 * param.detach() for param in params]


def change(optimizer, key, value):
    optimizer.param_groups[0][key] = value


def by_state_dict(optimizer, key, value):
    state = copy.deepcopy(optimizer.state_dict())
    state["param_groups"][0][key] = value
    optimizer.load_state_dict(state)


def distributed(make_optimizer, key, value, how=change):
    """The parameters of each rank at the end of a run in which a hyperparameter changes."""

    def job(worker):
        model = make_model()
        optimizer = make_optimizer(model, worker)
        params = list(model.parameters())
        for step in range(STEPS):
            if step == CHANGED_AT:
                how(optimizer, key, value)
            optimizer.zero_grad()
            own = gradients(worker.rank, step, params)
            sum((p * g).sum() for p, g in zip(params, own)).backward()
            optimizer.step()
        return [param.detach().clone() for param in params]

    return run_job(job, WORKERS)


def plain(make_inner, key, value, how=change):
    """The same by one process on the mean gradient."""
    model = make_model()
    optimizer = make_inner(model.parameters())
    params = list(model.parameters())
    for step in range(STEPS):
        if step == CHANGED_AT:
            how(optimizer, key, value)
        every = [gradients(rank, step, params) for rank in range(WORKERS)]
        for param, *own in zip(params, *every):
            param.grad = sum(own) / WORKERS
        optimizer.step()
    return [param.detach().clone() for param in params]


def begun_anew(make_inner, key, value):
    """By an optimizer that was made with the value, and given the other's state: what such a change means where
    torch has no such optimizer."""
    model = make_model()
    params = list(model.parameters())
    optimizer = make_inner(params)
    for step in range(STEPS):
        if step == CHANGED_AT:
            new = make_inner(params, **{key: value})
            groups = new.state_dict()["param_groups"]
            new.load_state_dict({"state": copy.deepcopy(optimizer.state_dict()["state"]), "param_groups": groups})
            optimizer = new
        every = [gradients(rank, step, params) for rank in range(WORKERS)]
        for param, *own in zip(params, *every):
            param.grad = sum(own) / WORKERS
        optimizer.step()
    return [param.detach().clone() for param in params]


# ---- Inner optimizers, and what is done to each of their hyperparameters


def sgd(params, **options):
    return torch.optim.SGD(params, **{"lr": 0.05, "momentum": 0.9, "weight_decay": 0.1, **options})


def adamw(params, **options):
    return torch.optim.AdamW(params, **{"lr": 0.05, "betas": (0.8, 0.95), **options})


SGD_CHANGES = dict(lr=0.02, momentum=0.5, weight_decay=0.3, nesterov=True, dampening=0.5, maximize=True)
ADAMW_CHANGES = dict(lr=0.02, betas=(0.6, 0.9), eps=1e-3, weight_decay=0.3, amsgrad=True, maximize=True)
PER_PARAMETER = {
    "LANS": (bdn.algorithms.LANS, dict(lr=0.02, betas=(0.6, 0.9), eps=1e-3, weight_decay=0.3, normalize_grad=True)),
    "FrozenAdamW": (
        lambda params, **how: bdn.algorithms.FrozenAdamW(params, **{"lr": 0.05, "freeze_after": 4, **how}),
        dict(lr=0.02, betas=(0.6, 0.9), eps=1e-3, weight_decay=0.3, freeze_after=6),
    ),
    "DecayMomentumSGD": (
        lambda params, **how: bdn.algorithms.DecayMomentumSGD(params, **{"lr": 0.05, "weight_decay": 0.1, **how}),
        dict(lr=0.02, weight_decay=0.3, decay_momentum=0.5),
    ),
    "Muon": (
        bdn.algorithms.Muon,
        dict(lr=0.02, momentum=0.5, betas=(0.6, 0.9), eps=1e-3, weight_decay=0.3, matrices=False),
    ),
}
REFUSED = {("Muon", "matrices"), ("ServerOptimizer of AdamW", "amsgrad")}
REFUSED |= {(f"ServerOptimizer of {inner}", "maximize") for inner in ("SGD", "AdamW")}
REFUSED |= {("ServerOptimizer of SGD", "dampening")}


def around(cls, inner, **options):
    """make_optimizer(model, worker) of an optimizer that goes around another."""
    how = options if cls is bdn.algorithms.EF21 else linked(**options)  # It has a momentum of its own.
    return lambda model, worker: cls(inner(model.parameters()), list(model.named_parameters()), worker=worker, **how)


def by_itself(cls, **options):
    return lambda model, worker: cls(model.named_parameters(), worker=worker, **linked(**options))


DENSE = dict(push="none", pull="none")
# name: (the distributed one, the plain one that it equals, changes)
AROUND = {
    f"{outer.__name__} of {name}": (around(outer, inner, **options), inner, changes)
    for outer, options in [
        (bdn.DistributedOptimizer, dict(scaler=None)),
        (bdn.ServerOptimizer, {}),
        (bdn.LocalSteps, dict(tau=1, outer=bdn.algorithms.Average())),
        (bdn.algorithms.CSER, dict(gradient="none", reset="none")),
        (bdn.algorithms.EF21, dict(DENSE, momentum=0.0)),
    ]
    for name, inner, changes in [("SGD", sgd, SGD_CHANGES), ("AdamW", adamw, ADAMW_CHANGES)]
    # Each worker's own second moments, of its own gradients, are not those of a mean.
    if name == "SGD" or outer not in (bdn.LocalSteps, bdn.algorithms.CSER)
}


def lion(params, **options):
    return _Lion(params, **{"lr": 0.05, "betas": (0.8, 0.95), "weight_decay": 0.1, **options})


class _Lion(torch.optim.Optimizer):
    def __init__(self, params, **defaults):
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            (beta1, beta2), lr = group["betas"], group["lr"]
            for param in group["params"]:
                kept = self.state[param].setdefault("m", torch.zeros_like(param))
                update = torch.lerp(param.grad, kept, beta1).sign_()
                kept.lerp_(param.grad, 1 - beta2)
                param.mul_(1 - lr * group["weight_decay"]).sub_(update, alpha=lr)


class _DeMo(torch.optim.Optimizer):
    """Nothing is left out of what it sends: the momentum begins at 0 at every step."""

    def __init__(self, params, **defaults):
        super().__init__(params, {"lr": 0.05, "decay": 0.9, "weight_decay": 0.1, **defaults})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for param in group["params"]:
                param.mul_(1 - group["lr"] * group["weight_decay"]).sub_(param.grad.sign(), alpha=group["lr"])


BY_ITSELF = {
    "Lion": (
        by_itself(bdn.algorithms.Lion, lr=0.05, betas=(0.8, 0.95), weight_decay=0.1, **DENSE),
        lion,
        dict(lr=0.02, betas=(0.6, 0.9), weight_decay=0.3),
    ),
    "OneBitAdam": (
        by_itself(bdn.algorithms.OneBitAdam, lr=0.05, betas=(0.8, 0.95), weight_decay=0.1, warmup=4, **DENSE),
        lambda params: bdn.algorithms.FrozenAdamW(params, 0.05, (0.8, 0.95), weight_decay=0.1, freeze_after=4),
        dict(lr=0.02, betas=(0.6, 0.9), eps=1e-3, weight_decay=0.3),
    ),
    "DeMo": (
        by_itself(bdn.algorithms.DeMo, lr=0.05, decay=0.9, weight_decay=0.1, **DENSE),
        _DeMo,
        dict(lr=0.02, decay=0.5, weight_decay=0.3),
    ),
}
# Its hooks see no forward pass here, so that it steps all as the optimizer does.
AROUND["KFAC of SGD"] = (
    lambda model, worker: bdn.algorithms.KFAC(model, sgd(model.parameters()), worker=worker), sgd, SGD_CHANGES
)
JOBS = {**AROUND, **BY_ITSELF}
CASES = [(name, key) for name, (_, _, changes) in JOBS.items() for key in changes]


def assert_close(models, expected):
    for model in models:
        for param, value in zip(model, expected):
            torch.testing.assert_close(param, value, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name, key", CASES)
def test_a_change_in_mid_run_has_plain_torchs_digits_or_is_refused(name, key):
    make_optimizer, make_inner, changes = JOBS[name]
    if (name, key) in REFUSED:
        with pytest.raises(bandoneon.InvalidArgument, match=f"group 0 .*{key}="):
            distributed(make_optimizer, key, changes[key])
        return
    if key == "amsgrad":  # Which torch itself cannot begin in mid-run.
        for run, make in ((plain, make_inner), (distributed, make_optimizer)):
            with pytest.raises(KeyError, match="max_exp_avg_sq"):
                run(make, key, changes[key])
        return
    assert_close(distributed(make_optimizer, key, changes[key]), plain(make_inner, key, changes[key]))


@pytest.mark.parametrize("name, key", [(name, key) for name, (_, changes) in PER_PARAMETER.items() for key in changes])
def test_a_change_of_our_plain_ones_is_that_of_one_made_with_the_value(name, key):
    make, changes = PER_PARAMETER[name]

    def make_inner(params, **options):
        return make(params, **{"lr": 0.05, **options})

    if (name, key) in REFUSED:
        with pytest.raises(bandoneon.InvalidArgument, match=f"{key}=.* group 0"):
            plain(make_inner, key, changes[key])
        return
    expected = begun_anew(make_inner, key, changes[key])
    assert_close([plain(make_inner, key, changes[key])], expected)
    wrapped = around(bdn.DistributedOptimizer, make_inner, scaler=None)
    assert_close(distributed(wrapped, key, changes[key]), expected)


def test_every_optimizer_and_each_of_its_hyperparameters_is_here():
    exported = {
        name
        for module in (bdn, bdn.algorithms)
        for name in module.__all__
        if inspect.isclass(getattr(module, name)) and issubclass(getattr(module, name), torch.optim.Optimizer)
    }
    here = {name.split()[0] for name in JOBS}
    assert here | set(PER_PARAMETER) == exported | {"DistributedOptimizer"}
    for name, (_, make_inner, changes) in JOBS.items():
        model = make_model()
        keys = set(make_inner(list(model.parameters())).defaults) - HOW
        if name == "OneBitAdam":
            keys -= {"freeze_after"}  # `warmup`, which is no group's
        assert set(changes) == keys, name
    for name, (make, changes) in PER_PARAMETER.items():
        assert set(changes) == set(make([torch.ones(2, 2)], lr=0.1).defaults), name


@pytest.mark.parametrize("make_inner", [sgd, adamw], ids=["SGD", "AdamW"])
@pytest.mark.parametrize("outer", [bdn.ServerOptimizer, bdn.DistributedOptimizer])
def test_other_hyperparameters_that_are_loaded_hold(outer, make_inner):
    key, value = ("momentum", 0.5) if make_inner is sgd else ("betas", (0.6, 0.9))
    options = {"scaler": None} if outer is bdn.DistributedOptimizer else {}
    # The servers have the moments, so a worker's state is none, and torch's is its own.
    found = distributed(around(outer, make_inner, **options), key, value, by_state_dict)
    assert_close(found, plain(make_inner, key, value, by_state_dict))


def one_cycle(optimizer):
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=40)


SCHEDULED = {
    "momentum": sgd,
    "begins without momentum": lambda params: sgd(params, momentum=0.0),
    "betas": adamw,
    "adam": lambda params: torch.optim.Adam(params, lr=0.05),
}


@pytest.mark.parametrize("wrap", ["ServerOptimizer", "delta", "two servers", "DistributedOptimizer"])
@pytest.mark.parametrize("name", SCHEDULED)
def test_one_cycle_cycles_the_momentum_of_the_servers_too(name, wrap):
    """40 steps, with betas or momentum that differ in each."""

    def train(make_optimizer, rank_gradients):
        model = make_model()
        params = list(model.parameters())
        optimizer = make_optimizer(model)
        scheduler = one_cycle(optimizer)
        for step in range(39):
            for param, grad in zip(params, rank_gradients(step, params)):
                param.grad = grad
            optimizer.step()
            scheduler.step()
        return [param.detach().clone() for param in params]

    def job(worker):
        if wrap == "DistributedOptimizer":
            outer, options = bdn.DistributedOptimizer, dict(scaler=None)
        else:
            outer, options = bdn.ServerOptimizer, {"pull": "delta(none)"} if wrap == "delta" else {}

        def make_optimizer(model):
            return around(outer, SCHEDULED[name], **options)(model, worker)

        def mean(step, params):
            every = [gradients(rank, step, params) for rank in range(WORKERS)]
            return [sum(own) / WORKERS for own in zip(*every)]

        own = mean if wrap == "DistributedOptimizer" else lambda s, p: gradients(worker.rank, s, p)
        return train(make_optimizer, own)

    def mean(step, params):
        every = [gradients(rank, step, params) for rank in range(WORKERS)]
        return [sum(own) / WORKERS for own in zip(*every)]

    expected = train(lambda model: SCHEDULED[name](model.parameters()), mean)
    with_two = dict(servers=2, partition_bytes=4096) if wrap == "two servers" else {}
    for model in run_job(job, WORKERS, **with_two):
        for param, value in zip(model, expected):
            torch.testing.assert_close(param, value, rtol=2e-4, atol=2e-5)


def test_a_state_that_was_saved_in_mid_cycle_goes_on_with_the_servers_moments():
    def job(worker, saved=None, steps=(0, 10)):
        model = make_model()
        params = list(model.parameters())
        optimizer = around(bdn.ServerOptimizer, lambda p: sgd(p, momentum=0.0))(model, worker)
        scheduler = one_cycle(optimizer)
        if saved is not None:
            comm, inner, schedule = saved[worker.rank]
            optimizer.load_comm_state_dict(comm)
            optimizer.load_state_dict(inner)
            scheduler.load_state_dict(schedule)
        for step in range(*steps):
            for param, grad in zip(params, gradients(worker.rank, step, params)):
                param.grad = grad
            optimizer.step()
            scheduler.step()
        state = optimizer.comm_state_dict(), optimizer.state_dict(), scheduler.state_dict()
        return copy.deepcopy(state), [param.detach().clone() for param in params]

    whole = [params for _, params in run_job(lambda worker: job(worker, steps=(0, 20)))]
    saved = [state for state, _ in run_job(job)]
    resumed = [params for _, params in run_job(lambda worker: job(worker, saved, (10, 20)))]
    for model, expected in zip(resumed, whole):
        assert all(torch.equal(param, value) for param, value in zip(model, expected))


def test_workers_whose_hyperparameters_differ_are_told():
    def job(worker):
        model = make_model()
        optimizer = around(bdn.ServerOptimizer, adamw)(model, worker)
        if worker.rank == 1:
            change(optimizer, "betas", (0.5, 0.9))
        for param in model.parameters():
            param.grad = torch.ones_like(param)
        optimizer.step()

    with pytest.raises(bandoneon.FailedPrecondition, match="hyperparameters of this worker .* not those of all"):
        run_job(job)


def test_a_value_that_servers_do_not_take_is_refused_by_group():
    def job(worker):
        model = make_model()
        params = list(model.parameters())
        inner = torch.optim.AdamW([{"params": params[:2]}, {"params": params[2:]}], lr=0.1)
        optimizer = bdn.ServerOptimizer(inner, list(model.named_parameters()), worker=worker)
        inner.param_groups[1]["betas"] = (1.0, 0.9)
        for param in params:
            param.grad = torch.ones_like(param)
        optimizer.step()

    with pytest.raises(bandoneon.InvalidArgument, match=r"group 1 \(betas=\(1.0, 0.9\)"):
        run_job(job)


def test_a_scheduler_that_gives_the_optimizer_momentum_beside_the_links_is_refused():
    """Not at the second step alone, as when it is made."""

    def job(worker):
        model = make_model()
        optimizer = bdn.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1),
            model.named_parameters(),
            links=bdn.Links(momentum=0.9, scaler=None),
            worker=worker,
        )
        scheduler = one_cycle(optimizer)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(2, 6)).sum().backward()
            optimizer.step()
            scheduler.step()

    with pytest.raises(bandoneon.InvalidArgument, match="momentum=0.95 of the optimizer's group 0.*cycle_momentum=False"):
        run_job(job)
