"""Sharded models across two islands: FSDP2's own hybrid sharding over gloo, and Bandoneon between the islands.

    build/venv/bin/python tests/bench/hybrid_sharding.py
    build/venv/bin/python tests/bench/hybrid_sharding.py --rates 100 --rounds 11 --width 512

Each island is a network namespace with two ranks and a server, behind a link that htb holds to the rate in both directions
(needs root and `ip`). Each rank trains a perceptron of four square layers, sharded inside its island: natively by a mesh of
(replicate, shard), and by DistributedOptimizer over a mesh of (shard). All ways take their steps in turns within one run;
medians, and the spread. Bytes are those that a rank sends and receives across, by Bandoneon's count.
"""

import argparse
import json
import pathlib
import sys
import tempfile
import time

from compare import NETWORK, Processes, hold_to, hosts, say, summary

EACH = 2  # ranks of an island
SMALL = "ef(onebit(block=64))"
FOUR_BITS = "int4(hadamard=32)"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default="100,1000", help="Mbit/s")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        return work(options)
    for rate in map(int, options.rates.split(",")):
        with hosts(2) as names:
            if not names:
                raise SystemExit("hybrid_sharding: this needs root, ip and tc")
            say(f"{rate} Mbit/s")
            hold_to(names, rate)
            print_rows(rate, options.width, run(options, names))


def print_rows(rate, width, ways):
    native = ways["native"]["seconds"]
    print(f"{rate} Mbit/s, {4 * width * width / 1e6:.1f} M parameters, two islands of two ranks")
    for name, way in ways.items():
        own = way["seconds"]
        print(f"{name:28} {own['median']:.3f} s a step ({own['least']:.3f} to {own['greatest']:.3f}), "
              f"{own['median'] / native['median']:.2f} of native" + (f", {way['bytes'] / 1e6:.2f} MB a rank" if way["bytes"] else ""))


def run(options, names):
    """{way: its step times and bytes}, of rank 0."""
    with tempfile.TemporaryDirectory() as folder, Processes(f"{NETWORK}1:7000") as job:
        out = pathlib.Path(folder, "out.json")
        job.start_daemons(names, EACH * len(names))
        program = [sys.executable, __file__, "--rounds", options.rounds, "--width", options.width, "--out", out]
        job.await_end([job.start(names[rank // EACH], *program, "--rank", rank, BANDONEON_RANK=str(rank))
                       for rank in range(EACH * len(names))])
        return json.loads(out.read_text())


def work(options):
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    import bandoneon
    import bandoneon.torch as bdn
    from bandoneon.torch import sharded

    torch.set_num_threads(1)
    bdn.init()
    dist.init_process_group("gloo", init_method=f"tcp://{NETWORK}1:7200", rank=options.rank, world_size=2 * EACH)
    mesh = init_device_mesh("cpu", (2, EACH), mesh_dim_names=("island", "shard"))
    island = sharded.new_group(mesh["island"])

    def model(over):
        torch.manual_seed(0)
        layers = [torch.nn.Linear(options.width, options.width, bias=False) for _ in range(4)]
        whole = torch.nn.Sequential(*layers)
        for layer in layers:
            fully_shard(layer, mesh=over)
        return fully_shard(whole, mesh=over)

    def native():
        trained = model(mesh)
        return trained, torch.optim.SGD(trained.parameters(), lr=0.01, momentum=0.9)

    def ours(links, momentum=0.9):
        trained = model(mesh["shard"])
        inner = torch.optim.SGD(trained.parameters(), lr=0.01, momentum=momentum)
        return trained, bdn.DistributedOptimizer(inner, trained, links=links, worker=island)

    ways = {
        "native": native(),
        "none": ours(bdn.Links(prefix="none/")),
        FOUR_BITS: ours(bdn.Links(push=FOUR_BITS, pull=FOUR_BITS, prefix="int4/")),
        f"{SMALL}, momentum": ours(bdn.Links(push=SMALL, pull=SMALL, momentum=0.9, prefix="onebit/"), momentum=0.0),
    }
    seconds = {name: [] for name in ways}
    sent = dict.fromkeys(ways, 0)
    for turn in range(options.rounds + 2):
        for name, (trained, optimizer) in ways.items():
            x = torch.randn(8, options.width, generator=torch.Generator().manual_seed(100 * turn + options.rank))
            dist.barrier()
            before, start = traffic(bandoneon), time.perf_counter()
            optimizer.zero_grad()
            trained(x).square().mean().backward()
            optimizer.step()
            dist.barrier()
            if turn >= 2:
                seconds[name].append(time.perf_counter() - start)
                sent[name] += traffic(bandoneon) - before
    if options.rank == 0:
        facts = {name: {"seconds": summary(seconds[name]), "bytes": 0 if name == "native" else sent[name] / options.rounds}
                 for name in ways}
        pathlib.Path(options.out).write_text(json.dumps(facts))
    bdn.barrier("the end")


def traffic(bandoneon):
    stats = bandoneon.default_worker().stats()
    return stats["bytes_pushed"] + stats["bytes_pulled"]


if __name__ == "__main__":
    main()
