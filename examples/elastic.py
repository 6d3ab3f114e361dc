"""A training whose workers may be killed, and come back.

    build/release/bin/bandoneon run -n 3 -s 2 --min-workers 1 --restarts 100 -- build/venv/bin/python examples/elastic.py

In another shell kill any process of it, as often as you like:

    pkill -KILL -f examples/elastic.py
    pkill -KILL bandoneon-serve

Those who are left go on. `bandoneon run` starts who was killed again, and the others give it what it lacks between two steps. At
the end all have the same weights (docs/survival.md).
"""

import argparse
import hashlib
import time

import torch

import bandoneon.torch as bdn

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("--steps", type=int, default=2000)
parser.add_argument("--every", type=int, default=100, help="steps between two lines")
parser.add_argument("--pace", type=float, default=0.02, metavar="SECONDS", help="of a step, besides what it computes")
parser.add_argument("--checkpoint", help="a directory, from which the next job goes on")
options = parser.parse_args()

bdn.init()
torch.set_num_threads(1)
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 64))
optimizer = bdn.DistributedOptimizer(torch.optim.AdamW(model.parameters(), 1e-3), model, push="ef(onebit)", pull="ef(onebit)")
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps)
state = bdn.TrainingState(
    {"model": model, "optimizer": optimizer, "schedule": schedule},
    checkpoint=options.checkpoint,
    every=500 if options.checkpoint else None,
)
target = torch.randn(64, 64, generator=torch.Generator().manual_seed(2)) / 8

for step in state.steps(options.steps):
    # Each worker takes its part of a step's 96 samples, however many workers there are.
    index, count = state.shard
    inputs = torch.randn(96, 64, generator=torch.Generator().manual_seed(step))[index::count]
    state.count(96)
    loss = torch.nn.functional.mse_loss(model(inputs), inputs @ target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    time.sleep(options.pace)
    if (step + 1) % options.every == 0:
        print(f"step {step + 1}: part {index + 1} of {count}, loss {loss.item():.4f}", flush=True)

digest = hashlib.sha256()
for weights in model.parameters():
    digest.update(weights.detach().numpy().tobytes())
print("weights", digest.hexdigest(), flush=True)
bdn.shutdown()
