"""Which run comes next, and the file that remembers those that are done."""

import contextlib
import fcntl
import json
import math
import os
import pathlib
from dataclasses import asdict, dataclass

from .training import SMALL

# How many learning rates a grid may grow by where its best is at an edge.
EXTRA_RATES = 3


@dataclass(frozen=True)
class Plan:
    """Every rate of the grid with the first seed, further ones while the best is at the edge; then the
    other seeds at the best rate."""

    seeds: tuple = (1, 2, 3)
    steps: int = 0  # 0: each method's own
    quick: bool = False  # one rate a method, the first seed, all of them small
    rates: tuple = ()  # these instead of each method's grid, and no further ones

    def steps_of(self, method):
        return self.steps or (method.quick_steps if self.quick else method.steps)

    def scale_of(self, method):
        return SMALL if self.quick else method.scale

    def rates_of(self, method):
        return (method.quick_rate,) if self.quick else self.rates or method.rule.rates

    def next_run(self, method, records):
        """(learning rate, seed) of what `records`, those of the method, lack; None when it is done."""
        tried = {r["lr"]: loss_of(r) for r in records if r["seed"] == self.seeds[0]}
        for lr in self.rates_of(method):
            if lr not in tried:
                return lr, self.seeds[0]
        best = best_rate(tried)
        if not self.quick and not self.rates and len(tried) < len(method.rule.rates) + EXTRA_RATES:
            if best == max(tried) and math.isfinite(tried[best]):
                return 2 * best, self.seeds[0]
            if best == min(tried):
                return best / 2, self.seeds[0]
        if math.isinf(tried[best]):
            return None
        done = {r["seed"] for r in records if r["lr"] == best}
        return next(((best, seed) for seed in self.seeds if seed not in done), None)

    def steps_left(self, method, records):
        """About how many steps of training the method still needs."""
        if self.next_run(method, records) is None:
            return 0
        runs = len(self.rates_of(method)) + len(self.seeds) - 1
        return max(runs - len(records), 1) * self.steps_of(method)


def loss_of(record):
    return math.inf if record["diverged"] else record["loss"]


def best_rate(tried):
    """The rate of the least loss; the smallest one if all have diverged. {rate: loss}"""
    return min(tried, key=lambda lr: (tried[lr], lr))


class Results:
    """Records in a JSON file, one a run; on disk after each. Several processes may add to it."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.records = []
        self.grids = {}
        self._read()

    def _read(self):
        if self.path.exists():
            content = json.loads(self.path.read_text())
            self.records, self.grids = content["records"], content["grids"]

    def of(self, method, plan):
        """The method's records, of the plan's length and scale and the settings that it has now."""
        scale = asdict(plan.scale_of(method))
        wanted = method.name, plan.steps_of(method), method.describe(), scale
        return [
            r
            for r in self.records
            if (r["method"], r["steps"], r["settings"], r.get("scale")) == wanted
        ]

    def add(self, method, record):
        """Also takes up what others have added."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(self.path.parent):
            self._read()
            self.records.append(record)
            self.grids[method.name] = list(method.rule.rates)
            self._write()

    def _write(self):
        lines = ",\n".join(json.dumps(record) for record in self.records)
        grids = json.dumps(self.grids, indent=1)
        fresh = self.path.with_suffix(".tmp")
        with open(fresh, "w") as file:
            file.write(f'{{"grids": {grids},\n"records": [\n{lines}\n]}}\n')
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, self.path)


@contextlib.contextmanager
def _locked(directory):
    """One process at a time."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
