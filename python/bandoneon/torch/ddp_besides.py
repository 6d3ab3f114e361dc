"""DistributedDataParallel around an optimizer that exchanges by itself."""

import warnings
import weakref

import torch
from torch.nn.parallel import DistributedDataParallel

from ..errors import FailedPrecondition
from .torch_internals import live_objects

# Models of DDP whose gradients stay each worker's own.
_local = weakref.WeakSet()


def keep_gradients_local(model: DistributedDataParallel) -> None:
    """Has DDP leave every worker its own gradients, for an optimizer that exchanges by itself, where a framework
    wraps the model in DDP for its other doings (Trainer, accelerate, Lightning's "ddp"). Right after the model was
    wrapped, in every process.

        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        bdn.keep_gradients_local(model)

    DDP goes on giving all processes the parameters of rank 0 when it is made, and the buffers of rank 0 before
    each forward pass, unless it was made with broadcast_buffers=False.
    """
    model.register_comm_hook(None, _own_gradients)
    _local.add(model)


def _own_gradients(state, bucket):
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def _is_within(group, other):
    ranks = torch.distributed.get_process_group_ranks
    return set(ranks(group)) <= set(ranks(other))


class DDPBesides:
    """Looks once, at the first step, for a DistributedDataParallel that exchanges the same gradients. By then a
    program has made it."""

    def __init__(self, kind, steps_locally):
        """kind: the optimizer's class, for people. steps_locally: whether each worker's model is its own, which
        DDP takes away."""
        self._kind = kind
        self._steps_locally = steps_locally
        self._has_looked = False

    def before_step(self, params, together=None):
        """FailedPrecondition, or a warning, where DDP exchanges the gradients of one of these parameters. together: a process
        group whose members may, as they step together."""
        if self._has_looked:
            return
        self._has_looked = True
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return
        mine = {id(param) for param in params if param.requires_grad}
        for module in live_objects(DistributedDataParallel):
            if together is not None and _is_within(module.process_group, together):
                continue
            if module not in _local and any(id(param) in mine for param in module.parameters()):
                self._has_looked = not self._steps_locally  # An error is one at each step.
                self._say()
                return

    def _say(self):
        what = f"DistributedDataParallel exchanges this {self._kind}'s gradients as well"
        if self._steps_locally:
            raise FailedPrecondition(
                f"{what}, in every step and uncompressed, while {self._kind} lets each worker step by itself and saves "
                "just that: take DistributedDataParallel away, or, where a framework (Trainer, accelerate, Lightning) "
                "puts it there, call bandoneon.torch.keep_gradients_local(ddp_model) before the first step "
                "(docs/coming_from.md)"
            )
        warnings.warn(
            f"{what}, so that each is exchanged twice: take DistributedDataParallel away, keep it with a plain "
            "optimizer and register bandoneon.torch.ddp_hook, or call bandoneon.torch.keep_gradients_local(ddp_model)",
            RuntimeWarning,
            stacklevel=5,
        )
