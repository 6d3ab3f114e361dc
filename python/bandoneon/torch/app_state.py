"""A whole training as torch.distributed.checkpoint takes it."""

from __future__ import annotations

import io
from typing import Any

import torch

from ..errors import InvalidArgument
from ..session import default_worker
from ..worker import Worker
from .checkpoint import check_none_is_sharded, has_local_models, split_module
from .comm_state import CommState, base_rank, check_saved_size
from .ddp import DDPState

__all__ = ["AppState"]


class AppState:
    """Model, optimizer and every rank's comm_state_dict() as one Stateful of
    torch.distributed.checkpoint, in one checkpoint:

        dcp.save({"app": AppState(model, optimizer)}, checkpoint_id=path)
        dcp.load({"app": AppState(model, optimizer)}, checkpoint_id=path)    # in a new job

    Collective. The optimizer takes no step for it, unlike in get_optimizer_state_dict(), and its state
    is saved as one piece. Each rank has buffers of its own; around LocalSteps and CSER, all is its own.

    hook: the DDPState, where it is that which exchanges.
    saved_size: workers of the job that saved, to load it where there are more or fewer now: see load().
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        hook: DDPState | None = None,
        *,
        saved_size: int | None = None,
        worker: Worker | None = None,
    ) -> None:
        owner = optimizer if hook is None else hook
        if hasattr(owner, "saved_tables"):
            raise InvalidArgument(
                "the rows of a RowOptimizer are at the servers, and torch.distributed.checkpoint takes tensors of this process: "
                "save them with bandoneon.torch.save(), and the rest with AppState"
            )
        if not hasattr(owner, "comm_state_dict"):
            raise InvalidArgument(
                f"{type(owner).__name__} exchanges nothing: below DistributedDataParallel give the "
                "DDPState, AppState(model, optimizer, state)"
            )
        check_none_is_sharded({"model": model})
        self._model = model
        self._optimizer = optimizer
        self._worker = worker or default_worker()
        self._saved_size = check_saved_size(saved_size, self._worker)
        self._comm = CommState(owner, saved_size=saved_size, worker=worker)
        self._is_local = has_local_models([optimizer])

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps of this rank; torch.distributed.checkpoint calls it."""
        parameters, buffers = split_module(self._model)
        own = {"parameters": parameters, "optimizer": _to_bytes(self._optimizer.state_dict())}
        mine = {"buffers": buffers, **(own if self._is_local else {})}
        common = {} if self._is_local else own
        return {**common, self._own_key: mine, "comm": self._comm.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from what state_dict() gave; torch.distributed.checkpoint calls it."""
        mine = state_dict[self._own_key]
        own = mine if self._is_local else state_dict
        self._model.load_state_dict({**own["parameters"], **mine["buffers"]})
        self._optimizer.load_state_dict(_from_bytes(own["optimizer"]))
        self._comm.load_state_dict(state_dict["comm"])

    @property
    def _own_key(self):
        return self._worker.named(f"rank{base_rank(self._worker.place, self._saved_size)}")


def _to_bytes(state):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def _from_bytes(payload):
    return torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
