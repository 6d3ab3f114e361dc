"""A support vector machine with few features, by consensus ADMM (arXiv 1809.03655): each worker solves its own problem,
and the servers shrink the mean of the solutions by the rule `prox`.

    build/release/bin/bandoneon run -n 4 -s 2 --set min-compress-bytes=1 -- build/venv/bin/python examples/sparse_svm.py

prints, of five penalties, the objective and the features kept after 150 rounds: of the workers, with pushes of float32
and of int8 (for tensors so short by the setting alone), and of one worker with all samples and rho times as large; and,
of l1, the optimum by linear programming where scipy is installed. The objective is the mean hinge loss plus the penalty of
the weights, without that of the bias. Pushes become int8 after a fifth of the rounds: the first rounds choose one of the
many minima of a penalty that is not convex, and int8 from the start may choose another.
"""

import argparse
import time

import torch

import bandoneon.torch as bdn

# By penalty: theta, and rho where four workers are.
PENALTIES = {"l1": (1.0, 0.2), "scad": (3.7, 0.05), "mcp": (3.0, 0.05), "capped": (0.5, 0.05), "lsp": (0.5, 0.05)}


def make_data(samples, features, used, seed):
    """Samples whose label depends on the first `used` features, and is noisy."""
    generator = torch.Generator().manual_seed(seed)
    draw = dict(generator=generator, dtype=torch.float64)
    x = torch.randn(samples, features, **draw)
    weights = torch.zeros(features, dtype=torch.float64)
    weights[:used] = torch.randn(used, **draw).sign() * (1 + torch.rand(used, **draw))
    return x, (x @ weights + 0.5 + 0.5 * torch.randn(samples, **draw)).sign()


def penalty_of(name, weights, lam, theta):
    v = weights.double().abs()
    if name == "l1":
        return (lam * v).sum().item()
    if name == "capped":
        return (lam * v.clamp(max=theta)).sum().item()
    if name == "lsp":
        return (lam * torch.log1p(v / theta)).sum().item()
    low = v.clamp(max=theta * lam)  # From theta lambda on SCAD and MCP are flat.
    if name == "mcp":
        return (lam * low - low**2 / (2 * theta)).sum().item()
    bent = (2 * theta * lam * low - low**2 - lam**2) / (2 * (theta - 1))
    return torch.where(v <= lam, lam * v, bent).sum().item()


def shrink_by_logarithms(mean, pull, lam, theta):
    """The prox of lam log(1 + |z| / theta). Rules of servers have no logarithms, so each worker takes it of the mean."""
    u = mean.double().abs()
    root = ((u - theta) ** 2 + 4 * (theta * u - lam / pull)).clamp(min=0).sqrt()
    candidates = torch.stack([torch.zeros_like(u), *(((u - theta + s * root) / 2).clamp(min=0) for s in (-1, 1))])
    values = lam * torch.log1p(candidates / theta) + pull / 2 * (candidates - u) ** 2
    best = candidates.gather(0, values.argmin(0, keepdim=True)).squeeze(0)
    return (best * mean.sign()).to(mean.dtype)


class Consensus(torch.optim.Optimizer):
    """One worker's part of a round: from common weights z it goes to v = x + u, where x is the least

        1 / total * sum of its hinge losses + rho / 2 |x - (z - u)|^2

    and u its dual variable, to which x - z is added after each round. The bias is not one of its parameters, for it is
    exchanged by another rule, and is written beside them."""

    def __init__(self, weight, bias, x, y, total, rho, shrink=None):
        super().__init__([weight], {"lr": 0.0})
        self.weight, self.bias, self.rho, self.most = weight, bias, rho, 1 / total
        self.shrink = shrink or (lambda mean: mean)
        self.rows = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1) * y[:, None]
        self.products = self.rows @ self.rows.T / rho
        largest = torch.linalg.eigvalsh(self.products)[-1] if len(x) else torch.ones(())
        self.rate = 1 / largest
        self.alpha = torch.zeros(len(x), dtype=x.dtype)  # one a sample, in [0, 1 / total]
        self.x = self.u = torch.zeros(x.shape[1] + 1, dtype=x.dtype)
        self.is_first = True

    def common(self):
        """The weights that all have, and the bias."""
        return torch.cat([self.shrink(self.weight.detach()).double(), self.bias.detach().double()])

    @torch.no_grad()
    def step(self, closure=None):
        z = self.common()
        if not self.is_first:
            self.u = self.u + self.x - z
        self.is_first = False
        self.x = self.solve(z - self.u)
        v = (self.x + self.u).to(self.weight.dtype)
        self.weight.copy_(v[:-1])
        self.bias.copy_(v[-1:])

    def solve(self, center, steps=100):
        """By the dual problem, and accelerated steps of its gradient that begin where the last round ended."""
        gains = 1 - self.rows @ center
        ahead, momentum = self.alpha, 1.0
        for _ in range(steps):
            new = (ahead + self.rate * (gains - self.products @ ahead)).clamp(0, self.most)
            moved = new - self.alpha
            if moved.abs().sum() <= 1e-9:
                break
            if (ahead - new) @ moved > 0:
                momentum = 1.0  # It has overshot.
            following = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
            self.alpha, ahead, momentum = new, new + (momentum - 1) / following * moved, following
        return center + self.rows.T @ self.alpha / self.rho


def objective(x, y, common, name, lam, theta):
    losses = (1 - y * (x @ common[:-1] + common[-1])).clamp(min=0)
    return losses.mean().item() + penalty_of(name, common[:-1], lam, theta)


def least_by_linear_programming(x, y, lam):
    """The optimum of l1, or None without scipy. Variables are w+, w-, b+, b-, and a loss a sample."""
    try:
        from scipy.optimize import linprog
    except ImportError:
        return None
    samples, features = x.shape
    rows = y[:, None] * torch.cat([x, -x, torch.ones(samples, 1), -torch.ones(samples, 1)], 1)
    cost = torch.cat([torch.full((2 * features,), lam), torch.zeros(2), torch.full((samples,), 1 / samples)])
    limits = torch.cat([-rows, -torch.eye(samples, dtype=x.dtype)], 1)
    found = linprog(cost.tolist(), limits.numpy(), [-1.0] * samples)
    return found.fun if found.status == 0 else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split(":")[0])
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--samples", type=int, default=400)
    parser.add_argument("--features", type=int, default=100)
    parser.add_argument("--used", type=int, default=8, help="features on which labels depend")
    parser.add_argument("--lam", type=float, default=0.05, help="strength of the penalty")
    parser.add_argument("--push", help="the codec beside none (default: int8 after a fifth of the rounds)")
    parser.add_argument("--penalties", nargs="+", choices=PENALTIES, default=list(PENALTIES))
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    compressed = options.push or f"none for {max(1, options.rounds // 5)}; int8"

    worker = bdn.init()
    torch.set_num_threads(1)
    begin = time.perf_counter()
    x, y = make_data(options.samples, options.features, options.used, options.seed)
    lam = options.lam

    def run(name, push="none", alone=False):
        """Of all workers, or of worker 0 with all samples: the others then count for nothing."""
        theta, rho = PENALTIES[name]
        rho, workers = (4 * rho, 1) if alone else (4 * rho / worker.size, worker.size)
        parts = list(torch.arange(len(x)).chunk(worker.size))
        own = torch.arange(len(x) if worker.rank == 0 else 0) if alone else parts[worker.rank]
        weight, bias = torch.zeros(options.features), torch.zeros(1)
        outer, shrink = bdn.algorithms.Prox(name, lam, theta, rho) if name != "lsp" else bdn.algorithms.Average(), None
        if name == "lsp":
            shrink = lambda mean: shrink_by_logarithms(mean, rho * workers, lam, theta)
        inner = Consensus(weight, bias, x[own], y[own], len(x), rho, shrink)
        counts = float(not alone or worker.rank == 0)

        def links(what, push):
            return bdn.Links(push=push, prefix=f"{name}, {push}, {alone}, {what}/", weight=counts)

        weights = bdn.LocalSteps(inner, [("weight", weight)], tau=1, outer=outer, links=links("weight", push))
        still = torch.optim.SGD([bias], lr=0.0)  # Consensus moves the bias.
        average = bdn.algorithms.Average()
        biases = bdn.LocalSteps(still, [("bias", bias)], tau=1, outer=average, links=links("bias", "none"))
        for _ in range(options.rounds):
            weights.step()
            biases.step()
        common = inner.common()
        weights.close()
        biases.close()
        return objective(x, y, common, name, lam, theta), int(common[:-1].count_nonzero())

    for name in options.penalties:
        all_of_them, kept = run(name)
        small, kept_small = run(name, push=compressed)
        alone, kept_alone = run(name, alone=True)
        if worker.rank:
            continue
        text = f"{name}: objective {all_of_them:.5f}, {kept} features; {compressed} {small:.5f}, {kept_small}"
        text += f"; one worker {alone:.5f}, {kept_alone}"
        if name == "l1":
            least = least_by_linear_programming(x, y, lam)
            text += "; no scipy, so the optimum is not known" if least is None else f"; optimum {least:.5f}"
        print(text, flush=True)
    if worker.rank == 0:
        print(f"seed {options.seed}, lambda {lam}, {options.rounds} rounds, {time.perf_counter() - begin:.0f} s", flush=True)
    bdn.shutdown()


if __name__ == "__main__":
    main()
