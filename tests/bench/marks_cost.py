"""What the marks of a program's steps cost it.

    build/venv/bin/python tests/bench/marks_cost.py
    build/venv/bin/python tests/bench/marks_cost.py --tensors 300 --rounds 15 --json

Three jobs in this process, of a worker and a server each, train a model of 300 parameters, step by step in turns: one
with marks and two without, where Python does nothing for them; how these two differ is noise. First come steps that
compute next to nothing: the difference of the training thread's CPU time is seen best there, and its share of 100 ms is
the cost. Then steps of about 100 ms, whose CPU time and wall time are compared as they are. Printed are medians over the
rounds, with the least and the greatest.
"""

import argparse
import json
import os
import statistics
import time

os.environ["OMP_NUM_THREADS"] = "1"
WAYS = ("none", "marks", "none again")  # Each has a job of its own in this process.


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tensors", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=5, help="of each way in a round; ten times where they compute little")
    parser.add_argument("--step-ms", type=float, default=100.0)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def main():
    options = parse()
    import torch

    import bandoneon

    torch.set_num_threads(1)
    work = Work(torch)
    workers, rows = {}, {}

    def job(worker):
        way = WAYS[len(workers)]
        assert worker.records == (way == "marks")
        workers[way] = worker
        if len(workers) < len(WAYS):
            run_next()
        else:
            steps = {way: trainer(torch, workers[way], options.tensors, work) for way in WAYS}
            rows.update(measure(options, steps, work))

    def run_next():
        settings = {} if WAYS[len(workers)] == "marks" else {"recorder_bytes": 0}
        with bandoneon.LocalCluster(workers=1, servers=1) as cluster:
            cluster.run(job, **settings)

    run_next()
    if options.json:
        print(json.dumps(rows))
        return
    for name, (low, middle, high) in rows.items():
        print(f"{name}: {low:.4g} .. {middle:.4g} .. {high:.4g}")


class Work:
    """Computation of a given length, beside that of the model."""

    def __init__(self, torch):
        self._a, self._b, self._torch = torch.ones(192, 192), torch.empty(192, 192), torch
        self.repeats = 0

    def set_seconds(self, seconds):
        self.repeats = 200
        self.run()
        begun = time.thread_time()
        self.run()
        self.repeats = max(0, round(200 * seconds / (time.thread_time() - begun)))

    def run(self):
        for _ in range(self.repeats):
            self._torch.mm(self._a, self._a, out=self._b)


def trainer(torch, worker, tensors, work):
    """A function that takes a step."""
    import bandoneon.torch as bdn

    class Chain(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ParameterList(torch.nn.Parameter(torch.eye(16)) for _ in range(tensors))

        def forward(self, x):
            for layer in self.layers:
                x = x @ layer
            work.run()
            return x

    model = Chain()
    inner = torch.optim.SGD(model.parameters(), lr=1e-6)
    optimizer = bdn.DistributedOptimizer(inner, model, worker=worker, links=bdn.Links(scaler=None))
    batch = torch.ones(2, 16)

    def step():
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()

    return step


def measure(options, ways, work):
    """{what: (least, median, greatest) of the rounds}"""
    bare = timed(ways, options.rounds, options.steps * 10)
    cost = [1e6 * (one["marks"][0] - (one["none"][0] + one["none again"][0]) / 2) for one in bare]
    rows = {
        "marks, us a step of CPU time": cost,
        f"marks, share of {options.step_ms:g} ms": [us * 1e-3 / options.step_ms for us in cost],
        "noise, us a step of CPU time": [1e6 * (one["none again"][0] - one["none"][0]) for one in bare],
    }
    computes = statistics.median(one["none"][0] for one in bare)
    work.set_seconds(max(0.0, options.step_ms * 1e-3 - computes))
    whole = timed(ways, options.rounds, options.steps)
    rows["whole step, ms"] = [1e3 * one["none"][1] for one in whole]
    for place, name in enumerate(("CPU time", "wall time")):
        rows[f"marks, ratio of {name}"] = [one["marks"][place] / one["none"][place] for one in whole]
        rows[f"noise, ratio of {name}"] = [one["none again"][place] / one["none"][place] for one in whole]
    return {name: (min(of), statistics.median(of), max(of)) for name, of in rows.items()}


def timed(ways, rounds, steps):
    """[{way: medians of (CPU time, wall time) of its steps}] of each round."""
    for step in ways.values():
        for _ in range(5):
            step()
    found = []
    for _ in range(rounds):
        taken = {way: [] for way in ways}
        # Step by step in turns, so that what the machine does else falls on both.
        for number in range(steps):
            for way in list(ways) if number % 2 else reversed(list(ways)):
                begun = time.thread_time(), time.perf_counter()
                ways[way]()
                taken[way].append((time.thread_time() - begun[0], time.perf_counter() - begun[1]))
        found.append({way: tuple(map(statistics.median, zip(*times))) for way, times in taken.items()})
    return found


if __name__ == "__main__":
    main()
