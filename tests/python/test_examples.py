"""The short examples, a few steps each."""

import os
import re
import subprocess
import sys

import pytest
from test_processes import BIN, ROOT, daemons

EXAMPLES = ["byteps_compress", "clan", "sdp4bit", "sign_momentum", "error_reset"]
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
