"""A worker whose job loses processes at named points: so many steps of one kind of training, whose last line is a checksum of the weights.

    faulty_program.py KIND STEPS

KIND is codecs PUSH PULL (of two tensors), groups, leaving, declaring, guard, or one of those with torch: adamw, overlap, local-steps,
sign-momentum, checkpoint, weight, not-finite, local-group, elastic ALGORITHM. With TEST_DIR each step's checksum goes into TEST_DIR/steps.RANK: workers that are left agree in every step.
With elastic, workers that `bandoneon run` starts again are taken in, and the job ends when --faults of them have come, and all workers
are there again; with others such a worker ends at once.
"""

import argparse
import hashlib
import os
import pathlib
import sys
import time
import types
import zlib

import numpy as np

import bandoneon
from bandoneon.calls import Declaration

DIRECTORY = pathlib.Path(os.environ["TEST_DIR"])


class Steps:
    """The checksums of this worker's steps, each written as it ends."""

    def __init__(self, rank):
        self.rank = rank
        self.file = open(DIRECTORY / f"steps.{rank}", "a", buffering=1)
        self.digest = b""

    def note(self, step, arrays):
        self.digest = b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)
        print(f"{step} {zlib.crc32(self.digest):08x}", file=self.file)

    def end(self):
        print("weights", hashlib.sha256(self.digest).hexdigest(), flush=True)


def gradient(weights, rank, step):
    """Of this rank, near weights of its own."""
    return (weights - (np.arange(weights.size, dtype=np.float32) * 7 + step) % 11 - rank).astype(np.float32)


def exchange(worker, tensors, arrays):
    tickets = [worker.push(tensor, array.ctypes.data, keep=array) for tensor, array in zip(tensors, arrays)]
    for ticket in tickets:
        worker.wait(ticket)


def without_torch(options):
    push, pull = (options.codecs + ["none", "none"])[:2]
    sizes = {"groups": [7, 100, 300, 65, 1000, 31], "guard": [4096]}.get(options.kind, [1000, 20_000])
    with bandoneon.init() as worker:
        rank = worker.rank
        weights = [np.zeros(n, np.float32) for n in sizes]
        tensors = worker.declare([Declaration(f"w{i}", n, push=push, pull=pull) for i, n in enumerate(sizes)])
        steps = Steps(rank)
        for step in range(1, options.steps + 1):
            if options.kind == "declaring" and step % 4 == 0:
                # One more tensor each time, which is exchanged once, and one that is known.
                (new,) = worker.declare([Declaration(f"new-{step}", 500, push=push, pull=pull)])
                assert worker.declare([Declaration("w0", sizes[0], push=push, pull=pull)]) == tensors[:1]
                exchange(worker, [new], [np.full(500, step + rank, np.float32)])
            means = [gradient(w, rank, step) for w in weights]
            exchange(worker, tensors, means)
            for weight, mean in zip(weights, means):
                weight -= np.float32(0.25) * mean
            steps.note(step, weights)
            if step % 16 == 0 and options.kind != "leaving":
                worker.barrier(f"step {step}")
                told = np.full(4, step if rank == 0 else 0, np.float32)
                if len(worker.present()) == worker.size:
                    broadcast(worker, told, step)
            time.sleep(options.pace)
        end(steps, rank)


def end(steps, rank):
    """Workers leave one after the other, so that some have left and others have not."""
    steps.end()
    time.sleep(0.3 * rank)


def broadcast(worker, told, step):
    """A root may be lost just now, and is named then."""
    try:
        worker.broadcast("told", told.ctypes.data, told.nbytes, 0)
        assert (told == step).all(), told
    except bandoneon.FailedPrecondition as error:
        print("no broadcast:", error, flush=True)


def import_torch():
    import torch

    # Optimizers import it for nothing but this, which takes longer than the job.
    torch._dynamo = sys.modules["torch._dynamo"] = types.ModuleType("torch._dynamo")
    torch._dynamo.disable = lambda function, *_, **__: function
    torch._dynamo.graph_break = lambda *_, **__: None
    torch._dynamo.trace_rules = types.SimpleNamespace(clear_lru_cache=lambda: None)
    import bandoneon.torch as bdn

    torch.set_num_threads(1)
    return torch, bdn


def elastic(options):
    """Ends at the same step in all, whoever came last."""
    torch, bdn = import_torch()
    import elastic_faults

    with bandoneon.init() as worker:
        elastic_faults.install(worker)
        torch.manual_seed(7 if worker.is_candidate() else 1)
        model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 16))
        bdn.broadcast_parameters(model)
        optimizer = ELASTIC[options.codecs[0]](torch, bdn, model)
        # More than one piece, of which a newcomer may get some.
        ballast = torch.nn.ParameterList([torch.nn.Parameter(torch.arange(3 << 20).float() * (1 + worker.is_candidate()), False)])
        # As others may come and go the whole time: only where that takes longer do steps stand for a part of it.
        state = bdn.TrainingState({"model": model, "optimizer": optimizer, "ballast": ballast}, join_interval=0, heal_timeout=30)
        steps = Steps(worker.rank)
        for step in state.steps(1_000_000):
            index, count = state.shard
            note_whole(options.faults, count == worker.size, options.loses_scheduler)
            inputs = torch.randn(24, 16, generator=torch.Generator().manual_seed(step))
            first = sum(24 // count + (i < 24 % count) for i in range(index))
            part = inputs[first : first + state.count(24)]
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(part), part.sin()).backward()
            optimizer.step()
            if getattr(optimizer, "is_together", True):
                steps.note(step, [p.detach().numpy() for p in (*model.parameters(), ballast[0][:1000])])
            time.sleep(options.pace)
            if step % 10 == 9:
                may_end = torch.tensor([float(may_all_end(options, count == worker.size))])
                # Of an odd number of workers, and of two, most.
                if bdn.push_pull(may_end, "the end is near", push="none", pull="none").wait().item() > 0.5:
                    break
        steps.digest += ballast[0].numpy().tobytes()
        steps.end()


ELASTIC = {
    "adamw": lambda torch, bdn, model: bdn.DistributedOptimizer(
        torch.optim.AdamW(model.parameters(), lr=0.01), model, links=bdn.Links(push="ef(onebit)", pull="ef(onebit)")),
    "server": lambda torch, bdn, model: bdn.ServerOptimizer(
        torch.optim.AdamW(model.parameters(), lr=0.01), model.named_parameters(), links=bdn.Links(push="int4", pull="delta(int4)")),
    "local": lambda torch, bdn, model: bdn.LocalSteps(
        torch.optim.AdamW(model.parameters(), lr=0.01), model.named_parameters(), tau=5, outer=bdn.algorithms.Nesterov(),
        links=bdn.Links(push="ef(onebit)")),
}
BEGAN = time.monotonic()
SETTLED = 5.0  # seconds; longer than a lease, and than a stop


def note_whole(faults, is_whole, loses_scheduler):
    """Files that say that a fault has come, and all workers are there again: the next may come. A scheduler that comes back gives all
    their leases anew."""
    for number in range(faults):
        fault, whole = DIRECTORY / f"fault-{number}", DIRECTORY / f"whole-{number}"
        if is_whole and fault.exists() and time.time() - fault.stat().st_mtime > SETTLED * (3 if loses_scheduler else 1):
            whole.touch()


def may_all_end(options, is_whole):
    """Whether all faults have come, or will not, and all workers are there."""
    have_come = all((DIRECTORY / f"whole-{number}").exists() for number in range(options.faults))
    return have_come or (is_whole and time.monotonic() - BEGAN > options.most_seconds)


def with_torch(options):
    torch, bdn = import_torch()
    from bandoneon.torch.algorithms import Muon, SignMomentum

    bdn.init()
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 32))
    named = list(model.named_parameters())
    rank = bdn.rank()
    if options.kind == "adamw":
        optimizer = bdn.ServerOptimizer(torch.optim.AdamW(model.parameters(), 0.01), named, push="int4", pull="delta(int4)")
    elif options.kind == "overlap":
        optimizer = bdn.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.05, momentum=0.9), model, overlap="forward")
    elif options.kind == "local-steps":
        inner = Muon([{"params": [p for p in model.parameters() if p.ndim == 2]},
                      {"params": [p for p in model.parameters() if p.ndim != 2], "matrices": False}], lr=0.01)
        optimizer = bdn.LocalSteps(inner, named, tau=8, outer=bdn.algorithms.Nesterov(), push="ef(onebit)")
    elif options.kind == "sign-momentum":
        optimizer = bdn.LocalSteps(torch.optim.AdamW(model.parameters(), 0.005), named, tau=2, outer=SignMomentum())
    else:
        links = bdn.Links(push="ef(onebit)", pull="ef(onebit)", weight=1 + rank if options.kind == "weight" else None,
                          local_group=pairs_of_workers(bdn) if options.kind == "local-group" else None)
        optimizer = bdn.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.05, momentum=0.9), named, links=links)
    data = torch.Generator().manual_seed(100 + rank)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=4)
    steps = Steps(rank)
    saved = {"model": model, "optimizer": optimizer}
    for step in range(1, options.steps + 1):
        inputs = torch.randn(8, 32, generator=data)
        loss = torch.nn.functional.mse_loss(model(inputs), inputs.roll(1, 1))
        optimizer.zero_grad()
        if options.kind == "not-finite":
            # All leave out a step in which one has an infinite loss.
            scaler.scale(loss / 0.0 if step % 7 == rank else loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()
        # Between two meetings each worker has weights of its own, and with overlap a step may be under way.
        if options.kind in ("adamw", "checkpoint", "weight", "not-finite", "local-group") or (options.kind == "sign-momentum" and step % 2 == 0) or (
                options.kind == "local-steps" and step % 8 == 0):
            steps.note(step, [p.detach().numpy() for p in model.parameters()])
        if options.kind == "checkpoint" and step % 20 == 0:
            checkpoint(bdn, saved)
        time.sleep(options.pace)
    steps.note(options.steps, [p.detach().numpy() for p in model.parameters()])
    end(steps, rank)
    bdn.shutdown()


def pairs_of_workers(bdn):
    """The group of torch.distributed of this worker and its neighbour."""
    import torch.distributed as dist

    dist.init_process_group("gloo", f"file://{DIRECTORY}/pairs", rank=bdn.rank(), world_size=bdn.size())
    return [dist.new_group([first, first + 1]) for first in range(0, bdn.size(), 2)][bdn.rank() // 2]


def checkpoint(bdn, saved):
    """Saves, and loads it again. In a job that has lost a worker it says so."""
    try:
        bdn.save(str(DIRECTORY / "checkpoint"), saved)
        bdn.load(str(DIRECTORY / "checkpoint"), saved)
    except bandoneon.Evicted:
        raise
    except bandoneon.BandoneonError as error:
        print("no checkpoint:", error, flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    parser.add_argument("codecs", nargs="*")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--pace", type=float, default=0, metavar="SECONDS", help="that each step takes more")
    parser.add_argument("--faults", type=int, default=0, help="of elastic: how many are to come")
    parser.add_argument("--loses-scheduler", action="store_true", help="of elastic: a scheduler may be lost with a worker")
    parser.add_argument("--most-seconds", type=float, default=60, help="of elastic: then it ends without them, once all workers are there")
    options = parser.parse_args()
    if options.kind == "elastic":
        return elastic(options)
    if "TORCHELASTIC_RESTART_COUNT" in os.environ:
        return
    is_plain = options.kind in ("codecs", "groups", "leaving", "declaring", "guard")
    (without_torch if is_plain else with_torch)(options)


if __name__ == "__main__":
    main()
    sys.exit(0)
