"""A node of a running job dies by SIGKILL: every other process ends its wait, names it, and exits.

Each process is started by hand here, so that nothing but the scheduler's leases and their news can end
the others. Needs the release build; no torch.
"""

import os
import signal
import subprocess
import sys
import time

import pytest
from process_helpers import BIN, Process

LIMIT = 15  # seconds from the kill to the last exit

WORKER = """
import ctypes, sys
import bandoneon
from bandoneon.calls import Declaration
with bandoneon.init() as worker:
    n = 100_000
    data = (ctypes.c_float * n)()
    (tensor,) = worker.declare([Declaration("w", n, push="ef(onebit)", pull="ef(onebit)")])
    step = 0
    try:
        while True:
            ticket = worker.push(tensor, ctypes.addressof(data), keep=data)
            worker.wait(ticket)
            step += 1
            if step == 20:
                print("running", flush=True)
    except bandoneon.BandoneonError as error:
        print(f"ended: {error}", flush=True)
        sys.exit(3)
"""


class Job:
    """A scheduler, two servers and two workers, each a process of its own, exchanging for ever."""

    def __init__(self, tmp_path, settings):
        env = {k: v for k, v in os.environ.items() if not k.startswith("BANDONEON_")}
        env.update(settings)
        port_file = tmp_path / "port"
        self.processes = {}
        try:
            self._start_all(env, port_file)
        except BaseException:
            self.close()
            raise

    def _start_all(self, env, port_file):
        self._start("scheduler", [BIN / "bandoneon-scheduler", "--workers=2", "--servers=2", "--replay-steps=0",
                                  f"--port-file={port_file}"], env)
        self.processes["scheduler"].wait_for("listens at")
        env["BANDONEON_SCHEDULER"] = f"127.0.0.1:{port_file.read_text().strip()}"
        for rank in range(2):
            self._start(f"server {rank}", [BIN / "bandoneon-server", f"--rank={rank}"], env)
        for rank in range(2):
            self._start(f"worker {rank}", [sys.executable, "-c", WORKER],
                        dict(env, BANDONEON_RANK=str(rank)))
        for rank in range(2):
            self.processes[f"worker {rank}"].wait_for("running")

    def _start(self, name, command, env):
        self.processes[name] = Process(name, [str(part) for part in command], env)

    def kill(self, name):
        """The others' output, by name, once all have ended."""
        self.processes[name].child.kill()
        deadline = time.monotonic() + LIMIT
        others = {n: p for n, p in self.processes.items() if n != name}
        for other, process in others.items():
            try:
                process.child.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                pytest.fail(f"{other} still runs {LIMIT} s after {name} was killed:\n"
                            + "".join(process.lines))
        return {other: process.output() for other, process in others.items()}

    def close(self):
        for process in self.processes.values():
            process.close()


SETTINGS = {
    "auto": {},
    "fabric": {"BANDONEON_TRANSPORT": "rdma", "BANDONEON_FABRIC_PROVIDER": "tcp;ofi_rxm",
               "BANDONEON_FABRIC_INTERFACE": "127.0.0.1"},
}


@pytest.fixture(params=SETTINGS)
def job(tmp_path, request):
    running = Job(tmp_path, SETTINGS[request.param])
    yield running
    running.close()


@pytest.mark.parametrize("victim", ["worker 1", "server 0"])
def test_everybody_names_the_dead_node_and_ends(job, victim):
    outputs = job.kill(victim)
    for name, output in outputs.items():
        assert victim in output, f"{name} does not name {victim}:\n{output}"
        assert job.processes[name].child.returncode not in (0, None, -signal.SIGABRT), name
    assert all("ended:" in text for name, text in outputs.items() if name.startswith("worker"))


def test_everybody_ends_when_the_scheduler_dies(job):
    outputs = job.kill("scheduler")
    for name, output in outputs.items():
        assert "scheduler" in output, f"{name} does not name the scheduler:\n{output}"
        assert job.processes[name].child.returncode not in (0, None, -signal.SIGABRT), name
