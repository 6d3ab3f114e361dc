"""A small language for tests: models, batches, jobs inside this process, and what plain torch gets."""

import contextlib
import copy
import dataclasses
import hashlib

import torch

import bandoneon
import bandoneon.torch as bdn


ONEBIT = dict(push="ef(onebit(block=256))", pull="ef(onebit(block=256))")
_OF_LINKS = {field.name for field in dataclasses.fields(bdn.Links)}


def linked(**options):
    """Arguments of a constructor: those that Links has in its links=, all others as they are."""
    others = {name: value for name, value in options.items() if name not in _OF_LINKS}
    links = {name: value for name, value in options.items() if name in _OF_LINKS}
    return {**others, "links": bdn.Links(**links)} if links else others


def run_job(function, workers=2, servers=1, **settings):
    """[function(worker) of each rank], every rank a thread of this process."""
    with bandoneon.LocalCluster(workers=workers, servers=servers, **settings) as cluster:
        return cluster.run(function)


def make_model(seed=0, width=6):
    """The same on every worker. Built without touching the random state that threads share."""
    model = torch.nn.Sequential(
        torch.nn.Linear(width, 8),
        torch.nn.Tanh(),
        torch.nn.Linear(8, 8),
        torch.nn.Tanh(),
        torch.nn.Linear(8, 3),
    )
    fill(model, seed)
    return model


def fill(model, seed=0):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for param in model.parameters():
            param.copy_(torch.randn(param.shape, generator=generator) * 0.3)


def make_batch(rank, step=0, width=6, rows=4):
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(1000 * step + rank))


def loss_of(model, batch):
    return model(batch).square().mean()


def grads(model):
    return {
        name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()
    }


def mean_grads(model, workers=2, step=0, loss=loss_of):
    """What one exchange should give: by plain torch, without any job."""
    per_rank = []
    for rank in range(workers):
        own = copy.deepcopy(model)
        own.zero_grad()
        loss(own, make_batch(rank, step)).backward()
        per_rank.append(grads(own))
    return {name: sum(g[name] for g in per_rank) / workers for name in per_rank[0]}


def sgd(worker, model, lr=0.1, momentum=0.0, inner_momentum=0.0, nesterov=False, **options):
    """A distributed SGD, of which unknown options go to DistributedOptimizer."""
    inner = torch.optim.SGD(model.parameters(), lr=lr, momentum=inner_momentum, nesterov=nesterov)
    return bdn.DistributedOptimizer(
        inner,
        model.named_parameters(),
        worker=worker,
        **linked(momentum=momentum, **{"scaler": None, **options}),
    )


def after_backward(worker, model, optimizer, step=0, loss=loss_of):
    """The gradients as the backward pass leaves them."""
    loss(model, make_batch(worker.rank, step)).backward()
    return grads(model)


def train(worker, model, optimizer, steps=3, loss=loss_of):
    for step in range(steps):
        optimizer.zero_grad()
        loss(model, make_batch(worker.rank, step)).backward()
        optimizer.step()
    return model


def model_hash(model):
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def assert_same(actual, expected, **tolerance):
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        if value is None or actual[name] is None:
            assert value is None and actual[name] is None, name
        elif tolerance:
            torch.testing.assert_close(
                actual[name], value, msg=lambda m, n=name: f"{n}: {m}", **tolerance
            )
        else:
            assert torch.equal(actual[name], value), name


@contextlib.contextmanager
def recorded_pushes(worker, note=lambda push: push):
    """A list of the batches of pushes that the worker starts meanwhile, each a list of note(push)."""
    batches, push_all = [], worker.push_all

    def record(pushes):
        batches.append([note(push) for push in pushes])
        return push_all(pushes)

    worker.push_all = record
    try:
        yield batches
    finally:
        del worker.push_all


class BreaksOff(torch.autograd.Function):
    """The identity, through which no backward pass comes."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise RuntimeError("broke off")
