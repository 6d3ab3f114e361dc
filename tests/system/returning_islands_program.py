"""A rank of returning_islands_test.py: of an island whose ranks shard models by FSDP2, and exchange their parts with other islands. Prints
at each step a checksum of what its part must have in common with the other islands' then. Whoever comes later begins from
weights of its own, so what it has afterwards it was given."""

import os
import pathlib
import time
import zlib

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

import bandoneon.torch as bdn
from bandoneon.torch import sharded

ONE_BIT = "ef(onebit(block=64))"
CASES = os.environ.get("TEST_CASE", "adamw").split(",")
LEAVES_AT = int(os.environ.get("TEST_LEAVES_AT", "-1"))  # of the rank that TEST_LEAVES names
# All are together after the same steps: 6, 10, 14 and so on.
OPTIMIZERS = {
    "adamw": lambda model, **own: bdn.DistributedOptimizer(
        torch.optim.AdamW(model.parameters(), lr=0.01), model, links=bdn.Links(push=ONE_BIT, pull=ONE_BIT, prefix="adamw/"), **own),
    "momentum": lambda model, **own: bdn.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), model, links=bdn.Links(prefix="momentum/"), **own),
    "local": lambda model, **own: bdn.LocalSteps(
        torch.optim.AdamW(model.parameters(), lr=0.01), model, tau=2, outer=bdn.algorithms.Nesterov(),
        links=bdn.Links(push="int8", prefix="local/"), **own),
    "streaming": lambda model, **own: bdn.LocalSteps(
        torch.optim.AdamW(model.parameters(), lr=0.01), model, tau=bdn.algorithms.Streaming(8, fragments=2, delay=2),
        outer=bdn.algorithms.Nesterov(), links=bdn.Links(push="twobit(block=64)", pull="int4", prefix="streaming/"), **own),
}


def make(case, across):
    # Rows that do not divide by two: parts differ in size.
    model = torch.nn.Sequential(torch.nn.Linear(12, 33), torch.nn.Tanh(), torch.nn.Linear(33, 7), torch.nn.Tanh(), torch.nn.Linear(7, 1))
    for layer in (model[0], model[2], model[4]):
        fully_shard(layer)
    fully_shard(model)
    bdn.broadcast_parameters(model, worker=across)
    optimizer = OPTIMIZERS[case](model, worker=across)
    return model, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step / 500))


def in_common(case, optimizer, model):
    """The tensors that must be the same in all islands now; None where none must be."""
    if case in ("local", "streaming"):
        return optimizer._common if optimizer.is_together else None
    kept = [value for param in model.parameters() for value in optimizer.state.get(param, {}).values()]
    return [*model.parameters(), *(value for value in kept if isinstance(value, torch.Tensor))]


def checksum(tensors):
    value = 0
    for tensor in tensors:
        local = tensor.detach()
        local = local.to_local() if hasattr(local, "to_local") else local
        value = zlib.crc32(local.to(torch.float64).numpy().tobytes(), value)
    return f"{value:08x}"


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    worker = bdn.init()
    torch.manual_seed(1 if not worker.is_candidate() else 7)
    across = sharded.across_islands()
    trainings = {case: make(case, across) for case in CASES}
    objects = {
        f"{kind} {case}": item
        for case, training in trainings.items()
        for kind, item in zip(("model", "optimizer", "schedule"), training)
    }
    state = bdn.TrainingState(objects, worker=across, join_interval=0, heal_timeout=60)
    print("candidate" if worker.is_candidate() else "member", worker.rank, flush=True)
    steps = 0
    for step in state.steps(1_000_000):
        index, count = state.shard
        part = torch.randn(24, 12, generator=torch.Generator().manual_seed(step))[index::count]
        for model, optimizer, schedule in trainings.values():
            optimizer.zero_grad()
            (model(part) - part.sin().sum(dim=1, keepdim=True)).square().mean().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
        time.sleep(0.02)
        steps += 1
        if steps == 20:
            print("running", flush=True)
        common = {case: in_common(case, optimizer, model) for case, (model, optimizer, _) in trainings.items()}
        if None not in common.values():
            sums = [f"{case}={checksum(tensors)}" for case, tensors in common.items()]
            print("step", step, *sums, f"shard {index}/{count}", flush=True)
        if step == LEAVES_AT and str(worker.rank) == os.environ.get("TEST_LEAVES"):
            state.leave("it has done its part")
        if step % 8 == 7:
            is_over = torch.tensor([float(pathlib.Path(os.environ["TEST_END"]).exists())])
            if bdn.push_pull(is_over, "the end is near").wait().item():
                break
    for case, (model, optimizer, _) in trainings.items():
        inner = getattr(optimizer, "inner", optimizer)
        for param in model.parameters():
            kept = inner.state[param].get("exp_avg", inner.state[param].get("momentum_buffer"))
            assert type(kept) is type(param.data) and kept.placements == param.placements, case
    if not worker.is_closed():
        for case, (model, optimizer, _) in trainings.items():
            if hasattr(optimizer, "synchronize") and case in ("local", "streaming"):
                optimizer.synchronize()
            print(f"end {case} {checksum(model.parameters())}", flush=True)
        bdn.shutdown()
    print("left", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
