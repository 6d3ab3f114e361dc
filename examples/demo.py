"""Trains examples/gpt.py in several modes of compression on this machine and shows what it costs.

Each mode runs whole, then some steps without warm-up on a link made slow, once with each overlap. Leaves
results.json and loss.png in --out (build/demo).
"""

import argparse
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECIPE = "updates-100x"
MODES = ("none", "fp16", "onebit", "topk", RECIPE)
CUSTOM = "custom"  # --push and --pull
LABELS = {
    "none": "uncompressed",
    "fp16": "fp16 both ways",
    "onebit": "momentum, ef(onebit(block=256)) both ways",
    "topk": "momentum, ef(topk(ratio=0.01)) both ways",
    RECIPE: "recipe updates-100x: Muon, meeting every 8 steps, two bits both ways",
}
# What is most urgent overtakes only what has not been handed to the link: little at a time.
LINK_SETTINGS = ("max-bytes-in-flight=256KiB", "fusion-bytes=256KiB")
COLOURS = {"none": "#222222", "fp16": "#3b7dd8", "onebit": "#d1495b", "topk": "#2a9d5c", RECIPE: "#e08e1b", CUSTOM: "#8e5ea2"}


def main():
    options = read_options()
    out = pathlib.Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    results, curves = [], {}
    for mode in options.modes:
        print(f"== {LABELS[mode]}: {options.steps} steps", flush=True)
        warmup = ["--warmup", str(options.warmup)]
        records = run(
            options,
            out / mode,
            mode,
            options.steps,
            [*warmup, "--eval-every", str(options.eval_every)],
        )
        # From the first step on as it is after the warm-up.
        slow = {
            overlap: run(
                options,
                out / f"{mode}-link-{overlap}",
                mode,
                options.link_steps,
                ["--warmup", "0", "--eval-every", "0", "--overlap", overlap],
                link=options.link,
            )
            for overlap in ("backward", "forward")
        }
        results.append(summary(mode, records, slow))
        curves[mode] = records[0]
        print(f"   {time.monotonic() - started:.0f} s so far", flush=True)
    (out / "results.json").write_text(json.dumps(results, indent=2) + "\n")
    draw(curves, out / "loss.png")
    print_table(results, options)
    print(
        f"\n{out / 'results.json'} and {out / 'loss.png'} written; {time.monotonic() - started:.0f} s in all"
    )
    if any(len(set(entry["model_hashes"])) > 1 for entry in results):
        sys.exit("the workers' models differ")
    if any(len(set(entry["link_model_hashes"])) > 1 for entry in results):
        sys.exit("the models of the two overlaps differ")


def read_options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--data", help="a file to train on, instead of the Python standard library's sources"
    )
    parser.add_argument(
        "--modes",
        type=lambda text: text.split(","),
        default=list(MODES),
        help="of " + ",".join(MODES),
    )
    parser.add_argument("--push", help="a codec for the pushes of one more mode: 'ef(int2)'")
    parser.add_argument("--pull", help="and for its pulls")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument(
        "--warmup", type=int, default=30, help="first steps of onebit and topk that go uncompressed"
    )
    parser.add_argument("--eval-every", type=int, default=50)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--link", default="200mbit", help="rate of the slow link of each process")
    parser.add_argument("--link-steps", type=int, default=24)
    parser.add_argument("--out", default=str(ROOT / "build" / "demo"))
    parser.add_argument(
        "--bandoneon", default=str(ROOT / "build" / "release" / "bin" / "bandoneon")
    )
    options = parser.parse_args()
    for mode in options.modes:
        if mode not in MODES:
            parser.error(f"unknown mode {mode!r}; there are {', '.join(MODES)}")
    if options.push or options.pull:
        options.modes.append(CUSTOM)
        LABELS[CUSTOM] = f"push {options.push or 'none'}, pull {options.pull or 'none'}"
    return options


def run(options, directory, mode, steps, more, link=None):
    """One job; the workers' records."""
    directory.mkdir(exist_ok=True)
    for old in directory.glob("worker-*.json"):
        old.unlink()
    command = [options.bandoneon, "run", "-n", str(options.workers), "-s", str(options.servers)]
    command += [
        "--set",
        "log-level=warning",
        *(["--link", link] if link else []),
        *(word for setting in LINK_SETTINGS if link for word in ("--set", setting)),
        "--",
        sys.executable,
    ]
    command += [str(ROOT / "examples" / "gpt.py"), "--steps", str(steps)]
    if mode == CUSTOM:
        command += ["--push", options.push or "none", "--pull", options.pull or "none"]
    else:
        command += ["--mode", mode]
    command += [
        "--record",
        str(directory),
        *more,
        *(["--data", options.data] if options.data else []),
    ]
    environment = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith("BANDONEON_") or k == "BANDONEON_LIBRARY"
    }
    environment["OMP_NUM_THREADS"] = "1"
    job = subprocess.Popen(command, env=environment)
    try:
        code = job.wait()
    except KeyboardInterrupt:
        job.send_signal(signal.SIGINT)
        job.wait()
        raise
    if code:
        sys.exit(f"{' '.join(command)} failed with {code}")
    return [
        json.loads((directory / f"worker-{rank}.json").read_text())
        for rank in range(options.workers)
    ]


def summary(mode, records, slow):
    """What results.json says of one mode; bytes are those of one worker, step times of the steps after the
    warm-up. `slow`: the records on the link by overlap."""
    one = records[0]
    pushed, pulled = one["traffic"][-1]
    steps = len(one["losses"])
    dense_step = 4 * one["parameters"]
    steady_from = min(one["warmup"], steps - 1)
    steady_bytes = sum(one["traffic"][-1]) - sum(one["traffic"][steady_from])
    return {
        "mode": mode,
        "steps": steps,
        "val_loss": one["validations"][-1][1],
        "bytes_pushed": pushed,
        "bytes_pulled": pulled,
        "dense_bytes": dense_step * steps,
        "ratio_steady": 2 * dense_step * (steps - steady_from) / steady_bytes,
        "bytes_a_steady_step": steady_bytes / (steps - steady_from),
        "step_ms": median_step_ms(one, steady_from),
        "step_ms_of_warmup": median_step_ms(one, 0, steady_from) if one["warmup"] else None,
        "step_ms_at_link": median_step_ms(slow["backward"][0]),
        "step_ms_at_link_forward": median_step_ms(slow["forward"][0]),
        "model_hashes": [record["model_hash"] for record in records],
        "link_model_hashes": [r["model_hash"] for records in slow.values() for r in records],
    }


def median_step_ms(record, begin=0, end=None):
    """Without the first two, which make what the others use. Where workers meet seldom, of the means from meeting to
    meeting, without those before the first."""
    steps, period = record["step_seconds"][:end], record["period"]
    if period > 1:
        steps = [statistics.fmean(steps[i : i + period]) for i in range(0, len(steps) - period + 1, period)]
        return 1000 * statistics.median(steps[min(1, len(steps) - 1) :])
    return 1000 * statistics.median(steps[max(begin, min(2, len(steps) - 1)) :])


def print_table(results, options):
    reference = next((entry["val_loss"] for entry in results if entry["mode"] == "none"), None)
    print(
        f"\n{options.workers} workers, {options.servers} servers; bytes of one worker over the whole run, with "
        "headers, dense parts, warm-up and the first broadcast;"
    )
    print(
        "ratio to dense fp32 both ways: of the whole run, and after the warm-up; loss in nats a byte; MB and "
        f"ms a step: after\nthe warm-up, without a link, and at {options.link} with overlap='backward' and 'forward'\n"
    )
    head = (
        "mode",
        "pushed MB",
        "pulled MB",
        "ratio run",
        "steady",
        "val loss",
        "gap",
        "MB a step",
        "step ms",
        f"at {options.link}",
        "forward",
        "models",
    )
    rows = [head]
    for entry in results:
        moved = entry["bytes_pushed"] + entry["bytes_pulled"]
        gap = "-" if reference is None else f"{entry['val_loss'] - reference:+.4f}"
        hashes = sorted({value[:10] for value in entry["model_hashes"]})
        rows.append(
            (
                entry["mode"],
                f"{entry['bytes_pushed'] / 1e6:.1f}",
                f"{entry['bytes_pulled'] / 1e6:.1f}",
                f"{2 * entry['dense_bytes'] / moved:.1f}",
                f"{entry['ratio_steady']:.1f}",
                f"{entry['val_loss']:.4f}",
                gap,
                f"{entry['bytes_a_steady_step'] / 1e6:.2f}",
                f"{entry['step_ms']:.0f}",
                f"{entry['step_ms_at_link']:.0f}",
                f"{entry['step_ms_at_link_forward']:.0f}",
                f"equal, {hashes[0]}" if len(hashes) == 1 else "DIFFER: " + " ".join(hashes),
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    for row in rows:
        cells = [
            cell.ljust(w) if i in (0, len(head) - 1) else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(row, widths))
        ]
        print("  ".join(cells))
    if reference is not None:
        for entry in results:
            if entry["mode"] != "none":
                print(
                    f"{entry['mode']}: validation loss {entry['val_loss'] - reference:+.4f} against uncompressed"
                )


def draw(curves, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (by_step, by_bytes) = pyplot.subplots(1, 2, figsize=(12, 4.8), sharey=True)
    for mode, record in curves.items():
        start = sum(record["traffic"][0])
        sent = [(sum(pair) - start) / 1e6 for pair in record["traffic"]]
        style = dict(color=COLOURS[mode], label=LABELS[mode])
        losses = smooth(record["losses"])
        by_step.plot(range(1, len(losses) + 1), losses, lw=0.8, alpha=0.35, color=COLOURS[mode])
        by_bytes.plot(sent[1:], losses, lw=0.8, alpha=0.35, color=COLOURS[mode])
        checked = [(step, loss) for step, loss in record["validations"] if step > 0]
        steps, values = [step for step, _ in checked], [loss for _, loss in checked]
        by_step.plot(steps, values, marker="o", ms=4, lw=1.6, **style)
        by_bytes.plot([sent[step] for step in steps], values, marker="o", ms=4, lw=1.6, **style)
    by_step.set_xlabel("step")
    by_step.set_ylabel("loss, nats a byte")
    by_bytes.set_xscale("log")
    by_bytes.set_xlabel("MB pushed and pulled by one worker")
    by_step.set_title("against steps")
    by_bytes.set_title("against bytes on the wire")
    by_step.legend(frameon=False, fontsize=8)
    for axes in (by_step, by_bytes):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(
        "A small GPT trained through Bandoneon; points: validation, thin lines: training",
        fontsize=11,
    )
    figure.tight_layout()
    figure.savefig(path, dpi=130)


def smooth(values, window=15):
    """Means over the last `window` values."""
    return [statistics.fmean(values[max(0, i - window + 1) : i + 1]) for i in range(len(values))]


if __name__ == "__main__":
    main()
