"""Who holds the first weights already is not sent them: between real processes, by the bytes that they count."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("BANDONEON_BIN", ROOT / "build" / "release" / "bin"))

# Makes the model, in rank ODD of another seed, shares its weights by HOW, and says what that took.
PROGRAM = """
import json, sys
import torch
import bandoneon.torch as bdn

how, odd, out = sys.argv[1], int(sys.argv[2]), sys.argv[3]
worker = bdn.init()
torch.manual_seed(8 if worker.rank == odd else 7)
model = torch.nn.Sequential(torch.nn.Linear(700, 500), torch.nn.Linear(500, 300), torch.nn.LayerNorm(300))
inner = lambda: torch.optim.SGD(model.parameters(), lr=0.1)
worker.barrier()
before = worker.stats()
if how == "broadcast":
    bdn.broadcast_parameters(model)
elif how == "servers":
    optimizer = bdn.ServerOptimizer(inner(), model.named_parameters(), pull="delta(int4(group=2048))")
else:
    pull = "delta(twobit(block=64))" if how == "delta" else "none"
    optimizer = bdn.LocalSteps(inner(), model.named_parameters(), tau=1, outer=bdn.algorithms.Average(),
                               push="ef(twobit(block=64))", pull=pull)
after = worker.stats()
start = [param.detach().clone() for param in model.parameters()]
for _ in range(3 if how != "broadcast" else 0):
    optimizer.zero_grad()
    model(torch.ones(4, 700) * (1 + worker.rank)).square().mean().backward()
    optimizer.step()
hashes = [float(sum(param.double().abs().sum() for param in params)) for params in (start, list(model.parameters()))]
same = [all(bool(torch.equal(a, b)) for a, b in zip(bdn.allgather_object([p.detach() for p in params])[0], params))
        for params in (start, list(model.parameters()))]
with open(f"{out}/{worker.rank}", "w") as file:
    json.dump({"pulled": after["bytes_pulled"] - before["bytes_pulled"], "same": same, "hashes": hashes,
               "bytes": 4 * sum(param.numel() for param in model.parameters())}, file)
bdn.shutdown()
"""


def run(folder, how, odd=-1, more=()):
    env = {k: v for k, v in os.environ.items() if not k.startswith("BANDONEON_") or k == "BANDONEON_LIBRARY"}
    where = more or ("-n", "3")
    command = [BIN / "bandoneon", "run", *where, "-s", "2", "--set", "partition-bytes=256KiB", "--", sys.executable, "-c", PROGRAM]
    done = subprocess.run(
        [*command, how, str(odd), str(folder)], env=env, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = [json.loads((folder / str(rank)).read_text()) for rank in range(3)]
    assert all(one["same"] == [True, True] for one in told), told
    return told


WAYS = [*(pytest.param(how, marks=pytest.mark.long) for how in ("broadcast", "average")), "servers", "delta"]


@pytest.mark.parametrize("how", WAYS)
def test_equal_seeds_fetch_nothing(how, tmp_path):
    for one in run(tmp_path, how):
        assert one["pulled"] < 0.03 * one["bytes"], "headers and digests alone"


@pytest.mark.parametrize("how", WAYS)
def test_one_that_differs_fetches_and_it_alone(how, tmp_path):
    told = run(tmp_path, how, odd=2)
    # Norms' weights, and biases of 0, do not come from a seed.
    assert 0.95 * told[2]["bytes"] < told[2]["pulled"] < 1.05 * told[2]["bytes"]
    assert all(one["pulled"] < 0.03 * one["bytes"] for one in told[:2])
    assert len({tuple(one["hashes"]) for one in told}) == 1


def test_rank_0_that_differs_is_who_all_others_follow(tmp_path):
    told = run(tmp_path, "delta", odd=0)
    assert told[0]["pulled"] < 0.03 * told[0]["bytes"]
    assert all(one["pulled"] > 0.95 * one["bytes"] for one in told[1:])


def test_through_a_hosts_daemon_all_is_as_it_was(tmp_path):
    run(tmp_path, "delta", odd=2, more=("--hosts", "3", "--procs-per-host", "1"))
