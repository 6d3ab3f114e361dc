"""The methods that are compared, as data: what is new is a few lines here."""

from dataclasses import dataclass, field
from typing import Callable, Optional

import torch

import bandoneon.torch as bdn

STEPS = 600


@dataclass(frozen=True, eq=False)
class Method:
    """One line of the table. `build(run, **settings)` makes its optimizer on one worker: `run` has
    .model, .worker, .lr and .steps; the optimizer has step(), zero_grad() and param_groups, and may
    have evaluation_model(), a context in which the model has the weights to be judged.

    `baseline` names the method that this one is compared with, None for one that is a baseline only.
    `rates` is the grid of learning rates, a factor of 2 apart; `quick_rate` is of --quick.
    """

    name: str
    group: str
    baseline: Optional[str]
    build: Callable
    rates: tuple
    settings: dict = field(default_factory=dict)
    steps: int = STEPS

    @property
    def quick_rate(self):
        return self.rates[1]

    def describe(self):
        """What a result depends on, beside learning rate, seed and steps; as JSON has it."""
        return {"build": self.build.__name__, **self.settings}


# ---- Update rules of the workers, and their grids: the same for every method that uses the rule ----


@dataclass(frozen=True)
class Rule:
    make: Callable  # (parameters, lr) -> torch optimizer
    rates: tuple


def doubling(first, count=4):
    return tuple(first * 2**i for i in range(count))


def adamw(params, lr):
    return torch.optim.AdamW(params, lr=lr, betas=(0.9, 0.95), weight_decay=0.01, fused=True)


def sgd(params, lr):
    return torch.optim.SGD(params, lr=lr)


def nesterov(params, lr):
    return torch.optim.SGD(params, lr=lr, momentum=0.9, nesterov=True)


RULES = {
    "adamw": Rule(adamw, doubling(0.002)),
    "sgd": Rule(sgd, doubling(0.125)),
    "nesterov": Rule(nesterov, doubling(0.05)),
    # Nesterov's momentum before error feedback, by the link: the optimizer's part is plain.
    "link momentum": Rule(sgd, doubling(0.05)),
}


# ---- Builders: settings to optimizers ----


def distributed(run, rule, warmup=0.0, **link):
    """DistributedOptimizer; `warmup` is the dense share of the run."""
    return bdn.DistributedOptimizer(
        RULES[rule].make(run.model.parameters(), run.lr),
        run.model.named_parameters(),
        warmup=round(warmup * run.steps),
        momentum=0.9 if rule == "link momentum" else 0.0,
        scaler=None,
        worker=run.worker,
        **link,
    )


def both(spec):
    return dict(push=spec, pull=spec)


# ---- The table ----

DENSE = "uncompressed"
NEAR_LOSSLESS = "near-lossless, AdamW"
COMPRESS_ADAMW = "BytePS-Compress, AdamW"
COMPRESS_MOMENTUM = "BytePS-Compress, momentum SGD"

DENSE_ADAMW = "AdamW, fp32"
DENSE_SGD = "SGD, fp32"
DENSE_NESTEROV = "momentum SGD, fp32"


def _every_step(group, baseline, rule):
    def method(name, **settings):
        settings = dict(rule=rule, **settings)
        return Method(name, group, baseline, distributed, RULES[rule].rates, settings)

    return method


_dense_adamw = _every_step(DENSE, None, "adamw")
_dense_sgd = _every_step(DENSE, None, "sgd")
_dense_nesterov = _every_step(DENSE, None, "nesterov")
_near_lossless = _every_step(NEAR_LOSSLESS, DENSE_ADAMW, "adamw")
_compress_adamw = _every_step(COMPRESS_ADAMW, DENSE_ADAMW, "adamw")
_compress_momentum = _every_step(COMPRESS_MOMENTUM, DENSE_NESTEROV, "link momentum")
_inner_momentum = _every_step(COMPRESS_MOMENTUM, DENSE_NESTEROV, "nesterov")

METHODS = [
    _dense_adamw(DENSE_ADAMW, **both("none")),
    _dense_sgd(DENSE_SGD, **both("none")),
    _dense_nesterov(DENSE_NESTEROV, **both("none")),
    _near_lossless("AdamW, bf16", **both("bf16")),
    _near_lossless("int8", **both("int8")),
    _near_lossless("int4 + Hadamard", **both("int4(hadamard=32)")),
    _near_lossless("dither, 8 levels", **both("dither(levels=8)")),
    _near_lossless("dither, 32 levels", **both("dither(levels=32)")),
    _near_lossless("natural dither, 8 levels", **both("dither(levels=8,kind=natural)")),
    _compress_adamw("onebit, a scale a tensor", **both("ef(onebit)")),
    _compress_adamw("onebit(256)", **both("ef(onebit(block=256))")),
    _compress_adamw("onebit(64)", **both("ef(onebit(block=64))")),
    _compress_adamw("onebit(64), warm-up", **both("ef(onebit(block=64))"), warmup=0.2),
    _compress_adamw("topk 1 %", **both("ef(topk(ratio=0.01))")),
    _compress_adamw("topk 1 %, warm-up", **both("ef(topk(ratio=0.01))"), warmup=0.2),
    _compress_adamw("topk 0.1 %", **both("ef(topk(ratio=0.001))")),
    _compress_adamw(
        "randomk 1/32", push="ef(randomk(ratio=0.03125))", pull="randomk(ratio=0.03125)"
    ),
    _compress_adamw("natural dither, 3 levels", **both("ef(dither(levels=3,kind=natural))")),
    _compress_momentum("momentum, onebit, a scale a tensor", **both("ef(onebit)")),
    _compress_momentum("momentum, onebit(256)", **both("ef(onebit(block=256))")),
    _compress_momentum("momentum, onebit(64)", **both("ef(onebit(block=64))")),
    _compress_momentum(
        "momentum, onebit(64), warm-up", **both("ef(onebit(block=64))"), warmup=0.2
    ),
    _compress_momentum("momentum, topk 1 %", **both("ef(topk(ratio=0.01))")),
    _compress_momentum("momentum, topk 1 %, warm-up", **both("ef(topk(ratio=0.01))"), warmup=0.2),
    _compress_momentum("momentum, topk 0.1 %", **both("ef(topk(ratio=0.001))")),
    _compress_momentum(
        "momentum, randomk 1/32", push="ef(randomk(ratio=0.03125))", pull="randomk(ratio=0.03125)"
    ),
    _inner_momentum("momentum, natural dither, 8 levels", **both("dither(levels=8,kind=natural)")),
]


def named(name):
    for method in METHODS:
        if method.name == name:
            return method
    raise KeyError(f"no method is named {name!r}")
