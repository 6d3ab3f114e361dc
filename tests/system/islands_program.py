"""A worker of islands_test.py: of two islands, each with a torch.distributed of its own. Trains by FSDP2 as a program for one island alone
does, but for the lines that say `bdn`; compared with one process."""

import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

import bandoneon.torch as bdn
from bandoneon.torch import sharded

STEPS = 5


def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


def batch(rank, step):
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(100 * step + rank))


def expected(size):
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    for step in range(STEPS):
        optimizer.zero_grad()
        for rank in range(size):
            (model(batch(rank, step)).square().mean() / size).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    return list(model.parameters())


def train():
    dist.init_process_group("gloo")
    bdn.init()
    model = make()
    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)
    inner = torch.optim.AdamW(model.parameters(), lr=0.05)
    optimizer = bdn.DistributedOptimizer(inner, model, worker=sharded.across_islands())
    for step in range(STEPS):
        optimizer.zero_grad()
        model(batch(bdn.rank(), step)).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    return model


def main():
    torch.set_num_threads(1)
    model = train()
    assert bdn.rank() == int(os.environ["BANDONEON_ISLAND"]) * dist.get_world_size() + dist.get_rank()
    for (name, param), right in zip(model.named_parameters(), expected(bdn.size())):
        assert type(param.data).__name__ == "DTensor", name
        worst = (param.full_tensor() - right).abs().max().item()
        assert worst < 1e-6, f"{name} is off by {worst}"
    print("right", flush=True)
    bdn.barrier()
    dist.destroy_process_group()
    bdn.shutdown()


main()
