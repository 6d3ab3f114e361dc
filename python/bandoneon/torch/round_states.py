"""The states of a round and of each parameter's slot in it, and the events that lead from one to another.

A round is one exchange of all tensors, which a backward pass opens. Nothing changes a state but by an event of these
two tables: `slot.state = PUSH[slot.state]`. An event in a state that has no way on is refused there and then.
"""

import enum

from ..errors import InternalError


class RoundState(str, enum.Enum):
    """How far a round has come."""

    IDLE = "Idle"  # It has not begun, or it is over.
    LOCAL = "Local"  # A pass runs that adds to this worker's own gradients, and of which nothing is exchanged.
    OPEN = "Open"  # Gradients leave as they come.
    LANDING = "Landing"  # All have left, the pass is over, and not all means have come.


class SlotState(str, enum.Enum):
    """How far one parameter has come in its round."""

    WAITING = "Waiting"  # Its gradient has not left.
    SENT = "Sent"  # Its gradient, or the word that there is none, leaves with the batch or is on its way.
    DEFERRED = "Deferred"  # As Sent; and the program has asked for the step, which is taken when the mean is there.
    MEAN = "Mean"  # Its exchange has ended, and param.grad holds the mean, where there is one.


class Event(dict):
    """What leads from one state to another: event[state] is the next state."""

    def __init__(self, name, ways):
        super().__init__(ways)
        self.name = name

    def __missing__(self, state):
        kind = "round" if isinstance(state, RoundState) else "slot"
        raise InternalError(
            f"{self.name!r} came to a {kind} in state {state.value}, and comes only to one in state "
            f"{', '.join(known.value for known in self)}: this is a mistake of bandoneon, please report it"
        )


def _table(**events):
    return {name: Event(name.replace("_", " "), ways) for name, ways in events.items()}


IDLE, LOCAL, OPEN, LANDING = RoundState
WAITING, SENT, DEFERRED, MEAN = SlotState

ROUND_EVENTS = _table(
    a_local_pass_begins={IDLE: LOCAL},
    # The pass of a Local or Open one broke off, where step() or join() answers the other workers all the same.
    it_is_opened={IDLE: OPEN, LOCAL: OPEN, OPEN: OPEN},
    it_is_left_in_flight={OPEN: LANDING},
    it_ends={LOCAL: IDLE, OPEN: IDLE, LANDING: IDLE},
)

SLOT_EVENTS = _table(
    # A slot that is not Waiting then is one of the round before, whose mean is still to come.
    a_round_opens={WAITING: WAITING, MEAN: WAITING, SENT: SENT, DEFERRED: DEFERRED},
    it_is_pushed={WAITING: SENT},
    its_push_is_refused={SENT: WAITING},
    its_step_is_deferred={SENT: DEFERRED},
    # A deferred step is taken by the means of several slots.
    its_exchange_ends={SENT: MEAN, DEFERRED: DEFERRED},
    its_step_is_taken={DEFERRED: WAITING},
    # To what is there in the gradient, which is a sum from then on.
    a_local_part_is_added={WAITING: WAITING, SENT: SENT, MEAN: WAITING},
    # An exchange of which nobody wants the result, or that ended in an error, leaves no mean.
    its_round_is_left={WAITING: WAITING, SENT: WAITING, MEAN: MEAN},
)
