"""A host's daemon and its processes: what each does when another dies, lies or does not belong there.

Each process is started by hand, over the real sockets and shared memory. Needs the release build; no torch.
"""

import json
import os
import pathlib
import re
import resource
import signal
import socket
import stat
import struct
import subprocess
import sys
import time

import pytest
from process_helpers import BIN, Process

LIMIT = 15  # seconds from the kill to the last exit

WORKER = """
import ctypes, os, sys
import bandoneon
from bandoneon.calls import Declaration
fork = "fork" in sys.argv
try:
    with bandoneon.init() as worker:
        n = int(os.environ.get("ELEMENTS", 100_000))
        (tensor,) = worker.declare([Declaration("w", n, push="ef(onebit)", pull="ef(onebit)")], timeout=60)
        data = (ctypes.c_float * n)()
        step = 0
        present = f"first {worker.first_rank()}, {worker.count_present()} present"
        print(f"rank {worker.rank} of {worker.size}, {present}", flush=True)
        if fork and os.fork() == 0:
            import time
            time.sleep(3600)
        while True:
            ticket = worker.push(tensor, ctypes.addressof(data), keep=data)
            worker.wait(ticket)
            step += 1
            if step == 20:
                print("running", flush=True)
            if step == 30 and "leave" in sys.argv:
                break
except bandoneon.BandoneonError as error:
    print(f"ended: {type(error).__name__}: {error}", flush=True)
    sys.exit(3)
"""


class Job:
    """Two hosts of two processes each, and a server."""

    def __init__(self, tmp_path, address="unix:@{name}"):
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("BANDONEON_")}
        self.processes = {}
        self.name = f"bandoneon-test-{os.getpid()}-{tmp_path.name}"
        self._address = address.format(name=self.name)
        self._port_file = tmp_path / "port"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes.values():
            process.close()

    def attach(self, host):
        return f"{self._address}-{host}"

    def start(self, name, command, **options):
        env = dict(self.env, **options.pop("env", {}))
        self.processes[name] = Process(name, [str(part) for part in command], env, **options)
        return self.processes[name]

    def start_scheduler(self, hosts=2, settings=()):
        self.start("scheduler", [BIN / "bandoneon-scheduler", f"--workers={hosts}", "--servers=1",
                                 "--job-id=duet", f"--port-file={self._port_file}", *settings])
        self.processes["scheduler"].wait_for("listens at")
        self.env["BANDONEON_SCHEDULER"] = f"127.0.0.1:{self._port_file.read_text().strip()}"
        self.start("server 0", [BIN / "bandoneon-server"])

    def start_host(self, host, *settings, processes=2, **options):
        return self.start(f"host {host}", [BIN / "bandoneon-worker", f"--attach={self.attach(host)}",
                                           f"--rank={host}", f"--processes={processes}", "--job-id=duet",
                                           *settings], **options)

    def start_process(self, host, local_rank, *arguments, env=(), **options):
        env = dict({"BANDONEON_ATTACH": self.attach(host), "BANDONEON_LOCAL_RANK": str(local_rank)}, **dict(env))
        return self.start(f"worker {2 * host + local_rank}", [sys.executable, "-c", WORKER, *arguments],
                          env=env, **options)

    def start_all(self, settings=()):
        self.start_scheduler(settings=settings)
        for host in range(2):
            self.start_host(host)
        for host in range(2):
            for local_rank in range(2):
                self.start_process(host, local_rank)
        for rank in range(4):
            self.processes[f"worker {rank}"].wait_for("running")

    def ends(self, *names):
        """{name: output} of these, or of all, once they have ended; within the limit."""
        deadline = time.monotonic() + LIMIT
        chosen = names or tuple(self.processes)
        for name in chosen:
            process = self.processes[name]
            try:
                process.child.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                pytest.fail(f"{name} still runs after {LIMIT} s:\n" + "".join(process.lines))
        return {name: self.processes[name].output() for name in chosen}


@pytest.fixture
def job(tmp_path):
    with Job(tmp_path) as made:
        yield made


def shared_files():
    """But for a fabric's and multiprocessing's, which tests that run beside these have, and none of these."""
    return sorted(path.name for path in pathlib.Path("/dev/shm").iterdir() if not path.name.startswith(("bdn-", "torch_", "sem.")))


def is_listening(name):
    return f"@{name}" in pathlib.Path("/proc/net/unix").read_text()


def test_a_killed_daemon_is_named_by_its_processes_and_leaves_nothing(job):
    before = shared_files()
    job.start_all()
    job.processes["host 1"].child.kill()
    outputs = job.ends()
    for rank in (2, 3):
        output = outputs[f"worker {rank}"]
        assert f"bandoneon-worker at {job.attach(1)}, has gone" in output, output
        assert job.processes[f"worker {rank}"].child.returncode == 3
    for name in ("worker 0", "worker 1", "host 0", "server 0"):
        assert "host 1 (ranks 2-3; node" in outputs[name], outputs[name]
    assert job.processes["host 0"].child.returncode == 1
    assert shared_files() == before
    assert not is_listening(f"{job.name}-1")


def test_processes_that_attach_after_the_loss_of_a_host_know_all_ranks_and_who_is_left(job):
    job.start_scheduler(settings=["--min-workers=1"])
    for host in range(2):
        job.start_host(host)
    for host in range(2):
        job.processes[f"host {host}"].wait_for("takes 2 processes")
    job.processes["host 0"].child.kill()
    job.processes["host 1"].wait_for("the job goes on with 2 of 4 workers")
    for local_rank in range(2):
        torchrun = {"WORLD_SIZE": "4", "RANK": str(2 + local_rank)}
        job.start_process(1, local_rank, "leave", env=torchrun)
    outputs = job.ends("worker 2", "worker 3", "host 1", "scheduler")
    for rank in (2, 3):
        assert f"rank {rank} of 4, first 2, 2 present" in outputs[f"worker {rank}"], outputs
    assert [job.processes[name].child.returncode for name in outputs] == [0, 0, 0, 0], outputs


@pytest.mark.parametrize("delay", [0.0, 0.003, 0.011, 0.029])
def test_a_killed_process_is_named_by_everybody(job, delay):
    before = shared_files()
    job.start_all()
    time.sleep(delay)  # wherever in a step it is by then
    pid = job.processes["worker 2"].child.pid
    job.processes["worker 2"].child.kill()
    outputs = job.ends()
    for name in ("worker 0", "worker 1", "worker 3", "host 0", "host 1"):
        assert f"worker 2 (process {pid}, local rank 0) ended without leaving the job" in outputs[name], outputs[name]
    assert shared_files() == before


SHORT_LEASE = ("--heartbeat-interval=400ms", "--lease-timeout=2s")


def test_a_stopped_process_is_lost_within_its_lease_and_named_by_everybody(job):
    job.start_all(SHORT_LEASE)
    stopped = job.processes["worker 2"].child
    stopped.send_signal(signal.SIGSTOP)
    others = [name for name in job.processes if name != "worker 2"]
    outputs = job.ends(*others)
    for name in ("worker 0", "worker 1", "worker 3", "host 0", "host 1"):
        assert f"worker 2 (process {stopped.pid}, local rank 0) stopped answering 2." in outputs[name], outputs[name]
    for name in ("worker 0", "worker 1", "host 0"):  # and the host
        assert "host 1 (ranks 2-3; node" in outputs[name], outputs[name]


def test_a_stopped_daemon_is_lost_within_its_lease_to_its_processes_and_to_the_others(job):
    job.start_all(SHORT_LEASE)
    daemon = job.processes["host 1"].child
    daemon.send_signal(signal.SIGSTOP)
    outputs = job.ends(*[name for name in job.processes if name != "host 1"])
    for rank in (2, 3):
        output = outputs[f"worker {rank}"]
        assert f"bandoneon-worker at {job.attach(1)} (process {daemon.pid}, of ranks 2-3), stopped answering 2." in output, output
        assert job.processes[f"worker {rank}"].child.returncode == 3
    for name in ("worker 0", "worker 1", "host 0", "server 0"):
        assert re.search(r"host 1 \(ranks 2-3; node .* stopped answering", outputs[name]), outputs[name]


def test_a_process_is_missed_though_a_child_of_its_has_its_descriptors(job):
    job.start_scheduler(hosts=1)
    job.start_host(0)
    job.start_process(0, 0, "fork")
    job.start_process(0, 1)
    forking = job.processes["worker 0"]
    forking.wait_for("running")
    children = pathlib.Path(f"/proc/{forking.child.pid}/task/{forking.child.pid}/children").read_text().split()
    forking.child.kill()
    try:
        outputs = job.ends("worker 1", "host 0")
    finally:
        for child in children:
            os.kill(int(child), signal.SIGKILL)
    assert "ended without leaving the job: the process has ended" in outputs["worker 1"], outputs["worker 1"]


def test_a_daemon_that_is_told_to_end_says_so_to_its_processes(job):
    job.start_all()
    job.processes["host 0"].child.send_signal(signal.SIGTERM)
    outputs = job.ends()
    for rank in (0, 1):
        assert "was stopped by SIGTERM" in outputs[f"worker {rank}"], outputs[f"worker {rank}"]
    assert job.processes["host 0"].child.returncode == 0


@pytest.mark.parametrize("local_rank", [-1, 1])
def test_a_process_that_waits_for_others_is_told_what_happened_meanwhile(job, local_rank):
    job.start_scheduler(hosts=1)
    job.start_host(0, "--log-level=debug")
    job.start_process(0, local_rank)
    job.processes["host 0"].wait_for(f"has come, of local rank {local_rank}: 1 of 2")
    job.processes["host 0"].child.send_signal(signal.SIGTERM)
    (output,) = job.ends(f"worker {local_rank}").values()
    assert "was stopped by SIGTERM" in output, output


def test_all_leave_and_everything_ends_well(job, tmp_path):
    job.start_scheduler(hosts=1)
    job.start_host(0, f"--metrics-file={tmp_path / 'metrics'}")
    for local_rank in range(2):
        job.start_process(0, local_rank, "leave")
    job.ends()
    assert {name: process.child.returncode for name, process in job.processes.items()} == dict.fromkeys(
        job.processes, 0)
    assert json.loads((tmp_path / "metrics").read_text())["tickets_done"] == 30


def test_a_second_daemon_of_a_host_and_job_is_refused(job):
    job.start_scheduler()
    job.start_host(0).wait_for(f"processes attach at {job.attach(0)}; joining the job of the scheduler at 127.0.0.1")
    second = job.start("second", [BIN / "bandoneon-worker", f"--attach={job.attach(0)}"])
    output = job.ends("second")["second"]
    assert second.child.returncode == 2
    assert f"{job.attach(0)} is in use: one daemon a host and job" in output


def test_a_socket_file_is_its_users_alone_and_one_left_behind_is_taken_over(tmp_path):
    with Job(tmp_path, address=f"unix:{tmp_path}/host") as job:
        path = tmp_path / "host-0"
        for _ in range(2):  # the first leaves its file behind
            job.start_scheduler(hosts=1)
            daemon = job.start_host(0)
            for local_rank in range(2):
                job.start_process(0, local_rank)
            job.processes["worker 0"].wait_for("running")
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            daemon.child.kill()
            job.ends()
            assert path.exists()
        job.start_scheduler(hosts=1)
        daemon = job.start_host(0)
        daemon.wait_for("takes 2 processes")
        daemon.child.send_signal(signal.SIGTERM)
        job.ends("host 0")
        assert not path.exists()


def test_who_does_not_belong_to_the_daemon_is_refused_and_told_why(job):
    job.start_scheduler(hosts=1)
    job.start_host(0)
    wrong = {
        "job": ({"BANDONEON_JOB_ID": "solo"}, "takes part in job 'duet', the process in job 'solo'"),
        "size": ({"BANDONEON_LOCAL_SIZE": "3"}, "was started for 2 processes, and there are to be 3"),
        "rank": ({"BANDONEON_LOCAL_RANK": "2"}, "local rank 2: this host has 2 processes"),
        "nobody": ({"BANDONEON_ATTACH": "unix:@bandoneon-nobody-is-here", "BANDONEON_JOIN_TIMEOUT": "300ms"}, "no daemon listens at"),
        "address": ({"BANDONEON_ATTACH": "tcp://127.0.0.1:7"}, "expected unix:@NAME or unix:/PATH"),
    }
    for name, (env, reason) in wrong.items():
        started = job.start(name, [sys.executable, "-c", WORKER],
                            env=dict({"BANDONEON_ATTACH": job.attach(0)}, **env))
        assert reason in job.ends(name)[name]
        assert started.child.returncode == 3
    for local_rank in range(2):
        job.start_process(0, local_rank)
    job.processes["worker 1"].wait_for("running")
    job.start("third", [sys.executable, "-c", WORKER], env={"BANDONEON_ATTACH": job.attach(0)})
    assert "all 2 processes of this host have attached" in job.ends("third")["third"]
    job.processes["worker 0"].wait_for("rank 0 of 2")


@pytest.mark.parametrize("local_rank, missing", [(1, "0"), (-1, "1")])
def test_processes_that_do_not_come_are_named(job, local_rank, missing):
    job.start_scheduler(hosts=1)
    job.start_host(0, "--join-timeout=2s")
    job.start_process(0, local_rank)
    outputs = job.ends()
    for name in (f"worker {local_rank}", "host 0"):
        assert f"of the 2 processes of this host, local rank {missing} did not attach" in outputs[name], outputs[name]
    assert job.processes["host 0"].child.returncode == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("address", ["unix:@{name}", "unix:/tmp/{name}"])
def test_another_users_process_is_refused(tmp_path, address):
    with Job(tmp_path, address=address) as job:
        job.start_scheduler(hosts=1)
        job.start_host(0).wait_for("takes 2 processes")
        where = job.attach(0)[len("unix:"):]
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.setuid(65534)
                stranger = socket.socket(socket.AF_UNIX)
                stranger.connect("\0" + where[1:] if where.startswith("@") else where)
                stranger.settimeout(LIMIT)
                answer = stranger.recv(100)
                os.write(writing, b"cut" if not answer else b"answered")
            except PermissionError:
                os.write(writing, b"cut")
            except BaseException as error:  # pylint: disable=broad-except
                os.write(writing, repr(error).encode())
            os._exit(0)
        os.waitpid(child, 0)
        assert os.read(reading, 100) == b"cut"
        os.close(reading)
        os.close(writing)
        for local_rank in range(2):
            job.start_process(0, local_rank, "leave")
        job.ends()
        assert job.processes["host 0"].child.returncode == 0


def test_memory_that_is_not_to_be_had_is_named_with_its_size(job):
    job.start_scheduler(hosts=1)

    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))

    job.start_host(0, preexec_fn=limit)
    elements = 1 << 30
    for local_rank in range(2):
        job.start_process(0, local_rank, env={"ELEMENTS": str(elements)})
    outputs = job.ends()
    for name in ("worker 0", "worker 1"):
        assert f"tensor 'w': {4 * elements} bytes of shared memory for the sum of this host are not to be had" in (
            outputs[name]), outputs[name]


def test_a_flood_of_strangers_neither_keeps_the_daemon_busy_nor_fills_its_log(job):
    job.start_scheduler(hosts=1)
    daemon = job.start_host(0, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (80, 80)))
    daemon.wait_for("takes 2 processes")
    strangers = [socket.socket(socket.AF_UNIX) for _ in range(100)]
    for stranger in strangers:
        stranger.connect("\0" + f"{job.name}-0")
    # One line in a second says how often it was refused a descriptor meanwhile.
    daemon.wait_for("lines like this before)")
    tries = int(re.search(r"accept: .*and (\d+) lines like this before", "".join(daemon.lines)).group(1))
    assert 1 <= tries <= 20
    for stranger in strangers:
        stranger.close()
    for local_rank in range(2):
        job.start_process(0, local_rank, "leave")
    job.ends()
    assert daemon.child.returncode == 0


@pytest.mark.parametrize("bytes_sent", [
    b"\xff\xff\xff\xff",  # a length that is none
    struct.pack("<I", 5) + b"hello",  # no message
    struct.pack("<I", 2) + b"\x1a\x00",  # pushes before a hello
    struct.pack("<I", 4) + b"\x12\x02\x10\x08",  # a segment without a descriptor
    b"\x01",  # and goes
])
def test_who_talks_nonsense_is_cut_and_the_job_goes_on(job, bytes_sent):
    job.start_scheduler(hosts=1)
    job.start_host(0).wait_for("takes 2 processes")
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect("\0" + f"{job.name}-0")
        stranger.sendall(bytes_sent)
        if bytes_sent != b"\x01":
            stranger.settimeout(LIMIT)
            assert stranger.recv(100) == b""
    for local_rank in range(2):
        job.start_process(0, local_rank, "leave")
    job.ends()
    assert job.processes["host 0"].child.returncode == 0
