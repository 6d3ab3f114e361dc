"""A worker of lost_training_test.py: trains with torch, and the last worker is killed amid it.

Worker r's loss draws all weights towards r. So those that are left have an optimum of their own, which tells whether anything of
the lost worker's is still counted.
"""

import os
import pathlib
import signal
import sys

import torch

import bandoneon
import bandoneon.torch as bdn

CASE = os.environ["TEST_CASE"]
DIRECTORY = os.environ.get("TEST_DIRECTORY", "")
LAYOUT = os.environ.get("TEST_LAYOUT", "shared")
ELEMENTS = 2000
OPTIMIZERS = {
    "EF21": lambda sgd, named: bdn.algorithms.EF21(sgd, named, momentum=0.5),
    "CSER": lambda sgd, named: bdn.algorithms.CSER(sgd, named, gradient=8, reset=4, period=2, block=16),
    "CSER-model": lambda sgd, named: bdn.algorithms.CSER(
        sgd, named, gradient=8, reset=4, period=2, block=16, implementation="model"
    ),
    "DistributedOptimizer": lambda sgd, named: bdn.DistributedOptimizer(
        sgd, named, push="ef(onebit(block=64))", pull="ef(onebit(block=64))"
    ),
}


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def train(weights, optimizer, steps, dies_at=None):
    """Takes steps; the last worker is killed at the one before whose exchange it would have been."""
    worker = bandoneon.default_worker()
    for step in range(steps):
        if step == dies_at and worker.rank == worker.size - 1:
            die()
        optimizer.zero_grad()
        (0.5 * (weights - worker.rank).square()).sum().backward()
        optimizer.step()


def make(name, lr=0.1):
    weights = torch.nn.Parameter(torch.full((ELEMENTS,), 5.0))
    return weights, OPTIMIZERS[name](torch.optim.SGD([weights], lr=lr), [("weights", weights)])


def say(what, weights):
    values = weights.detach()
    print(what, f"{values.mean():.4f} {(values - values.mean()).abs().max():.4f} {hash(values.numpy().tobytes())}", flush=True)


def optimum(name):
    """The weights that those who are left train to."""
    weights, optimizer = make(name)
    train(weights, optimizer, 200, dies_at=20)
    if name.startswith("CSER"):
        with optimizer.averaged_weights():
            say("weights", weights)
        with optimizer.common_weights():
            say("common", weights)
    else:
        say("weights", weights)


def state_of(weights, optimizer):
    module = torch.nn.Module()
    module.weights = weights
    return {"model": module, "optimizer": optimizer, "rank": bandoneon.rank()}


def save():
    """Saves, loses a worker, and saves once more."""
    weights, optimizer = make("DistributedOptimizer")
    state = state_of(weights, optimizer)
    train(weights, optimizer, 10)
    bdn.save(place(), state, layout=LAYOUT)
    train(weights, optimizer, 10, dies_at=5)
    bdn.save(place(), state, layout=LAYOUT)
    say("saved", weights)


def place():
    """With layout hosts each worker has a directory of its own, as if it were alone on its host."""
    return pathlib.Path(DIRECTORY, f"host{bandoneon.rank()}" if LAYOUT == "hosts" else "")


def save_again(state):
    try:
        bdn.save(place(), state, layout=LAYOUT)
        print("saved again", flush=True)
    except bandoneon.FailedPrecondition as error:
        print("refused:", error, flush=True)


class Deadly:
    """A value in whose save its worker is killed: half of its file is there."""

    def __reduce__(self):
        die()


def killed():
    """The last worker is killed amid the second save."""
    weights, optimizer = make("DistributedOptimizer")
    state = state_of(weights, optimizer)
    train(weights, optimizer, 10)
    bdn.save(place(), state, layout=LAYOUT)
    say("saved", weights)
    train(weights, optimizer, 10)
    worker = bandoneon.default_worker()
    is_last = worker.rank == worker.size - 1
    save_again({**state, "deadly": Deadly() if is_last else None})


def load():
    weights, optimizer = make("DistributedOptimizer")
    state = state_of(weights, optimizer)
    values = bdn.load(place(), state)
    say("loaded", weights)
    assert values["rank"] == bandoneon.rank() % int(os.environ["TEST_SAVED_BY"]), values


def main():
    with bandoneon.init():
        {"save": save, "killed": killed, "load": load}.get(CASE, lambda: optimum(CASE))()
    print("left", flush=True)


if __name__ == "__main__":
    main()
    sys.exit(0)
