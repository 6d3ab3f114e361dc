"""Steps to a loss with KFAC (arXiv 1503.05671, 2107.06533), beside SGD with momentum and Adam.

    build/release/bin/bandoneon run -n 4 -s 2 -- build/venv/bin/python examples/kfac.py

trains a deep autoencoder on pictures of curves, at each of the rates, and prints how many steps KFAC takes to the loss
that SGD, and Adam, have in the end; and what factors cost in bytes, as triangles and as squares.
"""

import argparse
import time

import torch
import torch.nn.functional as F
from gpt import hash_of
from torch import nn

import bandoneon.torch as bdn

SIDE = 12
SIZES = [SIDE * SIDE, 100, 50, 25, 8, 25, 50, 100, SIDE * SIDE]
BATCH = 32  # of a worker


def make_pictures(count, seed):
    """Curves of three random points each, drawn with a soft pen."""
    points = torch.rand(count, 3, 1, 2, generator=torch.Generator().manual_seed(seed)) * (SIDE - 3) + 1
    t = torch.linspace(0, 1, 16)[:, None]
    curves = (1 - t) ** 2 * points[:, 0] + 2 * t * (1 - t) * points[:, 1] + t**2 * points[:, 2]
    places = torch.cartesian_prod(torch.arange(SIDE), torch.arange(SIDE)).float()
    return torch.exp(-torch.cdist(places.expand(count, -1, -1), curves).square().amin(2))


def make_model(seed):
    """Down to 8 numbers, and up again."""
    torch.manual_seed(seed)
    layers = []
    for inputs, outputs in zip(SIZES, SIZES[1:]):
        layers += [nn.Linear(inputs, outputs)] if outputs == min(SIZES) else [nn.Linear(inputs, outputs), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def loss_of(model, pictures):
    return F.binary_cross_entropy_with_logits(model(pictures), pictures, reduction="none").sum(1).mean()


@torch.no_grad()
def judge(model, pictures):
    return loss_of(model, pictures).item()


def train(model, optimizer, data, held_out, steps, seed):
    """The loss on held-out pictures every ten steps."""
    generator = torch.Generator().manual_seed(1000 * seed + bdn.rank())
    top = optimizer.param_groups[0]["lr"]
    losses = []
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = top * (1 - 0.9 * step / steps)
        rows = torch.randint(len(data), (BATCH,), generator=generator)
        optimizer.zero_grad()
        loss_of(model, data[rows]).backward()
        optimizer.step()
        if (step + 1) % 10 == 0:
            losses.append(judge(model, held_out))
    return losses


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--samples", type=int, default=8000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sgd", type=float, nargs="+", default=[0.003, 0.01, 0.03], help="rates")
    parser.add_argument("--adam", type=float, nargs="+", default=[0.003, 0.01], help="rates")
    parser.add_argument("--kfac", type=float, nargs="+", default=[0.1], help="rates")
    parser.add_argument("--factors", default="fp16")
    options = parser.parse_args()

    worker = bdn.init()
    torch.set_num_threads(1)
    data = make_pictures(options.samples, 10 * options.seed)
    held_out = make_pictures(1000, 10 * options.seed + 1)

    def run(kind, rate):
        model = make_model(options.seed)
        bdn.broadcast_parameters(model)
        inner = torch.optim.Adam(model.parameters(), rate) if kind == "Adam" else None
        inner = inner or torch.optim.SGD(model.parameters(), rate, momentum=0.9)
        links = bdn.Links(prefix=f"{kind} {rate}/")
        if kind != "KFAC":
            optimizer = bdn.DistributedOptimizer(inner, model, links=links)
        else:
            optimizer = bdn.algorithms.KFAC(
                model, inner, options.factors, every=5, inverses=25, damping=0.03, clip=0.01, links=links
            )
        begin = time.perf_counter()
        losses = train(model, optimizer, data, held_out, options.steps, options.seed)
        seconds = time.perf_counter() - begin
        optimizer.close()
        if worker.rank == 0:
            print(f"{kind}, rate {rate}: loss {losses[-1]:.3f}, {1000 * seconds / options.steps:.1f} ms a step", flush=True)
        return losses, model

    rates = {"SGD": options.sgd, "Adam": options.adam, "KFAC": options.kfac}
    found = {kind: min((run(kind, rate) for rate in rates[kind]), key=lambda run: run[0][-1]) for kind in rates}
    ours, model = found.pop("KFAC")
    for kind, (losses, _) in found.items() if worker.rank == 0 else ():
        steps = next((10 * (i + 1) for i, loss in enumerate(ours) if loss <= losses[-1]), None)
        after = f"after {steps}, {steps / options.steps:.2f} of them" if steps else "not"
        print(f"seed {options.seed}: {kind} has {losses[-1]:.3f} after {options.steps} steps, and KFAC has it {after}")
    triangles, squares = (
        sum(of(size) for size in [*(i + 1 for i in SIZES[:-1]), *SIZES[1:]])
        for of in (lambda size: size * (size + 1) // 2, lambda size: size**2)
    )
    if worker.rank == 0:
        print(f"factors: {triangles} of {squares} elements, {triangles / squares:.3f}", flush=True)
    print(f"worker {worker.rank}: model {hash_of(model)}", flush=True)
    bdn.shutdown()


if __name__ == "__main__":
    main()
