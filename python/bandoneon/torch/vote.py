"""Whether a step is taken, by all workers or by none."""

import zlib

from typing import NamedTuple

import torch

from ..calls import Declaration
from ..errors import FailedPrecondition
from .exchange_guard import ExchangeGuard
from .tensors import host_values

# A worker's ballot: whether it refuses, a hash that must be all workers' own: a whole number so small that a
# mean of it, which nobody's differs from, is exact to less than a quarter; and whether it asks.
_BALLOT = 3
_LARGEST = torch.finfo(torch.float32).max


class Verdict(NamedTuple):
    """The same in all workers."""

    all_finite: bool
    is_asked: bool  # whether any worker asked


class Vote:
    """A question that all workers answer together. `owner` is the reference of a ParameterSet, which it is
    closed with; `step_count` is the optimizer's."""

    def __init__(self, worker, name, owner, step_count, timeout=None):
        self._worker = worker
        self._step_count = step_count
        self._timeout = timeout
        self._exchange_guard = ExchangeGuard(worker, owner)
        self._owner = owner
        (self._tensor,) = worker.declare([Declaration(name, _BALLOT)], owner=owner)

    def all_finite(self, tensors, weight=1.0, alike=None):
        """take(), of which no worker asks for more."""
        return self.take(tensors, weight, alike).all_finite

    def is_fit(self, tensors, weight=1.0):
        """Whether this worker's tensors have no such values."""
        limit = _LARGEST / (4 * self._worker.size)
        on_host = [t for t in tensors if t.is_cpu and t.dtype is torch.float32 and t.numel()]
        others = [t for t in tensors if not (t.is_cpu and t.dtype is torch.float32)]
        # One pass by vectors where there is one; norms take twenty times as long on the host, and fewer calls on a GPU.
        bounds = [bound for t in on_host for bound in torch.aminmax(t)]
        bounds += torch._foreach_norm(others, float("inf")) if others else []
        return all(abs(bound.item()) * weight <= limit for bound in bounds)

    def take(self, tensors, weight=1.0, alike=None, asks=False):
        """Whether no worker's tensors, times its weight, hold NaN, infinity, or values so large that a sum
        over the workers might overflow. Collective. After DeadlineExceeded nobody votes here any more.

        alike: (what it is, the value, what to do) of what must be the same in all workers; FailedPrecondition where
        another worker's is not this one's.
        asks: whether this worker asks for what only all can do together."""
        self._owner().check_exchanges()
        refuses = not self.is_fit(tensors, weight)
        own = zlib.crc32(repr(alike).encode()) & 0xFFFF
        ballot = host_values([float(refuses), float(own), float(asks)])
        with self._exchange_guard.exchange():
            ticket = self._worker.push(
                self._tensor, ballot.data_ptr(), keep=ballot, program_steps=self._step_count.program_steps
            )
            self._worker.wait(ticket, self._timeout)
        refused, mean, asked = ballot.tolist()
        if abs(mean - own) > 0.25:
            what, value, remedy = alike
            raise FailedPrecondition(
                f"the {what} of this worker at this step are not those of all others: {value!r} here. {remedy}"
            )
        return Verdict(refused == 0, asked > 0)
