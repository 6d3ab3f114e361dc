"""What a worker's contribution counts for in the mean."""

import math

from ..errors import InvalidArgument


class Weight:
    """`given` is a number, a function that is asked for it before each exchange, or None: every worker
    counts as one, whether it has anything to send or not."""

    def __init__(self, given=None, unit=1.0):
        """`unit`: what a weight of 1 is pushed with, as average_unit() has it."""
        if given is not None and not callable(given):
            given = _checked(given)
        self._given = given
        self._unit = unit
        self._samples = None  # where the program counts them

    def count_samples(self, samples):
        """This worker's part of what comes next is the mean of so many."""
        if self._given is not None:
            raise InvalidArgument(
                f"weight={self._given!r} says already what this worker's part of a step counts for, and so would "
                "TrainingState.count(): leave weight= out"
            )
        self._samples = _checked(samples)

    def now(self):
        """Of the exchange that begins. 0 adds nothing: it is sent as absent."""
        if self._samples is not None:
            return self._unit * self._samples
        if self._given is None:
            return self._unit
        return self._unit * (_checked(self._given()) if callable(self._given) else self._given)

    @property
    def out_of_data(self):
        """Of a worker that has run out of data while others go on."""
        return self._unit if self._given is None and self._samples is None else 0.0


def average_unit(average, worker):
    """The weight that a worker's part is pushed with where every worker counts as one. InvalidArgument where
    `average` says neither "after" nor "before"."""
    if average not in ("after", "before"):
        raise InvalidArgument(
            f"average={average!r} is neither 'after', which divides the sum of the workers' parts, nor 'before', which "
            "divides each part before they are added up"
        )
    return 1.0 / worker.sharers if average == "before" else 1.0


_LARGEST = 3.4028234663852886e38  # float32's


def _checked(weight):
    try:
        number = float(weight)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 <= number <= _LARGEST:
        raise InvalidArgument(
            f"weight={weight!r} is not a finite number, 0 or more: how many samples (or tokens) this worker's "
            "part of the step is the mean of"
        )
    return number
