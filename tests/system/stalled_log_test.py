"""Daemons whose log nobody reads: standard error is a pipe that is full from the start.

Needs the release build; no torch.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest
from process_helpers import BIN, Process

LIMIT = 20  # seconds for any one thing to happen

WORKER = """
import ctypes, sys
import bandoneon
from bandoneon.calls import Declaration
with bandoneon.init() as worker:
    n = 1000
    data = (ctypes.c_float * n)()
    (tensor,) = worker.declare([Declaration("w", n)])
    for step in range(50):
        worker.wait(worker.push(tensor, ctypes.addressof(data), keep=data))
    print("50 steps", flush=True)
    if "stay" in sys.argv:
        sys.stdin.readline()
"""


class FullPipe:
    """A pipe that takes nothing until it is read."""

    def __init__(self):
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.writer, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(self.writer, b"-" * 4096)
        os.set_blocking(self.writer, True)

    def read_until(self, text):
        """All but what filled it, once `text` has come."""
        read = b""
        while text not in read:
            read += os.read(self.reader, 65536)
        return read.lstrip(b"-").decode()

    def close(self):
        os.close(self.reader)
        os.close(self.writer)


class Cluster:
    """A scheduler and a server with such logs, and a program that trains."""

    def __init__(self, tmp_path):
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("BANDONEON_")}
        self.port_file = tmp_path / "port"
        self.daemons = {}
        self.logs = {}
        self.program = None

    def start_daemon(self, role, *flags):
        log = self.logs[role] = FullPipe()
        self.daemons[role] = subprocess.Popen([str(BIN / f"bandoneon-{role}"), *flags], env=self.env,
                                              stdin=subprocess.DEVNULL, stderr=log.writer)

    def start(self, *flags):
        self.start_daemon("scheduler", f"--port-file={self.port_file}", *flags)
        deadline = time.monotonic() + LIMIT
        while not self.port_file.exists():
            assert time.monotonic() < deadline, "the scheduler did not start"
            os.sched_yield()
        self.env["BANDONEON_SCHEDULER"] = f"127.0.0.1:{self.port_file.read_text().strip()}"
        self.start_daemon("server", *flags)

    def train(self, *arguments):
        self.program = Process("program", [sys.executable, "-c", WORKER, *arguments], self.env, stdin=-1)
        self.program.wait_for("50 steps", LIMIT)

    def close(self):
        for daemon in self.daemons.values():
            if daemon.poll() is None:
                daemon.kill()
            daemon.wait()
        for log in self.logs.values():
            log.close()
        if self.program:
            self.program.child.stdin.close()
            self.program.close()


@pytest.fixture
def cluster(tmp_path):
    running = Cluster(tmp_path)
    yield running
    running.close()


def test_a_job_goes_on_and_ends_though_nobody_reads_the_logs(cluster):
    cluster.start("--log-level=debug")
    cluster.train()
    assert cluster.program.child.wait(LIMIT) == 0, cluster.program.output()
    assert [daemon.wait(LIMIT) for daemon in cluster.daemons.values()] == [0, 0]


def test_what_was_logged_meanwhile_is_there_for_who_reads_later(cluster):
    cluster.start()
    cluster.train("stay")
    assert "all nodes have joined\n" in cluster.logs["scheduler"].read_until(b"all nodes have joined\n")


def signals_wait_for(process):
    with open(f"/proc/{process.pid}/status") as status:
        return any(int(line.split()[1], 16) for line in status if line.startswith(("SigPnd", "ShdPnd")))


@pytest.mark.parametrize("role", ["scheduler", "server"])
def test_two_signals_end_a_daemon_whose_log_nobody_reads(cluster, role):
    cluster.start("--drain-timeout=1h")
    cluster.train("stay")
    daemon = cluster.daemons[role]
    daemon.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + LIMIT
    while signals_wait_for(daemon):
        assert time.monotonic() < deadline, "the first signal was not taken"
    daemon.send_signal(signal.SIGTERM)
    assert daemon.wait(LIMIT) == 128 + signal.SIGTERM
