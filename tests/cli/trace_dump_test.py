"""`bandoneon trace dump` and `trace hang --scheduler`: jobs that run or hang, asked from another shell."""

import json
import os
import re
import signal
import sys
import time

import pytest
from command_helpers import LIMIT, ROOT, read_until

sys.path.insert(0, str(ROOT / "tests" / "reference"))
import trace_reference  # noqa: E402  # pylint: disable=wrong-import-position

# Exchanges two tensors a step; rank 1 stands still in step HANG, if there is one.
PROGRAM = """
import ctypes, sys, time
import bandoneon
from bandoneon.calls import Declaration

HANG = int(sys.argv[1])
worker = bandoneon.init()
tensors = worker.declare([Declaration(f"layer.{i}", 1 << 12) for i in range(2)])
data = (ctypes.c_float * (1 << 12))()
for step in range(1, 1_000_000):
    if worker.rank == 1 and step == HANG:
        print("stands still", flush=True)
        time.sleep(1000)
    for ticket in [worker.push(tensor, ctypes.addressof(data), keep=data) for tensor in tensors]:
        worker.wait(ticket)
    if step == 20:
        print("runs", flush=True)
    time.sleep(0.005)
"""


@pytest.fixture
def job(real, tmp_path):
    """Starts a job of two workers and a server, whose scheduler and token later commands find in their environment."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    started = []

    def start(*options, hang=0, until=2):
        run = real.start("run", "-n", 2, "-s", 1, "--linger", "0s", "--set", "lease-timeout=60s", *options, "--",
                         sys.executable, program, hang)
        started.append(run)
        real.environment["BANDONEON_SCHEDULER"] = read_until(run.stderr, 1, "scheduler at")[-1].split()[-1]
        real.environment["BANDONEON_TOKEN_FILE"] = read_until(run.stderr, 1, "--token-file")[-1].split()[-1]
        read_until(run.stdout, until, "stands still" if hang else "runs")
        return run

    yield start
    for run in started:
        run.kill()
        run.communicate(timeout=LIMIT)


def pids(real) -> dict[str, int]:
    """The process of each node, as the scheduler knows it."""
    status = json.loads(real.run("status", "--json").stdout)
    return {f"{node['role']} {node['rank']}": int(node["host"].rpartition(":")[2]) for node in status["nodes"]}


class Stopped:
    """Stops a process for a while."""

    def __init__(self, pid: int):
        self.pid = pid

    def __enter__(self):
        os.kill(self.pid, signal.SIGSTOP)

    def __exit__(self, *_):
        os.kill(self.pid, signal.SIGCONT)


def hang_of(real, *options):
    return real.run("trace", "hang", "--scheduler", real.environment["BANDONEON_SCHEDULER"], *options)


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_job_that_runs_is_dumped_and_goes_on(real, job, tmp_path):
    run = job()
    folder = tmp_path / "dump"
    done = real.run("trace", "dump", "-o", folder)
    assert done.returncode == 0, done.stderr
    assert names(folder) == ["server-0.bdntrace", "worker-0.bdntrace", "worker-1.bdntrace"]
    *nodes, count, following = done.stdout.splitlines()
    # They come as they answer.
    assert [line.split(" (")[0] for line in sorted(nodes)] == ["server 0", "worker 0", "worker 1"]
    assert all(re.search(r"\): \d+ records of [\d.]+ s, [\d.]+ kB$", line) for line in nodes), nodes
    assert count.startswith("3 of 3 recordings of job '") and count.endswith(f"are in {folder}")
    assert following == f"Next: bandoneon trace explain {folder}, or trace hang, or trace merge -o job.pftrace"
    # Another reader, written from the format's page alone, and the commands.
    for path in folder.iterdir():
        recording = trace_reference.read_file(path)
        assert f"{recording.facts['role']}-{recording.facts['rank']}.bdntrace" == path.name
        assert len(recording.records) > 20 and path.stat().st_size <= 1 << 20 and path.stat().st_mode & 0o777 == 0o600
        assert {"layer.0", "layer.1"} <= set(recording.names.values())
    explained = json.loads(real.run("trace", "explain", folder, "--json").stdout)
    assert len(explained["steps"]) >= 10
    assert [node["name"] for node in explained["nodes"]] == ["worker 0", "worker 1", "server 0"]
    merged = real.run("trace", "merge", folder, "-o", tmp_path / "job.pftrace")
    assert merged.returncode == 0 and "3 nodes" in merged.stdout, merged.stderr
    # Again and again, and the job does not mind.
    for i in range(3):
        again = real.run("trace", "dump", "-o", tmp_path / f"again{i}", "--last", "1s", "--nodes", "worker-1")
        assert again.returncode == 0, again.stderr
        assert names(tmp_path / f"again{i}") == ["worker-1.bdntrace"]
        recording = trace_reference.read_file(tmp_path / f"again{i}" / "worker-1.bdntrace")
        ends = [record.begin + record.duration for record in recording.records]
        assert max(ends) - min(ends) <= 1_000_000_000
    assert run.poll() is None
    report = json.loads(hang_of(real, "--json").stdout)
    assert [node["state"] for node in report["nodes"]] == ["alive"] * 3


def test_a_job_that_stands_still_is_explained(real, job, tmp_path):
    """Rank 1's program does nothing, and its node's threads answer: the last line names it."""
    job(hang=30, until=1)
    folder = tmp_path / "dump"
    while True:
        done = real.run("trace", "dump", "-o", folder)
        assert done.returncode == 0, done.stderr
        if done.stdout.splitlines()[-1].startswith("worker 1"):
            break
        # The round has been open for a second, or soon will be.
        for path in folder.iterdir():
            path.unlink()
    last = done.stdout.splitlines()[-1]
    sentence = "worker 1 has not pushed 'layer.0' of step 30 (and 1 more), for which worker 0 waits; "
    assert last.startswith(sentence) and last.endswith("runs"), done.stdout
    # The command asks without a directory, and shows where the program is, which runs on this machine.
    hang = hang_of(real)
    assert hang.returncode == 0, hang.stderr
    assert hang.stdout.startswith("worker 1 has not pushed 'layer.0' of step 30") and "time.sleep" not in hang.stdout
    assert f'File "{tmp_path / "program.py"}", line 13 in <module>' in hang.stdout, hang.stdout
    assert real.run("trace", "hang", folder).stdout.startswith("worker 1 has not pushed")
    assert real.left_behind() == sorted(path for path in real.temporary.iterdir() if "bandoneon" in path.name)


def test_a_worker_that_is_stopped_is_named_and_the_others_come(real, job, tmp_path):
    job()
    with Stopped(pids(real)["worker 1"]):
        done = real.run("trace", "dump", "-o", tmp_path / "dump", "--timeout", "3s")
        hang = hang_of(real, "--timeout", "2500ms")
    assert done.returncode == 0, done.stderr
    assert names(tmp_path / "dump") == ["server-0.bdntrace", "worker-0.bdntrace"]
    lines = done.stdout.splitlines()
    missing = re.compile(r"worker 1 \(.*\): no recording: it did not answer for 3s$")
    assert any(map(missing.match, lines)), done.stdout
    assert any(line.startswith("2 of 3 recordings of job ") for line in lines)
    sentence = (r"worker 1 has not pushed 'layer\.\d' of step \d+( \(and 1 more\))?, for which worker 0 waits; "
                "there is no recording of it: it did not answer for 2.5s")
    assert hang.returncode == 0 and re.match(sentence, hang.stdout), hang.stdout
    assert re.search(r"note: worker 1 \(.*\): it did not answer for 2.5s", hang.stdout)
    # It goes on, and so does the job; what it was asked for meanwhile is forgotten.
    after = real.run("trace", "dump", "-o", tmp_path / "after")
    assert after.returncode == 0 and len(names(tmp_path / "after")) == 3, after.stdout


def test_a_server_that_is_stopped_is_named(real, job, tmp_path):
    job()
    with Stopped(pids(real)["server 0"]):
        time.sleep(1.5)  # The pushes are open for longer than two answers may lie apart.
        done = real.run("trace", "dump", "-o", tmp_path / "dump", "--timeout", "3s")
    assert done.returncode == 0, done.stderr
    assert names(tmp_path / "dump") == ["worker-0.bdntrace", "worker-1.bdntrace"]
    last = done.stdout.splitlines()[-1]
    assert last == "server 0 does not answer; there is no recording of it: it did not answer for 3s", done.stdout


def test_nodes_that_record_nothing_say_so(real, job, tmp_path):
    run = job("--set", "recorder-bytes=0")
    done = real.run("trace", "dump", "-o", tmp_path / "dump")
    assert done.returncode == 1 and not (tmp_path / "dump").exists()
    assert done.stdout.count("no recording: it records nothing: its settings are recorder-bytes=0 and no trace") == 3
    assert "no node gave a recording" in done.stderr
    assert run.poll() is None
    hang = hang_of(real)
    assert hang.returncode == 1 and re.search(r"no node gave a recording; (server|worker) \d \(", hang.stderr)


def test_with_trace_the_end_of_the_files_comes(real, job, tmp_path):
    recordings = tmp_path / "recordings"
    recordings.mkdir()
    job("--set", f"trace={recordings}")
    done = real.run("trace", "dump", "-o", tmp_path / "dump")
    assert done.returncode == 0, done.stderr
    assert len(trace_reference.read_file(tmp_path / "dump" / "worker-0.bdntrace").records) > 20
    # Not into the directory of the files themselves.
    refused = real.run("trace", "dump", "-o", recordings)
    assert refused.returncode == 1 and "name another directory" in refused.stderr
    assert f"{recordings} has recordings already (" in refused.stderr


def test_directories_that_cannot_be_written(real, job, tmp_path):
    job()
    file = tmp_path / "file"
    file.write_text("")
    assert f"{file} cannot be written: Not a directory" in real.run("trace", "dump", "-o", file).stderr
    nowhere = real.run("trace", "dump", "-o", tmp_path / "no" / "where")
    assert "cannot be made: No such file or directory" in nowhere.stderr
    assert "/proc cannot be written" in real.run("trace", "dump", "-o", "/proc").stderr or os.geteuid() == 0
    # A link of a recording's name leads nowhere.
    folder = tmp_path / "linked"
    folder.mkdir()
    (folder / "worker-0.bdntrace").symlink_to(tmp_path / "elsewhere")
    refused = real.run("trace", "dump", "-o", folder)
    assert refused.returncode == 1 and "has recordings already" in refused.stderr
    assert not (tmp_path / "elsewhere").exists()


def test_questions_that_are_wrong(real, job, tmp_path):
    job()
    folder = tmp_path / "dump"

    def refused(*options, code=1):
        done = real.run("trace", "dump", "-o", folder, *options)
        assert done.returncode == code and not folder.exists(), done.stdout
        return done.stderr

    assert "none of these nodes: 2 workers and 1 servers" in refused("--nodes", "worker-2")
    assert "'wroker-1' names none; expected workers, servers" in refused("--nodes", "wroker-1")
    assert "expected more than 0, up to 10m" in refused("--timeout", "0s")
    assert "did you mean '--nodes'?" in refused("--node", "worker-1", code=2)
    (tmp_path / "token").write_text("not the job's")
    assert "wrong token" in refused("--token-file", tmp_path / "token")
    real.environment.pop("BANDONEON_TOKEN_FILE")
    assert "no token" in refused() and "say --token-file PATH" in refused()
    assert "into which directory? say -o DIR" in real.run("trace", "dump").stderr
    both = real.run("trace", "hang", tmp_path, "--scheduler", "127.0.0.1:1")
    assert both.returncode == 2 and "say one of both" in both.stderr


def test_a_scheduler_that_is_not_there(real, tmp_path):
    folder = tmp_path / "dump"
    done = real.run("trace", "dump", "--scheduler", "127.0.0.1:1", "-o", folder)
    assert done.returncode == 1 and "a dump from the scheduler at 127.0.0.1:1: " in done.stderr and not folder.exists()
    assert "which scheduler? say --scheduler" in real.run("trace", "dump", "-o", folder).stderr
    assert "which recordings?" in real.run("trace", "hang").stderr
    usage = real.run("trace", "dump", "--help").stdout
    assert usage.startswith("usage: bandoneon trace dump --scheduler HOST:PORT -o DIR") and "--nodes LIST" in usage


def test_two_dumps_at_once_and_one_that_is_broken_off(real, job, tmp_path):
    job()
    with Stopped(pids(real)["worker 1"]):
        first = real.start("trace", "dump", "-o", tmp_path / "first", "--timeout", "60s")
        read_until(first.stdout, 1, "worker 0")
        second = real.run("trace", "dump", "-o", tmp_path / "second")
        assert second.returncode == 1 and "another dump of this job was begun" in second.stderr, second.stdout
        first.send_signal(signal.SIGINT)
        first.communicate(timeout=LIMIT)
        # What has come stays, and is whole; its turn is over.
        assert "worker-0.bdntrace" in names(tmp_path / "first")
        assert len(trace_reference.read_file(tmp_path / "first" / "worker-0.bdntrace").records) > 20
        deadline = time.monotonic() + LIMIT
        while (third := real.run("trace", "dump", "-o", tmp_path / "third", "--nodes", "worker-0")).returncode != 0:
            assert "another dump" in third.stderr and time.monotonic() < deadline, third.stderr


def test_a_job_that_fails_meanwhile(real, job, tmp_path):
    job()
    of_worker = pids(real)["worker 1"]
    os.kill(of_worker, signal.SIGSTOP)
    dump = real.start("trace", "dump", "-o", tmp_path / "dump", "--timeout", "60s")
    read_until(dump.stdout, 1, "worker 0")
    os.kill(of_worker, signal.SIGKILL)
    out, error = dump.communicate(timeout=LIMIT)
    assert dump.returncode == 0 and re.search(r"worker 1 \(.*\): no recording: the job has failed: ", out), out + error
