"""What the exchange of KFAC's factors adds to a step: beside the passes, and at the end of a step.

    build/venv/bin/python tests/bench/kfac_overlap.py
    build/venv/bin/python tests/bench/kfac_overlap.py --link 1gbit --width 1024 --json

Two workers on this machine train an MLP over links made slow. Computation is waited for in place of being done, a third
in the forward and two in the backward pass, as on a device of its own: on few cores both workers' computation would share
them. In turns, two steps each, of which one has factors: factors that are made and not sent; sent as the passes make
them, and awaited in the next step; sent and awaited at the end of their step. The difference to the first is exposed, taken of the
least of all rounds. Medians over the rounds of the slower worker, with their least and greatest; bytes of one worker's
pushes.
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
WAYS = ("not sent", "beside the passes", "at the end")
EVERY = 2


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--wait", type=float, default=600, metavar="MS", help="of computation in a step")
    parser.add_argument("--link", default="100mbit")
    parser.add_argument("--factors", default="fp16")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--report", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if "BANDONEON_RANK" in os.environ:
        work(options)
        return
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report"
        command = [ROOT / "build/release/bin/bandoneon", "run", "-n", 2, "-s", 2, "--link", options.link]
        command += ["--set", "max-bytes-in-flight=64KiB", "--set", "partition-bytes=32KiB", "--set", "min-compress-bytes=1", "--"]
        subprocess.run([*map(str, command), sys.executable, __file__, *sys.argv[1:], "--report", report],
                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        found = json.loads(report.read_text())
    if options.json:
        print(json.dumps(found))
        return
    for way, values in found["ms"].items():
        print(f"{way:18} {values[0]:8.0f} ms ({values[1]:.0f} to {values[2]:.0f}) for {EVERY} steps")
    print(f"exposed: {found['exposed_ms'][0]:.0f} ms beside the passes, {found['exposed_ms'][1]:.0f} ms at the end, "
          f"{found['ratio']:.2f}")
    print(f"factors pushed: {found['bytes']} bytes, {found['of_squares']:.3f} of squares of the same codec")


def work(options):
    import torch

    import bandoneon.torch as bdn

    class Wait(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, seconds):
            ctx.seconds = seconds
            time.sleep(seconds / 3)
            return x.view_as(x)

        @staticmethod
        def backward(ctx, grad):
            time.sleep(2 * ctx.seconds / 3)
            return grad, None

    worker = bdn.init()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(options.width, options.width) for _ in range(options.layers)))
    # One inversion, in the first step: it is no part of what is measured.
    optimizer = bdn.algorithms.KFAC(
        model, torch.optim.SGD(model.parameters(), 0.01), options.factors, every=EVERY, inverses=10**9 * EVERY
    )
    begin, push, take, rest = (getattr(optimizer, name) for name in ("_push_if_whole", "_push", "_take_factors", "_push_rest"))

    def at_the_end():
        rest()
        take()

    def skip(key):
        [factor.packed_of_step() for factor in key.factors]
        key.is_pushed = True

    def run(way):
        optimizer._push_if_whole = begin if way == "beside the passes" else lambda factor: None
        optimizer._push = skip if way == "not sent" else push
        optimizer._push_rest = at_the_end if way == "at the end" else rest
        worker.barrier()
        start = time.perf_counter()
        for _ in range(EVERY):
            x = torch.randn(32, options.width)
            for layer in model:
                x = layer(Wait.apply(x, options.wait / 1000 / options.layers))
            optimizer.zero_grad()
            x.square().mean().backward()
            optimizer.step()
        return time.perf_counter() - start

    def pushed():
        return worker.stats()["bytes_pushed"]

    seconds = {way: [] for way in WAYS}
    counts = {}
    for way in WAYS:
        run(way)
    for _ in range(options.rounds):
        for way in WAYS:
            before = pushed()
            mine = torch.tensor([run(way)])
            counts[way] = pushed() - before
            both = bdn.allgather_object(mine.item())
            seconds[way].append(max(both))
    if worker.rank == 0:
        ms = {way: [1000 * f(values) for f in (statistics.median, min, max)] for way, values in seconds.items()}
        # Of the least: other work on the machine makes steps longer, and never shorter.
        exposed = [ms[way][1] - ms["not sent"][1] for way in WAYS[1:]]
        squares = options.layers * (options.width**2 + (options.width + 1) ** 2) * (2 if options.factors == "fp16" else 4)
        factors = counts["beside the passes"] - counts["not sent"]
        found = {"ms": ms, "exposed_ms": exposed, "ratio": exposed[0] / exposed[1], "bytes": factors, "of_squares": factors / squares}
        pathlib.Path(options.report).write_text(json.dumps(found))
    bdn.shutdown()


if __name__ == "__main__":
    main()
