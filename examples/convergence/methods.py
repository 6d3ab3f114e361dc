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


ADAMW = dict(betas=(0.9, 0.95), weight_decay=0.01)


def adamw(params, lr):
    return torch.optim.AdamW(params, lr=lr, fused=True, **ADAMW)


def sgd(params, lr):
    return torch.optim.SGD(params, lr=lr)


def nesterov(params, lr):
    return torch.optim.SGD(params, lr=lr, momentum=0.9, nesterov=True)


def lans(params, lr):
    return bdn.LANS(params, lr=lr)


RULES = {
    "adamw": Rule(adamw, doubling(0.002)),
    "sgd": Rule(sgd, doubling(0.125)),
    "nesterov": Rule(nesterov, doubling(0.05)),
    # Nesterov's momentum before error feedback, by the link: the optimizer's part is plain.
    "link momentum": Rule(sgd, doubling(0.05)),
    "lans": Rule(lans, doubling(0.005)),
}


# ---- Builders: settings to optimizers ----

# `warmup` is the share of the run that goes uncompressed.


def distributed(run, rule, warmup=0.0, **link):
    inner = RULES[rule].make(run.model.parameters(), run.lr)
    momentum = 0.9 if rule == "link momentum" else 0.0
    return _over_links(run, inner, warmup=round(warmup * run.steps), momentum=momentum, **link)


def frozen_adamw(run, warmup, **link):
    """AdamW whose second moment is learned in the warm-up alone."""
    steps = round(warmup * run.steps)
    inner = bdn.FrozenAdamW(run.model.parameters(), lr=run.lr, freeze_after=steps, **ADAMW)
    return _over_links(run, inner, warmup=steps, **link)


def onebit_adam(run, warmup, **link):
    return bdn.OneBitAdam(
        run.model.parameters(),
        lr=run.lr,
        warmup=round(warmup * run.steps),
        named_parameters=run.model.named_parameters(),
        worker=run.worker,
        **ADAMW,
        **link,
    )


def _over_links(run, inner, push="none", pull="none", **link):
    return bdn.DistributedOptimizer(
        inner,
        run.model.named_parameters(),
        push=push,
        pull=pull,
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
CLAN = "CLAN"
CLAN_LONG = "CLAN, a long run"

DENSE_ADAMW = "AdamW, fp32"
DENSE_SGD = "SGD, fp32"
DENSE_NESTEROV = "momentum SGD, fp32"
DENSE_LANS = "LANS, fp32"
DENSE_LANS_LONG = "LANS, fp32, long"

WARM = dict(warmup=0.2)
LONG = 4 * STEPS


def _methods(group, baseline, rule, build=distributed, steps=STEPS):
    """What makes entries of one group: name and settings are left to give."""

    def method(name, **settings):
        if build is distributed:
            settings = dict(rule=rule, **settings)
        return Method(name, group, baseline, build, RULES[rule].rates, settings, steps)

    return method


_dense_adamw = _methods(DENSE, None, "adamw")
_dense_sgd = _methods(DENSE, None, "sgd")
_dense_nesterov = _methods(DENSE, None, "nesterov")
_dense_lans = _methods(DENSE, None, "lans")
_dense_lans_long = _methods(DENSE, None, "lans", steps=LONG)
_near_lossless = _methods(NEAR_LOSSLESS, DENSE_ADAMW, "adamw")
_adamw = _methods(COMPRESS_ADAMW, DENSE_ADAMW, "adamw")
_frozen_adamw = _methods(COMPRESS_ADAMW, DENSE_ADAMW, "adamw", frozen_adamw)
_onebit_adam = _methods(COMPRESS_ADAMW, DENSE_ADAMW, "adamw", onebit_adam)
_momentum = _methods(COMPRESS_MOMENTUM, DENSE_NESTEROV, "link momentum")
_inner_momentum = _methods(COMPRESS_MOMENTUM, DENSE_NESTEROV, "nesterov")
_clan = _methods(CLAN, DENSE_LANS, "lans")
_clan_long = _methods(CLAN_LONG, DENSE_LANS_LONG, "lans", steps=LONG)

ONEBIT = both("ef(onebit)")
ONEBIT_256 = both("ef(onebit(block=256))")
ONEBIT_64 = both("ef(onebit(block=64))")
TOPK_1 = both("ef(topk(ratio=0.01))")
TOPK_01 = both("ef(topk(ratio=0.001))")
# All nodes draw the same elements, so the reply leaves nothing out that a residual could keep.
RANDOMK = dict(push="ef(randomk(ratio=0.03125))", pull="randomk(ratio=0.03125)")

METHODS = [
    _dense_adamw(DENSE_ADAMW),
    _dense_sgd(DENSE_SGD),
    _dense_nesterov(DENSE_NESTEROV),
    _dense_lans(DENSE_LANS),
    _dense_lans_long(DENSE_LANS_LONG),
    _near_lossless("bf16", **both("bf16")),
    _near_lossless("int8", **both("int8")),
    _near_lossless("int4 + Hadamard", **both("int4(hadamard=32)")),
    _near_lossless("dither, 8 levels", **both("dither(levels=8)")),
    _near_lossless("dither, 32 levels", **both("dither(levels=32)")),
    _near_lossless("natural dither, 7 levels", **both("dither(levels=7,kind=natural)")),
    _near_lossless("natural dither, 8 levels", **both("dither(levels=8,kind=natural)")),
    _adamw("onebit", **ONEBIT),
    _adamw("onebit(256)", **ONEBIT_256),
    _adamw("onebit(64)", **ONEBIT_64),
    _adamw("onebit(64), warm-up", **ONEBIT_64, **WARM),
    _frozen_adamw("onebit, warm-up, frozen v", **ONEBIT, **WARM),
    _frozen_adamw("onebit(64), warm-up, frozen v", **ONEBIT_64, **WARM),
    _onebit_adam("1-bit Adam", **ONEBIT, **WARM),
    _adamw("topk 1 %", **TOPK_1),
    _adamw("topk 1 %, warm-up", **TOPK_1, **WARM),
    _frozen_adamw("topk 1 %, warm-up, frozen v", **TOPK_1, **WARM),
    _adamw("topk 0.1 %", **TOPK_01),
    _adamw("randomk 1/32", **RANDOMK),
    _adamw("natural dither, 3 levels, ef", **both("ef(dither(levels=3,kind=natural))")),
    _momentum("momentum, onebit", **ONEBIT),
    _momentum("momentum, onebit(256)", **ONEBIT_256),
    _momentum("momentum, onebit(64)", **ONEBIT_64),
    _momentum("momentum, onebit(64), warm-up", **ONEBIT_64, **WARM),
    _momentum("momentum, topk 1 %", **TOPK_1),
    _momentum("momentum, topk 1 %, warm-up", **TOPK_1, **WARM),
    _momentum("momentum, topk 0.1 %", **TOPK_01),
    _momentum("momentum, randomk 1/32", **RANDOMK),
    _inner_momentum("momentum, natural dither, 8 levels", **both("dither(levels=8,kind=natural)")),
    _clan("CLAN, onebit", **ONEBIT),
    _clan("CLAN, onebit, warm-up", **ONEBIT, **WARM),
    _clan("CLAN, topk 0.1 %", **TOPK_01),
    _clan("CLAN, topk 0.1 %, warm-up", **TOPK_01, **WARM),
    _clan_long("CLAN, onebit, long", **ONEBIT),
    _clan_long("CLAN, onebit, warm-up, long", **ONEBIT, **WARM),
    _clan_long("CLAN, topk 0.1 %, warm-up, long", **TOPK_01, **WARM),
]


def named(name):
    for method in METHODS:
        if method.name == name:
            return method
    raise KeyError(f"no method is named {name!r}")
