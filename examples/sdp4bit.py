"""SDP4Bit (arXiv 2410.15526): AdamW on the servers, four bits a parameter both ways.

    build/release/bin/bandoneon run -n 2 -s 1 -- build/venv/bin/python examples/sdp4bit.py

Under torchrun, which tells each process its rank, say where the scheduler is:

    export BANDONEON_SCHEDULER=127.0.0.1:7000
    build/release/bin/bandoneon-scheduler --listen=$BANDONEON_SCHEDULER --workers=2 --servers=1 &
    build/release/bin/bandoneon-server &
    build/venv/bin/torchrun --nproc-per-node=2 examples/sdp4bit.py
"""

import argparse

import torch
from gpt import GPT, hash_of, load_text, rate, sample, validate

import bandoneon.torch as bdn

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--lr", type=float, default=0.002)
options = parser.parse_args()

worker = bdn.init()
torch.set_num_threads(1)
torch.manual_seed(1)
model = GPT(width=64, layers=2)

# Gradients go through a Hadamard transform, so that one large value does not take the levels of its
# neighbours. Weights come back as what they differ by from those that every worker holds; the workers
# keep no moments.
optimizer = bdn.ServerOptimizer(
    torch.optim.AdamW(model.parameters(), options.lr, weight_decay=0.1),
    model.named_parameters(),
    push="int4(group=128,hadamard=32)",
    pull="delta(int4(group=2048))",
)

text, held_out = load_text(None)
generator = torch.Generator().manual_seed(worker.rank)
for step in range(options.steps):
    for group in optimizer.param_groups:
        group["lr"] = rate(step, options.steps, options.lr)
    optimizer.zero_grad()
    loss = model.loss(sample(text, generator))
    loss.backward()  # Of this worker alone.
    optimizer.step()  # Returns with the servers' new weights.
    if worker.rank == 0 and step % 20 == 0:
        print(f"step {step}: loss {loss.item():.3f}", flush=True)

stats = worker.stats()
loss = validate(model, held_out)
pushed, pulled = stats["bytes_pushed"], stats["bytes_pulled"]
print(
    f"validation loss {loss:.3f}, {pushed} bytes pushed, {pulled} pulled, "
    f"model {hash_of(model)[:12]}"
)
bdn.shutdown()
