"""The short examples, a few steps each."""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys

import pytest
from test_processes import BIN, ROOT, daemons

EXAMPLES = ["byteps_compress", "clan", "sdp4bit", "sign_momentum", "error_reset", "unequal_lengths", "grow"]
WORKERS = 2


def run(*command, **environment):
    """What the command, which is to end well, printed."""
    done = subprocess.run(
        list(map(str, command)),
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def assert_trained(output):
    """The workers ended with one model. Under torchrun two lines may share one."""
    losses = re.findall(r"validation loss (\S+), ", output)
    hashes = re.findall(r"model ([0-9a-f]{12})", output)
    assert len(losses) == len(hashes) == WORKERS, output
    assert len(set(hashes)) == 1 and 2 < float(losses[0]) < 6, output


@pytest.mark.parametrize("name", EXAMPLES)
def test_it_runs_under_bandoneon_run(name):
    script = ROOT / "examples" / f"{name}.py"
    job = [BIN / "bandoneon", "run", "-n", WORKERS, "-s", 1, "--"]
    assert_trained(run(*job, sys.executable, script, "--steps=3"))


def test_auc_prints_each_way_to_train():
    job = [BIN / "bandoneon", "run", "-n", WORKERS, "-s", 1, "--"]
    output = run(*job, sys.executable, ROOT / "examples" / "auc.py", "--steps=60", "--samples=2000")
    found = re.findall(r"(auc|log) loss, (.*): AUC (\S+), (\d+) exchanges of 60 steps", output)
    assert [(loss, int(exchanges)) for loss, _, _, exchanges in found] == [
        ("auc", 0), ("auc", 6), ("auc", 4), ("auc", 6), ("auc", 4), ("log", 0), ("log", 6), ("log", 2)], output
    assert all(0.4 < float(area) < 1 for _, _, area, _ in found), output


def test_a_sparse_svm_prints_each_penalty():
    job = [BIN / "bandoneon", "run", "-n", WORKERS, "-s", 1, "--set", "min-compress-bytes=1", "--"]
    few = ["--rounds=40", "--samples=120", "--features=20", "--used=3"]
    output = run(*job, sys.executable, ROOT / "examples" / "sparse_svm.py", *few)
    workers = r"objective (\S+), (\d+) features; none for 8; int8 (\S+), \d+"
    found = re.findall(rf"(\w+): {workers}; one worker (\S+), \d+", output)
    assert [name for name, *_ in found] == ["l1", "scad", "mcp", "capped", "lsp"], output
    for _, workers, kept, small, alone in found:
        assert 3 <= int(kept) < 20, output
        assert 0 < float(workers) < 1.2 * float(alone) and float(small) < 1.1 * float(workers), output
    assert re.search(r"l1: .*(optimum 0\.\d+|no scipy)", output), output


def test_kfac_prints_each_way_and_what_factors_cost():
    job = [BIN / "bandoneon", "run", "-n", WORKERS, "-s", 1, "--"]
    few = ["--steps=20", "--samples=500", "--sgd", "0.01", "--adam", "0.01"]
    output = run(*job, sys.executable, ROOT / "examples" / "kfac.py", *few)
    losses = dict(re.findall(r"(SGD|Adam|KFAC), rate \S+: loss (\S+),", output))
    assert len(losses) == 3 and all(30 < float(loss) < 90 for loss in losses.values()), output
    assert re.search(r"seed 1: SGD has \S+ after 20 steps, and KFAC has it ", output), output
    assert 0.5 <= float(re.search(r"factors: \d+ of \d+ elements, (\S+)", output)[1]) <= 0.51, output
    assert len(set(re.findall(r"model ([0-9a-f]{64})", output))) == 1, output


def test_moe_prints_plans_and_prunings():
    job = [BIN / "bandoneon", "run", "-n", WORKERS, "-s", 1, "--"]
    few = ["--steps=6", "--distill=3", "--draws=1", "--batches=1"]
    output = run(*job, sys.executable, ROOT / "examples" / "moe.py", *few)
    assert re.search(r"by the model, 8 devices: 1\.\d+ times as fast", output), output
    assert re.search(r"by timed waits, 2 workers: \S+ times as fast", output), output
    assert re.search(r"seed 1: perplexity \S+; with 50% of the experts' weights gone by magnitude", output), output
    assert re.search(r"distilled for 3 steps: \S+, masks kept", output), output
    assert len(set(re.findall(r"model ([0-9a-f]{64})", output))) == 1, output


def test_a_small_gpt_trains_over_a_fabric():
    job = [BIN / "bandoneon", "run", "-n", WORKERS, "-s", 1, "--transport", "rdma"]
    job += ["--provider", "tcp;ofi_rxm", "--"]
    assert_trained(run(*job, sys.executable, ROOT / "examples" / "byteps_compress.py", "--steps=3"))


@pytest.mark.parametrize("name", EXAMPLES)
def test_torchrun_needs_to_say_only_where_the_scheduler_is(tmp_path, name):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", WORKERS]
    script = ROOT / "examples" / f"{name}.py"
    with daemons(tmp_path, workers=WORKERS) as address:
        output = run(
            *torchrun, "--master-port", 0, script, "--steps=3", BANDONEON_SCHEDULER=address
        )
    assert_trained(output)


def scheduler_of(launcher):
    """The process id of the scheduler that this `bandoneon run` has started; None while there is none."""
    parents, schedulers = {}, []
    for status in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            name, rest = status.read_text().rsplit(")", 1)
        except OSError:
            continue  # It has ended meanwhile.
        state, parent = rest.split()[:2]
        parents[int(status.parent.name)] = int(parent)
        if state != "Z" and "(bandoneon-sched" in name:
            schedulers.append(int(status.parent.name))
    for scheduler in schedulers:
        ancestor = scheduler
        while ancestor in parents and ancestor != launcher:
            ancestor = parents[ancestor]
        if ancestor == launcher:
            return scheduler
    return None


def test_survive_has_the_weights_of_an_undisturbed_run():
    def job(*flags):
        command = [BIN / "bandoneon", "run", "-n", 3, "-s", 2, *flags, "--", sys.executable, ROOT / "examples" / "survive.py",
                   "--steps=300", "--every=50"]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("BANDONEON_")}
        return subprocess.Popen([str(part) for part in command], env=environment, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True)

    def weights(output):
        return re.findall(r"(?:step .*, )?weights [0-9a-f]{64}", output)

    calm = job().communicate(timeout=120)[0]
    assert len(weights(calm)) == 7, calm
    launcher = job("--restarts", 50)
    lines = []
    kills = 0
    for line in launcher.stdout:
        lines.append(line)
        if "weights" in line and (scheduler := scheduler_of(launcher.pid)):
            with contextlib.suppress(ProcessLookupError):  # At its end it may have ended by itself meanwhile.
                os.kill(scheduler, signal.SIGKILL)
                kills += 1
    output = "".join(lines)
    assert launcher.wait(120) == 0, output
    assert kills >= 5, output
    assert weights(output) == weights(calm), output


def pid_of_worker(rank, script):
    """Of the process that runs this script as that worker."""
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            is_script = str(script).encode() in (folder / "cmdline").read_bytes().split(b"\0")[1:2]
            if is_script and f"BANDONEON_RANK={rank}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                return int(folder.name)
        except OSError:
            continue  # It has ended meanwhile.
    raise AssertionError(f"no process runs {script} as worker {rank}")


def test_elastic_goes_on_with_a_worker_that_is_killed_and_comes_back():
    command = [BIN / "bandoneon", "run", "-n", 3, "-s", 2, "--min-workers", 1, "--restarts", 20, "--", sys.executable,
               ROOT / "examples" / "elastic.py", "--steps=1500", "--every=20", "--pace=0.01"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("BANDONEON_")}
    launcher = subprocess.Popen([str(part) for part in command], env=environment, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True)
    lines = []
    is_killed = False
    for line in launcher.stdout:
        lines.append(line)
        if not is_killed and re.match(r"\[worker 1\] step \d+: part \d of 3", line):
            is_killed = True
            os.kill(pid_of_worker(1, command[-4]), signal.SIGKILL)
    assert launcher.wait() == 0, "".join(lines[-40:])
    output = "".join(lines)
    assert "[worker 0] " in output and output.count("the job goes on with 3 of 3 workers") >= 3, output
    weights = re.findall(r"^\[worker (\d)\] weights ([0-9a-f]{64})", output, re.MULTILINE)
    assert sorted(rank for rank, _ in weights) == ["0", "1", "2"] and len({value for _, value in weights}) == 1, output
