"""What local steps cost over a slow link: that meet at once, that stream, and alone, without any exchange.

    build/release/bin/bandoneon run -n 2 -s 1 --link 100mbit -- build/venv/bin/python tests/bench/streaming_steps.py

Interleaves blocks of steps of the three, whose computing is a wait of so many seconds beside the optimizer, so that
other programs on the machine change little. Prints for each the median over blocks of a step's mean time, its ratio to
a step alone, and the most bytes that a worker has pushed and got in one step.
"""

import argparse
import statistics
import time

import torch

import bandoneon
import bandoneon.torch as bdn

parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
parser.add_argument("--parameters", type=float, default=4e6)
parser.add_argument("--compute", type=float, default=0.25, metavar="SECONDS", help="of a step")
parser.add_argument("--tau", type=int, default=8)
parser.add_argument("--fragments", type=int, default=4)
parser.add_argument("--delay", type=int, default=1)
parser.add_argument("--codec", default="int4", help="of pushes, and of the differences that replies have")
parser.add_argument("--blocks", type=int, default=5, help="of each kind")
parser.add_argument("--rounds", type=int, default=2, help="in a block, of tau steps each")
options = parser.parse_args()


def make(kind):
    layers, width = 16, round((options.parameters / 16) ** 0.5)
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers)))
    inner = torch.optim.SGD(model.parameters(), 1e-3)
    tau = {
        "at once": options.tau,
        "streaming": bdn.algorithms.Streaming(options.tau, options.fragments, options.delay),
    }.get(kind)
    if tau is None:
        return model, inner
    pull = "none" if options.codec == "none" else f"delta({options.codec})"
    links = bdn.Links(push=options.codec, pull=pull, prefix=f"{kind}/")
    return model, bdn.LocalSteps(inner, model, tau=tau, outer=bdn.algorithms.Average(), links=links)


def train(model, optimizer, worker):
    """A block: the mean time of a step, and the most bytes in one."""
    most, before = 0, bytes_of(worker)
    began = time.perf_counter()
    for _ in range(options.rounds * options.tau):
        time.sleep(options.compute)
        optimizer.step()
        now = bytes_of(worker)
        most, before = max(most, now - before), now
    return (time.perf_counter() - began) / (options.rounds * options.tau), most


def bytes_of(worker):
    stats = worker.stats()
    return stats["bytes_pushed"] + stats["bytes_pulled"]


def main():
    torch.set_num_threads(1)
    with bandoneon.init() as worker:
        torch.manual_seed(worker.rank)
        kinds = {kind: make(kind) for kind in ("alone", "at once", "streaming")}
        for model, _ in kinds.values():
            for param in model.parameters():
                param.grad = torch.randn_like(param)
        found = {kind: [] for kind in kinds}
        for block in range(options.blocks + 1):
            for kind, (model, optimizer) in kinds.items():
                worker.barrier(f"block {block} {kind}")
                measured = train(model, optimizer, worker)
                if block:  # The first one makes memory.
                    found[kind].append(measured)
        kinds["streaming"][1].synchronize()
        alone = statistics.median(seconds for seconds, _ in found["alone"])
        for kind, blocks in found.items() if worker.rank == 0 else ():
            seconds, most = [mean for mean, _ in blocks], max(most for _, most in blocks)
            median = statistics.median(seconds)
            print(
                f"{kind:10} {median:.4f} s a step ({min(seconds):.4f} to {max(seconds):.4f}), {median / alone:.3f} of "
                f"a step alone; at most {most / 1e6:.2f} MB in one"
            )


if __name__ == "__main__":
    main()
