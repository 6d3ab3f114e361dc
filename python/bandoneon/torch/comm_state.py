"""Saved states of what is exchanged."""

from ..errors import InvalidArgument
from ..session import default_worker


class CommState:
    """The comm_state_dict() of an optimizer as torch.distributed.checkpoint takes it, which saves what
    two ranks have under one name only once: a Stateful, with this rank in its keys.

        state = {"model": model, "optimizer": optimizer, "comm": bdn.CommState(optimizer)}
        dcp.save(state, checkpoint_id=path)
        ...                            # In a new job, with the same model and optimizer:
        dcp.load(state, checkpoint_id=path)

    owner: anything with comm_state_dict() and load_comm_state_dict(), both collective here.

    Around LocalSteps and CSER every rank has a model and optimizer state of its own: there, put the rank
    into their names, too, f"model{rank}". get_optimizer_state_dict() and its like take a step where an
    optimizer has no state yet: give them `inner`, whose steps do not count.
    """

    def __init__(self, owner, *, worker=None):
        self._owner = owner
        self._key = f"rank{(worker or default_worker()).rank}"

    def state_dict(self):
        return {self._key: self._owner.comm_state_dict()}

    def load_state_dict(self, state_dict):
        if self._key not in state_dict:
            raise InvalidArgument(
                f"the state is of {', '.join(sorted(state_dict))}, and this is {self._key}; every rank "
                "saves and loads its own"
            )
        self._owner.load_comm_state_dict(state_dict[self._key])


def check_settings(state, settings):
    """InvalidArgument where a saved state's settings are others."""
    saved = state.get("settings", {})
    for name, mine in settings.items():
        if saved.get(name) != mine:
            raise InvalidArgument(
                f"the state was saved under {name}={saved.get(name)!r}, and here it is {name}={mine!r}"
            )
