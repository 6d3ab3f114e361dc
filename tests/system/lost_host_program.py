"""A process of lost_worker_test.py behind a host's daemon: steps a ServerOptimizer until a host is lost, changes all that servers
step by, and compares the weights with plain torch's.

All gradients of a step are equal, so their mean is the same whoever is there.
"""

import os
import sys

import torch

import bandoneon
import bandoneon.torch as bdn

STEPS_AFTER = 10


def model():
    torch.manual_seed(1)
    return torch.nn.Linear(40, 30)


def optimizer_of(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.5)


def main():
    bdn.init()
    worker = bandoneon.default_worker()
    ours, plain = model(), model()
    optimizer = bdn.ServerOptimizer(optimizer_of(ours.parameters()), ours.named_parameters())
    reference = optimizer_of(plain.parameters())
    steps = 0

    def step():
        nonlocal steps
        steps += 1
        generator = torch.Generator().manual_seed(steps)
        for mine, theirs in zip(ours.parameters(), plain.parameters()):
            mine.grad = torch.randn(mine.shape, generator=generator)
            theirs.grad = mine.grad.clone()
        optimizer.step()
        reference.step()

    print("present", *worker.present(), "of", bdn.size(), "first", worker.first_rank(), flush=True)
    while len(worker.present()) == worker.size:  # The same in all, so all end this loop with the same step.
        step()
        if steps == 20:
            print("running", flush=True)
    step()  # With its end all have heard who is left.
    print("present", *worker.present(), "of", bdn.size(), "first", worker.first_rank(), flush=True)
    for changed in (*optimizer.param_groups, *reference.param_groups):
        changed.update(lr=0.03, momentum=0.8, weight_decay=0.05)
    for _ in range(STEPS_AFTER):
        step()
    off = max((mine - theirs).abs().max().item() for mine, theirs in zip(ours.parameters(), plain.parameters()))
    print(f"rank {bdn.rank()}: off by {off:.1e} after {steps} steps", flush=True)
    assert off < 1e-5, off
    bdn.shutdown()


if __name__ == "__main__":
    main()
    sys.exit(0)
