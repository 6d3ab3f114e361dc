"""Processes that take part through the daemons of their hosts: the same programs, the same meaning."""

import math
import os
import pathlib
import re
import signal
import subprocess
import sys

import pytest
import torch
from test_processes import BIN, daemons, records, run_processes, torchrun

import bandoneon

COMPRESSED = ["--set", "min-compress-bytes=1KiB"]


def test_two_hosts_of_two_equal_ddp_over_gloo_to_rounding(tmp_path):
    found = run_processes(tmp_path, "equals_ddp", "none", workers=4, hosts=2)
    assert all(entry == found[0] for entry in found)
    assert found[0]["hook"] == found[0]["optimizer"]
    models = torch.load(tmp_path / "models.pt", weights_only=True)
    for name, value in models["gloo"].items():
        torch.testing.assert_close(models["optimizer"][name], value, rtol=1e-4, atol=1e-6)


def test_replicas_are_equal_and_runs_too_when_compressed(tmp_path):
    spec = "ef(onebit(block=256))"
    found = [run_processes(tmp_path, "equals_ddp", spec, workers=4, hosts=2, options=COMPRESSED) for _ in range(2)]
    assert all(entry == found[0][0] for run in found for entry in run)
    assert found[0][0]["hook"] == found[0][0]["optimizer"]


def test_a_host_of_one_process_trains_as_a_worker_does_bit_for_bit(tmp_path):
    spec = "ef(onebit(block=256))"
    plain = run_processes(tmp_path, "equals_ddp", spec, options=COMPRESSED)
    assert run_processes(tmp_path, "equals_ddp", spec, hosts=2, options=COMPRESSED) == plain


ALGORITHMS = ["DistributedOptimizer", "ServerOptimizer", "CSER", "LocalSteps", "OneBitAdam"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """What four processes record of all algorithms, on two hosts with daemons and by themselves: a process takes
    longer to start than to train."""
    return [run_processes(tmp_path_factory.mktemp("trained"), "trains_by", *ALGORITHMS, workers=4, hosts=hosts,
                          options=COMPRESSED) for hosts in (2, 0)]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_trains_through_daemons(trained, name):
    found, plain = ([entry[name] for entry in run] for run in trained)
    for entry, other in zip(found, plain):
        assert all(map(math.isfinite, entry["losses"]))
        assert entry["losses"][0] == other["losses"][0]
        # Another sum is compressed, so the steps differ a little.
        assert entry["losses"][-1] == pytest.approx(other["losses"][-1], rel=0.3)
    if name in ("DistributedOptimizer", "ServerOptimizer", "OneBitAdam"):  # The others' models drift.
        assert len({entry["hash"] for entry in found}) == 1


@pytest.mark.parametrize("hosts", [1, pytest.param(0, marks=pytest.mark.long)])
def test_identical_folds_come_to_the_same_and_trials_keep_nothing(tmp_path, hosts):
    found = run_processes(tmp_path, "trains_folds", *ALGORITHMS, hosts=hosts, options=COMPRESSED)
    for entry in found:
        for name, (first, *others) in entry["folds"].items():
            assert others == [first, first], name
        first, last = entry["tensors"]
        assert first == last
    # The replies of what all workers agree on, a number each, stay.
    assert max(found[0]["held"].values()) < 64, found[0]["held"]


def test_tensors_of_empty_are_pushed_where_they_lie(tmp_path):
    once = 3 * 2 * 100 * 300
    expected = [[0, once, [2.5]], [once, once, [2.5]], 30.0]
    assert run_processes(tmp_path, "pushes_in_place", hosts=1) == [expected] * 2
    plain = [[0, 0, [2.5]], [0, 0, [2.5]], 30.0]
    assert run_processes(tmp_path, "pushes_in_place") == [plain] * 2


def test_uneven_data_is_joined(tmp_path):
    first, second = run_processes(tmp_path, "joins", "3,6", hosts=1)
    assert first == second and len(set(first.values())) == 1 and len(first) == 3


@pytest.mark.parametrize("hosts", [(2, 0), pytest.param((0, 2), marks=pytest.mark.long)])
def test_a_checkpoint_goes_from_jobs_with_daemons_to_those_without_and_back(tmp_path, hosts):
    def found(phase):
        return [torch.load(tmp_path / f"{phase}{rank}.pt") for rank in range(4)]

    def owed(ranks, name):
        return sum(rank["comm"]["tensors"][name]["residual"] for rank in ranks)

    run_processes(tmp_path, "saves_by_dcp", "distributed", workers=4, hosts=hosts[0], options=COMPRESSED)
    run_processes(tmp_path, "loads_by_dcp", "distributed", 4, workers=4, hosts=hosts[1], options=COMPRESSED)
    saved, loaded = found("saved"), found("loaded")
    for tensor, entry in saved[0]["comm"]["tensors"].items():
        torch.testing.assert_close(owed(loaded, tensor), owed(saved, tensor), rtol=1e-5, atol=1e-6)
        for rank in loaded:
            assert rank["comm"]["tensors"][tensor]["step"] == entry["step"] > 0
            assert torch.equal(rank["model"][tensor], saved[0]["model"][tensor])
    assert owed(saved, "0.weight").any()


def test_bandoneon_runs_environment_places_processes_on_hosts(tmp_path):
    found = run_processes(tmp_path, "tells_its_place", workers=4, hosts=2)
    assert found == [dict(rank=r, size=4, local=[r % 2, 2], torch=str(r)) for r in range(4)]


def test_a_program_that_ends_well_needs_no_shutdown(tmp_path):
    assert run_processes(tmp_path, "ends_without_shutdown", hosts=1) == [[0.5] * 10] * 2


def test_the_others_hear_what_ended_a_process(tmp_path):
    message, _ = run_processes(tmp_path, "fails_in_one_worker", code=1, hosts=1)
    assert "worker 1 (process" in message and "the disk is full" in message


def test_nobody_waits_for_a_process_whose_program_has_ended(tmp_path):
    message, _ = run_processes(tmp_path, "ends_early_in_one_worker", "return", code=None, hosts=1)
    assert "worker 1 is leaving the job" in message and "'t' step 2" in message


@pytest.mark.parametrize("how, code", [("sys.exit(3)", 3), ("os._exit(5)", 5), ("os.kill(os.getpid(), 9)", 128 + 9)])
def test_run_names_the_process_that_failed_first_and_returns_its_code(tmp_path, how, code):
    command = [BIN / "bandoneon", "run", "--hosts=1", "--procs-per-host=2", "--", sys.executable,
               pathlib.Path(__file__).parent / "programs.py", "ends_early_in_one_worker", tmp_path, how]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120)
    causes = [line for line in done.stderr.splitlines() if "the job failed because" in line]
    assert len(causes) == 1 and "because worker 1 (pid" in causes[0], done.stderr
    assert done.returncode == code, done.stderr


def test_torchrun_starts_a_new_attempt_on_the_same_daemon(tmp_path):
    attach = f"unix:@bandoneon-test-{os.getpid()}"
    means = [[0.5 + step] * 5 for step in range(3)]
    with daemons(tmp_path, 1, "--exit-when-done=false") as address:
        host = subprocess.Popen([str(BIN / "bandoneon-worker"), f"--scheduler={address}", f"--attach={attach}",
                                 "--processes=2", "--exit-when-done=false", "--log-level=warning"])
        try:
            for job in ("first", "second"):
                directory = tmp_path / job
                directory.mkdir()
                done = torchrun(address, "trains_in_attempts", directory, "--max-restarts=1", BANDONEON_ATTACH=attach)
                assert done.returncode == 0, done.stderr
                assert "the first attempt fails" in done.stderr
                assert records(directory) == [dict(attempt=1, steps=means)] * 2
            host.send_signal(signal.SIGTERM)
            assert host.wait(30) == 0
        finally:
            host.kill()
            host.wait()


def test_torchruns_numbers_must_be_the_daemons(tmp_path):
    with daemons(tmp_path, 1, "--exit-when-done=false") as address:
        attach = f"unix:@bandoneon-test-{os.getpid()}"
        host = subprocess.Popen([str(BIN / "bandoneon-worker"), f"--scheduler={address}", f"--attach={attach}",
                                 "--processes=3", "--log-level=warning"])
        try:
            done = torchrun(address, "tells_its_place", tmp_path, BANDONEON_ATTACH=attach)
            assert done.returncode != 0
            assert "was started for 3 processes, and there are to be 2" in done.stderr
        finally:
            host.kill()
            host.wait()


def test_an_address_that_is_none_is_named(monkeypatch):
    monkeypatch.delenv("BANDONEON_SCHEDULER", raising=False)
    with pytest.raises(bandoneon.InvalidArgument, match=re.escape("expected unix:@NAME or unix:/PATH")):
        bandoneon.init(attach="localhost:7")
