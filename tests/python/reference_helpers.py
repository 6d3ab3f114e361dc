"""Small problems with three workers, for the library and for tests/reference/algorithms.py."""

import numpy as np
import torch

import algorithms
import bandoneon
import bandoneon.torch as bdn
from cluster_helpers import linked

WORKERS = 3
STEPS = 50
SHAPES = {"first": (8, 12), "second": (40,), "third": (5, 5)}
# Everything is compressed, however small.
SETTINGS = dict(workers=WORKERS, servers=2, seed=3, min_compress_bytes=1)


class Quadratic:
    """Worker i's loss is sum(a_i (x - c_i)^2) / 2 over every parameter x, with curvatures and
    centres of its own; `noise` adds to the gradient what differs by step. Elementwise, so that the
    gradients have the same bits on every machine."""

    def __init__(self, seed=1, noise=0.5):
        draw = np.random.default_rng(seed)
        self.start = self._draw(draw)
        self.curvatures = [[1 + abs(a) / 2 for a in self._draw(draw)] for _ in range(WORKERS)]
        self.centres = [self._draw(draw) for _ in range(WORKERS)]
        self.noise = [[noise * n for n in self._draw(draw)] for _ in range(WORKERS * STEPS)]

    @staticmethod
    def _draw(draw):
        return [draw.standard_normal(shape).astype(np.float32) for shape in SHAPES.values()]

    def gradient(self, rank, t, model):
        noise = self.noise[(t - 1) % STEPS * WORKERS + rank]
        parts = zip(self.curvatures[rank], model, self.centres[rank], noise)
        return [a * (x - c) + n for a, x, c, n in parts]

    def optimum(self):
        """Where the gradients' mean over the workers and all steps is 0."""
        ranks = range(WORKERS)
        result = []
        for b in range(len(SHAPES)):
            pull = sum(self.curvatures[i][b] * self.centres[i][b] for i in ranks)
            noise = sum(noise[b] for noise in self.noise) / STEPS
            result.append((pull - noise) / sum(self.curvatures[i][b] for i in ranks))
        return result

    def parameters(self):
        """{name: parameter} where the training begins."""
        return {
            name: torch.nn.Parameter(torch.from_numpy(x.copy()))
            for name, x in zip(SHAPES, self.start)
        }


class PartlyUnseen(Quadratic):
    """As Quadratic, but no gradient ever reaches the first half of each parameter, like rows of an
    embedding whose words do not come."""

    def gradient(self, rank, t, model):
        gradients = super().gradient(rank, t, model)
        return [np.where(self.is_unseen(g), np.zeros_like(g), g) for g in gradients]

    @staticmethod
    def is_unseen(array):
        return np.arange(array.size).reshape(array.shape) < array.size // 2


def values(params):
    """Copies of what {name: parameter} holds."""
    return [p.detach().numpy().copy() for p in params.values()]


def run_ranks(problem, make_optimizer, steps=STEPS, rates=None, look=None, **settings):
    """For each rank, what look(optimizer, params) is after each step; without it, the parameters.
    make_optimizer(worker, params) gets {name: parameter}; rates(t), if given, is step t's learning
    rate."""

    def job(worker):
        params = problem.parameters()
        optimizer = make_optimizer(worker, params)
        seen = []
        for t in range(1, steps + 1):
            for group in optimizer.param_groups if rates else ():
                group["lr"] = rates(t)
            optimizer.zero_grad()
            model = [p.detach().numpy() for p in params.values()]
            grads = map(torch.from_numpy, problem.gradient(worker.rank, t, model))
            sum((p * g).sum() for p, g in zip(params.values(), grads)).backward()
            optimizer.step()
            seen.append(look(optimizer, params) if look else values(params))
        return seen

    with bandoneon.LocalCluster(**{**SETTINGS, **settings}) as cluster:
        return cluster.run(job)


def assert_same_bits(models):
    first, *others = models
    for other in others:
        assert len(first) == len(other)
        assert all(np.array_equal(a, b) for a, b in zip(first, other))


def run_library(problem, make_optimizer, steps=STEPS, rates=None, **settings):
    """The parameters after training, as arrays; equal on all workers. As run_ranks."""
    ends = [seen[-1] for seen in run_ranks(problem, make_optimizer, steps, rates, **settings)]
    assert_same_bits(ends)
    return ends[0]


def distributed(make_inner, **options):
    """For run_library: DistributedOptimizer around make_inner(list of parameters)."""
    return lambda worker, params: bdn.DistributedOptimizer(
        make_inner(list(params.values())), params.items(), worker=worker, **linked(scaler=None, **options)
    )


def links(push=algorithms.none, pull=algorithms.none, **options):
    """For the reference: one link a parameter."""
    return [algorithms.TwoWayErrorFeedback(WORKERS, push, pull, **options) for _ in SHAPES]


def assert_close(actual, expected, rtol=1e-5, atol=1e-6):
    assert len(SHAPES) == len(actual) == len(expected)
    for name, a, b in zip(SHAPES, actual, expected):
        np.testing.assert_allclose(a, b, rtol, atol, err_msg=name)


def distance(model, other):
    """The largest difference of two models."""
    assert len(model) == len(other)
    return max(np.abs(a - b).max() for a, b in zip(model, other))


# Codecs by their specs, and as the reference has them.
CODECS = {
    "none": ("none", algorithms.none),
    "onebit": ("ef(onebit)", algorithms.onebit),
    "topk": ("ef(topk(ratio=0.1))", algorithms.topk(0.1)),
}

# Specs to converge with. One scale for a whole tensor would take longer than a test has.
CONVERGING = ["ef(onebit(block=32))", "ef(twobit(block=32))", "ef(topk(ratio=0.25))"]


def assert_reaches_the_optimum(make_optimizer, lr, steps=400):
    """The rate falls in a line from lr to 0."""
    problem = Quadratic()
    result = run_library(problem, make_optimizer, steps, lambda t: lr * (1 - (t - 1) / steps))
    best = problem.optimum()
    assert distance(result, best) < 0.05 < 3 < distance(problem.start, best)
