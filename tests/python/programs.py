"""Programs that tests run as real processes: python programs.py NAME DIRECTORY [ARGUMENT ...].

Each worker leaves what it found in DIRECTORY/RANK.json.
"""

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

import torch

import bandoneon
import bandoneon.torch as bdn
from bandoneon.torch.app_state import AppState
from bandoneon.torch import exchange, rows
from cluster_helpers import BreaksOff, fill, linked, make_batch, make_model, model_hash

STEPS = 50


def train_plainly(model, forward, optimizer, rank):
    for step in range(STEPS):
        optimizer.zero_grad()
        forward(make_batch(rank, step, width=600)).square().mean().backward()
        optimizer.step()
    return model


def equals_ddp(directory, spec):
    """The same training by DDP over gloo, DDP over our hook, and DistributedOptimizer."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    worker = bdn.init()
    dist.init_process_group("gloo")
    models = {}

    def sgd(model):
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    # Buckets so small that there are several, which DDP rebuilds after the first step.
    def ddp(model):
        return DistributedDataParallel(model, bucket_cap_mb=0.005)

    if spec == "none":
        model = models["gloo"] = make_model(width=600)
        train_plainly(model, ddp(model), sgd(model), worker.rank)

    model = models["hook"] = make_model(width=600)
    wrapped = ddp(model)
    state = bdn.DDPState(model.named_parameters(), links=bdn.Links(push=spec, pull=spec, prefix="hook/"))
    wrapped.register_comm_hook(state, bdn.ddp_hook)
    train_plainly(model, wrapped, sgd(model), worker.rank)

    model = models["optimizer"] = make_model(width=600)
    optimizer = bdn.DistributedOptimizer(sgd(model), model.named_parameters(), push=spec, pull=spec)
    train_plainly(model, model, optimizer, worker.rank)

    if worker.rank == 0:
        torch.save(
            {name: model.state_dict() for name, model in models.items()}, f"{directory}/models.pt"
        )
    record(directory, worker, {name: model_hash(model) for name, model in models.items()})
    dist.destroy_process_group()
    bdn.shutdown()


def joins(directory, counts):
    """Uneven data: DDP's join() over gloo and over our hook, and DistributedOptimizer's."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    worker = bdn.init()
    dist.init_process_group("gloo")
    batches = int(counts.split(",")[worker.rank])
    models = {}

    def train(model, forward, optimizer, join):
        for epoch in range(2):
            with join():
                for step in range(batches):
                    optimizer.zero_grad()
                    forward(make_batch(worker.rank, 10 * epoch + step, width=600)).square().mean().backward()
                    optimizer.step()
        return model

    for kind in ("gloo", "hook", "optimizer"):
        model = make_model(width=600)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        if kind == "optimizer":
            forward, optimizer = model, bdn.DistributedOptimizer(optimizer, model.named_parameters())
        else:
            forward = DistributedDataParallel(model, bucket_cap_mb=0.005)
        if kind == "hook":
            state = bdn.DDPState(model.named_parameters(), links=bdn.Links(prefix="hook/"))
            forward.register_comm_hook(state, bdn.ddp_hook)
        join = optimizer.join if kind == "optimizer" else forward.join
        models[kind] = model_hash(train(model, forward, optimizer, join))
        if kind != "optimizer":
            del forward
    record(directory, worker, models)
    dist.destroy_process_group()
    bdn.shutdown()


def averages_large_gradients(directory):
    """{kind: the mean of gradients whose sum overflows, and how far its elements are from it}"""
    import torch.distributed as dist
    from test_average import large
    from torch.nn.parallel import DistributedDataParallel

    worker = bdn.init()
    dist.init_process_group("gloo")
    group = dist.new_group(list(range(worker.size)))
    found = {}
    for kind in ("gloo", "hook", "optimizer", "group"):
        model = torch.nn.Linear(300, 1, bias=False)
        forward = DistributedDataParallel(model) if kind in ("gloo", "hook") else model
        if kind == "hook":
            state = bdn.DDPState(model.named_parameters(), links=bdn.Links(prefix="hook/", average="before"))
            forward.register_comm_hook(state, bdn.ddp_hook)
        elif kind != "gloo":
            how = dict(local_group=group) if kind == "group" else {}
            optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
            bdn.broadcast_parameters(model)
            optimizer = bdn.DistributedOptimizer(
                optimizer, model.named_parameters(), **linked(prefix=f"{kind}/", average="before", **how)
            )
        forward(large(worker.rank, torch.float32)).sum().backward()
        grad = model.weight.grad
        found[kind] = grad[0, 0].item(), (grad - grad[0, 0]).abs().max().item()
    record(directory, worker, found)
    dist.destroy_process_group()
    bdn.shutdown()


def trains_with_empty_parameters(directory):
    """The same training of a model with parameters that have no elements, by DDP over gloo and by us."""
    import torch.distributed as dist
    from test_what_may_be_exchanged import WithEmpty, trained
    from torch.nn.parallel import DistributedDataParallel

    worker = bdn.init()
    dist.init_process_group("gloo")
    hashes = {}
    for kind in ("gloo", "hook", "optimizer"):
        model = WithEmpty()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        if kind == "optimizer":
            optimizer = bdn.DistributedOptimizer(optimizer, model)
            trained(model, optimizer, worker.rank)
        else:
            ddp = DistributedDataParallel(model)
            if kind == "hook":
                state = bdn.DDPState(model.named_parameters(), links=bdn.Links(prefix="hook/"))
                ddp.register_comm_hook(state, bdn.ddp_hook)
            trained(ddp, optimizer, worker.rank)
        hashes[kind] = model_hash(model)
    record(directory, worker, hashes)
    dist.destroy_process_group()
    bdn.shutdown()


def changes_gradients(directory):
    """The same training, in which hooks that come last change every gradient: by DDP over gloo, and by us. In the
    first parameters in place, in the others by another tensor."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    worker = bdn.init()
    dist.init_process_group("gloo")
    group = dist.new_group(list(range(worker.size)))
    models = {}

    def scale(param):
        param.grad.mul_(1.5 + worker.rank)

    def clip(param):
        param.grad = param.grad / param.grad.norm().clamp(min=1.0)

    for kind in ("gloo", "hook", "backward", "forward", "no overlap", "group"):
        model = torch.nn.Sequential(torch.nn.Linear(600, 400), torch.nn.Tanh(), torch.nn.Linear(400, 300))
        fill(model)
        forward, optimizer = model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        if kind in ("gloo", "hook"):
            forward = DistributedDataParallel(model, bucket_cap_mb=0.5)
        if kind == "hook":
            state = bdn.DDPState(model.named_parameters(), links=bdn.Links(prefix="hook/"))
            forward.register_comm_hook(state, bdn.ddp_hook)
        elif kind != "gloo":
            how = {"group": dict(local_group=group), "no overlap": dict(overlap=False)}
            how = how.get(kind, dict(overlap=kind))
            optimizer = bdn.DistributedOptimizer(optimizer, model, **linked(prefix=f"{kind}/", **how))
        for i, param in enumerate(model.parameters()):
            param.register_post_accumulate_grad_hook(clip if i // 2 else scale)
        for step in range(6):
            optimizer.zero_grad()
            forward(make_batch(worker.rank, step, width=600)).square().mean().backward()
            optimizer.step()
        if kind == "forward":
            optimizer.synchronize()
        models[kind] = model
    if worker.rank == 0:
        torch.save({kind: model.state_dict() for kind, model in models.items()}, f"{directory}/models.pt")
    record(directory, worker, {kind: model_hash(model) for kind, model in models.items()})
    dist.destroy_process_group()
    bdn.shutdown()


# Which of the branches a worker takes at a step: all, none, by worker, by step, and one that nobody
# takes at all.
USES = {
    "always": lambda rank, step: True,
    "never": lambda rank, step: False,
    "now and then": lambda rank, step: step % 3 == 0,
    "one worker": lambda rank, step: rank == step % 2,
    "first worker": lambda rank, step: rank == 0,
}


class Branches(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.trunk = torch.nn.Linear(64, 64)
        self.branches = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in USES)

    def forward(self, batch, rank, step):
        hidden = self.trunk(batch)
        for use, branch in zip(USES.values(), self.branches):
            if use(rank, step):
                hidden = branch(hidden)
        return hidden


def conserves_gradients(directory, how):
    """Of each parameter: what all backward passes made, what was applied, and what is still owed."""
    import torch.distributed as dist

    worker = bdn.init()
    dist.init_process_group("gloo")
    found = {
        f"{spec}, zero_grad(set_to_none={to_none})": train_branches(worker, how, spec, to_none)
        for spec in ("none", "ef(onebit(block=64))")
        for to_none in (True, False)
    }
    torch.save(found, f"{directory}/{worker.rank}.pt")
    record(directory, worker, list(found))
    dist.destroy_process_group()
    bdn.shutdown()


def train_branches(worker, how, spec, to_none):
    from torch.nn.parallel import DistributedDataParallel

    model = Branches()
    params = dict(model.named_parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    options = dict(push=spec, pull=spec, prefix=f"{spec}/{to_none}/")
    if how == "hook":
        forward = DistributedDataParallel(model, find_unused_parameters=True, bucket_cap_mb=0.02)
        exchange = bdn.DDPState(model.named_parameters(), **linked(**options))
        forward.register_comm_hook(exchange, bdn.ddp_hook)
    else:
        forward = model
        optimizer = exchange = bdn.DistributedOptimizer(
            optimizer, model.named_parameters(), **linked(**options)
        )
    made = {name: torch.zeros_like(p) for name, p in params.items()}
    applied = {name: torch.zeros_like(p) for name, p in params.items()}
    for step in range(12):
        batch = make_batch(worker.rank, step, width=64)
        loss = model(batch, worker.rank, step).square().mean()
        grads = torch.autograd.grad(loss, list(params.values()), allow_unused=True)
        for total, grad in zip(made.values(), grads):
            total += 0 if grad is None else grad
        optimizer.zero_grad(set_to_none=to_none)
        forward(batch, worker.rank, step).square().mean().backward()
        before = {name: p.detach().clone() for name, p in params.items()}
        optimizer.step()
        for name, p in params.items():
            applied[name] += before[name] - p.detach()
    owed = exchange.comm_state_dict()["tensors"]
    return {"made": made, "applied": applied, "owed": owed, "hash": model_hash(model)}


def local_groups(worker, size):
    """This worker's, of groups of so many, and all their ranks. Collective."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    every = [range(first, first + size) for first in range(0, worker.size, size)]
    groups = [dist.new_group(list(ranks)) for ranks in every]
    return groups[worker.rank // size]


def app_of(worker, name, **options):
    """(model, optimizer, state for torch.distributed.checkpoint)"""
    model = make_model(width=600)
    if name == "local":
        inner = torch.optim.AdamW(model.parameters(), lr=0.01)
        optimizer = bdn.LocalSteps(
            inner, model.named_parameters(), tau=4, outer=bdn.algorithms.SlowMo(), push="ef(onebit(block=64))"
        )
    else:
        inner = torch.optim.Adam(model.parameters(), lr=0.01)
        spec = "ef(onebit(block=64))"
        optimizer = bdn.DistributedOptimizer(inner, model.named_parameters(), push=spec, pull=spec)
    return model, optimizer, {"app": AppState(model, optimizer, **options)}


def leave_state(directory, worker, phase, model, optimizer):
    found = {"model": model.state_dict(), "comm": optimizer.comm_state_dict()}
    torch.save(found, f"{directory}/{phase}{worker.rank}.pt")
    record(directory, worker, phase)


def saves_by_dcp(directory, name):
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    worker = bdn.init()
    dist.init_process_group("gloo")
    model, optimizer, app = app_of(worker, name)
    for step in range(8):
        optimizer.zero_grad()
        model(make_batch(worker.rank, step, width=600)).square().mean().backward()
        optimizer.step()
    dcp.save(app, checkpoint_id=f"{directory}/dcp")
    leave_state(directory, worker, "saved", model, optimizer)
    dist.destroy_process_group()
    bdn.shutdown()


def loads_by_dcp(directory, name, saved_size):
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    worker = bdn.init()
    dist.init_process_group("gloo")
    model, optimizer, app = app_of(worker, name, saved_size=int(saved_size))
    dcp.load(app, checkpoint_id=f"{directory}/dcp")
    leave_state(directory, worker, "loaded", model, optimizer)
    dist.destroy_process_group()
    bdn.shutdown()


def tells_its_place(directory):
    worker = bdn.init()
    place = dict(rank=worker.rank, size=bdn.size(), local=[bdn.local_rank(), bdn.local_size()])
    record(directory, worker, dict(place, torch=os.environ["RANK"]))
    bdn.shutdown()


def reads_a_config(directory):
    """The scheduler's address and the rank are in the file alone; one setting is wrong there, and right
    in the environment, one wrong in both and right as an argument."""
    rank = int(os.environ["RANK"])
    path = pathlib.Path(directory, f"{rank}.conf")
    path.write_text(
        "# of this worker\n\n"
        f"scheduler = {os.environ.pop('BANDONEON_SCHEDULER')}  # where it is\n"
        f"rank={os.environ.pop('BANDONEON_RANK')}\n"
        "threads = none\nmax-bytes-in-flight = none\npush = ef(onebit)\npull = fp16\n"
    )
    os.environ["BANDONEON_THREADS"] = "2"
    os.environ["BANDONEON_MAX_BYTES_IN_FLIGHT"] = "none"
    os.environ["BANDONEON_PULL"] = "none"
    worker = bdn.init(config=path, max_bytes_in_flight="1MiB")
    assert worker.rank == rank
    tensor = torch.arange(1.0, 10_001.0)
    bdn.push_pull(tensor, "t").wait()
    record(directory, worker, tensor.unique().numel())  # One magnitude, by the codec of the pushes.
    bdn.shutdown()


def trains_again(directory):
    """A transformers.Trainer twice, and on from a checkpoint that lacks the workers' files."""
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

    from bandoneon.torch.huggingface import BandoneonCallback

    set_seed(1)
    shape = dict(vocab_size=64, n_positions=32, n_embd=32, n_layer=1, n_head=2)
    model = GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=0, eos_token_id=0))
    data = [{"input_ids": text, "labels": text} for text in torch.randint(0, 64, (64, 32))]
    worker = bdn.init()
    how = dict(max_steps=2, save_steps=2, use_cpu=True, report_to="none", disable_tqdm=True)
    trainer = Trainer(model, TrainingArguments(directory, **how), train_dataset=data)
    trainer.add_callback(BandoneonCallback(trainer, push="fp16", pull="fp16"))
    hashes = []
    for _ in range(2):
        trainer.train()
        hashes.append(model_hash(model))
    checkpoint = pathlib.Path(directory, "checkpoint-2")
    pathlib.Path(checkpoint, f"bandoneon-{worker.rank}.pt").unlink()
    bdn.barrier()
    trainer.args.max_steps = 4
    try:
        trainer.train(resume_from_checkpoint=str(checkpoint))
    except bandoneon.FailedPrecondition as error:
        record(directory, worker, [*hashes, str(error)])
    bdn.shutdown()


def wrong_world_size(directory, in_rank, size):
    del os.environ["BANDONEON_RANK"]
    rank = int(os.environ["RANK"])
    if in_rank in ("all", str(rank)):
        os.environ["WORLD_SIZE"] = size
    try:
        bdn.init()
        bdn.barrier()
    except bandoneon.BandoneonError as error:  # InvalidArgument where it is found, the job's failure elsewhere.
        pathlib.Path(directory, f"{rank}.json").write_text(json.dumps(str(error)))


def joins_again_after_shutdown(directory):
    rank = bdn.init().rank
    bdn.shutdown()
    try:
        bdn.init(join_timeout="2s")
    except bandoneon.FailedPrecondition as error:
        pathlib.Path(directory, f"{rank}.json").write_text(json.dumps(str(error)))


def fails_at_a_prompt(directory):
    """As a notebook that had a failed cell and was closed later."""
    worker = bdn.init()
    sys.ps1, sys.last_value = "In [1]: ", ValueError("of a cell")
    tensor = torch.full((10,), float(worker.rank))
    bdn.push_pull(tensor, "t").wait()
    record(directory, worker, tensor.tolist())


def ends_without_shutdown(directory):
    worker = bdn.init()
    tensor = torch.full((10,), float(worker.rank))
    bdn.push_pull(tensor, "t").wait()
    record(directory, worker, tensor.tolist())


def fails_in_one_worker(directory, how="by itself"):
    worker = bdn.init()
    try:
        with worker if how == "with" else contextlib.nullcontext():
            bdn.push_pull(torch.zeros(3), "t").wait()
            if worker.rank == 1:
                raise RuntimeError("the disk is full")
            bdn.push_pull(torch.zeros(3), "t").wait()
    except bandoneon.BandoneonError as error:
        record(directory, worker, str(error))
        raise
    finally:
        if how == "finally":
            bdn.shutdown()


def catches_every_error(directory, ending):
    """Rank 1's second batch fails, and a loop that skips whatever fails skips the job's errors, too."""
    worker = bdn.init()
    model = make_model()
    optimizer = bdn.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)
    for step in range(4):
        optimizer.zero_grad()
        hidden = model[0](make_batch(worker.rank, step))
        if worker.rank == 1 and step == 1:
            hidden = BreaksOff.apply(hidden)
        try:
            model[1:](hidden).square().mean().backward()
        except RuntimeError:
            continue
        optimizer.step()
    record(directory, worker, model_hash(model))
    exec(ending)


def ends_early_in_one_worker(directory, how):
    worker = bdn.init()
    try:
        bdn.push_pull(torch.zeros(3), "t").wait()
        if worker.rank == 1:
            return None if how == "return" else exec(how)
        bdn.push_pull(torch.zeros(3), "t").wait(timeout=60)
    except bandoneon.BandoneonError as error:
        record(directory, worker, str(error))
        raise


def trains_in_attempts(directory):
    """Fails in one rank in the first attempt, of torchrun's. What each exchange brought."""
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    worker = bdn.init()
    steps = []
    for step in range(3):
        tensor = torch.full((5,), float(worker.rank + step))
        steps.append(bdn.push_pull(tensor, "t").wait().tolist())
        if attempt == 0 and step == 1 and worker.rank == 1:
            raise RuntimeError("the first attempt fails")
    record(directory, worker, dict(attempt=attempt, steps=steps))


def trains_by(directory, *names):
    """A few steps by each of the algorithms, one after the other, and what its own model has come to."""
    worker = bdn.init()
    record(directory, worker, {name: train_by(worker, name) for name in names})
    bdn.shutdown()


def train_by(worker, name):
    model = make_model(width=600)
    named = [(f"{name}.{tensor}", parameter) for tensor, parameter in model.named_parameters()]
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    onebit = "ef(onebit(block=64))"
    optimizer = {
        "DistributedOptimizer": lambda: bdn.DistributedOptimizer(
            sgd, named, links=bdn.Links(push=onebit, pull=onebit, momentum=0.9)
        ),
        "ServerOptimizer": lambda: bdn.ServerOptimizer(
            torch.optim.AdamW(model.parameters(), lr=0.01), named, push="int8", pull="delta(int4(group=64))"
        ),
        "CSER": lambda: bdn.algorithms.CSER(
            sgd, named, gradient="blocks(ratio=0.1)", reset="blocks(ratio=0.25)", period=4
        ),
        "LocalSteps": lambda: bdn.LocalSteps(
            torch.optim.AdamW(model.parameters(), lr=0.01), named, tau=4, outer=bdn.algorithms.SignMomentum()
        ),
        "OneBitAdam": lambda: bdn.algorithms.OneBitAdam(named, lr=0.01, links=bdn.Links(warmup=4)),
    }[name]()
    losses = []
    for step in range(12):
        optimizer.zero_grad()
        loss = model(make_batch(worker.rank, step, width=600)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    optimizer.close()
    return {"hash": model_hash(model), "losses": losses}


def trains_folds(directory, *names):
    """Each of the algorithms three times, then eleven trials with a prefix each; how many tensors this worker has
    once they are closed, after the first and after the last, and what servers hold then."""
    worker = bdn.init()
    found = {name: [train_by(worker, name) for _ in range(3)] for name in names}

    def trial(number):
        model = make_model(width=600)
        options = dict(push="ef(onebit(block=64))", pull="ef(onebit(block=64))", prefix=f"trial {number}/")
        optimizer = bdn.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters(), **linked(**options)
        )
        for step in range(2):
            optimizer.zero_grad()
            model(make_batch(worker.rank, step, width=600)).square().mean().backward()
            optimizer.step()
        optimizer.close()

    def tensors():
        worker.barrier()  # All have closed theirs.
        return worker.stats()["tensors"]

    trial(0)
    before = tensors()
    for number in range(1, 11):
        trial(number)
    record(directory, worker, {
        "folds": found,
        "tensors": [before, tensors()],
        "held": awaited_held_bytes(lambda held: max(held.values()) < 64) if worker.rank == 0 else None,
    })
    bdn.shutdown()


def awaited_held_bytes(wanted):
    """What all servers hold, as soon as their heartbeats say that it is so; or after half a minute."""
    purposes = ("weights", "replicas", "moments", "residuals", "sums", "waiting", "replies", "values", "rows")
    deadline = time.monotonic() + 30
    while True:
        command = [pathlib.Path(__file__).resolve().parents[2] / "build/release/bin/bandoneon", "status", "--json"]
        status = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        held = [node.get("held", {}) for node in status["nodes"]]
        total = {what: sum(one.get(what, 0) for one in held) for what in purposes}
        if wanted(total) or time.monotonic() > deadline:
            return total


def holds_few_rows(directory, checkpoint):
    """Saves what changed of a table that is full, and what the servers have said of its rows by then."""
    worker = bdn.init()
    table = rows.Embedding(None, 4, init="uniform", init_value=0.5)
    optimizer = rows.RowOptimizer(table, rule="adagrad", lr=0.1, admit=2, max_rows=512, evict="lru", ttl=20)
    for step in range(1, 41):
        generator = torch.Generator().manual_seed(1000 * step + worker.rank)
        ids = (torch.rand(300, generator=generator) ** 2 * 3000).long() + 10 * step
        table(ids).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            bdn.save(checkpoint, {"tables": optimizer}, rows_every=10)
            if step == 20 and worker.rank == 0:
                shutil.copytree(checkpoint, f"{checkpoint}.{step}")
    worker.barrier("trained")

    def are_of_the_end(counts):  # They come with heartbeats.
        return counts["removed"] > 100 and counts["held"] > 300 and counts["not_admitted"] > counts["added"]

    record(directory, worker, awaited_rows(are_of_the_end) if worker.rank == 0 else None)
    bdn.shutdown()


def awaited_rows(wanted):
    """What servers say of their rows, added up, as soon as it is so, or after half a minute; and what people read."""
    command = [pathlib.Path(__file__).resolve().parents[2] / "build/release/bin/bandoneon", "status"]
    deadline = time.monotonic() + 30
    while True:
        status = json.loads(subprocess.run([*command, "--json"], check=True, capture_output=True).stdout)
        found = [node["rows"] for node in status["nodes"] if "rows" in node]
        total = {what: sum(one[what] for one in found) for what in ("held", "added", "removed", "not_admitted")}
        if wanted(total) or time.monotonic() > deadline:
            return total, subprocess.run(command, check=True, capture_output=True, text=True).stdout


def pushes_in_place(directory):
    """Tensors of empty(), and of torch's own: what was copied of each, and the results."""
    worker = bdn.init()
    found = []
    for tensor in (exchange.empty(100, 300, dtype=torch.bfloat16), torch.empty(100, 300, dtype=torch.bfloat16)):
        before = worker.stats()
        for step in range(3):
            tensor.fill_(worker.rank + step)
            mean = bdn.push_pull(tensor, f"t{len(found)}").wait()
        assert mean.data_ptr() == tensor.data_ptr()
        grown = {key: worker.stats().get(key, 0) - before.get(key, 0) for key in ("bytes_staged", "bytes_results")}
        found.append([grown["bytes_staged"], grown["bytes_results"], mean.unique().tolist()])
    kept = exchange.empty(10)
    bdn.shutdown()
    kept.fill_(3)  # Memory outlives the worker.
    record(directory, worker, [*found, kept.sum().item()])


def goes_apart(directory, kind, misdeed):
    """Trains until the last rank, which does `misdeed` at step 2, is found out; what each was told, and its steps."""
    worker = bdn.init()
    model = forward = make_model(width=600)
    inner = torch.optim.SGD(model.parameters(), lr=0.05)
    named = model.named_parameters()
    if kind == "hook":
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        dist.init_process_group("gloo")
        forward, optimizer = DistributedDataParallel(model, bucket_cap_mb=0.005), inner
        forward.register_comm_hook(bdn.DDPState(named), bdn.ddp_hook)
    elif kind == "group":
        group = local_groups(worker, 2)
        optimizer = bdn.DistributedOptimizer(inner, named, local_group=group)
    elif kind in ("forward", "backward"):
        optimizer = bdn.DistributedOptimizer(inner, model if kind == "forward" else named, overlap=kind)
    elif kind == "LocalSteps":
        optimizer = bdn.LocalSteps(inner, named, tau=100, outer=bdn.algorithms.Average())
    else:
        optimizer = bdn.algorithms.CSER(inner, named, reset="none", period=100)
    culprit = worker.rank == worker.size - 1

    def evaluates_alone():
        if kind == "LocalSteps":
            optimizer.synchronize()
        elif kind == "CSER":
            optimizer.averaged_weights()
        elif misdeed == "a backward pass more":
            forward(make_batch(worker.rank, 2, width=600)).square().mean().backward()
            optimizer.zero_grad()

    steps = 0
    try:
        for step in range(6):
            optimizer.zero_grad()
            if culprit and step == 2:
                evaluates_alone()
            if culprit and step == 2 and misdeed == "an error caught":
                hidden = model[0](make_batch(worker.rank, 2, width=600))
                with contextlib.suppress(RuntimeError):
                    model[1:](BreaksOff.apply(hidden)).square().mean().backward()
                optimizer.zero_grad()
            forward(make_batch(worker.rank, step, width=600)).square().mean().backward()
            if culprit and step == 2 and misdeed == "a step left out":
                continue
            optimizer.step()
            steps += 1
        if kind == "LocalSteps":
            optimizer.synchronize()
        elif kind == "CSER":
            optimizer.averaged_weights()
        elif kind == "forward":
            optimizer.synchronize()
    except bandoneon.BandoneonError as error:
        record(directory, worker, {"said": str(error), "steps": steps})
        raise
    record(directory, worker, {"said": None, "steps": steps})
    bdn.shutdown()


def record(directory, worker, facts):
    pathlib.Path(directory, f"{worker.rank}.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    torch.set_num_threads(1)
    globals()[sys.argv[1]](*sys.argv[2:])
