"""By how much automatic mixed precision has multiplied the gradients.

Residuals and momentum are kept in units of unscaled gradients, so the links must know the scale. A
program written for plain PyTorch does not tell; its GradScaler is found by looking for the one that
is alive and enabled.
"""

import math
import weakref

import torch

from ..errors import FailedPrecondition, InvalidArgument, Unimplemented
from .link_options import LARGEST_HALF
from .torch_internals import live_objects, self_of_caller

AUTO = "auto"


def overflow_as_half(tensor, weight):
    """Makes all of a scaled gradient infinite where some of it, times its weight, is beyond what the codec fp16
    carries, so that its GradScaler finds an overflow, as it would of gradients in halves. Does not wait for a GPU."""
    if not weight or not tensor.numel():
        return
    overflows = torch.linalg.vector_norm(tensor, math.inf) > LARGEST_HALF / weight
    if not tensor.is_cpu:
        tensor.masked_fill_(overflows, math.inf)
    elif overflows.item():
        tensor.fill_(math.inf)


class LossScale:
    """The scale of the backward pass that is running."""

    def __init__(self, scaler, links):
        """`scaler` is a GradScaler, None for unscaled gradients, or AUTO. Where none of the LinkTable `links` remembers
        anything between steps the scale cancels out, and whether there is one matters to those alone that clip."""
        self._needed = links.remembers
        needed = self._needed or links.clips_as_half
        self._search = needed and isinstance(scaler, str) and scaler == AUTO
        self._scaler = None
        self._fixed = None
        self._copy = _CopyAhead()
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
        if scaler is None or not scaler.is_enabled() or not self._needed:
            return 1.0
        copied = self._copy.value_of(_tensor_of(scaler))
        return float(scaler.get_scale()) if copied is None else copied

    @property
    def travels(self):
        """Whether gradients go on their way as a GradScaler has scaled them; after current()."""
        scaler = self._scaler() if self._scaler else None
        return self._fixed is None and not self._needed and scaler is not None and scaler.is_enabled()

    def copy_ahead(self):
        """Has a scale that lies on a GPU copied to the host, beside what the GPU does until the next pass: to read it
        there would wait until the GPU has nothing left to do. To be called between a scaler's update() and the next
        forward pass; where nobody does, current() waits."""
        scaler = self._scaler() if self._scaler else None
        if scaler is not None and scaler.is_enabled() and self._needed:
            self._copy.start(_tensor_of(scaler))

    def _find(self):
        """Looks once, at the first pass: by then a program has made its scaler."""
        found = [scaler for scaler in live_objects(_SCALER) if scaler.is_enabled()]
        if len(found) > 1 and self._needed:
            raise FailedPrecondition(
                f"{len(found)} GradScalers are alive, so it is unclear which one scales these gradients; "
                "pass DistributedOptimizer(..., links=Links(scaler=the_one)), or scaler=None for none"
            )
        self._search = False
        if found:
            self._scaler = weakref.ref(found[0])


class _CopyAhead:
    """A number of a GPU, as it was when its copy was started."""

    def __init__(self):
        self._host = None  # pinned
        self._event = None  # the copy is done
        self._copied = None  # weak reference to the tensor
        self._version = None  # torch's count of writes to it

    def start(self, tensor):
        if tensor is None or not tensor.is_cuda:
            return
        if self._host is None:
            self._host, self._event = _pinned_number(), torch.cuda.Event(blocking=True)
        self._host.copy_(tensor.detach().reshape(1), non_blocking=True)
        self._event.record()
        self._copied, self._version = weakref.ref(tensor), tensor._version

    def value_of(self, tensor):
        """None where the tensor was written to since, or is another."""
        if self._copied is None or self._copied() is not tensor or tensor._version != self._version:
            return None
        # It comes before the forward pass. Where the GPU is a whole step behind, who waits for it is asleep.
        self._event.synchronize()
        return self._host.item()


def _pinned_number():
    return torch.empty(1, dtype=torch.float32, device="cpu", pin_memory=True)


def _tensor_of(scaler):
    """Where a GradScaler keeps its scale: None before it has scaled anything, and in others that have none."""
    return getattr(scaler, "_scale", None)


_SCALER = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler


class RefusesGradScaler:
    """Of optimizers whose step() is an exchange: a GradScaler leaves it out in the one worker whose gradients
    overflowed, and the others would wait for it, or count its next one for this."""

    @property
    def _step_supports_amp_scaling(self):
        """GradScaler.step() asks for it, before it decides about the step; others do to read it."""
        asker = self_of_caller()
        if isinstance(asker, _SCALER) and asker.is_enabled():
            name = type(self).__name__
            raise Unimplemented(
                f"GradScaler.step() leaves the step out in the one worker whose gradients overflowed, and {name} "
                "cannot leave it out in the others: train in bfloat16 without a GradScaler "
                "(torch.autocast(..., dtype=torch.bfloat16)), or with DistributedOptimizer, whose steps all workers "
                "leave out together"
            )
        return False
