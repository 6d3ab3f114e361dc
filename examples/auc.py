"""The area under the ROC curve (AUC) of a class of one in twenty, with workers that meet rarely (CODA, arXiv 2005.02426).

    build/release/bin/bandoneon run -n 4 -s 2 -- build/venv/bin/python examples/auc.py

prints the AUC of held-out data after as many steps of one process on all workers' batches, and of workers that meet every
10th and every 50th step; with samples that are dealt at random, and sorted by label, so that a worker has one class
alone. Log loss stands beside it.
"""

import argparse
import time

import torch
import torch.nn.functional as F
from torch import nn

import bandoneon.torch as bdn

FEATURES = 20
BATCH = 32  # of a worker


def make_data(count, seed):
    """Samples of one in twenty positives, which a curved and noisy border parts from the others."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, FEATURES, generator=generator)
    draw = torch.Generator().manual_seed(5)
    w, v = (torch.randn(FEATURES, generator=draw) / FEATURES**0.5 for _ in range(2))
    score = x @ w + (x @ v).square() + 1.5 * torch.randn(count, generator=generator)
    return x, (score > 5.7).float()


def make_model(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, 1))


def area(scores, labels):
    """AUC by ranks; a tie counts half."""
    _, inverse, counts = scores.double().unique(return_inverse=True, return_counts=True)
    ranks = (counts.cumsum(0) - (counts - 1) / 2)[inverse]
    positives = labels.sum().item()
    return ((ranks[labels == 1].sum() - positives * (positives + 1) / 2) / (positives * (len(labels) - positives))).item()


class Run:
    """One way to train, from the same first model, on batches that are drawn alike."""

    def __init__(self, loss, rate, seed, share, stages):
        self.model = make_model(seed)
        self.loss, self.rate, self.stages = loss, rate, stages
        self.auc = bdn.algorithms.AUCLoss(share, model=self.model, pull=0.002) if loss == "auc" else None
        self.named = list(self.model.named_parameters())
        if self.auc is not None:
            self.named += self.auc.named_parameters("auc")

    def value(self, x, y):
        scores = self.model(x).squeeze(1)
        return F.binary_cross_entropy_with_logits(scores, y) if self.auc is None else self.auc(scores, y)

    def train(self, optimizer, batches):
        stage = len(batches) // self.stages
        for step, (x, y) in enumerate(batches, 1):
            optimizer.zero_grad()
            self.value(x, y).backward()
            optimizer.step()
            if step % stage == 0 and step < len(batches):
                if self.auc is not None:
                    self.auc.stage(optimizer)
                else:
                    for group in optimizer.param_groups:
                        group["lr"] /= 3

    def sgd(self):
        return torch.optim.SGD([param for _, param in self.named], self.rate)

    @torch.no_grad()
    def judge(self, x, y):
        return area(self.model(x).squeeze(1), y)


def drawn(x, y, steps, seed):
    generator = torch.Generator().manual_seed(seed)
    return [(x[rows], y[rows]) for rows in torch.randint(len(x), (steps, BATCH), generator=generator)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--samples", type=int, default=20000, help="for training, and as many to judge")
    parser.add_argument("--lr", type=float, default=0.3)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    worker = bdn.init()
    torch.set_num_threads(1)
    begin = time.perf_counter()
    x, y = make_data(options.samples, 10 * options.seed)
    held_out = make_data(options.samples, 10 * options.seed + 1)
    share = y.mean().item()
    dealt = torch.arange(len(x)).chunk(worker.size)
    by_label = y.sort(stable=True).indices.chunk(worker.size)

    def batches(parts, rank):
        own = parts[rank]
        return drawn(x[own], y[own], options.steps, 100 * options.seed + rank)

    def one_process(loss):
        """On all workers' batches; in worker 0, for which the others wait."""
        run = Run(loss, options.lr, options.seed, share, stages=3)  # All workers make the loss, for it compares options.
        if worker.rank:
            return 0.0, 0
        parts = [batches(dealt, rank) for rank in range(worker.size)]
        whole = [tuple(map(torch.cat, zip(*step))) for step in zip(*parts)]
        run.train(run.sgd(), whole)
        return run.judge(*held_out), 0

    def local_steps(loss, tau, parts):
        run = Run(loss, options.lr, options.seed, share, stages=3)
        links = bdn.Links(prefix=f"{loss}, {tau}, {'dealt' if parts is dealt else 'sorted'}/")
        optimizer = bdn.LocalSteps(run.sgd(), run.named, tau=tau, outer=bdn.algorithms.Average(), links=links)
        run.train(optimizer, batches(parts, worker.rank))
        optimizer.synchronize() if optimizer.local_steps % tau else None
        result = run.judge(*held_out), optimizer.meetings
        optimizer.close()
        return result

    for loss, ways in (("auc", [dealt, by_label]), ("log", [dealt])):
        found = {"one process": one_process(loss)}
        for parts in ways:
            for tau in (10, 50):
                name = f"every {tau} steps" + (", sorted by label" if parts is by_label else "")
                found[name] = local_steps(loss, tau, parts)
        for name, (value, exchanges) in found.items() if worker.rank == 0 else ():
            print(f"{loss} loss, {name}: AUC {value:.4f}, {exchanges} exchanges of {options.steps} steps", flush=True)
    if worker.rank == 0:
        print(f"seed {options.seed}, {share:.1%} positives, {time.perf_counter() - begin:.0f} s", flush=True)
    bdn.shutdown()


if __name__ == "__main__":
    main()
