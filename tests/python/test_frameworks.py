"""The recipes for other frameworks: the bits of DistributedDataParallel, one exchange a step, and checkpoints."""

import importlib.util
import os
import re
import subprocess
import sys

import pytest
from test_processes import BIN, ROOT, run_processes

STEPS, WORKERS = 6, 2
NONE = ["--push=none", "--pull=none"]
RECIPES = {
    "huggingface_recipe": "transformers",
    "accelerate_recipe": "accelerate",
    "lightning_recipe": "lightning",
}


@pytest.fixture(params=RECIPES)
def recipe(request):
    package = RECIPES[request.param]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"the package {package} is not installed (scripts/requirements.txt has it)")
    return request.param


mostly_long = pytest.mark.parametrize(
    "recipe",
    [pytest.param(name, marks=[] if name == "accelerate_recipe" else pytest.mark.long) for name in RECIPES],
    indirect=True,
)


def run(folder, recipe, *arguments):
    """(hash of the model, bytes pushed, parameters) of a job, whose workers end with one model."""
    job = [BIN / "bandoneon", "run", "-n", WORKERS, "-s", 1, "--set", "min-compress-bytes=1KiB", "--"]
    script = [sys.executable, ROOT / "examples" / f"{recipe}.py"]
    script += [f"--steps={STEPS // 2 if recipe == 'lightning_recipe' else STEPS}"]  # There, in an epoch.
    done = subprocess.run(
        [str(word) for word in (*job, *script, *arguments)],
        cwd=folder,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.findall(r"(\d+) bytes pushed of (\d+) parameters, model (\w+)", done.stdout)
    assert len(found) == WORKERS and found[0][2] == found[1][2], done.stdout + done.stderr
    return found[0][2], int(found[0][0]), int(found[0][1])


def test_uncompressed_it_is_ddp_over_gloo_bit_for_bit_with_one_exchange_a_step(recipe, tmp_path):
    """Two batches a step, whose sum is exchanged."""
    plain, pushed, _ = run(tmp_path, recipe, "--plain")
    assert pushed < 1000
    model, pushed, count = run(tmp_path, recipe, *NONE)
    assert model == plain
    assert 4 * count * STEPS <= pushed < 1.05 * 4 * count * STEPS
    if recipe == "lightning_recipe":
        model, pushed, count = run(tmp_path, recipe, *NONE, "--hook")
        assert model == plain and 4 * count * STEPS <= pushed < 1.05 * 4 * count * STEPS


@mostly_long
def test_a_compressed_job_goes_on_from_its_checkpoint_bit_for_bit(recipe, tmp_path):
    half, output = STEPS // 2, f"--output={tmp_path}"
    if recipe == "huggingface_recipe":
        model, pushed, count = run(tmp_path, recipe, output, f"--save-steps={half}")
        again, _, _ = run(tmp_path, recipe, output, f"--resume={tmp_path}/checkpoint-{half}")
    elif recipe == "accelerate_recipe":
        model, pushed, count = run(tmp_path, recipe, f"--save={tmp_path}/half")
        again, _, _ = run(tmp_path, recipe, f"--resume={tmp_path}/half")
    else:
        model, pushed, count = run(tmp_path, recipe, "--epochs=2")
        run(tmp_path, recipe, output, "--epochs=1", "--save")
        again, _, _ = run(tmp_path, recipe, output, "--epochs=2", "--resume")
    assert again == model and pushed < 4 * count * STEPS / 8


def updates_run(folder, recipe, *arguments, steps=8):
    """As run(), of a recipe that meets every 4 steps."""
    of_steps = f"--steps={steps // 2 if recipe == 'lightning_recipe' else steps}"
    return run(folder, recipe, "--updates=updates-30x", of_steps, *arguments)


@mostly_long
def test_workers_that_step_by_themselves_meet_and_nothing_else_is_exchanged(recipe, tmp_path):
    """Of 8 steps two end in a meeting, after which the workers have one model (which run() checks): 1.2 bytes of each
    parameter, and of rank 0 the first weights. Gradients would be 32."""
    model, pushed, count = updates_run(tmp_path, recipe)
    assert pushed < 5.5 * count
    if recipe == "lightning_recipe":
        below, pushed, count = updates_run(tmp_path, recipe, "--ddp")
        assert below == model and pushed < 5.5 * count


@pytest.mark.long
def test_workers_that_step_by_themselves_go_on_from_a_checkpoint_between_meetings(tmp_path):
    """After 6 of 12 steps, as each worker's own: bit for bit."""
    pytest.importorskip("transformers", reason="the package transformers is not installed")
    recipe, output = "huggingface_recipe", f"--output={tmp_path}"
    model, _, _ = updates_run(tmp_path, recipe, output, "--save-steps=6", steps=12)
    again, _, _ = updates_run(tmp_path, recipe, output, f"--resume={tmp_path}/checkpoint-6", steps=12)
    assert again == model


def test_the_package_imports_no_framework():
    code = "import sys, bandoneon.torch; print([n for n in sys.argv[1:] if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code, *RECIPES.values()], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_a_trainer_trains_again_and_goes_on_only_with_the_workers_files(tmp_path):
    pytest.importorskip("transformers", reason="the package transformers is not installed")
    first, second = run_processes(tmp_path, "trains_again")
    assert first[:2] == second[:2] and first[0] != first[1]
    for rank, (*_, message) in enumerate((first, second)):
        assert f"bandoneon-{rank}.pt is not there" in message and "resume_from=" in message


def test_a_trainer_without_ddp_is_refused_and_a_single_worker_needs_none(tmp_path):
    pytest.importorskip("transformers", reason="the package transformers is not installed")
    from transformers import TrainerState, TrainingArguments

    import bandoneon
    from bandoneon.torch.huggingface import BandoneonCallback
    from cluster_helpers import make_model, run_job

    class Trainer:
        model_wrapped = make_model()

    def job(worker):
        callback = BandoneonCallback(Trainer(), worker=worker)
        if worker.size == 1:
            callback.on_train_begin(arguments, TrainerState(), None)
            callback.on_save(arguments, TrainerState(), None)
        else:
            with pytest.raises(bandoneon.FailedPrecondition, match="no DistributedDataParallel"):
                callback.on_train_begin(arguments, TrainerState(), None)
        callback.close()

    arguments = TrainingArguments(str(tmp_path), use_cpu=True, report_to="none")
    run_job(job, workers=2)
    run_job(job, workers=1)


def test_a_worker_of_a_host_with_a_disk_of_its_own_makes_the_trainers_folder_there(tmp_path, monkeypatch):
    """The Trainer makes it on the first host alone."""
    pytest.importorskip("transformers", reason="the package transformers is not installed")
    import errno
    import os
    from types import SimpleNamespace

    import torch

    import bandoneon
    from bandoneon.torch.huggingface import BandoneonCallback

    callback = BandoneonCallback(None, worker=SimpleNamespace(rank=1))
    callback._state = SimpleNamespace(comm_state_dict=lambda: {"step": torch.ones(3)})
    arguments, state = SimpleNamespace(output_dir=tmp_path / "out"), SimpleNamespace(global_step=8)
    callback.on_save(arguments, state, None)
    path = tmp_path / "out" / "checkpoint-8" / "bandoneon-1.pt"
    assert torch.equal(torch.load(path)["step"], torch.ones(3))

    def full(number):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(bandoneon.ResourceExhausted, match=f"{path} cannot be written: No space left on device"):
        callback.on_save(arguments, state, None)
    assert os.listdir(path.parent) == [path.name]
