"""`bandoneon run --hosts --restarts`: hosts whose daemon or one of whose processes is lost, or leaves, go whole and come back whole, into
a training with a TrainingState. Real processes; at each step all who are there must have the same weights and state."""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys

import pytest
from elastic_test import AcrossHosts
from process_helpers import BIN, ROOT, Process, children_of
from two_hosts_test import hosts  # noqa: F401 (a fixture)

PROGRAM = pathlib.Path(__file__).with_name("elastic_program.py")
CASES = "sgd,adamw,forward,links,server,cser,cser_model,ef21,lion,demo,onebit_adam,odd,kept"
LIMIT = 120  # seconds; six processes that import torch


class Run:
    """`bandoneon run` with three hosts of two processes, one of which may stay alone."""

    def __init__(self, folder, *options, restarts=8, least=1, **variables):
        self.folder = folder
        self.end_file = folder / "end"
        env = {k: v for k, v in os.environ.items() if not k.startswith("BANDONEON_")}
        env |= {"TMPDIR": str(folder), "TEST_STEPS": "1000000", "TEST_END": str(self.end_file), **variables}
        words = [BIN / "bandoneon", "run", "--hosts", 3, "--procs-per-host", 2, "-s", 2, "--restarts", restarts, "--set", f"min-workers={least}",
                 "--set", "min-compress-bytes=1", "--set", "lease-timeout=3s", "--set", f"history-file={folder}/history", *options,
                 "--", sys.executable, PROGRAM]
        self.process = Process("run", [str(word) for word in words], env)

    def _find(self, is_it):
        (guardian,) = children_of(self.process.child.pid)
        found = []
        for pid in children_of(guardian):
            words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            environ = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if is_it(words, environ):
                found.append(pid)
        (pid,) = found
        return pid

    def worker(self, rank):
        return self._find(lambda words, environ: os.fsencode(PROGRAM) in words and f"RANK={rank}".encode() in environ)

    def daemon(self, host):
        return self._find(lambda words, environ: b"bandoneon-worker" in words[0] and f"--rank={host}".encode() in words)

    def await_return(self, host, times=1):
        """The processes of the host are in the job again, and all have taken some steps."""
        for rank in (2 * host, 2 * host + 1):
            self.process.wait_for(f"[worker {rank}] candidate {rank}", LIMIT, times)
        self.take_steps()

    def take_steps(self, ranks=range(6)):
        so_far = "".join(self.process.lines)
        came = {rank: so_far.count(f"\n[worker {rank}] step ") for rank in ranks}
        for rank, count in came.items():
            self.process.wait_for(f"\n[worker {rank}] step ", LIMIT, count + 10)

    def end(self, code=0):
        """The output of a job that has ended so. In each step all had the same, and the histories contradict nothing."""
        self.end_file.touch()
        found = self.process.child.wait(120)
        output = self.process.output()
        assert found == code, output[-4000:]
        known = {}
        for rank, step, sums in re.findall(r"^\[worker (\d+)\] step (\d+) (.*) shard", output, re.MULTILINE):
            assert known.setdefault(step, sums) == sums, f"step {step} of worker {rank} differs"
        files = sorted(str(path) for path in self.folder.glob("history.*"))
        checked = subprocess.run([sys.executable, ROOT / "scripts" / "check_history", *files], capture_output=True, text=True, check=False)
        assert files and checked.returncode == 0, checked.stdout
        return output

    def close(self):
        self.process.close()


@pytest.fixture
def start(tmp_path):
    """Starts a Run with these options, whose workers are amid their steps then. It is ended with the test."""
    runs = []

    def make(*options, **variables):
        runs.append(Run(tmp_path, *options, **variables))
        runs[-1].process.wait_for("] running", LIMIT, 6)
        return runs[-1]

    yield make
    for run in runs:
        run.close()


@pytest.mark.parametrize("cases", ["forward,server,ef21", pytest.param(CASES, marks=pytest.mark.long)], ids=["three", "all"])
def test_a_host_whose_process_or_daemon_is_lost_comes_back_whole(start, cases):
    run = start(TEST_CASE=cases)
    lost = run.worker(3)
    os.kill(lost, signal.SIGKILL)
    run.process.wait_for("the job goes on with 4 of 6 workers")
    run.await_return(1)
    daemon = run.daemon(0)
    os.kill(daemon, signal.SIGKILL)
    run.await_return(0)
    output = run.end()
    assert output.count("\n[worker 4] candidate") == 0
    assert f"worker 3 (pid {lost}) was killed by signal 9 (Killed); host 1 is started again with its processes in 1 s, restart 1 of 8" in output
    last = output.splitlines()[-1]
    assert last.startswith("[run] host 0 was started again once, after ") and "; host 1 was started again once, after worker 3" in last, last
    # Its other process ended because its host was out.
    assert re.search(r"\[worker 2\] bandoneon\S*Evicted: .*the job goes on without .*worker 3 \(process \d+, local rank 1\)", output), output


@pytest.mark.parametrize("case", ["local,local_residual", "local_streaming"])
def test_a_host_comes_back_at_a_meeting(start, case):
    run = start(TEST_CASE=case)
    os.kill(run.worker(4), signal.SIGKILL)
    run.await_return(2)
    run.end()


def test_over_tcp_a_stopped_process_and_a_stopped_daemon_take_their_host(start):
    run = start("--transport", "network", TEST_CASE="adamw")
    stopped = run.worker(0)
    os.kill(stopped, signal.SIGSTOP)
    run.process.wait_for("the job goes on with 4 of 6 workers")
    run.take_steps(range(2, 6))
    os.kill(stopped, signal.SIGCONT)
    run.await_return(0)
    daemon = run.daemon(1)
    os.kill(daemon, signal.SIGSTOP)
    run.process.wait_for("without host 1 (ranks 2-3)")
    os.kill(daemon, signal.SIGCONT)
    run.await_return(1)
    run.end()


def test_a_host_more_comes_than_the_job_began_with(start):
    run = start("--set", "max-workers=4", TEST_CASE="adamw")
    variables = pathlib.Path(f"/proc/{run.worker(0)}/environ").read_bytes().decode().rstrip("\0").split("\0")
    address = f"unix:@bandoneon-more-{run.process.child.pid}"
    place = {"BANDONEON_ATTACH": address, "BANDONEON_LOCAL_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    env = dict(variable.split("=", 1) for variable in variables)
    more = [Process("host 3", [str(BIN / "bandoneon-worker"), "--processes=2", f"--attach={address}"], env)]
    more += [Process(f"worker {6 + local}", [sys.executable, str(PROGRAM)],
                     env | place | {"RANK": str(6 + local), "LOCAL_RANK": str(local), "BANDONEON_LOCAL_RANK": str(local)})
             for local in (0, 1)]
    try:
        for local in (0, 1):
            more[1 + local].wait_for(f"candidate {6 + local}", LIMIT)
            more[1 + local].wait_for(f"shard {6 + local}/8", LIMIT)
        run.take_steps()
        output = run.end()
        for process in more:
            assert process.child.wait(60) == 0, process.output()
        last = output.splitlines()[-1]
        assert "without" not in last, last
    finally:
        for process in more:
            process.close()


def test_a_host_leaves_whole_where_one_process_is_told_to(start):
    run = start(TEST_CASE="adamw")
    os.kill(run.worker(5), signal.SIGTERM)
    run.await_return(2)
    output = run.end()
    # Whoever asks first gives the reason.
    assert "SIGTERM asked it to leave" in output or "others of its host leave" in output
    assert "[worker 4] went" in output, "the other process has ended its loop"


def test_a_host_that_has_left_for_good_is_not_started_again(start):
    run = start(TEST_CASE="adamw", TEST_LEAVES_AT="60")
    run.process.wait_for("is not started again, and the job goes on without it")
    run.take_steps(range(2, 6))
    os.kill(run.worker(4), signal.SIGKILL)
    run.process.wait_for("\n[worker 4] candidate 4")
    run.take_steps(range(2, 6))
    output = run.end()
    assert output.count("\n[worker 0] candidate") == 0
    assert "[worker 0] went" in output and "[worker 1] went" in output


def test_servers_the_scheduler_and_a_host_may_be_lost_in_one_run(start):
    run = start(TEST_CASE="adamw")
    (guardian,) = children_of(run.process.child.pid)
    for word in (b"bandoneon-scheduler", b"bandoneon-server"):
        pid = next(pid for pid in children_of(guardian) if word in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes())
        os.kill(pid, signal.SIGKILL)
        run.process.wait_for(f"(pid {pid}) was killed by signal 9 (Killed); it is started again")
        run.take_steps()
    os.kill(run.worker(1), signal.SIGKILL)
    run.await_return(0)
    run.end()


def test_without_restarts_the_job_goes_on_without_the_host(start):
    run = start(restarts=0, TEST_CASE="adamw")
    lost = run.worker(2)
    os.kill(lost, signal.SIGKILL)
    run.process.wait_for(f"worker 2 (pid {lost}) was killed by signal 9 (Killed); the job goes on with 2 of 3")
    run.take_steps([0, 1, 4, 5])
    output = run.end()
    assert output.splitlines()[-1] == f"[run] the job has ended without those that it lost: worker 2 (pid {lost}) was killed by signal 9 (Killed)"


def test_a_job_that_needs_all_hosts_ends_with_a_lost_process(start):
    run = start(least=3, TEST_CASE="adamw")
    os.kill(run.worker(2), signal.SIGKILL)
    code = run.process.child.wait(60)
    output = run.process.output()
    assert code == 128 + signal.SIGKILL, output[-3000:]
    assert "worker 2 (process" in output


def test_a_daemon_that_is_told_to_end_has_its_host_come_back(start):
    run = start(TEST_CASE="adamw")
    daemon = run.daemon(1)
    os.kill(daemon, signal.SIGTERM)
    run.process.wait_for("without host 1 (ranks 2-3)")
    run.await_return(1)
    output = run.end()
    assert re.search(r"Evicted: .*bandoneon-worker at unix:@\S+ was stopped by SIGTERM", output), output[-4000:]


@pytest.mark.long
def test_torchrun_and_a_daemon_that_serves_on_bring_their_host_back(hosts, tmp_path):  # noqa: F811
    """A torchrun of two processes for each host, which knows of no other."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=10"]
    with contextlib.closing(AcrossHosts(hosts, tmp_path, workers=2)) as job:
        for rank in range(2):
            name = f"unix:@bandoneon-test-{os.getpid()}-{rank}"
            job.run(f"daemon {rank}", rank, BIN / "bandoneon-worker", f"--rank={rank}", "--processes=2", f"--attach={name}",
                    "--exit-when-done=false")
            job.run(f"torchrun {rank}", rank, *torchrun, PROGRAM, BANDONEON_ATTACH=name, BANDONEON_ISLAND=str(rank))
        agents = [job[f"torchrun {rank}"] for rank in range(2)]
        for agent in agents:
            agent.wait_for("running", times=2)
        for lost in (1, 0, 1):
            came = "".join(agents[lost].lines).count("candidate ")
            os.kill(children_of(agents[lost].child.pid)[0], signal.SIGKILL)
            agents[lost].wait_for("candidate ", times=came + 2)
            steps = "".join(agents[lost].lines).count("\nstep ")
            agents[lost].wait_for("\nstep ", times=steps + 20)
        job.end("torchrun 0", "torchrun 1", "scheduler")
        for rank in range(2):
            job[f"daemon {rank}"].child.send_signal(signal.SIGTERM)
        job.end("daemon 0", "daemon 1")
        known = {}
        for agent in agents:
            for step, sums in re.findall(r"^step (\d+) (.*) shard", agent.output(), re.MULTILINE):
                assert known.setdefault(step, sums) == sums, f"step {step} differs"
        assert len(known) > 60
