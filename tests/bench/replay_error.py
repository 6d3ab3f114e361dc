"""How far predictions of `bandoneon replay` are off: a job is recorded, its steps are predicted with a setting changed,
and then that job is run.

    build/venv/bin/python tests/bench/replay_error.py --json rows.json --csv rows.csv --picture errors.png
    build/venv/bin/python tests/bench/replay_error.py --quick
    build/venv/bin/python tests/bench/replay_error.py --rows 0 3
    build/venv/bin/python tests/bench/replay_error.py --from rows.json --picture errors.png

A row records a job of real processes on this machine, over links made slow. Its model is one of linear layers whose
computing is timed waits, a third in the forward and two in the backward pass, as on a device of its own: on few cores
the workers, the servers and all that encodes would share them. The last rows train examples/gpt.py instead, which does
compute on these cores. The replay of the recorded settings is compared with the
recording itself; a prediction, which is written before the second job begins, with that job. All figures are median
steps of the slower worker.

Beside them stand two sums that need no replay: computing + bytes / rate, and the greater of the two. Computing is the
recorded step without its exposed waits; the bytes are those that go through the busiest link in one direction in a
step, with headers.

Every line says the share of their steps in which programs were ready to run and did not, in the recording and in the
run to be predicted: above 5 % the machine was busy, and a figure says less. A row whose job fails, or takes longer than
--limit, is told and left out of the summary; the status is then 1. Results are written behind every row, so what is
stopped keeps its rows.
"""

import argparse
import csv
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("BDN_BIN_DIR", ROOT / "build" / "release" / "bin"))
ONEBIT = "ef(onebit(block=64))"
TOPK = "ef(topk(ratio=0.01))"
# The settings that are recorded, and those that are changed. `layers` of `width` x `width` compute for `compute` seconds
# a step. Three layers of 4 MiB make a server of two send twice as much as the other.
THREE = {"layers": 3, "width": 1024, "compute": 0.3}
ROWS = [
    {"record": {"link": "300mbit"}, "change": {"link": "100mbit"}, "layers": 12, "compute": 0.15},
    {"record": {"link": "100mbit"}, "change": {"link": "300mbit"}, "layers": 12, "compute": 0.15},
    {"record": {"link": "300mbit"}, "change": {"push": ONEBIT, "pull": ONEBIT}, "layers": 12, "compute": 0.15},
    {"record": {"link": "300mbit"}, "change": {"servers": 2}, "layers": 24, "compute": 0.3},
    {"record": {"link": "300mbit"}, "change": {"push": "fp16", "pull": "fp16"}, "layers": 24, "compute": 0.4},
    {"record": {"link": "100mbit", "push": ONEBIT, "pull": ONEBIT}, "change": {"link": "300mbit"}, "layers": 24,
     "compute": 0.1},
    {"record": {"link": "300mbit", "partition-bytes": "128KiB"}, "change": {"partition-bytes": "4MiB"}, "layers": 12,
     "compute": 0.1},
    {"record": {"link": "1000mbit"}, "change": {"link": "100mbit"}, "layers": 300, "width": 64, "compute": 0.2},
    {"record": {"link": "300mbit", "workers": 4}, "change": {"link": "100mbit"}, "layers": 12, "compute": 0.4},
    {"record": {"link": "300mbit", "workers": 4}, "change": {"push": TOPK, "pull": TOPK}, "layers": 12, "compute": 0.3},
    {"record": {"link": "300mbit", "overlap": "forward"}, "change": {"link": "100mbit"}, "layers": 12, "compute": 0.3},
    {"record": {"link": "100mbit", "overlap": "forward"}, "change": {"push": "fp16", "pull": "fp16"}, "layers": 12,
     "compute": 0.4},
    {"record": {"link": "300mbit"}, "change": {"servers": 2}, **THREE},
    {"record": {"link": "300mbit", "servers": 2}, "change": {"link": "100mbit"}, **THREE},
    {"record": {"link": "100mbit"}, "change": {"push": TOPK, "pull": TOPK}, "layers": 24, "compute": 0.3},
    {"record": {"link": "300mbit", "push": ONEBIT, "pull": ONEBIT}, "change": {"push": "none", "pull": "none"},
     "layers": 12, "compute": 0.15},
    {"record": {"link": "300mbit"}, "change": {"workers": 4}, "layers": 12, "compute": 0.3},
    {"record": {"link": "300mbit"}, "change": {"workers": 8}, "layers": 6, "compute": 0.3},
    {"record": {"link": "300mbit"}, "change": {"link": "100mbit"}, "example": "gpt.py"},
    {"record": {"link": "100mbit"}, "change": {"push": "fp16", "pull": "fp16"}, "example": "gpt.py"},
]


# Few and short ones, of a change each of the link, the codec and the servers.
QUICK = [
    {"record": {"link": "300mbit"}, "change": {"link": "100mbit"}, "layers": 6, "compute": 0.06},
    {"record": {"link": "100mbit"}, "change": {"push": "fp16", "pull": "fp16"}, "layers": 6, "compute": 0.06},
    {"record": {"link": "100mbit"}, "change": {"servers": 2}, "layers": 8, "compute": 0.06},
]
BUSY = 0.05  # a row says less where programs were ready to run and did not for more of their steps than this


class Failed(Exception):
    """A row that could not be measured."""


def main():
    options = parse()
    if "BANDONEON_RANK" in os.environ:
        return work(options)
    if options.read:
        found = json.loads(options.read.read_text())
    else:
        found = measure_all(options)
    good = [row for row in found if "failure" not in row]
    if good:
        print(table(good))
        print(summary(good))
        if options.picture:
            draw(good, options.picture)
    return 0 if good and len(good) == len(found) else 1


def measure_all(options):
    rows = QUICK if options.quick else ROWS
    chosen = options.rows if options.rows is not None else range(len(rows))
    for number in chosen:
        if not 0 <= number < len(rows):
            raise SystemExit(f"there is no row {number}: they are 0 to {len(rows) - 1}")
    if not (BIN / "bandoneon").exists():
        raise SystemExit(f"{BIN / 'bandoneon'} is missing: build it, or say BDN_BIN_DIR")
    found = []
    for place, number in enumerate(chosen):
        began = time.monotonic()
        row = rows[number]
        say(f"row {number} ({place + 1} of {len(chosen)}): {told(row['record'])}, then {told(row['change'])}")
        try:
            found.append(measure(options, number, row))
            show(found[-1])
        except Failed as error:
            found.append({"row": number, "record": row["record"], "change": row["change"], "failure": str(error)})
            say(f"  failed: {error}")
        say(f"  {time.monotonic() - began:.0f} s")
        write(options, found)
    return found


def say(text):
    print(text, file=sys.stderr, flush=True)


def told(settings):
    return " ".join(f"{name}={value}" for name, value in settings.items())


def write(options, found):
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    if options.csv:
        with options.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore")
            writer.writeheader()
            for row in found:
                flat = {**row, "record": told(row["record"]), "change": told(row["change"])}
                if "failure" not in row:
                    flat.update(low_ms=row["interval_ms"][0], high_ms=row["interval_ms"][1],
                                queued_before=row["queued_share"][0], queued_after=row["queued_share"][1])
                writer.writerow(flat)


COLUMNS = ["row", "record", "change", "recorded_ms", "same_error", "same_step_error", "predicted_ms", "low_ms",
           "high_ms", "measured_ms", "measured_tenth_ms", "measured_nine_tenths_ms", "error", "is_inside",
           "sum_ms", "sum_error", "greater_ms", "greater_error", "queued_before", "queued_after", "load", "failure"]


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", help="numbers of rows, from 0 on [all]")
    parser.add_argument("--quick", action="store_true", help="three short rows, in less than five minutes")
    parser.add_argument("--steps", type=int, help="steps of a job [25, or 12 of --quick]")
    parser.add_argument("--limit", type=float, default=300, help="seconds that a job may take [300]")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write all rows there")
    parser.add_argument("--csv", type=pathlib.Path, metavar="FILE", help="write all rows there, too")
    parser.add_argument("--picture", type=pathlib.Path, metavar="FILE", help="draw predicted against measured steps, "
                        "with both sums, by matplotlib: FILE.png, .svg or .pdf")
    parser.add_argument("--from", dest="read", type=pathlib.Path, metavar="FILE",
                        help="measure nothing: take the rows of this JSON")
    parser.add_argument("--layers", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--width", type=int, default=256, help=argparse.SUPPRESS)
    parser.add_argument("--compute", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--overlap", default="backward", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.steps is None:
        options.steps = 12 if options.quick else 25
    if options.steps < 4:
        parser.error("--steps needs at least 4: the first one is left out")
    return options


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
            self.layers = torch.nn.ModuleList(
                torch.nn.Linear(options.width, options.width, bias=False) for _ in range(options.layers))

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
    optimizer = bdn.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1e-6), model, links=links,
                                         overlap=options.overlap)
    x = torch.ones(1, options.width)
    for _ in range(options.steps):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
    bdn.shutdown()


# ---- The jobs, their predictions, and the comparison


def run(options, row, settings, folder):
    """Records a job with these settings."""
    settings = dict(settings)
    if "example" in row:
        program = [sys.executable, ROOT / "examples" / row["example"], "--steps", options.steps, "--eval-every", 0]
        for name in ("push", "pull"):
            program += [f"--{name}", settings.pop(name, "none")]
    else:
        program = [sys.executable, __file__, "--layers", row["layers"], "--width", row.get("width", 256),
                   "--compute", row["compute"], "--steps", options.steps]
    program += ["--overlap", settings.pop("overlap")] if "overlap" in settings else []
    command = [BIN / "bandoneon", "run", "-n", settings.pop("workers", 2), "-s", settings.pop("servers", 1),
               "--set", f"trace={folder}"]
    for name, value in settings.items():
        command += [f"--{name}", value] if name in ("link", "push", "pull") else ["--set", f"{name}={value}"]
    call([*command, "--", *program], options.limit)


def call(command, limit):
    """Returns what a command prints. One that takes too long is ended as by a terminal, so that it ends its job."""
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, error = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        raise Failed(f"{pathlib.Path(str(command[0])).name} {command[1]} took longer than {limit:.0f} s") from None
    if process.returncode != 0:
        raise Failed(f"{command[1]} ended with status {process.returncode}: {error.strip()[-1000:]}")
    return out


def replay(options, folder, settings=(), costs=None):
    command = [BIN / "bandoneon", "replay", folder, "--json"]
    for name, value in dict(settings).items():
        command += ["--workers", value] if name == "workers" else ["--set", f"{name}={value}"]
    if costs:
        command += ["--costs", costs]
    return json.loads(call(command, options.limit))


def measure_costs(options, settings, path):
    """Measures what the codecs of these settings cost on this machine, as the replay wants to be told."""
    codecs = {inner(value) for name, value in settings.items() if name in ("push", "pull")}
    if not codecs:
        return None
    command = [BIN / "bandoneon", "bench", "codecs", "--json", "--elements", "65536"]
    for codec in sorted(codecs):
        command += ["--codec", codec]
    path.write_text(call(command, options.limit))
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
        costs = measure_costs(options, row["change"], temporary / "costs.jsonl")
        same = replay(options, before)
        predicted = replay(options, before, row["change"], costs)
        say(f"  predicted {predicted['predicted']['median_step_ms']:.1f} ms")
        run(options, row, {**row["record"], **row["change"]}, after)
        measured = replay(options, after)
    changed = {**row["record"], **row["change"]}
    computing = same["recorded"]["median_step_ms"] - same["recorded"]["exposed_ms"]
    measured_ms = measured["recorded"]["median_step_ms"]
    wire = busiest(predicted, changed) * 8e3 / (float(changed["link"].removesuffix("mbit")) * 1e6)
    low, high = predicted["interval_ms"]
    return {
        "row": number, "record": row["record"], "change": row["change"],
        "recorded_ms": same["recorded"]["median_step_ms"], "same_error": same["median_error"],
        "same_step_error": same["step_error"], "predicted_ms": predicted["predicted"]["median_step_ms"],
        "interval_ms": [low, high], "measured_ms": measured_ms, "measured_tenth_ms": measured["recorded"]["tenth_ms"],
        "measured_nine_tenths_ms": measured["recorded"]["nine_tenths_ms"],
        "error": predicted["predicted"]["median_step_ms"] / measured_ms - 1, "is_inside": low <= measured_ms <= high,
        "sum_ms": computing + wire, "sum_error": (computing + wire) / measured_ms - 1,
        "greater_ms": max(computing, wire), "greater_error": max(computing, wire) / measured_ms - 1,
        "queued_share": [same["queued_share"] or 0, measured["queued_share"] or 0], "load": os.getloadavg()[0],
        "notes": predicted["warnings"],
    }


def busiest(predicted, settings):
    """Returns the bytes through the busiest link in one direction in a step: a worker's, or one of equal servers'."""
    traffic = predicted["step_bytes"]
    of_worker = max(traffic["pushed"], traffic["pulled"]) / predicted["workers"]
    return max(of_worker, max(traffic["pushed"], traffic["pulled"]) / settings.get("servers", 1))


def show(row):
    low, high = row["interval_ms"]
    say(f"  recorded {row['recorded_ms']:.1f} ms, replayed {row['same_error']:+.1%} "
        f"(a step {row['same_step_error']:.1%})\n"
        f"  predicted {row['predicted_ms']:.1f} ms ({low:.1f} to {high:.1f}), measured {row['measured_ms']:.1f} ms: "
        f"{row['error']:+.1%}{'' if row['is_inside'] else ', outside'}\n"
        f"  computing + bytes/rate {row['sum_error']:+.1%}, the greater {row['greater_error']:+.1%}; "
        f"queued {row['queued_share'][0]:.1%} and {row['queued_share'][1]:.1%}, load {row['load']:.1f}")
    for note in row["notes"]:
        say(f"  note: {note}")


def table(rows):
    lines = [["ROW", "RECORDED WITH", "CHANGED TO", "RECORDED", "REPLAYED", "PREDICTED", "INTERVAL", "MEASURED",
              "ERROR", "SUM", "GREATER", "QUEUED"]]
    for row in rows:
        low, high = row["interval_ms"]
        queued = max(row["queued_share"])
        lines.append([
            str(row["row"]), told(row["record"]), told(row["change"]), f"{row['recorded_ms']:.1f}",
            f"{row['same_error']:+.1%}", f"{row['predicted_ms']:.1f}", f"{low:.1f} to {high:.1f}",
            f"{row['measured_ms']:.1f} ({row['measured_tenth_ms']:.1f} to {row['measured_nine_tenths_ms']:.1f})",
            f"{row['error']:+.1%}{'' if row['is_inside'] else ' out'}", f"{row['sum_error']:+.1%}",
            f"{row['greater_error']:+.1%}", f"{queued:.1%}{' busy' if queued > BUSY else ''}"])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = [[cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines]
    return "\n".join("  ".join(line).rstrip() for line in padded)


def summary(rows):
    def errors(name):
        found = [abs(row[name]) for row in rows]
        return f"median {statistics.median(found):.1%}, largest {max(found):.1%}"

    differ = [row for row in rows if abs(row["measured_ms"] / row["recorded_ms"] - 1) > 0.1]
    in_order = sum((row["predicted_ms"] > row["recorded_ms"]) == (row["measured_ms"] > row["recorded_ms"])
                   for row in differ)
    better = [min(abs(row["sum_error"]), abs(row["greater_error"])) for row in rows]
    busy = sum(max(row["queued_share"]) > BUSY for row in rows)
    return (f"{len(rows)} rows, {busy} of them on a busy machine. Replay of the recorded settings: "
            f"{errors('same_error')}. Changed: {errors('error')}; {sum(row['is_inside'] for row in rows)} within their "
            f"interval; which setting is faster is right in {in_order} of the {len(differ)} rows where they differ by over "
            f"10 %. Computing + bytes/rate: {errors('sum_error')}. The greater of both: "
            f"{errors('greater_error')}. The better of the two sums, row by row: median "
            f"{statistics.median(better):.1%}, largest {max(better):.1%}{where_sums_fail(rows)}")


def where_sums_fail(rows):
    """Says how far predictions are off where neither sum is right, which is where a replay is needed at all."""
    hard = [(abs(row["error"]), abs(row["sum_error"]), abs(row["greater_error"])) for row in rows]
    hard = [(error, min(sums)) for error, *sums in hard if min(sums) > 0.1]
    if not hard:
        return ""
    ours, theirs = map(statistics.median, zip(*hard, strict=True))
    return f". In the {len(hard)} rows where the better sum misses by over 10 %: {ours:.1%} beside {theirs:.1%}"


def draw(rows, path):
    """Draws what was predicted over what was measured: on the diagonal a prediction is right."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    measured = [row["measured_ms"] for row in rows]
    figure, axes = plt.subplots(figsize=(6, 6))
    for name, label, marker, color in (("sum_ms", "computing + bytes / rate", "^", "tab:orange"),
                                       ("greater_ms", "max(computing, bytes / rate)", "v", "tab:gray")):
        axes.scatter(measured, [row[name] for row in rows], marker=marker, color=color, label=label, alpha=0.8)
    predicted = [row["predicted_ms"] for row in rows]
    spread = [[p - row["interval_ms"][0] for p, row in zip(predicted, rows, strict=True)],
              [row["interval_ms"][1] - p for p, row in zip(predicted, rows, strict=True)]]
    axes.errorbar(measured, predicted, yerr=spread, fmt="o", color="tab:blue", capsize=3,
                  label="bandoneon replay, with its interval")
    for row in rows:
        axes.annotate(str(row["row"]), (row["measured_ms"], row["predicted_ms"]), textcoords="offset points",
                      xytext=(6, -10), fontsize=8)
    every = measured + predicted + [row[name] for row in rows for name in ("sum_ms", "greater_ms")]
    ends = [0.8 * min(every), 1.25 * max(every)]
    axes.plot(ends, ends, color="black", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, xlabel="measured median step, ms",
             ylabel="predicted median step, ms")
    axes.legend(loc="upper left", fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)
    say(f"wrote {path}")


if __name__ == "__main__":
    sys.exit(main())
