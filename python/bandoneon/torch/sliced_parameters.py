"""Parameters of which each process of a LocalGroup exchanges slices."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from .. import _native
from ..calls import Declaration
from ..errors import Unimplemented
from ..worker_group import WorkerGroup
from .local_group import LocalGroup
from .parameters import Member, ParameterSet
from .round_notices import of_exchange
from .sliced_bucket import Bucket, in_buckets
from .tensors import host_empty

# A tensor of fewer bytes is owned whole: its slices would be too small to be worth a frame, or a codec.
_WHOLE_BYTES = 64 << 10


@dataclass(frozen=True, eq=False)
class Slice(Member):
    """Elements `begin` to `begin + elements` of a parameter, which one process of each local group owns. `tensor` is None
    of a slice that this process does not declare."""

    owner: int = 0  # rank within the group
    begin: int = 0
    is_own: bool = False

    @property
    def shape(self):
        return (self.elements,)

    @property
    def memories(self):
        return super().memories if self.is_own else []

    @property
    def local(self):
        return self.param.detach().reshape(-1)[self.begin : self.begin + self.elements]


class SlicedExchange(NamedTuple):
    """An exchange that has begun, of some members. What comes back goes to the tensors."""

    members: list[Member]
    buckets: list[Bucket]
    tensors: list[Any]


class SlicedParameterSet(ParameterSet):
    """Parameters of which each process of a LocalGroup exchanges slices, with those of the same place in the other
    local groups. Where workers know no groups of ranks, as through a host's daemon, all exchange every slice, and have
    nothing to say of those that they do not own."""

    def __init__(self, worker, *arguments, group, **options):
        super().__init__(worker, *arguments, **options)
        self.group = group
        self.group_size = group.size
        self.partners = WorkerGroup(worker, range(group.rank, worker.size, group.size))
        self._slices = {}  # by the parameter's name
        self._whole_bytes = [0] * group.size  # of tensors that a process owns whole

    @property
    def declared(self):
        return [one for slices in self._slices.values() for one in slices if one.tensor is not None]

    @property
    def steps(self):
        return super().steps if self.declared else self.step_count.ended

    def slices_of(self, member):
        """In the order of their elements, without gaps."""
        return self._slices[member.name]

    def number_of(self, member):
        return next((s.tensor for s in self._slices[member.name] if s.is_own), _native.NO_TENSOR)

    def _declare(self, named, terms):
        members = super()._members(named, terms, [None] * len(named))
        # What is added up is kept as exact as what servers add up.
        wide = {m.name: m.dtype if m.dtype == torch.float64 else torch.float32 for m in members}
        cuts = {m.name: self._cut(m.elements, wide[m.name].itemsize) for m in members}
        slices = [
            Slice(
                name=_name_of(m.name, owner),
                param=m.param,
                tensor=None,
                priority=m.priority,
                options=m.options,
                terms=m.terms,
                dtype=wide[m.name],
                elements=elements,
                owner=owner,
                begin=begin,
                is_own=owner == self.group.rank,
            )
            for m in members
            for owner, begin, elements in cuts[m.name]
        ]
        known = self._numbered(slices)
        remaining = iter(slices)
        for m in members:
            self._slices[m.name] = [known.get(s.name, s) for _, s in zip(cuts[m.name], remaining)]
        return members

    def _numbered(self, slices):
        """Declares what this process is to: the slices with their numbers, by name."""
        if self.partners is not self.worker:
            own = [s for s in slices if s.is_own]
            is_refused = False
            try:
                numbers = self._declare_among(self.partners, own)
            except Unimplemented:  # Before anything was exchanged.
                is_refused = True
            if not self.group.any(is_refused):
                return {s.name: replace(s, tensor=number) for s, number in zip(own, numbers)}
            self.partners = self.worker
        numbers = self._declare_among(self.worker, slices)
        return {s.name: replace(s, tensor=number) for s, number in zip(slices, numbers)}

    def _declare_among(self, worker, slices):
        if not slices:
            return []
        return worker.declare([self._declaration_of(s) for s in slices], owner=self.reference)

    def _declaration_of(self, one):
        return Declaration(
            name=self.prefix + one.name,
            elements=one.elements,
            dtype=_native.FLOAT64 if one.dtype == torch.float64 else _native.FLOAT32,
            push=one.options.push,
            pull=one.options.pull,
            warmup=one.options.warmup,
            momentum=one.options.momentum,
            fuse=True,
            # What shares a frame has one weight in each worker, and so one owner.
            group=one.terms.group * self.group.size + one.owner,
            rule=one.terms.rule,
        )

    def _cut(self, elements, element_bytes):
        """[(owner, first element, elements)] of one tensor."""
        size = self.group.size
        if elements * element_bytes < max(_WHOLE_BYTES, size * element_bytes):
            owner = self._whole_bytes.index(min(self._whole_bytes))
            self._whole_bytes[owner] += elements * element_bytes
            return [(owner, 0, elements)]
        ends = [elements * (r + 1) // size for r in range(size)]
        return [(r, begin, end - begin) for r, (begin, end) in enumerate(zip([0, *ends], ends))]

    # ---- Exchanges of whole tensors, as LocalSteps makes them ----

    def _begin(self, members, tensors, rates, absent, left_out, weight):
        if left_out:
            raise Unimplemented("what a codec leaves out is of the sum of a local group, and no process has it by itself")
        by_name = {m.name: tensor for m, tensor in zip(members, tensors)}
        gone = {m.name for m, is_absent in zip(members, absent or []) if is_absent}
        rate_of = {m.name: rate for m, rate in zip(members, rates or [])}
        buckets = in_buckets(self, members)
        for bucket in buckets:
            values = [None if m.name in gone else by_name[m.name] for m in bucket.members]
            bucket.scatter(values, weight, 1.0, self.step_count.ended)
        for bucket in buckets:
            self.group.wait(bucket.work)
            of_bucket = [rate_of.get(m.name) or 0.0 for m in bucket.members]
            bucket.tickets, error = self.worker.push_all(bucket.add_up(of_bucket, self.step_count.program_steps))
            if error is not None:
                raise of_exchange(error)
        return SlicedExchange(members, buckets, list(tensors))

    @torch.no_grad()
    def end(self, exchange, timeout=None):
        with self._exchange_guard.exchange():
            for bucket in exchange.buckets:
                results, error = self.worker.wait_all(bucket.tickets, timeout)
                if error is not None:
                    raise of_exchange(error)
                bucket.take(results)
                bucket.gather()
            return self._delivered(exchange.buckets, exchange.members, exchange.tensors)

    def _delivered(self, buckets, members, tensors):
        by_name = {m.name: tensor for m, tensor in zip(members, tensors)}
        came = {}
        for bucket in buckets:
            self.group.wait(bucket.work)
            results = bucket.deliver([by_name[m.name] for m in bucket.members])
            came.update((m.name, result) for m, result in zip(bucket.members, results))
        return [came[m.name] for m in members]

    # ---- Weights that servers hold ----

    def _share_from(self, root, step, timeout):
        if root // self.group.size == self.worker.rank // self.group.size:
            self.group.broadcast([m.param for m in self.members], root % self.group.size)
            for one in (one for one in self.declared if one.is_own):
                self._set_server_state(one, "weights", one.local, step, timeout)
        self.worker.barrier(f"{self.prefix}weights are set", timeout)
        self._gather_weights([m.param for m in self.members], self.worker.sync_weights, timeout, begins_with_own=True)

    def fetch_weights(self, timeout=None):
        self.check_open()
        fetched = [host_empty(m.shape) for m in self.members]
        self._gather_weights(fetched, self.worker.fetch_weights, timeout)
        return fetched

    def _gather_weights(self, tensors, fetch, timeout, begins_with_own=False):
        """Each process fetches those of its slices, which all then gather."""
        buckets = in_buckets(self, self.members)
        for bucket in buckets:
            for one, part in bucket.own_parts():
                if begins_with_own:
                    part.copy_(one.local)
                fetch(one.tensor, part.data_ptr(), part.numel(), timeout)
            bucket.gather()
        self._delivered(buckets, self.members, tensors)

    def release(self):
        super().release()
        self.group.release()


def parameters_of(links, worker, table, **how):
    """The ParameterSet of an optimizer whose Links may have a local group. how: as ParameterSet's, of one without."""
    if links.local_group is None:
        return ParameterSet(worker, table, links.prefix, **how)
    how.pop("takes_shards", None)
    group = LocalGroup(links.local_group, worker, links.prefix, links.timeout)
    return SlicedParameterSet(worker, table, links.prefix, group=group, **how)


def refusal_of_newcomers(parameters):
    """Why no worker can be taken into a job that exchanges these, or None."""
    if parameters.group_size is None:
        return None
    return "local_group= adds up in a torch.distributed group, whose processes go and come together"


def settings_of(parameters):
    """What a saved state of these must have been saved under, beside the optimizer's own settings."""
    return {} if parameters.group_size is None else {"local_group": parameters.group_size}


def _name_of(name, owner):
    return f"{name}/slice {owner}"
