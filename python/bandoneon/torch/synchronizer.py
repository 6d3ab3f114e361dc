"""Gradients leave as the backward pass makes them; the pass ends when their means have come back, or,
where a step is deferred, when all have left."""

import contextlib
import warnings
import weakref

import torch

from .. import _native
from ..errors import BandoneonError, DeadlineExceeded, FailedPrecondition, JobFailed
from ..worker import Push
from . import backward_pass, devices
from .forward_overlap import PendingGradient, outside_of_forward, read_too_early
from .loss_scale import overflow_as_half
from .tensors import copy_back, has_own_storage, memory_for, place, streams_for


# Gradients leave together when they are this many bytes: a call for each would cost small ones more than
# their exchange does.
_BATCH_BYTES = 256 << 10

# What _push() is given for a gradient whose accumulation still runs: hooks that the program has registered later
# may scale it, put another one in its place, or take it away.
AS_IT_IS_THEN = object()


class _Slot:
    """One parameter's part in the round of the running backward pass."""

    def __init__(self, member, is_awaited_alone):
        self.member = member
        self.param = member.param
        # Where all are awaited together, what comes first goes first: then workers whose gradients come at
        # different times still send in one order, and nothing waits at a server for its counterpart.
        priority = member.priority if is_awaited_alone else -member.priority
        # Made once, filled in each round; None of a parameter that is exchanged in slices.
        is_whole = member.tensor is not None
        self.push = Push(member.tensor, None, priority=priority) if is_whole else None
        self.num_bytes = member.elements * member.dtype.itemsize
        self.hooks = []  # on the parameter
        self.accumulation_hooks = []  # on what adds to its gradient, where that is a mean
        self.is_expected = False  # the gradient that is being added: it was announced
        # For good. A gradient leaves at once where one a pass is all that comes: once that was seen,
        # and as long as none came from an inner pass, which others may follow.
        self.seen_alone = False
        self.may_repeat = False
        self.mean = None  # weak reference to what the last round left in param.grad
        self.pending = None  # the PendingGradient of a mean that is awaited after the pass
        self.is_deferred = False  # its step is still to be taken
        self.deferred_grad = None  # which that step is taken on, once it has come
        self.clear_round()

    @property
    def holds_mean(self):
        """Whether param.grad holds means, so that it must not be pushed again. Not by its place alone: a
        program may put a gradient of its own there."""
        grad = self.param.grad
        return grad is not None and self.mean is not None and self.mean() is grad

    def leave_mean(self, grad):
        if self.param.grad is not grad:
            self.param.grad = grad
        self.mean = None if grad is None else weakref.ref(grad)

    def forget_mean(self):
        """What is local is added to it, and so all of param.grad must be pushed again."""
        self.mean = None

    def clear_round(self):
        self.fired = 0  # gradients accumulated in this pass
        self.earlier = None  # means of earlier passes, to which this pass's is added
        self.sent = False
        self.ticket = None  # of the exchange in flight, once it has left
        self.flags = 0  # of its push
        self.grad = None  # what is pushed, and where the mean goes
        self.stream = None  # of a GPU: that in which it was made, which may not be the one that sends it
        self.memory = None  # that C reads and writes for it
        self.source = None  # what param.grad was when it left
        self.version = 0  # of the source, then: torch counts what is written to it
        if self.push is not None:
            self.push.keep = None

    @property
    def leaves_at_once(self):
        return self.seen_alone and not self.may_repeat

    @property
    def is_being_written(self):
        """Whether a mean is on its way into the memory of param.grad."""
        return self.ticket is not None and self.memory is not None and self.memory is self.param.grad

    def remove_hooks(self):
        backward_pass.remove(self.hooks)
        backward_pass.remove(self.accumulation_hooks)


class _Batch:
    """Slots whose gradients leave together. Known to the parameters' hooks, which are to make few calls."""

    def __init__(self):
        self.slots = []
        self.num_bytes = 0
        self.is_full = False  # so it leaves when the hooks of what was accumulated last have run


class Synchronizer:
    """The hooks on the parameters of a ParameterSet. One backward pass is one round: every tensor is
    pushed exactly once in it by every worker, if only to say that there is no gradient.

    A round is awaited at the end of its pass, or, with defer(), is in flight from then until settle() or
    the last take_deferred().

    Used by one thread at a time, the one that autograd runs on.
    """

    def __init__(
        self, parameters, loss_scale, weight, rates, overlap=True, timeout=None, passes_per_round=1
    ):
        """`weight` is a Weight; rates() is {id(parameter): learning rate}. overlap: False, "backward" or
        "forward"."""
        self._parameters = parameters
        self._worker = parameters.worker
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
        self._has_local_part = False  # gradients of no_sync() passes that no round has exchanged
        self.attendance = None  # that each round is told to, within join()
        # Of what is awaited after the pass:
        self._forward_hooks = lambda: None  # weak reference: theirs is the deferred step
        self._is_in_flight = False  # all has left, and not all has come
        self._num_deferred = 0  # slots whose step was deferred and not taken
        self._has_warned = False
        self._has_warned_of_taken = False
        self._has_warned_of_local_part = False
        self._has_warned_of_nonfinite = False
        # Of the running round:
        self._active = False
        self._batch = _Batch()
        self._is_given_up = False  # its results are not wanted
        self._has_failed = False  # its last round ended in an error
        self._is_local = False  # the pass that runs only adds to the local gradients
        self._outermost = None  # number of its pass, once known
        self._tasks = set()  # it and the passes inside it
        self._scale = 1.0
        self._travels_scaled = False
        self._weight = 1.0
        self._rates = {}
        self._changed = []  # slots whose gradients were changed after they had left
        self._frozen_here = []  # slots of frozen parameters that others have a gradient of
        self._given_up_at = None  # steps that had ended when a round was given up

    # ---- Membership ----

    def add(self, members):
        self._slots += [_Slot(member, self._overlap == "forward") for member in members]
        self._hook_new_slots()

    @property
    def is_closed(self):
        return self._closed

    def close(self):
        """Takes the hooks away; the parameters' gradients stay local from now on."""
        self._closed = True
        self._worker.note_good_round(self)  # Nothing more is exchanged that could mend it.
        if self.forward_hooks is not None:
            self.forward_hooks.remove()
        for slot in self._slots:
            slot.remove_hooks()

    @contextlib.contextmanager
    def no_sync(self):
        before, self._enabled = self._enabled, False
        try:
            yield
        finally:
            self._enabled = before

    def answer_round(self):
        """Takes part in a round of the others, without gradients of this worker."""
        self.forget_pass()
        self._begin_round(self._weights.out_of_data)
        self._end_round()

    def synchronize(self):
        """Ends a round that is running, or that still lacks passes."""
        self.settle()
        if self._active or self._local_passes:
            self._end_round()

    # ---- Around the optimizer's step ----

    def before_step(self):
        """Makes up for a round that no backward pass has run or ended: a worker whose batch gave no
        gradients at all still owes the others its word."""
        if self._closed:
            return
        self.settle()
        # A step that was left out, as by a GradScaler, leaves gradients that are thrown away in the end.
        has_gradients = self._had_pass and any(s.param.grad is not None for s in self._slots)
        if self._local_passes and self._loss_scale.current() != 1.0:
            raise FailedPrecondition(
                f"step() came after {self._local_passes} of {self._passes_per_round} backward passes, and "
                "their gradients may be unscaled by now; call synchronize() before unscale_() and step()"
            )
        if self._active or self._local_passes or not has_gradients:
            self._end_round()
        elif self._has_local_part:
            self._warn_of_local_part()

    def let_go_of_gradients(self):
        """Those of a pass that broke off, whose means are still to be written to them: zeros would be, too."""
        for slot in self._slots:
            if slot.is_being_written:
                slot.param.grad = None

    def forget_pass(self):
        """Its gradients were stepped on or thrown away; the next step needs others."""
        self._had_pass = self._has_local_part = False
        self._local_passes = 0

    # ---- After the backward pass ----

    @property
    def forward_hooks(self):
        """The ForwardHooks, None once the model is gone and where nothing is deferred."""
        return self._forward_hooks()

    def set_forward_hooks(self, hooks):
        """Keeps them no longer than the model does."""
        self._forward_hooks = weakref.ref(hooks)

    @property
    def has_deferred_step(self):
        return self._num_deferred > 0

    def slots_by_param(self):
        return {id(slot.param): slot for slot in self._slots}

    def defer(self, make_step):
        """Leaves the step on what is in flight for take_deferred(), to make_step(), a DeferredStep. The
        gradients are its own from now on. False where the program has looked at them, or put others there."""
        flying = [slot for slot in self._slots if slot.ticket is not None]
        if not self._is_in_flight or self.has_deferred_step:
            return False
        if any(slot.pending is not None and slot.param.grad is not slot.pending for slot in flying):
            return False
        self.forward_hooks.step = make_step()
        self._num_deferred = len(flying)
        for slot in flying:
            slot.is_deferred = True
            if slot.pending is not None:
                slot.param.grad = None
        return True

    def take_deferred(self, slots=None):
        """Awaits the means of these slots, or of all, and takes the step that was deferred of them."""
        if not self.has_deferred_step:
            return
        slots = [slot for slot in (self._slots if slots is None else slots) if slot.is_deferred]
        if not slots:
            return  # Another module has read them, or this one has.
        for slot in slots:  # Which may have been given another type meanwhile, as by model.double().
            if slot.param.dtype != slot.member.dtype:
                slot.member.check(slot.param)
        with outside_of_forward(slot.param for slot in slots):
            self._collect(slots)
            hooks = self.forward_hooks
            if hooks is not None:
                hooks.step.take([(slot.param, slot.deferred_grad) for slot in slots])
        for slot in slots:
            slot.is_deferred = False
            slot.deferred_grad = None
        self._num_deferred -= len(slots)
        if self._num_deferred == 0:
            self._land()

    def settle(self):
        """Awaits what is in flight: means are in the gradients, or, of a deferred step, stepped on."""
        self.take_deferred()
        if self._is_in_flight:
            with outside_of_forward(slot.param for slot in self._slots):
                self._collect(self._slots)
            self._land()

    def settle_early(self, why):
        """settle(), where awaiting everything at once is what overlap="forward" was to do without."""
        if self._is_in_flight and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"overlap='forward' awaits gradients in the next forward pass, but {why}, so all were awaited "
                "there and then: such a step takes as long as with overlap='backward'",
                RuntimeWarning,
                stacklevel=2,
            )
        self.settle()

    def _settle_for_reader(self):
        self.settle_early("they were read between backward() and step()")

    def _leave_in_flight(self):
        self._note_changes(self._slots)
        settle = weakref.WeakMethod(self._settle_for_reader)
        for slot in self._slots:
            if slot.memory is not None:
                slot.pending = slot.param.grad = PendingGradient(slot.grad, settle)
        self._is_in_flight = True
        self._had_pass = True
        self._has_local_part = False
        self._local_passes = 0
        self._leave_pass()
        self._refuse_changes()

    def _arrive(self, slot, mean):
        pending, slot.pending = slot.pending, None
        pending.arrive(mean, slot.param)
        if slot.is_deferred:
            slot.deferred_grad = mean
        elif slot.param.grad is pending:
            slot.leave_mean(mean)  # Else it was thrown away.

    def _land(self):
        self._is_in_flight = False
        if self.forward_hooks is not None:
            self.forward_hooks.step = None
        if not self._active:  # Else what was told is of the next round.
            self._settle_attendance()
        self._refuse_frozen_here()

    # ---- In the backward pass ----

    def _hook_new_slots(self):
        """Also finds parameters that were frozen before: a frozen one cannot be hooked."""
        itself = weakref.ref(self)
        for slot in self._slots:
            if slot.hooks or not slot.param.requires_grad or self._closed:
                continue
            slot.hooks = [
                slot.param.register_hook(_gradient_hook(itself, slot, self._batch)),
                slot.param.register_post_accumulate_grad_hook(_accumulation_hook(itself, slot)),
            ]

    def _on_gradient(self, slot):
        """For a slot that may hold a mean. Begins nothing yet: torch.autograd.grad(), too, comes here. What is
        added to a mean must be kept apart from it, and so be known of before; any other will be heard of
        when it is there."""
        if slot.holds_mean:
            backward_pass.remove(slot.accumulation_hooks)
            slot.accumulation_hooks = backward_pass.before_accumulation(
                slot.param, _forward_to(weakref.ref(self), Synchronizer._expect, slot)
            )

    def _on_gradient_in_flight(self, slot):
        if slot.is_deferred:
            raise read_too_early(slot.member.name)
        if slot.param.grad is slot.pending:
            self.settle_early("a second backward pass came before step()")

    def _expect(self, slot):
        self._before_accumulation(slot)
        slot.is_expected = True

    def _before_accumulation(self, slot):
        if not self._enabled:
            self._had_pass = self._has_local_part = True
            slot.forget_mean()
            return
        self._enter_round(slot)
        if self._is_local:
            slot.forget_mean()
            return
        if slot.sent:
            raise FailedPrecondition(
                f"{slot.member.name!r} got a second gradient in one backward pass after its first was "
                "on its way, as it never did before (reentrant checkpointing that comes and goes); "
                "construct DistributedOptimizer(..., overlap=False)",
                tensor=slot.member.name,
            )
        slot.fired += 1
        if slot.fired > 1:
            slot.may_repeat = True
        elif slot.holds_mean:
            slot.earlier, slot.param.grad = slot.param.grad, None

    def _after_accumulation(self, slot):
        if not slot.is_expected:
            self._before_accumulation(slot)
        slot.is_expected = False
        if self._enabled and not self._is_local and self._overlap and slot.leaves_at_once:
            self._push(slot, AS_IT_IS_THEN)

    def _enter_round(self, slot):
        task = backward_pass.current_task()
        if task == self._outermost:
            return
        function = backward_pass.outermost_node()
        if function is not None:
            slot.may_repeat = True
        if task in self._tasks:
            return
        if self._active and function is None and self._outermost is not None:
            self._abandon_round()
        if not self._active:
            self._is_local = self._local_passes + 1 < self._passes_per_round
            self._begin_round()
        self._tasks.add(task)
        if function is None:
            self._reach_outermost(task)
        elif self._outermost is None:
            backward_pass.when_pass_resumes_after(
                function, lambda: self._reach_outermost(backward_pass.current_task())
            )

    def _reach_outermost(self, task):
        if self._active and self._outermost is None:
            self._outermost = task
            # After what the program has put at the end of this pass, which may change gradients, too.
            backward_pass.at_end_of_pass(lambda: backward_pass.at_end_of_pass(self._finish_pass))

    def _finish_pass(self):
        """Waits only after every optimizer that has part in the pass has sent what it owes: another
        worker may wait for theirs before it comes to this one."""
        if self._is_local:
            self._local_passes += 1
            self._had_pass = True
            self._leave_round()
            return
        self._send_rest()
        if self._overlap == "forward":
            self._leave_in_flight()
        else:
            backward_pass.at_end_of_pass(self._end_round)

    # ---- The round ----

    def _begin_round(self, weight=None):
        if self._is_in_flight:
            if not self.has_deferred_step:
                self.settle()
            self._settle_attendance()
        self._scale = self._loss_scale.current()
        self._travels_scaled = self._loss_scale.travels
        if not self._is_local:
            self._weight = self._weights.now() if weight is None else weight
        self._rates = self._rates_now()
        self._active = True
        if self.attendance is not None and not self._is_local:
            self.attendance.tell_present()

    @torch.no_grad()
    def _end_round(self):
        """Sends what has not been sent, then waits for everything."""
        if not self._active or self._is_local:
            self._is_local = False
            self._begin_round()
        self._send_rest()
        self._collect(self._slots)
        self._settle_attendance()
        self._had_pass = True
        self._has_local_part = False
        self._local_passes = 0
        self._leave_round()
        self._refuse_changes()
        self._refuse_frozen_here()

    @torch.no_grad()
    def _send_rest(self):
        self.take_deferred()  # Of modules that the forward pass left out.
        for slot in self._slots:
            if not slot.sent:
                self._push_rest(slot)
        self._send_batch()

    def _abandon_round(self):
        """A backward pass broke off and the program went on: the others still get their round."""
        if self._is_local:  # In which they have no part.
            self._leave_round()
            return
        self.take_deferred()
        self._is_given_up = True
        self._given_up_at = self._parameters.step_count.ended
        for slot in self._slots:
            if not slot.sent:
                self._push(slot, None, _native.ABSENT)
        self._send_batch()
        written = [slot for slot in self._slots if slot.is_being_written]
        self._collect(self._slots, is_wanted=False)
        self._settle_attendance()
        self._local_passes = 0
        self._leave_round()
        if written:
            raise FailedPrecondition(
                f"a backward pass broke off when the gradient of {written[0].member.name!r} was on its way, and this "
                "pass adds to it, where a mean lies by now that is nobody's; call optimizer.zero_grad() after a "
                "backward() that has failed",
                tensor=written[0].member.name,
            )

    def _settle_attendance(self):
        if self.attendance is not None:
            self.attendance.settle()

    def _leave_round(self):
        for slot in self._slots:
            if not slot.is_deferred:
                slot.clear_round()
        self._leave_pass()

    def _leave_pass(self):
        self._active = False
        self._is_given_up = False
        self._is_local = False
        self._outermost = None
        self._tasks.clear()
        self._hook_new_slots()

    def _push_rest(self, slot):
        grad = slot.param.grad
        if not slot.param.requires_grad:
            self._push(slot, None, _native.ABSENT)
        elif grad is not None and (slot.fired or not slot.holds_mean):
            self._push(slot, grad)
        else:
            if slot.fired and grad is None:
                self._warn_of_taken(slot)
            if slot.earlier is None:
                slot.earlier, slot.param.grad = grad, None
            self._push(slot, _zeros_for(slot), _native.ABSENT)

    def _push(self, slot, grad, flags=0):
        """With the batch, which leaves when it is large enough and the next gradient comes: then no hook of the
        program's is still to change what is in it."""
        batch = self._batch
        if batch.is_full:
            self._send_batch()
        slot.sent = True
        slot.grad = grad
        slot.flags = flags
        if devices.ARE_HERE:
            slot.stream = devices.stream_of(slot.param)
        batch.slots.append(slot)
        batch.num_bytes += slot.num_bytes
        batch.is_full = batch.num_bytes >= _BATCH_BYTES

    def _take_gradient(self, slot):
        """What leaves of it, now that it does: in a hook of another gradient, whose stream may be another."""
        if slot.stream is not None:
            devices.follow(slot.param, slot.stream)
        if slot.grad is AS_IT_IS_THEN:
            slot.grad = None if self._is_given_up else slot.param.grad
            if slot.grad is None:
                self._take_none(slot)
        if slot.grad is None:
            return
        slot.source = slot.grad
        slot.grad = self._parameters.dense(slot.member, slot.grad)
        if self._travels_scaled and slot.member.options.clips_as_half:
            # Members of a local group add theirs up before they are sent.
            overflow_as_half(slot.grad, self._weight * (self._parameters.group_size or 1))
        try:
            slot.version = slot.source._version
        except RuntimeError:  # Of inference tensors torch does not count what is written to them.
            slot.source = None

    def _trust_version(self, slot):
        """Not where the gradient's memory is part of a larger one, whose parts' writes torch counts together."""
        if slot.source is not None and not has_own_storage(slot.source):
            slot.version = None

    def _take_none(self, slot):
        """Where hooks have taken the gradient away. There may be one elsewhere."""
        slot.flags = _native.ABSENT
        if not self._is_given_up:
            self._warn_of_taken(slot)
            slot.grad = _zeros_for(slot)

    def _warn_of_taken(self, slot):
        if self._has_warned_of_taken:
            return
        self._has_warned_of_taken = True
        warnings.warn(
            f"a hook has set the gradient of {slot.member.name!r} to None during backward(), so this worker has none "
            "to exchange and counts as one without it. If that hook takes steps, or keeps gradients elsewhere, they "
            "are this worker's own and the replicas will differ: do both after backward() instead",
            RuntimeWarning,
            stacklevel=2,
        )

    def _warn_of_local_part(self):
        if self._has_warned_of_local_part:
            return
        self._has_warned_of_local_part = True
        warnings.warn(
            "step() comes after a backward pass under no_sync() that none outside of it followed, so it steps by what is "
            "this worker's own in the gradients, as under DDP, and the replicas come apart: leave no_sync() before the "
            "last backward() of each step",
            RuntimeWarning,
            stacklevel=2,
        )

    def _warn_of_nonfinite(self, slot):
        """Not of scaled gradients, whose scaler finds out by itself and leaves the step out."""
        if self._has_warned_of_nonfinite or self._scale != 1.0 or self._travels_scaled:
            return
        self._has_warned_of_nonfinite = True
        size = self._worker.size
        warnings.warn(
            f"the mean of the gradients of {slot.member.name!r} is NaN in all workers: either one of theirs was not "
            f"finite, or the sum of {size} workers overflowed though each was; average='before' of "
            "DistributedOptimizer keeps the sum from that",
            RuntimeWarning,
            stacklevel=2,
        )

    def _send_batch(self):
        batch, self._batch.slots = self._batch.slots, []
        self._batch.num_bytes, self._batch.is_full = 0, False
        if not batch:
            return
        error = self._fill_pushes(batch)
        tickets, refused = self._worker.push_all([slot.push for slot in batch if slot.sent])
        for slot, ticket in zip(batch, tickets):
            slot.ticket = ticket
        if error is not None or refused is not None:
            for slot in batch[len(tickets) :]:
                slot.sent = False
            raise self._with_what_was_given_up(error or refused)

    @torch.no_grad()
    def _fill_pushes(self, batch):
        """The error of the first that cannot be exchanged; it and those behind it are not sent then."""
        program_steps = self._parameters.step_count.program_steps
        try:
            for done, slot in enumerate(batch):
                self._take_gradient(slot)
                memory = None if slot.grad is None else memory_for(slot.grad)
                if memory is not slot.source and slot.source is not None:
                    self._trust_version(slot)
                slot.memory = memory
                push = slot.push
                push.keep = memory
                push.data = None if memory is None else memory.data_ptr()
                if devices.ARE_HERE:
                    place(push, memory)
                push.flags = slot.flags if self._weight else _native.ABSENT
                push.weight = self._weight
                push.loss_scale = self._scale
                push.learning_rate = self._rates.get(id(slot.param), 0.0)
                push.program_steps = program_steps
        except BaseException as error:
            for slot in batch[done:]:
                slot.sent = False
            return error
        return None

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
            error = self._with_what_was_given_up(error)
            if not isinstance(error, JobFailed):  # Which leaving will say, too.
                self._has_failed = True
                self._worker.note_failed_round(self, error)
            raise error
        if is_wanted and self._has_failed:
            self._has_failed = False
            self._worker.note_good_round(self)

    def _with_what_was_given_up(self, error):
        """The error, or where none of this worker's steps has ended since a pass of it broke off, one that says so:
        the others may have taken that step."""
        taken = self._parameters.step_count.ended - self.has_deferred_step
        if self._given_up_at != taken or not isinstance(error, BandoneonError):
            return error
        facts = {fact: getattr(error, fact) for fact in ("code", "tensor", "step", "stage", "waiting_for")}
        return type(error)(
            f"{error}. In this worker backward() of step {self._given_up_at + 1} has failed, and the step was left out: "
            "after an error of backward() all workers leave the same step out, or the job goes on from a checkpoint",
            **facts,
        )

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
            raise _changed_in_flight(changed)

    def _refuse_frozen_here(self):
        frozen, self._frozen_here = self._frozen_here, []
        if frozen:
            raise _frozen_here_alone(frozen)

    def _finish(self, slot, result):
        if slot.fired == 1:
            slot.seen_alone = True
        if result.nonfinite:
            self._warn_of_nonfinite(slot)
        mean = slot.earlier
        if slot.memory is not None and not result.absent:
            copy_back(slot.memory, slot.grad)
            mean = slot.grad if slot.earlier is None else slot.earlier.add_(slot.grad)
        if slot.pending is not None:
            self._arrive(slot, mean)
        elif slot.memory is None and not result.absent:
            self._frozen_here.append(slot)
        elif slot.memory is not None:
            slot.leave_mean(mean)
        if self._is_in_flight:
            slot.clear_round()


def _zeros_for(slot):
    return torch.zeros_like(slot.param, requires_grad=False)


def _changed_in_flight(slots):
    name = slots[0].member.name
    others = f" and {len(slots) - 1} others" if len(slots) > 1 else ""
    return FailedPrecondition(
        f"the gradient of {name!r}{others} was changed, or replaced, during backward() after it had been accumulated "
        "and was on its way to the other workers, so the mean lacks that change. Change it in a hook of the "
        "parameter (register_post_accumulate_grad_hook), which runs before it leaves, or construct "
        "DistributedOptimizer(..., overlap=False), which sends gradients when the pass is over",
        tensor=name,
    )


def _frozen_here_alone(slots):
    name = slots[0].member.name
    others = f" and {len(slots) - 1} others" if len(slots) > 1 else ""
    return FailedPrecondition(
        f"{name!r}{others} requires no gradient in this worker, and another worker has one of it: that worker would step "
        "it and this one would not. Freeze and thaw parameters (requires_grad) in all workers alike",
        tensor=name,
    )


def _gradient_hook(reference, slot, batch):
    """_on_gradient(), where there is something to do: a mean that is still somewhere, or in flight; and what is
    full leaves, as the accumulation of the gradients before this one is over, with all hooks of theirs."""

    def hook(_):
        if batch.is_full:
            synchronizer = reference()
            if synchronizer is not None and backward_pass.current_task() in synchronizer._tasks:
                synchronizer._send_batch()
        if slot.pending is not None or slot.is_deferred:
            synchronizer = reference()
            if synchronizer is not None:
                synchronizer._on_gradient_in_flight(slot)
        if slot.mean is not None and slot.mean() is not None:
            synchronizer = reference()
            if synchronizer is not None:
                synchronizer._on_gradient(slot)

    return hook


def _accumulation_hook(reference, slot):
    """_after_accumulation(), and what comes of it for nearly all gradients of a training without all of its
    questions: it is the only one of its parameter in a round that runs, and leaves at once."""
    current_task = backward_pass.current_task

    def hook(param):
        synchronizer = reference()
        if synchronizer is None:
            return
        if (
            not slot.seen_alone
            or slot.may_repeat
            or slot.fired
            or slot.sent
            or slot.is_expected
            or current_task() != synchronizer._outermost
            or not synchronizer._enabled
            or synchronizer._is_local
            or not synchronizer._overlap
            or (slot.mean is not None and slot.mean() is not None)
        ):
            synchronizer._after_accumulation(slot)
            return
        slot.fired = 1
        synchronizer._push(slot, AS_IT_IS_THEN)

    return hook


def _forward_to(reference, method, slot):
    """A hook that does not keep its synchronizer alive."""

    def hook(*_):
        synchronizer = reference()
        if synchronizer is not None:
            method(synchronizer, slot)

    return hook
