"""Tables of rows beside DistributedDataParallel with sparse gradients over gloo.

    build/venv/bin/python tests/bench/rows_beside_ddp.py --quick
    build/venv/bin/python tests/bench/rows_beside_ddp.py --rates 100,1000 --rounds 15 --json rows.json

Each worker looks 16,384 ids up in a table of 200,000 rows of 64 elements, ids by Zipf 1.05, and makes a step: by DDP
on nn.Embedding(sparse=True), by Links(sparse="rows") and "dense", and by a table that servers hold, whose next rows
come with the answer. Two namespaces of the network have two workers and a server each, behind a link that htb holds
to the rate (needs root and `ip`; elsewhere all is one machine's, and the rate is left out). All ways are taken in
turns within one run; medians, and the spread in brackets. Bytes are those that a worker receives in a step: payloads
with their headers, or, of DDP, what gloo's sparse all-reduce gives each.

The ways "wanted, none" and "fetched, none" are taken where they are named alone: by how much a step, 20 ms of dense
work and the look-up of the next batch take longer than the work.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from compare import BIN, NETWORK, Processes, environment, hold_to, hosts, say, servers_cpu, summary

ROWS, WIDTH, LOOKUPS, ZIPF = 200_000, 64, 16_384, 1.05
HOSTS, EACH = 2, 2
WAYS = (
    "DDP, sparse, gloo",
    "served, none",
    "served, int8",
    "served, int4",
    "rows, none",
    "rows, int4",
    "dense, int4",
)


def main():
    options = parse()
    if "BANDONEON_RANK" in os.environ:
        return worker(options)
    facts = []
    with hosts(HOSTS) as names:
        for mbit in options.rates if names else [0]:
            say(f"rows: {HOSTS * EACH} workers, " + (f"{mbit} Mbit/s" if names else "one machine, no rate"))
            facts.append({"mbit_per_s": mbit, "ways": run(options, mbit, names)})
    for fact in facts:
        show(fact, options.lookups)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(facts, indent=1) + "\n")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--rates", type=lambda text: [int(word) for word in text.split(",")], default=[100, 1000],
                        help="Mbit/s [100,1000]")
    parser.add_argument("--ways", type=lambda text: text.split(";"), default=list(WAYS), help="some of them, by ;")
    parser.add_argument("--lookups", type=int, default=LOOKUPS, help=f"of each worker in a step [{LOOKUPS}]")
    parser.add_argument("--json", help="write all figures to this file")
    for name in ("store", "out"):
        parser.add_argument("--" + name, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.rounds = options.rounds or (5 if options.quick else 15)
    return options


def run(options, mbit, names):
    count = HOSTS * EACH
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder, "out.json")
        work = [sys.executable, __file__, "--rounds", options.rounds, "--out", out, "--ways", ";".join(options.ways)]
        work += ["--lookups", options.lookups]
        if not names:
            command = [BIN / "bandoneon", "run", "-n", count, "-s", HOSTS, "--set", "log-level=error", "--", *work,
                       "--store", "127.0.0.1:0"]
            subprocess.run([str(word) for word in command], env=environment(), check=True, timeout=1800)
            return json.loads(out.read_text())
        hold_to(names, mbit)
        with Processes(f"{NETWORK}1:7000") as job:
            job.start_daemons(names, count)
            trainers = [
                job.start(names[rank // EACH], *work, "--store", f"{NETWORK}1:7200", BANDONEON_RANK=str(rank))
                for rank in range(count)
            ]
            job.await_end(trainers)
            return json.loads(out.read_text())


def worker(options):
    import torch
    import torch.distributed as dist

    import bandoneon
    import bandoneon.torch as bdn

    torch.set_num_threads(1)
    bdn.init()
    store = bdn.broadcast_object(free_store() if bdn.rank() == 0 else None) if options.store.endswith(":0") else options.store
    dist.init_process_group("gloo", init_method=f"tcp://{store}", rank=bdn.rank(), world_size=bdn.size())
    ids = Ids(torch, bdn.rank(), options.lookups)
    ways = {name: make(torch, bdn, name) for name in options.ways}
    seconds = {name: [] for name in ways}
    got = {name: [] for name in ways}
    cpu = {name: [] for name in ways}
    handle = bandoneon.default_worker()
    for turn in range(options.rounds + 2):  # the first warm up
        batch, following = ids.batch(turn), ids.batch(turn + 1)
        for name, way in ways.items():
            way.before(batch)
            bdn.barrier()
            before, used = handle.stats()["bytes_pulled"], time.process_time() + servers_cpu() / bdn.size()
            start = time.perf_counter()
            exposed = way.step(batch, following)
            bdn.barrier()  # The slowest worker's.
            took, used = time.perf_counter() - start, time.process_time() + servers_cpu() / bdn.size() - used
            took = took if exposed is None else exposed
            if turn >= 2:
                seconds[name].append(took)
                cpu[name].append(used)
                pulled = handle.stats()["bytes_pulled"] - before
                got[name].append(way.received(batch) if hasattr(way, "received") else pulled)
    if bdn.rank() == 0:
        facts = {
            name: {"seconds": summary(seconds[name]), "bytes": sum(got[name]) / len(got[name]), "cpu": summary(cpu[name])}
            for name in ways
        }
        pathlib.Path(options.out).write_text(json.dumps(facts))
    bdn.barrier()
    dist.destroy_process_group()
    bdn.shutdown()


def free_store():
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


class Ids:
    """Of the batches of one worker."""

    def __init__(self, torch, rank, lookups):
        self._torch, self._rank, self._lookups = torch, rank, lookups
        weights = 1.0 / torch.arange(1, ROWS + 1, dtype=torch.float64) ** ZIPF
        self._sums = (weights / weights.sum()).cumsum(0)

    def batch(self, turn):
        generator = self._torch.Generator().manual_seed(1000 * turn + self._rank)
        drawn = self._torch.rand(self._lookups, generator=generator, dtype=self._torch.float64)
        return self._torch.searchsorted(self._sums, drawn).clamp_(max=ROWS - 1)


def make(torch, bdn, name):
    kind, *rest = name.split(", ")
    ways = {"DDP": Ddp, "served": Served, "rows": Held, "dense": Held, "wanted": Exposed, "fetched": Exposed}
    return ways[kind](torch, bdn, kind, rest[-1])


def table(torch):
    torch.manual_seed(1)
    return torch.nn.Embedding(ROWS, WIDTH, sparse=True)


class Ddp:
    def __init__(self, torch, bdn, kind, codec):
        self._torch, self._size = torch, bdn.size()
        self._model = torch.nn.parallel.DistributedDataParallel(table(torch))
        self._sgd = torch.optim.SGD(self._model.parameters(), lr=0.01)

    def before(self, batch):
        self._sgd.zero_grad()

    def step(self, batch, following):
        self._model(batch).square().mean().backward()
        self._sgd.step()

    def received(self, batch):
        # The others' coalesced indices and values, of which each worker has about as many.
        return (self._size - 1) * len(self._torch.unique(batch)) * (8 + 4 * WIDTH)


class Held:
    """Links(sparse=): every worker holds the table."""

    def __init__(self, torch, bdn, kind, codec):
        self._model = table(torch)
        sgd = torch.optim.SGD(self._model.parameters(), lr=0.01)
        links = bdn.Links(sparse=kind, push=codec, pull=codec, prefix=f"{kind}.{codec}.")
        self._optimizer = bdn.DistributedOptimizer(sgd, self._model, links=links)

    def before(self, batch):
        self._optimizer.zero_grad()

    def step(self, batch, following):
        self._model(batch).square().mean().backward()
        self._optimizer.step()


class Served:
    def __init__(self, torch, bdn, kind, codec):
        from bandoneon.torch import rows

        self._model = rows.Embedding(ROWS, WIDTH, init="normal", init_value=1.0)
        self._optimizer = rows.RowOptimizer(self._model, lr=0.01, push=codec, pull=codec, prefix=f"{kind}.{codec}.")

    def before(self, batch):
        self._optimizer.zero_grad()

    def step(self, batch, following):
        self._model(batch).square().mean().backward()
        self._optimizer.step(wanted=following)
        self._optimizer.settle()  # So that all of the exchange is in the time.


class Exposed(Served):
    """A step, 20 ms of dense work, and the look-up of the next batch, whose rows come with the answer to the step or
    are fetched: the time of it beyond the work."""

    WORK = 0.02

    def __init__(self, torch, bdn, kind, codec):
        super().__init__(torch, bdn, kind, codec)
        self._is_wanted = kind == "wanted"

    def step(self, batch, following):
        self._model(batch).square().mean().backward()
        begin = time.perf_counter()
        self._optimizer.step(wanted=following if self._is_wanted else None)
        time.sleep(self.WORK)
        self._model(following)
        return time.perf_counter() - begin - self.WORK


def show(fact, lookups):
    rate = f"{fact['mbit_per_s']} Mbit/s" if fact["mbit_per_s"] else "one machine"
    print(f"\n{lookups} look-ups a worker, {ROWS} rows of {WIDTH}, {HOSTS * EACH} workers, {rate}")
    base = fact["ways"].get(WAYS[0])
    print(f"  {'':20}{'ms a step':>26}{'times':>8}{'kB received':>14}{'fewer':>8}{'CPU ms':>9}")
    for name, way in fact["ways"].items():
        time_of, nbytes = way["seconds"], way["bytes"]
        faster = f"{base['seconds']['median'] / time_of['median']:8.2f}" if base else ""
        fewer = f"{base['bytes'] / nbytes:8.1f}" if base and nbytes else ""
        print(
            f"  {name:20}{time_of['median'] * 1e3:10.1f} [{time_of['least'] * 1e3:6.1f} {time_of['greatest'] * 1e3:6.1f}]"
            f"{faster}{nbytes / 1e3:14.1f}{fewer}{way['cpu']['median'] * 1e3:9.1f}"
        )


if __name__ == "__main__":
    main()
