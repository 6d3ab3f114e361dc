"""What the processes of a LocalGroup send each other at a time: slices of some parameters."""

import torch

from .. import _native
from ..calls import Push, Result
from .tensors import host_zeros

# Elements before those of the slices and of who has a value: the weight and the count of steps, modulo what
# float32 counts up to.
_HEAD = 2
_COUNTED = 1 << 24

# Codes, in the place of a parameter's 1 or 0, for what comes back of it.
_IS_ABSENT, _IS_THERE, _IS_NOT_FINITE = 0.0, 1.0, 2.0

# Parameters of this many bytes are scattered and gathered by one call.
_BUCKET_BYTES = 4 << 20


def in_buckets(parameters, members):
    """The members, in their order, in Buckets of one type and device each."""
    buckets, chunk, num_bytes, kind = [], [], 0, None
    for member in members:
        dtype = parameters.slices_of(member)[0].dtype
        of_member = dtype, parameters.group.device_of(member.param, member.name)
        size = member.elements * dtype.itemsize
        if chunk and (of_member != kind or num_bytes + size > _BUCKET_BYTES):
            buckets.append(Bucket(parameters, chunk, *kind))
            chunk, num_bytes = [], 0
        kind = of_member
        chunk.append(member)
        num_bytes += size
    if chunk:
        buckets.append(Bucket(parameters, chunk, *kind))
    return buckets


class Bucket:
    """Parameters whose slices are scattered, and gathered again, by one call. What goes from one process to
    another is what the bucket's slices of its owner are, flat, and before them the weight, the count of steps
    and, of each parameter, 1 or 0: whether there is a value."""

    def __init__(self, parameters, members, dtype, device):
        group = parameters.group
        self.members = members
        self._group = group
        self._dtype = dtype
        self._device = device
        self._slices = [parameters.slices_of(member) for member in members]
        head = _HEAD + len(members)
        self._sizes = [head] * group.size  # of what each owner is sent
        self._places = []  # [member][slice]: where it begins in what its owner has
        self._declared = []  # (number of the member, the slice, where it begins, its push), of this process
        for number, slices in enumerate(self._slices):
            self._places.append([self._sizes[s.owner] for s in slices])
            for s in slices:
                if s.tensor is not None:
                    self._declared.append((number, s, self._sizes[s.owner], Push(s.tensor, None, priority=-s.priority)))
                self._sizes[s.owner] += s.elements
        # Both are used twice: what was sent has been read when results come, and row 0 of what was
        # received becomes the sum, and then the result.
        n = max(sum(self._sizes), group.size * max(self._sizes))
        self._sent = torch.empty(n, dtype=dtype, device=device)
        self._received = torch.empty(group.size * max(self._sizes), dtype=dtype, device=device)
        self.clear()

    def clear(self):
        self.missing = len(self.members)  # that have not said what they have
        self.work = None  # of the call that was begun last
        self.tickets = None  # of the pushes, once they have left
        self._results = []
        self._host = None  # float[n]: this process's part, where C reads and writes it

    @property
    def _own_size(self):
        return self._sizes[self._group.rank]

    def scatter(self, values, weight, scale, steps):
        """Sends each process what it owns of the values, one a member or None, times weight / scale."""
        factor = weight / scale
        begin = 0
        rows = []
        for n in self._sizes:
            rows.append(self._sent[begin : begin + n])
            begin += n
        for row in rows:
            row[0] = weight
            row[1] = steps % _COUNTED
        for i, value in enumerate(values):
            is_present = value is not None and weight > 0
            for row in rows:
                row[_HEAD + i] = 1.0 if is_present else 0.0
            flat = value.detach().reshape(-1) if is_present else None
            for s, place in zip(self._slices[i], self._places[i]):
                part = rows[s.owner][place : place + s.elements]
                if flat is None:
                    part.zero_()
                else:
                    part.copy_(flat[s.begin : s.begin + s.elements])
                    if factor != 1.0:
                        part.mul_(factor)
        out = self._received[: self._group.size * self._own_size]
        self.work = self._group.scatter(out, self._sent[:begin], self._sizes)

    def add_up(self, rates, program_steps):
        """The pushes, of the sums in the order of the processes' ranks; rates: one a member. Once what was scattered
        is here. Refused where the processes have ended other counts of steps."""
        rows = self._received[: self._group.size * self._own_size].view(self._group.size, self._own_size)
        self._group.check_same_steps(rows[:, 1].tolist(), self.members[0].name)
        total = rows[0]
        for row in rows[1:]:
            total.add_(row)
        head = total[: _HEAD + len(self.members)].tolist()
        weight, present = head[0], head[_HEAD:]
        if weight not in (0.0, 1.0):
            total[len(head) :].div_(weight)  # A push is times its weight.
        self._host = total if total.is_cpu else total.to("cpu")
        for number, s, place, push in self._declared:
            push.learning_rate = rates[number]
            push.program_steps = program_steps
            push.flags = 0 if s.is_own and present[number] else _native.ABSENT
            push.weight = weight if s.is_own else 0.0
            if s.is_own:
                push.data = self._host.data_ptr() + place * self._host.element_size()
                push.keep = self._host
        return [push for _, _, _, push in self._declared]

    def own_parts(self):
        """(slice, room for its values in the memory of the host), of this process: for what is gathered besides
        exchanges."""
        self._host = host_zeros(self._own_size, self._dtype)
        return [(s, self._host[place : place + s.elements]) for _, s, place, _ in self._declared if s.is_own]

    def take(self, results):
        """Of the first tickets, which have ended."""
        self._results += results
        self.tickets = self.tickets[len(results) :]

    def gather(self):
        """Sends all what this process owns: results of the exchange, or what was put into own_parts(); and in the place of
        each parameter's 1 or 0 what came of it."""
        results = self._results or [Result(0, False, False)] * len(self._declared)
        mine = host_zeros(max(self._sizes), self._dtype)
        mine[: self._own_size] = self._host
        for (number, s, _, _), result in zip(self._declared, results):
            if not s.is_own:
                continue
            mine[_HEAD + number] = _IS_ABSENT if result.absent else _IS_NOT_FINITE if result.nonfinite else _IS_THERE
        n = self._group.size * max(self._sizes)
        out = self._sent[:n].view(self._group.size, -1)
        self.work = self._group.gather(out, mine.to(self._device))

    def deliver(self, tensors, scale=1.0):
        """Writes what was gathered to the tensors, one a member or None; of each a Result."""
        n = self._group.size * max(self._sizes)
        rows = self._sent[:n].view(self._group.size, -1)
        came = rows[:, _HEAD : _HEAD + len(self.members)].tolist()
        results = []
        for i, tensor in enumerate(tensors):
            of_slices = [came[s.owner][i] for s in self._slices[i]]
            results.append(Result(0, of_slices[0] == _IS_ABSENT, _IS_NOT_FINITE in of_slices))
            if tensor is None or results[-1].absent:
                continue
            in_place = tensor.is_contiguous()
            flat = tensor.view(-1) if in_place else tensor.new_empty(tensor.numel())
            for s, place in zip(self._slices[i], self._places[i]):
                part = rows[s.owner, place : place + s.elements]
                if scale != 1.0:
                    part.mul_(scale)
                flat[s.begin : s.begin + s.elements].copy_(part)
            if not in_place:
                tensor.copy_(flat.view(tensor.shape))
        return results
