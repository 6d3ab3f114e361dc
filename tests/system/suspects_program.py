"""Trains with passes and exchanges of known lengths; SUSPECT_RANK is slowed as SUSPECT_FAULT says from step SUSPECT_FROM on."""

import gc
import os
import time

import torch

import bandoneon.torch as bdn

COMPUTE = 0.05
STEPS, FROM = int(os.environ["SUSPECT_STEPS"]), int(os.environ["SUSPECT_FROM"])
RANK, FAULT = int(os.environ["SUSPECT_RANK"]), os.environ["SUSPECT_FAULT"]


class Timed(torch.nn.Module):
    """A layer whose forward pass takes a time, and no processor."""

    seconds = COMPUTE

    def forward(self, x):
        time.sleep(self.seconds)
        return x


bdn.init()
torch.manual_seed(0)
torch.set_num_threads(1)
timed = Timed()
# Of 1 MiB, so that a link's rate matters.
model = torch.nn.Sequential(timed, *[torch.nn.Linear(256, 256) for _ in range(4)])
optimizer = bdn.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())
inputs = torch.randn(4, 256)
# A collection of so many objects takes about 50 ms.
ballast = [[i] for i in range(600_000)] if FAULT == "gc" else []
gc.disable()
is_slow = bdn.rank() == RANK
for step in range(STEPS):
    if is_slow and step >= FROM:
        if FAULT == "compute":
            timed.seconds = 1.1 * COMPUTE
        elif FAULT == "input":
            time.sleep(0.03)
        elif FAULT == "gc" and step % 7 == 0:
            gc.collect()
    model(inputs).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if bdn.rank() == 0:
        print(f"step {step}", flush=True)
bdn.shutdown()
