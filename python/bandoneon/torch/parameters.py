"""A model's parameters as declared tensors, and what their links remember."""

import gc
import weakref
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import torch

from .. import _native
from ..calls import Declaration, Push
from ..errors import FailedPrecondition, InvalidArgument, NotFound, OutOfRange
from .broadcast import agree, broadcast_bytes, check_replicas, check_same_weights
from .link_options import LinkOptions
from .shards import check_may_be_sharded, differing_place, is_shard, local_named, local_of, places_of
from .tensors import (
    check_exchangeable,
    copy_back,
    dtype_number,
    fill,
    host_copy,
    host_empty,
    host_values,
    host_zeros,
    memory_for,
    overlaps_itself,
    streams_for,
)
from .exchange_guard import ExchangeGuard
from .round_notices import of_exchange
from .step_count import StepCount


@dataclass(frozen=True)
class Terms:
    """What the servers do with a parameter."""

    rule: str = "mean"  # another one: the servers hold the weights
    group: int = 0  # of parameters with one learning rate


def terms_by_group(groups, rule_of=lambda group: "mean", first=0):
    """{id(parameter): Terms} of an optimizer's groups, of which the first has the number `first`."""
    return {
        id(param): Terms(rule_of(group), number)
        for number, group in enumerate(groups, first)
        for param in group["params"]
    }


def learning_rates(groups):
    """{id(parameter): learning rate} of an optimizer's groups; 0 where there is none."""
    rates = {}
    for group in groups:
        rates.update(dict.fromkeys(map(id, group["params"]), float(group.get("lr") or 0.0)))
    return rates


@dataclass(frozen=True, eq=False)
class Member:
    """One declared parameter."""

    name: str
    param: torch.Tensor
    tensor: int  # the C library's number; None of what is exchanged in slices
    priority: int  # higher goes first: parameters that the next forward pass needs early
    options: LinkOptions
    terms: Terms
    # As declared; the parameter itself may change after that.
    dtype: torch.dtype  # of what is exchanged
    elements: int

    def check(self, tensor):
        """InvalidArgument where the tensor is not what was declared, as C reads and writes it."""
        if tensor.dtype != self.dtype or tensor.numel() != self.elements:
            raise InvalidArgument(
                f"{self.name!r} was declared as {self.elements} elements of {self.dtype}, and now it is "
                f"{tensor.numel()} of {tensor.dtype}; give a model its type and sizes before its "
                "optimizer or hook is made",
                tensor=self.name,
            )

    @property
    def local(self):
        """The parameter, or the part of it that this worker holds."""
        return local_of(self.param)

    @property
    def shape(self):
        return self.local.shape

    @property
    def memories(self):
        """Names of what this worker keeps of it between steps."""
        return self.options.memories

    @property
    def facts(self):
        """What a saved state must have been saved under, too."""
        return {**asdict(self.options), "rule": self.terms.rule}


class Exchange(NamedTuple):
    """An exchange that has begun, of some members. What is in its memories goes to the tensors when it has come."""

    members: list[Member]
    tickets: list[int]
    memories: list[Any]  # of the tensors, and then of what pushes leave out; None where there is none
    tensors: list[Any]


class _Owners:
    """Who exchanges which parameters of one worker; keeps neither alive."""

    def __init__(self):
        self._entries = {}  # id of a parameter -> (weak references to it and to its owner, its name)

    def check(self, named, owners):
        """InvalidArgument where another one than these ParameterSets has one of (name, parameter) pairs."""
        for name, param in named:
            entry = self._entries.get(id(param))
            if entry is None or entry[0]() is not param:
                continue
            if not self._is_of_others(entry, owners):
                continue
            gc.collect()  # Nobody may have that one any more but its own cycles, as after `del optimizer`.
            if not self._is_of_others(entry, owners):
                continue
            called = "" if entry[2] == name else f", as {entry[2]!r}"
            raise InvalidArgument(
                f"the parameter {name!r} is already exchanged by another optimizer or hook of this worker{called}: "
                "each of the two would take the other's means for gradients; close() that one first (in a notebook, in "
                "the cell that makes it, before it makes another), or give the parameter to one of them alone",
                tensor=name,
            )

    def has(self, param):
        """Whether one exchanges the parameter."""
        entry = self._entries.get(id(param))
        return entry is not None and entry[0]() is param and entry[1]() is not None

    @staticmethod
    def _is_of_others(entry, owners):
        owner = entry[1]()
        return owner is not None and all(owner is not one for one in owners)

    def take(self, named, owner):
        for name, param in named:
            self._entries[id(param)] = weakref.ref(param), weakref.ref(owner), name

    def release(self, owner):
        for key in [key for key, entry in self._entries.items() if entry[1]() in (owner, None)]:
            del self._entries[key]


_owners = weakref.WeakKeyDictionary()  # worker -> its _Owners


class ParameterSet:
    """The parameters that one optimizer or hook exchanges, each as the LinkTable `links` says. A parameter is in
    one set of its worker alone. Its methods are collective."""

    group_size = None  # of processes that exchange slices of the parameters
    needs_handover = True  # A newcomer whose steps are counted from 0 would fail those of all.

    def __init__(
        self,
        worker,
        links,
        prefix="",
        sparse_as_dense=False,
        as_float32=False,
        replicas_for=None,
        beside=None,
        takes_shards=False,
    ):
        """`takes_shards`: parameters may be DTensors, of which the part that this worker holds is exchanged. `as_float32`: what is exchanged is float32, whatever the parameters are. `replicas_for`: who
        refuses parameters whose values are not the same in all workers; None takes them. `beside`: another set
        of the same optimizer, which has the same parameters."""
        self.worker = worker
        self.partners = worker  # this worker, among those that exchange what is `declared`
        self.step_count = StepCount(worker) if beside is None else beside.step_count
        self.links = links
        self.prefix = prefix
        self.sparse_as_dense = sparse_as_dense
        self.as_float32 = as_float32
        self.replicas_for = replicas_for
        self.members = []
        self.known_ids = set()  # of the members' parameters
        self.goes_alone = lambda name, param: False  # whether a parameter shares no frame with others
        self.sparse_remedy = {}  # of a sparse gradient: `remedy` of check_exchangeable()
        self._takes_shards = takes_shards
        self._beside = beside
        self._is_released = False
        self.reference = weakref.ref(self)  # the owner of its names
        self._exchange_guard = ExchangeGuard(worker, self.reference)
        weakref.finalize(self, worker.disown, self.reference).atexit = False

    def add(self, named, terms=None, besides=()):
        """Declares (name, parameter) pairs, in forward order; the new members. `terms` has the Terms of
        the parameters by their ids. `besides`: pairs that are exchanged otherwise, and are owned, too."""
        named, besides = list(named), list(besides)
        terms = terms or {}
        if not self.members:
            self.links.check_use([name for name, _ in named + besides])
        self.check_owner(named + besides)
        for name, param in named:
            self._check(name, param)
        if any(one.rule != "mean" for one in (terms or {}).values()):
            check_apart([(member.name, member.param) for member in self.members] + named)
        if self._takes_shards and any(is_shard(param) for _, param in named):
            agree(self.worker, "places", places_of(named), self.worker.present()[0], differing_place)
        if self.replicas_for and (named or besides):
            check_replicas(self.worker, local_named(named + besides), self.replicas_for)
        terms = [terms.get(id(param), Terms()) for _, param in named]
        added = self._declare(named, terms) if named else []
        self.own(named + besides)
        self.members += added
        self.known_ids.update(id(param) for _, param in named + besides)
        return added

    def check_owner(self, named):
        """InvalidArgument where another optimizer or hook of this worker exchanges one of these parameters."""
        owners = _owners.get(self.worker.whole)
        if owners is not None:
            owners.check(named, [self, self._beside])

    def is_exchanged(self, param):
        """Whether this or another optimizer or hook of this worker exchanges the parameter."""
        owners = _owners.get(self.worker.whole)
        return owners is not None and owners.has(param)

    def own(self, named):
        """Refuses (name, parameter) pairs to others from now on, as add() does what it declares."""
        _owners.setdefault(self.worker.whole, _Owners()).take(named, self._beside or self)

    @property
    def declared(self):
        """The Members that the C library knows, each by its `tensor`."""
        return self.members

    def _declare(self, named, terms):
        declarations = [
            self._declaration(name, param, own) for (name, param), own in zip(named, terms)
        ]
        return self._members(
            named, terms, self.worker.declare(declarations, owner=self.reference)
        )

    def _members(self, named, terms, numbers):
        first = len(self.members)
        return [
            Member(
                name=name,
                param=param,
                tensor=number,
                priority=-(first + i),
                options=self.links.options_of(name),
                terms=own,
                dtype=torch.float32 if self.as_float32 else param.dtype,
                elements=local_of(param).numel(),
            )
            for i, ((name, param), number, own) in enumerate(zip(named, numbers, terms))
        ]

    def number_of(self, member):
        """The C library's number of what is exchanged of a member; NO_TENSOR where another process does that."""
        return member.tensor

    def by_name(self, name):
        """The Member of a parameter."""
        return next(member for member in self.members if member.name == name)

    def declare_anew(self, options, timeout=None):
        """Declares parameters with other LinkOptions, {name: options}, between two rounds: their new Members. What their
        links remembered is gone, and their steps go on. Of parameters that go alone. Collective."""
        changed = [member for member in self.members if member.name in options]
        steps = {member.name: self.worker.get_step(member.tensor) for member in changed}
        declarations = [
            replace(self._declaration(m.name, m.param, m.terms), push=options[m.name].push, pull=options[m.name].pull)
            for m in changed
        ]
        self.worker.retire([declaration.name for declaration in declarations])
        numbers = self.worker.declare(declarations, timeout, owner=self.reference)
        anew = [replace(m, tensor=number, options=options[m.name]) for m, number in zip(changed, numbers)]
        by_name = {member.name: member for member in anew}
        self.members[:] = [by_name.get(member.name, member) for member in self.members]
        self._set_steps(anew, steps, timeout)
        return anew

    def _set_steps(self, members, steps, timeout):
        """The next exchange of each is the one after steps[name]. Servers follow."""
        first = self.partners.present(timeout)[0]
        for member in members:
            self.worker.set_step(member.tensor, steps[member.name])
            if self.worker.rank == first:
                counters = self.worker.get_server_counters(member.tensor, timeout)
                self.worker.set_server_counters(member.tensor, *counters, steps[member.name], timeout)
        self.worker.barrier(f"{self.prefix}step is set", timeout)

    def release(self):
        """Frees names and parameters for another owner, and gives back what both ends remember of them."""
        self._is_released = True
        if self.worker.recorder is not None:
            self.worker.recorder.unwatch(self)
        self.worker.note_good_round(self)  # Nothing more is exchanged that could mend it.
        self.worker.disown(self.reference)
        if self.worker.whole in _owners:
            _owners[self.worker.whole].release(self)

    def check_open(self):
        """FailedPrecondition after release()."""
        if self._is_released:
            raise FailedPrecondition(
                "what exchanges these parameters was closed, and with it went what it remembered; make another one, "
                "and load what comm_state_dict() gave before close() to go on"
            )

    def check_exchanges(self):
        """FailedPrecondition after release(), or after an exchange() that this worker has left before its end."""
        self.check_open()
        self._exchange_guard.check()

    def dense(self, member, grad):
        """A gradient that can be exchanged, or the reason why not."""
        if type(grad) is not torch.Tensor and self._takes_shards and is_shard(grad):
            if grad.placements != member.param.placements:
                grad = grad.redistribute(placements=member.param.placements)
            grad = local_of(grad)
        if type(grad) is not torch.Tensor or grad.layout is not torch.strided:
            if self.sparse_as_dense and grad.layout is not torch.strided:
                grad = grad.to_dense()
            check_exchangeable(grad, member.name, **self.sparse_remedy)
        if not grad.is_contiguous() and overlaps_itself(grad):
            grad = grad.contiguous()  # For the result to be written there.
        # Of what is exchanged as_float32, exchange() checks the copy.
        if not self.as_float32 and (grad.dtype != member.dtype or grad.numel() != member.elements):
            member.check(grad)  # Which says what is wrong: it is called for every gradient otherwise.
        return grad

    def dense_on_host(self, member, grad):
        """As dense(), of float32 in the memory of the host; zeros for None."""
        if grad is None:
            return host_zeros(member.shape)
        return self.dense(member, grad).to("cpu", torch.float32)

    def exchange(
        self,
        tensors,
        timeout=None,
        *,
        members=None,
        rates=None,
        absent=None,
        left_out=None,
        weight=1.0,
    ):
        """Replaces the tensors, one a member and like its parameter, by the workers' means, or by the
        weights where the servers hold them; the Results. Returns when all have come; NaN where a
        worker's values, or their sum, were not finite.

        members: of which the tensors are; by default all. rates: learning rates; absent: whether there is nothing
        to send; left_out: contiguous float32 tensors for what the codecs leave out of this push. One a
        member each. weight: of this worker's tensors in the means; with 0 all are absent.

        DeadlineExceeded says who is missing, and is the end: FailedPrecondition from then on.
        """
        how = dict(members=members, rates=rates, absent=absent, left_out=left_out, weight=weight)
        return self.end(self.begin(tensors, **how), timeout)

    @torch.no_grad()
    def begin(self, tensors, *, members=None, rates=None, absent=None, left_out=None, weight=1.0):
        """Begins an exchange(), which end() waits for; nobody writes to the tensors in between."""
        self.check_open()
        members = self.members if members is None else members
        for member, tensor in zip(members, tensors):
            member.check(tensor)
        with self._exchange_guard.exchange():
            return self._begin(members, tensors, rates, absent, left_out, weight)

    def _begin(self, members, tensors, rates, absent, left_out, weight):
        nothing = [None] * len(tensors)
        program_steps = self.step_count.program_steps
        # What is left out of a push is kept for tensors of the host alone.
        memories = [host_copy(t) if left_out and not t.is_cpu else memory_for(t) for t in tensors]
        rests = [r if r is None or r.is_cpu else host_copy(r) for r in left_out or nothing]
        pushes = [
            Push(
                m.tensor,
                None,
                flags=_native.ABSENT if is_absent or not weight else 0,
                priority=m.priority,
                weight=weight,
                learning_rate=rate or 0.0,
                program_steps=program_steps,
                left_out=None if rest is None else rest.data_ptr(),
            )
            for m, rate, is_absent, rest in zip(
                members, rates or nothing, absent or nothing, rests
            )
        ]
        for push, memory, rest in zip(pushes, memories, rests):
            fill(push, memory)
            push.keep = memory, rest
        tickets, error = self.worker.push_all(pushes)
        if error is not None:
            raise of_exchange(error)
        return Exchange(members, tickets, memories + rests, list(tensors) + list(left_out or nothing))

    @torch.no_grad()
    def end(self, exchange, timeout=None):
        """Waits for what begin() has begun: the Results, as exchange() has them."""
        with self._exchange_guard.exchange():
            streams = streams_for(exchange.memories[: len(exchange.tickets)])
            results, error = self.worker.wait_all(exchange.tickets, timeout, streams)
            if error is not None:
                raise of_exchange(error)
            for memory, tensor in zip(exchange.memories, exchange.tensors):
                if memory is not None:
                    copy_back(memory, tensor)
        return results

    def update_weights(self, tensors, timeout=None, *, members=None, **facts):
        """exchange() of what is known to be finite in all workers, for the servers' new weights."""
        members = self.members if members is None else members
        results = self.exchange(tensors, timeout, members=members, **facts)
        for member, result in zip(members, results):
            if result.nonfinite:
                raise overflowed(member)
        return results

    @torch.no_grad()
    def share_weights(self, timeout=None, step=0):
        """The first worker's parameters become the servers' weights as of `step`, and then every worker's
        parameters. Who has them already, by their hashes, is not sent them. A worker that joins a job that runs keeps
        its own until it was taken in."""
        if self.worker.is_candidate():
            return
        self._share_from(self.worker.present(timeout)[0], step, timeout)

    @torch.no_grad()
    def share_weights_again(self, step, timeout=None):
        """share_weights() amid training, where all workers have the same; as of `step`, which is a later one than the
        last, because the servers' replies to that are out."""
        for m in self.declared:
            self.worker.set_step(m.tensor, step)
        # Servers take it from one worker as long as that is there. The senior one of those who are present is the same before and
        # after a ballot that tells who was lost.
        present = self.worker.present(timeout)
        by_seniority = [rank for rank in self.worker.whole.seniority if rank in present]
        self._share_from((by_seniority or present)[0], step, timeout)

    def _share_from(self, root, step, timeout):
        if root == self.worker.rank:
            for m in self.members:
                self._set_server_state(m, "weights", m.local, step, timeout)
        self.worker.barrier(f"{self.prefix}weights are set", timeout)
        for m in self.members:
            weights = m.local.detach().to("cpu", torch.float32, copy=True).contiguous()
            self.worker.sync_weights(m.tensor, weights.data_ptr(), weights.numel(), timeout)
            m.local.copy_(weights)

    def fetch_weights(self, timeout=None):
        """The weights that the servers hold, as every worker holds them: float32, one a member. Before
        the first push, and whenever they were set."""
        self.check_open()
        fetched = [host_empty(m.shape) for m in self.members]
        for m, out in zip(self.members, fetched):
            self.worker.fetch_weights(m.tensor, out.data_ptr(), out.numel(), timeout)
        return fetched

    @property
    def steps(self):
        """Exchanges so far, of those that there was most of."""
        return max((self.worker.get_step(m.tensor) for m in self.declared), default=0)

    def state_dict(self, timeout=None):
        """What this worker's links still owe and remember; rank 0's has what the servers hold, too.
        FailedPrecondition after an exchange() that did not end."""
        self.check_open()
        self._exchange_guard.check()
        return {"tensors": {m.name: self._member_state(m, timeout) for m in self.declared}}

    def resume_at(self, step, timeout=None):
        """The next exchange is the one after `step`, which is the first worker's: for codec schedules and warm-ups
        where there is no state_dict() to load. Before any worker pushes. Servers follow."""
        self.check_open()
        step = self._step_of(self.worker.present(timeout)[0], step)
        self._set_steps(self.declared, {member.name: step for member in self.declared}, timeout)

    def step_of_first(self, step):
        """The step that the first worker says."""
        return self._step_of(self.worker.present()[0], step)

    def _step_of(self, first, step):
        if not isinstance(step, int) or step < 0:
            raise InvalidArgument(f"step={step!r} is not a number of steps, 0 or more")
        return int(broadcast_bytes(self.worker, "step", str(step).encode(), first))

    def resume_weights_at(self, step, timeout=None):
        """resume_at(), and what the servers hold are the parameters, which must be the same in all
        workers."""
        self.check_same_weights()
        self.resume_at(step, timeout)
        self.share_weights(timeout, step)

    def check_same_weights(self):
        """InvalidArgument where a checkpoint without state_dict() left other parameters than the first worker's."""
        check_same_weights(self.worker, [(m.name, m.local) for m in self.members])

    def load_state_dict(self, state, timeout=None):
        """Takes up what fitting_state() gives of state_dict()s; the next step is the one after it.
        Nothing is changed if it does not fit. All workers load theirs, before any of them pushes."""
        self.check_open()
        by_name = {m.name: m for m in self.declared}
        for name, entry in state["tensors"].items():
            member = by_name.get(name)
            if member is None:
                raise InvalidArgument(
                    f"the state has {name!r}, which is not a parameter here", tensor=name
                )
            _check_entry(member, entry, has_servers=self._is_first)
        for member in self.declared:
            if member.name not in state["tensors"]:
                raise InvalidArgument(f"the state has no {member.name!r}", tensor=member.name)
        for name, entry in state["tensors"].items():
            self._load_member(by_name[name], entry, timeout)
        self.worker.barrier(f"{self.prefix}state is loaded", timeout)

    def _load_member(self, member, entry, timeout):
        self.worker.set_step(member.tensor, entry["step"])
        for what in member.memories:
            data = entry[what].to(torch.float32).contiguous()
            self.worker.set_state(member.tensor, what, data.data_ptr(), data.numel())
        rate = host_values([entry["learning_rate"]])
        self.worker.set_state(member.tensor, "learning_rate", rate.data_ptr(), 1)
        if self.partners.place != 0:
            return
        server = entry["server"]
        for what in _SERVER_PARTS:
            if what in server:
                self._set_server_state(member, what, server[what], entry["step"], timeout)
        self.worker.set_server_counters(
            member.tensor, server["updates"], server["learning_rate"], entry["step"], timeout
        )

    def _set_server_state(self, member, what, tensor, step, timeout):
        data = tensor.detach().to("cpu", torch.float32).contiguous()
        self.worker.set_server_state(
            member.tensor, what, data.data_ptr(), data.numel(), step, timeout
        )

    def _member_state(self, member, timeout):
        rate = host_zeros(1)
        self.worker.get_state(member.tensor, "learning_rate", rate.data_ptr(), 1)
        entry = {
            "step": self.worker.get_step(member.tensor),
            "learning_rate": rate.item(),
            "facts": member.facts,
        }
        for what in member.memories:
            out = host_zeros(member.shape)
            self.worker.get_state(member.tensor, what, out.data_ptr(), out.numel())
            entry[what] = out
        if self._is_first:
            entry["server"] = self._server_state(member, timeout)
        return entry

    @property
    def _is_first(self):
        """Whether this worker reads, and saves, what servers hold of what is declared."""
        return self.partners.first_rank() == self.worker.rank

    def _server_state(self, member, timeout):
        updates, rate = self.worker.get_server_counters(member.tensor, timeout)
        state = {"updates": updates, "learning_rate": rate}
        for what in _SERVER_PARTS:
            out = host_empty(member.shape)
            try:
                self.worker.get_server_state(
                    member.tensor, what, out.data_ptr(), out.numel(), timeout
                )
            except NotFound:
                continue  # The servers keep none by this rule and codec.
            state[what] = out
        return state

    def _check(self, name, param):
        options = self.links.options_of(name)
        if self._takes_shards and is_shard(param):
            check_may_be_sharded(name, param, options)
            param = local_of(param)
        check_exchangeable(param, name, what="the parameter ", remedy="make it dense")
        dtype_number(param, name)
        if self.as_float32:
            return
        lossless = (options.push, options.pull) == ("none", "none")
        if param.dtype == torch.float64 and not lossless:
            raise InvalidArgument(
                f"{name!r} is float64, which only push='none' and pull='none' carry, not "
                f"push={options.push!r} and pull={options.pull!r}; use float32 or no codec",
                tensor=name,
            )

    def _declaration(self, name, param, terms):
        options = self.links.options_of(name)
        return Declaration(
            name=self.prefix + name,
            elements=local_of(param).numel(),
            dtype=_native.FLOAT32 if self.as_float32 else dtype_number(param, name),
            push=options.push,
            pull=options.pull,
            warmup=options.warmup,
            momentum=options.momentum,
            fuse=not self.goes_alone(name, param),
            group=terms.group,
            rule=terms.rule,
        )


def overflowed(member):
    """The error of a sum that was not finite although all that was pushed was."""
    return OutOfRange(
        f"the sum of what the workers pushed of {member.name!r} overflowed float32; start "
        "again from a checkpoint with a lower learning rate",
        tensor=member.name,
    )


def check_weights_fit_float32(named, owner):
    """InvalidArgument where `owner`, which exchanges and keeps weights in float32, would round a parameter."""
    for name, param in named:
        if param.dtype == torch.float64:
            raise InvalidArgument(
                f"{name!r} is float64, and {owner} exchanges and keeps weights in float32, which would round it; make "
                "the model float32, or use DistributedOptimizer with push='none' and pull='none', which carry float64",
                tensor=name,
            )


def check_apart(named):
    """InvalidArgument where two parameters lie in the same memory. In torch both of their steps are taken there; weights
    that come back of each would overwrite the other's."""
    tied = tied_by_memory(named)
    if tied:
        raise InvalidArgument(
            f"the parameters {tied[0]!r} and {tied[1]!r} lie in the same memory, and the weights that come back of each "
            "would overwrite the other's: make them one parameter, as by module.weight = other.weight, or use "
            "DistributedOptimizer, under which both step",
            tensor=tied[1],
        )


def tied_by_memory(named):
    """The names of two parameters that lie in the same memory, or None."""
    end, last, lies_at = 0, None, None
    named = local_named(named)
    for name, param in sorted(named, key=lambda entry: (str(entry[1].device), entry[1].data_ptr())):
        begin = param.data_ptr()
        if begin < end and param.device == lies_at:
            return last, name
        end, last, lies_at = begin + param.nbytes, name, param.device
    return None


# What servers may hold of a tensor; weights first, because they set the replica, too.
_SERVER_PARTS = ("weights", "replica", "residual", "moment0", "moment1")


def _check_entry(member, entry, has_servers):
    """InvalidArgument where a saved entry is not what the member's link keeps."""
    if not isinstance(entry["step"], int) or entry["step"] < 0:
        raise InvalidArgument(f"the step of {member.name!r} is {entry['step']!r}", tensor=member.name)
    if has_servers and "server" not in entry:
        raise InvalidArgument(
            f"the state has nothing of what the servers held of {member.name!r}: worker 0 needs that of "
            "rank 0",
            tensor=member.name,
        )
    for what, mine in member.facts.items():
        saved = entry["facts"].get(what)
        if saved != mine:
            raise InvalidArgument(
                f"{member.name!r} was saved under {what}={saved!r}, and here it has {what}={mine!r}; "
                "load a state under the options that it was saved with",
                tensor=member.name,
            )
    for what in member.memories:
        if entry[what].numel() != member.elements:
            raise InvalidArgument(
                f"the {what} of {member.name!r} has {entry[what].numel()} elements, the parameter "
                f"{member.elements}",
                tensor=member.name,
            )
