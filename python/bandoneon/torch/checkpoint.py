"""A whole training in one directory: models, optimizers and what every rank's links remember."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
from typing import Any

import torch

from ..errors import BandoneonError, DataLoss, FailedPrecondition, InvalidArgument, NotFound
from ..session import default_worker
from ..worker import Worker
from .broadcast import broadcast_bytes
from .comm_state import base_rank, ranks_for
from .exchange import push_pull

_FORMAT = 1
_MANIFEST = "checkpoint.json"
_FILE = re.compile(r"([0-9a-f]{16})\.(shared|rank\d+)\.pt(\.partial)?")


def save(directory: str | os.PathLike[str], state: dict[str, Any], *, worker: Worker | None = None):
    """Saves all of `state`, with every rank's comm_state_dict(), into a directory that all workers see.
    Collective, between steps; returns when it is complete.

        bdn.save("run1/latest", {"model": model, "optimizer": optimizer, "epoch": epoch})

    state: what to save by name, the same names in all workers: modules, optimizers, DDPStates and
        whatever else has state_dict() or comm_state_dict(); and values that torch.save takes, each
        rank's own.

    Parameters and the state of torch optimizers are the same in all workers, and rank 0 saves them; each
    rank saves its buffers, its links and everything else. Around LocalSteps and CSER each saves all.

    A checkpoint that is there already is replaced in one moment, after the new one is on the disk: who
    stops in between leaves the old one. Where a worker cannot write, all fail, and the old one stays.
    """
    worker = worker or default_worker()
    token = broadcast_bytes(worker, "checkpoint", secrets.token_hex(8).encode(), 0).decode()
    files = _Files(directory, token)
    with _all_or_none(worker, f"save {directory}"):
        shared, own = _split(state, worker)
        os.makedirs(directory, exist_ok=True)
        files.write(f"rank{worker.rank}", own)
        if worker.rank == 0:
            files.write("shared", shared)
    with _all_or_none(worker, f"save {directory}"):
        if worker.rank == 0:
            files.check([f"rank{rank}" for rank in range(worker.size)])
            names = {"items": sorted(state), "size": worker.size, "id": token, "format": _FORMAT}
            path = os.path.join(directory, _MANIFEST)
            _write(path, lambda file: file.write(json.dumps(names).encode()))
            files.remove_others()


def load(
    directory: str | os.PathLike[str],
    state: dict[str, Any],
    *,
    weights_only: bool = True,
    worker: Worker | None = None,
):
    """Puts what save() left back into `state`, by name; the values, which have no load_state_dict(), are
    what it returns, as {name: value}. Collective, before any worker steps.

        at = bdn.load("run1/latest", {"model": model, "optimizer": optimizer})["epoch"]

    A job of as many workers goes on bit for bit. In one of more or fewer, what the old ranks' links owe to
    the mean is shared out among the new ones; worker r takes its buffers, its values and the state of
    its local optimizer from rank r modulo the old number. How many servers there are makes no
    difference. CSER cannot go on so.

    weights_only: as torch.load's; False takes values of any type, from files that are trusted.
    NotFound, DataLoss and InvalidArgument say what is missing or does not fit.
    """
    worker = worker or default_worker()
    with _all_or_none(worker, f"load {directory}"):
        shared, own, others = _read(directory, state, weights_only, worker)
    for name, item in _in_loading_order(state):
        states = [states[name] for states in (shared["states"], own["states"]) if name in states]
        if isinstance(item, torch.nn.Module):
            item.load_state_dict({key: value for part in states for key, value in part.items()})
        elif states:
            item.load_state_dict(states[0])
    for name, item in state.items():
        if hasattr(item, "load_comm_state_dict"):
            comm = [one["comm"][name] for one in (own, *others)]
            item.load_comm_state_dict(comm)
    return own["values"]


def has_local_models(items):
    """Whether the workers' models are not the same, between meetings."""
    return any(getattr(item, "has_local_models", False) for item in items)


def split_module(module):
    """A module's state_dict() as (parameters, everything else)."""
    parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    whole = module.state_dict()
    return (
        {name: value for name, value in whole.items() if name in parameters},
        {name: value for name, value in whole.items() if name not in parameters},
    )


def _split(state, worker):
    """What rank 0 saves for all, and what this rank saves."""
    is_local = has_local_models(state.values())
    shared = {"states": {}}
    own = {"rank": worker.rank, "states": {}, "comm": {}, "values": {}}
    for name, item in state.items():
        if isinstance(item, torch.nn.Module):
            parameters, rest = split_module(item)
            own["states"][name] = {**parameters, **rest} if is_local else rest
            if not is_local:
                shared["states"][name] = parameters
        elif hasattr(item, "state_dict"):
            is_shared = isinstance(item, torch.optim.Optimizer) and not is_local
            (shared if is_shared else own)["states"][name] = item.state_dict()
        elif not hasattr(item, "comm_state_dict"):
            own["values"][name] = item
        if hasattr(item, "comm_state_dict"):
            own["comm"][name] = item.comm_state_dict()
    return shared, own


def _in_loading_order(state):
    """Modules first: some optimizers look at their parameters."""
    return sorted(state.items(), key=lambda item: not isinstance(item[1], torch.nn.Module))


def _read(directory, state, weights_only, worker):
    manifest = _manifest(directory)
    saved_size = manifest["size"]
    files = _Files(directory, manifest["id"])
    shared = files.read("shared", weights_only)
    base = base_rank(worker.rank, saved_size)
    own = files.read(f"rank{base}", weights_only)
    has_comm = any(hasattr(item, "comm_state_dict") for item in state.values())
    mapped = ranks_for(worker.rank, worker.size, saved_size) if has_comm else []
    others = [files.read(f"rank{rank}", weights_only) for rank in mapped if rank != base]
    for name, item in state.items():
        for method, parts in {
            "load_state_dict": (shared["states"], own["states"]),
            "load_comm_state_dict": (own["comm"],),
        }.items():
            if hasattr(item, method) and not any(name in part for part in parts):
                raise InvalidArgument(
                    f"the checkpoint in {directory} has nothing for {name!r} to {method}(); it is of "
                    + ", ".join(manifest["items"])
                )
    return shared, own, others


def _manifest(directory):
    path = os.path.join(directory, _MANIFEST)
    try:
        with open(path, "rb") as file:
            manifest = json.loads(file.read())
    except FileNotFoundError:
        raise NotFound(
            f"there is no {path}: no checkpoint of bandoneon.torch.save, or one that was not completed, "
            "or not on a file system that all workers see"
        ) from None
    except ValueError as error:
        raise DataLoss(f"{path} is not what bandoneon.torch.save wrote: {error}") from None
    form = manifest.get("format") if isinstance(manifest, dict) else None
    if form != _FORMAT:
        raise InvalidArgument(f"{path} is of format {form!r}; this build reads format {_FORMAT}")
    size, token = manifest.get("size"), manifest.get("id")
    if not (isinstance(size, int) and size >= 1 and _FILE.fullmatch(f"{token}.shared.pt")):
        raise DataLoss(f"{path} is of {size!r} workers and has the id {token!r}")
    return manifest


class _Files:
    """The files of one checkpoint, which its id tells from those of others in the same directory."""

    def __init__(self, directory, token):
        self._directory = directory
        self._token = token

    def _path(self, part):
        return os.path.join(self._directory, f"{self._token}.{part}.pt")

    def write(self, part, content):
        _write(self._path(part), lambda file: torch.save(content, file))

    def read(self, part, weights_only):
        path = self._path(part)
        try:
            return torch.load(path, map_location="cpu", weights_only=weights_only)
        except FileNotFoundError:
            raise NotFound(f"the checkpoint lacks {path}") from None
        except Exception as error:  # Whatever reading bytes that are not a checkpoint comes to.
            raise DataLoss(f"{path} cannot be read: {type(error).__name__}: {error}") from error

    def check(self, parts):
        for part in parts:
            if not os.path.exists(self._path(part)):
                raise FailedPrecondition(
                    f"worker 0 does not see {self._path(part)}, which another worker has written: the "
                    "directory must be on a file system that all workers see"
                )

    def remove_others(self):
        """What earlier checkpoints, and those that were not completed, have left."""
        for name in os.listdir(self._directory):
            match = _FILE.fullmatch(name)
            if match and match[1] != self._token:
                with contextlib.suppress(OSError):
                    os.remove(os.path.join(self._directory, name))


def _write(path, dump):
    """dump(file) writes it; the file is there whole or not at all, even after a loss of power."""
    partial = f"{path}.partial"
    with open(partial, "wb") as file:
        dump(file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    directory = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


@contextlib.contextmanager
def _all_or_none(worker, what):
    """Ends with an error in all workers where it does in one."""
    error = None
    try:
        yield
    except Exception as failure:
        error = failure
    verdict = torch.tensor([float(error is not None)])
    try:
        push_pull(verdict, "checkpoint/failed", push="none", pull="none", worker=worker).wait()
    except BandoneonError as failure:
        error = error or failure
    if error is not None:
        raise error
    if verdict.item() > 0:
        raise FailedPrecondition(f"another worker could not {what}; its error says why")
