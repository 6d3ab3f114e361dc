"""scripts/check_history: true histories agree, and of broken ones it names the first contradiction. Real processes write the true ones."""

import copy
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from importlib.machinery import SourceFileLoader

import pytest
from process_helpers import ROOT
from restarted_job import WORKERS, start  # noqa: F401  (a fixture)

SCRIPT = ROOT / "scripts" / "check_history"
loader = SourceFileLoader("check_history", str(SCRIPT))
check_history = importlib.util.module_from_spec(importlib.util.spec_from_loader("check_history", loader))
loader.exec_module(check_history)

ROSTER = {"unsafe": 0, "servers": [[0, 9]], "vacant": [], "moved": {}}


def epoch(at, number=1, workers=(0, 1), **changed):
    return {"at": at, "event": "epoch", "epoch": number, "workers": [[rank, rank + 1] for rank in workers], **ROSTER, **changed}


def begin(role, rank=None):
    return {"at": 0.0, "event": "begin", "role": role, "job": "j"} | ({} if rank is None else {"rank": rank, "node": rank + 1})


def true_histories():
    """A server of three steps, which is lost after two of them, and the one that makes them again; two workers."""
    def a_round(at, step, number=1, ranks=(0, 1)):
        return {"at": at, "event": "round", "key": "0.0", "step": step, "epoch": number, "ranks": list(ranks), "crc": 100 + step, "flags": 0}

    def rebuild(at, what, start=0, target=0):
        return {"at": at, "event": "rebuild", "key": "0.0", "what": what, "start": start, "target": target}

    def worker(rank):
        lines = [begin("worker", rank), epoch(1.0, workers=())]
        for step in (1, 2, 3):
            lines.append({"at": step + 1.0, "event": "push", "key": "0.0", "step": step, "crc": 10 * step + rank, "flags": 0})
            lines.append({"at": step + 1.5, "event": "reply", "key": "0.0", "step": step, "epoch": 1 if step < 3 else 2,
                          "crc": 100 + step, "flags": 0})
            if step == 2:
                lines.append(epoch(3.6, 2, workers=()))
        return [*lines, {"at": 5.0, "event": "left"}]

    return {
        "scheduler": [begin("scheduler"), epoch(0.5), epoch(3.5, 2)],
        "first": [begin("server", 0), epoch(0.6), a_round(2.2, 1), a_round(3.2, 2)],
        "second": [begin("server", 0), epoch(3.6, 2), rebuild(3.7, "begin"), rebuild(3.8, "plan", 0, 2), a_round(3.85, 1, 2),
                   a_round(3.9, 2, 2), rebuild(3.95, "whole", 0, 2), a_round(4.2, 3, 2)],
        "worker-0": worker(0),
        "worker-1": worker(1),
    }


def run_check(folder, histories, *options):
    """The exit status and the output."""
    paths = []
    for name, lines in histories.items():
        paths.append(folder / name)
        paths[-1].write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
    done = subprocess.run([sys.executable, SCRIPT, *options, *paths], capture_output=True, text=True, check=False)
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout


def test_true_histories_agree_and_a_torn_last_line_is_nobodys_fault(tmp_path):
    histories = true_histories()
    histories["worker-1"].append('{"at": 9, "eve')
    assert run_check(tmp_path, histories) == (0, "35 events of 1 job(s) in 5 files agree\n")


def returned_histories():
    """Worker 1 has pushed step 2, and is out before it counts; another process takes its rank, and pushes step 3."""
    def exchange(at, step, number, pushed):
        return [{"at": at, "event": "push", "key": "0.0", "step": step, "crc": pushed, "flags": 0},
                {"at": at + 0.1, "event": "reply", "key": "0.0", "step": step, "epoch": number, "crc": 100 + step, "flags": 0}]

    def a_round(at, step, number, ranks):
        return {"at": at, "event": "round", "key": "0.0", "step": step, "epoch": number, "ranks": ranks, "crc": 100 + step, "flags": 0}

    without = {"workers": (0,), "vacant": [1], "unsafe": 2}
    again = {"workers": [[0, 1], [1, 7]], "unsafe": 3}
    told = {"workers": [], "unsafe": 3}
    newcomer = begin("worker", 1) | {"node": 7}
    return {
        "scheduler": [begin("scheduler"), epoch(0.5), epoch(2.5, 2, **without), epoch(3.5, 3) | again],
        "server": [begin("server", 0), epoch(0.6), a_round(1.2, 1, 1, [0, 1]), epoch(2.6, 2, **without), a_round(2.7, 2, 2, [0]),
                   epoch(3.6, 3) | again, a_round(4.2, 3, 3, [0, 1])],
        "worker-0": [begin("worker", 0), epoch(1.0, workers=()), *exchange(1.1, 1, 1, 1), epoch(2.6, 2) | without | {"workers": []},
                     *exchange(2.6, 2, 2, 2), epoch(3.6, 3) | told, *exchange(4.1, 3, 3, 3)],
        "worker-1-first": [begin("worker", 1), epoch(1.0, workers=()), *exchange(1.1, 1, 1, 11), *exchange(2.0, 2, 1, 12)[:1],
                           *exchange(2.1, 3, 1, 13)[:1]],
        "worker-1-second": [newcomer, epoch(3.4, 2) | without | {"workers": []}, epoch(3.6, 3) | told, *exchange(4.1, 3, 3, 23)],
    }


def test_a_rank_may_be_another_process_later(tmp_path):
    histories = returned_histories()
    assert run_check(tmp_path, histories)[0] == 0, run_check(tmp_path, histories)[1]
    # What the first one had pushed does not stand for the second.
    del histories["worker-1-second"][3:]
    code, output = run_check(tmp_path, histories)
    assert code == 1 and "worker 1 has not pushed step 3" in output, output


def change(name, line, **fields):
    return lambda histories: histories[name][line].update(fields)


def insert(name, line, like, **fields):
    return lambda histories: histories[name].insert(line, copy.deepcopy(histories[name][like]) | fields)


# The rule, the file and line that is named, and what is broken.
BROKEN = {
    "closed-twice": ("chain", "first:4", insert("first", 3, 2, at=2.3)),
    "closed-backwards": ("chain", "first:5", insert("first", 4, 2, at=3.3)),
    "begins-before-its-start": ("chain", "second:5", change("second", 3, start=1)),
    "again-other-result": ("again", "second:6", lambda histories: [change("second", 5, crc=7)(histories), *(
        change(name, 5, crc=7)(histories) for name in ("worker-0", "worker-1"))]),
    "again-other-workers": ("again", "second:5", lambda histories: [change("scheduler", 2, workers=[[0, 1]])(histories), change(
        "second", 1, workers=[[0, 1]])(histories), *(change("second", line, ranks=[0])(histories) for line in (4, 5, 7)), change(
            "first", 3, ranks=[1])(histories), change("first", 1, workers=[[1, 2]])(histories), change(
                "scheduler", 1, workers=[[1, 2]])(histories), change("first", 2, ranks=[1])(histories)]),
    "counted-twice": ("once", "first:3", change("first", 2, ranks=[0, 1, 1])),
    "not-counted": ("once", "first:3", change("first", 2, ranks=[1])),
    "epoch-of-nobody": ("once", "first:3", change("first", 2, epoch=7)),
    "other-bytes": ("same", "worker-1:4", change("worker-1", 3, crc=1)),
    "other-flags": ("same", "worker-1:4", change("worker-1", 3, flags=8)),
    "result-of-nobody": ("same", "worker-0:9", lambda histories: [change(
        name, line, crc=5)(histories) for name, line in (("worker-0", 8), ("worker-1", 8))]),
    "not-pushed": ("pushed", "second:8", lambda histories: [histories["worker-1"].pop(8), histories["worker-1"].pop(7)]),
    "pushed-again-otherwise": ("pushed", "worker-0:4", insert("worker-0", 3, 2, crc=3)),
    "result-without-push": ("pushed", "worker-0:3", lambda histories: histories["worker-0"].pop(2)),
    "steps-fall": ("rising", "worker-0:7", insert("worker-0", 6, 2)),
    "epochs-fall": ("rising", "worker-0:11", insert("worker-0", 10, 1)),
    "epoch-of-others": ("epochs", "first:2", change("first", 1, workers=[[0, 1]])),
    "epoch-of-other-slots": ("epochs", "worker-1:2", change("worker-1", 1, moved={"9": [[9, 2]] * 16})),
    "waits-long": ("progress", "worker-1:9", change("worker-1", 8, at=40.0)),
    "waits-for-ever": ("progress", "worker-1:8", lambda histories: [histories["worker-1"].pop(8), change(
        "worker-1", 8, at=60.0)(histories)]),
    "no-event": ("no event", "first:2", lambda histories: histories["first"].insert(1, "words\n")),
    "no-begin": ("begin", "first:1", lambda histories: histories["first"].pop(0)),
}


@pytest.mark.parametrize("case", BROKEN)
def test_of_broken_ones_the_first_contradiction_is_named(tmp_path, case):
    rule, place, broken = BROKEN[case]
    histories = true_histories()
    broken(histories)
    code, output = run_check(tmp_path, histories)
    assert code == 1 and output.startswith(f"{tmp_path}/{place}: ") and rule in output.splitlines()[0], output


def test_each_rule_of_its_help_is_broken_once():
    rules = set(re.findall(r"^  (\w+) +[A-Z]", check_history.__doc__, re.MULTILINE))
    assert rules and rules <= {rule for rule, _, _ in BROKEN.values()}


@pytest.mark.parametrize("ranks, among, said", [
    ([1], [1, 3], ""),  # rank 3 is not in the job
    ([0, 1], [0, 1], ""),
    ([0, 1], [1, 3], "the workers of epoch 2 among the ranks [1, 3] are [1]"),
    ([], [1], "the workers of epoch 2 among the ranks [1] are [1]"),
])
def test_of_a_group_its_workers_contribute_and_nobody_else(tmp_path, ranks, among, said):
    histories = true_histories()
    for rank in (0, 1):
        histories[f"worker-{rank}"].insert(-1, {"at": 4.8, "event": "push", "key": "7.0", "step": 1, "crc": 5, "flags": 0})
    histories["second"].append({"at": 4.9, "event": "round", "key": "7.0", "step": 1, "epoch": 2, "ranks": ranks, "among": among, "crc": 9, "flags": 0})
    code, output = run_check(tmp_path, histories)
    assert code == bool(said) and said in output, output


@pytest.mark.parametrize("has_ended", [False, True])
def test_a_worker_that_is_out_may_have_had_another_result(tmp_path, has_ended):
    histories = true_histories()
    if has_ended:  # The last epoch has no workers.
        histories["scheduler"].append(epoch(6.0, 3, workers=()))
    for name, line in (("scheduler", 2), ("second", 1)):
        histories[name][line].update(workers=[[0, 1]], vacant=[1], unsafe=2)
    histories["worker-0"][6].update(vacant=[1], unsafe=2)
    del histories["worker-1"][6:]
    for line in (4, 5, 7):
        histories["second"][line].update(ranks=[0])
    histories["second"][5].update(crc=7)
    histories["worker-0"][5].update(crc=7)
    assert run_check(tmp_path, histories)[0] == 0


def test_steps_that_were_estimated_may_have_other_results(tmp_path):
    histories = true_histories()
    histories["second"][3].update(what="estimate", start=2)
    del histories["second"][4:6]
    for name in ("worker-0", "worker-1"):
        histories[name][5].update(crc=8)
    assert run_check(tmp_path, histories)[0] == 0


@pytest.mark.parametrize("what, code", [("estimate", 0), ("plan", 1)])
def test_a_stopped_server_may_close_another_result_only_of_what_was_estimated(tmp_path, what, code):
    histories = true_histories()
    late = {"at": 9.0, "event": "round", "key": "0.0", "step": 3, "epoch": 1, "ranks": [0, 1], "crc": 77, "flags": 0}
    histories["first"].append(late)
    histories["second"][3].update(what=what, start=2)
    del histories["second"][4:6]
    if what == "estimate":
        for name in ("worker-0", "worker-1"):
            histories[name][5].update(crc=8)
    assert run_check(tmp_path, histories)[0] == code


def test_a_stopped_server_may_close_a_step_with_a_worker_that_is_out(tmp_path):
    histories = true_histories()
    # The same worker as above is lost with the server, before any step was closed with it again.
    for name, line in (("scheduler", 2), ("second", 1)):
        histories[name][line].update(workers=[[0, 1]], vacant=[1], unsafe=2)
    histories["worker-0"][6].update(vacant=[1], unsafe=2)
    del histories["worker-1"][8:]
    del histories["worker-1"][6]
    for line in (4, 5, 7):
        histories["second"][line].update(ranks=[0])
    late = {"at": 9.0, "event": "round", "key": "0.0", "step": 3, "epoch": 1, "ranks": [0, 1], "crc": 77, "flags": 0}
    histories["first"].append(late)
    code, output = run_check(tmp_path, histories)
    assert code == 0, output
    # In an epoch that has begun since, it has taken that worker's part twice.
    late.update(epoch=2)
    code, output = run_check(tmp_path, histories)
    assert code == 1, output


def test_histories_of_a_job_that_lost_a_server_agree(start, tmp_path):  # noqa: F811
    run = start("--restarts", "1", "--set", f"history-file={tmp_path}/job")
    run.process.wait_for("at 15", times=WORKERS)
    os.kill(run.daemon("bandoneon-server", "--rank=1"), signal.SIGKILL)
    run.process.wait_for("is started again")
    run.go(15)
    run.go(30)
    code, output = run.end()
    assert code == 0, output[-3000:]
    paths = sorted(tmp_path.glob("job.*"))
    assert [path.name.rsplit("-", 1)[0] for path in paths] == [
        "job.scheduler", "job.server-0", "job.server-1", "job.server-1", "job.worker-0", "job.worker-1"]
    events = "".join(path.read_text() for path in paths)
    assert '"what":"whole"' in events and events.count('"event":"left"') == WORKERS
    events, jobs = check_history.check(paths)
    assert events > 400 and jobs == 1


def test_without_the_setting_nothing_is_written_and_a_path_that_cannot_be_is_an_error(start, tmp_path):  # noqa: F811
    run = start("--set", f"history-file={tmp_path}/none/job")
    code, output = run.end()
    assert code != 0 and f"history-file: {tmp_path}/none/job.scheduler-" in output, output[-2000:]
