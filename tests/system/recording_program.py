"""Trains a little, half by DistributedOptimizer and half by ServerOptimizer; a rank that is told to fails in the middle."""

import os
import sys
import time

import torch

import bandoneon.torch as bdn

STEPS = 6
failing = int(os.environ.get("RECORDING_PROGRAM_FAILS", "-1"))

bdn.init()
torch.manual_seed(0)
model, served = torch.nn.Linear(64, 8), torch.nn.Linear(64, 4)
optimizer = bdn.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
servers = bdn.ServerOptimizer(torch.optim.SGD(served.parameters(), lr=0.1), [(f"served.{name}", weight) for name, weight in served.named_parameters()])
for step in range(STEPS):
    if step == 3 and bdn.rank() == failing:
        sys.exit("this rank was told to fail")
    if step == STEPS - 1:
        time.sleep(float(os.environ.get("RECORDING_PROGRAM_PAUSES", "0")))
    loss = model(torch.randn(16, 64)).square().mean() + served(torch.randn(16, 64)).square().mean()
    loss.backward()
    optimizer.step()
    servers.step()
    optimizer.zero_grad()
    servers.zero_grad()
bdn.shutdown()
