"""Exchanges with a server that is far away: by one connection, by as many as `connections=auto` makes, and by gloo, which
has one connection, or eight where it is told of eight interfaces.

    build/venv/bin/python tests/bench/long_distance.py
    build/venv/bin/python tests/bench/long_distance.py --round-trip 50 --loss 0.1 --ways 1,8,auto

Two network namespaces are joined by a relay (distance.c) that delays packets, holds them to a rate and loses some. One worker
is in each; the scheduler and the servers are beside the second one. Tensors of 4 MB, 100 MB together, are exchanged
uncompressed. Each way is a job of its own, and all ways run in turns; medians over all steps but each job's first, and the
spread. The limit is the time that the link takes for the bytes of one worker in one direction.

Needs root, `ip`, a C compiler and /dev/net/tun. The relay wants a processor: figures of a machine with other work are its own.
"""

import argparse
import contextlib
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import uuid

from compare import Processes, call, say, summary

HERE, THERE = "10.199.0.1", "10.199.0.2"
ELEMENTS = 1_000_000
# Of 1,500 bytes, 52 are headers of IP and TCP.
GOODPUT = 1448 / 1500


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--round-trip", type=float, default=100, help="milliseconds")
    parser.add_argument("--rate", type=float, default=1000, help="Mbit/s in each direction")
    parser.add_argument("--loss", type=float, default=0, help="percent of packets")
    parser.add_argument("--queue", type=int, default=12500, help="KiB that wait for the link in each direction")
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--partition-bytes", default="4MiB")
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--ways", default="1,auto,gloo,gloo8", help="settings of connections, gloo or gloo8")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4, help="of a job")
    parser.add_argument("--worker", choices=["push", "gloo", "gloo8"], help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return work(options)
    ways = options.ways.split(",")
    runs = {way: [] for way in ways}
    with far_apart(options) as names:
        for turn in range(options.rounds):
            for way in ways:
                say(f"round {turn + 1}: {way}")
                runs[way].append(run(options, way, names))
    limit = options.megabytes / (options.rate / 8 * GOODPUT)
    print(f"{options.megabytes} MB, round trip {options.round_trip:g} ms, {options.rate:g} Mbit/s, loss {options.loss:g} %, "
          f"{options.servers} servers; the link takes {limit:.2f} s")
    for way, jobs in runs.items():
        steps = summary([second for job in jobs for second in job["steps"][1:]])
        first = summary([job["steps"][0] for job in jobs])
        name = way if way.startswith("gloo") else f"connections={way}"
        made = "" if way.startswith("gloo") else f"; {max(job['connections'] for job in jobs)} connections"
        print(f"{name:18} {steps['median']:.2f} s a step ({steps['least']:.2f} to {steps['greatest']:.2f}), "
              f"{steps['median'] / limit:.2f} of the link; the first step {first['median']:.2f} s{made}")


@contextlib.contextmanager
def far_apart(options):
    """The names of two network namespaces with the addresses HERE and THERE."""
    tag = "bdf" + uuid.uuid4().hex[:6]
    names = [tag + "a", tag + "b"]
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as undo:
        program = pathlib.Path(folder, "distance")
        call("cc", "-O2", pathlib.Path(__file__).with_name("distance.c"), "-o", program)
        for name in names:
            call("ip", "netns", "add", name)
            undo.callback(subprocess.run, ["ip", "netns", "del", name], check=False)
        words = [program, names[0], HERE, names[1], THERE, options.round_trip / 2, options.rate, options.queue, options.loss]
        urgent = ["chrt", "-f", "20"] if shutil.which("chrt") else []
        relay = subprocess.Popen([*urgent, *map(str, words)], stdout=subprocess.PIPE)
        undo.callback(relay.wait)
        undo.callback(relay.kill)
        if relay.stdout.readline() != b"up\n":
            raise SystemExit("long_distance: there is no relay: is there a /dev/net/tun, and is this root?")
        yield names


def run(options, way, names):
    """Runs a job of two workers, and returns the step times of the one that is far from the servers."""
    is_ours = not way.startswith("gloo")
    interface = ",".join(["far"] * (8 if way == "gloo8" else 1))
    more = {"BANDONEON_CONNECTIONS": way} if is_ours else {}
    with tempfile.TemporaryDirectory() as folder, Processes(f"{THERE}:7000", interface, **more) as job:
        out = pathlib.Path(folder, "out.json")
        if is_ours:
            job.start_scheduler(names[1], 2, options.servers, "--partition-bytes", options.partition_bytes)
            for rank in range(options.servers):
                job.start_server(names[1], f"{THERE}:{7100 + rank}", rank)
        program = [sys.executable, __file__, "--worker", "push" if is_ours else way, "--megabytes", options.megabytes,
                   "--steps", options.steps, "--out", out]
        job.await_end([job.start(name, *program, "--rank", rank, BANDONEON_RANK=str(rank)) for rank, name in enumerate(names)])
        return json.loads(out.read_text())


def work(options):
    import torch

    torch.set_num_threads(1)
    data = torch.full((options.megabytes // 4, ELEMENTS), float(options.rank), dtype=torch.float32, device="cpu")
    exchange, barrier, connections = (by_push if options.worker == "push" else by_gloo)(options, data)
    seconds = []
    for step in range(options.steps):
        barrier()
        data.fill_(float(options.rank + step))
        start = time.perf_counter()
        exchange()
        seconds.append(time.perf_counter() - start)
        if not bool((data == step + 0.5).all()):
            raise SystemExit(f"step {step}: the mean is wrong")
    barrier()
    facts = {"steps": seconds, "connections": connections()}
    if options.rank == 0:
        pathlib.Path(options.out).write_text(json.dumps(facts))


def by_push(options, data):
    import bandoneon
    import bandoneon.torch as bdn
    from bandoneon.calls import Declaration

    bdn.init()
    worker = bandoneon.default_worker()
    tensors = worker.declare([Declaration(f"t{i}", ELEMENTS) for i in range(len(data))])

    def exchange():
        tickets = [worker.push(tensor, row.data_ptr(), keep=row) for tensor, row in zip(tensors, data)]
        for ticket in tickets:
            worker.wait(ticket)

    return exchange, lambda: worker.barrier("step"), lambda: worker.stats()["server_connections"]


def by_gloo(options, data):
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"tcp://{THERE}:7200", rank=1 - options.rank, world_size=2)

    def exchange():
        # Each call takes the next one of several interfaces.
        parts = data if options.worker == "gloo8" else [data]
        for part in [dist.all_reduce(part, async_op=True) for part in parts]:
            part.wait()
        data.div_(2)

    return exchange, dist.barrier, lambda: 0


if __name__ == "__main__":
    main()
