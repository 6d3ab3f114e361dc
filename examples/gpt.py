"""Trains a small byte-level GPT, every step's gradients going through Bandoneon.

    build/release/bin/bandoneon run -n 2 -s 2 -- build/venv/bin/python examples/gpt.py --mode onebit

What is distributed about it are the few lines that say `bdn`. The text is the Python standard
library's sources, or --data FILE. With --record DIR each worker leaves worker-RANK.json there.
"""

import argparse
import contextlib
import hashlib
import json
import math
import pathlib
import statistics
import sysconfig
import time

import torch
import torch.nn.functional as F
from torch import nn

import bandoneon.torch as bdn
from bandoneon.torch.named_recipes import recipes
from bandoneon import CodecTraits, codec_traits

CONTEXT = 128
BATCH = 8
WIDTH = 160
HEADS = 4
LAYERS = 4

ONEBIT = "ef(onebit(block=256))"
TOPK = "ef(topk(ratio=0.01))"
MOMENTUM = 0.9
# Codec both ways, and the momentum that goes before it. Error feedback wants it there, so that what is
# owed is owed once; the others leave the same Nesterov momentum to the optimizer.
MODES = {
    "none": dict(push="none", pull="none", momentum=0.0),
    "fp16": dict(push="fp16", pull="fp16", momentum=0.0),
    "onebit": dict(push=ONEBIT, pull=ONEBIT, momentum=MOMENTUM),
    "topk": dict(push=TOPK, pull=TOPK, momentum=MOMENTUM),
}
# Of the modes above, and of recipes that make Muon or AdamW themselves.
RATES = {"SGD": 0.2, "Muon": 0.016, "AdamW": 0.004}
RECIPES = [name for name, recipe in recipes().items() if recipe.inner != "yours"]


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.shrink = nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        heads = self.qkv(self.norm1(x)).view(batch, length, 3 * self.heads, -1).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(*heads.chunk(3, dim=1), is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.shrink(F.gelu(self.expand(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, width=WIDTH, heads=HEADS, layers=LAYERS, context=CONTEXT):
        super().__init__()
        self.bytes = nn.Embedding(256, width)
        self.places = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256, bias=False)
        for name, param in self.named_parameters():
            if name in ("bytes.weight", "places.weight"):
                nn.init.normal_(param, std=0.5)  # Plain SGD learns little from smaller ones.
            elif name == "head.weight":
                nn.init.normal_(param, std=0.02)
            elif param.dim() == 2:
                ends_branch = name.endswith(("project.weight", "shrink.weight"))
                spread = 2 * layers if ends_branch else 1
                nn.init.normal_(param, std=(param.shape[1] * spread) ** -0.5)
            elif name.endswith("bias"):
                nn.init.zeros_(param)

    def forward(self, text):
        x = self.bytes(text) + self.places(torch.arange(text.shape[1]))
        return self.head(self.norm(self.blocks(x)))

    def loss(self, text):
        return F.cross_entropy(self(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())


def load_text(path):
    """(for training, for validation) as bytes: every 20th file, or the last twentieth of one."""
    if path:
        text = torch.frombuffer(bytearray(pathlib.Path(path).read_bytes()), dtype=torch.uint8)
        cut = len(text) * 19 // 20
        parts = text[:cut], text[cut:]
    else:
        files = sorted(pathlib.Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
        texts = [file.read_bytes() for file in files]
        train = b"".join(text for i, text in enumerate(texts) if i % 20)
        held_out = b"".join(texts[::20])
        parts = [torch.frombuffer(bytearray(t), dtype=torch.uint8) for t in (train, held_out)]
    if min(map(len, parts)) <= CONTEXT:
        raise SystemExit(f"the text is too short: give at least {20 * (CONTEXT + 2)} bytes")
    return parts


def sample(text, generator, count=BATCH, context=CONTEXT):
    starts = torch.randint(len(text) - context, (count,), generator=generator).tolist()
    return torch.stack([text[start : start + context + 1] for start in starts]).long()


@torch.no_grad()
def validate(model, text, batches=16):
    """Nats a byte on the same held-out samples every time."""
    generator = torch.Generator().manual_seed(99)
    return statistics.fmean(model.loss(sample(text, generator)).item() for _ in range(batches))


def rate(step, steps, top):
    """Up in a line over the first tenth, down to a tenth of the top in half a cosine."""
    rise = max(steps // 10, 1)
    if step < rise:
        return top * (step + 1) / rise
    return top * (0.1 + 0.45 * (1 + math.cos(math.pi * (step - rise) / max(steps - rise, 1))))


def hash_of(model):
    digest = hashlib.sha256()
    for param in model.parameters():
        digest.update(param.detach().numpy().tobytes())
    return digest.hexdigest()


def codecs_of(options):
    """The mode, or the codecs given in its place; error feedback gets momentum in front of it."""
    mode = MODES[options.mode]
    push = options.push or mode["push"]
    pull = options.pull or mode["pull"]
    feeds_back = CodecTraits.ERROR_FEEDBACK in codec_traits(push)
    return dict(push=push, pull=pull, momentum=MOMENTUM if feeds_back else 0.0)


def make_optimizer(options, model):
    """(the optimizer, dense steps at the beginning)"""
    if options.mode in RECIPES:
        return bdn.recipe(options.mode)(model, lr=options.lr), 0
    mode = codecs_of(options)
    inner = dict(momentum=0.0) if mode["momentum"] else dict(momentum=MOMENTUM, nesterov=True)
    sgd = torch.optim.SGD(model.parameters(), lr=options.lr, **inner)
    warmup = options.warmup if mode["momentum"] else 0
    return bdn.DistributedOptimizer(sgd, model, links=bdn.Links(warmup=warmup, **mode), overlap=options.overlap), warmup


def judged(optimizer):
    """A context in which the model has the weights to be judged: of local steps, the common ones."""
    return getattr(optimizer, "common_weights", contextlib.nullcontext)()


def train(options):
    worker = bdn.init()
    torch.manual_seed(options.seed)
    train_text, held_out = load_text(options.data)
    model = GPT()
    bdn.broadcast_parameters(model, root=0)
    optimizer, warmup = make_optimizer(options, model)

    generator = torch.Generator().manual_seed(1000 * options.seed + worker.rank)
    record = dict(mode=options.mode, rank=worker.rank, warmup=warmup)
    record["period"] = getattr(optimizer, "tau", 1)
    record["parameters"] = sum(p.numel() for p in model.parameters())
    losses, step_seconds, byte_counts, validations = [], [], [traffic(worker)], []
    for step in range(options.steps):
        if options.eval_every and step % options.eval_every == 0:
            with judged(optimizer):
                validations.append((step, validate(model, held_out)))
            report(worker, options, step, validations[-1][1])
        start = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = rate(step, options.steps, options.lr)
        optimizer.zero_grad()
        loss = model.loss(sample(train_text, generator))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        bdn.report("loss", losses[-1], step)
        byte_counts.append(traffic(worker))
        step_seconds.append(time.perf_counter() - start)
    # With overlap="forward" the last step is still to be taken; local steps meet once more.
    optimizer.synchronize()
    with judged(optimizer):
        if options.eval_every:
            validations.append((options.steps, validate(model, held_out)))
            report(worker, options, options.steps, validations[-1][1])
        record.update(model_hash=hash_of(model))

    record.update(losses=losses, step_seconds=step_seconds, validations=validations)
    record.update(traffic=byte_counts, stats=worker.stats())
    if options.record:
        path = pathlib.Path(options.record) / f"worker-{worker.rank}.json"
        path.write_text(json.dumps(record))
    bdn.shutdown()


def traffic(worker):
    """(bytes pushed, bytes pulled) by this worker since it came."""
    stats = worker.stats()
    return stats["bytes_pushed"], stats["bytes_pulled"]


def report(worker, options, step, loss):
    if worker.rank == 0:
        print(
            f"{options.mode}: step {step}/{options.steps}, validation loss {loss:.4f}", flush=True
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mode", choices=[*MODES, *RECIPES], default="none", help="a mode, or a recipe")
    parser.add_argument("--push", help="codec of the pushes, instead of the mode's: 'int4(group=128)'")
    parser.add_argument("--pull", help="codec of the pulls, instead of the mode's")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument(
        "--warmup", type=int, default=30, help="first steps of onebit and topk that go uncompressed"
    )
    parser.add_argument(
        "--overlap",
        choices=("backward", "forward"),
        default="backward",
        help="beside what gradients travel: the rest of the backward pass, or the next forward pass, too",
    )
    parser.add_argument("--lr", type=float, help="the highest; the default is one that suits the mode's optimizer")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", help="a file to train on")
    parser.add_argument("--eval-every", type=int, default=50, help="0 for never")
    parser.add_argument("--record", help="directory for worker-RANK.json")
    torch.set_num_threads(1)
    options = parser.parse_args()
    if options.lr is None:
        options.lr = RATES[bdn.recipe(options.mode).inner if options.mode in RECIPES else "SGD"]
    train(options)


if __name__ == "__main__":
    main()
