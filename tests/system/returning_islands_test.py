"""Islands of two ranks that shard models by FSDP2: one is lost, by one of its ranks or by both, leaves, or comes back, and each rank
that comes is given its part by the rank of the other island that has the same. Real processes, a torch.distributed for each island."""

import pathlib
import re
import signal
import sys

import pytest
from lost_worker_test import Job
from process_helpers import free_port

PROGRAM = pathlib.Path(__file__).with_name("returning_islands_program.py")
SIZE = 2  # ranks of an island
ALL = "adamw,momentum,local,streaming"


class IslandsJob(Job):
    """Two islands, started as torchrun starts them."""

    def __init__(self, tmp_path, case, **settings):
        self.end = tmp_path / "end"
        super().__init__(tmp_path, {"TEST_CASE": case, "TEST_END": str(self.end), **settings}, "--min-workers=2",
                         "--min-compress-bytes=1", program=PROGRAM, workers=2 * SIZE)

    def _start_workers(self, program, workers):
        for island in range(workers // SIZE):
            self.come(island)

    def come(self, island, ranks=range(SIZE), port=None, name="worker {}"):
        """Starts the ranks of an island; the port at which they find each other."""
        port = port or free_port()
        for rank in ranks:
            of_torchrun = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": SIZE, "LOCAL_WORLD_SIZE": SIZE,
                           "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "BANDONEON_ISLAND": island}
            self._start(name.format(island * SIZE + rank), [sys.executable, PROGRAM],
                        **{variable: str(value) for variable, value in of_torchrun.items()})
        return port


@pytest.fixture
def start(tmp_path):
    jobs = []

    def make(case, **settings):
        jobs.append(IslandsJob(tmp_path, case, **settings))
        return jobs[-1]

    yield make
    for job in jobs:
        job.close()


def check(job, *names):
    """These take some steps more, and end well. Of each part, all had the same at each step that two of them had."""
    for name in names:
        seen = "".join(job.processes[name].lines).count("\nstep ")
        job.processes[name].wait_for("\nstep ", times=seen + 3)
    job.end.touch()
    assert set(job.wait(*names, "server 0", "server 1", "scheduler", limit=90)) == {0}
    ends, steps = {}, {}
    for name in names:
        output = job.processes[name].output()
        assert output.splitlines()[-1] == "left", output[-3000:]
        part = int(name.split()[-1]) % SIZE
        for case, digest in re.findall(r"^end (\S+) (\S+)$", output, re.MULTILINE):
            assert ends.setdefault((part, case), digest) == digest, f"{case} of {name} has come apart"
        for step, sums in re.findall(r"^step (\d+) (.*) shard", output, re.MULTILINE):
            assert steps.setdefault((part, step), sums) == sums, f"step {step} of {name} differs"
    assert ends and len({digest for (_, case), digest in ends.items() if case == "adamw"}) == SIZE, "parts differ"
    return steps


def come_back(job, island, port=None):
    """Starts the ranks of an island again; with a port, those that the first one waits for there."""
    job.come(island, ranks=range(1 if port else 0, SIZE), port=port, name="return of {}")
    for rank in range(island * SIZE, (island + 1) * SIZE):
        job.processes[f"return of {rank}"].wait_for(f"candidate {rank}")
    for rank in range(island * SIZE, (island + 1) * SIZE):
        job.processes[f"return of {rank}"].wait_for("step")


def test_an_island_is_lost_and_comes_back_once_all_of_it_is_there(start):
    job = start(ALL)
    for rank in (2, 3):
        job[rank].child.kill()
    for rank in (0, 1):
        job[rank].wait_for("the job goes on with 2 of 4 workers")
    # torch.distributed does not begin with one rank of two, so the first half waits before it joins.
    port = job.come(1, ranks=[0], name="return of {}")
    seen = "".join(job[0].lines).count("\nstep ")
    job[0].wait_for("\nstep ", times=seen + 5)
    come_back(job, 1, port)
    check(job, "worker 0", "worker 1", "return of 2", "return of 3")


def test_an_island_goes_with_one_of_its_ranks_or_where_it_is_told_to_and_asks_for_a_restart(start):
    job = start("adamw,local")
    job[1].child.kill()
    assert job.wait("worker 0") == [75], "it cannot train without the other part"
    for rank in (2, 3):
        job[rank].wait_for("the job goes on with 2 of 4 workers")
    come_back(job, 0)
    for rank in (2, 3):
        job[rank].child.send_signal(signal.SIGTERM)
    assert 75 in job.wait("worker 2", "worker 3")
    come_back(job, 1)
    check(job, *(f"return of {rank}" for rank in range(4)))


@pytest.mark.long
def test_where_one_rank_leaves_its_island_does(start):
    job = start("adamw", TEST_LEAVES="3", TEST_LEAVES_AT="30")
    assert job.wait("worker 2", "worker 3") == [0, 0]
    for rank in (0, 1):
        job[rank].wait_for("the job goes on with 2 of 4 workers")
    come_back(job, 1)
    check(job, "worker 0", "worker 1", "return of 2", "return of 3")
