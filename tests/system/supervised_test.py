"""Daemons under a supervisor: what it hears of them, and how they end when it tells them to.

The supervisor is a socket such as systemd's. Needs the release build; no torch.
"""

import os
import re
import signal
import socket
import sys

import ask_health
import pytest
from process_helpers import BIN, Process

LIMIT = 30  # seconds for any one thing to happen

# Trains until it reads a line, leaves in order, and says how the job ended.
WORKER = """
import ctypes, sys
import bandoneon
from bandoneon.calls import Declaration
try:
    with bandoneon.init() as worker:
        n = 10_000
        data = (ctypes.c_float * n)()
        (tensor,) = worker.declare([Declaration("w", n)])
        def step():
            worker.wait(worker.push(tensor, ctypes.addressof(data), keep=data))
        step()
        print("half way", flush=True)
        if "wait" in sys.argv:
            sys.stdin.readline()
            step()
        else:
            while True:
                step()
    print("ended well", flush=True)
except bandoneon.BandoneonError as error:
    print(f"ended: {error}", flush=True)
    sys.exit(3)
"""


class Supervisor:
    """A socket that hears what a daemon says of itself."""

    def __init__(self, path):
        self.path = str(path)
        self.heard = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.path)
        self._socket.settimeout(LIMIT)

    def wait_for(self, message):
        while True:
            self.heard.append(self._socket.recv(4096).decode())
            if self.heard[-1] == message:
                return

    def hears_more(self, seconds):
        self._socket.settimeout(seconds)
        try:
            return bool(self._socket.recv(4096))
        except (TimeoutError, BlockingIOError):
            return False

    def drain(self):
        """Forgets what was said until now."""
        while self.hears_more(0):
            pass

    def close(self):
        self._socket.close()


class Daemons:
    """Those of one job, each with a supervisor of its own, and the job's program."""

    def __init__(self, tmp_path):
        self._folder = tmp_path
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("BANDONEON_")}
        self.processes = {}
        self.supervisors = {}

    def launch(self, role, *flags, watchdog=""):
        supervisor = self.supervisors[role] = Supervisor(self._folder / f"notify-{role}")
        env = dict(self.env, NOTIFY_SOCKET=supervisor.path, WATCHDOG_USEC=watchdog)
        self.processes[role] = Process(role, [str(BIN / f"bandoneon-{role}"), *flags], env)
        return self.processes[role]

    def start(self, role, *flags, **options):
        daemon = self.launch(role, *flags, **options)
        self.supervisors[role].wait_for("READY=1")
        return daemon

    def start_job(self, *flags, of_worker=()):
        port_file = self._folder / "port"
        self.start("scheduler", f"--port-file={port_file}", *flags)
        self.env["BANDONEON_SCHEDULER"] = f"127.0.0.1:{port_file.read_text().strip()}"
        self.start("server", *flags)
        if of_worker:
            self.env["BANDONEON_ATTACH"] = f"unix:{self._folder}/attach"
            self.start("worker", *of_worker, *flags)

    def train(self, *arguments):
        program = self.processes["program"] = Process(
            "program", [sys.executable, "-c", WORKER, *arguments], self.env, stdin=-1)
        program.wait_for("half way")
        return program

    def close(self):
        for process in self.processes.values():
            process.close()
            if process.child.stdin:
                process.child.stdin.close()
        for supervisor in self.supervisors.values():
            supervisor.close()


@pytest.fixture
def daemons(tmp_path):
    running = Daemons(tmp_path)
    yield running
    running.close()


def end(process):
    """Its exit code, once it has ended."""
    return process.child.wait(LIMIT)


@pytest.mark.parametrize("role", ["scheduler", "server", "worker"])
def test_a_supervisor_hears_ready_alive_and_stopping(daemons, role, tmp_path):
    flags = {"scheduler": [], "server": ["--scheduler=127.0.0.1:1"],
             "worker": ["--scheduler=127.0.0.1:1", f"--attach=unix:{tmp_path}/attach"]}[role]
    daemon = daemons.start(role, *flags, watchdog="20000")  # it is told every 10 ms
    supervisor = daemons.supervisors[role]
    for _ in range(5):
        supervisor.wait_for("WATCHDOG=1")
    assert any(message.startswith("STATUS=waiting for") for message in supervisor.heard)
    daemon.child.send_signal(signal.SIGTERM)
    supervisor.wait_for("STOPPING=1")
    assert end(daemon) == 0


def test_it_hears_nothing_of_a_daemon_that_hangs(daemons):
    daemon = daemons.start("scheduler", watchdog="20000")
    supervisor = daemons.supervisors["scheduler"]
    daemon.child.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, daemon.child.pid, os.WSTOPPED | os.WNOWAIT)
    supervisor.drain()
    assert not supervisor.hears_more(0.2)  # ten times what it waits for


def test_ready_comes_only_once_the_address_is_taken(daemons):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        daemon = daemons.launch("server", "--scheduler=127.0.0.1:1",
                                f"--listen=tcp://127.0.0.1:{taken.getsockname()[1]}")
        assert end(daemon) == 1
    assert not daemons.supervisors["server"].hears_more(0)
    assert "in use" in daemon.output()


def test_health_tells_who_lives_from_who_is_in_a_job(daemons):
    daemons.start_job("--drain-timeout=1h", "--health-listen=127.0.0.1:0", of_worker=("--processes=1",))
    roles = list(daemons.supervisors)

    def health(service):
        ports = [re.search(r"health service at port (\d+)", "".join(daemons.processes[role].lines))[1] for role in roles]
        return {ask_health.ask(f"127.0.0.1:{port}", service) for port in ports}

    program = daemons.train("wait")
    assert health("readiness") == health("liveness") == health("") == {"SERVING"}
    for role in roles:
        daemons.processes[role].child.send_signal(signal.SIGTERM)
        daemons.supervisors[role].wait_for("STATUS=draining: a job runs")
    assert health("readiness") == health("") == {"NOT_SERVING"}
    assert health("liveness") == {"SERVING"}
    program.child.stdin.write("go on\n")
    program.child.stdin.flush()
    assert end(program) == 0, program.output()


def test_who_waits_for_a_job_lives_and_is_not_ready(daemons):
    server = daemons.start("server", "--scheduler=127.0.0.1:1")
    server.wait_for("health service at port")
    address = "127.0.0.1:" + re.search(r"health service at port (\d+)", "".join(server.lines))[1]
    assert [ask_health.ask(address, service) for service in ("liveness", "readiness", "")] == ["SERVING", "NOT_SERVING", "NOT_SERVING"]
    assert ask_health.ask(address, "unknown") == "NO ANSWER"


@pytest.mark.parametrize("of_worker", [(), ("--processes=1",)], ids=["alone", "through a host's daemon"])
def test_a_job_that_runs_may_end_by_itself(daemons, of_worker):
    daemons.start_job("--drain-timeout=1h", "--exit-when-done=false", of_worker=of_worker)
    program = daemons.train("wait")
    roles = list(daemons.supervisors)
    for role in roles:
        daemons.processes[role].child.send_signal(signal.SIGTERM)
    for role in roles:
        daemons.supervisors[role].wait_for("STATUS=draining: a job runs")
    program.child.stdin.write("go on\n")
    program.child.stdin.flush()
    assert end(program) == 0, program.output()
    assert "ended well" in program.output()
    assert [end(daemons.processes[role]) for role in roles] == [0] * len(roles)


@pytest.mark.parametrize("drain", ["0s", "100ms"])
@pytest.mark.parametrize("role, of_worker", [("scheduler", ()), ("server", ()), ("worker", ("--processes=1",))])
def test_a_job_that_does_not_end_is_told_who_went_and_why(daemons, role, of_worker, drain):
    daemons.start_job(f"--drain-timeout={drain}", of_worker=of_worker)
    program = daemons.train()
    daemons.processes[role].child.send_signal(signal.SIGTERM)
    assert end(program) == 3, program.output()
    assert "was stopped by SIGTERM" in program.output() and role in program.output()
    assert end(daemons.processes[role]) == 0, daemons.processes[role].output()


@pytest.mark.parametrize("role, of_worker", [("server", ()), ("worker", ("--processes=1",))])
def test_a_second_signal_ends_a_drain_at_once(daemons, role, of_worker):
    daemons.start_job("--drain-timeout=1h", of_worker=of_worker)
    daemons.train("wait")
    daemon = daemons.processes[role]
    daemon.child.send_signal(signal.SIGTERM)
    daemons.supervisors[role].wait_for("STATUS=draining: a job runs")
    daemon.child.send_signal(signal.SIGTERM)
    assert end(daemon) == 128 + signal.SIGTERM
