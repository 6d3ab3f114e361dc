"""One worker's values to all: parameters, buffers, the optimizer's state, any object."""

from __future__ import annotations

import ctypes
import io
import json
import pickle
import zlib
from typing import Any

import torch

from ..errors import FailedPrecondition, InvalidArgument
from ..session import default_worker
from ..worker import Worker
from .exchange import push_pull
from .names import USED_UP
from .shards import differing_place, is_shard, local_named, places_of
from .tensors import check_exchangeable, check_writable, host_values, host_zeros

# Small tensors travel together, up to this many bytes, aligned so that any type can be viewed.
_BATCH_BYTES = 64 << 20
_ALIGNMENT = 16

_DENSE_ALONE = (
    "dense tensors alone are broadcast. Give broadcast_parameters() (name, tensor) pairs without it, and make it alike "
    "in all workers, or send it by broadcast_object()"
)


def broadcast_parameters(parameters: Any, root: int | None = None, *, worker: Worker | None = None) -> None:
    """Overwrites parameters and buffers of any type with those of worker `root`: by default rank 0's, or the lowest
    rank's of a group. Collective.

    `parameters` is a module, a state_dict, or (name, tensor) pairs. What differs in name, shape or
    type from root's is an error that names it. What has root's values already, by its hash, is not sent.
    A worker that joins a job that runs keeps its own, until a TrainingState gives it the others'.
    """
    worker = worker or default_worker()
    root = worker.ranks[0] if root is None else root
    named = [(name, t) for name, t in _named_tensors(parameters) if t.numel()]
    if any(is_shard(t) for _, t in named) and not worker.is_candidate():
        agree(worker, "places", places_of(named), root, differing_place)
    named = [(name, t) for name, t in local_named(named) if t.numel()]
    for name, tensor in named:
        check_exchangeable(tensor, name, what="", remedy=_DENSE_ALONE)
        check_writable(tensor, name)
    if worker.is_candidate():
        return
    _check_layout(worker, named, root)
    with torch.no_grad():
        for batch in _batches([tensor for _, tensor in named]):
            _broadcast_batch(worker, batch, root)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root: int | None = None, *, worker: Worker | None = None
) -> None:
    """Gives every worker the optimizer's state and hyperparameters of worker `root`, as broadcast_parameters() does. Collective. A worker that joins a
    job that runs keeps its own, until a TrainingState gives it the others'."""
    worker = worker or default_worker()
    root = worker.ranks[0] if root is None else root
    if worker.is_candidate():
        return
    payload = b""
    if worker.rank == root:
        buffer = io.BytesIO()
        torch.save(optimizer.state_dict(), buffer)
        payload = buffer.getvalue()
    payload = broadcast_bytes(worker, "optimizer", payload, root)
    if worker.rank != root:
        state = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
        optimizer.load_state_dict(state)


def broadcast_object(obj: Any = None, root: int | None = None, *, worker: Worker | None = None) -> Any:
    """What worker `root` gave, by default rank 0 or the lowest of a group, at every worker: anything that pickle takes. Collective; what the others
    give is not looked at. Root gets its own object back, the others get copies.

    Unpickling runs what the sender wrote: whoever may join the job is trusted with that.
    """
    worker = worker or default_worker()
    root = worker.ranks[0] if root is None else root
    _check_is_in(worker, "broadcast_object()")
    payload, failure = _pickled(obj) if worker.rank == root else (b"", None)
    payload = broadcast_bytes(worker, "object", payload, root)
    if failure is not None:
        raise failure
    return obj if worker.rank == root else _unpickled(payload, root)


def allgather_object(obj: Any, *, worker: Worker | None = None) -> list[Any]:
    """[the object of worker 0, of worker 1, ...] at every worker, of those that were not lost. Collective: a
    broadcast from each, in turn, so keep them few and small. As broadcast_object in all else."""
    worker = worker or default_worker()
    _check_is_in(worker, "allgather_object()")
    payload, failure = _pickled(obj)
    ranks = worker.present()
    payloads = [broadcast_bytes(worker, "object", payload if root == worker.rank else b"", root) for root in ranks]
    if failure is not None:
        raise failure
    return [
        obj if root == worker.rank else _unpickled(payload, root) for root, payload in zip(ranks, payloads)
    ]


def _check_is_in(worker, what):
    if worker.is_candidate():
        raise FailedPrecondition(
            f"{what} before TrainingState.steps(): this worker joins a job that runs, whose other workers have called this "
            "long ago. Compute the object alike in all workers, or keep it in an object with state_dict() and "
            "load_state_dict() that is in the TrainingState, which gives it to who comes later"
        )


def _pickled(obj):
    """(bytes, None), or (none, the error): the others wait for it, so nothing is raised yet."""
    try:
        return pickle.dumps(obj), None
    except Exception as error:
        return b"", InvalidArgument(f"a {type(obj).__name__} cannot be pickled: {error}")


def _unpickled(payload, root):
    if not payload:
        raise InvalidArgument(f"worker {root}'s object cannot be pickled; its own error says why")
    return pickle.loads(payload)


def check_replicas(worker, named, who):
    """Raises InvalidArgument in all workers where the values of (name, tensor) pairs are not those of
    the first worker: it names the first pair, and what to call. `who` says who asks. Collective."""
    remedy = (
        f"call bandoneon.torch.broadcast_parameters(model) before {who} is made, or load the same "
        "checkpoint everywhere; Links(check=False) leaves this check out"
    )
    _check_same(worker, named, remedy)


def check_same_weights(worker, named):
    """As check_replicas, of weights that a job goes on from without what its links remembered."""
    remedy = (
        "what they had in common is not known without comm_state_dict(). Load the same checkpoint in all "
        "workers before resume_at()"
    )
    _check_same(worker, named, remedy)


def _check_same(worker, named, remedy):
    if worker.is_candidate():
        return  # Its values are replaced before it steps.
    root = worker.present()[0]
    mine = [[name, str(t.dtype), list(t.shape), checksum(t.detach())] for name, t in named]
    agree(worker, "replicas", mine, root, lambda *lists: _differing_values(*lists, remedy))


def _differing_values(worker, mine, theirs, root, remedy):
    layouts = [[entry[:3] for entry in entries] for entries in (mine, theirs)]
    error = _differing_layout(worker, *layouts, root)
    if error is not None:
        return error
    differing = [own[0] for own, roots in zip(mine, theirs) if own != roots]
    if not differing:
        return None
    return InvalidArgument(
        f"{differing[0]!r} has other values in worker {worker.rank} than in worker {root} "
        f"({len(differing)} of {len(mine)} parameters differ), and would go on having them: {remedy}",
        tensor=differing[0],
    )


def checksum(tensor):
    """Of the bytes: 0.0 and -0.0 differ."""
    host = tensor.to("cpu", memory_format=torch.contiguous_format).contiguous()
    num_bytes = host.numel() * host.element_size()
    # As C sees it, for torch may be installed without numpy.
    return zlib.crc32((ctypes.c_char * num_bytes).from_address(host.data_ptr()))


def broadcast_bytes(worker, name, payload, root):
    """Root's bytes at every worker."""
    length = ctypes.c_uint64(len(payload))
    worker.broadcast(f"{name}/length", ctypes.addressof(length), 8, root)
    data = (ctypes.c_char * room_for(length.value))()
    if worker.rank == root:
        ctypes.memmove(data, payload, len(payload))
    if length.value:
        worker.broadcast(name, ctypes.addressof(data), len(data), root)
    return data[: length.value]


def room_for(num_bytes):
    """The size in which so many bytes are broadcast: up to an eighth more: every size that is broadcast stays declared, so there are to be few."""
    unit = 1 << max(num_bytes.bit_length() - 4, 4)
    return -(-num_bytes // unit) * unit


def _named_tensors(parameters):
    if isinstance(parameters, torch.nn.Module):
        parameters = parameters.state_dict()
    if hasattr(parameters, "items"):
        parameters = parameters.items()
    can_be_read_once = hasattr(parameters, "__next__")
    parameters = list(parameters)
    if can_be_read_once and not parameters:
        raise InvalidArgument(f"broadcast_parameters() was given nothing to broadcast: {USED_UP}")
    if any(isinstance(entry, torch.Tensor) for entry in parameters):
        raise InvalidArgument(
            "parameters without names: broadcast_parameters(model), or a state_dict(), or model.named_parameters()"
        )
    return [(name, t.detach()) for name, t in parameters if isinstance(t, torch.Tensor)]


def _check_layout(worker, named, root):
    mine = [[name, str(t.dtype), list(t.shape)] for name, t in named]
    agree(worker, "layout", mine, root, _differing_layout)


def agree(worker, what, mine, root, difference):
    """Every worker compares its list with root's by difference(worker, mine, theirs, root), an error or
    None; if any differs, all raise: the others with the error of the first that does. A worker that joins a job that runs
    can ask nobody, and is given the others' state later."""
    if worker.is_candidate():
        return
    theirs = json.loads(broadcast_bytes(worker, what, json.dumps(mine).encode(), root))
    error = difference(worker, mine, theirs, root)
    verdicts = host_values([float(error is not None and rank == worker.rank) for rank in range(worker.size)])
    push_pull(verdicts, f"{what}/differs", push="none", pull="none", worker=worker).wait()
    differing = verdicts.nonzero().flatten().tolist()
    if differing:
        # Whoever ends the job first with its error, everybody is told what differs.
        facts = json.dumps([str(error), getattr(error, "tensor", None)]).encode()
        text, tensor = json.loads(broadcast_bytes(worker, f"{what}/difference", facts, differing[0]))
        raise error or InvalidArgument(text, tensor=tensor)


def _differing_layout(worker, mine, theirs, root):
    for own, roots in zip(mine, theirs):
        if own[0] != roots[0] and sorted(mine) == sorted(theirs):
            return InvalidArgument(
                f"worker {worker.rank} has the same tensors as worker {root} in another order: {own[0]!r} where that one has "
                f"{roots[0]!r}. Make modules, and name parameters, in one order in all workers: that of a set, or of files in "
                "a directory, is each process's own (sorted() is the same in all)",
                tensor=own[0],
            )
        if own != roots:
            return InvalidArgument(
                f"worker {worker.rank} has {_describe(own)} where worker {root} has {_describe(roots)}",
                tensor=own[0],
            )
    if len(mine) == len(theirs):
        return None
    longer, rank = (mine, worker.rank) if len(mine) > len(theirs) else (theirs, root)
    extra = longer[min(len(mine), len(theirs))]
    return InvalidArgument(
        f"worker {worker.rank} has {len(mine)} tensors, worker {root} has {len(theirs)}: only worker "
        f"{rank} has {_describe(extra)}",
        tensor=extra[0],
    )


def _describe(entry):
    name, dtype, shape = entry[:3]
    return f"{name!r} ({dtype}, shape {shape})"


def _batches(tensors):
    batch, num_bytes = [], 0
    for tensor in tensors:
        if batch and num_bytes + _padded_bytes(tensor) > _BATCH_BYTES:
            yield batch
            batch, num_bytes = [], 0
        batch.append(tensor)
        num_bytes += _padded_bytes(tensor)
    if batch:
        yield batch


def _broadcast_batch(worker, batch, root):
    buffer = host_zeros(sum(map(_padded_bytes, batch)), torch.uint8)
    places, offset = [], 0
    for tensor in batch:
        num_bytes = tensor.numel() * tensor.element_size()
        places.append(buffer[offset : offset + num_bytes].view(tensor.dtype))
        offset += _padded_bytes(tensor)
    # Others' as well: who has root's values is not sent them.
    for place, tensor in zip(places, batch):
        place.copy_(tensor.reshape(-1))
    worker.broadcast("tensors", buffer.data_ptr(), buffer.numel(), root)
    if worker.rank != root:
        for place, tensor in zip(places, batch):
            tensor.copy_(place.view(tensor.shape))


def _padded_bytes(tensor):
    num_bytes = tensor.numel() * tensor.element_size()
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
