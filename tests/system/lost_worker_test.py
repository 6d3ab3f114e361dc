"""A worker is lost amid its steps, and with min-workers the others go on: by SIGKILL, stopped past its lease, or alive without
a push. Real processes; what each step must give is known."""

import collections
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest
from process_helpers import BIN, Process

PROGRAM = pathlib.Path(__file__).with_name("lost_worker_program.py")
HOST_PROGRAM = pathlib.Path(__file__).with_name("lost_host_program.py")
NETWORK = {"BANDONEON_TRANSPORT": "network"}
FABRIC = {"BANDONEON_TRANSPORT": "rdma", "BANDONEON_FABRIC_PROVIDER": "tcp;ofi_rxm", "BANDONEON_FABRIC_INTERFACE": "127.0.0.1"}
EX_TEMPFAIL = 75


class Job:
    """A scheduler, two servers and three workers or so, each a process of its own."""

    def __init__(self, tmp_path, settings, *scheduler_flags, program=PROGRAM, workers=3):
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("BANDONEON_")}
        self.env.update(settings)
        self.processes = {}
        port_file = tmp_path / "port"
        try:
            self._scheduler = [BIN / "bandoneon-scheduler", f"--workers={workers}", "--servers=2", "--heartbeat-interval=200ms",
                               "--lease-timeout=2s", *scheduler_flags]
            self._start("scheduler", [*self._scheduler, f"--port-file={port_file}"])
            self.processes["scheduler"].wait_for("listens at")
            self.env["BANDONEON_SCHEDULER"] = f"127.0.0.1:{port_file.read_text().strip()}"
            for rank in range(2):
                self._start(f"server {rank}", [BIN / "bandoneon-server", f"--rank={rank}"])
            self._start_workers(program, workers)
            for rank in range(workers):
                self[rank].wait_for("running")
        except BaseException:
            self.close()
            raise

    def _start_workers(self, program, workers):
        for rank in range(workers):
            self._start(f"worker {rank}", [sys.executable, program], BANDONEON_RANK=str(rank))

    def __getitem__(self, rank):
        return self.processes[f"worker {rank}"]

    def _start(self, name, command, **variables):
        self.processes[name] = Process(name, [str(part) for part in command], dict(self.env, **variables))

    def restart_scheduler(self):
        """Starts the scheduler, which has ended, again: at its address, with its journal."""
        self.processes["first scheduler"] = self.processes.pop("scheduler")
        self._start("scheduler", [*self._scheduler, f"--listen={self.env['BANDONEON_SCHEDULER']}"])

    def wait(self, *names, limit=40):
        """The exit codes of these."""
        deadline = time.monotonic() + limit
        for name in names:
            try:
                self.processes[name].child.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                everything = "\n".join(f"== {n}\n{''.join(p.lines[-15:])}" for n, p in self.processes.items())
                pytest.fail(f"{name} still runs after {limit} s:\n{everything}")
        return [self.processes[name].child.returncode for name in names]

    def close(self):
        for process in self.processes.values():
            process.close()


@pytest.fixture
def start(tmp_path):
    jobs = []

    def make(*args):
        jobs.append(Job(tmp_path, *args))
        return jobs[-1]

    yield make
    for job in jobs:
        job.close()


def steps_of(output):
    """{step: [text of each tensor]}"""
    return {int(number): rest.split() for number, rest in re.findall(r"^step (\d+) (.*)$", output, re.MULTILINE)}


def check_survivors(job, lost, codec="none", lost_server=None):
    """All who are left have ended well, with the same bytes in every step, which are the mean of those who were there."""
    left = [rank for rank in range(3) if rank != lost]
    daemons = [f"server {rank}" for rank in range(2) if rank != lost_server] + ["scheduler"]
    assert set(job.wait(*(f"worker {rank}" for rank in left), *daemons)) == {0}
    outputs = {rank: job[rank].output() for rank in left}
    steps = [steps_of(output) for output in outputs.values()]
    assert steps[0] == steps[1], "the workers that are left have different bytes"
    assert len(steps[0]) > 40
    if codec == "none":
        means = {len(ranks): sum((rank + 1) ** 2 for rank in ranks) / len(ranks) for ranks in (range(3), left)}
        counts = collections.defaultdict(list)
        for step, texts in steps[0].items():
            for tensor, text in enumerate(texts):
                mean = float(text.split("/")[0]) / (step % 16 + 1)
                near = [count for count, value in means.items() if abs(mean - value) < 1e-4]
                assert near, f"step {step} of tensor {tensor} has the mean {mean}, which nobody's pushes give"
                counts[tensor].append(near[0])
        for of_tensor in counts.values():
            assert of_tensor[0] == 3 and of_tensor[-1] == 2
            assert of_tensor == sorted(of_tensor, reverse=True), "a worker that was out came back"
    for rank, output in outputs.items():
        assert f"present {left[0]} {left[1]} of 3 first {left[0]}" in output, output[-2000:]
        assert f"the job goes on without worker {lost}, which was to give the value" in output
        assert output.splitlines()[-1] == "left", output[-2000:]
    return outputs


@pytest.mark.parametrize("settings", [{}, NETWORK, pytest.param(FABRIC, marks=pytest.mark.long)],
                         ids=["shm", "network", "fabric"])
@pytest.mark.parametrize("lost", [0, pytest.param(1, marks=pytest.mark.long), 2])
def test_the_others_go_on_after_a_kill(start, lost, settings):
    job = start(settings, "--min-workers=2")
    job[lost].child.kill()
    outputs = check_survivors(job, lost)
    assert all("the job goes on with 2 of 3 workers" in output for output in outputs.values())


@pytest.mark.parametrize("codec", ["ef(onebit)", pytest.param("fp16", marks=pytest.mark.long)])
def test_with_codecs_the_others_have_the_same_bytes(start, codec):
    job = start({"TEST_CODEC": codec}, "--min-workers=1")
    job[1].child.kill()
    check_survivors(job, 1, codec)


@pytest.mark.parametrize("codec", [pytest.param("none", marks=pytest.mark.long), "ef(onebit)"])
@pytest.mark.parametrize("settings", [{}, NETWORK, FABRIC], ids=["shm", "network", "fabric"])
def test_the_others_go_on_without_a_worker_and_a_server_at_once(start, settings, codec):
    # The lost worker holds the snapshots of some of the server's keys, and other workers those of the rest.
    job = start(settings | {"TEST_CODEC": codec}, "--min-workers=1")
    job[1].child.kill()
    job.processes["server 0"].child.kill()
    check_survivors(job, 1, codec, lost_server=0)
    is_estimated = "is estimated: a worker was lost with its server" in job.processes["server 1"].output()
    assert is_estimated == (codec != "none")


@pytest.mark.parametrize("settings", [{}, pytest.param(NETWORK, marks=pytest.mark.long)], ids=["shm", "network"])
def test_one_that_is_stopped_past_its_lease_hears_that_it_is_out(start, settings):
    job = start(settings, "--min-workers=2")
    job[1].child.send_signal(signal.SIGSTOP)
    job[0].wait_for("the job goes on with 2 of 3 workers")
    job[1].child.send_signal(signal.SIGCONT)
    assert job.wait("worker 1") == [EX_TEMPFAIL], job[1].output()
    output = job[1].output()
    assert "Evicted" in output and "the job goes on without worker 1 (node" in output, output[-2000:]
    assert "PermissionDenied" not in output
    check_survivors(job, 1)


def test_one_that_lives_and_does_not_push_is_out_after_stuck_timeout(start):
    job = start({"TEST_STUCK_RANK": "2"}, "--min-workers=2", "--stuck-timeout=3s")
    check_survivors(job, 2)
    assert job.wait("worker 2") == [EX_TEMPFAIL]
    output = job[2].output()
    assert "lives, but rounds at server" in output and "stuck-timeout is 3s" in output, output[-2000:]


def test_below_min_workers_the_job_ends_and_says_why(start):
    job = start({}, "--min-workers=3")
    job[1].child.kill()
    codes = job.wait("worker 0", "worker 2", "server 0", "server 1", "scheduler")
    assert all(code not in (0, None) for code in codes)
    assert "2 workers would be left, and min-workers is 3" in job[0].output()


@pytest.fixture
def run():
    """Starts `bandoneon run` with these arguments; ends what is left of it."""
    jobs = []

    def start(*arguments):
        env = {k: v for k, v in os.environ.items() if not k.startswith("BANDONEON_")}
        jobs.append(Process("run", [str(part) for part in (BIN / "bandoneon", "run", *arguments)], env))
        return jobs[-1]

    yield start
    for job in jobs:
        if job.child.poll() is None:
            job.child.terminate()
        job.child.wait()
        job.output()
        job.child.stdout.close()


def pid_under(job, text, variable=None):
    """The one process of a run whose command line has the text, and whose environment the variable."""
    pids = [
        int(entry.name) for entry in pathlib.Path("/proc").iterdir()
        if entry.name.isdigit() and _has(entry, text, variable) and _is_under(int(entry.name), job.child.pid)
    ]
    assert len(pids) == 1, pids
    return pids[0]


@pytest.mark.parametrize("lost", [0, pytest.param(2, marks=pytest.mark.long)])
def test_run_goes_on_and_says_in_its_last_line_who_was_lost(run, lost):
    job = run("-n", 3, "-s", 2, "--set", "min-workers=1", "--set", "lease-timeout=2s", "--", sys.executable, PROGRAM)
    job.wait_for("running", times=3)
    pid = pid_under(job, b"lost_worker_program", f"RANK={lost}".encode())
    os.kill(pid, signal.SIGKILL)
    assert job.child.wait(60) == 0, job.output()
    output = job.output()
    assert f"worker {lost} (pid {pid}) was killed by signal 9" in output.splitlines()[-1], output[-1500:]
    assert "the job has ended without those that it lost" in output.splitlines()[-1]
    assert "the job goes on with 2 of 3" in output


def test_processes_of_a_daemon_hear_who_is_left_and_their_first_tells_the_servers_how_to_step(run):
    job = run("--hosts", 2, "--procs-per-host", 2, "-s", 2, "--set", "min-workers=1", "--set", "lease-timeout=2s",
              "--", sys.executable, HOST_PROGRAM)
    job.wait_for("running", times=4, timeout=180)  # They import torch.
    pid = pid_under(job, b"bandoneon-worker\0--rank=0\0")
    os.kill(pid, signal.SIGKILL)
    assert job.child.wait(60) == 0, job.output()
    output = job.output()
    assert output.count("present 0 1 2 3 of 4 first 0") == 4, output[-3000:]
    assert output.count("present 2 3 of 2 first 2") == 2, output[-3000:]
    assert all(re.search(rf"rank {rank}: off by \S+ after \d+ steps", output) for rank in (2, 3)), output[-3000:]
    assert output.count("the job goes on with 2 of 4 workers") == 3, "the daemon and its processes say it"
    assert f"host 0 (pid {pid}) was killed by signal 9" in output.splitlines()[-1], output[-1500:]


def _has(entry, text, variable):
    try:
        variables = (entry / "environ").read_bytes().split(b"\0")
        return text in (entry / "cmdline").read_bytes() and (variable is None or variable in variables)
    except OSError:
        return False


def _is_under(pid, ancestor):
    while pid > 1:
        if pid == ancestor:
            return True
        try:
            pid = int(pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            return False
    return False


def test_a_worker_that_ends_before_the_job_has_begun_ends_the_job():
    program = "import os, signal, time; os.environ['RANK'] == '1' and os.kill(os.getpid(), signal.SIGKILL); time.sleep(60)"
    command = [BIN / "bandoneon", "run", "-n", "3", "--set", "min-workers=1", "--linger", "100ms", "--", sys.executable, "-c", program]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=40)
    assert done.returncode == 137, done.stderr
    assert "goes on" not in done.stderr
