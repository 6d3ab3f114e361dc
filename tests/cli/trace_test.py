"""`bandoneon trace`: what it makes of the recordings of a real job, and what it says of directories that have none."""

import gzip
import json
import os
import pathlib
import shutil
import signal
import sys
import time
from xml.etree import ElementTree

import pytest
from command_helpers import LIMIT, ROOT, read_until

sys.path.insert(0, str(ROOT / "tests" / "reference"))
import trace_reference  # noqa: E402  # pylint: disable=wrong-import-position

GOLDEN = ROOT / "tests" / "golden" / "recording.bdntrace"


@pytest.fixture
def recordings(real, tmp_path):
    """The recordings of a job of two workers and a server that has exchanged 1 MiB twenty times."""
    folder = tmp_path / "recordings"
    folder.mkdir()
    real.environment["BANDONEON_TRACE"] = str(folder)
    bench = real.run("bench", "pushpull", "--workers", 2, "--servers", 1, "--tensors", 2, "--bytes", 262144, "--iters", 20)
    assert bench.returncode == 0, bench.stderr
    assert sorted(path.name.split(".")[0] for path in folder.iterdir()) == ["server-0", "worker-0", "worker-1"]
    return folder


def test_a_job_is_explained(real, recordings):
    done = real.run("trace", "explain", recordings)
    assert done.returncode == 0, done.stderr
    assert "exchanges alone" in done.stdout and "The critical path of a step" in done.stdout
    report = json.loads(real.run("trace", "explain", recordings, "--json").stdout)
    assert [node["name"] for node in report["nodes"]] == ["worker 0", "worker 1", "server 0"]
    assert report["warnings"] == [] and len(report["steps"]) >= 20
    for step in report["steps"]:
        assert sum(piece["ms"] for piece in step["critical_path"]) == pytest.approx(step["ms"])
    last = report["steps"][-1]["step"]
    one = real.run("trace", "explain", recordings, "--step", last)
    assert one.returncode == 0 and f"The critical path of step {last}" in one.stdout
    assert "is not in these recordings" in real.run("trace", "explain", recordings, "--step", last + 1).stderr


def test_both_readers_count_the_same(real, recordings):
    report = json.loads(real.run("trace", "explain", recordings, "--json").stdout)
    counts = {node["name"]: node["records"] for node in report["nodes"]}
    for path in recordings.iterdir():
        recording = trace_reference.read_file(path)
        assert counts[f"{recording.facts['role']} {recording.facts['rank']}"] == len(recording.records) > 100


def test_a_job_becomes_one_timeline(real, recordings, tmp_path):
    done = real.run("trace", "merge", recordings, "-o", tmp_path / "job.json.gz")
    assert done.returncode == 0, done.stderr
    assert "3 nodes" in done.stdout and "Open it at ui.perfetto.dev" in done.stdout
    with gzip.open(tmp_path / "job.json.gz") as file:
        timeline = json.load(file)
    events = timeline["traceEvents"]
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {"worker 0", "worker 1", "server 0"}
    begun = {event["id"] for event in events if event["ph"] == "s"}
    assert len(begun) >= 80 and begun == {event["id"] for event in events if event["ph"] == "f"}
    assert real.run("trace", "merge", recordings, "-o", tmp_path / "job.txt").returncode == 1
    assert "into which file?" in real.run("trace", "merge", recordings).stderr


def test_a_step_becomes_a_picture(real, recordings, tmp_path):
    report = json.loads(real.run("trace", "explain", recordings, "--json").stdout)
    number = report["steps"][10]["step"]
    done = real.run("trace", "merge", recordings, "--step", number, "-o", tmp_path / "step.svg")
    assert done.returncode == 0, done.stderr
    assert "Open it in a browser" in done.stdout
    texts = list(ElementTree.parse(tmp_path / "step.svg").getroot().itertext())
    assert f"critical path of step {number}" in texts
    assert any(text.startswith("job ") and f"step {number}: {report['steps'][10]['ms']:.2f} ms" in text for text in texts)
    assert {"worker 0", "worker 1", "server 0"} <= {text.split("   ")[0] for text in texts}
    unknown = real.run("trace", "merge", recordings, "--step", 10**6, "-o", tmp_path / "none.svg")
    assert unknown.returncode == 1 and "step 1000000 is not in these recordings, which have steps" in unknown.stderr
    assert not (tmp_path / "none.svg").exists()


def varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        number |= (data[at] & 0x7f) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            return number, at


def fields(data: bytes):
    """(number, value) of each field of a message in protobuf's encoding."""
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        if tag & 7 == 0:
            value, at = varint(data, at)
        elif tag & 7 == 1:
            value, at = data[at:at + 8], at + 8
        else:
            assert tag & 7 == 2
            length, at = varint(data, at)
            value, at = data[at:at + length], at + length
        yield tag >> 3, value


def test_perfetto_reads_the_timeline(real, recordings, tmp_path):
    """By Perfetto's own messages where the package perfetto is there, else by their field numbers."""
    done = real.run("trace", "merge", recordings, "-o", tmp_path / "job.pftrace")
    assert done.returncode == 0, done.stderr
    data = (tmp_path / "job.pftrace").read_bytes()
    tracks, begins, ends, flows = set(), 0, 0, set()
    try:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2
    except ImportError:
        for number, packet in fields(data):
            assert number == 1
            parts = dict(fields(packet))
            if 60 in parts:
                tracks.add(dict(fields(parts[60])).get(2))
            if 11 in parts:
                event = list(fields(parts[11]))
                begins += dict(event)[9] == 1
                ends += dict(event)[9] == 2
                flows |= {value for field, value in event if field in (47, 48)}
    else:
        trace = perfetto_trace_pb2.Trace.FromString(data)
        for packet in trace.packet:
            if packet.HasField("track_descriptor"):
                tracks.add(packet.track_descriptor.name.encode())
            if packet.HasField("track_event"):
                begins += packet.track_event.type == perfetto_trace_pb2.TrackEvent.TYPE_SLICE_BEGIN
                ends += packet.track_event.type == perfetto_trace_pb2.TrackEvent.TYPE_SLICE_END
                flows |= {*packet.track_event.flow_ids, *packet.track_event.terminating_flow_ids}
    assert {b"wait", b"hold", b"send"} <= tracks
    assert begins == ends > 500 and len(flows) >= 80


def test_a_worker_that_was_stopped_is_named(real, tmp_path):
    """Worker 1 is stopped amid its training, and all are killed."""
    folder = tmp_path / "recordings"
    folder.mkdir()
    program = tmp_path / "train.py"
    program.write_text("""
import os, signal, sys
import torch
import bandoneon.torch as bdn
bdn.init()
tensor = torch.ones(100_000)
for step in range(1, 1000):
    if bdn.rank() == 1 and step == 30:
        print("stops", os.getpid(), flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
    bdn.push_pull(tensor, "the.tensor").wait()
""")
    settings = ("--set", f"trace={folder}", "--set", "lease-timeout=60s")  # Nobody is lost before it was looked.
    run = real.start("run", "-n", 2, "-s", 1, *settings, "--", sys.executable, program)
    stopped = int(read_until(run.stdout, 1, "stops")[-1].split()[-1])
    # The others read their clocks once a second; a node that is 3 s behind them is silent.
    server = next(path for path in folder.iterdir() if path.name.startswith("server"))
    newest = max(clock for clock, _ in trace_reference.read_file(server).clocks)
    while max(clock for clock, _ in trace_reference.read_file(server).clocks) < newest + 5_000_000_000:
        assert run.poll() is None
        time.sleep(0.1)
    hang = real.run("trace", "hang", folder)
    os.kill(stopped, signal.SIGKILL)
    run.kill()
    run.communicate(timeout=LIMIT)
    assert hang.returncode == 0, hang.stderr
    first, *table = hang.stdout.splitlines()
    assert first.startswith("worker 1 has not pushed 'the.tensor' of step ") and "worker 0 waits" in first
    assert f"its process (pid {stopped} on " in first and "was stopped or killed" in first
    assert any("silent" in line and "worker 1" in line for line in table)
    assert any(line.startswith(f"There is no Python stack of worker 1 (pid {stopped} on ") and line.endswith(": it is stopped, and answers once it goes on.")
               for line in table), table
    report = json.loads(real.run("trace", "hang", folder, "--json").stdout)
    assert report["sentence"].startswith("worker 1 has not")
    # That is the latest: the process was killed meanwhile.
    assert {node["name"]: node.get("why_no_stack") for node in report["nodes"]} == {"worker 0": None, "worker 1": "it has ended", "server 0": None}


@pytest.mark.parametrize("loop", ["while True: pass", "sum(range(10 ** 13))"], ids=["Python", "C-that-keeps-the-interpreter"])
def test_hang_shows_where_the_program_is_that_others_wait_for(real, tmp_path, loop):
    folder = tmp_path / "recordings"
    folder.mkdir()
    program = tmp_path / "program.py"
    program.write_text(f"""
import os
import torch
import bandoneon.torch as bdn

def never_ends():
    print("never ends", os.getpid(), flush=True)
    {loop}

bdn.init()
tensor = torch.ones(1000)
for step in range(1, 1000):
    if bdn.rank() == 1 and step == 30:
        never_ends()
    bdn.push_pull(tensor, "the.tensor").wait()
""")
    run = real.start("run", "-n", 2, "-s", 1, "--set", f"trace={folder}", "--", sys.executable, program)
    hung = int(read_until(run.stdout, 1, "never ends")[-1].split()[-1])
    for _ in range(2):  # A second answer takes the place of the first.
        hang = real.run("trace", "hang", folder)
        assert hang.returncode == 0, hang.stderr
        lines = hang.stdout.splitlines()
        at = next(i for i, line in enumerate(lines) if line.startswith(f"The Python stack of worker 1 (pid {hung} on "))
        stack = [line.strip() for line in lines[at + 1:]]
        end = stack.index("") if "" in stack else len(stack)
        found = [line for line in stack[:end] if line.startswith(f'File "{program}"')]
        assert found == [f'File "{program}", line 8 in never_ends', f'File "{program}", line 14 in <module>'], hang.stdout
    run.kill()
    run.communicate(timeout=LIMIT)


def test_directories_that_cannot_be_read_are_named(real, tmp_path):
    for command in ("explain", "hang", "merge"):
        more = ["-o", tmp_path / "x.json"] if command == "merge" else []
        done = real.run("trace", command, tmp_path / "nowhere", *more)
        assert done.returncode == 1 and "nowhere cannot be read" in done.stderr
        assert "run the job with setting trace=" in real.run("trace", command, tmp_path, *more).stderr
        assert "which recordings?" in real.run("trace", command).stderr
        assert real.run("trace", command, "--help").stdout.startswith(f"usage: bandoneon trace {command} DIR")
    done = real.run("trace", "explian")
    assert done.returncode == 2 and "did you mean 'trace explain'?" in done.stderr


def test_two_jobs_in_a_directory_are_told_apart(real, tmp_path):
    shutil.copy(GOLDEN, tmp_path / "worker-1.1.bdntrace")
    other = GOLDEN.read_bytes().replace(b'"golden"', b'"gilded"')
    (tmp_path / "worker-1.2.bdntrace").write_bytes(other)
    done = real.run("trace", "hang", tmp_path)
    assert done.returncode == 1
    assert "2 jobs: 'gilded' (1 file), 'golden' (1 file); choose one by --job NAME" in done.stderr
    assert real.run("trace", "hang", tmp_path, "--job", "gilded").returncode == 0
    cut = pathlib.Path(tmp_path / "worker-1.2.bdntrace")
    cut.write_bytes(other[:500])
    done = real.run("trace", "explain", tmp_path, "--job", "golden")
    assert done.returncode == 0 and "worker-1.2.bdntrace: it is cut off before its first record" in done.stdout


def test_a_profile_of_pytorch_is_asked_for_its_rank(real, recordings, tmp_path):
    profile = tmp_path / "torch.json"
    profile.write_text(json.dumps({"traceEvents": [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 5, "dur": 1}]}))
    done = real.run("trace", "merge", recordings, "-o", tmp_path / "job.json", "--torch", profile)
    assert done.returncode == 1 and "say --torch RANK=" in done.stderr
    done = real.run("trace", "merge", recordings, "-o", tmp_path / "job.json", "--torch", f"0={profile}", f"1={profile}")
    assert done.returncode == 0, done.stderr
    events = json.loads((tmp_path / "job.json").read_text())["traceEvents"]
    assert sorted(event["pid"] for event in events if event["name"] == "aten::mm") == [1, 2]
