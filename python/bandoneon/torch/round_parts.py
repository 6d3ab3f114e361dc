"""What a round is made of: the round itself, a slot for each parameter, and the batch in which gradients leave."""

import weakref

from .._native import NO_TENSOR
from ..calls import Push
from . import backward_pass
from .round_states import DEFERRED, IDLE, SLOT_EVENTS, WAITING
from .shards import is_shard

_OPENS = SLOT_EVENTS["a_round_opens"]
_ADDED_TO = SLOT_EVENTS["a_local_part_is_added"]
_IS_LEFT = SLOT_EVENTS["its_round_is_left"]


class Round:
    """One exchange of all tensors, from the backward pass that opens it to the last mean; or a pass that exchanges
    nothing."""

    def __init__(self):
        self.state = IDLE
        self.is_given_up = False  # Its results are not wanted.
        self.outermost = None  # number of its pass, once known
        self.tasks = set()  # it and the passes inside it
        # These are as they were when it began:
        self.scale = 1.0  # of the loss
        self.travels_scaled = False
        self.weight = 1.0
        self.rates = {}  # {id(parameter): learning rate}


class Slot:
    """One parameter's part in the round of the running backward pass."""

    def __init__(self, member, is_awaited_alone):
        self.param = member.param
        self.is_shard = is_shard(member.param)
        self._is_awaited_alone = is_awaited_alone
        self.take(member)
        self.num_bytes = member.elements * member.dtype.itemsize
        self.hooks = []  # on the parameter
        self.accumulation_hooks = []  # on what adds to its gradient, where that is a mean
        # For good. A gradient leaves at once where one a pass is all that comes: once that was seen,
        # and as long as none came from an inner pass, which others may follow.
        self.seen_alone = False
        self.may_repeat = False
        self.mean = None  # weak reference to what the last round left in param.grad
        self.pending = None  # the PendingGradient of a mean that is awaited after the pass
        self.deferred_grad = None  # which a deferred step is taken on, once it has come
        self.expected_in = None  # the pass that has announced the gradient which it adds next
        # What the hook of nearly every gradient asks: whether the next one that comes in this round, in its outermost
        # pass, is the only one and leaves when it is there. Set as the round opens, and gone with the first gradient.
        self.leaves_at_once = False
        self.state = WAITING
        self.clear()

    def take(self, member):
        """The parameter is declared as this member."""
        self.member = member
        # Where all are awaited together, what comes first goes first: then workers whose gradients come at
        # different times still send in one order, and nothing waits at a server for its counterpart.
        priority = member.priority if self._is_awaited_alone else -member.priority
        # Made once, filled in each round; None of a parameter that is exchanged in slices.
        is_whole = member.tensor is not None
        self.push = Push(member.tensor, None, priority=priority) if is_whole else None
        self.number = member.tensor if is_whole else NO_TENSOR  # of its tensor, or of the first of its slices

    def clear(self):
        self.fired = 0  # gradients accumulated in this pass
        self.earlier = None  # means of earlier passes, to which this pass's is added
        self.ticket = None  # of the exchange in flight, once it has left
        self.flags = 0  # of its push
        self.grad = None  # what is pushed, and where the mean goes
        self.whole = None  # the DTensor of which that is this worker's part
        self.stream = None  # of a GPU: that in which it was made, which may not be the one that sends it
        self.memory = None  # that C reads and writes for it
        self.source = None  # what param.grad was when it left
        self.version = 0  # of the source, then: torch counts what is written to it
        if self.push is not None:
            self.push.keep = None

    def forget_mean(self):
        """What is local is added to it, and so all of param.grad must be pushed again."""
        self.state = _ADDED_TO[self.state]
        self.mean = None

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

    @property
    def is_being_written(self):
        """Whether a mean is on its way into the memory of param.grad."""
        return self.ticket is not None and self.memory is not None and self.memory is self.param.grad

    def remove_hooks(self):
        backward_pass.remove(self.hooks)
        backward_pass.remove(self.accumulation_hooks)


class Batch:
    """Slots whose gradients leave together. Known to the parameters' hooks, which are to make few calls."""

    def __init__(self):
        self.slots = []
        self.num_bytes = 0
        self.is_full = False  # so it leaves when the hooks of what was accumulated last have run
        # Number of the pass whose gradients may be added to it as they come; None where no pass's may.
        self.open_for = None

    def take_all(self):
        slots, self.slots = self.slots, []
        self.num_bytes, self.is_full = 0, False
        return slots


def open_slots(slots, is_sent_at_once):
    """A round opens for these. `is_sent_at_once`: whether it lets gradients leave before its pass has ended."""
    for slot in slots:
        state = slot.state = _OPENS[slot.state]
        slot.leaves_at_once = (
            is_sent_at_once
            and slot.seen_alone
            and not slot.may_repeat
            and state is WAITING
            and (slot.mean is None or slot.mean() is None)
        )


def leave_slots(slots):
    """The round of these is over, or given up. A deferred step is one of the round before."""
    for slot in slots:
        if slot.state is DEFERRED:
            continue
        slot.state = _IS_LEFT[slot.state]
        slot.leaves_at_once = False
        slot.clear()
