"""Daemons under limits of the system that are too low: they say which, to all, and end.

Needs the release build; no torch.
"""

import os
import re
import resource
import sys

import pytest
from process_helpers import BIN, Process

LIMIT = 30  # seconds for any one thing to happen

WORKER = """
import ctypes, sys
import bandoneon
from bandoneon.calls import Declaration
try:
    with bandoneon.init() as worker:
        n = 4 << 20
        data = (ctypes.c_float * n)()
        print("joined", flush=True)
        for tensor in worker.declare([Declaration(f"w{i}", n) for i in range(100)]):
            worker.wait(worker.push(tensor, ctypes.addressof(data), keep=data))
except bandoneon.BandoneonError as error:
    print(f"ended: {error}", flush=True)
    sys.exit(3)
"""


class Cluster:
    def __init__(self, tmp_path):
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("BANDONEON_")}
        self.processes = {}
        self._port_file = tmp_path / "port"

    def start(self, name, command, limits=()):
        def limit():
            for kind, value in limits:
                resource.setrlimit(kind, (value, value))

        self.processes[name] = Process(name, [str(part) for part in command], self.env, preexec_fn=limit)
        return self.processes[name]

    def start_scheduler(self, *flags):
        scheduler = self.start("scheduler", [BIN / "bandoneon-scheduler", f"--port-file={self._port_file}", *flags])
        scheduler.wait_for("listens at port", LIMIT)
        self.env["BANDONEON_SCHEDULER"] = f"127.0.0.1:{self._port_file.read_text().strip()}"

    def end(self, name):
        process = self.processes[name]
        process.child.wait(LIMIT)
        return process.output()

    def close(self):
        for process in self.processes.values():
            process.close()


@pytest.fixture
def cluster(tmp_path):
    running = Cluster(tmp_path)
    yield running
    running.close()


# Whoever finds no memory: `new`, ZeroMQ, which gives the connection up and tells nobody, or who waits for memory to
# share; and whatever thread of gRPC could not start, for whose end its shutdown would wait.
@pytest.mark.parametrize("transport", ["auto", "network"])
def test_a_server_that_runs_out_of_memory_tells_all(cluster, transport):
    cluster.start_scheduler()
    cluster.env["BANDONEON_TRANSPORT"] = transport
    cluster.start("server", [BIN / "bandoneon-server"], [(resource.RLIMIT_AS, 900 << 20)])
    cluster.start("worker", [sys.executable, "-c", WORKER])
    for name in ("server", "scheduler", "worker"):
        output = cluster.end(name)
        assert "out of memory" in output, f"{name}:\n{output}"
        assert "keep to the rules" not in output, f"{name}:\n{output}"
        assert cluster.processes[name].child.returncode in (1, 3), output


def test_a_hosts_daemon_that_runs_out_of_memory_tells_all(cluster, tmp_path):
    cluster.start_scheduler()
    cluster.start("server", [BIN / "bandoneon-server"])
    cluster.env |= {"BANDONEON_ATTACH": f"unix:{tmp_path}/host", "BANDONEON_LOCAL_RANK": "0"}
    command = [BIN / "bandoneon-worker", "--processes=1", "--threads=1"]
    host = cluster.start("host", command, [(resource.RLIMIT_AS, 1000 << 20)])
    host.wait_for("processes attach at", LIMIT)
    cluster.start("worker", [sys.executable, "-c", WORKER])
    for name in ("host", "scheduler", "server", "worker"):
        output = cluster.end(name)
        assert re.search("is out of memory|give it more memory", output), f"{name}:\n{output}"
        assert cluster.processes[name].child.returncode in (1, 3), output


def test_too_few_descriptors_are_named_before_a_server_joins(cluster):
    cluster.start_scheduler()
    cluster.start("server", [BIN / "bandoneon-server"], [(resource.RLIMIT_NOFILE, 64)])
    assert re.search(r"needs \d+ open files, and may have 64: raise the limit", cluster.end("server"))
    assert cluster.processes["server"].child.returncode == 2
    assert cluster.processes["scheduler"].child.poll() is None, "it waits for another"


def test_too_few_descriptors_for_all_workers_are_told_to_all(cluster):
    cluster.start_scheduler("--workers=2")
    cluster.start("server", [BIN / "bandoneon-server"], [(resource.RLIMIT_NOFILE, 65)])
    for rank in range(2):
        cluster.start(f"worker {rank}", [sys.executable, "-c", WORKER])
    for name in ("server", "scheduler", "worker 0", "worker 1"):
        output = cluster.end(name)
        assert re.search(r"needs \d+ open files, and may have 65", output), f"{name}:\n{output}"
