"""Trains byte-level GPTs by every method of examples/convergence/methods.py and compares losses and
bytes.

    build/venv/bin/python examples/convergence.py            all of it, for hours; goes on where it stopped
    build/venv/bin/python examples/convergence.py --quick    one short run a method: shows that all work
    build/venv/bin/python examples/convergence.py --table    the tables and pictures of what is there

Four workers are threads of this process and talk through the C++ library's loopback. The model has
0.14 M parameters, for runs of thousands of steps 0.05 M, in one group 1.3 M. All methods start from the same model and see
the same data, seed by seed. Every learning rate of a grid is tried with the first seed, further ones
while the best is at the edge; the other seeds run at the best rate. Several of these processes may fill
one --out beside each other, each with --only methods of its own. --out (build/convergence) gets
results.json, loss_by_steps.png, loss_by_bytes.png, frontier.png and a picture a question. --confirm repeats a run a method
over real processes, which must give the same bits as one process on this machine.
"""

import argparse
import contextlib
import os
import pathlib
import re
import signal
import textwrap
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch  # noqa: E402

from convergence import pictures, processes, report, training  # noqa: E402
from convergence.methods import METHODS  # noqa: E402
from convergence.sweep import Plan, Results  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent


def read_options(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one seed, one rate, a few steps")
    parser.add_argument("--only", metavar="PATTERN", help="methods that match this expression")
    parser.add_argument("--out", type=pathlib.Path, help="directory of what is written")
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--confirm", action="store_true", help="repeat a run of each in processes")
    parser.add_argument("--bandoneon", default=str(ROOT / "build" / "release" / "bin" / "bandoneon"))
    parser.add_argument("--list", action="store_true", help="the methods and their settings")
    parser.add_argument("--steps", type=int, default=0, help="for all, instead of each method's own")
    parser.add_argument("--seeds", type=int, default=3, metavar="COUNT")
    parser.add_argument("--rates", type=rates_of, default=(), help="0.016,0.032: instead of the grids, which do not grow then")
    parser.add_argument("--budget", type=float, metavar="MINUTES", help="start no run after these")
    parser.add_argument("--data", help="a text to train on, not the Python standard library's sources")
    options = parser.parse_args(arguments)
    if options.out is None:
        options.out = ROOT / "build" / ("convergence-quick" if options.quick else "convergence")
    return options


def rates_of(text):
    """Of "0.016,0.032"."""
    rates = tuple(float(rate) for rate in text.split(","))
    if not all(0 < rate < float("inf") for rate in rates):
        raise argparse.ArgumentTypeError(f"{text!r} are not rates above 0")
    return rates


def methods_of(options):
    methods = [m for m in METHODS if re.search(options.only or "", m.name)]
    if not methods:
        raise SystemExit(f"--only {options.only!r} matches no method; --list shows them")
    if not options.quick:
        return methods
    # Methods that differ in length alone would be the same, and those that meet more or less often nearly so.
    different = {str({**m.describe(), "tau": None, "delay": None}): m for m in reversed(methods)}
    return [m for m in methods if m in different.values()]


def plan_of(options):
    if options.quick:
        return Plan(seeds=(1,), steps=options.steps, quick=True)
    return Plan(seeds=tuple(range(1, options.seeds + 1)), steps=options.steps, rates=options.rates)


def sweep(methods, plan, results, options):
    """Runs what is missing, until --budget is spent or Ctrl-C comes."""
    task = training.Task(options.data)
    clock = Clock(methods, plan, results)
    deadline = time.monotonic() + 60 * options.budget if options.budget else float("inf")
    for method in methods:
        steps = plan.steps_of(method)
        while (wanted := plan.next_run(method, results.of(method, plan))) is not None:
            if time.monotonic() > deadline:
                print(f"--budget {options.budget:g} is spent; the same command goes on from here")
                return
            with stopped_by_ctrl_c(task):
                record = training.train_locally(task, method, plan.scale_of(method), *wanted, steps)
            results.add(method, record)
            clock.report(method, record)


@contextlib.contextmanager
def stopped_by_ctrl_c(task):
    """KeyboardInterrupt would leave the threads that train alone; they end at their next step instead."""
    before = signal.signal(signal.SIGINT, lambda *_: task.stop.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def confirm(methods, plan, results, options):
    """Repeats the first finished run of each method over processes; exits with an error if one differs
    from it and from the same in one process here: other processors give other bits."""
    failed = 0
    for method in methods:
        finished = [r for r in results.of(method, plan) if not r["diverged"]]
        if not finished:
            continue
        record = finished[0]
        ranks = processes.repeat(record, options.bandoneon, options.data)
        says = "equal bit for bit over processes"
        if processes.difference(ranks, record):
            again = record["lr"], record["seed"], plan.steps_of(method)
            task = training.Task(options.data)
            here = training.train_locally(task, method, plan.scale_of(method), *again)
            difference = processes.difference(ranks, here)
            failed += difference is not None
            lost = f"loss {here['loss']:.4f}, {record['loss']:.4f} where it was recorded"
            says = difference or f"{says} and in one process here; {lost}"
        print(f"{method.name}: {says}", flush=True)
    if failed:
        raise SystemExit(f"{failed} methods differ")


class Clock:
    """Says after each run how long the rest will take."""

    def __init__(self, methods, plan, results):
        self._methods, self._plan, self._results = methods, plan, results
        self._steps, self._seconds = 0, 0.0

    def report(self, method, record):
        self._steps += record["curve"][-1][0]
        self._seconds += record["seconds"]
        left = sum(
            self._plan.steps_left(m, self._results.of(m, self._plan)) for m in self._methods
        )
        outcome = "diverged" if record["diverged"] else f"loss {record['loss']:.4f}"
        print(
            f"{method.name}, rate {record['lr']:g}, seed {record['seed']}: {outcome}, "
            f"{record['seconds']:.1f} s; left about "
            f"{duration(left * self._seconds / max(self._steps, 1))}",
            flush=True,
        )


def duration(seconds):
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"


def show(methods, plan, results, out):
    """Prints the tables and draws the pictures; exits with an error where replicas differed."""
    baselines = {name for m in methods for name in (m.baseline, *m.dense)}
    methods = [m for m in METHODS if m in methods or m.name in baselines]
    records = {m.name: results.of(m, plan) for m in methods}
    summaries = {}
    for method in methods:
        summary = report.summarize(method, records[method.name], plan.seeds[0])
        if summary is not None:
            summaries[method.name] = summary
    if not any(s.by_seed for s in summaries.values()):
        raise SystemExit(f"{results.path} has no finished run of these methods")
    scales = dict.fromkeys(plan.scale_of(m) for m in methods)
    setting = textwrap.fill(training.setting(scales), 120)
    print(f"\n{setting}\n\n{report.results_table(summaries)}\n\n{report.LEGEND}\n")
    if dense := report.dense_table(summaries):
        print(f"{dense}\n")
    print(f"{report.rates_table(summaries)}\n")
    pictures.draw_by_steps(summaries, out / "loss_by_steps.png")
    pictures.draw_by_bytes(summaries, out / "loss_by_bytes.png")
    pictures.draw_frontier(summaries, out / "frontier.png")
    pictures.draw_questions(summaries, out)
    everything = [r for of_method in records.values() for r in of_method]
    seconds = sum(r["seconds"] for r in everything)
    print(f"{len(everything)} runs, {duration(seconds)} of training; pictures are in {out}")
    apart = [f"{r['method']} at {r['lr']:g}" for r in everything if len(r["hashes"]) > 1]
    if apart:
        raise SystemExit("the workers' weights differ: " + ", ".join(apart))


def main(arguments=None):
    options = read_options(arguments)
    methods = methods_of(options)
    plan = plan_of(options)
    results = Results(options.out / "results.json")
    if options.list:
        for method in methods:
            print(f"{method.group}: {method.name}: {method.describe()}")
        left = sum(plan.steps_left(m, results.of(m, plan)) for m in methods)
        print(f"{len(methods)} methods; about {left} steps are left, if no grid grows")
        return
    torch.set_num_threads(1)
    if options.confirm:
        confirm(methods, plan, results, options)
        return
    if not options.table:
        try:
            sweep(methods, plan, results, options)
        except training.Stopped:
            raise SystemExit("stopped; the same command goes on from here") from None
    show(methods, plan, results, options.out)


if __name__ == "__main__":
    main()
