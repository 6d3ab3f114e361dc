"""A whole training as torch.distributed.checkpoint takes it."""

from __future__ import annotations

import io
from typing import Any

import torch

from ..errors import InvalidArgument
from ..session import default_worker
from ..worker import Worker
from .broadcast import allgather_object
from .checkpoint import all_or_none, check_none_is_sharded, has_local_models, split_module
from .comm_state import CommState, base_rank, check_saved_size, ranks_for
from .ddp import DDPState
from .row_checkpoint import check_fits, clear_table, read_table, tables_of, write_table
from .rows import RowOptimizer

__all__ = ["AppState"]


class AppState:
    """Model, optimizer and every rank's comm_state_dict() as one Stateful of
    torch.distributed.checkpoint, in one checkpoint:

        dcp.save({"app": AppState(model, optimizer)}, checkpoint_id=path)
        dcp.load({"app": AppState(model, optimizer)}, checkpoint_id=path)    # in a new job

    Collective. The optimizer takes no step for it, unlike in get_optimizer_state_dict(), and its state
    is saved as one piece. Each rank has buffers of its own; around LocalSteps and CSER, all is its own.

    hook: the DDPState, where it is that which exchanges.
    rows: the RowOptimizer, where servers hold tables; their rows go through the memory of the workers, each of which
    saves a part of them (bandoneon.torch.save() streams them to files). A RowOptimizer may also be `optimizer`, alone.
    saved_size: workers of the job that saved, to load it where there are more or fewer now: see load().
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        hook: DDPState | None = None,
        *,
        rows: RowOptimizer | None = None,
        saved_size: int | None = None,
        worker: Worker | None = None,
    ) -> None:
        if isinstance(optimizer, RowOptimizer) and rows is None and hook is None:
            rows = optimizer
        owner = optimizer if hook is None else hook
        if owner is not rows and not hasattr(owner, "comm_state_dict"):
            advice = (
                "give the RowOptimizer as rows="
                if isinstance(owner, RowOptimizer)
                else "below DistributedDataParallel give the DDPState, AppState(model, optimizer, state)"
            )
            raise InvalidArgument(f"{type(owner).__name__} exchanges nothing: {advice}")
        check_none_is_sharded({"model": model})
        self._model = model
        self._optimizer = optimizer
        self._worker = worker or default_worker()
        self._saved_size = check_saved_size(saved_size, self._worker)
        self._comm = None if owner is rows else CommState(owner, saved_size=saved_size, worker=worker)
        self._rows = rows
        self._is_local = has_local_models([optimizer])

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps of this rank; torch.distributed.checkpoint calls it."""
        parameters, buffers = split_module(self._model)
        own = {"parameters": parameters, "optimizer": _to_bytes(self._optimizer.state_dict())}
        mine = {"buffers": buffers, **(own if self._is_local else {})}
        state = {**({} if self._is_local else own), self._own_key: mine}
        if self._comm is not None:
            state["comm"] = self._comm.state_dict()
        if self._rows is not None:
            state["row_optimizer"] = _to_bytes(self._rows.state_dict())
            state["rows"] = self._rows_state()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from what state_dict() gave; torch.distributed.checkpoint calls it."""
        mine = state_dict[self._own_key]
        own = mine if self._is_local else state_dict
        self._model.load_state_dict({**own["parameters"], **mine["buffers"]})
        self._optimizer.load_state_dict(_from_bytes(own["optimizer"]))
        if self._comm is not None:
            self._comm.load_state_dict(state_dict["comm"])
        if self._rows is not None:
            self._load_rows(state_dict["rows"])
            self._rows.load_state_dict(_from_bytes(state_dict["row_optimizer"]))

    def _rows_state(self):
        """{"rank0": {table: its part of the rows}} of this worker; where saved_size is another, what takes the parts
        that this worker sets."""
        place, size, tables = self._worker.place, self._worker.sharers, tables_of({"rows": self._rows})
        if self._saved_size == size:
            return {self._rows_key(place): {table.name: _part_of(table, place, size) for table in tables}}
        ranks = {base_rank(place, self._saved_size), *ranks_for(place, size, self._saved_size)}
        return {self._rows_key(rank): {table.name: dict(_NO_PART) for table in tables} for rank in sorted(ranks)}

    def _load_rows(self, saved):
        worker, tables = self._worker, tables_of({"rows": self._rows})
        ranks = ranks_for(worker.place, worker.sharers, self._saved_size)
        parts = {rank: saved.get(self._rows_key(rank), {}) for rank in ranks}
        with all_or_none(worker, "load its rows"):
            updates = [_checked_updates(table, parts) for table in tables]
        # A worker whose buckets have no rows has seen no update.
        updates = [max(of_all) for of_all in zip(*allgather_object(updates, worker=worker))]
        with all_or_none(worker, "load its rows"):
            for table, number in zip(tables if worker.place == 0 else [], updates):
                clear_table(table, number)
        with all_or_none(worker, "load its rows"):
            for rank, part in parts.items():
                for table, number in zip(tables, updates):
                    records = io.BytesIO(part[table.name]["records"])
                    read_table(records, f"the state of worker {rank}", table, number)
        self._rows.take_loaded_rows("")

    def _rows_key(self, rank):
        return self._worker.named(f"rank{rank}")

    @property
    def _own_key(self):
        return self._worker.named(f"rank{base_rank(self._worker.place, self._saved_size)}")


# What is put in the place of a part that is to be loaded.
_NO_PART = {"rule": "", "width": 0, "moments": 0, "updates": 0, "records": b""}


def _part_of(table, place, places):
    """This worker's part of a table's rows, as write_table() writes them to a file."""
    content = io.BytesIO()
    updates = write_table(content, table, place, places, 0)
    shape = table.shape()
    facts = {"rule": table.rule, "width": shape.width, "moments": shape.moments, "updates": updates}
    return {**facts, "records": content.getvalue()}


def _checked_updates(table, parts):
    """The updates of a table that parts {rank: {table: part}} have; InvalidArgument where one lacks it, or does not fit."""
    for rank, part in parts.items():
        if table.name not in part:
            raise InvalidArgument(f"the state of worker {rank} has no table {table.name!r}", tensor=table.name)
        check_fits(table, part[table.name], f"the state of worker {rank}")
    return max((part[table.name]["updates"] for part in parts.values()), default=0)


def _to_bytes(state):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def _from_bytes(payload):
    return torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
