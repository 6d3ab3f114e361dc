"""Models that FSDP2 or tensor parallelism shards inside an island, and Bandoneon exchanges across islands: each case trains
one, and compares it with plain torch in one process on the whole batch. Run by four workers, with the cases' names."""

import contextlib
import os
import sys
import traceback
import warnings

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard

import bandoneon
import bandoneon.torch as bdn
from bandoneon.torch import algorithms, sharded
from bandoneon.torch.algorithms.streaming import fragments_of
from bandoneon.torch.comm_state import CommState

STEPS = 6


class Net(torch.nn.Module):
    def __init__(self, tied=False, unused=False, width=9):
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Linear(6, width)
        self.second = torch.nn.Linear(width, width)
        self.last = torch.nn.Linear(width, 6)
        self.unused = torch.nn.Linear(4, 4) if unused else None
        self.checkpointed = False
        if tied:
            self.last = torch.nn.Linear(9, 6, bias=False)
            self.first = torch.nn.Linear(9, 6, bias=False)
            self.first.weight = self.last.weight
        self.tied = tied

    def forward(self, x):
        x = torch.nn.functional.linear(x, self.first.weight.t()) if self.tied else self.first(x)
        if self.checkpointed:
            x = torch.utils.checkpoint.checkpoint(self.second, torch.tanh(x), use_reentrant=False)
        else:
            x = self.second(torch.tanh(x))
        return self.last(torch.tanh(x))


def batch(rank, step, micro=0):
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(10000 * micro + 100 * step + rank))


def shard(model, mesh, **options):
    for layer in (model.first, model.second, model.last, model.unused):
        if layer is not None and not model.tied:
            fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def loss_of(model, x):
    return model(x).square().mean()


class Case:
    """A training of the sharded model, beside that of the plain one."""

    def __init__(self, mesh, lr=0.05, make_optimizer=None, links=None, shard_options=None, tolerance=1e-6,
                 dimensions="shard", **model_options):
        self.rank, self.size = bdn.rank(), bdn.size()
        self.mesh, self.tolerance = mesh, tolerance
        self.island = sharded.new_group(mesh["island"])
        self.model = shard(Net(**model_options), mesh[dimensions], **(shard_options or {}))
        self.plain = Net(**model_options)
        make = make_optimizer or (lambda params: torch.optim.AdamW(params, lr=lr))
        self.plain_optimizer = make(self.plain.parameters())
        self.inner = make(self.model.parameters())
        self.optimizer = bdn.DistributedOptimizer(self.inner, self.model, links=links or bdn.Links(), worker=self.island)

    def of(self, mesh):
        self.mesh, self.rank = mesh, bdn.rank()
        return self

    def backward(self, step, micro=0, scale=1.0):
        (loss_of(self.model, batch(self.rank, step, micro)) * scale).backward()

    def plain_backward(self, step, micro=0, scale=1.0):
        for rank in range(self.size):
            (loss_of(self.plain, batch(rank, step, micro)) * scale / self.size).backward()

    def step(self, step):
        self.optimizer.zero_grad()
        self.backward(step)
        self.optimizer.step()
        self.plain_optimizer.zero_grad()
        self.plain_backward(step)
        self.plain_optimizer.step()

    def run(self):
        for step in range(STEPS):
            self.step(step)
        self.check()
        self.optimizer.close()

    def check(self):
        expected = dict(self.plain.named_parameters())
        for name, param in self.model.named_parameters():
            worst = (param.full_tensor() - expected[name]).abs().max().item()
            assert worst <= self.tolerance, f"{name} is off by {worst}"


class Experts(Case):
    """Stacks of matrices, divided along one of their dimensions."""

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            generator = torch.Generator().manual_seed(0)
            self.up, self.down = (torch.nn.Parameter(torch.randn(3, 6, 6, generator=generator)) for _ in range(2))

        def forward(self, x):
            return torch.einsum("eio,neo->ni", self.up, torch.tanh(torch.einsum("eio,ni->neo", self.down, x)))

    def __init__(self, mesh, dimension):
        self.rank, self.size, self.mesh, self.tolerance = bdn.rank(), bdn.size(), mesh, 1e-5
        self.island = sharded.new_group(mesh["island"])
        self.model, self.plain = self.Net(), self.Net()
        fully_shard(self.model, mesh=mesh["shard"], shard_placement_fn=lambda param: Shard(dimension))
        self.plain_optimizer, self.inner = (
            muon([dict(params=list(model.parameters()), matrices="stacked")]) for model in (self.plain, self.model)
        )
        self.optimizer = bdn.DistributedOptimizer(self.inner, self.model, worker=self.island)


class Clipped(Case):
    def step(self, step):
        for optimizer, model, backward in (
            (self.optimizer, self.model, self.backward),
            (self.plain_optimizer, self.plain, self.plain_backward),
        ):
            optimizer.zero_grad()
            backward(step)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            optimizer.step()


class Accumulated(Case):
    """Three passes a step; `way` says how the first two stay local."""

    way = "gradient sync"

    def step(self, step):
        self.optimizer.zero_grad()
        for micro in range(3):
            is_last = micro == 2
            with contextlib.ExitStack() as stack:
                if self.way == "gradient sync":
                    self.model.set_requires_gradient_sync(is_last)
                if self.way == "no_sync" and not is_last:
                    stack.enter_context(self.optimizer.no_sync())
                self.backward(step, micro, 1 / 3)
        self.optimizer.step()
        self.plain_optimizer.zero_grad()
        for micro in range(3):
            self.plain_backward(step, micro, 1 / 3)
        self.plain_optimizer.step()


class AccumulatedByNoSync(Accumulated):
    way = "no_sync"


class AccumulatedByExchanges(Accumulated):
    way = "each pass is exchanged"


class TwoLosses(Case):
    """Two backward passes of one graph, of different parts of the model."""

    def backward(self, step, micro=0, scale=1.0):
        with self.optimizer.no_sync():
            super().backward(step, 1, 0.5)
        super().backward(step, 2, 0.5)

    def plain_backward(self, step, micro=0, scale=1.0):
        super().plain_backward(step, 1, 0.5)
        super().plain_backward(step, 2, 0.5)


class KeptGradients(Case):
    def step(self, step):
        self.optimizer.zero_grad(set_to_none=False)
        self.backward(step)
        self.optimizer.step()
        self.plain_optimizer.zero_grad(set_to_none=False)
        self.plain_backward(step)
        self.plain_optimizer.step()


class Checkpointed(Case):
    def __init__(self, mesh):
        super().__init__(mesh)
        self.model.checkpointed = True


class SkippedLayer(Case):
    """In odd steps odd ranks' islands do not use a layer."""

    def forward(self, model, x, uses):
        x = torch.tanh(model.first(x))
        return model.last(torch.tanh(model.second(x)) if uses else x).square().mean()

    def step(self, step):
        self.optimizer.zero_grad()
        uses = step % 2 == 0
        self.forward(self.model, batch(self.rank, step), uses).backward()
        self.optimizer.step()
        self.plain_optimizer.zero_grad()
        for rank in range(self.size):
            (self.forward(self.plain, batch(rank, step), uses) / self.size).backward()
        self.plain_optimizer.step()


class Compiled(Case):
    def __init__(self, mesh):
        super().__init__(mesh)
        self.model.second.compile(backend="eager")


class Scaled(Case):
    """With a GradScaler of the CPU."""

    def step(self, step):
        scaler = self.__dict__.setdefault("scaler", torch.amp.GradScaler("cpu", init_scale=1024.0))
        self.optimizer.zero_grad()
        scaler.scale(loss_of(self.model, batch(self.rank, step))).backward()
        scaler.step(self.optimizer)
        scaler.update()
        self.plain_optimizer.zero_grad()
        self.plain_backward(step)
        self.plain_optimizer.step()


class Resumed(Case):
    """State of the optimizer and of the links, taken up half-way."""

    def run(self):
        for step in range(STEPS):
            if step == STEPS // 2:
                state = self.optimizer.comm_state_dict()
                inner = self.optimizer.state_dict()
                self.optimizer.close()
                optimizer = self.make(self.model.parameters())
                optimizer.load_state_dict(inner)
                self.optimizer = bdn.DistributedOptimizer(optimizer, self.model, links=self.links, worker=self.island)
                self.optimizer.load_comm_state_dict(state)
            self.step(step)
        found = [param.full_tensor() for param in self.model.parameters()]
        self.optimizer.close()
        again = Case(self.mesh, links=self.links, make_optimizer=self.make)
        for step in range(STEPS):
            again.step(step)
        for one, other in zip(found, (param.full_tensor() for param in again.model.parameters())):
            assert torch.equal(one, other)
        again.optimizer.close()

    links = bdn.Links(push="ef(onebit(block=64))", pull="ef(onebit(block=64))")

    def __init__(self, mesh, make=lambda params: torch.optim.AdamW(params, lr=0.05)):
        self.make = make
        super().__init__(mesh, links=self.links, make_optimizer=make)


class Recut(Case):
    """Half-way model and optimizer go through torch.distributed.checkpoint to a model of half as many shards."""

    def __init__(self, mesh):
        islands = init_device_mesh("cpu", (1, 4), mesh_dim_names=("island", "shard"))
        super().__init__(islands, make_optimizer=muon, tolerance=1e-5)
        self.both = mesh

    def run(self):
        from torch.distributed import checkpoint
        from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

        def state():
            model, optimizer = get_state_dict(self.model, self.inner)
            return {"model": model, "optimizer": optimizer}

        for step in range(STEPS // 2):
            self.step(step)
        folder = os.environ["TEST_STORE"].removeprefix("file://") + ".recut"
        checkpoint.save(state(), checkpoint_id=folder)
        self.optimizer.close()
        self.model = shard(Net(), self.both["shard"])
        self.inner = muon(self.model.parameters())
        loaded = state()
        checkpoint.load(loaded, checkpoint_id=folder)
        set_state_dict(self.model, self.inner, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
        self.optimizer = bdn.DistributedOptimizer(self.inner, self.model, worker=sharded.new_group(self.both["island"]))
        for step in range(STEPS // 2, STEPS):
            self.step(step)
        self.check()
        self.optimizer.close()


class Frozen(Case):
    """A layer that is frozen until half of the steps are taken."""

    def step(self, step):
        for model in (self.model, self.plain):
            for param in model.second.parameters():
                param.requires_grad_(step >= STEPS // 2)
        super().step(step)


class OtherLayers(Case):
    """The islands use different layers in a step."""

    def uses(self, island, step):
        return (island + step) % 3 != 0

    def step(self, step):
        def loss(model, x, uses):
            x = torch.tanh(model.first(x))
            return model.last(torch.tanh(model.second(x)) if uses else x).square().mean()

        self.optimizer.zero_grad()
        island = self.mesh.get_coordinate()[0]
        loss(self.model, batch(self.rank, step), self.uses(island, step)).backward()
        self.optimizer.step()
        self.plain_optimizer.zero_grad()
        for rank in range(self.size):
            (loss(self.plain, batch(rank, step), self.uses(rank // 2, step)) / self.size).backward()
        self.plain_optimizer.step()


class Meta(Case):
    """Made without memory, then sharded, and given values by the first island."""

    def __init__(self, mesh):
        super().__init__(mesh)
        self.optimizer.close()
        with torch.device("meta"):
            model = Net()
        self.model = shard(model, mesh["shard"]).to_empty(device="cpu")
        values = dict(Net().named_parameters())
        with torch.no_grad():
            for name, param in self.model.named_parameters():
                is_first = mesh.get_coordinate()[0] == 0
                whole = torch.distributed.tensor.distribute_tensor(values[name].detach(), mesh["shard"], param.placements)
                param.copy_(whole if is_first else whole * 0 + 7)
        bdn.broadcast_parameters(self.model, worker=self.island)
        inner = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        self.optimizer = bdn.DistributedOptimizer(inner, self.model, worker=self.island)


class CompiledWhole(Case):
    def backward(self, step, micro=0, scale=1.0):
        compiled = self.__dict__.setdefault("compiled", torch.compile(self.model, backend="eager"))
        (loss_of(compiled, batch(self.rank, step, micro)) * scale).backward()


class Weighted(Case):
    """Islands of different batches: the second one has three times as many samples."""

    def __init__(self, mesh):
        self.times = 1 + 2 * mesh.get_coordinate()[0]
        super().__init__(mesh, links=bdn.Links(weight=self.times))

    def batch(self, rank, step, times):
        return torch.cat([batch(rank, step, micro) for micro in range(times)])

    def backward(self, step, micro=0, scale=1.0):
        loss_of(self.model, self.batch(self.rank, step, self.times)).backward()

    def plain_backward(self, step, micro=0, scale=1.0):
        for rank in range(self.size):
            times = 1 + 2 * (rank // 2)
            (loss_of(self.plain, self.batch(rank, step, times)) * times / 8).backward()


class Overflowed(Scaled):
    """One rank's loss is infinite in a step, which all ranks leave out."""

    def step(self, step):
        scaler = self.__dict__.setdefault("scaler", torch.amp.GradScaler("cpu", init_scale=1024.0))
        self.optimizer.zero_grad()
        scale = float("inf") if (self.rank, step) == (1, 2) else 1.0
        scaler.scale(loss_of(self.model, batch(self.rank, step)) * scale).backward()
        before = scaler.get_scale()
        scaler.step(self.optimizer)
        scaler.update()
        if scaler.get_scale() < before:
            self.skipped = self.__dict__.get("skipped", 0) + 1
            return
        self.plain_optimizer.zero_grad()
        self.plain_backward(step)
        self.plain_optimizer.step()

    def check(self):
        assert self.__dict__.get("skipped") == 1
        super().check()


class Two(Case):
    """Two models and optimizers in one group, of one prefix each, as a GAN has them."""

    def run(self):
        first = Case(self.mesh, links=bdn.Links(prefix="one/"))
        second = Case(self.mesh, links=bdn.Links(prefix="two/"), lr=0.01)
        for step in range(STEPS):
            for case in (first, second):
                case.optimizer.zero_grad()
                case.plain_optimizer.zero_grad()
            x = batch(self.rank, step)
            (loss_of(first.model, x) + loss_of(second.model, x)).backward()
            for case in (first, second):
                case.plain_backward(step)
                case.optimizer.step()
                case.plain_optimizer.step()
        for case in (first, second):
            case.check()
            case.optimizer.close()


class Repeated(Case):
    """Twice the same, with a momentum before error feedback: the same bits."""

    def run(self):
        links = bdn.Links(push="ef(onebit(block=64))", pull="ef(onebit(block=64))", momentum=0.9)
        found = []
        for _ in range(2):
            case = Case(self.mesh, links=links, make_optimizer=lambda params: torch.optim.SGD(params, lr=0.05))
            for step in range(STEPS):
                case.step(step)
            case.optimizer.close()
            found.append([param.full_tensor() for param in case.model.parameters()])
        assert all(torch.equal(one, other) for one, other in zip(*found))


class Saved(Case):
    """By torch.distributed.checkpoint, into a model and an optimizer that have done other things."""

    def __init__(self, mesh):
        super().__init__(mesh, links=LOSSY)

    def run(self):
        from torch.distributed import checkpoint
        from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

        def state():
            model, optimizer = get_state_dict(self.model, self.optimizer)
            return {"model": model, "optimizer": optimizer, "comm": CommState(self.optimizer, worker=self.island)}

        folder = os.environ["TEST_STORE"].removeprefix("file://") + "-checkpoint"
        for step in range(STEPS // 2):
            self.step(step)
        checkpoint.save(state(), checkpoint_id=folder)
        for step in range(STEPS // 2, STEPS):
            self.step(step)
        found = [param.full_tensor() for param in self.model.parameters()]
        self.optimizer.close()

        self.__init__(self.mesh)
        self.step(0)
        loaded = state()
        checkpoint.load(loaded, checkpoint_id=folder)
        set_state_dict(self.model, self.optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
        for step in range(STEPS // 2, STEPS):
            self.step(step)
        for one, other in zip(found, (param.full_tensor() for param in self.model.parameters())):
            assert torch.equal(one, other)
        self.optimizer.close()


class Local(Case):
    """LocalSteps over shards: equal to LocalSteps over whole replicas, by plain torch."""

    def __init__(self, mesh, make_optimizer=lambda params: torch.optim.SGD(params, lr=0.05), **options):
        super().__init__(mesh, **options)
        self.optimizer.close()
        inner = make_optimizer(self.model.parameters())
        self.optimizer = bdn.LocalSteps(inner, self.model, tau=2, outer=algorithms.Average(), worker=self.island)
        self.plains = [Net() for _ in range(2)]
        self.optimizers = [make_optimizer(plain.parameters()) for plain in self.plains]

    def step(self, step):
        self.optimizer.zero_grad()
        self.backward(step)
        self.optimizer.step()
        for number, (plain, optimizer) in enumerate(zip(self.plains, self.optimizers)):
            optimizer.zero_grad()
            for rank in self.mesh.mesh[number].tolist():
                (loss_of(plain, batch(rank, step)) / 2).backward()
            optimizer.step()
        self.average(step)

    def average(self, step):
        if step % 2 == 1:
            with torch.no_grad():
                for both in zip(*(plain.parameters() for plain in self.plains)):
                    mean = (both[0] + both[1]) / 2
                    for param in both:
                        param.copy_(mean)
        self.plain = self.plains[0]


class Streaming(Local):
    """LocalSteps over shards that meet in fragments: each island's weights are those of a whole replica, by plain torch."""

    def __init__(self, mesh):
        super().__init__(mesh)
        self.optimizer.close()
        inner = torch.optim.SGD(self.model.parameters(), lr=0.05)
        tau = algorithms.Streaming(4, fragments=2, delay=1)
        self.optimizer = bdn.LocalSteps(inner, self.model, tau=tau, outer=algorithms.Average(), worker=self.island)
        self.parts = fragments_of(self.plains[0].named_parameters(), 2)
        self.travel = None

    def average(self, step):
        both = [list(plain.parameters()) for plain in self.plains]
        with torch.no_grad():
            if self.travel is not None:
                for own, met in zip(both, self.travel[1]):
                    for index, before, other in zip(self.travel[0], met, self.travel[2]):
                        own[index].add_(other - before)
                self.travel = None
            if step % 2 == 1:
                part = self.parts[(step + 1) // 2 % 2]
                met = [[own[index].clone() for index in part] for own in both]
                self.travel = part, met, [(one + other) / 2 for one, other in zip(*met)]
        self.plain = self.plains[self.mesh.get_coordinate()[0]]

    def check(self):
        super().check()
        self.average(0)
        with torch.no_grad():
            for one, other in zip(*(plain.parameters() for plain in self.plains)):
                one.copy_((one + other) / 2)
        self.plain = self.plains[0]
        self.optimizer.synchronize()
        super().check()


class Tensors(Case):
    """Tensor parallelism inside an island: columns, then rows; biases of the rows' layer are copies."""

    def __init__(self, mesh, tolerance=1e-6, **options):
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        self.rank, self.size = bdn.rank(), bdn.size()
        self.mesh, self.tolerance = mesh, tolerance
        self.island = sharded.new_group(mesh["island"])
        plan = {"first": ColwiseParallel(), "second": RowwiseParallel()}
        self.model = parallelize_module(Net(width=8), mesh[mesh.mesh_dim_names[-1]], plan)
        if mesh.ndim == 3:
            shard(self.model, mesh["shard"])
        self.plain = Net(width=8)
        make = options.get("make_optimizer", lambda params: torch.optim.AdamW(params, lr=0.05, foreach=False))
        self.plain_optimizer = make(self.plain.parameters())
        inner = make(self.model.parameters())
        self.optimizer = bdn.DistributedOptimizer(inner, self.model, links=options.get("links", bdn.Links()), worker=self.island)

    def backward(self, step, micro=0, scale=1.0):
        # The ranks of the last dimension share a batch.
        place = self.mesh.get_coordinate()
        number = place[0] if self.mesh.ndim == 2 else place[0] * self.mesh.shape[1] + place[1]
        loss_of(self.model, batch(number, step)).backward()

    def plain_backward(self, step, micro=0, scale=1.0):
        for number in range(2):
            (loss_of(self.plain, batch(number, step)) / 2).backward()

    def check(self):
        expected = dict(self.plain.named_parameters())
        for name, param in self.model.named_parameters():
            whole = param.full_tensor() if hasattr(param, "full_tensor") else param
            worst = (whole - expected[name]).abs().max().item()
            assert worst <= self.tolerance, f"{name} is off by {worst}"


class Refused:
    """A mistake, and a part of what is said about it."""

    def __init__(self, attempt, *words):
        self._attempt, self._words = attempt, words

    def run(self):
        try:
            self._attempt()
        except (bandoneon.BandoneonError, NotImplementedError) as error:
            missing = [word for word in self._words if word not in str(error)]
            assert not missing, f"{missing} is not in: {error}"
        else:
            raise AssertionError("it was not refused")


def refused_without_group(mesh):
    def attempt():
        model = shard(Net(), mesh["shard"])
        bdn.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)

    return Refused(attempt, "another part of", "new_group(mesh[\"island\"])")


def refused_broadcast(mesh):
    def attempt():
        bdn.broadcast_parameters(shard(Net(), mesh["shard"]))

    return Refused(attempt, "another part of", "new_group")


def refused_forward(mesh):
    def attempt():
        model = shard(Net(), mesh["shard"])
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        bdn.DistributedOptimizer(inner, model, overlap="forward", worker=sharded.new_group(mesh["island"]))

    return Refused(attempt, "overlap='forward'", "DTensor")


def refused_server(mesh):
    def attempt():
        model = shard(Net(), mesh["shard"])
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        bdn.ServerOptimizer(inner, model, worker=sharded.new_group(mesh["island"]))

    return Refused(attempt, "is a DTensor", "DistributedOptimizer and LocalSteps")


def refused_save(mesh):
    model = shard(Net(), mesh["shard"])
    return Refused(lambda: bdn.save("nowhere", {"model": model}), "DTensors", "torch.distributed.checkpoint", "CommState")


class Half(Case):
    """A layer that nobody has sharded: a warning."""

    def run(self):
        model = Net()
        fully_shard(model.first, mesh=self.mesh["shard"])
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            bdn.DistributedOptimizer(inner, model, worker=sharded.new_group(self.mesh["island"])).close()
        texts = [str(one.message) for one in caught if "is not sharded" in str(one.message)]
        assert len(texts) == 1 and "'second.weight' (4 of 6 parameters)" in texts[0], texts


def refused_kfac(mesh):
    def attempt():
        model = shard(Net(), mesh["shard"])
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        algorithms.KFAC(model, inner, worker=sharded.new_group(mesh["island"]))

    return Refused(attempt, "KFAC takes whole matrices", "DTensors")


def refused_mesh(mesh):
    return Refused(lambda: sharded.new_group(mesh), "a mesh of 2 dimensions is no group", "mesh['island']")


def refused_draws(mesh):
    return Refused(lambda: Tensors(mesh, links=bdn.Links(push="int8")), "second.bias", "has copies", "push='none'")


def muon(params, **options):
    return algorithms.Muon(params, lr=0.02, **options)


LOSSY = bdn.Links(push="ef(onebit(block=64))", pull="ef(onebit(block=64))")
CASES = {
    "plain": Case,
    "clipped": Clipped,
    "accumulated": Accumulated,
    "no_sync": AccumulatedByNoSync,
    "each pass exchanged": AccumulatedByExchanges,
    "two losses": TwoLosses,
    "kept gradients": KeptGradients,
    "checkpointed": Checkpointed,
    "skipped layer": SkippedLayer,
    "compiled": Compiled,
    "scaled": Scaled,
    "resumed": Resumed,
    "saved": Saved,
    "tied": lambda mesh: Case(mesh, tied=True),
    "unused": lambda mesh: Case(mesh, unused=True),
    "fewer rows than ranks": lambda mesh: Case(mesh, width=1),
    "kept whole": lambda mesh: Case(mesh, shard_options=dict(reshard_after_forward=False)),
    "offloaded": lambda mesh: Case(mesh, shard_options=dict(offload_policy=CPUOffloadPolicy(pin_memory=False))),
    "reduced as float64": lambda mesh: Case(
        mesh, shard_options=dict(mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float64))
    ),
    "computed as bfloat16": lambda mesh: Case(
        mesh, shard_options=dict(mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)),
        make_optimizer=lambda params: torch.optim.SGD(params, lr=0.05), tolerance=3e-3,
    ),
    "compressed": lambda mesh: Case(
        mesh, links=LOSSY, make_optimizer=lambda params: torch.optim.SGD(params, lr=0.05), tolerance=0.05
    ),
    "frozen": Frozen,
    "other layers": OtherLayers,
    "made on the meta device": Meta,
    "compiled whole": CompiledWhole,
    "weighted": Weighted,
    "overflowed": Overflowed,
    "two models": lambda mesh: Two.__new__(Two).of(mesh),
    "repeated": lambda mesh: Repeated.__new__(Repeated).of(mesh),
    "islands of one": lambda mesh: Case(init_device_mesh("cpu", (4, 1), mesh_dim_names=("island", "shard"))),
    "muon": lambda mesh: Case(mesh, make_optimizer=muon, tolerance=1e-5),
    "muon, fewer rows than ranks": lambda mesh: Case(mesh, make_optimizer=muon, tolerance=1e-5, width=1),
    "muon, one by one": lambda mesh: Case(mesh, make_optimizer=lambda params: muon(params, batched=False), tolerance=1e-5),
    "muon, offloaded": lambda mesh: Case(
        mesh, make_optimizer=muon, tolerance=1e-5, shard_options=dict(offload_policy=CPUOffloadPolicy(pin_memory=False))
    ),
    "muon, islands of four": lambda mesh: Case(
        init_device_mesh("cpu", (1, 4), mesh_dim_names=("island", "shard")), make_optimizer=muon, tolerance=1e-5
    ),
    "muon, local steps": lambda mesh: Local(mesh, make_optimizer=muon, tolerance=1e-5),
    "muon, experts": lambda mesh: Experts(mesh, 0),
    "muon, rows of experts": lambda mesh: Experts(mesh, 1),
    "muon, columns of experts": lambda mesh: Experts(mesh, 2),
    "muon, resumed": lambda mesh: Resumed(mesh, muon),
    "muon, at another number of shards": Recut,
    "muon, hybrid": lambda mesh: Case(
        init_device_mesh("cpu", (1, 2, 2), mesh_dim_names=("island", "replicate", "shard")),
        make_optimizer=muon, tolerance=1e-5, dimensions=("replicate", "shard"),
    ),
    "muon, tensor parallel": lambda mesh: Tensors(mesh, make_optimizer=muon, tolerance=1e-5),
    "muon, three dimensions": lambda mesh: Tensors(
        init_device_mesh("cpu", (1, 2, 2), mesh_dim_names=("island", "shard", "tensor")), make_optimizer=muon, tolerance=1e-5
    ),
    "half": lambda mesh: Half.__new__(Half).of(mesh),
    "local steps": Local,
    "streaming local steps": Streaming,
    "tensor parallel": Tensors,
    "three dimensions": lambda mesh: Tensors(
        init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=("island", "shard", "tensor"))
    ),
    "refused without a group": refused_without_group,
    "refused broadcast": refused_broadcast,
    "refused overlap": refused_forward,
    "refused server optimizer": refused_server,
    "refused kfac": refused_kfac,
    "refused mesh": refused_mesh,
    "refused draws": refused_draws,
    "refused save": refused_save,
}


def main():
    torch.set_num_threads(1)
    bdn.init()
    dist.init_process_group("gloo", rank=bdn.rank(), world_size=bdn.size(), init_method=os.environ["TEST_STORE"])
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("island", "shard"))
    for name in sys.argv[1:] or CASES:
        try:
            CASES[name](mesh).run()
        except Exception:
            traceback.print_exc()
            print(f"case {name!r}: WRONG", flush=True)
            if os.environ.get("TEST_GO_ON") is None:
                raise
        else:
            print(f"case {name!r}: right", flush=True)
    bdn.barrier("the end")
    dist.destroy_process_group()
    bdn.shutdown()


main()
