"""What TrainingState costs: in steps to which nobody comes, and when a worker is given the state.

    build/release/bin/bandoneon run -n 2 -s 2 -- build/venv/bin/python tests/bench/newcomers.py steps
    build/release/bin/bandoneon run -n 3 -s 2 --min-workers 1 --restarts 1 -- build/venv/bin/python tests/bench/newcomers.py handover

`steps` interleaves blocks of steps with and without it, and prints the medians of a step and their ratio. `handover` trains a
model of so many parameters with AdamW, kills a worker, and prints how long the others stood when it came back, and the rate at
which it got the state. `exchange` prints the rate of an exchange of as many parameters, to compare it with.
"""

import argparse
import logging
import os
import signal
import statistics
import time

import torch

import bandoneon.torch as bdn

parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0], formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("mode", choices=["steps", "handover", "exchange"])
parser.add_argument("--blocks", type=int, default=20, help="of each kind")
parser.add_argument("--steps", type=int, default=50, help="in a block")
parser.add_argument("--compute", type=float, default=0.01, metavar="SECONDS", help="of a step, besides the model")
parser.add_argument("--parameters", type=float, default=100e6)
parser.add_argument("--local", type=int, default=0, metavar="TAU", help="LocalSteps that meet every TAU steps")
options = parser.parse_args()


def make(width, depth):
    torch.manual_seed(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(depth)))
    adamw = torch.optim.AdamW(model.parameters(), 1e-4)
    if options.local:
        return model, bdn.LocalSteps(adamw, model.named_parameters(), tau=options.local, outer=bdn.algorithms.Average())
    return model, bdn.DistributedOptimizer(adamw, model)


def train(model, optimizer, width):
    began = time.perf_counter()
    optimizer.zero_grad()
    model(torch.ones(1, width)).square().mean().backward()
    optimizer.step()
    time.sleep(options.compute)
    return time.perf_counter() - began


def steps(worker):
    """Interleaved blocks."""
    model, optimizer = make(256, 4)
    state = bdn.TrainingState({"model": model, "optimizer": optimizer})
    seconds = {"without": [], "with": []}
    done = 0
    for _ in range(options.blocks):
        for _ in range(options.steps):
            began = time.perf_counter()
            train(model, optimizer, 256)
            seconds["without"].append(time.perf_counter() - began)
        done += options.steps
        before = None
        for _ in state.steps(done):
            now = time.perf_counter()
            if before is not None:
                seconds["with"].append(now - before)
            before = now
            train(model, optimizer, 256)
    if worker.rank == 0:
        medians = {kind: statistics.median(times) for kind, times in seconds.items()}
        print(f"a step without TrainingState takes {medians['without'] * 1e3:.3f} ms, with it {medians['with'] * 1e3:.3f} ms: "
              f"{medians['with'] / medians['without']:.3f} times as long (medians of {len(seconds['with'])})")


class Changes(logging.Handler):
    """What the package logs of changes, as (step, seconds that all stood, bytes of the state)."""

    def __init__(self):
        super().__init__(logging.INFO)
        self.seen = []

    def emit(self, record):
        if "came into the job" in record.msg:
            step, _, seconds, megabytes = record.args
            self.seen.append((step, seconds, megabytes * 1e6))


def handover(worker):
    changes = Changes()
    logging.getLogger("bandoneon").addHandler(changes)
    logging.getLogger("bandoneon").setLevel(logging.INFO)
    width = 4096
    model, optimizer = make(width, max(1, round(options.parameters / (width * (width + 1)))))
    state = bdn.TrainingState({"model": model, "optimizer": optimizer}, join_interval=0)
    came = [None] if worker.is_candidate() else changes.seen
    for step in state.steps(10_000):
        if step == 5 and worker.rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        train(model, optimizer, width)
        came_at = step if came == [None] else came[0][0] if came else None
        if came == [None]:
            came = [(step, 0, 0)]
        if came_at is not None and step >= came_at + 3:
            break
    if worker.rank == 0:
        _, seconds, num_bytes = changes.seen[0]
        print(f"the others stood {seconds:.2f} s for {num_bytes / 1e9:.2f} GB of state: {num_bytes / 1e6 / seconds:.0f} MB/s", flush=True)


def exchange(worker):
    """The rate of exchanges of as many bytes, uncompressed."""
    tensor = torch.ones(int(options.parameters))
    times = []
    for _ in range(7):
        worker.barrier("begin")
        began = time.perf_counter()
        bdn.push_pull(tensor, "exchange").wait()
        times.append(time.perf_counter() - began)
    if worker.rank == 0:
        print(f"push_pull of {tensor.nbytes / 1e9:.2f} GB runs at {tensor.nbytes / 1e6 / statistics.median(times[2:]):.0f} MB/s a worker", flush=True)


torch.set_num_threads(1)
own = bdn.init()
if options.mode == "steps":
    steps(own)
elif options.mode == "exchange":
    exchange(own)
else:
    handover(own)
bdn.shutdown()
