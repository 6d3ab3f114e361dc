"""A worker of elastic_test.py: trains with a TrainingState, and prints at each step a checksum of all weights and of what the
optimizer keeps in common. Who comes later begins from weights of its own, so what it has afterwards it was given.

Worker r's part of the data draws the weights towards a function of the step alone, so weights do not depend on who computes which
part, but for rounding.
"""

import os
import signal
import sys
import time
import zlib

import torch

import bandoneon
import bandoneon.torch as bdn
from bandoneon.torch import handover, training_state

CASE = os.environ.get("TEST_CASE", "sgd")
STEPS = int(os.environ.get("TEST_STEPS", "300"))
PACE = float(os.environ.get("TEST_PACE", "0.02"))
DIRECTORY = os.environ.get("TEST_DIRECTORY")
EVERY = int(os.environ.get("TEST_EVERY", "0")) or None
WIDTH = int(os.environ.get("TEST_WIDTH", "64"))
ONE_BIT = "onebit(block=64)"
LEAVES_AT = int(os.environ.get("TEST_LEAVES_AT", "-1"))  # of who has the second part then
ALGORITHMS = {
    "sgd": lambda model: bdn.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), model),
    "adamw": lambda model: bdn.DistributedOptimizer(
        torch.optim.AdamW(model.parameters(), lr=0.01), model, push=f"ef({ONE_BIT})", pull=f"ef({ONE_BIT})"
    ),
    "forward": lambda model: bdn.DistributedOptimizer(torch.optim.AdamW(model.parameters(), lr=0.01), model, overlap="forward"),
    "links": lambda model: bdn.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01), model, links=bdn.Links(push=f"ef({ONE_BIT})", momentum=0.9, warmup=20)
    ),
    "server": lambda model: bdn.ServerOptimizer(
        torch.optim.AdamW(model.parameters(), lr=0.01), model.named_parameters(), push="int4(hadamard=32)", pull="delta(int4(group=64))"
    ),
    "local": lambda model: bdn.LocalSteps(
        torch.optim.AdamW(model.parameters(), lr=0.01), model.named_parameters(), tau=5, outer=bdn.algorithms.Nesterov(), push="int8"
    ),
    "local_qsr": lambda model: bdn.LocalSteps(
        torch.optim.AdamW(model.parameters(), lr=0.01), model.named_parameters(), tau=bdn.algorithms.QSR(alpha=0.02, least=3, most=10),
        outer=bdn.algorithms.Average(), push="ef(onebit)",
    ),
    "local_residual": lambda model: bdn.LocalSteps(
        torch.optim.SGD(model.parameters(), lr=0.05), model.named_parameters(), tau=5, outer=bdn.algorithms.Average(), push="int4",
        local_residual=True,
    ),
    "cser": lambda model: bdn.algorithms.CSER(
        torch.optim.SGD(model.parameters(), lr=0.05), model.named_parameters(), gradient=8, reset=4, period=2, block=16
    ),
    "cser_model": lambda model: bdn.algorithms.CSER(
        torch.optim.SGD(model.parameters(), lr=0.05), model.named_parameters(), gradient=8, reset=4, period=2, block=16,
        implementation="model",
    ),
    "lion": lambda model: bdn.algorithms.Lion(model.named_parameters(), lr=0.003),
    "demo": lambda model: bdn.algorithms.DeMo(model.named_parameters(), lr=0.003),
    "onebit_adam": lambda model: bdn.algorithms.OneBitAdam(model.named_parameters(), lr=0.01, warmup=30),
}


def checksum(tensors):
    value = 0
    for tensor in tensors:
        value = zlib.crc32(tensor.detach().to(torch.float64).numpy().tobytes(), value)
    return f"{value:08x}"


def break_something(worker):
    """Has this process do, amid its part in a handover, what TEST_FAULT says."""
    fault = os.environ.get("TEST_FAULT", "")
    original = handover.hand_over

    def hand_over(own_worker, mine, giver):
        if fault == "giver dies" and giver == worker.rank:
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "newcomer dies" and mine is None:
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "newcomer is slow" and mine is None:
            time.sleep(3600)
        if fault == "differs" and mine is not None:
            weights = mine["object model"].common["parameters"]["3.weight"]
            weights.view(torch.int32)[0, 5] ^= 1
        return original(own_worker, mine, giver)

    training_state.hand_over = hand_over


def in_common(optimizer, model):
    """The tensors that must be the same in all workers now; None where none must be."""
    if CASE.startswith("local") and not optimizer.is_together:
        return None
    if CASE == "cser_model":
        return []  # Models drift apart, and nothing else is in common.
    if CASE.startswith(("local", "cser")):
        return optimizer._common
    inner = getattr(optimizer, "inner", optimizer)
    kept = [value for param in model.parameters() for value in inner.state.get(param, {}).values()]
    return [*model.parameters(), *(value for value in kept if isinstance(value, torch.Tensor))]


def main():
    torch.set_num_threads(1)
    with bandoneon.init() as worker:
        torch.manual_seed(int(os.environ.get("TEST_SEED", "0")))
        model = torch.nn.Sequential(torch.nn.Linear(16, WIDTH), torch.nn.BatchNorm1d(WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, 1))
        if not worker.is_candidate():
            torch.manual_seed(1)
        bdn.broadcast_parameters(model)
        optimizer = ALGORITHMS[CASE](model)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step / 1000))
        state = bdn.TrainingState(
            {"model": model, "optimizer": optimizer, "schedule": schedule}, checkpoint=DIRECTORY, every=EVERY, join_interval=0,
            heal_timeout=float(os.environ.get("TEST_HEAL_TIMEOUT", "60")), on_change=lambda: print("change", flush=True),
        )
        break_something(worker)
        print("candidate" if worker.is_candidate() else "member", worker.rank, flush=True)
        steps = 0
        for step in state.steps(STEPS):
            index, count = state.shard
            whole = torch.randn(24, 16, generator=torch.Generator().manual_seed(step))
            wanted = whole.sin().sum(dim=1, keepdim=True)
            mine = state.count(24)
            first = sum(24 // count + (i < 24 % count) for i in range(index))
            part = slice(first, first + mine)
            loss = (model(whole[part]) - wanted[part]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            time.sleep(PACE)
            common = in_common(optimizer, model)
            steps += 1
            if steps == 20:
                print("running", flush=True)
            if common is not None:
                rate = optimizer.param_groups[0]["lr"]
                print("step", step, checksum(common), f"{rate:.6f}", f"shard {index}/{count}", f"loss {loss.item():.4f}", flush=True)
            if step == LEAVES_AT and index == 1:
                state.leave("it has done its part")
        if worker.is_closed():
            print("went", flush=True)
        else:
            print("present", *worker.present(), flush=True)
    print("left", flush=True)


if __name__ == "__main__":
    main()
    sys.exit(0)
