"""Whether a program has written to weights that an exchange has left in its parameters."""

import torch

from .shards import local_of

# An integer of as many bytes: sums of those are the fastest that there are.
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class WrittenWeights:
    """What parameters held when note() was called, by a sum of their bits: whoever swaps others in, as to evaluate
    with averaged weights, and puts these back has written nothing. Of (name, parameter) pairs."""

    def __init__(self, named):
        self._named = list(named)
        self._noted = None

    def note(self):
        self._noted = [_sum_of_bits(param) for _, param in self._named]

    def forget(self):
        """Until note() is called nothing counts as written."""
        self._noted = None

    def names(self):
        """Of the parameters that hold other values; not of those that were given another type or size."""
        if self._noted is None:
            return []
        return [
            name
            for (name, param), (dtype, elements, bits) in zip(self._named, self._noted)
            if (param.dtype, param.numel()) == (dtype, elements) and _sum_of_bits(param)[2] != bits
        ]


def _sum_of_bits(tensor):
    """(type, elements, sum that wraps around)"""
    tensor = local_of(tensor)
    integer = _INTEGERS[tensor.element_size()]
    return tensor.dtype, tensor.numel(), tensor.detach().contiguous().view(integer).sum(dtype=integer).item()
