"""A worker of elastic_test.py: trains with a TrainingState, and prints at each step a checksum of all weights and of what the
optimizer keeps in common. Who comes later begins from weights of its own, so what it has afterwards it was given.

The data of a step is a function of its number, and each worker takes its part of it.
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

CASES = os.environ.get("TEST_CASE", "adamw").split(",")
STEPS = int(os.environ.get("TEST_STEPS", "300"))
PACE = float(os.environ.get("TEST_PACE", "0.01"))
DIRECTORY = os.environ.get("TEST_DIRECTORY")
EVERY = int(os.environ.get("TEST_EVERY", "0")) or None
WIDTH = int(os.environ.get("TEST_WIDTH", "64"))
ONE_BIT = "onebit(block=64)"
END = os.environ.get("TEST_END")  # a file: once it is there, all leave the loop at the same step
LEAVES_AT = int(os.environ.get("TEST_LEAVES_AT", "-1"))  # of who has the second part then
ALGORITHMS = {
    "sgd": lambda model, **own: bdn.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), model, links=bdn.Links(**own)),
    "adamw": lambda model, **own: bdn.DistributedOptimizer(
        torch.optim.AdamW(model.parameters(), lr=0.01), model, links=bdn.Links(push=f"ef({ONE_BIT})", pull=f"ef({ONE_BIT})", **own)
    ),
    "forward": lambda model, **own: bdn.DistributedOptimizer(
        torch.optim.AdamW(model.parameters(), lr=0.01), model, overlap="forward", links=bdn.Links(**own)
    ),
    "links": lambda model, **own: bdn.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01), model, links=bdn.Links(push=f"ef({ONE_BIT})", momentum=0.9, warmup=20, **own)
    ),
    "server": lambda model, **own: bdn.ServerOptimizer(
        torch.optim.AdamW(model.parameters(), lr=0.01), model.named_parameters(),
        links=bdn.Links(push="int4(hadamard=32)", pull="delta(int4(group=64))", **own),
    ),
    "odd": lambda model, **own: bdn.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=0.1), model, links=bdn.Links(**own)
    ),
    "kept": lambda model, **own: bdn.DistributedOptimizer(Kept(model.parameters(), lr=0.01), model, links=bdn.Links(**own)),
    "local": lambda model, **own: bdn.LocalSteps(
        torch.optim.AdamW(model.parameters(), lr=0.01), model.named_parameters(), tau=5, outer=bdn.algorithms.Nesterov(),
        links=bdn.Links(push="int8", **own),
    ),
    "local_residual": lambda model, **own: bdn.LocalSteps(
        torch.optim.SGD(model.parameters(), lr=0.05), model.named_parameters(), tau=5, outer=bdn.algorithms.Average(), local_residual=True,
        links=bdn.Links(push="int4", **own),
    ),
    "local_qsr": lambda model, **own: bdn.LocalSteps(
        torch.optim.AdamW(model.parameters(), lr=0.01), model.named_parameters(), outer=bdn.algorithms.Average(),
        tau=bdn.algorithms.QSR(alpha=0.02, least=3, most=10), links=bdn.Links(push="ef(onebit)", **own),
    ),
    "local_streaming": lambda model, **own: bdn.LocalSteps(
        torch.optim.AdamW(model.parameters(), lr=0.01), model, outer=bdn.algorithms.Nesterov(),
        tau=bdn.algorithms.Streaming(9, fragments=3, delay=2), links=bdn.Links(push="ef(onebit)", pull="delta(int4)", **own),
    ),
    "cser": lambda model, **own: bdn.algorithms.CSER(
        torch.optim.SGD(model.parameters(), lr=0.05), model.named_parameters(), gradient=8, reset=4, period=2, block=16,
        links=bdn.Links(**own),
    ),
    "cser_model": lambda model, **own: bdn.algorithms.CSER(
        torch.optim.SGD(model.parameters(), lr=0.05), model.named_parameters(), gradient=8, reset=4, period=2, block=16,
        implementation="model", links=bdn.Links(**own),
    ),
    "ef21": lambda model, **own: bdn.algorithms.EF21(
        torch.optim.SGD(model.parameters(), lr=0.05), model.named_parameters(), momentum=0.5, links=bdn.Links(**own)
    ),
    "lion": lambda model, **own: bdn.algorithms.Lion(model.named_parameters(), lr=0.003, links=bdn.Links(**own)),
    "demo": lambda model, **own: bdn.algorithms.DeMo(model.named_parameters(), lr=0.003, links=bdn.Links(**own)),
    "onebit_adam": lambda model, **own: bdn.algorithms.OneBitAdam(model.named_parameters(), lr=0.01, links=bdn.Links(warmup=30, **own)),
}


class Kept(torch.optim.SGD):
    """Keeps a list of float32 beside bfloat16 parameters, as Shampoo does."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is None:
                    continue
                state = self.state[param]
                (total,) = state.setdefault("totals", [torch.zeros_like(param, dtype=torch.float32)])
                total.mul_(0.9).add_(param.grad.float())
                param.add_((total * -group["lr"]).to(param.dtype))


class Net(torch.nn.Module):
    """Two heads, of which a step uses one; the first layer is frozen at first; older states are of another version."""

    _version = 2

    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(16, 16)
        self.heads = torch.nn.ModuleList([torch.nn.Linear(16, 1), torch.nn.Linear(16, 1)])
        self.body.requires_grad_(False)
        self.step = 0

    def _load_from_state_dict(self, state, prefix, metadata, *args):
        assert metadata.get("version") == 2, metadata
        super()._load_from_state_dict(state, prefix, metadata, *args)

    def forward(self, inputs):
        return self.heads[self.step % 50 // 25](self.body(inputs).tanh())


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


def in_common(case, optimizer, model):
    """The tensors that must be the same in all workers now; None where none must be."""
    if case.startswith("local") and not optimizer.is_together:
        return None
    if case == "cser_model":
        return []  # Models drift apart, and nothing else is in common.
    if case.startswith(("local", "cser")):
        return optimizer._common
    inner = getattr(optimizer, "inner", optimizer)
    kept = [value for param in model.parameters() for value in inner.state.get(param, {}).values()]
    kept = [one for value in kept for one in (value if isinstance(value, list) else [value])]
    return [*model.parameters(), *(value for value in kept if isinstance(value, torch.Tensor))]


def make(case):
    model = Net() if case == "odd" else torch.nn.Sequential(
        torch.nn.Linear(16, WIDTH), torch.nn.BatchNorm1d(WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, 1)
    )
    if case == "kept":
        model.bfloat16()
    bdn.broadcast_parameters(model)
    optimizer = ALGORITHMS[case](model, prefix=f"{case}/")
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step / 1000))
    return model, optimizer, schedule


def train(step, part, model, optimizer, schedule):
    part = part.to(next(model.parameters()).dtype)
    if isinstance(model, Net):
        model.step = step
        model.body.requires_grad_(step >= 10)
    loss = (model(part) - part.sin().sum(dim=1, keepdim=True)).square().mean()
    if not isinstance(model, Net):
        optimizer.zero_grad()
    elif step % 4 == 0:  # Four passes a step, each of which is exchanged.
        optimizer.zero_grad(set_to_none=False)
    loss.backward()
    if not isinstance(model, Net) or step % 4 == 3:
        optimizer.step()
    schedule.step()
    return loss.item()


def main():
    torch.set_num_threads(1)
    with bandoneon.init() as worker:
        torch.manual_seed(1 if not worker.is_candidate() else 7)
        trainings = {case: make(case) for case in CASES}
        objects = {
            f"{kind} {case}" if len(CASES) > 1 else kind: item
            for case, training in trainings.items()
            for kind, item in zip(("model", "optimizer", "schedule"), training)
        }
        state = bdn.TrainingState(
            objects, checkpoint=DIRECTORY, every=EVERY, join_interval=0,
            heal_timeout=float(os.environ.get("TEST_HEAL_TIMEOUT", "60")), on_change=lambda: print("change", flush=True),
        )
        break_something(worker)
        if "TEST_NEVER_TAKES" in os.environ:
            state._wants_change = lambda: bool(worker.candidates() and print("somebody waits", flush=True))
        print("candidate" if worker.is_candidate() else "member", worker.rank, flush=True)
        steps = 0
        for step in state.steps(STEPS):
            index, count = state.shard
            whole = torch.randn(24, 16, generator=torch.Generator().manual_seed(step))
            first = sum(24 // count + (i < 24 % count) for i in range(index))
            part = whole[first : first + state.count(24)]
            losses = [train(step, part, *training) for training in trainings.values()]
            time.sleep(PACE)
            steps += 1
            if steps == 20:
                print("running", flush=True)
            common = {case: in_common(case, optimizer, model) for case, (model, optimizer, _) in trainings.items()}
            if None not in common.values():
                sums = [
                    f"{case}={checksum(tensors)}/{trainings[case][1].param_groups[0]['lr']:.6f}" for case, tensors in common.items()
                ]
                print("step", step, *sums, f"shard {index}/{count} loss {losses[0]:.4f}", flush=True)
            if step == LEAVES_AT and index == 1:
                state.leave("it has done its part")
            if END and step % 10 == 9:
                is_over = torch.tensor([float(os.path.exists(END))])
                if bdn.push_pull(is_over, "the end is near").wait().item():
                    break
        if worker.is_closed():
            print("went", flush=True)
        else:
            print("present", *worker.present(), flush=True)
    print("left", flush=True)


if __name__ == "__main__":
    main()
    sys.exit(0)
