"""The scheduler is lost, and one that starts again goes on with the job by its journal. Real processes; an undisturbed run says
what each step must give."""

import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import time

import pytest
from process_helpers import BIN, Process

PROGRAM = pathlib.Path(__file__).with_name("lost_scheduler_program.py")
NETWORK = {"BANDONEON_TRANSPORT": "network"}
MOMENTS = ["declare", "steps", "barrier", "declare more", "leave"]


class Job:
    """A scheduler with a journal, two servers and two workers, each a process of its own."""

    def __init__(self, tmp_path, **settings):
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("BANDONEON_")}
        self.env.update(settings)
        self.journal = tmp_path / "journal"
        self.port_file = tmp_path / "port"
        self.processes = {}
        self.schedulers = []

    def start_scheduler(self, *flags, **options):
        """The next scheduler; where the first one took a free port, the journal tells the others which."""
        self.port_file.unlink(missing_ok=True)
        scheduler = Process("scheduler", [str(BIN / "bandoneon-scheduler"), "--workers=2", "--servers=2", "--heartbeat-interval=200ms",
                                          "--lease-timeout=2s", f"--port-file={self.port_file}", f"--journal={self.journal}", *flags],
                            self.env, **options)
        self.schedulers.append(scheduler)
        return scheduler

    def start(self, *flags, workers=2):
        self.start_scheduler(*flags).wait_for("listens at")
        self.env["BANDONEON_SCHEDULER"] = f"127.0.0.1:{self.port_file.read_text().strip()}"
        for rank in range(2):
            self._start(f"server {rank}", [BIN / "bandoneon-server", f"--rank={rank}"])
        for rank in range(workers):
            self.start_worker(rank)
        return self

    def start_worker(self, rank):
        self._start(f"worker {rank}", [sys.executable, PROGRAM], BANDONEON_RANK=str(rank))

    def _start(self, name, command, **variables):
        self.processes[name] = Process(name, [str(part) for part in command], dict(self.env, **variables), stdin=subprocess.PIPE)

    def __getitem__(self, rank):
        return self.processes[f"worker {rank}"]

    def kill_scheduler(self):
        self.schedulers[-1].child.kill()
        self.schedulers[-1].child.wait()

    def restart_scheduler(self, *flags):
        self.start_scheduler(*flags).wait_for("goes on with job")

    def tell(self, rank):
        self[rank].child.stdin.write("\n")
        self[rank].child.stdin.flush()

    def check_end(self, limit=60):
        """All end well; returns what the workers printed."""
        deadline = time.monotonic() + limit
        everybody = [*self.processes.values(), self.schedulers[-1]]
        for process in everybody:
            try:
                process.child.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                texts = "\n".join(f"== {p.name}\n{''.join(p.lines[-15:])}" for p in [*self.processes.values(), *self.schedulers])
                pytest.fail(f"{process.name} still runs after {limit} s:\n{texts}")
        outputs = [self[rank].output() for rank in range(2)]
        assert [p.child.returncode for p in everybody] == [0] * 5, outputs[0] + outputs[1] + self.schedulers[-1].output()
        return outputs

    def close(self):
        for process in [*self.processes.values(), *self.schedulers]:
            process.close()
            if process.child.stdin:
                process.child.stdin.close()


@pytest.fixture
def make(tmp_path):
    jobs = []

    def one(**settings):
        folder = tmp_path / f"job{len(jobs)}"
        folder.mkdir()
        jobs.append(Job(folder, **settings))
        return jobs[-1]

    yield one
    for job in jobs:
        job.close()


def steps_of(output):
    return re.findall(r"^(?:step|present) .*$", output, re.MULTILINE)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """{codec: the lines of a job whose scheduler lives}"""
    known = {}

    def lines(codec="none"):
        if codec not in known:
            job = Job(tmp_path_factory.mktemp("undisturbed"), TEST_CODEC=codec)
            try:
                known[codec] = steps_of(job.start().check_end()[0])
            finally:
                job.close()
            assert len(known[codec]) == 61
        return known[codec]

    return lines


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_scheduler_that_is_killed_goes_on(make, undisturbed, moment):
    """One worker is there already, the other is not: what the first had asked must be answered by the next scheduler."""
    job = make(TEST_PAUSE=moment).start()
    job[0].wait_for(f"at {moment}\n")
    job[1].wait_for(f"at {moment}\n")
    job.tell(0)
    time.sleep(0.5)
    job.kill_scheduler()
    time.sleep(0.5)
    job.restart_scheduler()
    time.sleep(0.5)
    # The next one is killed with both workers in the middle of it.
    job.tell(1)
    job.kill_scheduler()
    job.restart_scheduler()
    for output in job.check_end():
        assert steps_of(output) == undisturbed()
        assert output.splitlines()[-1] == "left", output[-2000:]


@pytest.mark.parametrize("settings", [{}, NETWORK, {"TEST_CODEC": "ef(onebit)"}], ids=["shm", "network", "ef"])
def test_schedulers_are_killed_again_and_again(make, undisturbed, settings):
    job = make(**settings).start()
    job[0].wait_for("step 5 ")
    for _ in range(8):
        job.kill_scheduler()
        job.restart_scheduler()
        time.sleep(0.1)
    for output in job.check_end():
        assert steps_of(output) == undisturbed(settings.get("TEST_CODEC", "none"))


def test_nodes_that_join_wait_for_the_next_scheduler(make, undisturbed):
    job = make().start(workers=1)
    job.schedulers[-1].wait_for("waiting for")
    job.kill_scheduler()
    job.start_scheduler().wait_for("listens at")
    job.start_worker(1)
    for output in job.check_end():
        assert steps_of(output) == undisturbed()


def test_steps_go_on_while_there_is_no_scheduler(make, undisturbed):
    job = make(TEST_STEPS="1000000").start()
    job[0].wait_for("step 5 ")
    job.kill_scheduler()
    before = len(job[0].lines)
    # Longer than a lease, in which every node would be lost.
    job.processes["server 0"].wait_for("has not answered for", timeout=20)
    job.restart_scheduler()
    job.processes["server 0"].wait_for("answers again")
    assert len(job[0].lines) > before
    # The job still knows its nodes: it fails by the worker that is killed.
    job[1].child.kill()
    job.schedulers[-1].wait_for("the job failed: worker 1")
    assert job.schedulers[-1].child.wait(20) == 1


@pytest.mark.parametrize("moment", ["declare more", "barrier", "leave"])
def test_a_signal_ends_the_scheduler_and_not_the_job(make, undisturbed, moment):
    """Not its wait either: one worker waits already."""
    job = make(TEST_PAUSE=moment).start()
    for rank in range(2):
        job[rank].wait_for(f"at {moment}\n")
    job.tell(0)
    time.sleep(0.5)
    job.schedulers[-1].child.terminate()
    assert job.schedulers[-1].child.wait(20) == 0
    assert "the job goes on: its nodes wait up to 10m" in job.schedulers[-1].output()
    time.sleep(0.5)
    job.restart_scheduler()
    job.tell(1)
    for output in job.check_end():
        assert steps_of(output) == undisturbed()


def test_a_scheduler_that_was_stopped_goes_on_itself(make, undisturbed):
    job = make().start()
    job[0].wait_for("step 5 ")
    job.schedulers[-1].child.send_signal(signal.SIGSTOP)
    try:
        job.processes["server 0"].wait_for("has not answered for", timeout=20)
        # Nobody else may take the job over meanwhile.
        second = job.start_scheduler()
        assert second.child.wait(20) == 2
        assert "another scheduler of this job is using it" in second.output()
    finally:
        job.schedulers[0].child.send_signal(signal.SIGCONT)
    job.schedulers.append(job.schedulers.pop(0))
    for output in job.check_end():
        assert steps_of(output) == undisturbed()


def test_a_worker_that_is_lost_with_the_scheduler_is_found_lost(make):
    job = make(TEST_STEPS="1000000").start()
    job[0].wait_for("step 5 ")
    job.kill_scheduler()
    job[1].child.kill()
    job.restart_scheduler()
    job.schedulers[-1].wait_for("the job failed: worker 1")
    assert job.schedulers[-1].child.wait(20) == 1
    assert job[0].child.wait(20) != 0
    # That is the job's end, and the next scheduler begins another.
    job.start_scheduler().wait_for("waiting for worker rank 0")


def test_a_signal_amid_joining_ends_no_job_either(make, undisturbed):
    job = make().start(workers=1)
    job.schedulers[-1].wait_for("waiting for")
    job.schedulers[-1].child.terminate()
    assert job.schedulers[-1].child.wait(20) == 0
    job.start_scheduler().wait_for("listens at")
    job.start_worker(1)
    for output in job.check_end():
        assert steps_of(output) == undisturbed()


def test_nodes_give_up_in_time(make):
    job = make(TEST_STEPS="1000000").start("--scheduler-timeout=3s")
    job[0].wait_for("step 5 ")
    job.kill_scheduler()
    for name in ("worker 0", "worker 1", "server 0", "server 1"):
        assert job.processes[name].child.wait(20) != 0
        assert "stopped answering" in job.processes[name].output()


def test_the_settings_must_be_those_of_the_job(make):
    job = make(TEST_STEPS="1000000").start()
    job[0].wait_for("step 5 ")
    job.kill_scheduler()
    for flag in ("--partition-bytes=1MiB", "--max-tensors=7"):
        other = job.start_scheduler(flag)
        assert other.child.wait(20) == 2
        assert f"was begun with another {flag[2:flag.index('=')]}" in other.output()
    job.restart_scheduler()


def test_a_journal_that_is_damaged_is_refused(make):
    job = make(TEST_STEPS="1000000").start()
    job[0].wait_for("step 5 ")
    job.kill_scheduler()
    newest = max(job.journal.glob("generation-*"))
    content = bytearray(newest.read_bytes())
    content[80] ^= 4
    newest.write_bytes(content)
    damaged = job.start_scheduler()
    assert damaged.child.wait(20) == 2
    assert str(newest) in damaged.output()
    content[80] ^= 4
    newest.write_bytes(content)
    job.restart_scheduler()


def test_a_full_disk_holds_the_job_until_there_is_room(make, undisturbed):
    job = make(TEST_PAUSE="declare more").start()
    for rank in range(2):
        job[rank].wait_for("at declare more\n")
    scheduler = job.schedulers[-1].child.pid
    size = max(job.journal.glob("generation-*")).stat().st_size
    resource.prlimit(scheduler, resource.RLIMIT_FSIZE, (size + 20, resource.RLIM_INFINITY))
    job.tell(0)
    job.tell(1)
    job.schedulers[-1].wait_for("cannot be written")
    time.sleep(3)  # longer than a lease
    resource.prlimit(scheduler, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    job.schedulers[-1].wait_for("is written again")
    for output in job.check_end():
        assert steps_of(output) == undisturbed()
