"""Recordings of real jobs: each phase of each key and step is there once, and those of a job that fails are kept."""

import collections
import itertools
import json
import os
import pathlib
import re
import subprocess
import sys

from process_helpers import BIN, ROOT

sys.path.insert(0, str(ROOT / "tests" / "reference"))
import trace_reference  # noqa: E402  # pylint: disable=wrong-import-position

PROGRAM = str(ROOT / "tests" / "system" / "recording_program.py")
STEPS = 6
WORKER = ["queue", "encode", "send", "wait", "decode_queue", "decode", "deliver"]
COUNTED_ELSEWHERE = 1
SAMPLES = ("thread", "machine", "link", "path")


def run(*settings, code=0, env=None):
    options = [word for setting in settings for word in ("--set", setting)]
    done = subprocess.run([BIN / "bandoneon", "run", "-n", "2", "-s", "2", *options, "--", sys.executable, PROGRAM],
                          capture_output=True, text=True, timeout=300, check=False, env=env)
    text = done.stdout + done.stderr
    assert (done.returncode == 0) == (code == 0), text
    return text


def recordings(folder):
    return [trace_reference.read(path.read_bytes()) for path in sorted(folder.glob("*.bdntrace"))]


def items(recording, kind, of):
    """{(key, step, peer if there is one): how many}, of the keys and steps of the program."""
    return collections.Counter((record.key, record.step) for record in recording.records
                               if record.kind == kind and (record.key, record.step) in of and not record.flags & COUNTED_ELSEWHERE)


def test_each_phase_of_each_key_and_step_is_there_once(tmp_path):
    run(f"trace={tmp_path}")
    found = recordings(tmp_path)
    assert sorted((one.facts["role"], one.facts["rank"]) for one in found) == [
        ("server", 0), ("server", 1), ("worker", 0), ("worker", 1)]
    workers = [one for one in found if one.facts["role"] == "worker"]
    servers = [one for one in found if one.facts["role"] == "server"]
    nodes = [one.facts["node"] for one in workers]
    assert all(one.facts["workers"] == nodes for one in servers)
    assert all(one.end > 0 and one.records_lost == 0 for one in found)
    # Broadcasts of the first weights are exchanges, too; they have a step of their own.
    pushed = {(record.key, record.step) for record in workers[0].records if record.kind == "encode"}
    names = {workers[0].names[key] for key, _ in pushed}
    assert any("weight" in name for name in names), names
    for worker in workers:
        for kind in WORKER:
            assert items(worker, kind, pushed) == dict.fromkeys(pushed, 1), (kind, worker.facts["rank"])
    answered = collections.Counter()
    for server in servers:
        rounds = items(server, "encode", pushed)
        answered += rounds
        for kind in ("queue", "hold", "sum", "reply"):
            # One of each worker, which it names.
            assert items(server, kind, pushed) == {item: 2 for item in rounds}, kind
            peers = {record.peer for record in server.records if record.kind == kind and (record.key, record.step) in rounds}
            assert peers <= set(nodes) and (not rounds or len(peers) == 2), kind
        for item in items(server, "rule", pushed):
            assert item in rounds
    assert answered == dict.fromkeys(pushed, 1)
    assert sum(len(items(server, "rule", pushed)) for server in servers) > 0
    for worker in workers:
        kinds = collections.Counter(record.kind for record in worker.records)
        assert kinds["step"] >= STEPS - 1 and kinds["forward"] >= STEPS and kinds["ready"] > 0 and kinds["thread"] > 0, kinds


def test_only_the_steps_of_the_setting_are_recorded(tmp_path):
    run(f"trace={tmp_path}", "trace-steps=2-3")
    for one in recordings(tmp_path):
        of_keys = {record.step for record in one.records if record.kind not in SAMPLES and record.step}
        assert of_keys <= {2, 3}, one.facts


def test_what_each_connection_carried_is_there_from_both_ends(tmp_path):
    # A server's last look may find the connections ended, so another one, a second after the one before, falls into the pause.
    run(f"trace={tmp_path}", "transport=network", env=os.environ | {"RECORDING_PROGRAM_PAUSES": "2.5"})
    found = recordings(tmp_path)
    moved = {}
    for one in found:
        paths = [record for record in one.records if record.kind == "path"]
        links = [record for record in one.records if record.kind == "link"]
        assert [(record.begin, record.peer) for record in links] == [(record.begin, record.peer) for record in paths]
        assert all(record.step > 0 for record in paths), "a round trip takes time"
        for record in links:
            sent, received = moved.get((one.facts["node"], record.peer), (0, 0))
            moved[one.facts["node"], record.peer] = sent + record.key, received + record.step
    workers = [one.facts["node"] for one in found if one.facts["role"] == "worker"]
    servers = [one.facts["node"] for one in found if one.facts["role"] == "server"]
    pairs = list(itertools.product(workers, servers))
    assert set(moved) == {*pairs, *((server, worker) for worker, server in pairs)}
    for worker, server in pairs:
        # The ends stop to look at other times, and one of them acknowledges what the other has sent last.
        for sent, received in zip(moved[worker, server], reversed(moved[server, worker])):
            assert sent > 0 and abs(sent - received) <= 0.2 * sent + 20_000, moved
    done = subprocess.run([BIN / "bandoneon", "trace", "explain", tmp_path, "--json"], capture_output=True, text=True, timeout=60, check=True)
    links = json.loads(done.stdout)["links"]
    assert sorted((link["from"], link["to"]) for link in links) == sorted(
        pair for i, j in itertools.product(range(2), range(2)) for pair in ((f"worker {i}", f"server {j}"), (f"server {j}", f"worker {i}")))


DUMPING = """
import sys
import torch
import bandoneon
import bandoneon.torch as bdn
from bandoneon import trace

folder = sys.argv[1]
bdn.init()
weight = torch.ones(1000)
for step in range(20):
    bdn.push_pull(weight, name="weight").wait()
if bdn.rank() == 1:
    paths = trace.dump(f"{folder}/all/of/it")
    print("all", *sorted(path.rpartition("/")[2] for path in paths))
    print("one", *(path.rpartition("/")[2] for path in trace.dump(f"{folder}/one", nodes="worker-0", last=60)))
    for kind, how in [("AlreadyExists", dict(directory=f"{folder}/one")), ("NotFound", dict(directory=f"{folder}/2", nodes="worker-7")),
                      ("InvalidArgument", dict(directory=f"{folder}/3", nodes="everybody")), ("InvalidArgument", dict(directory=f"{folder}/4", last=0)),
                      ("Unavailable", dict(directory="/dev/null/x")), ("PermissionDenied", dict(directory=f"{folder}/5", token="another"))]:
        try:
            trace.dump(**how)
        except getattr(bandoneon, kind) as error:
            print("refused", kind, error)
bdn.push_pull(weight, name="weight").wait()
bdn.shutdown()
"""


def test_a_program_gets_the_recordings_of_all_nodes(tmp_path):
    (tmp_path / "program.py").write_text(DUMPING)
    done = subprocess.run([BIN / "bandoneon", "run", "-n", "2", "-s", "2", "--", sys.executable, tmp_path / "program.py", tmp_path],
                          capture_output=True, text=True, timeout=300, check=False)
    text = done.stdout + done.stderr
    assert done.returncode == 0, text
    assert "all server-0.bdntrace server-1.bdntrace worker-0.bdntrace worker-1.bdntrace\n" in text, text
    assert "one worker-0.bdntrace\n" in text and text.count("] refused ") == 6, text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all", "one", "program.py"], "what failed leaves no directory"
    for one in recordings(tmp_path / "all" / "of" / "it"):
        if one.facts["role"] == "worker":
            assert {record.step for record in one.records if record.kind == "encode"} >= set(range(1, 20)), one.facts
    assert os.stat(tmp_path / "one" / "worker-0.bdntrace").st_mode & 0o777 == 0o600
    said = subprocess.run([BIN / "bandoneon", "trace", "explain", tmp_path / "all" / "of" / "it"], capture_output=True, text=True, timeout=60, check=False)
    assert said.returncode == 0 and "steps" in said.stdout, said.stdout + said.stderr


def test_a_job_that_fails_leaves_its_recordings_and_hang_reads_them(tmp_path, monkeypatch):
    monkeypatch.setenv("RECORDING_PROGRAM_FAILS", "1")
    text = run(f"recorder-dir={tmp_path}", code=1)
    found = recordings(tmp_path)
    # Also of the one that failed, which the recorders of others miss.
    assert {("worker", 0), ("worker", 1)} <= {(one.facts["role"], one.facts["rank"]) for one in found}, text
    said = re.search(r"the recording is in (\S+) \(", text)
    assert said is not None and pathlib.Path(said[1]).parent == tmp_path, text
    done = subprocess.run([BIN / "bandoneon", "trace", "hang", tmp_path], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and "worker 0" in done.stdout, done.stdout + done.stderr
    # run says the sentence of that command as its last line.
    assert f"[run] {done.stdout.splitlines()[0]} See `bandoneon trace hang {tmp_path} --job" in text.splitlines()[-1], text


def test_a_wrong_setting_is_named():
    text = run("recorder-bytes=1KiB", code=1)
    assert "recorder-bytes is 1KiB: expected 128KiB or more, or 0 for off" in text
    text = run("trace-steps=often", code=1)
    assert "trace-steps is 'often': expected steps as 100-120, or every 50" in text
