"""The rounds of a LocalGroup: gradients are scattered among its members and added up, the sums exchanged with
the servers, and the means gathered."""

import contextlib

import torch

from .. import _native
from ..errors import DeadlineExceeded, FailedPrecondition
from . import backward_pass
from .gradient_hooks import AS_IT_IS_THEN
from .outbox import trust_version
from .round_states import SLOT_EVENTS
from .sliced_bucket import in_buckets
from .synchronizer import Synchronizer

_IS_PUSHED = SLOT_EVENTS["it_is_pushed"]


class LocalGroupSynchronizer(Synchronizer):
    """A Synchronizer whose rounds go through a LocalGroup. Its members make the same calls in the same
    order: buckets of parameters, from the last on, each when all before it have been scattered; then the
    results, bucket by bucket. So what one member's pass makes when does not matter."""

    def __init__(self, parameters, *arguments, **options):
        super().__init__(parameters, *arguments, **options)
        self._group = parameters.group
        self._buckets = []
        self._bucket_of = {}  # by slot
        self._slots_of = {}  # by bucket
        self._num_scattered = 0  # buckets, in this round
        self._num_pushed = 0
        self._num_gathered = 0
        self._failure = None

    def add(self, members):
        super().add(members)
        slots = {slot.member: slot for slot in self._slots}
        for member in members:
            slots[member].number = self._parameters.number_of(member)
        for bucket in in_buckets(self._parameters, members[::-1]):
            self._buckets.append(bucket)
            self._slots_of[bucket] = [slots[member] for member in bucket.members]
            self._bucket_of.update(dict.fromkeys(self._slots_of[bucket], bucket))

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
            slots = self._slots_of[bucket]
            for slot in slots:
                self._outbox.take_gradient(slot, self._round)
                trust_version(slot)
                slot.memory = slot.grad
            with self._noting_failure():
                values = [None if slot.flags & _native.ABSENT else slot.grad for slot in slots]
                bucket.scatter(values, self._round.weight, self._round.scale, self._parameters.step_count.ended)
            self._num_scattered += 1

    @torch.no_grad()
    def _push_sums(self, end):
        """Of the buckets before `end`, all of which are scattered."""
        for bucket in self._buckets[self._num_pushed : end]:
            with self._noting_failure():
                self._group.wait(bucket.work)
                rates = [self._round.rates.get(id(member.param), 0.0) for member in bucket.members]
                pushes = bucket.add_up(rates, self._parameters.step_count.program_steps)
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
            slots = self._slots_of[bucket]
            results = bucket.deliver([slot.grad for slot in slots], self._round.scale) if is_wanted else []
            for slot, result in zip(slots, results):
                self._finish(slot, result)
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
