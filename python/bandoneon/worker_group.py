"""Some of a job's workers, which exchange among themselves: a worker as its group sees it."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any, Iterable

from . import _native, errors
from .calls import Declaration
from .worker import Owner, Worker


class WorkerGroup:
    """A worker as a member of a group: whatever takes a Worker takes this in its place, and then exchanges among
    the workers of the group alone. Ranks stay those of the job, in roots and in errors, too. It is the worker
    that joins, leaves and is closed; all else is the worker's own. Each of the group makes one; that in itself
    exchanges nothing.

    Tensors, broadcasts and barriers have their group in their names ("loss among ranks 0-3"), so that groups may
    use the same names. Not through a host's daemon.
    """

    def __init__(self, worker: Worker | WorkerGroup, ranks: Iterable[int]) -> None:
        whole = worker.whole if isinstance(worker, WorkerGroup) else worker
        listed = [int(rank) for rank in ranks]
        itself = self.__dict__  # As all other attributes are set in the worker.
        itself["whole"] = whole
        itself["ranks"] = tuple(sorted(listed))
        _check(listed, whole)
        itself["_array"] = (ctypes.c_int32 * len(listed))(*self.ranks)
        self.named("")  # InvalidArgument where the ranks are no group.

    whole: Worker
    ranks: tuple[int, ...]
    _array: Any

    def named(self, name: str) -> str:
        """The name that the group uses for `name`, among all names of the job."""
        text = _native.c_text("name", name)
        lib = _native.library()
        size = lib.bdn_name_among(text, self._array, len(self.ranks), None, 0)
        if size == 0:
            raise _native.last_error(errors.InvalidArgument.code)
        buffer = ctypes.create_string_buffer(size)
        lib.bdn_name_among(text, self._array, len(self.ranks), buffer, size)
        return buffer.value.decode()

    @property
    def sharers(self) -> int:
        """How many workers a mean is of, whoever is lost."""
        return len(self.ranks)

    @property
    def place(self) -> int:
        """This worker's place among them."""
        return self.ranks.index(self.whole.rank)

    def declare(
        self, declarations: Iterable[Declaration], timeout: float | None = None, owner: Owner | None = None
    ) -> list[int]:
        """As Worker.declare(), among the group. Collective there."""
        return self.whole.declare([self._of_group(each) for each in declarations], timeout, owner)

    def declare_once(
        self, declaration: Declaration, timeout: float | None = None, owner: Owner | None = None
    ) -> int:
        """As Worker.declare_once(), among the group."""
        return self.whole.declare_once(self._of_group(declaration), timeout, owner)

    def retire(self, names: Iterable[str]) -> None:
        """As Worker.retire(), of the group's tensors."""
        self.whole.retire([self.named(name) for name in names])

    def declare_tables(self, *arguments: Any, **options: Any) -> list[int]:
        """Unimplemented: tables of rows are of all workers."""
        raise errors.Unimplemented(
            "tables of rows are exchanged by all workers of the job, and not by a group of ranks: leave worker= out, or keep "
            "the embedding in the workers"
        )

    def broadcast(self, name: str, data: int, num_bytes: int, root: int, timeout: float | None = None) -> None:
        """As Worker.broadcast(), to the group. `root` is a rank of the job."""
        self.whole.broadcast(self.named(name), data, num_bytes, root, timeout)

    def broadcast_parts(self, name: str, *arguments: Any, **options: Any) -> None:
        """As Worker.broadcast_parts(), to the group."""
        self.whole.broadcast_parts(self.named(name), *arguments, **options)

    def barrier(self, name: str = "barrier", timeout: float | None = None) -> None:
        """As Worker.barrier(), of the group."""
        self.whole.barrier(self.named(name), timeout)

    def present(self, timeout: float | None = None) -> list[int]:
        """As Worker.present(), of the group: ranks of the job."""
        return self.whole.present(timeout, self.named("present"))

    def count_present(self) -> int:
        """As Worker.count_present(), of the group."""
        return self._presence()[0]

    def first_rank(self) -> int:
        """As Worker.first_rank(), of the group."""
        return self._presence()[1]

    def rank_in_charge(self) -> int:
        """As Worker.rank_in_charge(), of the group."""
        return self.first_rank() if self.in_charge is None else self.in_charge

    @property
    def in_charge(self) -> int | None:
        """As Worker.in_charge, of the group."""
        return next((rank for rank in self.whole.seniority if rank in self.ranks), None)

    def _presence(self) -> tuple[int, int]:
        first = ctypes.c_int32()
        with self.whole._call() as (lib, handle):
            count: int = lib.bdn_size_among(handle, self._array, len(self.ranks), ctypes.byref(first))
        return count, first.value

    def leave(self, timeout: float | None = None) -> None:
        """FailedPrecondition: it is the worker that leaves the job."""
        raise errors.FailedPrecondition("a group does not leave the job: its workers do, by bandoneon.torch.shutdown()")

    def close(self) -> None:
        """Does nothing: the worker, which others use, stays open."""

    def _of_group(self, declaration: Declaration) -> Declaration:
        return replace(declaration, name=self.named(declaration.name), ranks=self.ranks)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.whole, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.whole, name, value)

    def __repr__(self) -> str:
        return f"WorkerGroup(ranks={list(self.ranks)})"


def _check(ranks: list[int], worker: Worker) -> None:
    if not ranks:
        raise errors.InvalidArgument("a group needs at least one rank")
    beyond = [rank for rank in ranks if not 0 <= rank < worker.size]
    if beyond:
        raise errors.InvalidArgument(f"rank {beyond[0]} of a group is not one of {worker.size} workers, 0 to {worker.size - 1}")
    if worker.rank not in ranks:
        raise errors.InvalidArgument(
            f"a group of ranks {sorted(ranks)} without this worker, which is rank {worker.rank}: only the workers of a group "
            "make it"
        )
