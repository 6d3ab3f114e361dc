"""The hooks on parameters by which a synchronizer hears of gradients. They do not keep it alive, and cost nearly every
gradient of a training few calls: so they look at what slot and batch have precomputed, and ask it about the others."""

from .. import marks
from . import backward_pass
from .round_states import DEFERRED

# What Synchronizer._push() is given for a gradient whose accumulation still runs: hooks that the program has
# registered later may scale it, put another one in its place, or take it away.
AS_IT_IS_THEN = object()


def gradient_hook(reference, slot, batch):
    """Before a gradient is accumulated: what is full leaves, as the accumulation of the gradients before this one is
    over, with all hooks of theirs; and a mean that is still somewhere, or in flight, is seen to."""
    current_task = backward_pass.current_task

    def hook(_):
        if batch.is_full:
            synchronizer = reference()
            if synchronizer is not None and current_task() in synchronizer._round.tasks:
                synchronizer._send_batch()
        if slot.pending is not None or slot.state is DEFERRED:
            synchronizer = reference()
            if synchronizer is not None:
                synchronizer._on_gradient_in_flight(slot)
        if slot.mean is not None and slot.mean() is not None:
            synchronizer = reference()
            if synchronizer is not None:
                synchronizer._on_gradient(slot)

    return hook


def accumulation_hook(reference, slot, batch):
    """When a gradient has been accumulated. All that its synchronizer would ask before it leaves was asked when the
    round was opened, of nearly all gradients of a training."""
    current_task, clock = backward_pass.current_task, marks.clock

    def hook(_):
        synchronizer = reference()
        if synchronizer is None:
            return
        note_ready = synchronizer.note_ready
        if note_ready is not None:
            note_ready(clock() << 32 | slot.number)
        if slot.leaves_at_once and current_task() == batch.open_for:
            slot.fired = 1
            synchronizer._push(slot, AS_IT_IS_THEN)
        else:
            synchronizer._after_accumulation(slot)

    return hook


def forward_to(reference, method, slot):
    """A hook that calls a method of the synchronizer's with this slot."""

    def hook(*_):
        synchronizer = reference()
        if synchronizer is not None:
            method(synchronizer, slot)

    return hook
