"""Programs of processes that share their exchange with others of their host, as programs.py has those of plain workers."""

import contextlib
import copy
import os
import sys

import torch

import bandoneon
import bandoneon.torch as bdn
from bandoneon.torch import sharded
from cluster_helpers import linked, make_batch, make_model, model_hash
from programs import local_groups, record


class Wide(torch.nn.Module):
    """Tensors that are cut, one of them of no multiple of 4 elements, and small ones; a branch that only some
    workers take, and one that nobody does."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(3)
        self.trunk = torch.nn.Linear(601, 333)
        self.head = torch.nn.Linear(333, 257)
        self.sometimes = torch.nn.Linear(257, 257)
        self.never = torch.nn.Linear(257, 300)
        self.to(dtype)

    def forward(self, batch, takes_branch):
        hidden = self.head(self.trunk(batch).tanh())
        return hidden + self.sometimes(hidden) if takes_branch else hidden


def train_wide(worker, group, steps, dtype=torch.float32, lr=0.02, takes=None, **options):
    """(model, optimizer, bytes pushed and pulled)"""
    model = Wide(dtype)
    inner_momentum = 0.0 if options.get("momentum") else 0.9
    inner = torch.optim.SGD(model.parameters(), lr=lr, momentum=inner_momentum)
    optimizer = bdn.DistributedOptimizer(inner, model.named_parameters(), local_group=group, **linked(**options))
    takes = takes or (lambda rank, step: (rank + step) % 3 == 0 and step != 2)
    before = worker.stats()
    for step in range(steps):
        optimizer.zero_grad()
        batch = make_batch(worker.rank, step, width=601, rows=8).to(dtype)
        model(batch, takes(worker.rank, step)).float().square().mean().backward()
        optimizer.step()
    after = worker.stats()
    moved = [after[name] - before[name] for name in ("bytes_pushed", "bytes_pulled")]
    return model, optimizer, moved


def in_three_ways(worker, group, directory, cases, train):
    """Of each case, {name: options}, facts of its training by plain workers, by groups, and by groups again; worker 0 leaves
    the models in the directory. train(group or None, prefix, options) returns (model, optimizer, facts)."""
    found = {}
    for name, options in cases.items():
        kept = []
        for kind, of in (("plain", None), ("local", group), ("again", group)):
            prefix = f"{name}/{'plain' if of is None else 'group'}/"  # "again" is a second fold of the same names.
            model, optimizer, facts = train(of, prefix, options)
            found[f"{name}, {kind}"] = dict(hash=model_hash(model), **facts)
            kept.append(model.state_dict())
            optimizer.close()
            del optimizer
        if worker.rank == 0:
            torch.save(kept, f"{directory}/{name}.pt")
    return found


def shares_by_group(directory, size):
    """The same training by plain workers and by groups of them, under several settings."""
    import torch.distributed as dist

    worker = bdn.init()
    group = local_groups(worker, int(size))
    onebit = "ef(onebit(block=64))"
    takers = (lambda rank, step: True, lambda rank, step: False)
    cases = {
        "none": dict(steps=8),
        "onebit": dict(steps=8, push=onebit, pull=onebit),
        "momentum and warm-up": dict(steps=8, push=onebit, pull=onebit, momentum=0.5, warmup=3, lr=0.002),
        "weights": dict(steps=6, weight=float(1 + worker.rank)),
        "a weight of none": dict(steps=6, weight=float(worker.rank % 3)),
        "half": dict(steps=6, dtype=torch.bfloat16),
        "several passes": dict(steps=6, backward_passes_per_step=2, takes=takers[0]),
        "nobody": dict(steps=3, takes=takers[1]),
    }

    def train(of, prefix, options):
        model, optimizer, moved = train_wide(worker, of, prefix=prefix, **options)
        return model, optimizer, dict(moved=moved)

    record(directory, worker, in_three_ways(worker, group, directory, cases, train))
    dist.destroy_process_group()
    bdn.shutdown()


def goes_on_by_group(directory, size):
    """What else one does with an optimizer, by groups; of each case what must be alike."""
    import torch.distributed as dist

    worker = bdn.init()
    group = local_groups(worker, int(size))
    found = {}
    cases = (overflows, scales, joins_unevenly, accumulates, grows, resumes, waits_again)
    for case in cases:
        found[case.__name__] = case(worker, group)
    record(directory, worker, found)
    dist.destroy_process_group()
    bdn.shutdown()


ONEBIT = dict(push="ef(onebit(block=64))", pull="ef(onebit(block=64))")


def local_sgd(worker, group, model, name, **options):
    inner = torch.optim.SGD(model.parameters(), lr=0.02)
    return bdn.DistributedOptimizer(
        inner, model.named_parameters(), local_group=group, **linked(prefix=f"{name}/", **options)
    )


def loss_of_wide(worker, model, step):
    return model(make_batch(worker.rank, step, width=601, rows=8), True).square().mean()


def step_of(worker, model, optimizer, step):
    optimizer.zero_grad()
    loss_of_wide(worker, model, step).backward()
    optimizer.step()


def overflows(worker, group):
    """One element of one worker's gradient is infinite once: where all see it, and that nothing is kept."""
    model = Wide()
    optimizer = local_sgd(worker, group, model, "overflows", **ONEBIT)
    step_of(worker, model, optimizer, 0)
    owed = {name: entry.get("residual") for name, entry in optimizer.comm_state_dict()["tensors"].items()}
    optimizer.zero_grad()
    loss = loss_of_wide(worker, model, 1)
    if worker.rank == 1:
        hook = model.trunk.weight.register_hook(lambda grad: grad.index_fill(0, torch.tensor([0]), torch.inf))
    loss.backward()
    lost = {name: bool(p.grad is not None and p.grad.isnan().any()) for name, p in model.named_parameters()}
    rows = model.trunk.weight.grad.isnan().any(dim=1).tolist()
    after = optimizer.comm_state_dict()["tensors"]
    unchanged = [  # But for the rounding of what was taken back.
        name
        for name, e in owed.items()
        if e is not None and torch.allclose(e, after[name]["residual"], rtol=1e-4, atol=1e-7)
    ]
    if worker.rank == 1:
        hook.remove()
    for step in (2, 3):
        step_of(worker, model, optimizer, step)
    optimizer.close()
    return dict(lost=lost, rows=rows, unchanged=unchanged, hash=model_hash(model))


def scales(worker, group):
    """With a GradScaler whose scale grows, and without any."""
    hashes = []
    for name, scaler in (("scaled", torch.amp.GradScaler("cpu", 2.0**8, growth_interval=2)), ("not", None)):
        model = Wide()
        optimizer = local_sgd(worker, group, model, name, scaler=scaler, **ONEBIT)
        for step in range(6):
            optimizer.zero_grad()
            loss = loss_of_wide(worker, model, step)
            if scaler is None:
                loss.backward()
                optimizer.step()
            else:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
        optimizer.close()
        hashes.append(model_hash(model))
    return hashes


def joins_unevenly(worker, group):
    models = []
    for name, of in (("joins", group), ("plainly joins", None)):
        model = Wide()
        optimizer = local_sgd(worker, of, model, name, weight=2.0)
        with optimizer.join():
            for step in range(2 + worker.rank):
                step_of(worker, model, optimizer, step)
        optimizer.close()
        models.append(model)
    for ours, plain in zip(*(model.parameters() for model in models)):
        torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-5)
    return model_hash(models[0])


def accumulates(worker, group):
    """By no_sync(), and by backward_passes_per_step."""
    hashes = []
    for passes in (1, 2):
        model = Wide()
        optimizer = local_sgd(worker, group, model, f"accumulates {passes}", backward_passes_per_step=passes)
        for step in range(3):
            optimizer.zero_grad()
            with optimizer.no_sync() if passes == 1 else contextlib.nullcontext():
                loss_of_wide(worker, model, 2 * step).backward()
            loss_of_wide(worker, model, 2 * step + 1).backward()
            optimizer.step()
        optimizer.close()
        hashes.append(model_hash(model))
    return hashes


def grows(worker, group):
    """A group of parameters more, at another learning rate."""
    model, more = Wide(), make_model(width=257)
    optimizer = local_sgd(worker, group, model, "grows", **ONEBIT)
    step_of(worker, model, optimizer, 0)
    names = [(f"more.{name}", p) for name, p in more.named_parameters()]
    optimizer.add_param_group({"params": list(more.parameters()), "lr": 0.5}, names)
    for step in (1, 2):
        optimizer.zero_grad()
        more(model(make_batch(worker.rank, step, width=601), False)).square().mean().backward()
        optimizer.step()
    optimizer.close()
    return model_hash(model) + model_hash(more)


def resumes(worker, group):
    """Goes on from a state, and refuses one of another kind."""
    options = dict(ONEBIT, momentum=0.5)
    model = Wide()
    optimizer = local_sgd(worker, group, model, "saves", **options)
    for step in range(3):
        step_of(worker, model, optimizer, step)
    state, weights = optimizer.comm_state_dict(), copy.deepcopy(model.state_dict())
    for step in range(3, 6):
        step_of(worker, model, optimizer, step)
    optimizer.close()
    hashes = [model_hash(model)]
    model.load_state_dict(weights)
    optimizer = local_sgd(worker, group, model, "loads", **options)
    optimizer.load_comm_state_dict(state)
    for step in range(3, 6):
        step_of(worker, model, optimizer, step)
    optimizer.close()
    hashes.append(model_hash(model))
    plain = local_sgd(worker, None, model, "refuses", **options)
    try:
        plain.load_comm_state_dict(state)
    except bandoneon.InvalidArgument as error:
        refusal = str(error)
    plain.close()
    owned = [name for name, entry in state["tensors"].items() if "residual" in entry]
    return dict(hashes=hashes, refusal=refusal, owned=owned)


def waits_again(worker, group):
    """The others come to the exchange once worker 0 has given up waiting for them, a first time."""
    import torch.distributed as dist

    model = Wide()
    optimizer = local_sgd(worker, group, model, "waits", timeout=1 if worker.rank == 0 else None)
    if worker.rank == 0:
        try:
            loss_of_wide(worker, model, 0).backward()
        except bandoneon.DeadlineExceeded as error:
            message = str(error)
        dist.barrier()
        while True:
            try:
                optimizer.synchronize()
                break
            except bandoneon.DeadlineExceeded:
                pass
    else:
        message = None
        dist.barrier()
        loss_of_wide(worker, model, 0).backward()
    optimizer.step()
    optimizer.close()
    return dict(message=message, hash=model_hash(model))


def meet_wide(worker, group, name, *, steps=7, tau=3, outer=None, lr=0.02, upset=None, **links):
    """(a model that has trained by LocalSteps, the optimizer, bytes pushed by its steps). upset(model, step) comes before a step."""
    model = Wide()
    if worker.rank:  # All go on from what rank 0 begins with.
        with torch.no_grad():
            model.trunk.weight.mul_(1.0 + worker.rank)
    inner = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    optimizer = bdn.LocalSteps(
        inner, model, tau=tau, outer=outer or bdn.algorithms.Average(),
        links=bdn.Links(prefix=f"{name}/", local_group=group, **links),
    )
    before = worker.stats()["bytes_pushed"]
    for step in range(steps):
        if upset is not None:
            upset(model, step)
        step_of_branches(worker, model, optimizer, step)
    optimizer.synchronize()
    return model, optimizer, worker.stats()["bytes_pushed"] - before


def serve_wide(worker, group, name, *, inner=torch.optim.AdamW, steps=6, first=0, state=None, max_norm=None, **links):
    """As meet_wide(), by ServerOptimizer, whose learning rate and beta1 or momentum change on the way; state: (the model's, the
    inner optimizer's, comm_state_dict()) to go on from."""
    model = Wide()
    if worker.rank:  # All go on from what rank 0 begins with.
        with torch.no_grad():
            model.trunk.weight.mul_(1.0 + worker.rank)
    how = dict(betas=(0.9, 0.99)) if inner is torch.optim.AdamW else dict(momentum=0.9)
    groups = [{"params": list(model.trunk.parameters())}, {"params": [*model.head.parameters(), *model.sometimes.parameters()], "lr": 0.004}]
    optimizer = bdn.ServerOptimizer(
        inner(groups, lr=0.002, **how), model, max_norm=max_norm, links=bdn.Links(prefix=f"{name}/", local_group=group, **links))
    if state is not None:
        model.load_state_dict(state[0])
        optimizer.load_state_dict(state[1])
        optimizer.load_comm_state_dict(state[2])
    before = worker.stats()["bytes_pushed"]
    for step in range(first, steps):
        if step == 3:
            for one in optimizer.param_groups:
                one["lr"] *= 0.5
                one.update(dict(betas=(0.8, 0.99)) if inner is torch.optim.AdamW else dict(momentum=0.7))
        step_of_branches(worker, model, optimizer, step)
    return model, optimizer, worker.stats()["bytes_pushed"] - before


def serves_by_group(directory, size):
    """The same steps of the servers for plain workers and for groups of them, under several settings."""
    import torch.distributed as dist

    worker = bdn.init()
    group = local_groups(worker, int(size))
    cases = {
        "none": {},
        "sgd": dict(inner=torch.optim.SGD),
        "weights": dict(weight=float(1 + worker.rank), max_norm=0.5),
        "no weight in a group": dict(weight=float(worker.rank < 2)),
        "four bits": dict(push="int4(hadamard=32)", pull="delta(int4(group=2048))"),
    }

    def train(of, prefix, options):
        model, optimizer, moved = serve_wide(worker, of, prefix, **options)
        return model, optimizer, dict(moved=moved)

    found = in_three_ways(worker, group, directory, cases, train)
    hashes = []
    four_bits = cases["four bits"]
    model, optimizer, _ = serve_wide(worker, group, "saves", steps=4, **four_bits)
    state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict()), optimizer.comm_state_dict()
    for step in range(4, 6):
        step_of_branches(worker, model, optimizer, step)
    hashes.append(model_hash(model))
    optimizer.close()
    model, optimizer, _ = serve_wide(worker, group, "saves", steps=6, first=4, state=state, **four_bits)
    hashes.append(model_hash(model))
    optimizer.close()
    found["resumes"] = hashes
    record(directory, worker, found)
    dist.destroy_process_group()
    bdn.shutdown()


def resizes_by_group(directory, step, checkpoints):
    """Trains on from the checkpoints of `step` of each kind, by plain workers and by groups of two, if it is not 0; and leaves
    those after four steps more, if it is."""
    import torch.distributed as dist

    worker = bdn.init()
    group = local_groups(worker, 2)
    first = int(step)
    makers = {
        "exchanges": lambda model, links: bdn.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9), model, links=links),
        "meets": lambda model, links: bdn.LocalSteps(
            torch.optim.SGD(model.parameters(), lr=0.02), model, tau=2, outer=bdn.algorithms.Nesterov(), links=links),
        "serves": lambda model, links: bdn.ServerOptimizer(torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9), model, links=links),
    }
    found = {}
    for kind, make in makers.items():
        for name, of in (("plain", None), ("local", group)):
            model = Wide()
            optimizer = make(model, bdn.Links(prefix=f"{kind}/{name}/", local_group=of))
            where = f"{checkpoints}/{kind}-{name}"
            if first:
                bdn.load(where, {"model": model, "optimizer": optimizer})
            for number in range(first, first + 4):
                step_of_branches(worker, model, optimizer, number)
            if not first:
                bdn.save(where, {"model": model, "optimizer": optimizer})
            found[f"{kind}, {name}"] = [model_hash(model), [param.detach().double().norm().item() for param in model.parameters()]]
            optimizer.close()
    record(directory, worker, found)
    dist.destroy_process_group()
    bdn.shutdown()


def step_of_branches(worker, model, optimizer, step):
    optimizer.zero_grad()
    batch = make_batch(worker.rank, step, width=601, rows=8)
    model(batch, (worker.rank + step) % 3 == 0).square().mean().backward()
    optimizer.step()


def meets_by_group(directory, size):
    """The same local steps by plain workers and by groups of them, under several settings."""
    import torch.distributed as dist

    worker = bdn.init()
    group = local_groups(worker, int(size))
    streaming = bdn.algorithms.Streaming(4, fragments=2, delay=1)

    def is_upset(model, step):
        if worker.rank == 1 and step == 4:
            model.head.bias.data[3] = float("nan")

    cases = {
        "none": {},
        "nesterov": dict(outer=bdn.algorithms.Nesterov()),
        "weights": dict(weight=float(1 + worker.rank)),
        "a weight of none": dict(weight=float(worker.rank % 3)),
        "no weight in a group": dict(weight=float(worker.rank < 2)),
        "as many as steps": dict(weight="steps"),
        "streaming": dict(tau=streaming),
        "upset": dict(upset=is_upset),
        "upset on the way": dict(upset=is_upset, tau=streaming),
        "signs": dict(outer=bdn.algorithms.SignMomentum(rate=0.02), push="int8"),
        "onebit": dict(push="ef(onebit(block=64))", pull="delta(int8)"),
    }

    def train(of, prefix, options):
        model, optimizer, moved = meet_wide(worker, of, prefix, **options)
        return model, optimizer, dict(moved=moved, skipped=optimizer.skipped_rounds, meetings=optimizer.meetings)

    found = in_three_ways(worker, group, directory, cases, train)
    found["resumes"] = meets_again(worker, group)
    found["under DDP"] = meets_under_ddp(worker, group)
    found["tiny"] = owns_nothing(worker, group)
    record(directory, worker, found)
    dist.destroy_process_group()
    bdn.shutdown()


def owns_nothing(worker, group):
    """A model of one small tensor, which one process of each host owns. By kind, its weights in the end: of plain workers, of
    groups, and of groups that went on from a state after 4 of 6 steps."""

    def optimizer_of(model, kind, of, prefix):
        links = bdn.Links(prefix=prefix, local_group=of)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        if kind == "meets":
            return bdn.LocalSteps(sgd, model, tau=2, outer=bdn.algorithms.Average(), links=links)
        return bdn.DistributedOptimizer(sgd, model, links=links)

    def train(model, optimizer, steps):
        for step in steps:
            optimizer.zero_grad()
            model(make_batch(worker.rank, step, width=3, rows=8)).square().mean().backward()
            optimizer.step()

    found = {}
    for kind in ("meets", "exchanges"):
        for name, of in (("plain", None), ("local", group)):
            torch.manual_seed(1)
            model = torch.nn.Linear(3, 1, bias=False)
            optimizer = optimizer_of(model, kind, of, f"{kind}/{name}/")
            train(model, optimizer, range(4))
            state, saved = optimizer.comm_state_dict(), copy.deepcopy(model)
            train(model, optimizer, range(4, 6))
            found.setdefault(kind, []).append(model.weight.detach().flatten().tolist())
            optimizer.close()
        optimizer = optimizer_of(saved, kind, group, f"{kind}/again/")
        optimizer.load_comm_state_dict(state)
        train(saved, optimizer, range(4, 6))
        found[kind].append(saved.weight.detach().flatten().tolist())
        optimizer.close()
    return found


def meets_under_ddp(worker, group):
    """The processes of a host step by their mean gradients, and hosts meet. Beside it what that comes to, by torch alone;
    and what is said of DDP among all."""
    import torch.distributed as dist

    outer = bdn.algorithms.Nesterov(lr=0.5, momentum=0.8)
    model = Wide()
    forward = torch.nn.parallel.DistributedDataParallel(model, process_group=group, find_unused_parameters=True)
    groups = [{"params": list(model.trunk.parameters())}, {"params": list(model.head.parameters()), "lr": 0.01}]
    optimizer = bdn.LocalSteps(
        torch.optim.SGD(groups, lr=0.02), model, tau=3, outer=outer, links=bdn.Links(prefix="ddp/", local_group=group))
    ours = {name: param for name, param in model.named_parameters() if name.startswith(("trunk", "head"))}
    plain = Wide()
    beside = dict(plain.named_parameters())
    common = {name: beside[name].detach().clone() for name in ours}
    velocity = {name: torch.zeros_like(value) for name, value in common.items()}
    for step in range(6):
        for each in (forward, plain):
            each.zero_grad()
            each(make_batch(worker.rank, step, width=601, rows=8), False).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            for name in ours:
                dist.all_reduce(beside[name].grad, group=group)
                beside[name] -= (0.02 if name.startswith("trunk") else 0.01) * beside[name].grad / dist.get_world_size(group)
                if step % 3 == 2:
                    moved = common[name] - beside[name]
                    dist.all_reduce(moved)
                    velocity[name].mul_(outer.momentum).add_(moved / worker.size)
                    common[name] -= outer.lr * (moved / worker.size + outer.momentum * velocity[name])
                    beside[name].copy_(common[name])
    apart = max((ours[name] - beside[name]).abs().max().item() for name in ours)
    optimizer.close()
    among_all = torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = bdn.LocalSteps(
        torch.optim.SGD(model.parameters(), lr=0.02), model, tau=3, outer=outer, links=bdn.Links(prefix="all/", local_group=group))
    among_all(make_batch(worker.rank, 0, width=601, rows=8), False).square().mean().backward()
    try:
        optimizer.step()
    except bandoneon.FailedPrecondition as error:
        refusal = str(error)
    optimizer.close()
    return dict(apart=apart, refusal=refusal)


def meets_again(worker, group):
    """Goes on from a state that was saved between two meetings, and refuses it without a group."""
    how = dict(steps=5, outer=bdn.algorithms.SlowMo(), push="ef(onebit(block=64))")
    model, optimizer, _ = meet_wide(worker, group, "saves", **how)
    step_of_branches(worker, model, optimizer, 5)
    states = [copy.deepcopy(one.state_dict()) for one in (model, optimizer.inner)]
    state = optimizer.comm_state_dict()
    hashes = []
    for name in ("saves", "loads"):
        if name == "loads":
            optimizer.close()
            model, optimizer, _ = meet_wide(worker, group, name, **{**how, "steps": 0})
            for one, saved in zip((model, optimizer.inner), states):
                one.load_state_dict(saved)
            optimizer.load_comm_state_dict(state)
        for step in range(6, 12):
            step_of_branches(worker, model, optimizer, step)
        optimizer.synchronize()
        hashes.append(model_hash(model))
    optimizer.close()
    plain = meet_wide(worker, None, "refuses", **how)[1]
    try:
        plain.load_comm_state_dict(state)
    except bandoneon.InvalidArgument as error:
        refusal = str(error)
    plain.close()
    return dict(hashes=hashes, refusal=refusal, tensors=sorted(state["tensors"]), has_servers=["server" in e for e in state["tensors"].values()])


def refuses_groups(directory):
    """Of 4 workers."""
    import torch.distributed as dist

    worker = bdn.init()
    pairs = local_groups(worker, 2)
    crossed = [dist.new_group([0, 2]), dist.new_group([1, 3])][worker.rank % 2]
    uneven = [dist.new_group([0, 1, 2]), dist.new_group([3])][worker.rank == 3]
    not_mine = [dist.new_group([2, 3]), dist.new_group([0, 1])][worker.rank // 2]
    found = {}

    def refused(name, group, **options):
        model = make_model()
        try:
            local_sgd(worker, group, model, name, **options)
        except bandoneon.InvalidArgument as error:
            found[name] = str(error)

    refused("crossed", crossed)
    refused("uneven", uneven)
    refused("not a member", not_mine)
    refused("no group", "pairs")
    refused("forward", pairs, overlap="forward")
    try:
        some = sharded.new_group([0, 2] if worker.rank % 2 == 0 else [1, 3])
        bdn.DistributedOptimizer(torch.optim.SGD(make_model().parameters(), 0.1), make_model(), local_group=pairs, worker=some)
    except bandoneon.InvalidArgument as error:
        found["some ranks"] = str(error)
    first = local_sgd(worker, pairs, make_model(), "first")
    refused("shared", pairs)
    for name, links in (("steps", {}), ("residual", dict(local_residual=True))):
        try:
            bdn.LocalSteps(
                torch.optim.SGD(make_model().parameters(), 0.1), make_model(), tau=2, outer=bdn.algorithms.Average(), **links,
                links=bdn.Links(local_group=crossed if name == "steps" else pairs, push="int8", prefix=f"{name}/"))
        except bandoneon.InvalidArgument as error:
            found[name] = str(error)
    first.close()
    second = local_sgd(worker, pairs, make_model(), "second")
    second.close()
    record(directory, worker, found)
    dist.destroy_process_group()
    bdn.shutdown()


def loses_a_member(directory, how):
    """Worker 1 of 4 ends within the third step."""
    worker = bdn.init()
    group = local_groups(worker, 2)
    model = Wide()
    optimizer = local_sgd(worker, group, model, "loses", timeout=30)
    try:
        for step in range(5):
            if step == 2 and worker.rank == 1:
                os.kill(os.getpid(), int(how))
            step_of(worker, model, optimizer, step)
    except bandoneon.BandoneonError as error:
        record(directory, worker, str(error))
        raise


if __name__ == "__main__":
    torch.set_num_threads(1)
    globals()[sys.argv[1]](*sys.argv[2:])
