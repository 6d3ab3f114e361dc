"""Bandoneon beside what people use: the same tensors and the same training steps by torch.distributed over gloo.

    build/venv/bin/python tests/bench/compare.py --quick                    # ten minutes
    build/venv/bin/python tests/bench/compare.py tensors
    build/venv/bin/python tests/bench/compare.py steps --rates 100,1000 --workers 2,4 --plot steps.svg

`tensors`: 16 tensors of 4 MiB are averaged over two workers on this machine: by gloo's all-reduce as one
buffer and one by one, by MPI's over its shared memory where `mpicc` and `mpirun` are, and by push and pull; once with
push and pull over shared memory, and once over TCP. CPU time is that of all processes, a GB of one worker.

`links`: the same 16 tensors, over links as below: the rate, and for what is not compressed its share of what the
busiest link can carry: each host sends what its worker pushes elsewhere and what its server replies.

`steps`: whole training steps of examples/gpt.py's model and of a VGG-like classifier, by
DistributedDataParallel over gloo (float32, its fp16 and PowerSGD hooks) and by DistributedOptimizer. Each
worker has a network namespace of its own, with a server in it, behind a link that htb holds to the rate in
both directions (needs root and `ip`; elsewhere the transport pretends the rate for Bandoneon alone, and the
others are left out). Each step has the model's compute in it: `alone` is the step that exchanges nothing.

All ways are taken in turns within one run; medians, and the spread in brackets.
"""

import argparse
import contextlib
import json
import math
import os
import pathlib
import selectors
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import uuid

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("BANDONEON_BIN", ROOT / "build" / "release" / "bin"))
NETWORK = "10.198.0."
SMALL_LOSS = "ef(onebit(block=64))"
TICKS = os.sysconf("SC_CLK_TCK")


def main():
    options = parse()
    if "BANDONEON_RANK" in os.environ:
        return {"tensors": tensors_worker, "links": links_worker, "steps": steps_worker}[options.what](options)
    facts = {}
    if options.what in (None, "tensors"):
        facts["tensors"] = run_tensors(options)
        print_tensors(facts["tensors"])
    if options.what in (None, "links"):
        facts["links"] = run_links(options)
        print_links(facts["links"])
    if options.what in (None, "steps"):
        facts["steps"] = run_steps(options)
        print_steps(facts["steps"])
        print_crossings(facts["steps"])
        if options.plot:
            plot_steps(facts["steps"], options.plot)
            print(f"drawn: {options.plot}")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(facts, indent=1) + "\n")


def parse():
    def numbers(text):
        return [int(word) for word in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["tensors", "links", "steps"], help="one of them; else all")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, workers and rates")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--rates", type=numbers, help="Mbit/s [100,1000,10000]")
    parser.add_argument("--workers", type=numbers, help="of `steps` [2,4; quick: 2]")
    parser.add_argument("--models", type=lambda text: text.split(","), default=["gpt", "vgg"])
    parser.add_argument("--json", help="write all figures to this file")
    parser.add_argument("--plot", help="draw step times by link rate into this file")
    for name in ("store", "model", "rate", "out", "transport", "mpi"):
        parser.add_argument("--" + name, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.rounds = options.rounds or (5 if options.quick else 11)
    options.rates = options.rates or [100, 1000, 10000]
    options.workers = options.workers or ([2] if options.quick else [2, 4])
    return options


def summary(values):
    return {"median": statistics.median(values), "least": min(values), "greatest": max(values)}


# ---- The same tensors


TENSORS, ELEMENTS = 16, 1 << 20


def run_tensors(options):
    facts = {}
    for transport in ("auto", "network"):
        way = "TCP" if transport == "network" else "shared memory"
        say(f"tensors: 16 of 4 MiB, two workers, one server, over {way}")
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder, "out.json")
            command = [BIN / "bandoneon", "run", "-n", 2, "-s", 1, "--set", "log-level=error", "--set",
                       f"transport={transport}", "--", sys.executable, __file__, "tensors", "--rounds", options.rounds,
                       "--store", free_port(), "--out", out, "--transport", transport]
            if transport == "auto":
                command += mpi_arguments(folder)
            subprocess.run([str(word) for word in command], env=environment(), check=True, timeout=600)
            facts[way] = json.loads(out.read_text())
    return facts


def mpi_arguments(folder):
    """What tells a worker of the MPI program, which is built into `folder`; nothing where there is no MPI."""
    if shutil.which("mpicc") is None or shutil.which("mpirun") is None:
        say("tensors: no mpicc and mpirun here, so MPI is left out")
        return []
    program = pathlib.Path(folder, "mpi_allreduce")
    call("mpicc", "-O3", "-march=native", pathlib.Path(__file__).with_name("mpi_allreduce.c"), "-o", program)
    return ["--mpi", program]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def tensors_worker(options):
    import torch
    import torch.distributed as dist

    import bandoneon
    import bandoneon.torch as bdn

    torch.set_num_threads(1)
    bdn.init()
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{options.store}", rank=bdn.rank(),
                            world_size=bdn.size())
    torch.manual_seed(bdn.rank())
    fresh = torch.randn(TENSORS, ELEMENTS)
    data = fresh.clone()

    def by_push(codec):
        return pusher(bandoneon.default_worker(), data, codec)

    def one_buffer():
        dist.all_reduce(data)
        data.div_(bdn.size())

    def one_by_one():
        for work in [dist.all_reduce(row, async_op=True) for row in data]:
            work.wait()
        data.div_(bdn.size())

    def one_buffer_of(dtype):
        def exchange():
            small = data.to(dtype).div_(bdn.size())
            dist.all_reduce(small)
            data.copy_(small)

        return exchange

    ways = {"gloo, one buffer": one_buffer}
    if options.transport == "auto":
        ways |= {"gloo, 16 tensors": one_by_one, "gloo, fp16 buffer": one_buffer_of(torch.float16),
                 "gloo, bf16 buffer": one_buffer_of(torch.bfloat16)}
    ways |= {"push and pull, none": by_push("none"), "push and pull, fp16": by_push("fp16"),
             "push and pull, onebit": by_push("onebit"), "push and pull, ef(onebit)": by_push("ef(onebit)"),
             "push and pull, ef(topk 1 %)": by_push("ef(topk(ratio=0.01))")}
    seconds = {name: [] for name in ways}
    cpu = {name: [] for name in ways}
    mpi = Mpi(options.mpi) if options.mpi and bdn.rank() == 0 else None
    if mpi:
        seconds[mpi.NAME], cpu[mpi.NAME] = [], []
    for turn in range(options.rounds + 2):
        warm = turn >= 2
        for name, exchange in ways.items():
            data.copy_(fresh)
            bdn.barrier()
            cpu_before = torch.tensor(time.process_time() + (servers_cpu() if bdn.rank() == 0 else 0))
            start = time.perf_counter()
            exchange()
            took = torch.tensor(time.perf_counter() - start)
            bdn.barrier()
            cpu_after = torch.tensor(time.process_time() + (servers_cpu() if bdn.rank() == 0 else 0))
            used = (cpu_after - cpu_before).double()
            dist.all_reduce(took, dist.ReduceOp.MAX)
            dist.all_reduce(used)
            if warm:
                seconds[name].append(took.item())
                cpu[name].append(used.item())
        if mpi:
            took, used = mpi.turn()
            if warm:
                seconds[mpi.NAME].append(took)
                cpu[mpi.NAME].append(used)
        bdn.barrier()
    if mpi:
        mpi.close()
    gb = fresh.numel() * 4 / 1e9
    if bdn.rank() == 0:
        pathlib.Path(options.out).write_text(json.dumps({
            name: {"gb_per_s": summary([gb / s for s in seconds[name]]),
                   "cpu_s_per_gb": sum(cpu[name]) / len(cpu[name]) / bdn.size() / gb} for name in seconds}))
    leave(bdn, dist)


def leave(bdn, dist):
    """As a worker, once all are here."""
    bdn.barrier()
    if dist.is_initialized():
        dist.destroy_process_group()
    bdn.shutdown()


class Mpi:
    """Two processes of mpi_allreduce.c, which wait between turns."""

    NAME = "MPI, one buffer"

    def __init__(self, program):
        self.process = subprocess.Popen(
            ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "2", program],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def turn(self):
        """Seconds of the slowest process, CPU seconds of both."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        seconds, cpu = self.process.stdout.readline().split()
        return float(seconds), float(cpu)

    def close(self):
        self.process.stdin.close()
        self.process.wait(30)


def pusher(worker, data, codec):
    """What exchanges all rows of `data`, compressed by `codec` both ways."""
    from bandoneon.calls import Declaration

    names = [f"{codec}.{i}" for i in range(TENSORS)]
    ids = worker.declare([Declaration(name, ELEMENTS, push=codec, pull=codec) for name in names])

    def exchange():
        tickets = [worker.push(key, row.data_ptr(), keep=row) for key, row in zip(ids, data)]
        for ticket in tickets:
            worker.wait(ticket)

    return exchange


def servers_cpu():
    """CPU seconds so far of this job's servers: our siblings."""
    total = 0.0
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            before, after = stat.read_text().rsplit(")", 1)
            fields = after.split()
            if "(bandoneon-serve" in before and int(fields[1]) == os.getppid():
                total += (int(fields[11]) + int(fields[12])) / TICKS
    return total


def print_tensors(facts):
    for way, ways in facts.items():
        print(f"{'push and pull over ' + way:34}{'GB/s a worker':>28}{'CPU s/GB':>10}")
        for name, fact in ways.items():
            rate = fact["gb_per_s"]
            print(f"  {name:32}{rate['median']:10.3f} [{rate['least']:6.3f} {rate['greatest']:6.3f}] "
                  f"{fact['cpu_s_per_gb']:10.2f}")


# ---- The same tensors over slow links

# Of a link's bits, what frames of Ethernet, IP and TCP leave.
GOODPUT = 1448 / 1514


def run_links(options):
    rows = []
    workers = 2
    with hosts(workers) as names:
        for rate in [rate for rate in options.rates if rate >= 1000] or options.rates:  # slower ones take minutes
            say(f"links: {workers} workers, {rate} Mbit/s" + ("" if names else ", pretended"))
            row = run_job(options, "links", "", workers, rate, names)
            rows.append({"mbit_per_s": rate, "emulated": "htb" if names else "transport", "ways": row})
    return rows


def links_worker(options):
    import torch
    import torch.distributed as dist

    import bandoneon
    import bandoneon.torch as bdn

    torch.set_num_threads(1)
    bdn.init()
    data = torch.zeros(TENSORS, ELEMENTS)
    ways = {}
    if options.store is not None:
        dist.init_process_group("gloo", init_method=f"tcp://{options.store}", rank=bdn.rank(), world_size=bdn.size())
        ways["gloo, one buffer"] = lambda: dist.all_reduce(data)
    ways |= {f"push and pull, {codec}": pusher(bandoneon.default_worker(), data, codec)
             for codec in ("none", "fp16", "ef(onebit)")}
    seconds = {name: [] for name in ways}
    for turn in range(options.rounds + 1):  # the first warms up
        for name, exchange in ways.items():
            data.normal_(generator=torch.Generator().manual_seed(turn))
            bdn.barrier()
            start = time.perf_counter()
            exchange()
            bdn.barrier()  # the slowest worker's
            if turn >= 1:
                seconds[name].append(time.perf_counter() - start)
    if bdn.rank() == 0:
        gb = data.numel() * 4 / 1e9
        # Ring and servers alike: a host sends (n - 1) / n of the bytes, twice.
        allowed = int(options.rate) * GOODPUT / 8e3 / (2 * (bdn.size() - 1) / bdn.size())
        facts = {name: {"gb_per_s": summary([gb / s for s in seconds[name]])} for name in ways}
        for name, fact in facts.items():
            if name.endswith(("one buffer", "none")):
                fact["share_of_link"] = fact["gb_per_s"]["median"] / allowed
        pathlib.Path(options.out).write_text(json.dumps(facts))
    leave(bdn, dist)


def print_links(rows):
    for row in rows:
        note = "" if row["emulated"] == "htb" else ", a rate that the transport pretends"
        print(f"\n16 tensors of 4 MiB, 2 workers, {row['mbit_per_s']} Mbit/s{note}")
        for name, fact in row["ways"].items():
            rate = fact["gb_per_s"]
            share = f"{fact['share_of_link']:8.0%} of the link" if "share_of_link" in fact else ""
            print(f"  {name:32}{rate['median']:10.3f} GB/s a worker [{rate['least']:6.3f} {rate['greatest']:6.3f}]{share}")


# ---- Training steps over slow links


def run_steps(options):
    rows = []
    for model in options.models:
        for workers in options.workers:
            with hosts(workers) as names:
                for rate in options.rates:
                    say(f"steps: {model}, {workers} workers, {rate} Mbit/s" + ("" if names else ", pretended"))
                    row = run_job(options, "steps", model, workers, rate, names)
                    rows.append({"model": model, "workers": workers, "mbit_per_s": rate,
                                 "emulated": "htb" if names else "transport", "ways": row})
    return rows


@contextlib.contextmanager
def hosts(count):
    """Names of network namespaces with the addresses NETWORK + 1, 2, ..., joined by a bridge; none where they
    cannot be made."""
    if shutil.which("ip") is None or shutil.which("tc") is None or os.geteuid() != 0:
        yield []
        return
    tag = "bdc" + uuid.uuid4().hex[:6]
    switch, names = tag + "s", [f"{tag}{i}" for i in range(count)]
    made = []
    try:
        for name in [switch, *names]:
            call("ip", "netns", "add", name)
            made.append(name)
        call("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
        call("ip", "-n", switch, "link", "set", "bridge", "up")
        for i, name in enumerate(names):
            call("ip", "-n", name, "link", "add", "net", "type", "veth", "peer", "name", name, "netns", switch)
            call("ip", "-n", switch, "link", "set", name, "master", "bridge", "up")
            call("ip", "-n", name, "addr", "add", f"{NETWORK}{i + 1}/24", "dev", "net")
            call("ip", "-n", name, "link", "set", "net", "up")
            call("ip", "-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "del", name], check=False)


def call(*command):
    subprocess.run([str(word) for word in command], check=True, capture_output=True)


def hold_to(names, mbit):
    """Both directions of each host's link to this rate. A burst of 60 us of it leaves the rate true."""
    switch = names[0][:-1] + "s"
    for namespace, device in [(name, "net") for name in names] + [(switch, name) for name in names]:
        burst = max(1600, mbit * 60)
        subprocess.run(["tc", "-n", namespace, "qdisc", "del", "dev", device, "root"], capture_output=True, check=False)
        call("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "handle", "1:", "htb", "default", "1")
        call("tc", "-n", namespace, "class", "add", "dev", device, "parent", "1:", "classid", "1:1", "htb", "rate",
             f"{mbit}mbit", "burst", burst, "cburst", burst, "quantum", 60000)


def run_job(options, what, model, workers, mbit, names):
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder, "out.json")
        work = [sys.executable, __file__, what, "--rounds", options.rounds, "--model", model, "--rate", mbit, "--out", out]
        if not names:
            command = [BIN / "bandoneon", "run", "-n", workers, "-s", workers, "--link", f"{mbit}mbit", "--set",
                       "log-level=error", "--", *work]
            subprocess.run([str(word) for word in command], env=environment(), check=True, timeout=1800)
            return json.loads(out.read_text())
        hold_to(names, mbit)
        with Processes(f"{NETWORK}1:7000") as job:
            job.start_daemons(names, workers)
            trainers = [job.start(name, *work, "--store", f"{NETWORK}1:7200", BANDONEON_RANK=str(i))
                        for i, name in enumerate(names)]
            job.await_end(trainers)
            return json.loads(out.read_text())


class Processes:
    """The processes of a job in namespaces of the network, which end with the context."""

    def __init__(self, scheduler, interface="net", **more):
        self._scheduler = scheduler
        # A private network whose only members are these processes.
        self._env = environment(BANDONEON_TOKEN=uuid.uuid4().hex, BANDONEON_INSECURE="true", BANDONEON_SCHEDULER=scheduler,
                                BANDONEON_LOG_LEVEL="error", GLOO_SOCKET_IFNAME=interface, **more)
        self._started = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self._started:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self._started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()

    def start(self, name, *command, **more):
        words = ["ip", "netns", "exec", name, *(str(word) for word in command)]
        self._started.append(subprocess.Popen(words, env=self._env | more))
        return self._started[-1]

    def start_daemons(self, names, workers):
        """A scheduler in the first namespace, and a server in each."""
        self.start_scheduler(names[0], workers, len(names))
        for rank in range(len(names)):
            self.start_server(names[rank], f"{NETWORK}{rank + 1}:7100", rank)

    def start_scheduler(self, name, workers, servers, *more):
        self.start(name, BIN / "bandoneon-scheduler", "--listen", self._scheduler, "--workers", workers, "--servers", servers,
                   *more)

    def start_server(self, name, address, rank):
        self.start(name, BIN / "bandoneon-server", "--listen", f"tcp://{address}", "--rank", rank,
                   BANDONEON_DATA_SECURITY="authenticated")

    def await_end(self, trainers, seconds=1800):
        """Until all trainers have ended; no further than anybody's failure."""
        deadline = time.monotonic() + seconds
        with selectors.DefaultSelector() as ends, contextlib.ExitStack() as descriptors:
            for process in self._started:
                descriptor = os.pidfd_open(process.pid)  # can be read once it has ended
                descriptors.callback(os.close, descriptor)
                ends.register(descriptor, selectors.EVENT_READ)
            while any(process.poll() is None for process in trainers):
                ended = ends.select(deadline - time.monotonic())
                if not ended or any(process.poll() not in (None, 0) for process in self._started):
                    raise SystemExit("a process failed, or all took too long")
                for key, _ in ended:
                    ends.unregister(key.fd)


def vgg_like(torch):
    """Convolutions that are quick, and 8 million parameters behind them, as VGG has its."""
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 128, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10))


def steps_worker(options):
    import torch
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    import bandoneon.torch as bdn

    torch.set_num_threads(1)
    bdn.init()
    by_gloo = options.store is not None
    if by_gloo:
        dist.init_process_group("gloo", init_method=f"tcp://{options.store}", rank=bdn.rank(), world_size=bdn.size())
    if options.model == "vgg":
        teacher = torch.randn(10, 3 * 32 * 32, generator=torch.Generator().manual_seed(5))

        def batches():
            generator = torch.Generator().manual_seed(100 + bdn.rank())
            while True:
                images = torch.randn(8, 3, 32, 32, generator=generator)
                yield images, (images.flatten(1) @ teacher.T).argmax(1)

        def make():
            return vgg_like(torch)

        def loss_of(model, batch):
            return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])

        rate = 0.01
    else:
        sys.path.insert(0, str(ROOT / "examples"))
        import gpt

        text = gpt.load_text(None)[0]

        def batches():
            generator = torch.Generator().manual_seed(100 + bdn.rank())
            while True:
                yield gpt.sample(text, generator)

        make = gpt.GPT

        def loss_of(model, batch):
            return torch.nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

        rate = 0.05

    def trainer(wrap):
        torch.manual_seed(1)
        model = make()
        model, optimizer = wrap(model, torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, nesterov=True))
        data = batches()

        def step():
            batch = next(data)
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            optimizer.step()
            return loss.item()

        return step

    def ddp(hook=None, state=None, **options):
        def wrap(model, optimizer):
            model = torch.nn.parallel.DistributedDataParallel(model, **options)
            if hook is not None:
                model.register_comm_hook(state() if state else None, hook)
            return model, optimizer

        return wrap

    def ddp_power_sgd(model, optimizer):
        # One bucket: the hook's collectives of several meet in different orders over gloo, which ends the process.
        first, dist._DEFAULT_FIRST_BUCKET_BYTES = dist._DEFAULT_FIRST_BUCKET_BYTES, 1 << 40
        try:
            return ddp(powerSGD_hook.powerSGD_hook, power_sgd, bucket_cap_mb=1 << 20)(model, optimizer)
        finally:
            dist._DEFAULT_FIRST_BUCKET_BYTES = first

    def push(codec):
        def wrap(model, optimizer):
            momentum = 0.9 if codec.startswith("ef") else 0.0
            if momentum:  # the same, before error feedback, so that what is owed is owed once
                optimizer = torch.optim.SGD(model.parameters(), lr=rate)
            return model, bdn.DistributedOptimizer(optimizer, model.named_parameters(prefix=codec),
                                                   links=bdn.Links(push=codec, pull=codec, momentum=momentum))

        return wrap

    def power_sgd():
        return powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)

    ways = {"alone": lambda model, optimizer: (model, optimizer)}
    if by_gloo:
        ways |= {"DDP, fp32": ddp(), "DDP, fp16 hook": ddp(default_hooks.fp16_compress_hook),
                 "DDP, PowerSGD hook": ddp_power_sgd}
    ways |= {"push and pull, none": push("none"), "push and pull, fp16": push("fp16"),
             "push and pull, " + SMALL_LOSS: push(SMALL_LOSS)}
    steps = {name: trainer(wrap) for name, wrap in ways.items()}
    seconds = {name: [] for name in ways}
    losses = {name: [] for name in ways}
    for turn in range(options.rounds + 3):
        for name, step in steps.items():
            bdn.barrier()
            start = time.perf_counter()
            losses[name].append(step())
            bdn.barrier()  # the slowest worker's
            if turn >= 3:  # PowerSGD begins after two dense steps
                seconds[name].append(time.perf_counter() - start)
    if bdn.rank() == 0:
        pathlib.Path(options.out).write_text(json.dumps({
            name: {"step_s": summary(seconds[name]), "loss": losses[name][-1]} for name in ways}))
    leave(bdn, dist)


def print_steps(rows):
    for row in rows:
        note = "" if row["emulated"] == "htb" else ", a rate that the transport pretends"
        print(f"\n{row['model']}, {row['workers']} workers, {row['mbit_per_s']} Mbit/s{note}")
        ways = row["ways"]
        reference = ways.get("DDP, fp32")
        for name, facts in ways.items():
            step = facts["step_s"]
            times = f"{reference['step_s']['median'] / step['median']:8.2f} x DDP" if reference else ""
            print(f"  {name:38}{1e3 * step['median']:9.1f} ms [{1e3 * step['least']:8.1f} {1e3 * step['greatest']:8.1f}]"
                  f"{times}   loss {facts['loss']:.3f}")


def crossings(rows, name, other="DDP, fp32"):
    """Where the step times of two ways cross: (Mbit/s, ms), on straight lines between logarithms. `rows`: of one
    model and number of workers."""
    points = []
    for row in sorted(rows, key=lambda row: row["mbit_per_s"]):
        if other not in row["ways"]:
            return []
        ours, theirs = (math.log(row["ways"][way]["step_s"]["median"]) for way in (name, other))
        points.append((math.log(row["mbit_per_s"]), ours, theirs))
    found = []
    for (rate, ours, theirs), (next_rate, next_ours, next_theirs) in zip(points, points[1:]):
        before, after = ours - theirs, next_ours - next_theirs
        if before * after < 0:
            share = before / (before - after)
            found.append((math.exp(rate + share * (next_rate - rate)), 1e3 * math.exp(ours + share * (next_ours - ours))))
    return found


def print_crossings(rows):
    for group, mine in groups_of(rows):
        for name in mine[0]["ways"]:
            for rate, ms in crossings(mine, name):
                print(f"{group[0]}, {group[1]} workers: {name} crosses DDP, fp32 at {rate:.0f} Mbit/s and {ms:.0f} ms")


def groups_of(rows):
    """Rows by model and number of workers."""
    for group in sorted({(row["model"], row["workers"]) for row in rows}):
        yield group, [row for row in rows if (row["model"], row["workers"]) == group]


def plot_steps(rows, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    groups = list(groups_of(rows))
    figure, axes = pyplot.subplots(1, len(groups), figsize=(5 * len(groups), 4), squeeze=False)
    for axis, ((model, workers), mine) in zip(axes[0], groups):
        for name in mine[0]["ways"]:
            axis.plot([row["mbit_per_s"] for row in mine],
                      [1e3 * row["ways"][name]["step_s"]["median"] for row in mine], marker="o", label=name,
                      color="black" if name == "alone" else None, linestyle="--" if name.startswith("DDP") else "-")
            for crossing in crossings(mine, name):
                axis.plot(*crossing, marker="x", markersize=9, color="black", linestyle="none", zorder=3)
        axis.set(xscale="log", yscale="log", xlabel="link, Mbit/s", ylabel="ms a step",
                 title=f"{model}, {workers} workers")
        axis.grid(True, which="both", alpha=0.3)
    axes[0][-1].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path)


def environment(**more):
    env = {name: value for name, value in os.environ.items() if not name.startswith("BANDONEON_")}
    return env | {"PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1"} | more


def say(text):
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
