"""Gradients leave as the backward pass makes them; the pass ends when their means have come back."""

import contextlib
import weakref

import torch

from .. import _native
from ..errors import BandoneonError, DeadlineExceeded
from . import backward_pass, devices, round_notices
from .gradient_hooks import AS_IT_IS_THEN, accumulation_hook, forward_to, gradient_hook
from .outbox import Outbox, zeros_for
from .round_notices import Notices
from .round_parts import Batch, Round, Slot, leave_slots, open_slots
from .round_states import IDLE, LOCAL, OPEN, ROUND_EVENTS, SLOT_EVENTS, WAITING
from .shards import joined_to
from .step_recorder import recorder_of
from .tensors import copy_back, streams_for

_LOCAL_BEGINS = ROUND_EVENTS["a_local_pass_begins"]
_IS_OPENED = ROUND_EVENTS["it_is_opened"]
_ENDS = ROUND_EVENTS["it_ends"]
_IS_PUSHED = SLOT_EVENTS["it_is_pushed"]
_EXCHANGE_ENDS = SLOT_EVENTS["its_exchange_ends"]

# Gradients leave together when they are this many bytes: a call for each would cost small ones more than
# their exchange does.
_BATCH_BYTES = 256 << 10


class Synchronizer:
    """The hooks on the parameters of a ParameterSet. One backward pass is one round: every tensor is
    pushed exactly once in it by every worker, if only to say that there is no gradient. round_states.py has
    the states of a round and of a parameter in it.

    Used by one thread at a time, the one that autograd runs on.
    """

    _sends_what_is_awaited_alone = False  # Otherwise all means are awaited together.

    def __init__(
        self, parameters, loss_scale, weight, rates, overlap=True, timeout=None, passes_per_round=1
    ):
        """`weight` is a Weight; rates() is {id(parameter): learning rate}. overlap: whether gradients leave before
        their pass has ended."""
        self._parameters = parameters
        self._worker = parameters.worker
        self._recorder = recorder_of(parameters.worker)
        # Of the recorder, for the hooks of gradients; None where nothing is recorded.
        self.note_ready = None if self._recorder is None else self._recorder.note_ready
        self._loss_scale = loss_scale
        self._weights = weight
        self._rates_now = rates
        self._overlap = overlap
        self._timeout = timeout
        self._slots = []
        self._enabled = True
        self._closed = False
        self._had_pass = False  # since the last step, or since its gradients were thrown away
        self._passes_per_round = passes_per_round
        self._local_passes = 0  # that the next round will exchange
        self._local_sum = None  # a gradient as the last of them left it, and torch's count of writes to it
        self._has_local_part = False  # gradients of no_sync() passes that no round has exchanged
        self.attendance = None  # that each round is told to, within join()
        self.sketches = None  # with sparse="sketch"
        self._notices = Notices()
        self._round = Round()  # that the running backward pass belongs to, or the next one
        self._batch = Batch()
        self._outbox = Outbox(parameters, self._notices)
        self._has_failed = False  # the last round ended in an error
        self._changed = []  # slots whose gradients were changed after they had left
        self._frozen_here = []  # slots of frozen parameters that others have a gradient of
        self._given_up_at = None  # steps that had ended when a round was given up
        self._summed = None  # SummedRows: sparse gradients that are exchanged row by row

    @property
    def has_local_part(self):
        """Whether gradients of passes are in `grad` that no round has exchanged."""
        return self._local_passes > 0 or self._has_local_part

    def gradients(self):
        """For a newcomer, of each parameter: the mean, where no step was taken by it and it was not thrown away; otherwise
        whether there is one, which to an optimizer with momentum or decay is not the same as none."""
        return [slot.param.grad if self._had_pass else slot.param.grad is not None for slot in self._slots]

    @torch.no_grad()
    def take_gradients(self, gradients):
        """What gradients() of another worker gave."""
        for slot, part in zip(self._slots, gradients):
            given = joined_to(part, slot.param)
            self._had_pass = self._had_pass or isinstance(given, torch.Tensor)
            if isinstance(given, torch.Tensor):
                slot.leave_mean(given.to(slot.param.device, copy=True))
            else:
                slot.leave_mean(torch.zeros_like(slot.param) if given else None)
        self._hook_new_slots()  # Of parameters that only the others had thawed.

    def count_samples(self, samples):
        """As Weight's."""
        self._weights.count_samples(samples)

    # ---- Membership ----

    def add(self, members):
        self._slots += [Slot(member, self._sends_what_is_awaited_alone) for member in members]
        self._hook_new_slots()
        if self.sketches is not None:
            self.sketches.watch(members)

    def replace(self, members):
        """These are declared anew, between two rounds."""
        by_param = {id(member.param): member for member in members}
        for slot in self._slots:
            if id(slot.param) in by_param:
                slot.take(by_param[id(slot.param)])

    def end_step(self):
        """The optimizer has stepped."""
        if self.sketches is not None and not self._closed:
            self.sketches.end_step(self)

    def set_summed_rows(self, summed):
        self._summed = summed
        self._hook_new_slots()

    @property
    def has_summed_rows(self):
        return self._summed is not None

    @property
    def is_closed(self):
        return self._closed

    def close(self):
        """Takes the hooks away; the parameters' gradients stay local from now on."""
        self._closed = True
        for slot in self._slots:
            slot.remove_hooks()
        if self._summed is not None:
            self._summed.remove_hooks()

    def forget_failure(self):
        """The program has seen it: nothing more is exchanged that could mend it."""
        self._worker.note_good_round(self)

    @contextlib.contextmanager
    def no_sync(self):
        before = self._enabled
        self._enable(False)
        try:
            yield
        finally:
            self._enable(before)

    def _enable(self, is_enabled):
        self._enabled = is_enabled
        self._open_batch()

    def answer_round(self):
        """Takes part in a round of the others, without gradients of this worker."""
        self.forget_pass()
        self._open_round(self._weights.out_of_data)
        self._end_round()

    def synchronize(self):
        """Ends a round that is running, or that still lacks passes."""
        self.settle()
        if self._round.state is not IDLE or self._local_passes:
            self._end_round()
        elif self._had_pass and not self._has_local_part:
            self._exchange_what_was_set()

    # ---- What is in flight after its pass: in DeferringSynchronizer ----

    @property
    def has_deferred_step(self):
        return False

    def take_deferred(self, slots=None):
        """Awaits the means of these slots, or of all, and takes the step that was deferred of them."""

    def settle(self):
        """Awaits what is in flight: means are in the gradients, or, of a deferred step, stepped on."""

    # ---- Around the optimizer's step ----

    def before_step(self):
        """Makes up for a round that no backward pass has run or ended: a worker whose batch gave no
        gradients at all still owes the others its word."""
        if self._closed:
            return
        self.settle()
        # A step that was left out, as by a GradScaler, leaves gradients that are thrown away in the end.
        params = [slot.param for slot in self._slots] + (self._summed.params if self._summed is not None else [])
        has_gradients = self._had_pass and any(param.grad is not None for param in params)
        if self._local_passes and self._loss_scale.current() != 1.0:
            raise round_notices.unscaled_by_now(self._local_passes, self._passes_per_round)
        if self._local_passes and self._is_local_sum_changed():
            self._notices.local_sum_changed(self._local_passes, self._passes_per_round)
        if self._round.state is not IDLE or self._local_passes or not has_gradients:
            self._end_round()
        elif self._has_local_part:
            self._notices.local_part()
        else:
            self._exchange_what_was_set(is_before_step=True)

    def _note_local_sum(self):
        """Of one gradient, as what clips changes all. Not of an inference tensor, whose writes torch does not count."""
        grads = (slot.param.grad for slot in self._slots)
        self._local_sum = next(((grad, grad._version) for grad in grads if grad is not None and not grad.is_inference()), None)

    def _is_local_sum_changed(self):
        noted, self._local_sum = self._local_sum, None
        if noted is None:
            return False
        grad, version = noted
        return grad._version != version or all(slot.param.grad is not grad for slot in self._slots)

    def _exchange_what_was_set(self, is_before_step=False):
        """In a round of its own, for its gradients the last one has not exchanged. A program that sets them does so in
        all workers; if one does not, its next push is of another step than this one, and both are told."""
        # In a comprehension, for nearly every step asks in vain.
        slots = [
            s for s in self._slots if (grad := s.param.grad) is not None and (s.mean is None or s.mean() is not grad)
        ]
        if not slots:
            return
        scale = self._loss_scale.current()
        if is_before_step and (scale != 1.0 or self._loss_scale.travels):
            raise round_notices.set_under_scaler(slots)
        if self.attendance is not None:
            raise round_notices.set_in_join(slots)
        replaced = [slot for slot in slots if slot.mean is not None]
        if replaced:
            self._notices.replaced(replaced[0])
        self._end_round()

    def let_go_of_gradients(self):
        """Those of a pass that broke off, whose means are still to be written to them: zeros would be, too."""
        for slot in self._slots:
            if slot.is_being_written:
                slot.param.grad = None

    def forget_pass(self):
        """Its gradients were stepped on or thrown away; the next step needs others."""
        self._had_pass = self._has_local_part = False
        self._local_passes = 0
        self._local_sum = None

    def _note_exchange(self):
        """Of the passes so far, whose gradients are those of all workers now."""
        self._had_pass = True
        self._has_local_part = False
        self._local_passes = 0
        self._local_sum = None

    # ---- In the backward pass ----

    def _hook_new_slots(self):
        """Also finds parameters that were frozen before: a frozen one cannot be hooked."""
        itself = weakref.ref(self)
        if self._summed is not None and not self._closed:
            self._summed.hook(forward_to(itself, Synchronizer._before_rows, None))
        for slot in self._slots:
            if slot.hooks or not slot.param.requires_grad or self._closed:
                continue
            slot.hooks = [
                slot.param.register_hook(gradient_hook(itself, slot, self._batch)),
                slot.param.register_post_accumulate_grad_hook(accumulation_hook(itself, slot, self._batch)),
            ]

    def _on_gradient(self, slot):
        """For a slot that may hold a mean. Begins nothing yet: torch.autograd.grad(), too, comes here. What is
        added to a mean must be kept apart from it, and so be known of before; any other will be heard of
        when it is there."""
        if slot.holds_mean:
            backward_pass.remove(slot.accumulation_hooks)
            slot.accumulation_hooks = backward_pass.before_accumulation(
                slot.param, forward_to(weakref.ref(self), Synchronizer._expect, slot)
            )

    def _expect(self, slot):
        self._before_accumulation(slot)
        slot.expected_in = backward_pass.current_task()

    def _before_accumulation(self, slot):
        if not self._enabled:
            self._had_pass = self._has_local_part = True
            slot.forget_mean()
            return
        self._enter_round(slot)
        slot.leaves_at_once = False  # This is another gradient than the one that the hook may send by itself.
        if self._round.state is LOCAL:
            slot.forget_mean()
            return
        if slot.state is not WAITING:
            raise round_notices.second_gradient(slot)
        slot.fired += 1
        if slot.fired > 1:
            slot.may_repeat = True
        elif slot.is_shard:
            slot.mean = None  # FSDP has added to it what came: all of it is exchanged.
        elif slot.holds_mean:
            slot.earlier, slot.param.grad = slot.param.grad, None

    def _after_accumulation(self, slot):
        """Of gradients of which their hook does not know that they leave at once."""
        if slot.expected_in != backward_pass.current_task():
            self._before_accumulation(slot)
        slot.expected_in = None
        leaves_at_once = slot.seen_alone and not slot.may_repeat
        if self._enabled and self._round.state is not LOCAL and self._overlap and leaves_at_once:
            self._push(slot)

    def _before_rows(self, _):
        """A pass has come to a weight whose gradients are exchanged row by row, at the end of the round."""
        if self._enabled:
            self._enter_round(None)
        else:
            self._had_pass = self._has_local_part = True

    def _enter_round(self, slot):
        round = self._round
        task = backward_pass.current_task()
        if task == round.outermost:
            return
        function = backward_pass.outermost_node()
        if function is not None and slot is not None:
            slot.may_repeat = True
        if task in round.tasks:
            return
        if round.state is not IDLE and function is None and round.outermost is not None:
            self._abandon_round()
        if self._round.state is IDLE:
            if self._local_passes + 1 < self._passes_per_round:
                self._begin_local_pass()
            else:
                self._open_round()
        self._round.tasks.add(task)
        if function is None:
            self._reach_outermost(task)
        elif self._round.outermost is None:
            backward_pass.when_pass_resumes_after(
                function, lambda: self._reach_outermost(backward_pass.current_task())
            )

    def _reach_outermost(self, task):
        if self._round.state is not IDLE and self._round.outermost is None:
            self._round.outermost = task
            if self._recorder is not None:
                self._recorder.begin_backward()
            self._open_batch()
            # After what the program has put at the end of this pass, which may change gradients, too.
            backward_pass.at_end_of_pass(lambda: backward_pass.at_end_of_pass(self._finish_pass))

    def _open_batch(self):
        """For gradients of the outermost pass, which leave as they come."""
        is_open = self._enabled and self._overlap and self._round.state is OPEN
        self._batch.open_for = self._round.outermost if is_open else None

    def _finish_pass(self):
        """Waits only after every optimizer that has part in the pass has sent what it owes: another
        worker may wait for theirs before it comes to this one."""
        if self._round.state is LOCAL:
            self._local_passes += 1
            self._had_pass = True
            self._note_local_sum()
            self._leave_round()
            return
        self._send_rest()
        self._await_means()

    def _await_means(self):
        backward_pass.at_end_of_pass(self._end_round)

    # ---- The round ----

    def _prepare_round(self):
        round = self._round
        round.scale = self._loss_scale.current()
        round.travels_scaled = self._loss_scale.travels
        return round

    def _begin_local_pass(self):
        round = self._prepare_round()
        round.rates = self._rates_now()
        round.state = _LOCAL_BEGINS[round.state]

    def _open_round(self, weight=None):
        round = self._prepare_round()
        round.weight = self._weights.now() if weight is None else weight
        round.rates = self._rates_now()
        if round.state is not OPEN:
            open_slots(self._slots, self._overlap)
        round.state = _IS_OPENED[round.state]
        if self.attendance is not None:
            self.attendance.tell_present()

    @torch.no_grad()
    def _end_round(self):
        """Sends what has not been sent, then waits for everything."""
        if self._round.state is not OPEN:
            self._open_round()
        self._send_rest()
        self._collect(self._slots)
        self._collect_rows()
        self._settle_attendance()
        self._note_exchange()
        self._leave_round()
        if self._recorder is not None:
            self._recorder.end_backward()
        self._refuse_changes()
        self._refuse_frozen_here()

    @torch.no_grad()
    def _send_rest(self):
        for slot in self._slots:
            if slot.state is WAITING:
                self._push_rest(slot)
        self._send_batch()
        self._send_rows()

    def _send_rows(self):
        if self._summed is not None:
            self._summed.send(self._round)

    def _collect_rows(self, is_wanted=True):
        if self._summed is None:
            return
        try:
            self._summed.collect(is_wanted)
        except BandoneonError as failure:
            error = self._with_what_was_given_up(round_notices.of_exchange(failure))
            self._has_failed = True
            self._worker.note_failed_round(self, error)
            raise error from None

    def _abandon_round(self):
        """A backward pass broke off and the program went on: the others still get their round."""
        if self._round.state is LOCAL:  # In which they have no part.
            self._leave_round()
            return
        self.take_deferred()
        self._round.is_given_up = True
        self._given_up_at = self._parameters.step_count.ended
        for slot in self._slots:
            if slot.state is WAITING:
                self._push(slot, None, _native.ABSENT)
        self._send_batch()
        self._send_rows()
        written = [slot for slot in self._slots if slot.is_being_written]
        self._collect(self._slots, is_wanted=False)
        self._collect_rows(is_wanted=False)
        self._settle_attendance()
        self._local_passes = 0
        self._leave_round()
        if written:
            raise round_notices.added_to_nobodys_mean(written[0])

    def _settle_attendance(self):
        if self.attendance is not None:
            self.attendance.settle()

    def _leave_round(self):
        leave_slots(self._slots)
        self._round.state = _ENDS[self._round.state]
        self._begin_anew()

    def _begin_anew(self):
        self._round = Round()
        self._open_batch()
        self._hook_new_slots()

    # ---- Its pushes ----

    def _push_rest(self, slot):
        grad = slot.param.grad
        if not slot.param.requires_grad and (grad is None or slot.holds_mean):
            self._push(slot, None, _native.ABSENT)
        elif grad is not None and (slot.fired or not slot.holds_mean):
            self._push(slot, grad)
        else:
            if slot.fired and grad is None:
                self._notices.gradient_taken(slot)
            if slot.earlier is None:
                slot.earlier, slot.param.grad = grad, None
            self._push(slot, zeros_for(slot), _native.ABSENT)

    def _push(self, slot, grad=AS_IT_IS_THEN, flags=0):
        """With the batch, which leaves when it is large enough and the next gradient comes: then no hook of the
        program's is still to change what is in it."""
        batch = self._batch
        if batch.is_full:
            self._send_batch()
        slot.state = _IS_PUSHED[slot.state]
        slot.leaves_at_once = False
        slot.grad = grad
        slot.flags = flags
        if devices.ARE_HERE:
            slot.stream = devices.stream_of(slot.param)
        batch.slots.append(slot)
        batch.num_bytes += slot.num_bytes
        batch.is_full = batch.num_bytes >= _BATCH_BYTES

    def _send_batch(self):
        slots = self._batch.take_all()
        if slots:
            error = self._outbox.send(slots, self._round)
            if error is not None:
                raise self._with_what_was_given_up(error)

    # ---- Its means ----

    def _collect(self, slots, is_wanted=True):
        """Waits for what is on its way of these. What had come before another one was late is not waited
        for again."""
        slots = [slot for slot in slots if slot.ticket is not None]
        results, error = self._worker.wait_all(
            [slot.ticket for slot in slots],
            self._timeout,
            streams_for(slot.memory for slot in slots) if is_wanted else None,
        )
        if is_wanted:
            self._note_changes(slots[: len(results)])
        for slot, result in zip(slots, results):
            slot.ticket = None
            if is_wanted:
                self._finish(slot, result)
        if error is not None:
            if not isinstance(error, DeadlineExceeded):  # After which it can be waited for again.
                slots[len(results)].ticket = None
            error = self._with_what_was_given_up(round_notices.of_exchange(error))
            self._has_failed = True
            self._worker.note_failed_round(self, error)
            raise error
        if is_wanted and self._has_failed:
            self._has_failed = False
            self._worker.note_good_round(self)

    def _with_what_was_given_up(self, error):
        taken = self._parameters.step_count.ended - self.has_deferred_step
        return round_notices.after_given_up_step(error, self._given_up_at, taken)

    def _finish(self, slot, result):
        slot.state = _EXCHANGE_ENDS[slot.state]
        if slot.fired == 1:
            slot.seen_alone = True
        if result.nonfinite:
            self._warn_of_nonfinite(slot)
        mean = slot.earlier
        if slot.memory is not None and not result.absent:
            if slot.memory is not slot.grad or devices.ARE_HERE:
                copy_back(slot.memory, slot.grad)
            if self.sketches is not None:
                self.sketches.note(slot.member, slot.grad, result)
            arrived = slot.grad if slot.whole is None else slot.whole
            mean = arrived if slot.earlier is None else slot.earlier.add_(arrived)
        if slot.memory is None:
            if not slot.holds_mean:
                slot.mean = None
            if not result.absent:
                self._frozen_here.append(slot)
        elif slot.pending is not None:
            self._arrive(slot, mean)
        else:
            slot.leave_mean(mean)

    def _warn_of_nonfinite(self, slot):
        """Not of scaled gradients, whose scaler finds out by itself and leaves the step out."""
        round = self._round_of_means()
        if round.scale == 1.0 and not round.travels_scaled:
            self._notices.nonfinite(slot, self._worker.sharers)

    def _round_of_means(self):
        """That of the means which come next."""
        return self._round

    def _note_changes(self, slots):
        """Which gradients somebody has written to, or put others in the place of, after they had left. Before the
        means are written there, or others stand in for them."""
        for slot in slots:
            source, slot.source = slot.source, None
            # An absent one lies elsewhere.
            if source is None or slot.flags & _native.ABSENT:
                continue
            if slot.param.grad is not source or slot.version not in (None, source._version):
                self._changed.append(slot)

    def _refuse_changes(self):
        changed, self._changed = self._changed, []
        if changed:
            raise round_notices.changed_in_flight(changed)

    def _refuse_frozen_here(self):
        frozen, self._frozen_here = self._frozen_here, []
        if frozen:
            raise round_notices.frozen_here_alone(frozen)
