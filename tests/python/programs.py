"""Programs that tests run as real processes: python programs.py NAME DIRECTORY [ARGUMENT ...].

Each worker leaves what it found in DIRECTORY/RANK.json.
"""

import json
import os
import pathlib
import sys

import torch

import bandoneon
import bandoneon.torch as bdn
from cluster_helpers import make_batch, make_model, model_hash

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
    state = bdn.DDPState(model.named_parameters(), push=spec, pull=spec, prefix="hook/")
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
        with join():
            for step in range(batches):
                optimizer.zero_grad()
                forward(make_batch(worker.rank, step, width=600)).square().mean().backward()
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
            state = bdn.DDPState(model.named_parameters(), prefix="hook/")
            forward.register_comm_hook(state, bdn.ddp_hook)
        join = optimizer.join if kind == "optimizer" else forward.join
        models[kind] = model_hash(train(model, forward, optimizer, join))
        if kind != "optimizer":
            del forward
    record(directory, worker, models)
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
        exchange = bdn.DDPState(model.named_parameters(), **options)
        forward.register_comm_hook(exchange, bdn.ddp_hook)
    else:
        forward = model
        optimizer = exchange = bdn.DistributedOptimizer(
            optimizer, model.named_parameters(), **options
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


def app_of(worker, name, **options):
    """(model, optimizer, state for torch.distributed.checkpoint)"""
    model = make_model(width=600)
    if name == "local":
        inner = torch.optim.AdamW(model.parameters(), lr=0.01)
        optimizer = bdn.LocalSteps(
            inner, model.named_parameters(), tau=4, outer=bdn.SlowMo(), push="ef(onebit(block=64))"
        )
    else:
        inner = torch.optim.Adam(model.parameters(), lr=0.01)
        spec = "ef(onebit(block=64))"
        optimizer = bdn.DistributedOptimizer(inner, model.named_parameters(), push=spec, pull=spec)
    return model, optimizer, {"app": bdn.AppState(model, optimizer, **options)}


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


def wrong_world_size(directory, in_rank):
    del os.environ["BANDONEON_RANK"]
    rank = int(os.environ["RANK"])
    if in_rank in ("all", str(rank)):
        os.environ["WORLD_SIZE"] = "5"
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


def fails_in_one_worker(directory):
    worker = bdn.init()
    try:
        bdn.push_pull(torch.zeros(3), "t").wait()
        if worker.rank == 1:
            raise RuntimeError("the disk is full")
        bdn.push_pull(torch.zeros(3), "t").wait()
    except bandoneon.BandoneonError as error:
        record(directory, worker, str(error))
        raise


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


def trains_by(directory, name):
    """A few steps by one of the algorithms, and what its own model has come to."""
    worker = bdn.init()
    model = make_model(width=600)
    named = list(model.named_parameters())
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    onebit = "ef(onebit(block=64))"
    optimizer = {
        "DistributedOptimizer": lambda: bdn.DistributedOptimizer(sgd, named, push=onebit, pull=onebit, momentum=0.9),
        "ServerOptimizer": lambda: bdn.ServerOptimizer(
            torch.optim.AdamW(model.parameters(), lr=0.01), named, push="int8", pull="delta(int4(group=64))"
        ),
        "CSER": lambda: bdn.CSER(sgd, named, gradient="blocks(ratio=0.1)", reset="blocks(ratio=0.25)", period=4),
        "LocalSteps": lambda: bdn.LocalSteps(
            torch.optim.AdamW(model.parameters(), lr=0.01), named, tau=4, outer=bdn.SignMomentum()
        ),
        "OneBitAdam": lambda: bdn.OneBitAdam(model.parameters(), lr=0.01, warmup=4, named_parameters=named),
    }[name]()
    losses = []
    for step in range(12):
        optimizer.zero_grad()
        loss = model(make_batch(worker.rank, step, width=600)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    record(directory, worker, {"hash": model_hash(model), "losses": losses})
    bdn.shutdown()


def pushes_in_place(directory):
    """Tensors of empty(), and of torch's own: what was copied of each, and the results."""
    worker = bdn.init()
    found = []
    for tensor in (bdn.empty(100, 300, dtype=torch.bfloat16), torch.empty(100, 300, dtype=torch.bfloat16)):
        before = worker.stats()
        for step in range(3):
            tensor.fill_(worker.rank + step)
            mean = bdn.push_pull(tensor, f"t{len(found)}").wait()
        assert mean.data_ptr() == tensor.data_ptr()
        grown = {key: worker.stats().get(key, 0) - before.get(key, 0) for key in ("bytes_staged", "bytes_results")}
        found.append([grown["bytes_staged"], grown["bytes_results"], mean.unique().tolist()])
    kept = bdn.empty(10)
    bdn.shutdown()
    kept.fill_(3)  # Memory outlives the worker.
    record(directory, worker, [*found, kept.sum().item()])


def record(directory, worker, facts):
    pathlib.Path(directory, f"{worker.rank}.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    torch.set_num_threads(1)
    globals()[sys.argv[1]](*sys.argv[2:])
