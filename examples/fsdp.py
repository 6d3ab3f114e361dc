"""Trains a small GPT that FSDP2 shards inside islands of ranks, and Bandoneon exchanges across the islands.

    build/release/bin/bandoneon run -n 4 -s 2 -- build/venv/bin/python examples/fsdp.py
    build/release/bin/bandoneon run -n 4 -s 2 -- build/venv/bin/python examples/fsdp.py --push "int4(hadamard=32)" --pull "int4(hadamard=32)"
    build/release/bin/bandoneon run -n 4 -s 2 -- build/venv/bin/python examples/fsdp.py --tau 16 --push "twobit(block=64)"

Four ranks are two islands of two. Inside an island each rank holds half of every parameter, and gathers the other half
when a layer needs it (torch.distributed, here over gloo). Across islands each rank exchanges its half with the rank that
holds the same half, in a group of theirs. With --tau the islands train by themselves, and meet every so many steps
(DiLoCo). With --beside rank 0 trains the model in one process, too, on the batches of all ranks.
"""

import argparse
import hashlib
import os
import tempfile

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import bandoneon.torch as bdn
from bandoneon.torch import sharded
from gpt import GPT, load_text, rate, sample

ISLANDS = 2


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--push", default="none")
    parser.add_argument("--pull", default="none")
    parser.add_argument("--tau", type=int, default=0, help="steps between meetings of the islands; 0: exchange every step")
    parser.add_argument("--beside", action="store_true", help="train in one process, too, and compare the losses")
    parser.add_argument("--width", type=int, default=96)
    options = parser.parse_args()

    worker = bdn.init()
    torch.set_num_threads(1)
    join_torch()
    mesh = init_device_mesh("cpu", (ISLANDS, bdn.size() // ISLANDS), mesh_dim_names=("island", "shard"))

    # FSDP2 as ever: each layer's parameters are sharded along the mesh's second dimension.
    torch.manual_seed(0)
    model = GPT(width=options.width, layers=3)
    num_bytes = 4 * sum(param.numel() for param in model.parameters())
    for block in model.blocks:
        fully_shard(block, mesh=mesh["shard"])
    fully_shard(model, mesh=mesh["shard"])

    # The new lines: the ranks along the first dimension exchange their shards.
    island = sharded.new_group(mesh["island"])
    links = bdn.Links(push=options.push, pull=options.pull)
    inner = torch.optim.AdamW(model.parameters(), lr=options.lr)
    if options.tau:
        outer = bdn.algorithms.Nesterov(lr=0.7, momentum=0.9)
        optimizer = bdn.LocalSteps(inner, model, tau=options.tau, outer=outer, links=links, worker=island)
    else:
        optimizer = bdn.DistributedOptimizer(inner, model, links=links, worker=island)

    text, _ = load_text(None)
    generator = torch.Generator().manual_seed(bdn.rank())
    losses = []
    before = worker.stats()
    for step in range(options.steps):
        set_rate(optimizer, step, options)
        optimizer.zero_grad()
        loss = model.loss(sample(text, generator, count=4))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    sent = worker.stats()["bytes_pushed"] - before["bytes_pushed"]

    bdn.barrier("the last step")
    mean = torch.tensor(losses[-10:]).mean().reshape(1)
    bdn.push_pull(mean, "loss of the last ten steps").wait()
    hashes = bdn.allgather_object(hash_of(model))
    if bdn.rank() == 0:
        print(f"loss {mean.item():.3f} after {options.steps} steps; {sent / options.steps / 1e3:,.1f} kB a step and rank across "
              f"islands, of a model of {num_bytes / 1e3:,.1f} kB")
        if options.beside:
            generators = [torch.Generator().manual_seed(rank) for rank in range(bdn.size())]
            alone = beside(options, text, lambda step, rank: generators[rank])
            print(f"loss {alone:.3f} in one process on the batches of all ranks")
        for shard in range(bdn.size() // ISLANDS):
            of_shard = {hashes[rank] for rank in mesh.mesh[:, shard].tolist()}
            same = "the same in all islands" if len(of_shard) == 1 else "NOT the same in all islands"
            print(f"shard {shard}: {sorted(of_shard)[0]}, {same}")
    bdn.barrier("the end")
    dist.destroy_process_group()
    bdn.shutdown()


def join_torch():
    """torch.distributed among the same processes: by torchrun's environment, or by a file that rank 0 makes."""
    if "MASTER_ADDR" in os.environ and "WORLD_SIZE" in os.environ:
        dist.init_process_group("gloo")
        return
    folder = bdn.broadcast_object(tempfile.mkdtemp(prefix="fsdp-") if bdn.rank() == 0 else None)
    dist.init_process_group("gloo", rank=bdn.rank(), world_size=bdn.size(), init_method=f"file://{folder}/store")


def set_rate(optimizer, step, options):
    for group in optimizer.param_groups:
        group["lr"] = rate(step, options.steps, options.lr)


def hash_of(model):
    digest = hashlib.sha256()
    for param in model.parameters():
        digest.update(param.to_local().detach().numpy().tobytes())
    return digest.hexdigest()[:12]


def beside(options, text, generator_of):
    """The loss of plain torch in one process; generator_of(step, rank) draws a rank's samples."""
    torch.manual_seed(0)
    model = GPT(width=options.width, layers=3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    losses = []
    for step in range(options.steps):
        set_rate(optimizer, step, options)
        optimizer.zero_grad()
        parts = [model.loss(sample(text, generator_of(step, rank), count=4)) / bdn.size() for rank in range(bdn.size())]
        sum(parts).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(sum(part.item() for part in parts))
    return sum(losses[-10:]) / 10


if __name__ == "__main__":
    main()
