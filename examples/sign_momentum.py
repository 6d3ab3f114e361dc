"""Sign momentum with local steps (DSM, arXiv 2411.17866): a meeting every tau steps, one bit a pull.

    build/release/bin/bandoneon run -n 2 -s 1 -- build/venv/bin/python examples/sign_momentum.py

Under torchrun, which tells each process its rank, say where the scheduler is:

    export BANDONEON_SCHEDULER=127.0.0.1:7000
    build/release/bin/bandoneon-scheduler --listen=$BANDONEON_SCHEDULER --workers=2 --servers=1 &
    build/release/bin/bandoneon-server &
    build/venv/bin/torchrun --nproc-per-node=2 examples/sign_momentum.py
"""

import argparse

import torch
from gpt import GPT, hash_of, load_text, rate, sample, validate

import bandoneon.torch as bdn

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("--steps", type=int, default=240)
parser.add_argument("--lr", type=float, default=0.002)
parser.add_argument("--tau", type=int, default=12)
options = parser.parse_args()

worker = bdn.init()
torch.set_num_threads(1)
torch.manual_seed(1)
model = GPT(width=64, layers=2)

# The servers hold the common weights and their momentum; AdamW's moments are each worker's own. The
# defaults of SignMomentum are for thousands of meetings; here are some twenty.
optimizer = bdn.LocalSteps(
    torch.optim.AdamW(model.parameters(), options.lr, weight_decay=0.1),
    model.named_parameters(),
    tau=options.tau,
    outer=bdn.algorithms.SignMomentum(beta1=0.8, beta2=0.9, eta=4.0, decay=0.0),
    push="int8",
)

text, held_out = load_text(None)
generator = torch.Generator().manual_seed(worker.rank)
for step in range(options.steps):
    for group in optimizer.param_groups:
        group["lr"] = rate(step, options.steps, options.lr)
    optimizer.zero_grad()
    loss = model.loss(sample(text, generator))
    loss.backward()  # Of this worker alone.
    optimizer.step()  # Every tau-th meets the others.
    if worker.rank == 0 and step % 20 == 0:
        print(f"step {step}: loss {loss.item():.3f}", flush=True)

stats = worker.stats()
with optimizer.common_weights():  # The same on all workers, also between meetings.
    loss = validate(model, held_out)
    pushed, pulled = stats["bytes_pushed"], stats["bytes_pulled"]
    print(
        f"validation loss {loss:.3f}, {pushed} bytes pushed, {pulled} pulled, "
        f"model {hash_of(model)[:12]}"
    )
bdn.shutdown()
