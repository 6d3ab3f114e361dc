"""How far predictions of `bandoneon replay` are off: a job is recorded, its steps are predicted with a setting changed, and then that
job is run.

    build/venv/bin/python tests/bench/replay_error.py
    build/venv/bin/python tests/bench/replay_error.py --rows 0 3 --json

A row records a job of real processes on this machine, over links made slow. Its model is one of linear layers whose computing is timed
waits, a third in the forward and two in the backward pass, as on a device of its own: on few cores the workers, the servers and all that
encodes would share them. The replay of the recorded settings is compared with the recording itself; a prediction, which is written
before the second job begins, with that job. All figures are median steps of the slower worker.

Beside them stand two sums that need no replay: computing + bytes / rate, and the greater of the two. Computing is the recorded step
without its exposed waits; the bytes are those that go through the busiest link in one direction in a step, with headers.

Every line says the share of their steps in which programs were ready to run and did not, in the recording and in the run to be predicted:
above 5 % the machine was busy, and a figure says less.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("BDN_BIN_DIR", ROOT / "build" / "release" / "bin"))
ONEBIT = "ef(onebit(block=64))"
# What is recorded, and what is changed. `layers` of `width` x `width` compute for `compute` seconds a step.
ROWS = [
    {"record": {"link": "300mbit"}, "change": {"link": "100mbit"}, "layers": 12, "compute": 0.15},
    {"record": {"link": "100mbit"}, "change": {"link": "300mbit"}, "layers": 12, "compute": 0.15},
    {"record": {"link": "300mbit"}, "change": {"push": ONEBIT, "pull": ONEBIT}, "layers": 12, "compute": 0.15},
    {"record": {"link": "300mbit"}, "change": {"servers": 2}, "layers": 24, "compute": 0.3},
    {"record": {"link": "300mbit"}, "change": {"push": "fp16", "pull": "fp16"}, "layers": 24, "compute": 0.4},
    {"record": {"link": "100mbit", "push": ONEBIT, "pull": ONEBIT}, "change": {"link": "300mbit"}, "layers": 24, "compute": 0.1},
    {"record": {"link": "300mbit", "partition-bytes": "128KiB"}, "change": {"partition-bytes": "4MiB"}, "layers": 12, "compute": 0.1},
    {"record": {"link": "1000mbit"}, "change": {"link": "100mbit"}, "layers": 300, "width": 64, "compute": 0.2},
]


def main():
    options = parse()
    if "BANDONEON_RANK" in os.environ:
        return work(options)
    chosen = options.rows if options.rows is not None else range(len(ROWS))
    found = []
    for number in chosen:
        found.append(measure(options, number, ROWS[number]))
        if not options.json:
            show(found[-1])
    if options.json:
        print(json.dumps(found))
    else:
        summary(found)
    return None


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", help="numbers of rows, from 0 on [all]")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--layers", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--width", type=int, default=256, help=argparse.SUPPRESS)
    parser.add_argument("--compute", type=float, help=argparse.SUPPRESS)
    return parser.parse_args()


# ---- A worker


def work(options):
    import torch

    import bandoneon.torch as bdn

    class Busy(torch.autograd.Function):
        """Waits in both passes as long as a device would compute."""

        @staticmethod
        def forward(ctx, x, seconds):
            ctx.seconds = seconds
            time.sleep(seconds)
            return x

        @staticmethod
        def backward(ctx, gradient):
            time.sleep(2 * ctx.seconds)
            return gradient, None

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(options.width, options.width, bias=False) for _ in range(options.layers))

        def forward(self, x):
            for layer in self.layers:
                x = Busy.apply(layer(x), options.compute / 3 / options.layers)
            return x

    torch.set_num_threads(1)
    torch.manual_seed(0)
    bdn.init()
    model = Model()
    bdn.broadcast_parameters(model, root=0)
    links = bdn.Links(push=os.environ.get("BANDONEON_PUSH", "none"), pull=os.environ.get("BANDONEON_PULL", "none"))
    optimizer = bdn.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1e-6), model, links=links)
    x = torch.ones(1, options.width)
    for _ in range(options.steps):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
    bdn.shutdown()


# ---- Who runs, predicts and compares


def run(options, row, settings, folder):
    """Records a job with these settings."""
    settings = dict(settings)
    command = [BIN / "bandoneon", "run", "-n", options.workers, "-s", settings.pop("servers", 1), "--set", f"trace={folder}"]
    for name, value in settings.items():
        command += [f"--{name}", value] if name in ("link", "push", "pull") else ["--set", f"{name}={value}"]
    program = [sys.executable, __file__, "--layers", row["layers"], "--width", row.get("width", 256), "--compute", row["compute"],
               "--steps", options.steps]
    done = subprocess.run([*map(str, command), "--", *map(str, program)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"the job failed:\n{done.stderr[-2000:]}")


def replay(folder, settings=(), costs=None):
    command = [BIN / "bandoneon", "replay", folder, "--json"]
    for name, value in dict(settings).items():
        command += ["--set", f"{name}={value}"]
    if costs:
        command += ["--costs", costs]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)


def measure_costs(settings, path):
    """What the codecs of these settings cost on this machine, as the replay wants to be told."""
    codecs = {inner(value) for name, value in settings.items() if name in ("push", "pull")} - {"none"}
    if not codecs:
        return None
    command = [BIN / "bandoneon", "bench", "codecs", "--json", "--elements", "65536"]
    for codec in sorted(codecs):
        command += ["--codec", codec]
    path.write_text(subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True).stdout)
    return path


def inner(spec):
    return spec[3:-1] if spec.startswith("ef(") else spec


def measure(options, number, row):
    with tempfile.TemporaryDirectory() as temporary:
        temporary = pathlib.Path(temporary)
        before, after = temporary / "before", temporary / "after"
        before.mkdir()
        after.mkdir()
        run(options, row, row["record"], before)
        costs = measure_costs(row["change"], temporary / "costs.jsonl")
        same = replay(before)
        predicted = replay(before, row["change"], costs)
        run(options, row, {**row["record"], **row["change"]}, after)
        measured = replay(after)
    changed = {**row["record"], **row["change"]}
    computing = same["recorded"]["median_step_ms"] - same["recorded"]["exposed_ms"]
    measured_ms = measured["recorded"]["median_step_ms"]
    wire = busiest(predicted, changed) * 8e3 / (float(changed["link"].removesuffix("mbit")) * 1e6)
    low, high = predicted["interval_ms"]
    return {
        "row": number, "record": row["record"], "change": row["change"],
        "recorded_ms": same["recorded"]["median_step_ms"], "same_error": same["median_error"], "same_step_error": same["step_error"],
        "predicted_ms": predicted["predicted"]["median_step_ms"], "interval_ms": [low, high], "measured_ms": measured_ms,
        "error": predicted["predicted"]["median_step_ms"] / measured_ms - 1, "is_inside": low <= measured_ms <= high,
        "sum_error": (computing + wire) / measured_ms - 1, "greater_error": max(computing, wire) / measured_ms - 1,
        "queued_share": [same["queued_share"], measured["queued_share"]], "load": os.getloadavg()[0],
    }


def busiest(predicted, settings):
    """The bytes through the busiest link in one direction in a step: that of a worker, or of one of so many equal servers."""
    traffic = predicted["step_bytes"]
    of_worker = max(traffic["pushed"], traffic["pulled"]) / predicted["workers"]
    return max(of_worker, max(traffic["pushed"], traffic["pulled"]) / settings.get("servers", 1))


def show(row):
    text = " ".join(f"{name}={value}" for name, value in row["record"].items())
    change = " ".join(f"{name}={value}" for name, value in row["change"].items())
    print(f"{row['row']}: recorded with {text}: {row['recorded_ms']:.1f} ms, replayed {row['same_error']:+.1%} (a step {row['same_step_error']:.1%})\n"
          f"   with {change}: predicted {row['predicted_ms']:.1f} ms ({row['interval_ms'][0]:.1f} to {row['interval_ms'][1]:.1f}), "
          f"measured {row['measured_ms']:.1f} ms: {row['error']:+.1%}{'' if row['is_inside'] else ', outside'}\n"
          f"   computing + bytes/rate {row['sum_error']:+.1%}, the greater {row['greater_error']:+.1%}; "
          f"queued {row['queued_share'][0]:.1%} and {row['queued_share'][1]:.1%}, load {row['load']:.1f}", flush=True)


def summary(rows):
    def said(name):
        errors = [abs(row[name]) for row in rows]
        return f"median {statistics.median(errors):.1%}, largest {max(errors):.1%}"

    better = [min(abs(row["sum_error"]), abs(row["greater_error"])) for row in rows]
    print(f"{len(rows)} rows. Replay of the recorded settings: {said('same_error')}. Changed: {said('error')}; "
          f"{sum(row['is_inside'] for row in rows)} within their interval. The better of the two sums: median "
          f"{statistics.median(better):.1%}, largest {max(better):.1%}")


if __name__ == "__main__":
    main()
