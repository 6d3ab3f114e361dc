"""What overlap="forward" makes of a step, where communication is about as long as computation.

    build/venv/bin/python tests/bench/overlap.py
    build/venv/bin/python tests/bench/overlap.py --ratios 1 --rounds 20 --json

Two workers and some servers on this machine train a deep GPT of examples/gpt.py over links made slow, so that
an exchange of all gradients takes about `ratio` times a step alone: one job a ratio. In it, in turns: a step
alone (no exchange), an exchange alone (no computation), and a step with overlap="backward" and with
"forward". Medians over the rounds of a worker's mean step, with their least and greatest, of the slower
worker. The bound is the greater of the two alone; the models of both overlaps must be the same bits. Where
keys wait is said of a worker's stages (docs/thread_model.md), as the mean of its keys.

--wait MS: most of the computation is waited for in place of being done, a third in the forward and two in the
backward pass, as on a device of its own: on few cores the two workers' computation, the servers and all
that encodes would share them.
"""

import argparse
import importlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
# A link takes what is most urgent only of what has not been handed to it: little at a time, and in pieces.
SETTINGS = ("max-bytes-in-flight=64KiB", "fusion-bytes=32KiB", "partition-bytes=32KiB")
WAYS = ("step alone", "exchange alone", "backward", "forward")
STAGES = ("queue", "send", "wait", "decode_queue")


def main():
    options = parse()
    if "BANDONEON_RANK" in os.environ:
        work(options)
        return
    compute = run(options, rounds=3)["s_a_step"]["step alone"]["least"]
    found = []
    for ratio in options.ratios:
        link = 8 * 4 * parameters(options) / (ratio * compute)
        found.append({"ratio": ratio, **run(options, options.rounds, f"{link / 1e6:.1f}mbit")})
        if not options.json:
            show(found[-1])
    if options.json:
        print(json.dumps(found))


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ratios", type=float, nargs="+", default=[0.5, 1.0, 1.5])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=4, help="of each way in a round")
    parser.add_argument("--batch", type=int, default=8, help="texts of 128 bytes")
    parser.add_argument("--servers", type=int, default=2, help="each with a link of its own")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--wait", type=float, default=0, metavar="MS", help="waited in a step")
    parser.add_argument("--push", default="none")
    parser.add_argument("--pull", default="none")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="settings of the job, beside or in place of " + ", ".join(SETTINGS),
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--report", help=argparse.SUPPRESS)
    return parser.parse_args()


def run(options, rounds, link=None):
    """What one job found."""
    command = [ROOT / "build/release/bin/bandoneon", "run", "-n", "2", "-s", options.servers]
    settings = dict(setting.partition("=")[::2] for setting in (*SETTINGS, *options.set))
    for name, value in settings.items():
        command += ["--set", f"{name}={value}"]
    if link is not None:
        command += ["--link", link]
    environment = {"PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1", **os.environ}
    with tempfile.TemporaryDirectory() as directory:
        report = pathlib.Path(directory, "report.json")
        worker = [sys.executable, __file__, "--report", report, "--rounds", rounds]
        worker += ["--steps", options.steps, "--batch", options.batch, "--wait", options.wait]
        worker += ["--layers", options.layers, "--width", options.width]
        worker += ["--push", options.push, "--pull", options.pull]
        job = subprocess.run(
            [*map(str, [*command, "--", *worker])], env=environment, stdout=sys.stderr
        )
        if job.returncode != 0:
            sys.exit(job.returncode)
        return {"link": link, **json.loads(report.read_text())}


def gpt():
    sys.path.insert(0, str(ROOT / "examples"))
    return importlib.import_module("gpt")


def make_model(options):
    return gpt().GPT(width=options.width, layers=options.layers)


def parameters(options):
    return sum(param.numel() for param in make_model(options).parameters())


def work(options):
    import torch

    import bandoneon.torch as bdn

    torch.set_num_threads(1)
    worker = bdn.init()
    text = torch.randint(256, (100_000,), generator=torch.Generator().manual_seed(worker.rank))

    class Wait(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            time.sleep(wait_s / 3)
            return x.view_as(x)

        @staticmethod
        def backward(ctx, grad):
            time.sleep(2 * wait_s / 3)
            return grad

    wait_s = options.wait / 1e3 / options.layers  # a block

    def trainer(overlap=None):
        """(step(), what ends its last step, model)"""
        torch.manual_seed(1)
        model = make_model(options)
        for block in model.blocks if wait_s else ():
            block.register_forward_hook(lambda module, inputs, x: Wait.apply(x))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        if overlap is not None:
            links = bdn.Links(push=options.push, pull=options.pull, prefix=f"{overlap}/")
            optimizer = bdn.DistributedOptimizer(optimizer, model, links=links, overlap=overlap)
        generator = torch.Generator().manual_seed(1)

        def step():
            optimizer.zero_grad()
            model.loss(gpt().sample(text, generator, options.batch)).backward()
            optimizer.step()

        return step, getattr(optimizer, "synchronize", lambda: None), model

    def exchanger():
        handles = []
        tensors = [torch.zeros_like(param) for param in trainer()[2].parameters()]

        def exchange():
            # Most urgent first, as the gradients of the first layers are.
            handles[:] = [
                bdn.push_pull(
                    tensor, f"{i}", push=options.push, pull=options.pull, priority=-i
                )
                for i, tensor in enumerate(tensors)
            ]
            for handle in handles:
                handle.wait()

        return exchange, lambda: None, None

    ways = dict(zip(WAYS, (trainer(), exchanger(), trainer("backward"), trainer("forward"))))
    times = {way: [] for way in WAYS}
    stages = {way: dict.fromkeys(STAGES, 0) for way in WAYS}
    keys = dict.fromkeys(WAYS, 0)
    for number in range(options.rounds + 1):
        for way, (step, end, _) in ways.items():
            step()  # What "forward" awaits of a round's last step is of the next.
            bdn.barrier()
            before = worker.stats()["stages"]
            start = time.perf_counter()
            for _ in range(options.steps):
                step()
            took = (time.perf_counter() - start) / options.steps
            end()
            slower = max(bdn.allgather_object(took))
            if number == 0:  # It warms up.
                continue
            times[way].append(slower)
            after = worker.stats()["stages"]
            keys[way] += after["decode"]["items"] - before["decode"]["items"]
            for stage in STAGES:
                stages[way][stage] += after[stage]["wall_ns"] - before[stage]["wall_ns"]
    models = [dict(ways[way][2].named_parameters()) for way in ("backward", "forward")]
    if not all(torch.equal(models[1][name], value) for name, value in models[0].items()):
        raise SystemExit("the models of the two overlaps differ")
    if worker.rank == 0:
        facts = {
            way: {
                "median": statistics.median(t),
                "least": min(t),
                "greatest": max(t),
                "stages": {s: ns / 1e9 / max(1, keys[way]) for s, ns in stages[way].items()},
            }
            for way, t in times.items()
        }
        bound = max(facts["step alone"]["median"], facts["exchange alone"]["median"])
        over = {way: facts[way]["median"] / bound for way in ("backward", "forward")}
        found = {"parameters": parameters(options), "s_a_step": facts, "over_bound": over}
        found["push"], found["pull"] = options.push, options.pull
        found["load"] = os.getloadavg()[0]
        pathlib.Path(options.report).write_text(json.dumps(found))
    bdn.shutdown()


def show(found):
    print(f"link {found['link']}, load {found['load']:.0f}")
    for way, facts in found["s_a_step"].items():
        median, least, greatest = (1e3 * facts[key] for key in ("median", "least", "greatest"))
        over = found["over_bound"].get(way)
        beyond = f", {over:.2f} of the bound" if over else ""
        print(f"  {way:15} {median:7.1f} ms [{least:.1f} {greatest:.1f}]{beyond}")
        if way != "step alone":
            waited = (f"{stage} {1e3 * s:.1f}" for stage, s in facts["stages"].items())
            print(f"                  ms a key: {', '.join(waited)}")


if __name__ == "__main__":
    main()
