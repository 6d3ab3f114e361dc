"""The methods that are compared, as data: what is new is a few lines here."""

import json
from dataclasses import dataclass, field
from typing import Callable, Optional

import torch

import bandoneon.torch as bdn

STEPS = 600


@dataclass(frozen=True)
class Rule:
    """An update rule, and its grid of learning rates: the same for every method that uses the rule."""

    optimizer: type
    rates: tuple  # a factor of 2 apart
    options: dict = field(default_factory=dict)
    link: dict = field(default_factory=dict)  # what the rule leaves to the links

    def make(self, run):
        return self.optimizer(run.model.parameters(), lr=run.lr, **self.options)


@dataclass(frozen=True, eq=False)
class Method:
    """One line of the table. `build(run, rule, **settings)` makes its optimizer on one worker: `run`
    has .model, .worker, .lr and .steps; the optimizer has step(), zero_grad() and param_groups, and
    may have evaluation_model(), a context in which the model has the weights to be judged.

    `baseline` names the method that this one is compared with, None for one that is a baseline only.
    """

    name: str
    group: str
    baseline: Optional[str]
    rule: Rule
    build: Callable
    settings: dict = field(default_factory=dict)
    steps: int = STEPS

    @property
    def quick_rate(self):
        return self.rule.rates[1]

    def make_optimizer(self, run):
        return self.build(run, self.rule, **self.settings)

    def describe(self):
        """What a result depends on, beside learning rate, seed and steps; as JSON reads it back."""
        rule = {"optimizer": self.rule.optimizer.__name__, **self.rule.options, **self.rule.link}
        return json.loads(json.dumps({"build": self.build.__name__, "rule": rule, **self.settings}))


def doubling(first, count=4):
    return tuple(first * 2**i for i in range(count))


ADAM = dict(betas=(0.9, 0.95), weight_decay=0.01)
ADAMW = Rule(torch.optim.AdamW, doubling(0.002), dict(ADAM, fused=True))
FROZEN_ADAMW = Rule(bdn.FrozenAdamW, ADAMW.rates, ADAM)
ONEBIT_ADAM = Rule(bdn.OneBitAdam, ADAMW.rates, ADAM)
LANS = Rule(bdn.LANS, doubling(0.005))
SGD = Rule(torch.optim.SGD, doubling(0.125))
NESTEROV = Rule(torch.optim.SGD, doubling(0.05), dict(momentum=0.9, nesterov=True))
# The same momentum before error feedback.
LINK_NESTEROV = Rule(torch.optim.SGD, NESTEROV.rates, link=dict(momentum=0.9))


# ---- Builders. `warmup` is the share of the run that goes uncompressed ----


def distributed(run, rule, warmup=0.0, **link):
    return _over_links(run, rule.make(run), warmup=round(warmup * run.steps), **rule.link, **link)


def frozen_adamw(run, rule, warmup, **link):
    """The second moment is learned in the warm-up alone."""
    steps = round(warmup * run.steps)
    inner = rule.optimizer(
        run.model.parameters(), lr=run.lr, freeze_after=steps, **rule.options
    )
    return _over_links(run, inner, warmup=steps, **link)


def onebit_adam(run, rule, warmup, **link):
    return rule.optimizer(
        run.model.parameters(),
        lr=run.lr,
        warmup=round(warmup * run.steps),
        named_parameters=run.model.named_parameters(),
        worker=run.worker,
        **rule.options,
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
BLOCKWISE = "blockwise sparsification, momentum SGD"
BLOCKWISE_LONG = "blockwise sparsification, R = 1024"

DENSE_ADAMW = "AdamW, fp32"
DENSE_SGD = "SGD, fp32"
DENSE_NESTEROV = "momentum SGD, fp32"
DENSE_LANS = "LANS, fp32"
DENSE_LANS_LONG = "LANS, fp32, long"
DENSE_NESTEROV_LONG = "momentum SGD, fp32, long"

WARM = dict(warmup=0.2)
LONG = 4 * STEPS
RESETS_1024 = 10 * 256  # Steps of ten resets of CSER, which are 256 apart at R = 1024.


def _methods(group, baseline, rule, build=distributed, steps=STEPS):
    """What makes entries of one group: name and settings are left to give."""

    def method(name, **settings):
        return Method(name, group, baseline, rule, build, settings, steps)

    return method


_dense_adamw = _methods(DENSE, None, ADAMW)
_dense_sgd = _methods(DENSE, None, SGD)
_dense_nesterov = _methods(DENSE, None, NESTEROV)
_dense_nesterov_long = _methods(DENSE, None, NESTEROV, steps=RESETS_1024)
_dense_lans = _methods(DENSE, None, LANS)
_dense_lans_long = _methods(DENSE, None, LANS, steps=LONG)
_near_lossless = _methods(NEAR_LOSSLESS, DENSE_ADAMW, ADAMW)
_adamw = _methods(COMPRESS_ADAMW, DENSE_ADAMW, ADAMW)
_frozen_adamw = _methods(COMPRESS_ADAMW, DENSE_ADAMW, FROZEN_ADAMW, frozen_adamw)
_onebit_adam = _methods(COMPRESS_ADAMW, DENSE_ADAMW, ONEBIT_ADAM, onebit_adam)
_momentum = _methods(COMPRESS_MOMENTUM, DENSE_NESTEROV, LINK_NESTEROV)
_inner_momentum = _methods(COMPRESS_MOMENTUM, DENSE_NESTEROV, NESTEROV)
_clan = _methods(CLAN, DENSE_LANS, LANS)
_clan_long = _methods(CLAN_LONG, DENSE_LANS_LONG, LANS, steps=LONG)
_ef_sgd = _methods(BLOCKWISE, DENSE_NESTEROV, LINK_NESTEROV)
_ef_sgd_long = _methods(BLOCKWISE_LONG, DENSE_NESTEROV_LONG, LINK_NESTEROV, steps=RESETS_1024)

ONEBIT = both("ef(onebit)")
ONEBIT_256 = both("ef(onebit(block=256))")
ONEBIT_64 = both("ef(onebit(block=64))")
TOPK_1 = both("ef(topk(ratio=0.01))")
TOPK_01 = both("ef(topk(ratio=0.001))")
# All nodes draw the same elements, so the reply leaves nothing out that a residual could keep.
RANDOMK = dict(push="ef(randomk(ratio=0.03125))", pull="randomk(ratio=0.03125)")


def blocks(ratio):
    """CSER's globally randomized blocks: one of `ratio`."""
    codec = f"blocks(ratio={1 / ratio},size=64)"
    return dict(push=f"ef({codec})", pull=codec)


METHODS = [
    _dense_adamw(DENSE_ADAMW),
    _dense_sgd(DENSE_SGD),
    _dense_nesterov(DENSE_NESTEROV),
    _dense_lans(DENSE_LANS),
    _dense_lans_long(DENSE_LANS_LONG),
    _dense_nesterov_long(DENSE_NESTEROV_LONG),
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
    _ef_sgd("EF-SGD, R = 32", **blocks(32)),
    _ef_sgd("EF-SGD, R = 256", **blocks(256)),
    _ef_sgd_long("EF-SGD, R = 1024", **blocks(1024)),
]


def named(name):
    for method in METHODS:
        if method.name == name:
            return method
    raise KeyError(f"no method is named {name!r}")
