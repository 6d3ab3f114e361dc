"""Every point at which a process can fail (common/base/fault_point.h), with SIGKILL, a stop past its lease or its connections cut, in
every role, over every transport and with every kind of state. Servers and schedulers alone: the weights are those of an undisturbed
run. With a worker: the workers that are left agree in every step.

A test run tries a small choice of the combinations; `pytest -m long` tries each pair of values, and all. A job has several faults,
one after the other. The target `faulty` has the executables.
"""

import collections
import concurrent.futures
import dataclasses
import itertools
import os
import pathlib
import random
import re
import subprocess
import threading

import pytest
from faulty_job import FAULTY, POINTS, PROGRAM, ROOT, STOPPED_FOR, Fault, Finding, Job, Plan, options_of, undisturbed
from process_helpers import BIN

AT_ONCE = 6  # jobs
ACTIONS = ["kill", "stop", "cut"]
# The processes that are lost at once: the first at the point, the others beside it.
ROLES = {
    "server": ("server", ()),  # of two
    "both servers": ("server", (("server", None),)),
    "only server": ("server", ()),
    "scheduler": ("scheduler", ()),
    "scheduler and server": ("server", (("scheduler", None),)),
    "worker": ("worker", ()),  # of three
    "worker and server": ("server", (("worker", 1),)),
    "daemon": ("daemon", ()),  # of a host
}
TWO_SERVERS = ["server", "both servers", "scheduler", "scheduler and server"]
LOSES_WORKER = ("worker", "worker and server", "daemon")
OF_SERVER = ["push.held", "round.closed", "reply.some", "snapshot.half", "report.some", "rebuild.said", "init.half", "redo.half",
             "epoch.some", "admit.some", "leave.some"]
OF_SCHEDULER = ["journal.written", "epoch.some", "admit.some", "leave.some"]
OF_WORKER = ["encode.done", "snapshot.half", "admit.some", "leave.some"]
# A worker in whose rebuild of keys another loss falls: it is a loss beside that of the server.
OF_WORKER_AND_SERVER = ["report.some", "rebuild.said", "redo.half", "epoch.some"]
# Points that a lost server leads to. Without one, a job that has declared its tensors writes nothing into its journal.
NEED_LOSS = {"report.some", "rebuild.said", "redo.half", "epoch.some", "init.half", "journal.written"}
ONEBIT = ["codecs", "ef(onebit)", "ef(onebit)"]


@dataclasses.dataclass(frozen=True)
class Row:
    """A transport and a kind of training."""
    transport: str
    program: tuple
    keeps_state: bool = True  # at servers, between rounds
    has_hosts: bool = False
    options: tuple = ()
    workers: int = 2
    server_with_state: int | None = None  # of two; None: each has a key with state
    goes_on: bool = True  # without a lost worker

    @property
    def sets_again(self):
        """Whether a job can lose several servers while a snapshot is set: it has rounds enough before each, and whichever server
        comes to have the keys, it is one that is lost."""
        return self.server_with_state is None and not {"checkpoint", "local-steps"} & set(self.program)


ROWS = {
    "shm-none": Row("shm", ("codecs",), keeps_state=False),
    "shm-onebit": Row("shm", tuple(ONEBIT)),
    "tcp-fp16": Row("tcp", ("codecs", "fp16", "fp16"), keeps_state=False),
    "tcp-topk": Row("tcp", ("codecs", "none for 20; ef(topk(ratio=0.01))", "ef(onebit)")),
    "tcp-overlap": Row("tcp", ("overlap",), keeps_state=False),
    "tls-onebit": Row("tls", tuple(ONEBIT)),
    "tls-adamw": Row("tls", ("adamw",), server_with_state=0),
    "rdma-none": Row("tcp;ofi_rxm", ("codecs",), keeps_state=False),
    "rdma-onebit": Row("tcp;ofi_rxm", tuple(ONEBIT)),
    "hosts-onebit": Row("shm", tuple(ONEBIT), has_hosts=True, workers=4),
    "hosts-weight": Row("tcp", ("weight",), has_hosts=True, workers=4),
    "local-group": Row("shm", ("local-group",), workers=4, goes_on=False),
    "not-finite": Row("tcp", ("not-finite",)),
    "local-steps": Row("shm", ("local-steps", "--steps", "480")),
    "sign-momentum": Row("tcp", ("sign-momentum", "--steps", "240"), server_with_state=0),
    "groups": Row("shm", ("groups", "ef(onebit)", "ef(onebit)")),
    "guard": Row("tcp", ("guard", "ef(topk(ratio=0.01))", "ef(topk(ratio=0.01))"),
                 options=("--set", "quality-guard=fall-back", "--set", "quality-every=2")),
    "checkpoint": Row("shm", ("checkpoint", "--steps", "120")),
    "leaving": Row("tcp", ("leaving", "ef(onebit)", "ef(onebit)")),
    "declaring": Row("shm", ("declaring", "ef(onebit)", "ef(onebit)")),
}


@dataclasses.dataclass(frozen=True)
class Cell:
    row: str
    role: str
    point: str
    action: str

    def pairs(self):
        return set(itertools.combinations(((f.name, getattr(self, f.name)) for f in dataclasses.fields(self)), 2))

    def values(self):
        return {("row", self.row), ("point", self.point), ("role and action", self.role, self.action)}


def points_of(role):
    if role in ("worker", "daemon"):
        return OF_WORKER + OF_WORKER_AND_SERVER
    return OF_SCHEDULER if role == "scheduler" else OF_SERVER


def is_possible(cell):
    row = ROWS[cell.row]
    if cell.point not in points_of(cell.role) or row.has_hosts != (cell.role == "daemon" or (row.has_hosts and cell.role != "worker")):
        return False
    if cell.role in LOSES_WORKER and not row.goes_on:
        return False
    # A key without state is neither saved nor set, and mostly nothing of it is made again.
    return row.keeps_state or cell.point not in ("snapshot.half", "init.half", "redo.half")


CELLS = [cell for cell in (Cell(*values) for values in itertools.product(ROWS, ROLES, POINTS, ACTIONS)) if is_possible(cell)]


def chosen(of):
    """Cells in which each of what `of` finds in all cells, as Cell.pairs, comes at least once. The same each time."""
    draw = random.Random(1)
    left = set().union(*(of(cell) for cell in CELLS))
    cells = []
    while left:
        sample = draw.sample(CELLS, min(len(CELLS), 400))
        best = max(sample, key=lambda cell: len(of(cell) & left))
        if not of(best) & left:
            best = next(cell for cell in CELLS if of(cell) & left)
        cells.append(best)
        left -= of(best)
    return cells


def order_of(cell):
    """Faults of one job come in this order: those that the beginning and the end of a job alone have, at their places."""
    return {"admit.some": 0, "leave.some": 2}.get(cell.point, 1)


def jobs_of(cells, most=9):
    """Groups of cells that one job can have. Workers cannot come back, so each has at most one loss of them."""
    jobs = []
    groups = {}
    for cell in cells:
        is_alone = cell.point == "init.half" and not ROWS[cell.row].sets_again
        size = "alone" if is_alone else "two" if cell.role in TWO_SERVERS else cell.role
        groups.setdefault((cell.row, size), []).append(cell)
    for (_, size), group in groups.items():
        if size not in ("two", "only server"):
            jobs += [[cell] for cell in group]
            continue
        while group:
            # One of a kind can come at the beginning, and at the end, of a job.
            job = []
            for cell in list(group):
                is_single = order_of(cell) != 1 and any(order_of(other) == order_of(cell) for other in job)
                if len(job) < most and not is_single:
                    job.append(cell)
                    group.remove(cell)
            jobs.append(sorted(job, key=order_of))
    return jobs


def faults_of(cells):
    faults = []
    rounds = 160 if cells[0].row == "groups" else 60  # in which a snapshot of some key is taken
    for cell in cells:
        role, beside = ROLES[cell.role]
        if ROWS[cell.row].has_hosts and cell.role == "worker and server":
            beside = (("daemon", 1),)  # It is the job's worker.
        before = faults[-1] if faults else None
        if cell.point == "init.half":
            # A snapshot is set only where one was taken before, of a key that has state.
            faults.append(Fault("server", "round.closed", "kill", at=rounds, rank=ROWS[cell.row].server_with_state))
        elif cell.point == "redo.half":
            # The result that one worker has and the other asks for is made again.
            faults.append(Fault("server", "reply.some", "kill", at=3 if faults else 12))
        elif cell.point in NEED_LOSS and not (before and before.role == "server" and before.action == "kill"):
            faults.append(Fault("server", "round.closed", "kill", at=3 if faults else 12))
        middle = order_of(cell) == 1 and cell.point not in NEED_LOSS and cell.point != "snapshot.half"
        # A snapshot of a key is one worker's, and a result is made again from that of who had it first.
        rank = 1 if role in ("worker", "daemon") and cell.point not in ("snapshot.half", "redo.half") else None
        faults.append(Fault(role, cell.point, cell.action, at=3 if middle else 1, rank=rank, beside=beside))
    return faults


def plan_of(cells, folder):
    row = ROWS[cells[0].row]
    role = cells[0].role
    loses_worker = role in LOSES_WORKER
    options = [*options_of(row.transport, folder), "--set", "replay-steps=8", *row.options]
    if loses_worker:
        options += ["--set", "min-workers=1"]
    # One that is stopped is to come back while the others still train.
    pace = ["--pace", "0.03"] if loses_worker and cells[0].action == "stop" else []
    return Plan([PROGRAM, *row.program, *pace], options, workers=3 if loses_worker and not row.has_hosts else row.workers,
                servers=1 if role == "only server" else 2, hosts=2 if row.has_hosts else 0, faults=faults_of(cells))


class Runs:
    """Jobs, some at once, as most of their time is waiting for leases."""

    def __init__(self, folder):
        self.folder = folder
        self.expected = {}
        self.locks = collections.defaultdict(threading.Lock)

    def weights_of(self, row, plan):
        """Those of an undisturbed run: by one thread, while others wait for it."""
        with self.locks[row]:
            if row not in self.expected:
                self.expected[row] = undisturbed(plan, self.folder / f"undisturbed-{row}")
            return self.expected[row]

    def run(self, numbered):
        """The row, and what was found of the job; empty: nothing."""
        index, cells = numbered
        row = cells[0].row
        folder = self.folder / f"{row}-{index}"
        try:
            plan = plan_of(cells, folder / "certificates")
            expected = None if cells[0].role in LOSES_WORKER else self.weights_of(row, plan)
            job = Job(plan, folder / "job")
            job.run()
            job.check(expected)
            return row, ""
        except (Finding, subprocess.SubprocessError, OSError) as error:
            return row, "\n".join(map(str, [*cells, error]))

    def found(self, jobs):
        """{row: what was found}"""
        found = collections.defaultdict(list)
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            for row, text in pool.map(self.run, enumerate(jobs)):
                if text:
                    found[row].append(text)
        return found


@pytest.fixture(scope="module")
def found(request, tmp_path_factory):
    """What was found of the chosen jobs, by row: of all rows that are to be tested, at once."""
    rows = {item.callspec.params["row"] for item in request.session.items
            if getattr(item, "originalname", "") == "test_each_point_each_training_and_each_role_with_each_action"}
    return Runs(tmp_path_factory.mktemp("matrix")).found([job for job in jobs_of(chosen(Cell.values)) if job[0].row in rows])


@pytest.mark.parametrize("row", ROWS)
def test_each_point_each_training_and_each_role_with_each_action(found, row):
    assert not found[row], "\n\n".join(found[row])


@pytest.mark.long
@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("which", ["pairs", "all"])
def test_more_cells(tmp_path, which, row):
    cells = CELLS if which == "all" else chosen(Cell.pairs)
    found = Runs(tmp_path).found([job for job in jobs_of(cells) if job[0].row == row])
    assert not found[row], "\n\n".join(found[row])


# ---- Workers that come back

# The kind of training of each transport.
RETURNING = {"shm": "adamw", "tcp": "server", "tls": "local", "tcp;ofi_rxm": "adamw"}
# (point, whether it is the newcomer's) of elastic_faults.py.
PHASES = [("state.candidate", True), ("state.ready", True), ("state.taken-in", True), ("state.piece", True), ("state.compared", True),
          ("state.change", False), ("state.piece", False), ("state.compared", False)]
RETURNS = list(itertools.product(PHASES, ACTIONS))


def plan_of_returns(transport, cells, folder):
    """A worker is killed for each cell, and in a phase of its return one more thing happens."""
    faults = []
    for number, ((point, is_newcomers), action) in enumerate(cells):
        lost = 2 - number % 3
        others = sorted({0, 1, 2} - {lost})
        # The lowest of those who stay gives.
        rank = lost if is_newcomers else others[0] if point == "state.piece" else others[1]
        faults.append(Fault("worker", "encode.done", "kill", at=60 if not faults else 10, rank=lost))
        faults.append(Fault("worker", point, action, rank=rank, is_amid=True))
    program = [PROGRAM, "elastic", RETURNING[transport], "--pace", "0.02", "--faults", str(len(faults)), "--most-seconds", "150"]
    return Plan(program, [*options_of(transport, folder), "--set", "min-workers=1"], workers=3, faults=faults, takes_in=True)


def find_returns(folder, jobs):
    """What was found of jobs, each (transport, cells), some at once."""

    def run(numbered):
        number, (transport, cells) = numbered
        job = Job(plan_of_returns(transport, cells, folder / f"certificates-{number}"), folder / f"job-{number}")
        try:
            job.run(limit=200)
            job.check()
        except (Finding, subprocess.SubprocessError, OSError) as error:
            return "\n".join(map(str, [transport, *cells, error]))
        return ""

    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        return [text for text in pool.map(run, enumerate(jobs)) if text]


@pytest.mark.long
def test_a_worker_comes_back_in_each_phase_with_each_action_over_each_transport(tmp_path):
    # Each phase and action comes, and each transport has several.
    cells = [(PHASES[number % len(PHASES)], ACTIONS[(number + number // len(PHASES)) % 3]) for number in range(12)]
    found = find_returns(tmp_path, [(transport, cells[i::4]) for i, transport in enumerate(RETURNING)])
    assert not found, "\n\n".join(found)


@pytest.mark.long
@pytest.mark.parametrize("transport", RETURNING)
def test_all_returns(tmp_path, transport):
    found = find_returns(tmp_path, [(transport, RETURNS[i::8]) for i in range(8)])
    assert not found, "\n\n".join(found)


@pytest.mark.parametrize("of", [Cell.values, Cell.pairs])
def test_the_choice_has_each_point_and_role(of):
    cells = chosen(of)
    assert set().union(*(of(cell) for cell in cells)) == set().union(*(of(cell) for cell in CELLS))
    assert {cell.point for cell in cells} == set(POINTS)
    assert {cell.role for cell in cells} == set(ROLES)
    assert sorted(cell for job in jobs_of(cells) for cell in map(dataclasses.astuple, job)) == sorted(map(dataclasses.astuple, cells))


def test_the_list_of_points_is_that_of_the_sources():
    named = set()
    for directory in ("common", "server", "scheduler", "worker"):
        for path in (ROOT / directory).rglob("*.cc"):
            for arguments in re.findall(r"FaultPoint\(([^;]*)\);", path.read_text()):
                named.update(re.findall(r'"([a-z.]+)"', arguments))
    assert named == set(POINTS)


@pytest.mark.parametrize("name", ["bin/bandoneon", "bin/bandoneon-scheduler", "bin/bandoneon-server", "bin/bandoneon-worker",
                                  "lib/libbandoneon.so"])
def test_nothing_that_is_shipped_has_faults(name):
    release = (BIN.parent / name).read_bytes()
    assert b"BANDONEON_FAULT" not in release
    if name != "bin/bandoneon":
        assert b"BANDONEON_FAULT" in (FAULTY / name).read_bytes(), "the text by which this test tells them apart"


def test_a_wrong_fault_is_named():
    for text, named in (("point=reply.none", "reply.none"), ("point=reply.some,do=nap", "nap"), ("point=reply.some,at=x", "at=x"),
                        ("place=reply.some", "place")):
        done = subprocess.run([FAULTY / "bin" / "bandoneon-server", "--version"], env=os.environ | {"BANDONEON_FAULT": text},
                              capture_output=True, text=True, check=False)
        assert done.returncode == 64 and named in done.stderr, done.stderr


assert STOPPED_FOR > 2 and pathlib.Path(PROGRAM).exists()
