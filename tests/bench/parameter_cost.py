"""What a parameter costs a training step, next to DistributedDataParallel over gloo in the same processes.

    build/venv/bin/python tests/bench/parameter_cost.py
    build/venv/bin/python tests/bench/parameter_cost.py --tensors 480 --push 'ef(onebit)' --json

Two workers and a server on this machine train a chain of small layers three ways, in turns: alone (no
exchange), with DistributedOptimizer, and under DDP. A parameter's cost is what a step takes beyond the one
alone, over the number of parameters; medians over the rounds, with their least and greatest. CPU time is
that of worker 0, all its threads.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]


def main():
    options = parse()
    if "BANDONEON_RANK" in os.environ:
        work(options)
        return
    command = [ROOT / "build/release/bin/bandoneon", "run", "-n", "2", "-s", "1", "--"]
    environment = {"PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1", **os.environ}
    sys.exit(
        subprocess.run(
            [*map(str, command), sys.executable, __file__, *sys.argv[1:]], env=environment
        ).returncode
    )


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tensors", type=int, default=240)
    parser.add_argument("--side", type=int, default=32, help="a tensor has side x side elements")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=20, help="of each way in a round")
    parser.add_argument("--push", default="none")
    parser.add_argument("--pull", default="none")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--store", type=int, default=29531, help="port of gloo's store")
    parser.add_argument("--profile", help="writes rank 0's profile of DistributedOptimizer there")
    return parser.parse_args()


def work(options):
    import torch
    import torch.distributed as dist

    import bandoneon.torch as bdn

    torch.set_num_threads(1)
    bdn.init()
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{options.store}",
        rank=bdn.rank(),
        world_size=bdn.size(),
    )

    class Chain(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            shape = (options.side, options.side)
            self.layers = torch.nn.ParameterList(
                torch.nn.Parameter(torch.randn(shape) / options.side**0.5)
                for _ in range(options.tensors)
            )

        def forward(self, x):
            for layer in self.layers:
                x = x @ layer
            return x

    batch = torch.randn(4, options.side)

    def trainer(wrap):
        model = Chain()
        model, optimizer = wrap(model, torch.optim.SGD(model.parameters(), lr=1e-4))

        def step():
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()

        return step

    def distributed(model, optimizer):
        return model, bdn.DistributedOptimizer(
            optimizer, model.named_parameters(), push=options.push, pull=options.pull
        )

    def ddp(model, optimizer):
        return torch.nn.parallel.DistributedDataParallel(model), optimizer

    # Linked only while it is timed, for the hooks of one would slow the others: each has its own model.
    ways = {
        "alone": trainer(lambda model, optimizer: (model, optimizer)),
        "bandoneon": trainer(distributed),
        "ddp": trainer(ddp),
    }
    times = {name: [] for name in ways}
    cpu = {name: [] for name in ways}
    for step in ways.values():
        for _ in range(5):
            step()
    for _ in range(options.rounds):
        for name, step in ways.items():
            bdn.barrier()
            start, cpu_start = time.perf_counter(), time.process_time()
            for _ in range(options.steps):
                step()
            times[name].append((time.perf_counter() - start) / options.steps)
            cpu[name].append((time.process_time() - cpu_start) / options.steps)
    if options.profile:
        profile(ways["bandoneon"], options, bdn.rank())
    if bdn.rank() == 0:
        report(times, cpu, options)
    bdn.barrier()
    dist.destroy_process_group()
    bdn.shutdown()


def profile(step, options, rank):
    import cProfile

    with cProfile.Profile() as profiler:
        for _ in range(options.steps):
            step()
    if rank == 0:
        profiler.dump_stats(options.profile)


def report(times, cpu, options):
    medians, cpu_medians = (
        {name: statistics.median(values) for name, values in each.items()} for each in (times, cpu)
    )
    cost, cpu_cost = (
        {
            name: 1e6 * (each[name] - each["alone"]) / options.tensors
            for name in ("bandoneon", "ddp")
        }
        for each in (medians, cpu_medians)
    )
    if options.json:
        facts = {
            "tensors": options.tensors,
            "elements": options.side**2,
            "push": options.push,
            "pull": options.pull,
            "ms_a_step": {name: [1e3 * t for t in values] for name, values in times.items()},
            "us_a_parameter": cost,
            "cpu_us_a_parameter": cpu_cost,
            "step_to_ddp": medians["bandoneon"] / medians["ddp"],
        }
        print(json.dumps(facts))
        return
    print(f"{options.tensors} tensors of {options.side**2} elements, push {options.push}")
    for name, values in times.items():
        print(
            f"  {name:10} {1e3 * medians[name]:7.2f} ms a step"
            f" [{1e3 * min(values):.2f} {1e3 * max(values):.2f}], CPU {1e3 * cpu_medians[name]:.2f}"
            + (
                f"; a parameter {cost[name]:.1f} us, CPU {cpu_cost[name]:.1f}"
                if name in cost
                else ""
            )
        )
    print(f"  step to ddp's: {medians['bandoneon'] / medians['ddp']:.2f}")


if __name__ == "__main__":
    main()
