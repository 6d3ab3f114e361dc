"""`bandoneon replay`, `tune` and `run --plan`: a real job is recorded and played through with other settings."""

import json
import shutil
import sys

import pytest
from command_helpers import BIN, Command


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    """The recordings of a job of two workers and a server over a slow link, without marks."""
    folder, temporary = tmp_path_factory.mktemp("recordings"), tmp_path_factory.mktemp("tmp")
    command = Command(BIN, temporary)
    command.environment["BANDONEON_TRACE"] = str(folder)
    bench = command.run("bench", "pushpull", "--workers", 2, "--servers", 1, "--tensors", 3, "--bytes", 262144, "--iters", 12,
                        "--link", "200mbit")
    assert bench.returncode == 0, bench.stderr
    return folder


def test_the_recorded_settings_give_the_recorded_steps(real, recordings, tmp_path):
    done = real.run("replay", recordings)
    assert done.returncode == 0, done.stderr
    assert "exchanges alone are replayed" in done.stdout and "The critical path of a step" in done.stdout
    report = json.loads(real.run("replay", recordings, "--json").stdout)
    assert report["workers"] == 2 and report["servers"] == 1 and not report["marks"]
    # A third is much, but the machine may be busy with other tests.
    assert abs(report["median_error"]) < 0.33
    assert report["step_bytes"]["pushed"] == pytest.approx(2 * 3 * (262144 + 96), rel=0.01)
    slower = json.loads(real.run("replay", recordings, "--json", "--set", "link=50mbit", "-o", tmp_path / "slow.json").stdout)
    # Four times as slow, and both jobs are bound by the link.
    wire_ms = 2 * 3 * 262144 * 8 / 50e6 * 1e3
    assert slower["predicted"]["median_step_ms"] > wire_ms
    assert slower["interval_ms"][0] < slower["predicted"]["median_step_ms"] < slower["interval_ms"][1]
    timeline = json.loads((tmp_path / "slow.json").read_text())
    assert {event["args"]["name"] for event in timeline["traceEvents"] if event["name"] == "process_name"} == {
        "worker 0", "worker 1", "server 0"}


def test_settings_are_checked(real, recordings):
    done = real.run("replay", recordings, "--set", "lnik=100mbit")
    assert done.returncode == 2 and "did you mean 'link'?" in done.stderr
    assert "  lnik=100mbit\n  ^^^^\n" in done.stderr and "It can set: link, push" in done.stderr
    done = real.run("replay", recordings, "--set", "overlap=forward")
    assert done.returncode == 2 and "cannot predict 'overlap'" in done.stderr
    done = real.run("replay", recordings, "--set", "push=onebit(block=64)")
    assert done.returncode == 1 and "bandoneon bench codecs --codec 'onebit(block=64)' --json" in done.stderr
    done = real.run("replay", recordings, "--set", "push=onebit(block=64)", "--costs", recordings / "nothing")
    assert done.returncode == 2 and "cannot be read" in done.stderr


def test_partitions_are_those_of_the_recorded_job(real, tmp_path):
    """How tensors were cut was a setting of the scheduler's, which records nothing."""
    folder = tmp_path / "recordings"
    folder.mkdir()
    real.environment |= {"BANDONEON_TRACE": str(folder), "BANDONEON_PARTITION_BYTES": "64KiB"}
    bench = real.run("bench", "pushpull", "--workers", 2, "--servers", 1, "--tensors", 3, "--bytes", 262144, "--iters", 6)
    assert bench.returncode == 0, bench.stderr
    assert json.loads(real.run("replay", folder, "--json").stdout)["keys"] == 12
    # The benchmark declares tensors that are not to be fused: but for that they would fit into one key.
    joined = json.loads(real.run("replay", folder, "--json", "--set", "partition-bytes=4MiB", "--set", "fusion-bytes=0").stdout)
    assert joined["keys"] == 3


def test_a_replay_takes_no_command(real, recordings):
    done = real.run("replay", recordings, "--", "true")
    assert done.returncode == 2 and "runs no command" in done.stderr


def test_measured_costs_are_taken(real, recordings, tmp_path):
    costs = tmp_path / "costs.jsonl"
    measured = real.run("bench", "codecs", "--codec", "onebit(block=64)", "--elements", 65536, "--json")
    assert measured.returncode == 0, measured.stderr
    costs.write_text(measured.stdout)
    done = real.run("replay", recordings, "--json", "--costs", costs, "--set", "push=ef(onebit(block=64))", "--set",
                    "pull=ef(onebit(block=64))")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["step_bytes"]["pushed"] < 2 * 3 * 262144 / 10
    assert report["predicted"]["median_step_ms"] < report["replayed"]["median_step_ms"]


def test_more_workers_take_longer(real, recordings):
    report = json.loads(real.run("replay", recordings, "--json", "--workers", 8).stdout)
    assert report["workers"] == 8
    # Eight push to one server, whose link is as slow as a worker's.
    assert report["predicted"]["median_step_ms"] > 2 * report["replayed"]["median_step_ms"]


def test_what_is_missing_is_said(real, recordings, tmp_path):
    copies = tmp_path / "copies"
    shutil.copytree(recordings, copies)
    next(path for path in copies.iterdir() if path.name.startswith("worker-1")).unlink()
    done = real.run("replay", copies)
    assert done.returncode == 0, done.stderr
    assert "note: there is no recording of worker 1" in done.stdout
    done = real.run("replay", tmp_path / "nowhere")
    assert done.returncode == 1 and "nowhere cannot be read" in done.stderr
    assert "which recordings?" in real.run("replay").stderr
    for command in ("replay", "tune"):
        assert real.run(command, "--help").stdout.startswith(f"usage: bandoneon {command} DIR")


def test_a_plan_is_found_written_and_run(real, recordings, tmp_path):
    plan = tmp_path / "plan.json"
    done = real.run("tune", recordings, "-o", plan, "--servers", 2)
    assert done.returncode == 0, done.stderr
    assert "TIMES AS FAST" in done.stdout
    written = json.loads(plan.read_text())
    # Two servers have two links.
    assert written["settings"]["servers"] == "2" and written["predicted_step_ms"] < written["recorded_step_ms"]


def test_a_job_runs_with_a_plan(staged, tmp_path):
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"version": 1, "settings": {"max-bytes-in-flight": "4MiB", "servers": "2"}}))
    program = [sys.executable, "-c", "import os; print('has', os.environ['BANDONEON_MAX_BYTES_IN_FLIGHT'])"]
    run = staged.run("run", "--plan", plan, "-n", 1, "--", *program)
    assert run.returncode == 0 and "has 4MiB" in run.stdout, run.stderr
    # What is said in the command goes before.
    run = staged.run("run", "--plan", plan, "-n", 1, "--set", "max-bytes-in-flight=2MiB", "--", *program)
    assert "has 2MiB" in run.stdout


@pytest.mark.parametrize("text,why", [
    ("", "no JSON object"), ("[]", "no JSON object"), ("{}", "no version"), ('{"version": 2, "settings": {}}', "version 2"),
    ('{"version": 1, "settings": {"token": "x"}}', "sets 'token', which plans do not"),
    ('{"version": 1, "settings": {"push": 1}}', "'push' is no text"),
    ('{"version": 1, "settings": {"servers": "many"}}', "expected a number from 1 to 4096"),
    ('{"version": 1, "settings": {"push": "onebti"}}', "onebit"),
    ('{"version": 1, "settings": {"partition-bytes": "2GiB"}}', "from 4KiB to 1GiB"),
])
def test_a_bad_plan_is_refused(staged, tmp_path, text, why):
    plan = tmp_path / "plan.json"
    plan.write_text(text)
    done = staged.run("run", "--plan", plan, "-n", 1, "--", "true")
    assert done.returncode == 2 and why in done.stderr and "plan.json" in done.stderr
