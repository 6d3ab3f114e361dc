"""The methods that are compared, as data: what is new is a few lines here."""

import json
import math
from dataclasses import dataclass, field
from typing import Callable, Optional

import torch

import bandoneon.torch as bdn

from . import trials
from .training import LARGE, NORMAL, SMALL, Scale

STEPS = 600
QUICK_STEPS = 72


@dataclass(frozen=True)
class Rule:
    """An update rule, and its grid of learning rates: the same for every method that uses the rule."""

    optimizer: type
    rates: tuple  # a factor of 2 apart
    options: dict = field(default_factory=dict)
    link: dict = field(default_factory=dict)  # what the rule leaves to the links
    share_for_others: float = 1.0  # of the rate, for what is no matrix

    def make(self, run):
        return self.optimizer(self.groups(run.model), lr=run.lr, **self.options)

    def groups(self, model):
        return model.parameters()


class MuonRule(Rule):
    """Embeddings and the output layer are no matrices to it."""

    def groups(self, model):
        blocks = [p for name, p in model.named_parameters() if name.startswith("blocks.")]
        others = [p for name, p in model.named_parameters() if not name.startswith("blocks.")]
        return [{"params": blocks}, {"params": others, "matrices": False}]


class TrackedMuonRule(MuonRule):
    """With a rate of its own for all that AdamW steps."""

    def groups(self, model):
        matrices = [p for name, p in model.named_parameters() if name.startswith("blocks.") and p.ndim >= 2]
        others = [p for name, p in model.named_parameters() if not name.startswith("blocks.") or p.ndim < 2]
        return [{"params": matrices}, {"params": others, "matrices": False, "share_of_rate": self.share_for_others}]


@dataclass(frozen=True, eq=False)
class Method:
    """One line of the table. `build(run, rule, **settings)` makes its optimizer on one worker: `run`
    has .model, .worker, .lr and .steps; the optimizer has step(), zero_grad() and param_groups, and
    may have common_weights(), a context in which the model has the weights to be judged.

    `baseline` names the method that this one is compared with, None for one that is a baseline only.
    `dense` names uncompressed runs of as many samples, which it is compared with besides.
    """

    name: str
    group: str
    baseline: Optional[str]
    rule: Rule
    build: Callable
    settings: dict = field(default_factory=dict)
    steps: int = STEPS
    scale: Scale = NORMAL
    dense: tuple = ()

    @property
    def quick_rate(self):
        return self.rule.rates[1]

    @property
    def quick_steps(self):
        """Few, and a multiple of the steps after which it exchanges something else."""
        period = max(self.settings.get(name, 1) for name in ("tau", "most", "period"))
        return period * math.ceil(QUICK_STEPS / period)

    def make_optimizer(self, run):
        return self.build(run, self.rule, **self.settings)

    def describe(self):
        """What a result depends on, beside learning rate, seed and steps; as JSON reads it back."""
        rule = {"optimizer": self.rule.optimizer.__name__, **self.rule.options, **self.rule.link}
        if self.rule.share_for_others != 1:
            rule["share_for_others"] = self.rule.share_for_others
        return json.loads(json.dumps({"build": self.build.__name__, "rule": rule, **self.settings}))


def doubling(first, count=4):
    return tuple(first * 2**i for i in range(count))


ADAM = dict(betas=(0.9, 0.95), weight_decay=0.01)
ADAMW = Rule(torch.optim.AdamW, doubling(0.002), dict(ADAM, fused=True))
FROZEN_ADAMW = Rule(bdn.algorithms.FrozenAdamW, ADAMW.rates, ADAM)
MUON = MuonRule(bdn.algorithms.Muon, doubling(0.008), ADAM)
SHORTEST_MUON = MuonRule(bdn.algorithms.Muon, MUON.rates, dict(ADAM, momentum=0.8))
SHORTER_MUON = MuonRule(bdn.algorithms.Muon, MUON.rates, dict(ADAM, momentum=0.9))
LONGER_MUON = MuonRule(bdn.algorithms.Muon, MUON.rates, dict(ADAM, momentum=0.98))
ONEBIT_ADAM = Rule(bdn.algorithms.OneBitAdam, ADAMW.rates, ADAM)
LANS = Rule(bdn.algorithms.LANS, doubling(0.005))
SGD = Rule(torch.optim.SGD, doubling(0.125))
NESTEROV = Rule(torch.optim.SGD, doubling(0.05), dict(momentum=0.9, nesterov=True))
# The same momentum before error feedback.
LINK_NESTEROV = Rule(torch.optim.SGD, NESTEROV.rates, link=dict(momentum=0.9))

# What EF21 sends is their momentum. Its square is (1 - 0.95) / (1 + 0.95) of the gradients' where noise rules, and
# AdamW's steps are longer by the root of that.
TRACKED = dict(betas=(0.0, 0.95), weight_decay=0.01)
EF21_MUON = TrackedMuonRule(bdn.algorithms.Muon, MUON.rates, dict(TRACKED, momentum=0.0), share_for_others=0.16)
EF21_ADAMW = Rule(torch.optim.AdamW, doubling(0.0005), dict(TRACKED, fused=True))
LION = Rule(bdn.algorithms.Lion, ADAMW.rates, dict(betas=(0.9, 0.99), weight_decay=0.01))
DEMO = Rule(bdn.algorithms.DeMo, ADAMW.rates, dict(decay=0.999, weight_decay=0.01))


# Of blockwise codecs: small, as the model's tensors are.
BLOCK = 64


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
        run.model.named_parameters(),
        lr=run.lr,
        links=bdn.Links(warmup=round(warmup * run.steps), **link),
        worker=run.worker,
        **rule.options,
    )


def server_optimizer(run, rule, push="none", pull="none"):
    return bdn.ServerOptimizer(
        rule.make(run), run.model.named_parameters(), push=push, pull=pull, worker=run.worker
    )


def local_steps(run, rule, tau, outer, outer_options=None, trial=None, **link):
    """`outer` names the class of the outer step, `trial` one of what is tried."""
    kind = getattr(trials, trial) if trial else bdn.LocalSteps
    return kind(
        rule.make(run),
        run.model.named_parameters(),
        tau=tau,
        outer=getattr(bdn.algorithms, outer)(**(outer_options or {})),
        worker=run.worker,
        **link,
    )


def growing_steps(run, rule, least, most, **settings):
    """Meetings grow rarer from the highest rate on, which comes after a tenth of the run."""
    highest = math.sqrt(least) * run.lr
    tau = bdn.algorithms.QSR(alpha=highest, least=least, most=most, warmup=math.ceil(run.steps / 10))
    return local_steps(run, rule, tau, **settings)


def streaming_steps(run, rule, tau, fragments, delay, **settings):
    """The model meets in fragments, which travel while the workers step on."""
    return local_steps(run, rule, bdn.algorithms.Streaming(tau, fragments, delay), **settings)


def cser(run, rule, block=BLOCK, **settings):
    named = run.model.named_parameters()
    return bdn.algorithms.CSER(rule.make(run), named, block=block, worker=run.worker, **settings)


def ef21(run, rule, **settings):
    named = run.model.named_parameters()
    return bdn.algorithms.EF21(rule.make(run), named, worker=run.worker, **settings)


def in_step(run, rule, **settings):
    """Of what is distributed by itself."""
    return rule.optimizer(
        run.model.named_parameters(),
        lr=run.lr,
        worker=run.worker,
        **rule.options,
        **settings,
    )


def _over_links(run, inner, push="none", pull="none", **link):
    return bdn.DistributedOptimizer(
        inner,
        run.model.named_parameters(),
        overlap=False,  # Hooks that send in the backward pass only cost where all is in one process.
        worker=run.worker,
        links=bdn.Links(push=push, pull=pull, scaler=None, **link),
    )


def both(spec):
    return dict(push=spec, pull=spec)


# ---- The table ----

DENSE = "uncompressed"
NEAR_LOSSLESS = "near-lossless, AdamW"
SDP4BIT = "SDP4Bit, AdamW on the server"
COMPRESS_ADAMW = "BytePS-Compress, AdamW"
COMPRESS_MOMENTUM = "BytePS-Compress, momentum SGD"
CLAN = "CLAN"
CLAN_LONG = "CLAN, a long run"
CSER_32 = "CSER, R = 32"
CSER_256 = "CSER, R = 256"
CSER_1024 = "CSER, R = 1024"
LOCAL = "local steps of AdamW"
LOCAL_24 = "local steps of AdamW, tau = 24"
UPLINKS = "sign momentum, compressed uplink"
LOCAL_SHORT = "local steps of Muon, a short run"
STREAMING = "streaming local steps of Muon, a short run"
LOCAL_SHORT_ADAMW = "local steps of AdamW, a short run"
LOCAL_KEPT = "local steps of Muon, a short run, other momentum and residuals"
LOCAL_MEDIUM = "local steps, 2,400 steps"
LOCAL_LONG = "local steps, 12,000 steps"
LOCAL_LONGEST = "local steps, 24,000 steps"
LOCAL_LARGE = "local steps, a larger model"
GRADIENTS_MUON = "gradients, Muon"
TRACKED_MOMENTUM = "tracked momentum"
SIGNS = "Lion"
DECOUPLED = "DeMo"
APART = "the gap of tau = 8, taken apart"
SPARSE_LOCO = "SparseLoCo"

DENSE_ADAMW = "AdamW, fp32"
DENSE_SERVER = "AdamW on the server, fp32"
DENSE_SGD = "SGD, fp32"
DENSE_NESTEROV = "momentum SGD, fp32"
DENSE_LANS = "LANS, fp32"
DENSE_LANS_LONG = "LANS, fp32, long"
DENSE_NESTEROV_LONG = "momentum SGD, fp32, long"
DENSE_MUON = "Muon, fp32"
DENSE_LION = "Lion, fp32"
DENSE_ADAMW_MEDIUM = "AdamW, fp32, 2,400 steps"
DENSE_MUON_MEDIUM = "Muon, fp32, 2,400 steps"
DENSE_ADAMW_LONG = "AdamW, fp32, 12,000 steps"
DENSE_MUON_LONG = "Muon, fp32, 12,000 steps"
DENSE_ADAMW_LONGEST = "AdamW, fp32, 24,000 steps"
DENSE_MUON_LONGEST = "Muon, fp32, 24,000 steps"
DENSE_ADAMW_LARGE = "AdamW, fp32, larger"
DENSE_MUON_LARGE = "Muon, fp32, larger"
AVERAGING = "averaging, fp32"
AVERAGING_24 = "averaging, fp32, tau = 24"
SIGN_MOMENTUM = "sign momentum, fp32 uplink"
MUON_8 = "Muon, tau = 8, fp32"

WARM = dict(warmup=0.2)
LONG = 4 * STEPS
RESETS_1024 = 10 * 256  # Steps of ten resets of CSER, which are 256 apart at R = 1024.
ROUNDS = 1000  # of local steps
LONGER = 12 * ROUNDS
LONGEST = 2 * LONGER
LARGE_STEPS = 2000


def _methods(group, baseline, rule, build=distributed, steps=STEPS, dense=()):
    """What makes entries of one group: name and settings are left to give. Long runs are small."""
    scale = {STEPS: NORMAL, LARGE_STEPS: LARGE}.get(steps, SMALL)

    def method(name, **settings):
        return Method(name, group, baseline, rule, build, settings, steps, scale, dense)

    return method


_dense_adamw = _methods(DENSE, None, ADAMW)
_dense_server = _methods(DENSE, None, ADAMW, server_optimizer)
_dense_sgd = _methods(DENSE, None, SGD)
_dense_nesterov = _methods(DENSE, None, NESTEROV)
_dense_nesterov_long = _methods(CSER_1024, None, NESTEROV, steps=RESETS_1024)
_dense_lans = _methods(DENSE, None, LANS)
_dense_lans_long = _methods(CLAN_LONG, None, LANS, steps=LONG)
_dense_muon = _methods(DENSE, None, MUON)
_dense_adamw_medium = _methods(LOCAL_MEDIUM, None, ADAMW, steps=LONG)
_dense_muon_medium = _methods(LOCAL_MEDIUM, None, MUON, steps=LONG)
_dense_adamw_long = _methods(LOCAL_LONG, None, ADAMW, steps=LONGER)
_dense_muon_long = _methods(LOCAL_LONG, None, MUON, steps=LONGER)
_dense_adamw_longest = _methods(LOCAL_LONGEST, None, ADAMW, steps=LONGEST)
_dense_muon_longest = _methods(LOCAL_LONGEST, None, MUON, steps=LONGEST)
_dense_adamw_large = _methods(LOCAL_LARGE, None, ADAMW, steps=LARGE_STEPS)
_dense_muon_large = _methods(LOCAL_LARGE, None, MUON, steps=LARGE_STEPS)
_near_lossless = _methods(NEAR_LOSSLESS, DENSE_ADAMW, ADAMW)
_sdp4bit = _methods(SDP4BIT, DENSE_SERVER, ADAMW, server_optimizer)
_adamw = _methods(COMPRESS_ADAMW, DENSE_ADAMW, ADAMW)
_frozen_adamw = _methods(COMPRESS_ADAMW, DENSE_ADAMW, FROZEN_ADAMW, frozen_adamw)
_onebit_adam = _methods(COMPRESS_ADAMW, DENSE_ADAMW, ONEBIT_ADAM, onebit_adam)
_momentum = _methods(COMPRESS_MOMENTUM, DENSE_NESTEROV, LINK_NESTEROV)
_inner_momentum = _methods(COMPRESS_MOMENTUM, DENSE_NESTEROV, NESTEROV)
_clan = _methods(CLAN, DENSE_LANS, LANS)
_clan_long = _methods(CLAN_LONG, DENSE_LANS_LONG, LANS, steps=LONG)
DENSE_LONG = DENSE_ADAMW_LONG, DENSE_MUON_LONG
_averaging = _methods(LOCAL, None, ADAMW, local_steps, LONGER, DENSE_LONG)
_averaging_24 = _methods(LOCAL_24, None, ADAMW, local_steps, ROUNDS * 24)
_local = _methods(LOCAL, AVERAGING, ADAMW, local_steps, LONGER, DENSE_LONG)
_local_24 = _methods(LOCAL_24, AVERAGING_24, ADAMW, local_steps, ROUNDS * 24)
_uplink = _methods(UPLINKS, SIGN_MOMENTUM, ADAMW, local_steps, LONGER, DENSE_LONG)

DENSE_SHORT = DENSE_ADAMW, DENSE_MUON
_gradients_muon = _methods(GRADIENTS_MUON, DENSE_MUON, MUON, dense=DENSE_SHORT)
_growing_adamw = _methods(LOCAL_SHORT_ADAMW, DENSE_ADAMW, ADAMW, growing_steps, dense=DENSE_SHORT)
_growing_muon = _methods(LOCAL_SHORT, DENSE_ADAMW, MUON, growing_steps, dense=DENSE_SHORT)
_sparse_adamw = _methods(SPARSE_LOCO, DENSE_ADAMW, ADAMW, local_steps, dense=DENSE_SHORT)
_sparse_muon = _methods(SPARSE_LOCO, DENSE_ADAMW, MUON, local_steps, dense=DENSE_SHORT)
_ef21_muon = _methods(TRACKED_MOMENTUM, DENSE_ADAMW, EF21_MUON, ef21, dense=DENSE_SHORT)
_ef21_adamw = _methods(TRACKED_MOMENTUM, DENSE_ADAMW, EF21_ADAMW, ef21, dense=DENSE_SHORT)
_dense_lion = _methods(SIGNS, None, LION, in_step, dense=DENSE_SHORT)
_lion = _methods(SIGNS, DENSE_LION, LION, in_step, dense=DENSE_SHORT)
_demo = _methods(DECOUPLED, DENSE_ADAMW, DEMO, in_step, dense=DENSE_SHORT)
_local_adamw_short = _methods(LOCAL_SHORT_ADAMW, DENSE_ADAMW, ADAMW, local_steps, dense=DENSE_SHORT)
_local_muon_short = _methods(LOCAL_SHORT, DENSE_ADAMW, MUON, local_steps, dense=DENSE_SHORT)
_streaming_muon_short = _methods(STREAMING, DENSE_ADAMW, MUON, streaming_steps, dense=DENSE_SHORT)
_kept_muon_short = _methods(LOCAL_KEPT, DENSE_ADAMW, MUON, local_steps, dense=DENSE_SHORT)
_shorter_muon_short = _methods(LOCAL_KEPT, DENSE_ADAMW, SHORTER_MUON, local_steps, dense=DENSE_SHORT)
DENSE_MEDIUM = DENSE_ADAMW_MEDIUM, DENSE_MUON_MEDIUM
_local_muon_medium = _methods(LOCAL_MEDIUM, DENSE_ADAMW_MEDIUM, MUON, local_steps, LONG, DENSE_MEDIUM)
_shorter_muon_medium = _methods(LOCAL_MEDIUM, DENSE_ADAMW_MEDIUM, SHORTER_MUON, local_steps, LONG, DENSE_MEDIUM)
_local_muon_long = _methods(LOCAL_LONG, DENSE_ADAMW_LONG, MUON, local_steps, LONGER, DENSE_LONG)
DENSE_LONGEST = DENSE_ADAMW_LONGEST, DENSE_MUON_LONGEST
_local_muon_longest = _methods(LOCAL_LONGEST, DENSE_ADAMW_LONGEST, MUON, local_steps, LONGEST, DENSE_LONGEST)
DENSE_LARGE = DENSE_ADAMW_LARGE, DENSE_MUON_LARGE
_local_muon_large = _methods(LOCAL_LARGE, DENSE_ADAMW_LARGE, MUON, local_steps, LARGE_STEPS, DENSE_LARGE)

INT4_GRADIENTS = "int4(group=128,hadamard=32)"
ONEBIT = both("ef(onebit)")
ONEBIT_256 = both("ef(onebit(block=256))")
ONEBIT_64 = both("ef(onebit(block=64))")
TOPK_1 = both("ef(topk(ratio=0.01))")
TOPK_01 = both("ef(topk(ratio=0.001))")
# All nodes draw the same elements, so the reply leaves nothing out that a residual could keep.
RANDOMK = dict(push="ef(randomk(ratio=0.03125))", pull="randomk(ratio=0.03125)")


def _blockwise(ratio, group, settings, baseline=DENSE_NESTEROV, steps=STEPS, block=BLOCK):
    """CSER and what it is compared with, all with a `ratio`-th of the bytes of each step. Of `settings`:
    (gradient, reset, period) of CSER, (reset, period) of CSER-PL, (ratio, period) of QSparse."""
    (gradient, reset, period), partial, (sparse, between) = settings
    codec = f"blocks(ratio={{}},size={block})".format
    blocks = {} if block == BLOCK else dict(block=block)
    ef_sgd = _methods(group, baseline, LINK_NESTEROV, steps=steps)
    errors_reset = _methods(group, baseline, NESTEROV, cser, steps)
    qsparse = _methods(group, baseline, NESTEROV, local_steps, steps)
    # All draw the same blocks, so the replies leave nothing out that a residual could keep.
    return [
        ef_sgd(f"EF-SGD, {ratio}", push=f"ef({codec(1 / ratio)})", pull=codec(1 / ratio)),
        qsparse(
            f"QSparse, {ratio}",
            tau=between,
            outer="Average",
            push=f"ef({codec(1 / sparse)})",
            pull=f"delta({codec(1 / sparse)})",
        ),
        errors_reset(f"CSEA, {ratio}", reset=ratio, **blocks),
        errors_reset(f"CSER-PL, {ratio}", reset=partial[0], period=partial[1], **blocks),
        errors_reset(f"CSER, {ratio}", gradient=gradient, reset=reset, period=period, **blocks),
    ]


INT4_BOTH = dict(push="int4(hadamard=32)", pull="delta(int4(group=2048))")


def updates(codec):
    """What was moved, under error feedback, and what the weights differ by."""
    return dict(push=f"ef({codec})", pull=f"delta({codec})")


def kept_updates(codec):
    """The same where what a push leaves out stays in the worker's weights."""
    return dict(push=codec, pull=f"delta({codec})", local_residual=True)


TWOBIT_UPDATES = updates("twobit(block=64)")
TWOBIT_KEPT = kept_updates("twobit(block=64)")
ONEBIT_KEPT = kept_updates("onebit(block=64,scale=bf16)")
OTHERS = "bytes.weight", "places.weight", "head.weight"
_ONE_BIT_LINK = {way: ONEBIT_KEPT[way] for way in ("push", "pull")}
# Two bits for what Muon orthogonalises, one for embeddings and head.
TWO_AND_ONE_KEPT = dict(TWOBIT_KEPT, overrides=dict.fromkeys(OTHERS, _ONE_BIT_LINK))
ONEBIT_UPDATES = updates("onebit(block=64,scale=bf16)")


UPDATE_CODECS = {
    "fp32": {},
    "int4": INT4_BOTH,
    "twobit(64)": TWOBIT_UPDATES,
    "onebit(64)": ONEBIT_UPDATES,
}


def _by_tau_and_codec(rule, method):
    """Averaging, every so many steps and by each codec."""
    return [
        method(f"{rule}, tau = {tau}, {name}", tau=tau, **AVERAGE, **links)
        for tau in (1, 2, 4, 8, 12, 16, 24)
        for name, links in UPDATE_CODECS.items()
    ]


def _in_fragments(method, fragments, settings):
    """Averaging by each codec, in so many fragments; settings: (tau, delay)."""
    return [
        method(
            f"Muon, tau = {tau}, {fragments} fragments, delay {delay}, {name}",
            **dict(tau=tau, fragments=fragments, delay=delay, **AVERAGE, **links),
        )
        for tau, delay in settings
        for name, links in UPDATE_CODECS.items()
    ]


TWO, ONE = "twobit(64)", "onebit(64)"


def _kept(method, settings, after=""):
    """Muon, averaged every so many steps by either codec, with local residuals."""
    links = {TWO: TWOBIT_KEPT, ONE: ONEBIT_KEPT}
    return [
        method(f"Muon, tau = {tau}, {codec}, local residual{after}", tau=tau, **AVERAGE, **links[codec])
        for tau, codec in settings
    ]


def sparse_updates(ratio, values="fp16"):
    """SparseLoCo's residual decays, and the deltas of the reply are as sparse as what was pushed."""
    codec = f"topk(ratio={ratio},values={values})"
    return dict(push=f"ef({codec},decay=0.95)", pull=f"delta({codec})")


TAU = dict(tau=12)
TAU_24 = dict(tau=24)
AVERAGE = dict(outer="Average")
SLOWMO = dict(outer="SlowMo", outer_options=dict(beta=0.2))
DILOCO = dict(outer="Nesterov", outer_options=dict(lr=0.7, momentum=0.9))


def sign_momentum(**options):
    return dict(outer="SignMomentum", outer_options=options)


FASTER_MOMENTUM = sign_momentum(beta1=0.9, beta2=0.99)

OTHERS_UNCOMPRESSED = dict.fromkeys(OTHERS, both("none"))
MATRICES_UNCOMPRESSED = {"blocks.*": both("none")}


def _taken_apart():
    """One thing changed at a time: of averaging Muon every 8 steps in fp32, or by a codec."""
    fixed = dict(tau=8, **AVERAGE)
    rows = []

    def _apart(changed, rule=MUON, **settings):
        method = _methods(APART, MUON_8, rule, local_steps, dense=DENSE_SHORT)
        return method(f"Muon, tau = 8, {changed}", **{**fixed, **settings})

    for codec, links in (("twobit(64)", TWOBIT_UPDATES), ("onebit(64)", ONEBIT_UPDATES)):
        rows += [
            _apart(f"{codec}, pushes alone", push=links["push"]),
            _apart(f"{codec}, replies alone", pull=links["pull"]),
        ]
    return [
        *rows,
        _apart("onebit(64), embeddings and head fp32", **ONEBIT_UPDATES, overrides=OTHERS_UNCOMPRESSED),
        _apart("onebit(64), blocks fp32", **ONEBIT_UPDATES, overrides=MATRICES_UNCOMPRESSED),
        _apart("momentum forgotten at meetings", trial="ForgottenMomentum"),
        _apart("momentum shared, fp32", trial="SharedMomentum"),
        _apart("twobit(64), momentum shared, fp32", **TWOBIT_UPDATES, trial="SharedMomentum"),
        _apart(
            "twobit(64), momentum shared, int8",
            **TWOBIT_UPDATES,
            trial="SharedMomentum",
            momentum_push="int8",
            momentum_pull="int8",
        ),
        _apart("momentum turned to what others moved", trial="TurnedMomentum", share=1.0),
        _apart("momentum turned half as far", trial="TurnedMomentum", share=0.5),
        _apart("momentum 0.8", SHORTEST_MUON),
        _apart("momentum 0.9", SHORTER_MUON),
        _apart("momentum 0.98", LONGER_MUON),
    ]


METHODS = [
    _dense_adamw(DENSE_ADAMW),
    _dense_server(DENSE_SERVER),
    _dense_sgd(DENSE_SGD),
    _dense_nesterov(DENSE_NESTEROV),
    _dense_lans(DENSE_LANS),
    _dense_muon(DENSE_MUON),
    _methods(DENSE, None, SHORTER_MUON)("Muon, momentum 0.9, fp32"),
    _methods(DENSE, None, SHORTEST_MUON)("Muon, momentum 0.8, fp32"),
    _near_lossless("fp16", **both("fp16")),
    _near_lossless("bf16", **both("bf16")),
    _near_lossless("int8", **both("int8")),
    _near_lossless("int4 + Hadamard", **both("int4(hadamard=32)")),
    _near_lossless("dither, 8 levels", **both("dither(levels=8)")),
    _near_lossless("dither, 32 levels", **both("dither(levels=32)")),
    _near_lossless("natural dither, 7 levels", **both("dither(levels=7,kind=natural)")),
    _near_lossless("natural dither, 8 levels", **both("dither(levels=8,kind=natural)")),
    _sdp4bit("SDP4Bit", push=INT4_GRADIENTS, pull="delta(int4(group=2048))"),
    _sdp4bit("delta int4 weights", pull="delta(int4(group=2048))"),
    _sdp4bit("int4 weights, nearest", push=INT4_GRADIENTS, pull="int4(group=2048,round=nearest)"),
    _sdp4bit("int4 weights, stochastic", push=INT4_GRADIENTS, pull="int4(group=2048)"),
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
    _dense_lans_long(DENSE_LANS_LONG),
    _clan_long("CLAN, onebit, long", **ONEBIT),
    _clan_long("CLAN, onebit, warm-up, long", **ONEBIT, **WARM),
    _clan_long("CLAN, topk 0.1 %, warm-up, long", **TOPK_01, **WARM),
    *_blockwise(32, CSER_32, ((64, 4, 16), (8, 4), (4, 8))),
    *_blockwise(256, CSER_256, ((512, 16, 32), (16, 16), (32, 8))),
    _dense_nesterov_long(DENSE_NESTEROV_LONG),
    *_blockwise(
        1024,
        CSER_1024,
        ((2048, 8, 256), (32, 32), (128, 8)),
        DENSE_NESTEROV_LONG,
        RESETS_1024,
        block=16,  # So that a 2048th of the small model is more than a block.
    ),
    _averaging(AVERAGING, **TAU, **AVERAGE),
    _local("averaging, int4", **TAU, **AVERAGE, **INT4_BOTH),
    _local("SlowMo, fp32", **TAU, **SLOWMO),
    _local("SlowMo, int4", **TAU, **SLOWMO, **INT4_BOTH),
    _local("DiLoCo, fp32", **TAU, **DILOCO),
    _local("DiLoCo, int4", **TAU, **DILOCO, **INT4_BOTH),
    _local(SIGN_MOMENTUM, **TAU, **sign_momentum()),
    _local("sign momentum, eta = 0.3", **TAU, **sign_momentum(eta=0.3)),
    _local("sign momentum, eta = 3", **TAU, **sign_momentum(eta=3.0)),
    _local("sign momentum, betas 0.9, 0.99", **TAU, **FASTER_MOMENTUM),
    _uplink("sign momentum, int8 uplink", **TAU, **sign_momentum(), push="int8"),
    _uplink("sign momentum, int4 uplink", **TAU, **sign_momentum(), push="int4(hadamard=32)"),
    _uplink("sign momentum, onebit uplink", **TAU, **sign_momentum(), push="ef(onebit)"),
    _averaging_24(AVERAGING_24, **TAU_24, **AVERAGE),
    _local_24("SlowMo, fp32, tau = 24", **TAU_24, **SLOWMO),
    _local_24("sign momentum, betas 0.9, 0.99, tau = 24", **TAU_24, **FASTER_MOMENTUM),
    _gradients_muon("Muon, int4 + Hadamard", **both("int4(hadamard=32)")),
    _gradients_muon("Muon, twobit(64)", **both("ef(twobit(block=64))")),
    _gradients_muon("Muon, onebit(64)", **both("ef(onebit(block=64,scale=bf16))")),
    *_by_tau_and_codec("AdamW", _local_adamw_short),
    _growing_adamw("AdamW, growing tau, fp32", least=4, most=16, **AVERAGE),
    *_by_tau_and_codec("Muon", _local_muon_short),
    _local_muon_short("Muon, tau = 8, SlowMo, fp32", tau=8, **SLOWMO),
    _local_muon_short("Muon, tau = 8, Nesterov, fp32", tau=8, **DILOCO),
    _local_muon_short("Muon, tau = 8, Nesterov, twobit(64)", tau=8, **DILOCO, **TWOBIT_UPDATES),
    _growing_muon("Muon, growing tau, twobit(64)", least=4, most=16, **AVERAGE, **TWOBIT_UPDATES),
    *_in_fragments(_streaming_muon_short, 4, ((8, 1), (24, 4))),
    *_kept(_kept_muon_short, ((4, TWO), (8, TWO), (12, ONE))),
    _kept_muon_short("Muon, tau = 2, two and one bit, local residual", tau=2, **AVERAGE, **TWO_AND_ONE_KEPT),
    _shorter_muon_short("Muon, momentum 0.9, tau = 2, two and one bit, local residual", tau=2, **AVERAGE, **TWO_AND_ONE_KEPT),
    _shorter_muon_short("Muon, momentum 0.9, tau = 4, int4", tau=4, **AVERAGE, **INT4_BOTH),
    _shorter_muon_short("Muon, momentum 0.9, tau = 4, twobit(64), local residual", tau=4, **AVERAGE, **TWOBIT_KEPT),
    _shorter_muon_short("Muon, momentum 0.9, tau = 8, twobit(64), local residual", tau=8, **AVERAGE, **TWOBIT_KEPT),
    _shorter_muon_short("Muon, momentum 0.9, tau = 12, onebit(64), local residual", tau=12, **AVERAGE, **ONEBIT_KEPT),
    *_taken_apart(),
    _dense_adamw_medium(DENSE_ADAMW_MEDIUM),
    _dense_muon_medium(DENSE_MUON_MEDIUM),
    _methods(LOCAL_MEDIUM, None, SHORTER_MUON, steps=LONG)("Muon, momentum 0.9, fp32, 2,400 steps"),
    _local_muon_medium("Muon, tau = 8, fp32, 2,400 steps", tau=8, **AVERAGE),
    _local_muon_medium("Muon, tau = 4, int4, 2,400 steps", tau=4, **AVERAGE, **INT4_BOTH),
    _local_muon_medium("Muon, tau = 8, twobit(64), 2,400 steps", tau=8, **AVERAGE, **TWOBIT_UPDATES),
    _local_muon_medium("Muon, tau = 16, onebit(64), 2,400 steps", tau=16, **AVERAGE, **ONEBIT_UPDATES),
    *_kept(_local_muon_medium, ((8, TWO), (16, ONE)), ", 2,400 steps"),
    _shorter_muon_medium("Muon, momentum 0.9, tau = 4, int4, 2,400 steps", tau=4, **AVERAGE, **INT4_BOTH),
    _shorter_muon_medium(
        "Muon, momentum 0.9, tau = 8, twobit(64), local residual, 2,400 steps", tau=8, **AVERAGE, **TWOBIT_KEPT
    ),
    _dense_adamw_long(DENSE_ADAMW_LONG),
    _dense_muon_long(DENSE_MUON_LONG),
    _local_muon_long("Muon, tau = 4, int4, 12,000 steps", tau=4, **AVERAGE, **INT4_BOTH),
    _local_muon_long("Muon, tau = 8, twobit(64), 12,000 steps", tau=8, **AVERAGE, **TWOBIT_UPDATES),
    _local_muon_long("Muon, tau = 16, onebit(64), 12,000 steps", tau=16, **AVERAGE, **ONEBIT_UPDATES),
    _dense_adamw_longest(DENSE_ADAMW_LONGEST),
    _dense_muon_longest(DENSE_MUON_LONGEST),
    _local_muon_longest("Muon, tau = 16, onebit(64), 24,000 steps", tau=16, **AVERAGE, **ONEBIT_UPDATES),
    _dense_adamw_large(DENSE_ADAMW_LARGE),
    _dense_muon_large(DENSE_MUON_LARGE),
    _local_muon_large("Muon, tau = 8, twobit(64), larger", tau=8, **AVERAGE, **TWOBIT_UPDATES),
    _local_muon_large("Muon, tau = 16, onebit(64), larger", tau=16, **AVERAGE, **ONEBIT_UPDATES),
    # One exchange a step, and none of gradients.
    _ef21_muon("EF21, Muon, fp32", nesterov=True, **both("none")),
    _ef21_muon("EF21, Muon, twobit(64)", nesterov=True, **TWOBIT_UPDATES),
    _ef21_muon("EF21, Muon, onebit(64)", nesterov=True, **ONEBIT_UPDATES),
    _ef21_adamw("EF21, AdamW, fp32", **both("none")),
    _ef21_adamw("EF21, AdamW, onebit(64)", **ONEBIT_UPDATES),
    _ef21_adamw("EF21, AdamW, onebit(64), pushes alone", push=ONEBIT_UPDATES["push"], pull="none"),
    _dense_lion(DENSE_LION, **both("none")),
    _lion("Lion, sign", **both("sign")),
    _lion("Lion, sign, mean by int8", vote="mean", push="sign", pull="int8"),
    _lion("Lion, onebit(64)", **both("ef(onebit(block=64,scale=bf16))")),
    _demo("DeMo, 1/32, fp32 replies", push="topk(ratio=0.03125)", pull="none"),
    _demo("DeMo, 1/32", push="topk(ratio=0.03125)", pull="ef(topk(ratio=0.03125))"),
    _demo("DeMo, 1/8", push="topk(ratio=0.125)", pull="ef(topk(ratio=0.125))"),
    _sparse_adamw("SparseLoCo, AdamW, tau = 4, 1 %", tau=4, **AVERAGE, **sparse_updates(0.01)),
    _sparse_adamw("SparseLoCo, AdamW, tau = 4, 3 %", tau=4, **AVERAGE, **sparse_updates(0.03)),
    _sparse_muon("SparseLoCo, Muon, tau = 4, 1 %", tau=4, **AVERAGE, **sparse_updates(0.01)),
    _sparse_muon("SparseLoCo, Muon, tau = 4, 3 %", tau=4, **AVERAGE, **sparse_updates(0.03)),
    _sparse_muon("SparseLoCo, Muon, tau = 4, 1 %, two bits", tau=4, **AVERAGE, **sparse_updates(0.01, "twobit")),
    _sparse_muon("SparseLoCo, Muon, tau = 4, 3 %, two bits", tau=4, **AVERAGE, **sparse_updates(0.03, "twobit")),
]


def named(name):
    for method in METHODS:
        if method.name == name:
            return method
    raise KeyError(f"no method is named {name!r}")
