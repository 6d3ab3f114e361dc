"""deploy/slurm, run with a stand-in for Slurm: the daemons and the training are real."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys

import pytest
from deploy_helpers import BIN, DEPLOY, ROOT

SCRIPT = DEPLOY / "slurm" / "train.sbatch"
WORKER = DEPLOY / "slurm" / "worker.sbatch"
PROGRAM = ROOT / "tests" / "cli" / "train_program.py"
LIMIT = 120

# As srun does it for what the script asks: each task a process with its variables, lines labelled on demand,
# all of them ended with it, and the first code that is not 0 returned.
SRUN = f"""#!{sys.executable}
import os, signal, subprocess, sys, threading
arguments = sys.argv[1:]
options = {{}}
while arguments[0].startswith("--"):
    name, _, value = arguments.pop(0)[2:].partition("=")
    options[name] = value
unknown = set(options) - {{"overlap", "nodes", "ntasks", "nodelist", "label", "kill-on-bad-exit"}}
assert not unknown, unknown
with open(os.environ["FAKE_SLURM_LOG"], "a") as log:
    print(" ".join([*sorted(options), "|", *arguments]).replace("\\n", " "), file=log)
count = int(options["ntasks"])
tasks = []
is_ended = False
def end(*_):
    global is_ended
    is_ended = True
    for task in tasks:
        task.terminate()
signal.signal(signal.SIGTERM, end)
for task in range(count):
    if is_ended:
        break
    place = dict(SLURM_PROCID=str(task), SLURM_LOCALID=str(task), SLURM_NODEID="0", SLURMD_NODENAME="localhost",
                 SLURM_STEP_TASKS_PER_NODE=f"{{count}}(x1)")
    tasks.append(subprocess.Popen(arguments, env=os.environ | place, stdin=subprocess.DEVNULL, text=True,
                                  stdout=subprocess.PIPE if "label" in options else None))
if is_ended:
    end()  # The signal may have come while a task was started and not yet in the list.
def label(number, task):
    for line in task.stdout:
        print(f"{{number}}: {{line}}", end="", flush=True)
readers = [threading.Thread(target=label, args=pair) for pair in enumerate(tasks) if pair[1].stdout]
for reader in readers:
    reader.start()
codes = []
for task in tasks:
    codes.append(task.wait())
    if codes[-1] and "kill-on-bad-exit" in options:
        for other in tasks:
            other.terminate()
for reader in readers:
    reader.join()
sys.exit(next((code if code > 0 else 128 - code for code in codes if code), 0))
"""


@pytest.fixture
def slurm(tmp_path):
    """What the script finds on its one node: its environment."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, text in (("srun", SRUN), ("scontrol", '#!/bin/sh\n[ "$1 $2" = "show hostnames" ] && echo localhost\necho "$@" >>$FAKE_SLURM_LOG\n')):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("BANDONEON_", "SLURM"))}
    return environment | {"PATH": f"{programs}:{os.environ['PATH']}", "BANDONEON_BIN": str(BIN), "SLURM_JOB_ID": "4711",
                          "SLURM_JOB_NUM_NODES": "1", "SLURM_NTASKS": "2", "SLURM_JOB_NODELIST": "localhost",
                          "SLURM_SUBMIT_DIR": str(tmp_path), "FAKE_SLURM_LOG": str(tmp_path / "log")}


def submit(slurm, *command, script=SCRIPT):
    # Slurm runs a copy, elsewhere.
    copy = pathlib.Path(slurm["SLURM_SUBMIT_DIR"]) / "slurm_script"
    shutil.copy(script, copy)
    return subprocess.run([copy, *map(str, command)], env=slurm, capture_output=True, text=True, timeout=LIMIT,
                          stdin=subprocess.DEVNULL, check=False)


def log_of(slurm):
    return pathlib.Path(slurm["FAKE_SLURM_LOG"]).read_text(encoding="utf-8").splitlines()


def left_behind(slurm):
    return sorted(path.name for path in pathlib.Path(slurm["SLURM_SUBMIT_DIR"]).glob("bandoneon-*"))


def test_a_job_trains(slurm):
    done = submit(slurm | {"BANDONEON_SERVERS": "2"}, sys.executable, PROGRAM)
    assert done.returncode == 0, done.stderr
    lines = sorted(line for line in done.stdout.splitlines() if "trained" in line)
    assert [line.split(" to ")[0] for line in lines] == ["0: trained 0 of 2", "1: trained 1 of 2"]
    assert lines[0].split(" to ")[1] == lines[1].split(" to ")[1]
    steps = [line for line in log_of(slurm) if "|" in line]
    assert len(steps) == 3 and sum("exec bandoneon-server" in step for step in steps[1:]) == 1
    assert "bandoneon-scheduler" in steps[0] and "--workers 2 --servers 2" in steps[0]
    assert left_behind(slurm) == []


def test_the_secret_is_in_a_file_that_its_user_alone_reads(slurm):
    line = 'stat -c "%a" $BANDONEON_TOKEN_FILE $(dirname $BANDONEON_TOKEN_FILE); wc -c <$BANDONEON_TOKEN_FILE'
    done = submit(slurm | {"SLURM_NTASKS": "1"}, "sh", "-c", line + "; cat $BANDONEON_TOKEN_FILE; exit 3")
    assert done.returncode == 3
    file, directory, size, token = [text.split(": ")[1] for text in done.stdout.splitlines() if text.startswith("0: ")]
    assert (file, directory, size) == ("600", "700", "64")
    assert token not in pathlib.Path(slurm["FAKE_SLURM_LOG"]).read_text()
    assert left_behind(slurm) == []


def test_the_code_of_a_worker_that_fails_is_the_jobs(slurm):
    done = submit(slurm, "sh", "-c", 'echo "$RANK $LOCAL_RANK $LOCAL_WORLD_SIZE $WORLD_SIZE"; exit $((7 * RANK))')
    assert done.returncode == 7, done.stderr
    assert {"0: 0 0 2 2", "1: 1 1 2 2"} <= set(done.stdout.splitlines())


def test_a_scheduler_that_does_not_start_ends_it(slurm):
    done = submit(slurm | {"BANDONEON_LEASE_TIMEOUT": "soon"}, "true")
    assert done.returncode == 1
    assert "BANDONEON_LEASE_TIMEOUT" in done.stderr or "lease-timeout" in done.stderr
    assert "the scheduler ended" in done.stderr and left_behind(slurm) == []


def test_a_node_that_takes_itself_for_loopback_is_named(slurm):
    done = submit(slurm | {"SLURM_JOB_NUM_NODES": "2"}, "true")
    assert done.returncode == 1
    assert 'localhost is "127.0.0.1"' in done.stderr and left_behind(slurm) == []


def test_it_is_nothing_without_a_command(slurm):
    done = submit(slurm)
    assert done.returncode == 2 and "no command" in done.stderr


@pytest.mark.parametrize("script", [SCRIPT, WORKER], ids=["train", "worker"])
def test_a_script_is_sound(script):
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
    if shutil.which("shellcheck"):
        done = subprocess.run(["shellcheck", script], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


# ---- A worker that comes back


@pytest.fixture
def task(slurm):
    """The environment of an array's fourth task."""
    return slurm | {"SLURM_ARRAY_TASK_ID": "3"}


@pytest.mark.parametrize("ends, status, is_queued", [("exit 0", 0, False), ("exit 1", 1, False), ("exit 74", 74, False),
                                                     ("exit 127", 127, False), ("exit 75", 75, True), ("kill -KILL $$", 137, True),
                                                     ("kill -SEGV $$", 139, True)])
def test_a_worker_is_queued_again_where_it_asks_for_it_or_a_signal_ends_it(task, ends, status, is_queued):
    done = submit(task, "sh", "-c", f'echo "rank $BANDONEON_RANK of $LOCAL_RANK/$LOCAL_WORLD_SIZE"; {ends}', script=WORKER)
    assert done.returncode == status and "rank 3 of 0/1\n" in done.stdout, done.stderr
    assert ("requeue 4711" in log_of(task)) == is_queued


def test_a_worker_that_is_preempted_leaves_and_is_queued_again(task):
    """Slurm sends the signal to the script, to srun and to the program."""
    process = subprocess.Popen([WORKER, "sh", "-c", "trap 'exit 75' TERM; echo here; while :; do sleep 0.1; done"],
                               env=task, stdout=subprocess.PIPE, text=True, start_new_session=True)
    with process:
        assert process.stdout.readline() == "here\n"
        os.killpg(process.pid, signal.SIGTERM)
        process.stdout.read()
        assert process.wait(LIMIT) == 75 and "requeue 4711" in log_of(task)


def test_a_worker_of_no_array_has_no_rank(slurm):
    done = submit(slurm, "true", script=WORKER)
    assert done.returncode != 0 and "sbatch --array" in done.stderr
    done = submit(slurm, script=WORKER)
    assert done.returncode == 2 and "no command" in done.stderr
