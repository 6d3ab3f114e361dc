"""Real daemons and processes, through the command."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
import torch

import bandoneon
from bandoneon import session

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = pathlib.Path(__file__).parent / "programs.py"
BIN = ROOT / "build" / "release" / "bin"


def run_processes(directory, name, *arguments, workers=2, servers=2, code=0, options=(), hosts=0, programs=PROGRAMS):
    """[what each worker recorded] of a job under `bandoneon run`, of so many hosts with daemons."""
    size = ["--hosts", hosts, "--procs-per-host", workers // hosts] if hosts else ["-n", workers]
    command = [BIN / "bandoneon", "run", *size, "-s", servers, *options, "--"]
    command += [sys.executable, programs, name, directory, *arguments]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120)
    assert (done.returncode == 0) == (code == 0), done.stdout + done.stderr
    return records(directory, workers)


def records(directory, workers=2):
    paths = [pathlib.Path(directory, f"{rank}.json") for rank in range(workers)]
    return [json.loads(path.read_text()) if path.exists() else None for path in paths]


def test_two_workers_equal_ddp_over_gloo_bit_for_bit_and_so_does_the_hook(tmp_path):
    first, second = run_processes(tmp_path, "equals_ddp", "none")
    assert first == second and len(set(first.values())) == 1


@pytest.mark.long
def test_training_over_a_fabric_equals_that_over_tcp_bit_for_bit(tmp_path):
    found = {}
    for name, options in {
        "tcp": ["--transport", "network"],
        "fabric": ["--transport", "rdma", "--provider", "tcp;ofi_rxm"],
    }.items():
        (tmp_path / name).mkdir()
        first, second = run_processes(
            tmp_path / name,
            "equals_ddp",
            "ef(onebit(block=256))",
            options=[*options, "--set", "min-compress-bytes=1KiB"],
        )
        assert first == second
        found[name] = first
    assert found["fabric"] == found["tcp"]


def test_three_workers_equal_ddp_to_rounding(tmp_path):
    all_records = run_processes(tmp_path, "equals_ddp", "none", workers=3)
    assert all_records[0] == all_records[1] == all_records[2]
    assert all_records[0]["hook"] == all_records[0]["optimizer"]
    models = torch.load(tmp_path / "models.pt", weights_only=True)
    for name, value in models["gloo"].items():
        torch.testing.assert_close(models["optimizer"][name], value, rtol=1e-4, atol=1e-6)


def test_the_hook_equals_the_optimizer_when_compressed(tmp_path):
    first, second = run_processes(
        tmp_path,
        "equals_ddp",
        "ef(onebit(block=256))",
        options=["--set", "min-compress-bytes=1KiB"],
    )
    assert first == second and first["hook"] == first["optimizer"]


@pytest.mark.parametrize("name, sizes",
                         [("distributed", (2, 3)), pytest.param("local", (3, 2), marks=pytest.mark.long)])
def test_one_distributed_checkpoint_is_loaded_by_another_number_of_workers(tmp_path, name, sizes):
    def found(phase, workers):
        return [torch.load(tmp_path / f"{phase}{rank}.pt") for rank in range(workers)]

    def owed(ranks, name):
        return sum(r["comm"]["tensors"][name]["residual"] for r in ranks) / len(ranks)

    options = ["--set", "min-compress-bytes=1KiB"]
    run_processes(tmp_path, "saves_by_dcp", name, workers=sizes[0], options=options)
    run_processes(
        tmp_path, "loads_by_dcp", name, sizes[0], workers=sizes[1], servers=1, options=options
    )
    saved, loaded = found("saved", sizes[0]), found("loaded", sizes[1])
    for tensor, entry in saved[0]["comm"]["tensors"].items():
        torch.testing.assert_close(owed(loaded, tensor), owed(saved, tensor), rtol=1e-5, atol=1e-6)
        for rank in loaded:
            assert rank["comm"]["tensors"][tensor]["step"] == entry["step"] > 0
            assert torch.equal(rank["model"][tensor], saved[0]["model"][tensor])
    assert owed(saved, "0.weight").any()


@pytest.mark.parametrize("how", ["hook", "optimizer"])
def test_no_gradient_is_lost_whoever_uses_a_parameter(tmp_path, how):
    """What was made is what was applied and what workers and servers still owe."""
    options = ["--set", "min-compress-bytes=1KiB"]
    cases, _ = run_processes(tmp_path, "conserves_gradients", how, options=options)
    workers = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    assert len(cases) == 4
    for case in cases:
        first, second = (worker[case] for worker in workers)
        assert first["hash"] == second["hash"], case
        for name, applied in first["applied"].items():
            made = (first["made"][name] + second["made"][name]) / 2
            owed = torch.zeros_like(made)
            if "residual" in first["owed"][name]:
                owed += sum(state["owed"][name]["residual"] for state in (first, second)) / 2
                owed += first["owed"][name]["server"]["residual"]
            bound = 1e-5 * made.abs().max() + 1e-6
            torch.testing.assert_close(applied + owed, made, rtol=0, atol=bound)
        assert not first["made"]["branches.1.weight"].any()
        assert first["made"]["trunk.weight"].any()
        assert ("residual" in first["owed"]["trunk.weight"]) == case.startswith("ef")


def test_a_job_that_was_left_cannot_be_joined_again(tmp_path):
    for message in run_processes(tmp_path, "joins_again_after_shutdown"):
        assert "this process has left the job of that scheduler by shutdown()" in message


def test_a_failed_cell_of_a_notebook_ends_no_job(tmp_path):
    assert run_processes(tmp_path, "fails_at_a_prompt") == [[0.5] * 10] * 2


def test_bandoneon_runs_environment(tmp_path):
    for rank, entry in enumerate(run_processes(tmp_path, "tells_its_place")):
        assert entry == dict(rank=rank, size=2, local=[rank, 2], torch=str(rank))


def test_torchruns_environment(tmp_path):
    with daemons(tmp_path, workers=2) as address:
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc-per-node",
            "2",
            "--master-port",
            "0",
        ]
        environment = {**os.environ, "BANDONEON_SCHEDULER": address}
        subprocess.run(
            [
                *command,
                "--no-python",
                sys.executable,
                str(PROGRAMS),
                "tells_its_place",
                str(tmp_path),
            ],
            env=environment,
            check=True,
            timeout=120,
        )
    for rank, entry in enumerate(records(tmp_path)):
        assert entry == dict(rank=rank, size=2, local=[rank, 2], torch=str(rank))


def torchrun(address, name, directory, *flags, **environment):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port=0", *flags]
    command += ["--no-python", sys.executable, str(PROGRAMS), name, str(directory)]
    environment = {**os.environ, "BANDONEON_SCHEDULER": address, **environment}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def test_torchrun_starts_a_new_attempt_on_the_same_daemons(tmp_path):
    means = [[0.5 + step] * 5 for step in range(3)]
    with daemons(tmp_path, 2, "--exit-when-done=false") as address:
        for job in ("first", "second"):  # And when that one is done, there is another.
            directory = tmp_path / job
            directory.mkdir()
            done = torchrun(address, "trains_in_attempts", directory, "--max-restarts=1")
            assert done.returncode == 0, done.stderr
            assert "the first attempt fails" in done.stderr
            assert records(directory) == [dict(attempt=1, steps=means)] * 2


def test_settings_come_from_a_file_the_environment_and_arguments_the_last_first(tmp_path):
    options = ["--set", "min-compress-bytes=1KiB"]
    assert run_processes(tmp_path, "reads_a_config", options=options) == [1, 1]


@pytest.mark.parametrize(
    "text, message",
    [
        ("threads = 2\nfoo = 3\n", r"conf:2: there is no setting 'foo'"),
        ("max_bytes_in_flight = 3\n", r"conf:1: .*did you mean max-bytes-in-flight\?"),
        ("token secret\n", r"conf:1: a setting is a line of the form name = value$"),
        ("= 2\n", "conf:1: a setting is"),
        ("threads =\n", "conf:1: a setting is"),
        ("threads = 2\nthreads = 3\n", "conf:2: 'threads' was set above"),
        ("library = x.so\n", "conf:1: the library is loaded"),
        ("threads = two\n", "threads is 'two'"),
        (None, "cannot be read"),
    ],
)
def test_a_file_of_settings_that_is_wrong_is_refused_with_its_line(tmp_path, text, message):
    path = tmp_path / "worker.conf"
    if text is not None:
        path.write_text(text)
    with pytest.raises(bandoneon.InvalidArgument, match=message):
        bandoneon.init(scheduler="127.0.0.1:1", config=path)


@pytest.mark.parametrize("in_rank, size", [("all", 5), (0, 5), ("all", 1)])
def test_a_world_size_that_disagrees_is_refused_naming_both(tmp_path, in_rank, size):
    for message in run_processes(tmp_path, "wrong_world_size", in_rank, size, code=None):
        assert f"WORLD_SIZE is {size}" in message and "2 workers" in message


def test_a_program_that_ends_well_needs_no_shutdown(tmp_path):
    assert run_processes(tmp_path, "ends_without_shutdown") == [[0.5] * 10] * 2


@pytest.mark.parametrize("how", ["by itself", "with"])
def test_the_others_hear_what_ended_a_worker(tmp_path, how):
    message, _ = run_processes(tmp_path, "fails_in_one_worker", how, code=1)
    assert "worker 1" in message and "the disk is full" in message


def test_shutdown_in_finally_leaves_in_peace(tmp_path):
    """Python does not say whether an exception is on its way or was dealt with."""
    message, _ = run_processes(tmp_path, "fails_in_one_worker", "finally", code=1)
    assert "worker 1 is leaving the job and pushes no more" in message


def test_nobody_waits_for_a_worker_whose_program_has_ended(tmp_path):
    message, _ = run_processes(tmp_path, "ends_early_in_one_worker", "return", code=None)
    assert "worker 1 is leaving the job" in message and "'t' step 2" in message


@pytest.mark.parametrize(
    "name, how, code",
    [
        ("fails_in_one_worker", [], 1),
        ("ends_early_in_one_worker", ["sys.exit(3)"], 3),
        ("ends_early_in_one_worker", ["os._exit(5)"], 5),
        ("ends_early_in_one_worker", ["os.kill(os.getpid(), 9)"], 128 + 9),
    ],
)
def test_run_names_the_worker_that_failed_first_and_returns_its_code(tmp_path, name, how, code):
    command = [BIN / "bandoneon", "run", "-n", "2", "-s", "2", "--", sys.executable, PROGRAMS]
    done = subprocess.run(
        [*map(str, command), name, str(tmp_path), *how], capture_output=True, text=True, timeout=120
    )
    causes = [line for line in done.stderr.splitlines() if "the job failed because" in line]
    assert len(causes) == 1 and "because worker 1 (pid" in causes[0], done.stderr
    assert done.returncode == code, done.stderr


@pytest.mark.parametrize("ending", ["bdn.shutdown()", "pass"])
def test_a_job_whose_errors_were_all_caught_has_failed(tmp_path, ending):
    command = [BIN / "bandoneon", "run", "-n", "2", "-s", "1", "--", sys.executable, PROGRAMS]
    done = subprocess.run(
        [*map(str, command), "catches_every_error", str(tmp_path), ending], capture_output=True, text=True, timeout=120
    )
    first, second = records(tmp_path)
    assert first != second
    assert done.returncode != 0 and "the replicas may differ" in done.stderr
    assert "the job is done" not in done.stderr


class daemons:
    """A scheduler and one server, as one would start them by hand."""

    def __init__(self, directory, workers, *flags):
        self._port_file = pathlib.Path(directory, "port")
        self._workers = workers
        self._flags = flags
        self._processes = []

    def __enter__(self):
        self._start(
            "bandoneon-scheduler",
            f"--workers={self._workers}",
            "--servers=1",
            f"--port-file={self._port_file}",
        )
        while not self._port_file.exists() or not self._port_file.read_text().strip():
            assert self._processes[0].poll() is None
            time.sleep(0.02)  # There is no event to wait for: the file appears.
        address = f"127.0.0.1:{self._port_file.read_text().strip()}"
        self._start("bandoneon-server", f"--scheduler={address}")
        return address

    def _start(self, name, *flags):
        command = [str(BIN / name), *flags, *self._flags, "--log-level=warning"]
        self._processes.append(subprocess.Popen(command))

    def __exit__(self, kind, *_):
        for process in self._processes:
            if kind is not None or self._flags:
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=30)
            finally:
                process.kill()


def test_without_a_scheduler_the_error_says_what_to_do(monkeypatch):
    monkeypatch.delenv("BANDONEON_SCHEDULER", raising=False)
    with pytest.raises(bandoneon.InvalidArgument, match="bandoneon run -n N"):
        bandoneon.init()
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(
        bandoneon.InvalidArgument, match=r"torchrun .*BANDONEON_SCHEDULER=host:port"
    ):
        bandoneon.init()
    monkeypatch.setenv("RANK", "zero")
    with pytest.raises(bandoneon.InvalidArgument, match="torchrun's RANK is not a number: 'zero'"):
        bandoneon.init(scheduler="127.0.0.1:1")


@pytest.mark.parametrize("is_child", [False, True])
def test_a_child_that_runs_the_program_anew_is_told_of_the_guard(monkeypatch, is_child):
    def refuse(_):
        raise bandoneon.AlreadyExists("job 'j' has all its nodes and takes no more")

    monkeypatch.setattr(session, "Worker", refuse)
    monkeypatch.setattr(session.endings, "is_child", lambda: is_child)
    with pytest.raises(bandoneon.BandoneonError, match="takes no more") as caught:
        bandoneon.init(scheduler="127.0.0.1:1")
    assert ('if __name__ == "__main__":' in str(caught.value)) == is_child


def test_a_place_on_the_host_that_is_not_known_or_not_one_is_refused(monkeypatch):
    for rank, size, message in (
        (None, None, "`bandoneon run` and torchrun set them"),
        ("0", None, "LOCAL_RANK and LOCAL_WORLD_SIZE say"),
        ("2", "2", "LOCAL_RANK is 2 where LOCAL_WORLD_SIZE is 2"),
        ("-1", "2", "LOCAL_RANK is -1"),
        ("one", "2", "LOCAL_RANK is not a number: 'one'"),
    ):
        for name, value in (("LOCAL_RANK", rank), ("LOCAL_WORLD_SIZE", size)):
            monkeypatch.delenv(name, raising=False)
            if value is not None:
                monkeypatch.setenv(name, value)
        for ask in (bandoneon.local_rank, bandoneon.local_size):
            with pytest.raises(bandoneon.BandoneonError, match=message):
                ask()
