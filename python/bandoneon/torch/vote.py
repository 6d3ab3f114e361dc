"""Whether a step is taken, by all workers or by none."""

import torch

from ..worker import Declaration
from .exchange_guard import ExchangeGuard
from .tensors import host_values

_LARGEST = torch.finfo(torch.float32).max


class Vote:
    """A question that all workers answer together. `owner` as Worker.declare's."""

    def __init__(self, worker, name, owner, timeout=None):
        self._worker = worker
        self._timeout = timeout
        self._exchange_guard = ExchangeGuard()
        (self._tensor,) = worker.declare([Declaration(name, 1)], owner=owner)

    def all_finite(self, tensors, weight=1.0):
        """Whether no worker's tensors, times its weight, hold NaN, infinity, or values so large that a sum
        over the workers might overflow. Collective. After DeadlineExceeded nobody votes here any more."""
        limit = _LARGEST / (4 * self._worker.size)
        norms = torch._foreach_norm(tensors, float("inf")) if tensors else []
        refuses = not all(norm.item() * weight <= limit for norm in norms)
        ballot = host_values([float(refuses)])
        with self._exchange_guard.exchange():
            ticket = self._worker.push(self._tensor, ballot.data_ptr(), keep=ballot)
            self._worker.wait(ticket, self._timeout)
        return ballot.item() == 0
