"""A small GPT with a mixture of experts: copies of hot experts (Pro-Prophet, arXiv 2411.10003), and pruned ones (MoE-Pruner,
2410.12013).

    build/release/bin/bandoneon run -n 4 -s 2 -- build/venv/bin/python examples/moe.py

trains it with eight experts a block, of which each byte takes two, and prints how its tokens fall on the workers with and
without a plan; what plans gain by their own model and by timed waits, with tokens that are unevenly drawn; and the
perplexity of held-out text once half of the experts' weights are gone, by three scores, and after a distillation.
"""

import argparse
import copy
import math
import statistics
import time

import torch
import torch.nn.functional as F
from gpt import Block, hash_of, load_text, rate, sample
from torch import nn

import bandoneon.torch as bdn
from bandoneon.torch.algorithms import ExpertPlan, masked, prune_experts

WIDTH, CONTEXT, EXPERTS, TAKEN = 64, 64, 8, 2


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.expand = nn.Linear(WIDTH, WIDTH)
        self.shrink = nn.Linear(WIDTH, WIDTH)

    def compute(self, x):
        return self.shrink(F.gelu(self.expand(x)))

    def forward(self, x):
        self.input = x.detach()
        return self.compute(x)


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(Expert() for _ in range(EXPERTS))

    def forward(self, x):
        rows = x.flatten(0, 1)
        shares = self.router(rows).softmax(1)
        gates, chosen = shares.topk(TAKEN, dim=1)
        out = torch.zeros_like(rows)
        self.counts = []
        for e, expert in enumerate(self.experts):
            at, place = (chosen == e).nonzero(as_tuple=True)
            self.counts.append(len(at))
            if len(at):  # Otherwise its parameters have no gradient in this worker, and are absent from the exchange.
                gate = gates[at, place]
                expert.gate = gate.detach()  # For prune_experts().
                out = out.index_add(0, at, expert(rows[at]) * gate[:, None])
        # Keeps every expert in use: the share of bytes that each gets times the mean of its gates.
        used = torch.tensor(self.counts) / chosen.numel()
        self.imbalance = EXPERTS * (used * shares.mean(0)).sum()
        return out.view_as(x)


class MixtureBlock(Block):
    def __init__(self):
        super().__init__(WIDTH, 2)
        del self.expand, self.shrink
        self.mixture = Mixture()

    def forward(self, x):
        batch, length, _ = x.shape
        heads = self.qkv(self.norm1(x)).view(batch, length, 3 * self.heads, -1).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(*heads.chunk(3, dim=1), is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).flatten(2))
        return x + self.mixture(self.norm2(x))


class MoE(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*[MixtureBlock() for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256, bias=False)

    def forward(self, text):
        x = self.bytes(text) + self.places(torch.arange(text.shape[1]))
        return self.head(self.norm(self.blocks(x)))

    def loss(self, text):
        return F.cross_entropy(self(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())

    @property
    def mixtures(self):
        return [block.mixture for block in self.blocks]


@torch.no_grad()
def perplexity(model, text, batches):
    generator = torch.Generator().manual_seed(99)
    return math.exp(statistics.fmean(model.loss(sample(text, generator, 32, CONTEXT)).item() for _ in range(batches)))


def train(model, text, steps, top, seed, links, masks=None, teacher=None):
    """Returns each step's counts of the first mixture, by worker and expert."""
    optimizer = bdn.DistributedOptimizer(torch.optim.AdamW(model.parameters(), top), model, links=links)
    if masks is not None:
        masked(optimizer, model, masks)
    generator = torch.Generator().manual_seed(1000 * seed + bdn.rank())
    counts = []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate(step, steps, top)
        batch = sample(text, generator, 8, CONTEXT)
        optimizer.zero_grad()
        loss = model.loss(batch) + 0.01 * sum(mixture.imbalance for mixture in model.mixtures)
        if teacher is not None:
            loss = loss + distance(model, teacher)
        loss.backward()
        optimizer.step()
        mine = torch.zeros(bdn.size(), EXPERTS)
        mine[bdn.rank()] = torch.tensor(model.mixtures[0].counts)
        counts.append((bdn.size() * bdn.push_pull(mine, "counts", push="none", pull="none").wait()).round().long().tolist())
    optimizer.close()
    return counts


def distance(model, teacher):
    """Of the experts' outputs from those that the teacher's experts have of the same inputs, which it leaves as they are."""
    pairs = [
        (expert, other) for mixture, original in zip(model.mixtures, teacher.mixtures)
        for expert, other, count in zip(mixture.experts, original.experts, mixture.counts) if count
    ]
    return sum(F.mse_loss(expert.compute(expert.input), other.compute(expert.input).detach()) for expert, other in pairs)


@torch.no_grad()
def used_experts(model, batches):
    """Names of those that get tokens of these batches: of the others, if there are any, nobody knows what they are for."""
    used = set()
    for batch in batches:
        model(batch)
        used |= {(b, e) for b, mixture in enumerate(model.mixtures) for e, count in enumerate(mixture.counts) if count}
    return [f"blocks.{b}.mixture.experts.{e}" for b, e in sorted(used)]


def drawn_counts(generator, workers, tokens):
    """Of tokens whose experts are as uneven as Dirichlet's distribution with 0.4, the same for all workers; twice."""
    shares = torch._sample_dirichlet(torch.full((EXPERTS,), 0.4), generator)
    def once():
        return [torch.multinomial(shares, tokens, True, generator=generator).bincount(minlength=EXPERTS).tolist()
                for _ in range(workers)]
    return once(), once()


def by_the_model(seed, draws=30, workers=8):
    generator = torch.Generator().manual_seed(seed)
    gains, later, before, after = [], [], [], []
    none = ((),) * EXPERTS
    for _ in range(draws):
        counts, following = drawn_counts(generator, workers, 4096)
        plan = ExpertPlan(counts)
        step = plan.next()
        gains.append(step.unplanned_cost / step.cost)
        later.append(plan.cost(none, following) / plan.cost(step.copies, following))
        for loads, found in ((plan.loads(none, following), before), (plan.loads(step.copies, following), after)):
            found.append(max(loads) * workers / sum(loads))
    return gains, later, before, after


def by_waits(worker, seed, draws):
    """Seconds of steps without and with the plan of the step before, in which each worker waits for what it would do."""
    generator = torch.Generator().manual_seed(seed)
    seconds = [0.0, 0.0]
    for _ in range(draws):
        counts, following = drawn_counts(generator, worker.size, 4096)
        plan = ExpertPlan(counts)
        for way, copies in enumerate((((),) * EXPERTS, plan.next().copies)):
            computed, received = plan.loads(copies, following), plan.received(copies, following)
            copied = sum(map(len, copies)) * 2 * 33e6 / (worker.size * 1e9)
            worker.barrier()
            begin = time.perf_counter()
            time.sleep(3 * computed[worker.rank] / 2e5 + 4 * received[worker.rank] * 4096 / 1e9 + copied)
            worker.barrier()
            seconds[way] += time.perf_counter() - begin
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--distill", type=int, default=60, help="steps of it")
    parser.add_argument("--draws", type=int, default=20, help="of the timed waits")
    parser.add_argument("--batches", type=int, default=4, help="of held-out text")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    worker = bdn.init()
    torch.set_num_threads(1)

    def say(text):
        if worker.rank == 0:
            print(text, flush=True)

    train_text, held_out = load_text(None)
    torch.manual_seed(options.seed)
    model = MoE()
    bdn.broadcast_parameters(model)
    counts = train(model, train_text, options.steps, 0.008, options.seed, bdn.Links(prefix="dense/"))
    plan = ExpertPlan(counts[-2])
    none, copies = ((),) * EXPERTS, plan.next().copies
    loads = [plan.loads(of, counts[-1]) for of in (none, copies)]
    say("largest load over the mean, of the trained router: {:.2f} without, {:.2f} with the plan of the step before".format(
        *(max(load) * len(load) / sum(load) for load in loads)))

    gains, later, before, after = by_the_model(options.seed)
    say(f"by the model, 8 devices: {statistics.median(gains):.2f} times as fast (up to {max(gains):.2f}); with the plan of the step "
        f"before {statistics.median(later):.2f}; largest load over the mean {statistics.median(before):.2f}, then "
        f"{statistics.median(after):.2f}")
    without, planned = by_waits(worker, options.seed, options.draws)
    say(f"by timed waits, {worker.size} workers: {without / planned:.2f} times as fast")

    def judge(of):
        return perplexity(of, held_out, options.batches)

    generator = torch.Generator().manual_seed(7)
    batches = [sample(train_text, generator, 32, CONTEXT)[:, :-1] for _ in range(8)]
    dense = judge(model)
    used = used_experts(model, batches)
    found, pruned = {}, {}
    for sparsity in (0.8, 0.5):
        for score in ("magnitude", "inputs", "gate"):
            pruned[score] = copy.deepcopy(model)
            masks = prune_experts(
                pruned[score], batches, sparsity, experts=used, gate=lambda name, expert: expert.gate, score=score
            )
            found[score] = judge(pruned[score])
        damage = found["magnitude"] - dense
        say(f"seed {options.seed}: perplexity {dense:.3f}; with {sparsity:.0%} of the experts' weights gone by magnitude "
            f"{found['magnitude']:.3f}, by inputs (Wanda) {found['inputs']:.3f}, by inputs and gates {found['gate']:.3f}: of "
            f"magnitude's damage {1 - (found['gate'] - dense) / damage:.0%} less, beside Wanda {found['gate'] / found['inputs'] - 1:+.2%}")
    student = pruned["gate"]
    train(student, train_text, options.distill, 0.0004, options.seed + 1, bdn.Links(prefix="distilled/"), masks, model)
    distilled = judge(student)
    kept = all(not param[~masks[name]].any() for name, param in student.named_parameters() if name in masks)
    say(f"distilled for {options.distill} steps: {distilled:.3f}, masks {'kept' if kept else 'LOST'}")
    print(f"worker {worker.rank}: model {hash_of(student)}", flush=True)
    bdn.shutdown()


if __name__ == "__main__":
    main()
