"""BytePS-Compress (arXiv 2105.07829): momentum SGD whose gradients travel as signs, both ways.

    build/release/bin/bandoneon run -n 2 -s 1 -- build/venv/bin/python examples/byteps_compress.py

Under torchrun, which tells each process its rank, say where the scheduler is:

    export BANDONEON_SCHEDULER=127.0.0.1:7000
    build/release/bin/bandoneon-scheduler --listen=$BANDONEON_SCHEDULER --workers=2 --servers=1 &
    build/release/bin/bandoneon-server &
    build/venv/bin/torchrun --nproc-per-node=2 examples/byteps_compress.py
"""

import argparse

import torch
from gpt import GPT, hash_of, load_text, rate, sample, validate

import bandoneon.torch as bdn

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--lr", type=float, default=0.1)
options = parser.parse_args()

worker = bdn.init()
torch.set_num_threads(1)
torch.manual_seed(1)
model = GPT(width=64, layers=2)
bdn.broadcast_parameters(model, root=0)

# Momentum goes before error feedback, in the link; that of the weight decay is the optimizer's, so
# that the decay is not compressed. Biases and norms are few and travel as they are.
inner = bdn.algorithms.DecayMomentumSGD(model.parameters(), options.lr, weight_decay=1e-4, decay_momentum=0.9)
optimizer = bdn.DistributedOptimizer(
    inner,
    model.named_parameters(),
    links=bdn.Links(
        push="ef(onebit(block=256))",
        pull="ef(onebit(block=256))",
        momentum=0.9,
        warmup=options.steps // 10,
        overrides={name: dict(push="none", pull="none") for name in ("*.bias", "*norm*.weight")},
    ),
)

text, held_out = load_text(None)
generator = torch.Generator().manual_seed(worker.rank)
for step in range(options.steps):
    for group in optimizer.param_groups:
        group["lr"] = rate(step, options.steps, options.lr)
    optimizer.zero_grad()
    loss = model.loss(sample(text, generator))
    loss.backward()  # Returns with the mean of all workers' gradients.
    optimizer.step()
    if worker.rank == 0 and step % 20 == 0:
        print(f"step {step}: loss {loss.item():.3f}", flush=True)

pushed = worker.stats()["bytes_pushed"]
loss = validate(model, held_out)
print(f"validation loss {loss:.3f}, {pushed} bytes pushed, model {hash_of(model)[:12]}")
bdn.shutdown()
