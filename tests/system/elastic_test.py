"""Trainings with a TrainingState whose workers are killed, leave and come back. Real processes; at each step all who are there
must have the same weights, and the same state of the optimizer."""

import contextlib
import os
import pathlib
import re
import signal
import sys

import pytest
from lost_worker_test import EX_TEMPFAIL, FABRIC, NETWORK, Job
from process_helpers import BIN, Process, children_of
from restarted_worker_test import Run
from two_hosts_test import HOST_A, HOST_B, Host, hosts, issue  # noqa: F401 (hosts is a fixture)

ENCRYPTED = NETWORK | {"BANDONEON_DATA_SECURITY": "encrypted", "BANDONEON_TOKEN": "secret"}
PROGRAM = pathlib.Path(__file__).with_name("elastic_program.py")
# Together in one job, as a program may have several optimizers; those of local steps meet at the same steps.
ALGORITHMS = [
    "sgd,adamw,forward,links,server,cser,cser_model,ef21,lion,demo,onebit_adam,odd,kept",
    *("local,local_residual", "local_qsr", "local_streaming"),
]


@pytest.fixture
def start(tmp_path):
    jobs = []

    def make(case, *flags, workers=3, **settings):
        """A job of so many steps, or one that goes on until check() says that it is enough."""
        if "TEST_STEPS" not in settings:
            settings |= {"TEST_STEPS": "1000000", "TEST_END": str(tmp_path / "end")}
        jobs.append(Job(tmp_path, {"TEST_CASE": case, **settings}, "--min-workers=1", "--min-compress-bytes=1", *flags,
                        program=PROGRAM, workers=workers))
        return jobs[-1]

    yield make
    for job in jobs:
        job.close()


def steps_of(output):
    """{step: (checksum and rate, shard)}"""
    lines = re.findall(r"^step (\d+) (.*) shard (\d+/\d+)", output, re.MULTILINE)
    return {int(step): (sums, shard) for step, sums, shard in lines}


def come(job, rank=None, name=None, **variables):
    name = name or f"return of worker {rank}"
    if rank is not None:
        variables["BANDONEON_RANK"] = str(rank)
    job._start(name, [sys.executable, PROGRAM], **variables)
    job.processes[name].wait_for("candidate" if rank is None else f"candidate {rank}")
    job.processes[name].wait_for("step")
    return name


def lose(job, name, left, of=3, times=1):
    """Kills one of the processes, and waits until another one says that the job goes on."""
    job.processes[name].child.kill()
    other = next(process for other, process in job.processes.items() if other.startswith("worker") and other != name
                 and process.child.poll() is None)
    other.wait_for(f"the job goes on with {left} of {of} workers", times=times)


def check(job, names):
    """These take some steps more, end well, and have had the same at every step that two of them have."""
    if "TEST_END" in job.env:
        for name in names:
            came = "".join(job.processes[name].lines).count("\nstep ")
            job.processes[name].wait_for("\nstep ", times=came + 10)
        pathlib.Path(job.env["TEST_END"]).touch()
    assert set(job.wait(*names, "server 0", "server 1", "scheduler", limit=90)) == {0}
    known = {}
    for name in names:
        output = job.processes[name].output()
        assert output.splitlines()[-1] == "left", output[-3000:]
        for step, (sums, _) in steps_of(output).items():
            assert known.setdefault(step, sums) == sums, f"step {step} of {name} differs"
    return known


@pytest.mark.parametrize(
    "case",
    [ALGORITHMS[0], *(pytest.param(case, marks=pytest.mark.long) for case in ALGORITHMS[1:])],
    ids=["every step", "meetings", "rarer meetings", "fragments"],
)
def test_a_worker_comes_back(start, case):
    job = start(case)
    lose(job, "worker 0", 2)
    name = come(job, 0)
    check(job, ["worker 1", "worker 2", name])
    came = steps_of(job.processes[name].output())
    assert len(came) >= 10 and min(came) > 20, "it began at a step of the others"
    assert {shard for _, shard in came.values()} == {"0/3"}


@pytest.mark.parametrize("settings", [*(pytest.param(way, marks=pytest.mark.long) for way in (NETWORK, FABRIC)), ENCRYPTED],
                         ids=["network", "fabric", "encrypted"])
def test_over_other_links(start, settings):
    job = start("adamw", **settings)
    lose(job, "worker 0", 2)
    name = come(job, 0)
    check(job, ["worker 1", "worker 2", name])


def test_more_come_than_the_job_began_with(start):
    job = start("adamw", "--max-workers=4", workers=2)
    job[0].wait_for("\nstep ", times=5)
    third = come(job, 3)  # a rank that nobody has had
    fourth = come(job, name="anyone")
    job[0].wait_for("shard 0/4")
    # They may be lost, and any of those with which the job began.
    lose(job, third, 3, of=4)
    lose(job, "worker 0", 2, of=4, times=1)
    again = come(job, 0)
    check(job, ["worker 1", fourth, again])
    assert "1/2" in {shard for _, shard in steps_of(job[1].output()).values()}, "it began with two"
    assert "2/3" in {shard for _, shard in steps_of(job.processes[fourth].output()).values()}


@pytest.mark.long
def test_two_come_at_once_and_one_again(start):
    job = start("adamw")
    for rank in (1, 2):
        job[rank].child.kill()
    job[0].wait_for("the job goes on with 1 of 3 workers")
    for rank in (1, 2):
        job._start(f"return of worker {rank}", [sys.executable, PROGRAM], BANDONEON_RANK=str(rank))
    for rank in (1, 2):
        job.processes[f"return of worker {rank}"].wait_for("step")
    job.processes["return of worker 2"].child.kill()
    job[0].wait_for("the job goes on with 2 of 3 workers", times=2)
    second = come(job, 2, "second return of worker 2")
    check(job, ["worker 0", "return of worker 1", second])


@pytest.mark.long
def test_the_giver_may_be_lost_while_it_gives(start):
    job = start("adamw", TEST_FAULT="giver dies")
    lose(job, "worker 2", 2)
    job._start("newcomer", [sys.executable, PROGRAM], BANDONEON_RANK="2", TEST_FAULT="")
    job.wait("worker 0")
    assert job[0].child.returncode == -signal.SIGKILL
    # The next giver dies, too: nobody has the state any more, which the newcomer says.
    job.wait("worker 1", "newcomer")
    output = job.processes["newcomer"].output()
    assert "was lost while it gave the state of training" in output
    assert "all workers that had the state of training were lost while they gave it" in output


def test_another_gives_where_the_giver_is_lost(start):
    job = start("adamw")
    lose(job, "worker 0", 2)
    # This one gives first the next time, as it has the lowest rank, and dies of it.
    job._start("giver", [sys.executable, PROGRAM], BANDONEON_RANK="0", TEST_FAULT="giver dies")
    job.processes["giver"].wait_for("step")
    lose(job, "worker 2", 2, times=2)
    name = come(job, 2)
    assert job.processes["giver"].child.wait() == -signal.SIGKILL
    check(job, ["worker 1", name])
    assert "worker 0 was lost while it gave the state of training" in job[1].output()


def test_a_newcomer_that_dies_while_it_takes_over_is_a_lost_worker(start):
    job = start("adamw")
    lose(job, "worker 1", 2)
    job._start("newcomer", [sys.executable, PROGRAM], BANDONEON_RANK="1", TEST_FAULT="newcomer dies")
    job.processes["newcomer"].child.wait(60)
    job[0].wait_for("the job goes on with 2 of 3 workers", times=2)
    check(job, ["worker 0", "worker 2", come(job, 1)])


@pytest.mark.long
def test_a_newcomer_that_is_too_slow_goes_again(start):
    job = start("adamw")
    lose(job, "worker 1", 2)
    job._start("newcomer", [sys.executable, PROGRAM], BANDONEON_RANK="1", TEST_FAULT="newcomer is slow", TEST_HEAL_TIMEOUT="2")
    job.processes["scheduler"].wait_for("it had not got the state of training after 2 s")
    job.processes["newcomer"].child.kill()
    check(job, ["worker 0", "worker 2", come(job, 1)])


@pytest.mark.long
def test_who_has_another_state_is_out(start):
    job = start("adamw")
    lose(job, "worker 1", 2)
    # A newcomer that will differ the next time.
    job._start("other", [sys.executable, PROGRAM], BANDONEON_RANK="1", TEST_FAULT="differs")
    job.processes["other"].wait_for("step")
    lose(job, "worker 2", 2, times=2)
    name = come(job, 2)
    # Of two that had the state no more than half agree.
    assert job.wait("worker 0", "other", name) != [0, 0, 0]
    assert "the replicas have come apart: model[parameters][3.weight] of worker 1 is not that of worker 0" in job[0].output()


def test_most_of_the_workers_are_right(start):
    job = start("adamw", workers=4)
    lose(job, "worker 1", 3, of=4)
    job._start("other", [sys.executable, PROGRAM], BANDONEON_RANK="1", TEST_FAULT="differs")
    job.processes["other"].wait_for("step")
    lose(job, "worker 3", 3, of=4, times=2)
    name = come(job, 3)
    assert job.wait("other") == [EX_TEMPFAIL]
    said = job.processes["other"].output()
    assert "Evicted: this worker's state is not that of the others: model[parameters][3.weight] differs" in said
    check(job, ["worker 0", "worker 2", name])


def test_another_model_is_refused_before_anybody_waits_for_it(start):
    job = start("adamw")
    lose(job, "worker 1", 2)
    job._start("newcomer", [sys.executable, PROGRAM], BANDONEON_RANK="1", TEST_WIDTH="65")
    assert job.wait("newcomer") != [0]
    assert "tensor 'adamw/0.weight'" in job.processes["newcomer"].output()
    check(job, ["worker 0", "worker 2"])
    assert "goes on with 3 of 3" not in job[0].output()


def test_sigterm_leaves_and_the_process_asks_for_a_restart(start):
    job = start("adamw")
    job[2].child.send_signal(signal.SIGTERM)
    assert job.wait("worker 2") == [EX_TEMPFAIL]
    job[0].wait_for("the job goes on with 2 of 3 workers")
    check(job, ["worker 0", "worker 1", come(job, 2)])
    assert "SIGTERM asked it to leave" in job.processes["scheduler"].output()


@pytest.mark.parametrize("least", [2, pytest.param(3, marks=pytest.mark.long)])
def test_where_the_job_may_not_go_on_all_save_and_end(start, tmp_path, least):
    place = {"TEST_DIRECTORY": str(tmp_path / "checkpoint"), "TEST_EVERY": "1000000"}
    job = start("adamw", f"--min-workers={least}", **place)
    job[2].child.send_signal(signal.SIGTERM)
    if least == 2:  # One may go, and no other.
        assert job.wait("worker 2") == [EX_TEMPFAIL]
        job[1].child.send_signal(signal.SIGTERM)
    else:
        assert job.wait("worker 2") == [EX_TEMPFAIL]
    assert job.wait("worker 0", "worker 1", "scheduler") == [EX_TEMPFAIL] * 2 + [0]
    assert (tmp_path / "checkpoint" / "checkpoint.json").exists()


def test_leave_ends_the_loop(start):
    job = start("adamw", TEST_LEAVES_AT="40")
    assert job.wait("worker 1") == [0]
    check(job, ["worker 0", "worker 2"])
    assert job[1].output().splitlines()[-2:] == ["went", "left"]
    # Within the two ballots that follow.
    assert max(steps_of(job[1].output())) <= 80


def test_run_starts_others_again_when_one_has_left(tmp_path, monkeypatch):
    end = tmp_path / "end"
    for name, value in (("TEST_CASE", "sgd"), ("TEST_STEPS", "1000000"), ("TEST_END", str(end)), ("TEST_LEAVES_AT", "40")):
        monkeypatch.setenv(name, value)
    run = Run(tmp_path, 0, "--restarts", "5", command=(sys.executable, PROGRAM))
    said = run.process
    try:
        said.wait_for("exited with code 0 after it had left the job; it is not started again, and the job goes on without it")
        run.kill(2)
        said.wait_for("[worker 2] candidate 2")
        came = "".join(said.lines).count("\n[worker 2] step ")
        said.wait_for("\n[worker 2] step ", times=came + 10)
        end.touch()
        code, output = run.end()
    finally:
        run.close()
    assert code == 0 and "worker 2 was started again once" in output.splitlines()[-1], output[-3000:]
    assert output.count("[worker 1] candidate") == 0 and output.count("[worker 1] went") == 1


def test_all_leave_at_once_and_the_next_job_goes_on(start, tmp_path):
    place = {"TEST_DIRECTORY": str(tmp_path / "checkpoint"), "TEST_EVERY": "50"}
    job = start("adamw", **place)
    for rank in range(3):
        job[rank].child.send_signal(signal.SIGTERM)
    assert job.wait("worker 0", "worker 1", "worker 2", "scheduler") == [EX_TEMPFAIL] * 3 + [0]
    last = max(max(steps_of(job[rank].output())) for rank in range(3))  # Signals reach them one after another.
    job.close()
    second = start("adamw", **place, TEST_STEPS="300", TEST_PACE="0.005")
    known = check(second, ["worker 0", "worker 1", "worker 2"])
    assert min(known) == last + 1 and max(known) == 299


def test_checkpoints_are_saved_by_those_who_are_present(start, tmp_path):
    place = {"TEST_DIRECTORY": str(tmp_path / "checkpoint"), "TEST_EVERY": "30"}
    job = start("adamw", **place, TEST_STEPS="300")
    job[0].child.kill()
    check(job, ["worker 1", "worker 2"])
    at = {step: sums for step, (sums, _) in steps_of(job[1].output()).items()}
    assert max(at) == 299
    second = start("adamw", **place, TEST_STEPS="330", TEST_PACE="0.005")
    known = check(second, ["worker 0", "worker 1", "worker 2"])
    assert min(known) == 300 and max(known) == 329


def test_the_scheduler_and_a_server_may_be_lost_meanwhile(start, tmp_path):
    flags = [f"--journal={tmp_path / 'journal'}", "--scheduler-timeout=60s"]
    job = start("adamw", *flags)
    lose(job, "worker 1", 2)
    job._start("newcomer", [sys.executable, PROGRAM], BANDONEON_RANK="1")
    job.processes["newcomer"].wait_for("candidate")
    job.processes["scheduler"].child.kill()
    job.processes["scheduler"].child.wait()
    job.processes["server 1"].child.kill()
    job.restart_scheduler()
    job.processes["newcomer"].wait_for("step")
    pathlib.Path(job.env["TEST_END"]).touch()
    assert set(job.wait("worker 0", "worker 2", "newcomer", "server 0", "scheduler", limit=90)) == {0}


def test_a_newcomer_to_a_job_that_ends_ends_well_and_says_why(start):
    job = start("sgd", TEST_NEVER_TAKES="1")
    lose(job, "worker 1", 2)
    job._start("newcomer", [sys.executable, PROGRAM], BANDONEON_RANK="1")
    job[0].wait_for("somebody waits")
    pathlib.Path(job.env["TEST_END"]).touch()
    ends = job.wait("worker 0", "worker 2", "newcomer", "scheduler")
    assert ends == [0] * 4, "".join(job.processes["worker 0"].lines[-15:]) + job.processes["newcomer"].output()
    output = job.processes["newcomer"].output()
    assert "this worker came to a job that has ended well meanwhile" in output and "Traceback" not in output, output


def test_torchrun_starts_its_worker_again(start):
    """A torchrun for each worker, which knows of no other: BANDONEON_RANK says the worker's place."""
    job = start("adamw")
    job[1].child.kill()
    job[0].wait_for("the job goes on with 2 of 3 workers")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1", "--max-restarts=10"]
    job._start("torchrun", [*torchrun, PROGRAM], BANDONEON_RANK="1")
    agent = job.processes["torchrun"]
    agent.wait_for("step")
    for count, number in enumerate((signal.SIGKILL, signal.SIGTERM), 2):
        (worker,) = children_of(agent.child.pid)
        os.kill(worker, number)
        job[0].wait_for("the job goes on with 2 of 3 workers", times=count)
        agent.wait_for("candidate 1", times=count)
        came = "".join(agent.lines).count("\nstep ")
        agent.wait_for("\nstep ", times=came + 1)
    pathlib.Path(job.env["TEST_END"]).touch()
    assert set(job.wait("torchrun", "worker 0", "worker 2", "scheduler", limit=90)) == {0}
    known, came = steps_of(job[0].output()), steps_of(agent.output())
    assert len(came) >= 3  # Of three processes.
    assert all(known[step][0] == sums for step, (sums, _) in came.items())


@pytest.mark.long
def test_a_newcomer_saves_with_the_others(start, tmp_path):
    job = start("adamw", TEST_DIRECTORY=str(tmp_path / "checkpoint"), TEST_EVERY="15")
    lose(job, "worker 1", 2)
    check(job, ["worker 0", "worker 2", come(job, 1)])


class AcrossHosts:
    """A job in two network namespaces, with TLS to its scheduler and CURVE to its servers, one in each; its processes by name."""

    def __init__(self, namespaces, folder, workers):
        self._namespaces, self._folder, self._end = namespaces, folder / "certificates", folder / "end"
        self._settings = {"BANDONEON_SCHEDULER": f"{HOST_A}:7000", "BANDONEON_TRANSPORT": "network", "BANDONEON_DATA_SECURITY": "encrypted",
                          "TEST_CASE": "adamw", "TEST_STEPS": "1000000", "TEST_END": str(self._end)}
        self.processes = {}
        issue(self._folder, "elastic", *((role, role) for role in ("scheduler", "server", "worker")))
        self.run("scheduler", 0, BIN / "bandoneon-scheduler", f"--listen={HOST_A}:7000", f"--workers={workers}", "--servers=2",
                 "--min-workers=1", "--min-compress-bytes=1", "--lease-timeout=2s", "--heartbeat-interval=200ms").wait_for("listens at")
        for rank, address in enumerate((HOST_A, HOST_B)):
            self.run(f"server {rank}", rank, BIN / "bandoneon-server", f"--rank={rank}", f"--listen=tcp://{address}:7100")

    def __getitem__(self, name):
        return self.processes[name]

    def run(self, name, where, *command, **variables):
        role = name.split()[0]
        words = ["ip", "netns", "exec", self._namespaces[where], *map(str, command)]
        environment = Host(self._namespaces[where], self._folder).environment(role if role in ("scheduler", "server") else "worker")
        self.processes[name] = Process(name, words, environment | self._settings | variables)
        return self.processes[name]

    def end(self, *names):
        """These end well."""
        self._end.touch()
        assert [self.processes[name].child.wait(90) for name in names] == [0] * len(names)

    def close(self):
        for process in self.processes.values():
            process.close()


@pytest.mark.long
def test_a_worker_comes_back_across_two_hosts_with_certificates(hosts, tmp_path):  # noqa: F811
    with contextlib.closing(AcrossHosts(hosts, tmp_path, workers=3)) as job:
        places = (0, 1, 1)
        for rank, where in enumerate(places):
            job.run(f"worker {rank}", where, sys.executable, PROGRAM, BANDONEON_RANK=str(rank))
        for rank in range(3):
            job[f"worker {rank}"].wait_for("running")
        # One on each host, the giver among them.
        for count, rank in enumerate((2, 0), 1):
            job[f"worker {rank}"].close()
            job["worker 1"].wait_for("the job goes on with 2 of 3 workers", times=count)
            job.run(f"worker {rank}", places[rank], sys.executable, PROGRAM, BANDONEON_RANK=str(rank)).wait_for("\nstep ", times=10)
        job.end(*job.processes)
        known = {}
        for rank in range(3):
            for step, (sums, _) in steps_of(job[f"worker {rank}"].output()).items():
                assert known.setdefault(step, sums) == sums, f"step {step} of worker {rank} differs"
        assert max(known) > 40
