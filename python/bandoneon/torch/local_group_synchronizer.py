"""The rounds of a LocalGroup: gradients are scattered among its members and added up, the sums exchanged with
the servers, and the means gathered."""

import contextlib

import torch

from .. import _native
from ..calls import Push, Result
from ..errors import DeadlineExceeded, FailedPrecondition
from . import backward_pass
from .gradient_hooks import AS_IT_IS_THEN
from .outbox import trust_version
from .round_states import SLOT_EVENTS
from .synchronizer import Synchronizer
from .tensors import host_zeros

_IS_PUSHED = SLOT_EVENTS["it_is_pushed"]

# Parameters of this many bytes are scattered and gathered by one call.
_BUCKET_BYTES = 4 << 20
# Elements before those of the slices and of who has a gradient: the weight and the count of steps, modulo what
# float32 counts up to.
_HEAD = 2
_COUNTED = 1 << 24


class _Bucket:
    """Parameters whose slices are scattered, and gathered again, by one call. What goes from one member to
    another is what the bucket's slices of its owner are, flat, and before them the weight, the count of steps
    and, of each parameter, 1 or 0: whether there is a gradient."""

    def __init__(self, group, parameters, slots, dtype, device):
        self.slots = slots
        self._group = group
        self._dtype = dtype
        self._device = device
        self._slices = [parameters.slices_of(slot.member) for slot in slots]
        head = _HEAD + len(slots)
        self._sizes = [head] * group.size  # of what each owner is sent
        self._places = []  # [slot][slice]: where it begins in what its owner has
        for slices in self._slices:
            self._places.append([self._sizes[s.owner] for s in slices])
            for s in slices:
                self._sizes[s.owner] += s.elements
        self._pushes = [
            [Push(s.tensor, None, priority=-s.priority) for s in slices] for slices in self._slices
        ]
        # Both are used twice: what was sent has been read when results come, and row 0 of what was
        # received becomes the sum, and then the result.
        n = max(sum(self._sizes), group.size * max(self._sizes))
        self._sent = torch.empty(n, dtype=dtype, device=device)
        self._received = torch.empty(group.size * max(self._sizes), dtype=dtype, device=device)
        self.clear()

    def clear(self):
        self.missing = len(self.slots)  # that have not said what they have
        self.work = None  # of the call that was begun last
        self.tickets = None  # of the pushes, once they have left
        self._results = []
        self._host = None  # float[n]: this member's part, where C reads and writes it

    @property
    def _own(self):
        return self._sizes[self._group.rank]

    def scatter(self, weight, scale, steps):
        factor = weight / scale
        begin = 0
        rows = []
        for n in self._sizes:
            rows.append(self._sent[begin : begin + n])
            begin += n
        for row in rows:
            row[0] = weight
            row[1] = steps % _COUNTED
        for i, slot in enumerate(self.slots):
            is_present = slot.grad is not None and not slot.flags & _native.ABSENT and weight > 0
            for row in rows:
                row[_HEAD + i] = 1.0 if is_present else 0.0
            flat = slot.grad.detach().reshape(-1) if is_present else None
            for s, place in zip(self._slices[i], self._places[i]):
                part = rows[s.owner][place : place + s.elements]
                if flat is None:
                    part.zero_()
                else:
                    part.copy_(flat[s.begin : s.begin + s.elements])
                    if factor != 1.0:
                        part.mul_(factor)
        out = self._received[: self._group.size * self._own]
        self.work = self._group.scatter(out, self._sent[:begin], self._sizes)

    def add_up(self, rates, program_steps):
        """The pushes, of the sums in the order of the members' ranks. Once what was scattered is here. Refused
        where the members have ended other counts of steps."""
        rows = self._received[: self._group.size * self._own].view(self._group.size, self._own)
        self._group.check_same_steps(rows[:, 1].tolist(), self.slots[0].member.name)
        total = rows[0]
        for row in rows[1:]:
            total.add_(row)
        head = total[: _HEAD + len(self.slots)].tolist()
        weight, present = head[0], head[_HEAD:]
        if weight not in (0.0, 1.0):
            total[len(head) :].div_(weight)  # A push is times its weight.
        self._host = total if total.is_cpu else total.to("cpu")
        element_bytes = self._host.element_size()
        pushes = []
        for i, slot in enumerate(self.slots):
            rate = rates.get(id(slot.param), 0.0)
            for s, place, push in zip(self._slices[i], self._places[i], self._pushes[i]):
                push.learning_rate = rate
                push.program_steps = program_steps
                push.flags = 0 if s.is_own and present[i] else _native.ABSENT
                push.weight = weight if s.is_own else 0.0
                if s.is_own:
                    push.data = self._host.data_ptr() + place * element_bytes
                    push.keep = self._host
                pushes.append(push)
        return pushes

    def take(self, results):
        """Of the first tickets, which have ended."""
        self._results += results
        self.tickets = self.tickets[len(results) :]

    def gather(self):
        """The results, and in the place of each parameter's 1 or 0 whether there is one."""
        results = iter(self._results)
        mine = host_zeros(max(self._sizes), self._dtype)
        mine[: self._own] = self._host
        for i, slices in enumerate(self._slices):
            for s in slices:
                result = next(results)
                if s.is_own:
                    mine[_HEAD + i] = 0.0 if result.absent else 1.0
        n = self._group.size * max(self._sizes)
        out = self._sent[:n].view(self._group.size, -1)
        self.work = self._group.gather(out, mine.to(self._device))

    def deliver(self, scale):
        """Writes the means into the slots' gradients; of each slot, whether there was one."""
        n = self._group.size * max(self._sizes)
        rows = self._sent[:n].view(self._group.size, -1)
        is_there = rows[:, _HEAD : _HEAD + len(self.slots)].tolist()
        there = []
        for i, slot in enumerate(self.slots):
            there.append(bool(is_there[self._slices[i][0].owner][i]))
            if slot.grad is None or not there[-1]:
                continue
            in_place = slot.grad.is_contiguous()
            flat = slot.grad.view(-1) if in_place else slot.grad.new_empty(slot.grad.numel())
            for s, place in zip(self._slices[i], self._places[i]):
                part = rows[s.owner, place : place + s.elements]
                if scale != 1.0:
                    part.mul_(scale)
                flat[s.begin : s.begin + s.elements].copy_(part)
            if not in_place:
                slot.grad.copy_(flat.view(slot.grad.shape))
        return there


class LocalGroupSynchronizer(Synchronizer):
    """A Synchronizer whose rounds go through a LocalGroup. Its members make the same calls in the same
    order: buckets of parameters, from the last on, each when all before it have been scattered; then the
    results, bucket by bucket. So what one member's pass makes when does not matter."""

    def __init__(self, parameters, *arguments, **options):
        super().__init__(parameters, *arguments, **options)
        self._group = parameters.group
        self._buckets = []
        self._bucket_of = {}  # by slot
        self._num_scattered = 0  # buckets, in this round
        self._num_pushed = 0
        self._num_gathered = 0
        self._failure = None

    def add(self, members):
        first = len(self._slots)
        super().add(members)
        slots, num_bytes, kind = [], 0, None
        for slot in reversed(self._slots[first:]):
            slot.number = self._parameters.slices_of(slot.member)[0].tensor
            dtype = self._parameters.slices_of(slot.member)[0].dtype
            of_slot = dtype, self._group.device_of(slot.param, slot.member.name)
            size = slot.member.elements * dtype.itemsize
            if slots and (of_slot != kind or num_bytes + size > _BUCKET_BYTES):
                self._add_bucket(slots, *kind)
                slots, num_bytes = [], 0
            kind = of_slot
            slots.append(slot)
            num_bytes += size
        if slots:
            self._add_bucket(slots, *kind)

    def _add_bucket(self, slots, dtype, device):
        bucket = _Bucket(self._group, self._parameters, slots, dtype, device)
        self._buckets.append(bucket)
        self._bucket_of.update(dict.fromkeys(slots, bucket))

    def _prepare_round(self):
        self._check()
        return super()._prepare_round()

    def _check(self):
        if self._failure is not None:
            raise FailedPrecondition(
                "an exchange of this optimizer has failed before, and the members of its local_group may be "
                f"at different places; go on from a checkpoint ({self._failure})"
            )

    def _await_means(self):
        """In steps, each of which all optimizers that have part in the pass take before the next: another
        worker may wait for theirs in another order."""
        backward_pass.at_end_of_pass(self._finish_pushes)

    def _finish_pushes(self):
        self._push_sums(len(self._buckets))
        backward_pass.at_end_of_pass(self._finish_results)

    def _finish_results(self):
        self._gather_results()
        backward_pass.at_end_of_pass(self._end_round)

    @torch.no_grad()
    def _push(self, slot, grad=AS_IT_IS_THEN, flags=0):
        """Into its bucket. All that can go on goes on, but for a bucket that this completes: until the next gradient
        comes, hooks may change this one."""
        if self._batch.is_full:
            self._send_batch()
        ready = self._num_pushed
        while ready < self._num_scattered and self._buckets[ready].work.is_completed():
            ready += 1
        self._push_sums(ready)
        slot.state = _IS_PUSHED[slot.state]
        slot.leaves_at_once = False
        slot.grad = grad
        slot.flags = flags
        bucket = self._bucket_of[slot]
        bucket.missing -= 1
        self._batch.is_full |= bucket.missing == 0

    @torch.no_grad()
    def _send_batch(self):
        self._batch.is_full = False
        buckets = self._buckets
        while self._num_scattered < len(buckets) and buckets[self._num_scattered].missing == 0:
            bucket = buckets[self._num_scattered]
            for slot in bucket.slots:
                self._outbox.take_gradient(slot, self._round)
                trust_version(slot)
                slot.memory = slot.grad
            with self._noting_failure():
                bucket.scatter(self._round.weight, self._round.scale, self._parameters.step_count.ended)
            self._num_scattered += 1

    @torch.no_grad()
    def _push_sums(self, end):
        """Of the buckets before `end`, all of which are scattered."""
        for bucket in self._buckets[self._num_pushed : end]:
            with self._noting_failure():
                self._group.wait(bucket.work)
                pushes = bucket.add_up(self._round.rates, self._parameters.step_count.program_steps)
                bucket.tickets, refused = self._worker.push_all(pushes)
                if refused is not None:
                    raise refused
            self._num_pushed += 1

    @torch.no_grad()
    def _gather_results(self):
        for bucket in self._buckets[self._num_gathered :]:
            results, error = self._worker.wait_all(bucket.tickets, self._timeout)
            bucket.take(results)
            with self._noting_failure():
                if error is not None:
                    raise error
                bucket.gather()
            self._num_gathered += 1

    def _collect(self, slots, is_wanted=True):
        self._check()
        self._push_sums(len(self._buckets))
        self._gather_results()
        for bucket in self._buckets:
            with self._noting_failure():
                self._group.wait(bucket.work)
        if is_wanted:
            self._note_changes(self._slots)
        for bucket in self._buckets:
            there = bucket.deliver(self._round.scale) if is_wanted else []
            for slot, is_there in zip(bucket.slots, there):
                self._finish(slot, Result(0, not is_there, False))
            bucket.clear()
        self._num_scattered = self._num_pushed = self._num_gathered = 0

    @contextlib.contextmanager
    def _noting_failure(self):
        """An error is the end, unless it may be waited for again."""
        try:
            yield
        except DeadlineExceeded:
            raise
        except BaseException as error:
            self._failure = str(error)  # Not itself, which holds on to the stack.
            raise
