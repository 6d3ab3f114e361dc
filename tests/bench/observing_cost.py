"""What it costs a job to be looked at: metrics on every daemon with a scraper, and the status page with somebody who looks.

    build/venv/bin/python tests/bench/observing_cost.py
    build/venv/bin/python tests/bench/observing_cost.py --rounds 9 --json
    build/venv/bin/python tests/bench/observing_cost.py --rounds 15 --seconds 10 --idle-seconds 0 \
        --ways "nothing recorded,unobserved,all recorded in files"

Two workers and two servers on this machine exchange gradients by ef(onebit) in steps that compute nothing, in several ways, in turns:
nothing is recorded; nothing listens, and the latest spans are recorded, as by default; all spans are recorded in files; all daemons
have metrics, read every 15 s; and every second, with the status page open besides, which asks every second too. All runs have the same number of steps. CPU time is that of all daemons and workers, without the reader's; what a step
takes beyond the one that nobody looks at is the cost, and where steps compute its share is less. Then the workers stand still, and
it is said how much of a core the daemons use together: what being read takes is seen there best. Medians over the rounds, with the least and the greatest.
"""

import argparse
import contextlib
import ctypes
import json
import os
import pathlib
import queue
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
WARMUP_STEPS = 20
# By way: seconds between two scrapes, or None where nothing listens; whether the page is open; settings.
WAYS = {
    "nothing recorded": (None, False, ["recorder-bytes=0"]),
    "unobserved": (None, False, []),
    "all recorded in files": (None, False, ["trace=FOLDER/trace"]),
    "scraped every 15 s": (15.0, False, []),
    "scraped every second, page open": (1.0, True, []),
}


def main():
    options = parse()
    if "BANDONEON_RANK" in os.environ:
        return work(options)
    steps = options.steps or max(10, round(options.seconds / run(options, "unobserved", 50, 0.0)["step_ms"] * 1e3))
    rounds = [{way: run(options, way, steps, options.idle_seconds) for way in options.ways} for _ in range(options.rounds)]
    rows = {way: summary(way, rounds) for way in options.ways}
    if options.json:
        print(json.dumps({"steps": steps, "rounds": options.rounds, "ways": rows}))
        return None
    print(f"{steps} steps a run, {options.rounds} rounds")
    for way, row in rows.items():
        said = ", ".join(f"{name} {low:.4g} .. {middle:.4g} .. {high:.4g}" for name, (low, middle, high) in row.items())
        print(f"{way}: {said}")
    return None


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=30.0, help="of a run, about, unless --steps says how long it is")
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--idle-seconds", type=float, default=15.0)
    parser.add_argument("--ways", type=lambda text: text.split(","), default=list(WAYS), help="of these alone, with commas between them")
    parser.add_argument("--tensors", type=int, default=16)
    parser.add_argument("--elements", type=int, default=1 << 18, help="of a tensor")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


# ---- A worker


def work(options):
    import bandoneon
    from bandoneon.calls import Declaration, Push

    steps = int(os.environ["OBSERVING_COST_STEPS"])
    with bandoneon.init() as worker:
        codec = "ef(onebit(block=256))"
        names = [f"w{i}" for i in range(options.tensors)]
        tensors = worker.declare([Declaration(name, options.elements, push=codec, pull=codec) for name in names])
        data = [(ctypes.c_float * options.elements)(*range(options.elements)) for _ in names]

        def step():
            pushes = [Push(tensor, ctypes.addressof(block), block) for tensor, block in zip(tensors, data)]
            tickets, error = worker.push_all(pushes)
            if error is not None or (error := worker.wait_all(tickets)[1]) is not None:
                raise error

        for _ in range(WARMUP_STEPS):
            step()
        tell(worker, "warm")
        took = []
        for _ in range(steps):
            begun = time.monotonic()
            step()
            took.append(time.monotonic() - begun)
        tell(worker, f"stepped {statistics.median(took)}")
        tell(worker, "stood still")


def tell(worker, text):
    """Once all workers are there; then waits for the reader's word."""
    worker.barrier("here")
    print(f"rank {worker.rank}: {text}", flush=True)
    with open(os.environ["OBSERVING_COST_GO"] + str(worker.rank), encoding="utf-8") as go:
        go.read()


# ---- Who runs and reads


def run(options, way, steps, idle_seconds):
    """What one job took: {what: number}."""
    interval, has_page, settings = WAYS[way]
    command = [ROOT / "build/release/bin/bandoneon", "run", "-n", "2", "-s", "2"]
    if interval is not None:
        command += ["--set", "metrics-listen=127.0.0.1:0"]
    if has_page:
        command += ["--http-listen", "127.0.0.1:0"]
    with tempfile.TemporaryDirectory() as folder:
        for setting in settings:
            command += ["--set", setting.replace("FOLDER", folder)]
        go = folder + "/go-"
        for rank in range(2):
            os.mkfifo(go + str(rank))
        environment = {"PYTHONPATH": str(ROOT / "python"), **os.environ, "OBSERVING_COST_STEPS": str(steps), "OBSERVING_COST_GO": go}
        job = subprocess.Popen([*map(str, command), "--", sys.executable, __file__, *sys.argv[1:]], env=environment,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        lines = Lines(job.stdout)

        def go_on():
            for rank in range(2):
                pathlib.Path(go + str(rank)).write_text("go on", encoding="utf-8")

        try:
            lines.wait_for(r"rank \d: warm", 2)
            urls = [f"http://127.0.0.1:{port}/metrics" for port in re.findall(r"metrics at port (\d+)", lines.text())]
            assert len(urls) == (0 if interval is None else 3), lines.text()
            page = re.findall(r"status page (http://\S+/)", lines.text()) if has_page else []
            asked = [(url, interval) for url in urls] + [(url + "api/status", 1.0) for url in page]
            daemons, workers = processes_of(job.pid)
            with Reader(asked) as reader:
                before = cpu_seconds(daemons), cpu_seconds(workers)
                go_on()
                medians = lines.wait_for(r"rank \d: stepped (\S+)", 2)
                of_daemons, of_workers = cpu_seconds(daemons) - before[0], cpu_seconds(workers) - before[1]
                begun, idle_from = time.monotonic(), cpu_seconds(daemons)
                reader.read_until(begun + idle_seconds)
                idle = (cpu_seconds(daemons) - idle_from) / max(time.monotonic() - begun, 1e-9)
            go_on()
            lines.wait_for(r"rank \d: stood still", 2)
            go_on()
            assert job.wait(60) == 0, lines.text()
        finally:
            if job.poll() is None:
                job.terminate()
                job.wait(60)
            lines.close()
    return {"step_ms": 1e3 * statistics.mean(map(float, medians)), "cpu_ms_a_step": 1e3 * (of_daemons + of_workers) / steps,
            "daemons_cpu_ms_a_step": 1e3 * of_daemons / steps, "idle_cores": idle, "answers": reader.answers}


class Lines:
    """The lines of a child, as they come."""

    def __init__(self, stream):
        self._stream = stream
        self._lines = []
        self._fresh = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self):
        for line in self._stream:
            self._fresh.put(line)
        self._fresh.put(None)

    def text(self):
        return "".join(self._lines)

    def wait_for(self, pattern, times):
        """The groups, or texts, of so many matches."""
        while len(found := re.findall(pattern, self.text())) < times:
            line = self._fresh.get(timeout=600)
            if line is None:
                sys.exit(f"the job ended early:\n{self.text()}")
            self._lines.append(line)
        return found

    def close(self):
        self._thread.join()
        self._stream.close()


class Reader:
    """Asks each (URL, interval) once an interval, on a thread of its own."""

    def __init__(self, asked):
        self.answers = 0
        self._asked = asked
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()

    def read_until(self, deadline):
        self._thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self):
        due = {url: time.monotonic() for url, _ in self._asked}
        # Without anything to ask there is nothing to do until the end.
        while not self._stop.wait(max(0.0, min(due.values()) - time.monotonic()) if due else None):
            for url, interval in self._asked:
                if time.monotonic() < due[url]:
                    continue
                due[url] += interval
                with urllib.request.urlopen(url, timeout=30) as reply:
                    assert reply.read()
                self.answers += 1


def processes_of(parent):
    """(daemons, workers) below `bandoneon run`, which has a guardian between."""
    names, waiting = {}, [str(parent)]
    while waiting:
        one = waiting.pop()
        waiting += pathlib.Path(f"/proc/{one}/task/{one}/children").read_text(encoding="ascii").split()
        names[one] = pathlib.Path(f"/proc/{one}/cmdline").read_bytes().split(b"\0")[0]
    daemons = [one for one, name in names.items() if os.path.basename(name) in (b"bandoneon-scheduler", b"bandoneon-server")]
    workers = [one for one, name in names.items() if name == os.fsencode(sys.executable)]
    assert len(daemons) == 3 and len(workers) == 2, names
    return daemons, workers


def cpu_seconds(processes):
    """By the scheduler's nanoseconds, where the kernel counts a hundredth of a second otherwise."""
    total = 0
    for process in processes:
        for thread in os.listdir(f"/proc/{process}/task"):
            # A thread that ends between the two calls has had next to nothing, as torch's that only start others.
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                total += int(pathlib.Path(f"/proc/{process}/task/{thread}/schedstat").read_text(encoding="ascii").split()[0])
    return total / 1e9


def summary(way, rounds):
    """{what: (least, median, greatest)}, of each round beside its own unobserved run: beyond_... is the share that a step takes more;
    reading_... what the daemons take to be read alone, of a core, and of the CPU time of steps that go on meanwhile."""
    values = {name: [one[way][name] for one in rounds] for name in rounds[0][way]}
    if way != "unobserved":
        for name in ("step_ms", "cpu_ms_a_step"):
            values[f"beyond_{name}"] = [one[way][name] / one["unobserved"][name] - 1 for one in rounds]
        plain = [one["unobserved"] for one in rounds]
        values["reading_cores"] = [one[way]["idle_cores"] - of["idle_cores"] for one, of in zip(rounds, plain)]
        values["reading_share_of_step"] = [cores * of["step_ms"] / of["cpu_ms_a_step"]
                                           for cores, of in zip(values["reading_cores"], plain)]
    return {name: (min(of), statistics.median(of), max(of)) for name, of in values.items()}


if __name__ == "__main__":
    main()
