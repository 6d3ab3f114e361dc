"""What TrainingState costs: in steps to which nobody comes, and when a worker is given the state.

    build/release/bin/bandoneon run -n 2 -s 2 -- build/venv/bin/python tests/bench/newcomers.py steps
    build/release/bin/bandoneon run -n 3 -s 2 --min-workers 1 --restarts 1 -- build/venv/bin/python tests/bench/newcomers.py handover
    build/venv/bin/python tests/bench/newcomers.py changes
    build/venv/bin/python tests/bench/newcomers.py replaced
    build/venv/bin/python tests/bench/newcomers.py gpt --seed 1

`steps` interleaves blocks of steps with and without it, and prints the medians of a step and their ratio. `handover` trains a
model of so many parameters with AdamW, kills a worker, and prints how long the others stood when it came back, and the rate at
which it got the state. `exchange` prints the rate of an exchange of as many parameters, to compare it with.

The others start the job themselves. `changes` has one worker of a small model leave by SIGTERM and come back, so often, and prints the longest
steps around. `replaced` kills every server and every worker in turn, and prints the longest time from the end of a step to that of the next.
`gpt` trains the GPT of examples/gpt.py with the recipe updates-30x or gradients-20x, undisturbed and with a worker that is killed, and comes back, every 60 of
600 steps, and prints the losses on held-out text.
"""

import argparse
import json
import logging
import os
import pathlib
import signal
import statistics
import sys
import time

import torch
from driven_job import DrivenJob, gaps_of

import bandoneon.torch as bdn

parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0], formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("mode", choices=["steps", "handover", "exchange", "changes", "replaced", "gpt"])
parser.add_argument("--blocks", type=int, default=20, help="of each kind")
parser.add_argument("--steps", type=int, default=50, help="in a block")
parser.add_argument("--compute", type=float, default=0.01, metavar="SECONDS", help="of a step, besides the model")
parser.add_argument("--parameters", type=float, default=100e6)
parser.add_argument("--local", type=int, default=0, metavar="TAU", help="LocalSteps that meet every TAU steps")
parser.add_argument("--times", type=int, default=5, help="of changes: how often")
parser.add_argument("--every", type=int, default=60, help="of gpt: steps from one loss to the next")
parser.add_argument("--total", type=int, default=600, help="of gpt: steps")
parser.add_argument("--seed", type=int, default=1, help="of gpt")
parser.add_argument("--recipe", choices=["updates-30x", "gradients-20x"], default="updates-30x", help="of gpt")
parser.add_argument("--in", dest="folder", type=pathlib.Path, help=argparse.SUPPRESS)  # of the workers that this program starts
options = parser.parse_args()
ROOT = pathlib.Path(__file__).resolve().parents[2]


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


# ---- Jobs that this program starts


def start(*arguments, seed=1):
    return DrivenJob(__file__, *arguments, options=["-n", 3, "-s", 2, "--min-workers", 1, "--restarts", 100, "--seed", seed])


def in_job(train_step, state, total=1_000_000):
    """A worker of a job of DrivenJob."""
    file = open(options.folder / f"steps.{own.rank}", "a", buffering=1)
    for step in state.steps(total):
        train_step(step, *state.shard)
        file.write(json.dumps([time.monotonic(), step, own.rank, state.shard[1]]) + "\n")
        if step % 10 == 9 and total > 100_000:
            may_end = torch.tensor([float((options.folder / "end").exists())])
            if bdn.push_pull(may_end, "the end", push="none", pull="none").wait().item() > 0.5:
                break


def small_worker():
    model, optimizer = make(256, 4)
    in_job(lambda *_: train(model, optimizer, 256), bdn.TrainingState({"model": model, "optimizer": optimizer}, join_interval=0))


def changes():
    job = start("changes")
    job.await_step(lambda steps: len(steps) > 300)
    left, came = [], []
    for _ in range(options.times):
        asked = time.monotonic()
        os.kill(job.pid("worker 2"), signal.SIGTERM)
        job.await_whole(asked)
        steps = [step for step in job.steps() if step[0] > asked]
        back = max(when for when, _, _, count in steps if count < 3)
        gaps = [(when, seconds) for when, seconds in gaps_of(job.steps()) if when > asked]
        left.append(max(seconds for when, seconds in gaps if when < back - 0.2))
        came.append(max(seconds for when, seconds in gaps if when >= back - 0.2))
    job.end()
    median = statistics.median(seconds for _, seconds in gaps_of(job.steps()))
    print(f"a step takes {median * 1e3:.1f} ms (median); the longest when a worker leaves by SIGTERM {show(left)}, when it comes back {show(came)}")


def show(seconds):
    return ", ".join(f"{value:.2f}" for value in sorted(seconds)) + " s"


def replaced():
    job = start("replaced")
    began = job.await_step(lambda steps: len(steps) > 300)[-1][0]
    longest = {}
    for kind in ("worker 2", "server 0", "worker 1", "server 1", "worker 0"):
        killed = time.monotonic()
        os.kill(job.pid(kind), signal.SIGKILL)
        if kind.startswith("worker"):
            job.await_whole(killed)
        else:
            job.await_step(lambda steps, killed=killed: len([1 for when, *_ in steps if when > killed + 5]) > 90)
        longest[kind] = max(seconds for when, seconds in gaps_of(job.steps()) if when > killed)
    job.end()
    gaps = [seconds for when, seconds in gaps_of(job.steps()) if when > began]
    print(f"a step takes {statistics.median(gaps) * 1e3:.1f} ms (median); the longest when killed: "
          + ", ".join(f"{kind} {seconds:.2f} s" for kind, seconds in longest.items()))


def gpt_worker():
    sys.path.insert(0, str(ROOT / "examples"))
    from gpt import GPT, load_text, sample

    context = 64
    torch.manual_seed(options.seed)
    model = GPT(width=64, heads=2, layers=2, context=context)
    bdn.broadcast_parameters(model)
    # The best ones of docs/journal/convergence.md; half of it for momentum, as one seed of five goes astray at 0.8.
    rate = {"updates-30x": 0.016, "gradients-20x": 0.4}[options.recipe]
    optimizer = bdn.recipe(options.recipe)(model, lr=rate)
    # Up in 60 steps, and down in half a cosine.
    schedule = torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [torch.optim.lr_scheduler.LinearLR(optimizer, 0.02, total_iters=60),
         torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.total - 60, rate / 10)], [60])
    state = bdn.TrainingState({"model": model, "optimizer": optimizer, "schedule": schedule}, join_interval=0)
    texts = load_text(None)

    def step_of(step, index, count):
        # 24 samples a step, whoever takes them.
        generator = torch.Generator().manual_seed(1_000_003 * options.seed + step)
        whole = sample(texts[0], generator, 24, context)
        first = sum(24 // count + (i < 24 % count) for i in range(index))
        part = whole[first : first + state.count(24)]
        optimizer.zero_grad()
        model.loss(part).backward()
        optimizer.step()
        schedule.step()
        time.sleep(10 * options.compute)  # So that a worker is back before the next one is killed.

    in_job(step_of, state, options.total)
    if own.rank == 0:
        generator = torch.Generator().manual_seed(99)
        with torch.no_grad():
            loss = statistics.fmean(model.loss(sample(texts[1], generator, 32, context)).item() for _ in range(8))
        (options.folder / "loss").write_text(str(loss))


def gpt():
    losses, killed = [], 0
    for is_disturbed in (False, True):
        job = start("gpt", "--recipe", options.recipe, "--seed", options.seed, "--total", options.total, seed=options.seed)
        if is_disturbed:
            for number, at in enumerate(range(options.every, options.total - 30, options.every)):
                job.await_step(lambda steps, at=at: bool(steps) and steps[-1][1] >= at and steps[-1][3] == 3, 600)
                os.kill(job.pid(f"worker {number % 3}"), signal.SIGKILL)
                killed += 1
        job.child.wait(900)
        losses.append(float((job.folder / "loss").read_text()))
        counts = [count for _, _, _, count in job.steps()]
        shares = {number: counts.count(number) for number in sorted(set(counts))}
    print(f"{options.recipe}: loss after {options.total} steps, seed {options.seed}: {losses[0]:.4f} undisturbed, {losses[1]:.4f} with {killed} losses "
          f"({(losses[1] / losses[0] - 1) * 100:+.2f} %; steps by the number of workers: {shares})")


torch.set_num_threads(1)
if options.mode in ("changes", "replaced", "gpt") and options.folder is None:
    {"changes": changes, "replaced": replaced, "gpt": gpt}[options.mode]()
    raise SystemExit
own = bdn.init()
if options.mode == "steps":
    steps(own)
elif options.mode == "exchange":
    exchange(own)
elif options.mode == "handover":
    handover(own)
elif options.mode == "gpt":
    gpt_worker()
else:
    small_worker()
bdn.shutdown()
