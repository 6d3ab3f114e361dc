"""By how much automatic mixed precision has multiplied the gradients.

Residuals and momentum are kept in units of unscaled gradients, so the links must know the scale. A
program written for plain PyTorch does not tell; its GradScaler is found by looking for the one that
is alive and enabled.
"""

import gc
import math
import weakref

import torch

from ..errors import FailedPrecondition, InvalidArgument

AUTO = "auto"


class LossScale:
    """The scale of the backward pass that is running."""

    def __init__(self, scaler, needed):
        """`scaler` is a GradScaler, None for unscaled gradients, or AUTO. Nothing that remembers
        anything between steps (not `needed`) means that the scale cancels out."""
        self._search = needed and isinstance(scaler, str) and scaler == AUTO
        self._scaler = None
        self._fixed = None
        if needed and not isinstance(scaler, str) and scaler is not None:
            self._scaler = weakref.ref(scaler)

    def set(self, scale):
        """Says it by hand, for scaling that is not a GradScaler's; None takes it back."""
        if scale is not None and not (scale > 0 and math.isfinite(scale)):
            raise InvalidArgument(f"loss scale {scale} is not a positive finite number")
        self._fixed = scale

    def current(self):
        if self._fixed is not None:
            return self._fixed
        if self._search:
            self._find()
        scaler = self._scaler() if self._scaler else None
        if scaler is None or not scaler.is_enabled():
            return 1.0
        return float(scaler.get_scale())

    def _find(self):
        """Looks once, at the first pass: by then a program has made its scaler."""
        found = [o for o in gc.get_objects() if issubclass(type(o), _SCALER) and o.is_enabled()]
        if len(found) > 1:
            raise FailedPrecondition(
                f"{len(found)} GradScalers are alive, so it is unclear which one scales these gradients; "
                "pass DistributedOptimizer(..., scaler=the_one), or scaler=None for none"
            )
        self._search = False
        if found:
            self._scaler = weakref.ref(found[0])


_SCALER = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler
