"""Islands that train one sharded GPT far apart: they meet every 16 steps, over a hundred times fewer bytes, and one may be lost and come back.

    build/release/bin/bandoneon-scheduler --workers=4 --min-workers=2 --listen=127.0.0.1:4700
    BANDONEON_SCHEDULER=127.0.0.1:4700 build/release/bin/bandoneon-server
    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
    BANDONEON_SCHEDULER=127.0.0.1:4700 BANDONEON_ISLAND=0 build/venv/bin/torchrun --standalone --nproc-per-node 2 --max-restarts 9 examples/diloco_fsdp.py
    BANDONEON_SCHEDULER=127.0.0.1:4700 BANDONEON_ISLAND=1 build/venv/bin/torchrun --standalone --nproc-per-node 2 --max-restarts 9 examples/diloco_fsdp.py

Each torchrun is an island, of two ranks here, in which FSDP2 shards the model. Each rank exchanges its half with the rank of the
other island that holds the same half: every 16 steps (DiLoCo), in two bits a value, a quarter of the model at a time. Kill a process of
the second island: the first one goes on, torchrun starts the second one again, and at a meeting each of its ranks is given what it
lacks by the rank that holds the same half. With --beside rank 0 trains the model in one process, too, exchanging every step.
"""

import argparse

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

import bandoneon.torch as bdn
from bandoneon.torch import sharded
from fsdp import beside, hash_of, set_rate
from gpt import GPT, load_text, rate, sample


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=480)
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--tau", type=int, default=16, help="steps between meetings of a part of the model")
    parser.add_argument("--fragments", type=int, default=4, help="parts of the model, which meet one after the other")
    parser.add_argument("--codec", default="twobit(block=64)")
    parser.add_argument("--beside", action="store_true", help="train in one process, too, and compare the losses")
    parser.add_argument("--width", type=int, default=96)
    options = parser.parse_args()

    # The island: torch.distributed and FSDP2 as ever.
    dist.init_process_group("gloo")
    worker = bdn.init()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = GPT(width=options.width, layers=3)
    num_bytes = 4 * sum(param.numel() for param in model.parameters())
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)

    # Between islands.
    across = sharded.across_islands()
    bdn.broadcast_parameters(model, worker=across)
    optimizer = bdn.LocalSteps(
        torch.optim.AdamW(model.parameters(), lr=options.lr),
        model,
        tau=bdn.algorithms.Streaming(options.tau, options.fragments),
        outer=bdn.algorithms.Nesterov(lr=0.7, momentum=0.9),
        links=bdn.Links(push=options.codec, pull=options.codec),
        worker=across,
    )
    state = bdn.TrainingState({"model": model, "optimizer": optimizer}, worker=across)

    text, _ = load_text(None)
    losses = []
    before, first = worker.stats()["bytes_pushed"], None
    for step in state.steps(options.steps):
        if first is None and (first := step) > 0:
            print(f"rank {bdn.rank()} goes on from step {step} of the others", flush=True)
        set_rate(optimizer, step, options)
        optimizer.zero_grad()
        loss = model.loss(sample(text, generator_of(step, state.shard[0]), count=4))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        if (step + 1) % 40 == 0 and bdn.rank() == across.first_rank():
            print(f"step {step + 1}: loss {loss.item():.3f}, {state.shard[1]} ranks", flush=True)
    sent = (worker.stats()["bytes_pushed"] - before) / max(len(losses), 1)

    optimizer.synchronize()  # From here on all islands have the same weights.
    hashes = bdn.allgather_object((dist.get_rank(), hash_of(model)))
    mean = torch.tensor(losses[-10:]).mean().reshape(1)
    bdn.push_pull(mean, "loss of the last ten steps").wait()
    if bdn.rank() == min(worker.present()):
        print(f"loss {mean.item():.3f} after {options.steps} steps; {sent / 1e3:,.2f} kB a step and rank across islands, where "
              f"gradients of its half are {num_bytes / 2e3:,.1f} kB: {num_bytes / 2 / max(sent, 1):,.0f} times fewer")
        if options.beside:
            print(f"loss {beside(options, text, generator_of):.3f} in one process on the batches of all ranks, exchanging every step")
        for shard in range(dist.get_world_size()):
            of_shard = {digest for place, digest in hashes if place == shard}
            same = "the same in all islands" if len(of_shard) == 1 else "NOT the same in all islands"
            print(f"shard {shard}: {sorted(of_shard)[0]}, {same}", flush=True)
    bdn.barrier("the end")
    dist.destroy_process_group()
    bdn.shutdown()


def generator_of(step, rank):
    """The samples of a step are a function of its number, so that a rank that comes back has its own."""
    return torch.Generator().manual_seed(1000 * step + rank)


if __name__ == "__main__":
    main()
