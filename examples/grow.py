"""A GPT that grows out of one of half its width (LEMON, arXiv 2310.07999), beside one of the same size from scratch.

    build/release/bin/bandoneon run -n 2 -s 2 -- build/venv/bin/python examples/grow.py

The small GPT trains first. The large one then begins with its function, and so with its loss; the moments of its AdamW
begin at 0, its rate rises for a few steps alone, to a top that is half of that from scratch, and falls within fewer steps.
"""

import argparse
import copy
import math
import statistics

import torch
from gpt import GPT, hash_of, load_text, sample

import bandoneon.torch as bdn
from bandoneon.torch.expand import Block, Layout

CONTEXT = 64
SMALL = dict(width=32, heads=1, layers=2, context=CONTEXT)
LARGE = dict(width=64, heads=2, layers=2, context=CONTEXT)


def layout(model):
    """Where the parameters of this GPT are, for expand()."""
    blocks = [Block(b.norm1, b.qkv, b.project, b.norm2, b.expand, b.shrink) for b in model.blocks]
    width, heads = model.bytes.embedding_dim, model.blocks[0].heads
    return Layout(width, heads, [model.bytes, model.places], blocks, model.norm, [model.head])


def rate(step, steps, top, rise):
    """Up in a line, down to a tenth of the top in half a cosine."""
    if step < rise:
        return top * (step + 1) / rise
    return top * (0.1 + 0.45 * (1 + math.cos(math.pi * (step - rise) / max(steps - rise, 1))))


@torch.no_grad()
def judge(model, text):
    """Nats a byte on the same held-out samples every time."""
    generator = torch.Generator().manual_seed(99)
    return statistics.fmean(model.loss(sample(text, generator, 32, CONTEXT)).item() for _ in range(8))


def train(name, model, steps, top, rise, texts, seed):
    """The loss on held-out text after so many steps. Every model sees the same samples in the same order."""
    adam = torch.optim.AdamW(model.parameters(), top)
    optimizer = bdn.DistributedOptimizer(adam, model, links=bdn.Links(prefix=f"{name}/"))
    generator = torch.Generator().manual_seed(1000 * seed + bdn.rank())
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate(step, steps, top, rise)
        optimizer.zero_grad()
        model.loss(sample(texts[0], generator, 8, CONTEXT)).backward()
        optimizer.step()
    optimizer.close()
    return judge(model, texts[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=300, help="of the small model, and of the large one from scratch")
    parser.add_argument("--lr", type=float, default=0.008)
    parser.add_argument("--grown-lr", type=float, default=0.004)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    worker = bdn.init()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    texts = load_text(None)
    small, scratch, large = GPT(**SMALL), GPT(**LARGE), GPT(**LARGE)

    def tell(text):
        if worker.rank == 0:
            print(text, flush=True)

    rise = max(options.steps // 10, 1)
    loss = train("small", small, options.steps, options.lr, rise, texts, options.seed)
    goal = train("scratch", scratch, options.steps, options.lr, rise, texts, options.seed)
    tell(f"after {options.steps} steps: loss {loss:.4f} of width 32, {goal:.4f} of width 64 from scratch")
    inputs = sample(texts[1], torch.Generator(), 4, CONTEXT)[:, :-1]
    expansion = bdn.algorithms.expand(small, large, layout=layout, inputs=inputs)
    tell(f"{expansion}: loss {judge(large, texts[1]):.4f}")
    for part in (0.25, 0.5, 0.75):
        model, steps = copy.deepcopy(large), max(round(part * options.steps), 1)
        found = train(f"grown, {part}", model, steps, options.grown_lr, max(steps // 20, 1), texts, options.seed + 50)
        tell(f"grown, {part} of the steps: loss {found:.4f}, {'reached' if found <= goal else 'above it'}")
    stats = worker.stats()
    print(
        f"validation loss {found:.3f}, {stats['bytes_pushed']} bytes pushed, {stats['bytes_pulled']} pulled, "
        f"model {hash_of(model)[:12]}"
    )
    bdn.shutdown()


if __name__ == "__main__":
    main()
