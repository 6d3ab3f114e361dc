"""CSER (arXiv 2007.13221): few blocks of the gradients, and errors reset now and then: 32x.

    build/release/bin/bandoneon run -n 2 -s 1 -- build/venv/bin/python examples/error_reset.py

Under torchrun, which tells each process its rank, say where the scheduler is:

    export BANDONEON_SCHEDULER=127.0.0.1:7000
    build/release/bin/bandoneon-scheduler --listen=$BANDONEON_SCHEDULER --workers=2 --servers=1 &
    build/release/bin/bandoneon-server &
    build/venv/bin/torchrun --nproc-per-node=2 examples/error_reset.py
"""

import argparse

import torch
from gpt import GPT, hash_of, load_text, rate, sample, validate

import bandoneon.torch as bdn

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--lr", type=float, default=0.05)
options = parser.parse_args()

worker = bdn.init()
torch.set_num_threads(1)
torch.manual_seed(1)
model = GPT(width=64, layers=2)

# Of the gradients a 64th of the blocks goes every step, of the errors a 4th every 16 steps.
optimizer = bdn.algorithms.CSER(
    torch.optim.SGD(model.parameters(), options.lr, momentum=0.9, nesterov=True),
    model.named_parameters(),
    gradient=64,
    reset=4,
    period=16,
    block=256,
)

text, held_out = load_text(None)
generator = torch.Generator().manual_seed(worker.rank)
for step in range(options.steps):
    for group in optimizer.param_groups:
        group["lr"] = rate(step, options.steps, options.lr)
    optimizer.zero_grad()
    loss = model.loss(sample(text, generator))
    loss.backward()  # Of this worker alone.
    optimizer.step()
    if worker.rank == 0 and step % 20 == 0:
        print(f"step {step}: loss {loss.item():.3f}", flush=True)

stats = worker.stats()
with optimizer.common_weights():  # The same on all workers; the models themselves differ.
    loss = validate(model, held_out)
    pushed, pulled = stats["bytes_pushed"], stats["bytes_pulled"]
    print(
        f"validation loss {loss:.3f}, {pushed} bytes pushed, {pulled} pulled, "
        f"model {hash_of(model)[:12]}"
    )
bdn.shutdown()
