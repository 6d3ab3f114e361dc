"""What a worker keeps of each parameter by itself, between steps."""

from ..errors import InvalidArgument
from .tensors import host_zeros


class LocalMemory:
    """Arrays of float32 in the memory of the host, zeros at first: one of each name for each member. What they
    come to in the mean over the workers stays where a state is loaded in another number of them (comm_state)."""

    def __init__(self, members, *names):
        self._members = members
        self._arrays = {}
        for name in names:
            self._arrays[name] = [host_zeros(m.shape) for m in members]

    def __getitem__(self, name):
        """Of all members, in their order: a list that may be written."""
        return self._arrays[name]

    def of(self, index):
        """{name: array} of one member."""
        return {name: arrays[index] for name, arrays in self._arrays.items()}

    def clear(self):
        for array in (array for arrays in self._arrays.values() for array in arrays):
            array.zero_()

    def state_dict(self):
        return {
            name: {m.name: array.clone() for m, array in zip(self._members, arrays)}
            for name, arrays in self._arrays.items()
        }

    def check(self, state):
        """InvalidArgument where a state_dict() is not of these members."""
        for name, arrays in self._arrays.items():
            for member, array in zip(self._members, arrays):
                saved = state.get(name, {}).get(member.name)
                if saved is None or saved.shape != array.shape:
                    what = "is not there" if saved is None else f"has the shape {list(saved.shape)}"
                    raise InvalidArgument(
                        f"the {name} of {member.name!r} in the state {what}, and the parameter has "
                        f"{list(array.shape)}; load a state of the same model",
                        tensor=member.name,
                    )

    def load_state_dict(self, state):
        """Takes up what check() has seen."""
        for name, arrays in self._arrays.items():
            for member, array in zip(self._members, arrays):
                array.copy_(state[name][member.name])
