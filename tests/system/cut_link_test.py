"""The link between one worker and one server breaks for good, while both reach all others. Network namespaces, real processes."""

import os
import sys

import pytest
from process_helpers import BIN, Process
from two_hosts_test import HOST_A, HOST_B, SCHEDULER, hosts, ip  # noqa: F401

EX_TEMPFAIL = 75
STEPS = 300
WORKER = f"""
import ctypes, time
import bandoneon
from bandoneon.calls import Declaration
sizes = [4000 + i for i in range(4)]
with bandoneon.init() as worker:
    tensors = worker.declare([Declaration(f"w{{n}}", n) for n in sizes])
    means = set()
    for step in range({STEPS}):
        arrays = [(ctypes.c_float * n)(*([worker.rank + 1.0] * n)) for n in sizes]
        for ticket in [worker.push(t, ctypes.addressof(a), keep=a) for t, a in zip(tensors, arrays)]:
            worker.wait(ticket)
        for array in arrays:
            means |= set(array)
        if step == 5:
            print("running", flush=True)
        time.sleep(0.02)
print("means", *sorted(means), flush=True)
"""


@pytest.fixture
def job(hosts):  # noqa: F811
    """Starts the scheduler, server 0 and worker 0 on one host, server 1 on another and worker 1 on a third, and cuts the last two."""
    processes = {}

    def start(*flags):
        def process(name, host, *command, **variables):
            env = {k: v for k, v in os.environ.items() if not k.startswith("BANDONEON_")}
            env.update(BANDONEON_SCHEDULER=SCHEDULER, BANDONEON_INSECURE="1", BANDONEON_TOKEN="secret", **variables)
            processes[name] = Process(name, ["ip", "netns", "exec", hosts[host], *map(str, command)], env)

        process("scheduler", 0, BIN / "bandoneon-scheduler", "--listen", SCHEDULER, "--workers=2", "--servers=2",
                "--link-timeout=6s", "--partition-bytes=8KiB", "--fusion-bytes=2KiB",
                "--heartbeat-interval=200ms", *flags)
        processes["scheduler"].wait_for("listens at")
        process("server 0", 0, BIN / "bandoneon-server", "--rank=0", f"--listen=tcp://{HOST_A}:7100")
        process("server 1", 1, BIN / "bandoneon-server", "--rank=1", f"--listen=tcp://{HOST_B}:7100")
        for rank, host in enumerate((0, 2)):
            process(f"worker {rank}", host, sys.executable, "-c", WORKER, BANDONEON_RANK=str(rank), BANDONEON_TRANSPORT="network")
        processes["worker 1"].wait_for("running")
        ip("-n", hosts[2], "route", "add", "blackhole", HOST_B + "/32")
        return processes

    yield start
    for process in processes.values():
        process.close()


def test_the_server_goes_where_all_workers_are_needed(job):
    processes = job()
    assert [processes[name].child.wait(90) for name in ("worker 0", "worker 1", "server 0", "scheduler")] == [0] * 4
    for rank in range(2):
        assert "means 1.5" in processes[f"worker {rank}"].output().splitlines()
    assert "without server 1, which has not answered 1 of 2 workers for" in processes["scheduler"].output()


def test_the_worker_goes_where_the_job_may_lose_it(job):
    processes = job("--min-workers=1")
    assert processes["worker 1"].child.wait(90) == EX_TEMPFAIL
    assert "alone has had no answer of server 1 for" in processes["worker 1"].output()
    assert [processes[name].child.wait(90) for name in ("worker 0", "server 0", "server 1", "scheduler")] == [0] * 4
    assert "means 1.0 1.5" in processes["worker 0"].output().splitlines()
