"""overlap="forward": a round is in flight after its backward pass, until the next forward pass, or a reader of
gradients, awaits its means."""

import weakref

import torch

from .. import marks
from .forward_overlap import PendingGradient, outside_of_forward, read_too_early
from .round_parts import leave_slots
from .round_states import DEFERRED, IDLE, ROUND_EVENTS, SLOT_EVENTS
from .synchronizer import Synchronizer

_IS_LEFT_IN_FLIGHT = ROUND_EVENTS["it_is_left_in_flight"]
_ENDS = ROUND_EVENTS["it_ends"]
_IS_DEFERRED = SLOT_EVENTS["its_step_is_deferred"]
_IS_TAKEN = SLOT_EVENTS["its_step_is_taken"]


class DeferringSynchronizer(Synchronizer):
    """A Synchronizer whose rounds land after their passes. Where the program has asked for the step by then, with
    defer(), the next pass may open its round while that step is taken of one module after the other: so there are two
    rounds at most, one landing and one of the running pass."""

    _sends_what_is_awaited_alone = True

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self._forward_hooks = lambda: None  # weak reference: theirs is the deferred step
        self._landing = None  # the Round of which all has left, and not all has come
        self._num_deferred = 0  # slots whose step was deferred and not taken

    # ---- The model ----

    @property
    def forward_hooks(self):
        """The ForwardHooks, None once the model is gone."""
        return self._forward_hooks()

    def set_forward_hooks(self, hooks):
        """Keeps them no longer than the model does."""
        self._forward_hooks = weakref.ref(hooks)

    def close(self):
        super().close()
        if self.forward_hooks is not None:
            self.forward_hooks.remove()

    def slots_by_param(self):
        return {id(slot.param): slot for slot in self._slots}

    # ---- After the backward pass ----

    @property
    def has_deferred_step(self):
        return self._num_deferred > 0

    def defer(self, make_step):
        """Leaves the step on what is in flight for take_deferred(), to make_step(), a DeferredStep. The
        gradients are its own from now on. False where the program has looked at them, or put others there."""
        flying = [slot for slot in self._slots if slot.ticket is not None]
        if self._landing is None or self.has_deferred_step:
            return False
        if any(slot.param.grad is not slot.pending for slot in flying):  # Both are None of a frozen one.
            return False
        self.forward_hooks.step = make_step()
        self._num_deferred = len(flying)
        for slot in flying:
            slot.state = _IS_DEFERRED[slot.state]
            if slot.pending is not None:
                slot.param.grad = None
        return True

    def take_deferred(self, slots=None):
        if not self.has_deferred_step:
            return
        slots = [slot for slot in (self._slots if slots is None else slots) if slot.state is DEFERRED]
        if not slots:
            return  # Another module has read them, or this one has.
        for slot in slots:  # Which may have been given another type meanwhile, as by model.double().
            if slot.param.dtype != slot.member.dtype:
                slot.member.check(slot.param)
        with outside_of_forward(slot.param for slot in slots):
            self._collect(slots)
            hooks = self.forward_hooks
            if hooks is not None:
                begun = marks.glance()
                hooks.step.take([(slot.param, slot.deferred_grad) for slot in slots])
                if self._recorder is not None:
                    self._recorder.note_part_of_optimizer(begun)
        for slot in slots:
            slot.state = _IS_TAKEN[slot.state]
            slot.deferred_grad = None
        self._num_deferred -= len(slots)
        if self._num_deferred == 0:
            self._land()

    def settle(self):
        self.take_deferred()
        if self._landing is not None:
            with outside_of_forward(slot.param for slot in self._slots):
                self._collect(self._slots)
            self._land()

    def settle_early(self, why):
        """settle(), where awaiting everything at once is what overlap="forward" was to do without."""
        if self._landing is not None:
            self._notices.settled_early(why)
        self.settle()

    def _settle_for_reader(self):
        self.settle_early("they were read between backward() and step()")

    def _on_gradient_in_flight(self, slot):
        if slot.state is DEFERRED:
            raise read_too_early(slot.member.name)
        if slot.param.grad is slot.pending:
            self.settle_early("a second backward pass came before step()")

    # ---- Its rounds ----

    def _prepare_round(self):
        if self._landing is not None:
            if not self.has_deferred_step:
                self.settle()
            self._settle_attendance()
        return super()._prepare_round()

    @torch.no_grad()
    def _send_rest(self):
        self.take_deferred()  # Of modules that the forward pass left out.
        super()._send_rest()

    def _await_means(self):
        """Not in the pass."""
        self._note_changes(self._slots)
        settle = weakref.WeakMethod(self._settle_for_reader)
        for slot in self._slots:
            if slot.memory is not None:
                slot.pending = slot.param.grad = PendingGradient(slot.grad, settle)
        self._landing = self._round
        self._landing.state = _IS_LEFT_IN_FLIGHT[self._landing.state]
        self._note_exchange()
        self._begin_anew()
        if self._recorder is not None:
            self._recorder.end_backward()
        self._refuse_changes()

    def _round_of_means(self):
        return self._landing or self._round

    def _finish(self, slot, result):
        super()._finish(slot, result)
        if self._landing is not None:
            slot.clear()

    def _arrive(self, slot, mean):
        pending, slot.pending = slot.pending, None
        pending.arrive(mean, slot.param)
        if slot.state is DEFERRED:
            slot.deferred_grad = mean
        elif slot.param.grad is pending:
            slot.leave_mean(mean)
        else:  # It was thrown away, or replaced.
            slot.mean = None if mean is None else weakref.ref(mean)

    def _land(self):
        landing, self._landing = self._landing, None
        landing.state = _ENDS[landing.state]
        # Those whose exchange ended in an error have no mean, and none is to come.
        failed = [slot for slot in self._slots if slot.pending is not None and slot.ticket is None]
        leave_slots(failed)
        for slot in failed:
            slot.pending = None
        if self.forward_hooks is not None:
            self.forward_hooks.step = None
        if self._round.state is IDLE:  # Else what was told is of the next round.
            self._settle_attendance()
        self._refuse_frozen_here()
