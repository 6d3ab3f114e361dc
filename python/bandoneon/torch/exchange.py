"""Single tensors: push_pull and its handle."""

from __future__ import annotations

from typing import Iterable

import torch

from ..calls import Declaration, Push
from ..errors import InvalidArgument
from ..session import default_codec, default_worker
from ..worker import Worker
from .step_count import program_steps
from .step_recorder import recorder_of
from .tensors import (
    check_exchangeable,
    check_is_tensor,
    check_writable,
    copy_back,
    dtype_number,
    fill,
    host_empty,
    memory_for,
    note_written,
    streams_for,
)
from .weight import average_unit

__all__ = ["Handle", "barrier", "empty", "push_pull", "synchronize"]


class Handle:
    """A tensor on its way. It holds the tensor until the mean has arrived."""

    def __init__(
        self,
        worker: Worker,
        ticket: int | None,
        tensor: torch.Tensor,
        memory: torch.Tensor | None,
        is_of_graph: bool = False,
    ) -> None:
        self._worker = worker
        self._ticket = ticket
        self._tensor = tensor
        self._memory = memory
        self._is_of_graph = is_of_graph

    def is_done(self) -> bool:
        """Whether wait() would return at once."""
        if self._ticket is not None and self._worker.is_done(self._ticket) is not None:
            self._finish()
        return self._ticket is None

    def wait(self, timeout: float | None = None) -> torch.Tensor:
        """The tensor, now the workers' mean; NaN where a worker's values were not finite. On a GPU it is
        for who uses it in the current stream.

        DeadlineExceeded after `timeout` seconds says who is missing; wait again for longer.
        """
        if self._ticket is not None:
            streams = streams_for([self._memory])
            self._worker.wait(self._ticket, timeout, streams and streams[0])
            self._finish()
        return self._tensor

    def _finish(self):
        self._ticket = None
        copy_back(self._memory, self._tensor)
        self._memory = None
        if self._is_of_graph:
            note_written(self._tensor)

    def __del__(self):
        if getattr(self, "_ticket", None) is not None:
            self._worker.drop(self._ticket)


def push_pull(
    tensor: torch.Tensor,
    name: str,
    *,
    push: str | None = None,
    pull: str | None = None,
    priority: int = 0,
    learning_rate: float = 0.0,
    average: str = "after",
    worker: Worker | None = None,
) -> Handle:
    """Replaces the tensor, in place, by the mean over all workers. Returns a Handle at once. No gradient flows through
    it: a backward pass that needs the values from before is refused by torch, so give a detach().clone() there.

    The first use of a name declares it, for as long as the job runs, so all workers must use new names in the
    same order, and few of them.
    priority: an int32; higher goes first, of what waits at workers, at servers and before the links. No result
    depends on it.
    learning_rate: of the step that the mean is for, the same at all workers: what
        ef(..., correction=lr) goes by.
    """
    worker = worker or default_worker()
    check_is_tensor(tensor, name)
    is_of_graph = tensor.requires_grad
    tensor = tensor.detach()
    check_exchangeable(tensor, name, what="tensor ", remedy="give push_pull() its to_dense()")
    check_writable(tensor, name)
    weight = average_unit(average, worker)
    declaration = Declaration(
        name=name,
        elements=tensor.numel(),
        dtype=dtype_number(tensor, name),
        push=default_spec("push", push),
        pull=default_spec("pull", pull),
    )
    if not isinstance(priority, int) or not -(2**31) <= priority < 2**31:
        raise InvalidArgument(
            f"priority={priority!r} of {name!r} is no int32; higher goes first", tensor=name
        )
    if not tensor.numel():
        return Handle(worker, None, tensor, None)  # Of no elements nothing is exchanged, by all workers alike.
    number = worker.declare_once(declaration)
    recorder = recorder_of(worker)
    if recorder is not None:
        recorder.follow_any_optimizer()
    memory = memory_for(tensor, exclusive=True)
    ended = worker.steps_ended
    push = Push(
        number,
        None,
        priority=priority,
        learning_rate=learning_rate,
        weight=weight,
        program_steps=0 if ended is None else program_steps(ended),
    )
    fill(push, memory)
    tickets, error = worker.push_all([push])
    if error is not None:
        raise error
    return Handle(worker, tickets[0], tensor, memory, is_of_graph)


def empty(*size: int, dtype: torch.dtype = torch.float32, worker: Worker | None = None) -> torch.Tensor:
    """As torch.empty(), in memory that push_pull() is best called on: through a host's daemon (docs/hosts.md)
    it is not copied before the sum. Of any other worker it is a tensor like others."""
    worker = worker or default_worker()
    shape = torch.Size(size[0] if len(size) == 1 and not isinstance(size[0], int) else size)
    if shape.numel() == 0:
        return host_empty(shape, dtype)
    memory = worker.alloc(shape.numel() * dtype.itemsize)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


def barrier(
    name: str = "barrier", *, timeout: float | None = None, worker: Worker | None = None
) -> None:
    """Waits until all workers have come."""
    (worker or default_worker()).barrier(name, timeout)


def synchronize(handles: Iterable[Handle]) -> list[torch.Tensor]:
    """Waits for several handles; their tensors."""
    return [handle.wait() for handle in handles]


def default_spec(direction, spec):
    """A codec spec: the argument, or that of the process."""
    return spec or default_codec(direction)
