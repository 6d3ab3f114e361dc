"""A model's parameters as declared tensors, and what their links remember."""

import weakref
from dataclasses import dataclass

import torch

from ..errors import InvalidArgument
from ..worker import Declaration
from .link_options import LinkOptions
from .tensors import check_exchangeable, copy_back, dtype_number, host_copy_or_self


@dataclass(frozen=True, eq=False)
class Member:
    """One declared parameter."""

    name: str
    param: torch.Tensor
    tensor: int  # the C library's number
    priority: int  # higher goes first: parameters that the next forward pass needs early
    options: LinkOptions


class ParameterSet:
    """The parameters that one optimizer or hook exchanges, each as the LinkTable `links` says. Its
    methods are collective."""

    def __init__(self, worker, links, prefix="", sparse_as_dense=False):
        self.worker = worker
        self.links = links
        self.prefix = prefix
        self.sparse_as_dense = sparse_as_dense
        self.members = []
        self._reference = weakref.ref(self)
        weakref.finalize(self, worker.disown, self._reference).atexit = False

    def add(self, named):
        """Declares (name, parameter) pairs, in forward order; the new members."""
        named = list(named)
        if not self.members:
            self.links.check_use([name for name, _ in named])
        for name, param in named:
            self._check(name, param)
        declarations = [self._declaration(name, param) for name, param in named]
        numbers = self.worker.declare(declarations, owner=self._reference) if declarations else []
        first = len(self.members)
        added = [
            Member(name, param, number, -(first + i), self.links.options_of(name))
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

    @torch.no_grad()
    def exchange(self, tensors, timeout=None):
        """Replaces the tensors, one a member and like its parameter, by the workers' means; the
        Results. Returns when all have come; NaN where a worker's values were not finite."""
        hosts = [host_copy_or_self(tensor) for tensor in tensors]
        tickets = [
            self.worker.push(m.tensor, host.data_ptr(), keep=host, priority=m.priority)
            for m, host in zip(self.members, hosts, strict=True)
        ]
        results = [self.worker.wait(ticket, timeout) for ticket in tickets]
        for host, tensor in zip(hosts, tensors):
            copy_back(host, tensor)
        return results

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
            _check_entry(member, entry)
        for name, entry in state["tensors"].items():
            for what in by_name[name].options.memories:
                data = entry[what].to(torch.float32).contiguous()
                self.worker.set_state(by_name[name].tensor, what, data.data_ptr(), data.numel())

    def _member_state(self, member):
        entry = {"step": self.worker.get_step(member.tensor)}
        for what in member.options.memories:
            out = torch.zeros(member.param.shape, dtype=torch.float32)
            self.worker.get_state(member.tensor, what, out.data_ptr(), out.numel())
            entry[what] = out
        return entry

    def _check(self, name, param):
        check_exchangeable(param, name)
        dtype_number(param, name)
        options = self.links.options_of(name)
        lossless = (options.push, options.pull) == ("none", "none")
        if param.dtype == torch.float64 and not lossless:
            raise InvalidArgument(
                f"{name!r} is float64, which only push='none' and pull='none' carry, not "
                f"push={options.push!r} and pull={options.pull!r}; use float32 or no codec",
                tensor=name,
            )

    def _declaration(self, name, param):
        options = self.links.options_of(name)
        return Declaration(
            name=self.prefix + name,
            elements=param.numel(),
            dtype=dtype_number(param, name),
            push=options.push,
            pull=options.pull,
            warmup=options.warmup,
            momentum=options.momentum,
            fuse=True,
        )


def _check_entry(member, entry):
    """InvalidArgument where a saved entry is not what the member's link keeps."""
    kept, saved = set(member.options.memories), set(entry) - {"step"}
    for what in sorted(kept ^ saved):
        has, lacks = ("link", "state") if what in kept else ("state", "link")
        raise InvalidArgument(
            f"the {has} of {member.name!r} has a {what} and its {lacks} has none (push="
            f"{member.options.push!r}, momentum={member.options.momentum}); load a state under the "
            "options that it was saved with",
            tensor=member.name,
        )
    for what in sorted(kept):
        if entry[what].numel() != member.param.numel():
            raise InvalidArgument(
                f"the {what} of {member.name!r} has {entry[what].numel()} elements, the parameter "
                f"{member.param.numel()}",
                tensor=member.name,
            )
