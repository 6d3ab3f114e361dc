"""A long training run to try losses on: it prints a checksum of its weights every hundred steps.

    build/release/bin/bandoneon run -n 3 -s 2 --restarts 50 -- build/venv/bin/python examples/survive.py

In another shell kill the scheduler and servers as often as you like:

    pkill -KILL bandoneon-sched
    pkill -KILL bandoneon-serve

The checksums are those of an undisturbed run, and so is the last line (docs/survival.md).
"""

import argparse
import hashlib

import torch

import bandoneon.torch as bdn

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("--steps", type=int, default=2000)
parser.add_argument("--every", type=int, default=100, help="steps between two checksums")
parser.add_argument("--codec", default="ef(onebit)", help="of pushes and of replies")
options = parser.parse_args()

worker = bdn.init()
torch.set_num_threads(1)
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 64))
optimizer = bdn.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.01, momentum=0.9), model.named_parameters(),
                                     push=options.codec, pull=options.codec)
data = torch.Generator().manual_seed(100 + bdn.rank())
target = torch.randn(64, 64, generator=torch.Generator().manual_seed(2)) / 8


def checksum():
    digest = hashlib.sha256()
    for weights in model.parameters():
        digest.update(weights.detach().numpy().tobytes())
    return digest.hexdigest()


for step in range(1, options.steps + 1):
    inputs = torch.randn(32, 64, generator=data)
    loss = torch.nn.functional.mse_loss(model(inputs), inputs @ target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % options.every == 0 and bdn.rank() == 0:
        print(f"step {step}: loss {loss.item():.4f}, weights {checksum()}", flush=True)
# Each worker's weights are the same, to the bit.
worker.barrier("end")
if bdn.rank() == 0:
    print("weights", checksum(), flush=True)
