"""One run: a method at one learning rate, from one seed, by four workers."""

import contextlib
import copy
import hashlib
import math
import statistics
import threading
import time
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

import bandoneon
import bandoneon.torch as bdn
from gpt import GPT, load_text, rate, sample

WORKERS = 4
SERVERS = 1
CURVE_POINTS = 20
# Fixed held-out samples, of which each worker judges its share.
HELD_OUT_SAMPLES = 256
# A model that knows nothing has log(256) = 5.5 nats a byte.
DIVERGED_ABOVE = 7.0


@dataclass(frozen=True)
class Scale:
    """How large a run is: the model, and a worker's batch."""

    width: int
    heads: int
    layers: int
    context: int
    batch: int

    def model(self, seed):
        torch.manual_seed(seed)
        return GPT(self.width, self.heads, self.layers, self.context)

    def __str__(self):
        parameters = sum(p.numel() for p in self.model(0).parameters())
        return (
            f"{parameters:,} parameters (width {self.width}, depth {self.layers}, context "
            f"{self.context}), batch {self.batch}"
        )


NORMAL = Scale(width=64, heads=2, layers=2, context=64, batch=8)
# For runs of many thousand steps, and quick ones.
SMALL = Scale(width=48, heads=2, layers=1, context=32, batch=4)
# Whether what holds for small models holds for larger ones.
LARGE = Scale(width=160, heads=4, layers=4, context=64, batch=4)


@dataclass
class Run:
    """One worker's part; what a method builds its optimizer from."""

    model: torch.nn.Module
    worker: Any
    scale: Scale
    lr: float
    seed: int
    steps: int
    traffic_of_judging: list = field(default_factory=lambda: [0, 0])  # bytes pushed and pulled


_TRAFFIC = "bytes_pushed", "bytes_pulled"


class Diverged(Exception):
    """The loss is not finite, or worse than knowing nothing."""


class Stopped(Exception):
    """Somebody has set Task.stop."""


class Task:
    """The text: the same for every method.

    `stop`: once set, runs end with Stopped at their next step.
    """

    def __init__(self, data=None):
        self.stop = threading.Event()
        self.text, self._held_out = load_text(data)
        self._samples = {}

    def batch(self, scale, generator):
        return sample(self.text, generator, scale.batch, scale.context)

    def held_out(self, scale):
        """What every run of this scale is judged by."""
        if scale not in self._samples:
            generator = torch.Generator().manual_seed(99)
            judged = sample(self._held_out, generator, HELD_OUT_SAMPLES, scale.context)
            self._samples[scale] = judged
        return self._samples[scale]


def setting(scales):
    """What all runs have in common, as a sentence."""
    return (
        f"Byte-level GPTs of {'; of '.join(map(str, scales))}. {WORKERS} workers, {SERVERS} server; "
        "warm-up of the rate over a tenth of the steps, then a cosine to a tenth of it."
    )


def train_locally(task, method, scale, lr, seed, steps):
    """The record of a run whose workers are threads of this process, over the loopback."""
    started = time.perf_counter()
    first = scale.model(seed)
    first.loss(task.held_out(scale)[: scale.batch]).backward()  # Torch has computed before threads do.
    first.zero_grad()
    curves = [[] for _ in range(WORKERS)]

    def train(worker):
        run = Run(copy.deepcopy(first), worker, scale, lr, seed, steps)
        return train_rank(task, method, run, curves[worker.rank])

    with bandoneon.LocalCluster(workers=WORKERS, servers=SERVERS, seed=seed) as cluster:
        try:
            hashes = cluster.run(train)
        except (Diverged, Stopped, bandoneon.BandoneonError):
            # Whichever worker's error came first; the others' say that it ended the job.
            if task.stop.is_set():
                raise Stopped from None
            if not any(has_diverged(curve) for curve in curves):
                raise
            hashes = []
    seconds = time.perf_counter() - started
    return make_record(method, scale, lr, seed, steps, curves, hashes, seconds)


def train_rank(task, method, run, curve):
    """Trains one worker's model and appends to its curve; the hash of the weights that were judged
    last."""
    optimizer = method.make_optimizer(run)
    generator = torch.Generator().manual_seed(1000 * run.seed + run.worker.rank)
    every = max(run.steps // CURVE_POINTS, 1)
    for step in range(run.steps):
        if task.stop.is_set():
            raise Stopped
        if step % every == 0:
            judge(task, run, optimizer, step, curve)
        for group in optimizer.param_groups:
            group["lr"] = rate(step, run.steps, run.lr) * group.get("share_of_rate", 1.0)
        optimizer.zero_grad()
        run.model.loss(task.batch(run.scale, generator)).backward()
        optimizer.step()
    if isinstance(getattr(optimizer, "tau", None), bdn.algorithms.Streaming):
        optimizer.synchronize()  # Fragments have met at different steps, and one may travel.
    return judge(task, run, optimizer, run.steps, curve)


@torch.no_grad()
def judge(task, run, optimizer, step, curve):
    """Appends (step, bytes pushed, bytes pulled, loss on this worker's share of the held-out text)."""
    stats = run.worker.stats()
    aside = run.traffic_of_judging
    share = HELD_OUT_SAMPLES // run.worker.size
    first = run.worker.rank * share
    common = getattr(optimizer, "common_weights", contextlib.nullcontext)
    with getattr(optimizer, "averaged_weights", common)():
        loss = run.model.loss(task.held_out(run.scale)[first : first + share]).item()
        digest = hash_of(run.model)
    pushed, pulled = (stats[what] for what in _TRAFFIC)
    curve.append((step, pushed - aside[0], pulled - aside[1], loss))
    after = run.worker.stats()
    for i, what in enumerate(_TRAFFIC):
        aside[i] += after[what] - stats[what]
    if has_diverged(curve):
        raise Diverged(f"step {step}: loss {loss}")
    return digest


def has_diverged(curve):
    return bool(curve) and not curve[-1][-1] < DIVERGED_ABOVE


def make_record(method, scale, lr, seed, steps, curves, hashes, seconds):
    """What the file keeps of a run."""
    diverged = not hashes
    curve = mean_curve(curves)
    return {
        "method": method.name,
        "settings": method.describe(),
        "scale": asdict(scale),
        "lr": lr,
        "seed": seed,
        "steps": steps,
        "diverged": diverged,
        "loss": None if diverged else curve[-1][3],
        "curve": curve,
        "hashes": sorted(set(hashes)),
        "seconds": round(seconds, 2),
    }


def mean_curve(curves):
    """[[step, bytes pushed, bytes pulled, loss]]: bytes of one worker, on average; a loss is None where
    the run had diverged."""
    means = [
        [points[0][0], *(statistics.fmean(values) for values in list(zip(*points))[1:])]
        for points in zip(*curves)
    ]
    return [[*point[:3], point[3] if math.isfinite(point[3]) else None] for point in means]


def hash_of(model):
    digest = hashlib.sha256()
    for param in model.parameters():
        digest.update(param.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
