"""The figures of tables of rows, each beside the one to reach.

    build/venv/bin/python tests/bench/rows_figures.py --quick      # all of them, ten minutes on a quiet machine
    build/venv/bin/python tests/bench/rows_figures.py --parts wire,worker,server   # some

Bytes and rows do not depend on the machine. Times are CPU seconds, or those of two ways that take turns in one run:
medians, and the spread in brackets. `ddp` and `wanted` put workers in network namespaces whose links htb holds to a
rate (needs root and `ip`; elsewhere all is one machine's). `server` needs build/release/bin/rows_bench, `graph` and
`click` run the examples.
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
from compare import BIN, ROOT, environment, say, servers_cpu

from bandoneon import graph

LOOKUPS, ROWS, ZIPF = 16_384, 200_000, 1.05
PARTS = ("wire", "memory", "buckets", "server", "worker", "save", "idle", "ddp", "wanted", "graph", "click")


def main():
    options = parse()
    if "BANDONEON_RANK" in os.environ:
        return in_job(options)
    for part in options.parts:
        say(f"rows: {part}")
        begin = time.monotonic()
        {
            "server": run_server, "buckets": run_buckets, "ddp": run_ddp, "graph": run_graph, "click": run_click,
            "wanted": run_wanted,
        }.get(part, run_job)(options, part)  # fmt: skip
        say(f"rows: {part} took {time.monotonic() - begin:.0f} s")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, and fewer rows")
    parser.add_argument("--parts", type=lambda text: text.split(","), default=list(PARTS), help=",".join(PARTS))
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    options.rounds = 5 if options.quick else 15
    return options


def show(what, reached, to_reach):
    print(f"{what:72} {reached:>28}   {to_reach}", flush=True)


def spread(values, form="{:.2f}"):
    """The median, the least and the greatest."""
    return f"{form} ({form} to {form})".format(statistics.median(values), min(values), max(values))


def bandoneon_run(workers, servers, *command):
    words = [BIN / "bandoneon", "run", "-n", workers, "-s", servers, "--set", "log-level=error", "--", *command]
    done = subprocess.run(
        [str(word) for word in words], env=environment(), check=True, timeout=3000, stdout=subprocess.PIPE, text=True
    )
    return done.stdout


def run_job(options, part):
    quick = ["--quick"] if options.quick else []
    told = bandoneon_run(1, 1, sys.executable, __file__, "--parts", part, *quick)
    print(told.replace("[worker 0] ", ""), end="", flush=True)


def in_job(options):
    import torch

    import bandoneon.torch as bdn

    torch.set_num_threads(1)
    bdn.init()
    {"wire": wire, "memory": memory, "worker": worker_side, "save": save, "idle": idle}[options.parts[0]](options)
    bdn.shutdown()


def zipf_ids(count, seed, rows=ROWS):
    sums = np.cumsum(np.arange(1, rows + 1, dtype=np.float64) ** -ZIPF)
    drawn = np.searchsorted(sums / sums[-1], np.random.default_rng(seed).random(count))
    return np.minimum(drawn, rows - 1).astype(np.int64)


def hashed(ids):
    return (graph._mix(ids.astype(np.uint64) + np.uint64(1)) >> np.uint64(1)).astype(np.int64)


# ---- Bytes, rows and memory


def wire(options):
    """A step of one worker to one server, which holds four buckets: a frame each way for each of them."""
    import bandoneon
    from bandoneon.calls import Rows, Table

    worker = bandoneon.default_worker()
    # The codec packs 32 codes of a half byte each; of 16 alone each takes a byte.
    int4 = {16: 16 + 4, 64: 32 + 4, 128: 64 + 4}
    vectors = {"none": lambda w: 4 * w, "int8": lambda w: w + 4, "int4": int4.get}
    for kind, id_bytes in (("bounded", 2), ("hashed", 7)):
        pushed, wanted = (zipf_ids(LOOKUPS, seed) for seed in (1, 2))
        if kind == "hashed":
            pushed, wanted = hashed(pushed), hashed(wanted)
        rows, next_rows = len(np.unique(pushed)), len(np.unique(wanted))
        for codec, vector in vectors.items():
            for width in (16, 64, 128):
                bound = ROWS if kind == "bounded" else 0
                table = Table(f"{kind}.{codec}.{width}", width, rows=bound, push=codec, pull=codec)
                (number,) = worker.declare_tables([table])
                grads, out = np.ones((LOOKUPS, width), np.float32), np.empty((LOOKUPS, width), np.float32)
                before = worker.stats()
                ticket = worker.push_rows([Rows(number, pushed.ctypes.data, LOOKUPS, grads.ctypes.data,
                                                wanted.ctypes.data, LOOKUPS, out.ctypes.data)])  # fmt: skip
                worker.wait(ticket)
                after = worker.stats()
                sent, got = (after[name] - before[name] - 4 * 96 for name in ("bytes_pushed", "bytes_pulled"))
                bytes_of = vector(width)
                # A push has the ids of the rows and those that are wanted; a reply has the rows alone.
                sent /= rows * (id_bytes + bytes_of) + next_rows * id_bytes
                got /= next_rows * (id_bytes + bytes_of)
                show(f"bytes pushed and told, of m (id + vector): {kind} ids, {codec}, width {width}",
                     f"{sent:.3f}, {got:.3f}", "1.05")  # fmt: skip


def memory(options):
    import bandoneon
    from bandoneon.calls import Rows, Table

    worker = bandoneon.default_worker()
    count = 50_000 if options.quick else 200_000
    for rule, moments in (("sgd", 0), ("adagrad", 64), ("rowwise_adagrad", 1), ("adamw", 128)):
        (number,) = worker.declare_tables([Table(f"held.{rule}", 64, rule=rule)])
        before = held()
        ids, values = hashed(np.arange(count) * 7), np.zeros((count, 64), np.float32)
        ticket = worker.push_rows([Rows(number, ids.ctypes.data, count, values.ctypes.data)], learning_rate=0.1)
        worker.wait(ticket)
        show(f"bytes of memory a row of 64, {rule}, {count} rows",
             f"{(held() - before) / count:.0f}", f"{4 * (64 + moments) + 44}")  # fmt: skip


def held():
    """Bytes of rows of all servers, once a heartbeat has told them."""
    time.sleep(2.5)
    done = subprocess.run([str(BIN / "bandoneon"), "status", "--json"], check=True, stdout=subprocess.PIPE, text=True)
    return sum(node["held"]["rows"] for node in json.loads(done.stdout)["nodes"] if "held" in node)


def run_buckets(options, part):
    worst = []
    for seed in range(options.rounds):
        ids = np.unique(np.random.default_rng(seed).integers(0, 2**63, 100_000, dtype=np.uint64))
        counts = np.bincount((graph._mix(ids) >> np.uint64(64 - 5)).astype(np.int64), minlength=32)
        worst.append(counts.max() / counts.mean())
    show("largest of 32 buckets over the mean, 100,000 rows", spread(worst, "{:.3f}"), "1.06")


# ---- CPU


def run_server(options, part):
    rounds = "9" if options.quick else "31"
    done = subprocess.run([str(BIN / "rows_bench"), "--json", "--iterations", rounds],
                          check=True, stdout=subprocess.PIPE, text=True)  # fmt: skip
    for case in json.loads(done.stdout)["server"]:
        name = f"server's CPU a touched row and worker, {case['rule']}, {case['codec']}, times a plain loop's"
        bound = "3" if (case["rule"], case["codec"]) == ("adagrad", "none") else ""
        show(name, f"{case['ns'] / case['plain_ns']:.2f} ({case['ns']:.0f} ns)", bound)


def worker_side(options):
    """The thread's CPU of a push of 65,536 look-ups, which merges, splits and encodes them, beside torch's."""
    import torch

    import bandoneon
    from bandoneon.calls import Rows, Table

    worker = bandoneon.default_worker()
    count = 65_536
    (number,) = worker.declare_tables([Table("looked up", 64, rows=ROWS, push="int8", pull="int8")])
    ours, theirs = [], []
    for turn in range(2 * options.rounds + 1):
        ids, grads = zipf_ids(count, turn), np.full((count, 64), 0.01, np.float32)
        tensor, values = torch.from_numpy(ids), torch.from_numpy(grads)
        begin = time.thread_time()
        unique, inverse = torch.unique(tensor, return_inverse=True)
        torch.zeros(len(unique), 64).index_add_(0, inverse, values)
        between = time.thread_time()
        ticket = worker.push_rows([Rows(number, ids.ctypes.data, count, grads.ctypes.data)])
        end = time.thread_time()
        worker.wait(ticket)
        if turn:  # the first warms up
            theirs.append(between - begin)
            ours.append(end - between)
    times = statistics.median(ours) / statistics.median(theirs)
    show("worker: merge, split, encode 65,536 look-ups, int8, times unique + index_add_",
         f"{times:.2f} ({statistics.median(ours) * 1e3:.1f} ms)", "2")  # fmt: skip


def idle(options):
    import bandoneon
    from bandoneon.calls import Rows, Table

    worker = bandoneon.default_worker()
    (number,) = worker.declare_tables([Table("idle", 64, rule="adagrad")])
    ids, values = hashed(np.arange(50_000)), np.zeros((50_000, 64), np.float32)
    worker.wait(worker.push_rows([Rows(number, ids.ctypes.data, len(ids), values.ctypes.data)]))
    time.sleep(1)
    seconds = 10 if options.quick else 60
    before = time.process_time() + servers_cpu()
    time.sleep(seconds)
    show("cores of a worker and a server with a table, idle",
         f"{(time.process_time() + servers_cpu() - before) / seconds:.4f}", "0.005")  # fmt: skip


# ---- Checkpoints


def save(options):
    """Rows with Adagrad's sums beside the weights of a dense tensor of as many bytes, in turns."""
    import torch

    import bandoneon
    import bandoneon.torch as bdn
    from bandoneon.torch import rows

    count = 100_000 if options.quick else 1_000_000
    model = torch.nn.ModuleList([rows.Embedding(count, 64)])
    tables = rows.RowOptimizer(model, rule="adagrad", lr=0.1)
    dense = torch.nn.Linear(128, count, bias=False)
    served = bdn.ServerOptimizer(torch.optim.SGD(dense.parameters(), lr=0.1), dense)
    step_of(model, tables, np.arange(count))
    dense(torch.ones(1, 128)).sum().backward()
    served.step()
    worker = bandoneon.default_worker()
    whole, plain, changed = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder)
        for turn in range(3):
            begin = time.perf_counter()
            bdn.save(path / "rows", {"tables": tables}, rows_every=2)
            whole.append(time.perf_counter() - begin)
            before = size_of(path / "rows")
            begin = time.perf_counter()
            bdn.save(path / "dense", {"served": served})
            plain.append(time.perf_counter() - begin)
            some = np.arange(turn, count, 100)
            step_of(model, tables, some)
            bdn.save(path / "rows", {"tables": tables}, rows_every=2)
            changed.append((size_of(path / "rows") - before) / (len(some) * (4 * 130 + 8)))
            worker.barrier(f"saved {turn}")
    name = f"{count} rows of 64 with Adagrad's sums"
    show(f"a save of {name}, times that of a dense tensor", spread([a / b for a, b in zip(whole, plain)]), "2")
    show("bytes of a save of the hundredth that changed, of its records", spread(changed, "{:.4f}"), "1.1")


def step_of(model, tables, ids):
    import torch

    for first in range(0, len(ids), 50_000):
        tables.zero_grad()
        model[0](torch.from_numpy(ids[first : first + 50_000])).sum().backward()
        tables.step()
    tables.settle()


def size_of(folder):
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


# ---- Whole jobs


def run_ddp(options, part):
    words = [sys.executable, str(ROOT / "tests/bench/rows_beside_ddp.py"), *(["--quick"] if options.quick else [])]
    subprocess.run(words, check=True, env=environment(), timeout=3000)
    print("  to reach: bytes of served none 1/2.8, served int4 1/18, rows int4 1/6 of DDP's; times of served int4 8 at")
    print("  100 Mbit/s and 2 at 1 Gbit/s, of rows int4 4 and 1.3, of served int4 10 beside dense int4 at 100 Mbit/s")


def run_wanted(options, part):
    ways = [f"{kind}, {codec}" for codec in ("none", "int8") for kind in ("wanted", "fetched")]
    words = [sys.executable, str(ROOT / "tests/bench/rows_beside_ddp.py"), "--rates", "100", "--lookups", "1024",
             "--rounds", str(options.rounds), "--ways", ";".join(ways)]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder, "wanted.json")
        words += ["--json", str(out)]
        subprocess.run(words, check=True, env=environment(), timeout=3000, stdout=subprocess.DEVNULL)
        (fact,) = json.loads(out.read_text())
    for codec in ("none", "int8"):
        wanted, fetched = (fact["ways"][f"{kind}, {codec}"]["seconds"]["median"] for kind in ("wanted", "fetched"))
        show(f"exposed wait with wanted= over that of a fetch in the forward pass, 1,024 look-ups, {codec}",
             f"{wanted / fetched:.2f} ({wanted * 1e3:.0f}, {fetched * 1e3:.0f} ms)", "0.6")  # fmt: skip


def run_graph(options, part):
    text = bandoneon_run(4, 2, sys.executable, ROOT / "examples/pagerank.py")
    kb = {how: float(value) for how, value in re.findall(r"(\w+): .*?([\d.]+) kB a worker", text)}
    show("bytes a step of DBH over those of a random cut", f"{kb['dbh'] / kb['random']:.3f}", "0.66")
    show("PageRank", re.search(".*equal to one process.*", text)[0], "equal to one process to 1e-6")


def run_click(options, part):
    """The area under the curve of new examples, and the rows held, less those of `none` of the same seed."""
    steps, seeds = ("150", (1,)) if options.quick else ("600", (1, 2, 3))
    ways = {"none": [], "int8": ["--push", "int8", "--pull", "int8"], "int4": ["--push", "int4", "--pull", "int4"],
            "admit=3": ["--admit", "3"]}  # fmt: skip
    found = {name: [] for name in ways}
    for seed in seeds:
        for name, words in ways.items():
            with tempfile.TemporaryDirectory() as folder:
                program = [sys.executable, ROOT / "examples/click_model.py", "--steps", steps, "--tail", "0.3"]
                program += ["--seed", seed, "--test-batches", "400", "--no-compare", "--save", folder]
                text = bandoneon_run(2, 1, *program, *words)
                stat = subprocess.run([str(BIN / "bandoneon"), "rows", "stat", folder, "--json", "--top", "0"],
                                      check=True, stdout=subprocess.PIPE, text=True).stdout  # fmt: skip
            found[name].append((float(re.search(r"AUC ([\d.]+)", text)[1]), sum(t["rows"] for t in json.loads(stat))))
    for name, bound in (("int8", "0.001"), ("int4", "0.002"), ("admit=3", "0.002")):
        lost = [base[0] - of[0] for base, of in zip(found["none"], found[name])]
        show(f"click model, {steps} steps, seeds {seeds}: AUC that {name} loses", spread(lost, "{:.4f}"), bound)
    held_part = [of[1] / base[1] for base, of in zip(found["none"], found["admit=3"])]
    show("rows that admit=3 holds, of those without it", spread(held_part, "{:.3f}"), "0.5")


if __name__ == "__main__":
    main()
