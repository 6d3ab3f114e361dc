"""A model's parameters as declared tensors, and what their links remember."""

import weakref
from dataclasses import dataclass

import torch

from ..errors import InvalidArgument
from ..worker import Declaration
from .exchange import default_spec
from .tensors import check_exchangeable, dtype_number


@dataclass(frozen=True)
class LinkOptions:
    """How gradients travel; the same on every worker."""

    push: str = "none"
    pull: str = "none"
    momentum: float = 0.0
    warmup: int = 0

    @classmethod
    def of(cls, push=None, pull=None, momentum=0.0, warmup=0):
        options = cls(
            default_spec("push", push), default_spec("pull", pull), float(momentum), int(warmup)
        )
        if not 0.0 <= options.momentum < 1.0:
            raise InvalidArgument(f"momentum={momentum} is not in [0, 1)")
        if options.warmup < 0:
            raise InvalidArgument(f"warmup={warmup} is negative")
        if options.momentum and "ef(" not in options.push:
            raise InvalidArgument(
                f"momentum={momentum} goes before error feedback, but push={options.push!r} has none; "
                "write push='ef(...)', or give the momentum to the optimizer"
            )
        return options

    @property
    def remembers(self):
        """Whether either end keeps something between steps, in units of unscaled gradients."""
        return bool(self.momentum) or "ef(" in self.push or "ef(" in self.pull


@dataclass(frozen=True, eq=False)
class Member:
    """One declared parameter."""

    name: str
    param: torch.Tensor
    tensor: int  # the C library's number
    priority: int  # higher goes first: parameters that the next forward pass needs early


class ParameterSet:
    """The parameters that one optimizer or hook exchanges. Its methods are collective."""

    def __init__(self, worker, options, prefix="", sparse_as_dense=False):
        self.worker = worker
        self.options = options
        self.prefix = prefix
        self.sparse_as_dense = sparse_as_dense
        self.members = []
        self._reference = weakref.ref(self)
        weakref.finalize(self, worker.disown, self._reference).atexit = False

    def add(self, named):
        """Declares (name, parameter) pairs, in forward order; the new members."""
        named = list(named)
        for name, param in named:
            self._check(name, param)
        declarations = [self._declaration(name, param) for name, param in named]
        numbers = self.worker.declare(declarations, owner=self._reference) if declarations else []
        first = len(self.members)
        added = [
            Member(name, param, number, -(first + i))
            for i, ((name, param), number) in enumerate(zip(named, numbers))
        ]
        self.members += added
        return added

    def release(self):
        """Frees the names for another owner."""
        self.worker.disown(self._reference)

    def dense(self, member, grad):
        """A gradient that can be exchanged, or the reason why not."""
        if grad.layout is not torch.strided and self.sparse_as_dense:
            grad = grad.to_dense()
        check_exchangeable(grad, member.name)
        if grad.dtype != member.param.dtype or grad.numel() != member.param.numel():
            raise InvalidArgument(
                f"the gradient of {member.name!r} is {grad.dtype}{list(grad.shape)}, the parameter "
                f"{member.param.dtype}{list(member.param.shape)}",
                tensor=member.name,
            )
        return grad

    def state_dict(self):
        """What this worker's links still owe and remember."""
        return {
            "rank": self.worker.rank,
            "size": self.worker.size,
            "tensors": {m.name: self._member_state(m) for m in self.members},
        }

    def load_state_dict(self, state):
        """Takes up a state_dict() of the same rank. Nothing is changed if it does not fit."""
        facts = (self.worker.rank, self.worker.size)
        if (state["rank"], state["size"]) != facts:
            raise InvalidArgument(
                f"this state is of worker {state['rank']} of {state['size']}, but this is worker "
                f"{facts[0]} of {facts[1]}; every rank loads its own"
            )
        by_name = {m.name: m for m in self.members}
        for name, entry in state["tensors"].items():
            member = by_name.get(name)
            if member is None:
                raise InvalidArgument(
                    f"the state has {name!r}, which is not a parameter here", tensor=name
                )
            for what in self._memories():
                if what in entry and entry[what].numel() != member.param.numel():
                    raise InvalidArgument(
                        f"the {what} of {name!r} has {entry[what].numel()} elements, the parameter "
                        f"{member.param.numel()}",
                        tensor=name,
                    )
        for name, entry in state["tensors"].items():
            for what in self._memories():
                if what in entry:
                    data = entry[what].to(torch.float32).contiguous()
                    self.worker.set_state(by_name[name].tensor, what, data.data_ptr(), data.numel())

    def _memories(self):
        if "ef(" in self.options.push:
            yield "residual"
        if self.options.momentum:
            yield "momentum"

    def _member_state(self, member):
        entry = {"step": self.worker.get_step(member.tensor)}
        for what in self._memories():
            out = torch.zeros(member.param.shape, dtype=torch.float32)
            self.worker.get_state(member.tensor, what, out.data_ptr(), out.numel())
            entry[what] = out
        return entry

    def _check(self, name, param):
        check_exchangeable(param, name)
        dtype_number(param, name)
        lossless = (self.options.push, self.options.pull) == ("none", "none")
        if param.dtype == torch.float64 and not lossless:
            raise InvalidArgument(
                f"{name!r} is float64, which only push='none' and pull='none' carry, not "
                f"push={self.options.push!r} and pull={self.options.pull!r}; use float32 or no codec",
                tensor=name,
            )

    def _declaration(self, name, param):
        return Declaration(
            name=self.prefix + name,
            elements=param.numel(),
            dtype=dtype_number(param, name),
            push=self.options.push,
            pull=self.options.pull,
            warmup=self.options.warmup,
            momentum=self.options.momentum,
            fuse=True,
        )
