"""A whole training in one place: models, optimizers and what every rank's links remember."""

from __future__ import annotations

import collections
import contextlib
import io
import json
import os
import re
import secrets
from typing import Any

import torch

from ..errors import (
    BandoneonError,
    DataLoss,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    error_for_code,
    Unimplemented,
)
from ..session import default_worker
from ..worker import Worker
from .broadcast import broadcast_bytes
from .checkpoint_storage import open_storage
from .checkpoint_sums import checksums, digest_of
from .comm_state import base_rank, ranks_for
from .exchange import push_pull
from .row_checkpoint import (
    chain_to_go_on,
    check_fits,
    checked_tables,
    clear_table,
    entry_of,
    ids_in_chains,
    owners_of,
    part_of,
    read_table,
    removed_since,
    tables_of,
    write_table,
)
from .shards import is_shard
from .tensors import host_zeros

_FORMAT = 1
_LAYOUTS = ("shared", "hosts", "rank0")
# What belongs to checkpoints: of the id of one, or a marker that was not completed.
_FILE = re.compile(r"([0-9a-f]{16})\.(shared|rank\d+|table\d+\.rank\d+)\.(?:pt|rows)(\.partial)?")
_ID = re.compile(r"[0-9a-f]{16}")
_MARKER = re.compile(r"(?:([0-9a-f]{16})\.)?checkpoint\.json(\.partial)?")
# Files that others lack travel in pieces, so that nobody needs room for two.
_PIECE_BYTES = 16 << 20


def save(
    directory: str | os.PathLike[str],
    state: dict[str, Any],
    *,
    layout: str = "shared",
    check: bool = True,
    rows_every: int = 1,
    worker: Worker | None = None,
) -> None:
    """Saves all of `state`, with every rank's comm_state_dict(). Collective, between steps; returns when it
    is complete.

        bdn.save("run1/latest", {"model": model, "optimizer": optimizer, "epoch": epoch})

    directory: a path, or a URL of object storage such as "s3://bucket/run1", which fsspec reaches.
    state: what to save by name, the same names in all workers: modules, optimizers, DDPStates and
        whatever else has state_dict() or comm_state_dict(); and values that torch.save takes, each
        rank's own.
    layout: "shared": all workers see the directory. "hosts": each host has a directory of its own, where
        its workers leave their files. "rank0": all files are sent to worker 0, which alone writes.

    Parameters and the state of torch optimizers are the same in all workers, and rank 0 saves them; each
    rank saves its buffers, its links and everything else. Around LocalSteps and CSER each saves all.

    check: refuse to save what is rank 0's for all where it is not the same in all workers, by checksums. What each
        worker has of its own goes into `state` as a value: {"head": head.state_dict()}.

    Of a RowOptimizer all rows of its tables are saved, each worker writing those of a part of the buckets.

    rows_every: every so many saves into one directory are of all rows, and those between of the rows that have changed
        since the save before, whose files stay.

    In a job that goes on without a lost worker the others save, as a job of so many would, under numbers from 0 on.

    A checkpoint that is there already is replaced in one moment, after the new one is on the disk: who
    stops in between leaves the old one. Where a worker cannot write, all fail with its reason, and the
    old one stays; what the failed save has left is removed, or the next save removes it first.
    """
    worker = worker or default_worker()
    worker.barrier("bandoneon.torch.save(), which all workers must call")
    worker = _Present(worker)
    token = broadcast_bytes(worker, "checkpoint", secrets.token_hex(8).encode(), 0).decode()
    worker.check_all_are_here()
    what = f"save {directory}"
    with all_or_none(worker, what):
        if layout not in _LAYOUTS:
            raise InvalidArgument(f"layout={layout!r} is not one of " + ", ".join(map(repr, _LAYOUTS)))
        if type(rows_every) is not int or rows_every < 1:
            raise InvalidArgument(f"rows_every={rows_every!r} is not a number of saves, 1 or more")
        files = _Files(open_storage(directory), token)
        manifests = files.manifests()
        tables = tables_of(state)
        shared, own = _split(state, worker)
        sums = checksums(shared["states"]) if check else {}
    view = {"layout": layout, "manifests": manifests, "digest": digest_of(sums), "tables": [t.name for t in tables]}
    views = _gather(worker, view)
    _check_one_layout(views)
    _check_same_tables(views)
    _check_same_everywhere(worker, views, sums)
    known = [_fields_of(text) for view in views for text in view["manifests"].values()]
    number = 1 + max((_number_of(fields) for fields in known), default=0)
    kept = {fields["id"] for fields in known if isinstance(fields.get("id"), str)} | {token}
    kept_rows = set().union(*map(ids_in_chains, known))
    chains = {}
    if tables and known:
        with all_or_none(worker, what):
            chains = chain_to_go_on(state, max(known, key=_number_of), rows_every)
            forgotten = _forgotten(worker, tables, chains)
        # A server may have forgotten what was removed since the save before. Then no worker goes on with the chain.
        if any(_gather(worker, forgotten)):
            chains = {}
    writes = worker.rank == 0 or layout != "rank0"
    parts = {}
    updates = []  # of each table
    try:
        with all_or_none(worker, what):
            if writes:
                files.create()
                files.remove_all_but(kept, kept_rows)
                place = (worker.rank, worker.size) if layout != "rank0" else (0, 1)
                updates = [
                    files.write_table(table, index, *place, chains.get(table.name)) for index, table in enumerate(tables)
                ]
            parts[f"rank{worker.rank}"] = own
            if worker.rank == 0:
                parts["shared"] = shared
            for part, content in parts.items():
                if writes:
                    files.write(part, content)
                else:
                    parts[part] = _bytes_of(content)
        # Whoever is here has written; the part of a worker that was lost meanwhile may be missing.
        worker.check_all_are_here()
        if layout == "rank0":
            with all_or_none(worker, what):
                _send_to_first(worker, files, parts)
            worker.check_all_are_here()
    except BaseException:
        if writes:
            files.remove_own()
        raise
    with all_or_none(worker, what):
        ranks = range(worker.size)
        if worker.rank == 0 and layout == "shared":
            of_tables = [part_of(index, rank) for index in range(len(tables)) for rank in ranks]
            files.check([*(f"rank{rank}" for rank in ranks), *of_tables])
        writers = 1 if layout == "rank0" else worker.size
        entries = [
            entry_of(table, index, token, writers, updates[index], chains.get(table.name, []))
            for index, table in enumerate(tables if worker.rank == 0 else [])
        ]
        if worker.rank == 0:
            names = {"items": sorted(state), "size": worker.size, "id": token, "format": _FORMAT}
            files.mark({**names, "number": number, **({"rows": entries} if entries else {})})
    worker.check_all_are_here()  # The first has marked it, or was lost before.
    if worker.rank == 0 or layout == "hosts":
        files.remove_all_but({token}, {save["id"] for saves in chains.values() for save in saves})
    for owner in owners_of(state):
        owner.rows_are_of = token


def load(
    directory: str | os.PathLike[str],
    state: dict[str, Any],
    *,
    weights_only: bool = True,
    worker: Worker | None = None,
) -> dict[str, Any]:
    """Puts what save() left back into `state`, by name; the values, which have no load_state_dict(), are
    what it returns, as {name: value}. Collective, before any worker steps.

        at = bdn.load("run1/latest", {"model": model, "optimizer": optimizer})["epoch"]

    directory: as save()'s, whatever its layout was: files that a worker needs and does not see are sent
        to it by one that does.

    A job of as many workers goes on bit for bit. In one of more or fewer, what the old ranks' links owe to
    the mean is shared out among the new ones; worker r takes its buffers, its values and the state of
    its local optimizer from rank r modulo the old number. How many servers there are makes no
    difference. CSER cannot go on so.

    weights_only: as torch.load's; False takes values of any type, from files that are trusted.
    NotFound, DataLoss and InvalidArgument say what is missing or does not fit.
    """
    worker = worker or default_worker()
    worker.barrier("bandoneon.torch.load(), which all workers must call")
    what = f"load {directory}"
    _check_nobody_lost(worker)
    with all_or_none(worker, what):
        storage = open_storage(directory)
        files = _Files(storage, None)
        has_comm = any(hasattr(item, "comm_state_dict") for item in state.values())
        tables = tables_of(state)
        names = [table.name for table in tables]
        view = {"manifests": files.manifests(), "names": files.names(), "has_comm": has_comm, "tables": names}
    views = _gather(worker, view)
    _check_same_tables(views)
    manifest = _newest(views, storage)
    files = _Files(storage, manifest["id"])
    received, failures = _fetch(worker, files, views, manifest)
    with all_or_none(worker, what):
        if failures:
            raise failures[0]
        contents = {
            part: files.read(part, received.get(part), weights_only)
            for part in _parts_for(worker.rank, worker.size, manifest["size"], has_comm)
        }
        _check_items(contents.values(), state, manifest, directory)
    _load_tables(worker, storage, views, manifest, tables, what)
    for owner in owners_of(state):
        owner.take_loaded_rows(manifest["id"])
    shared, own, *others = contents.values()
    for name, item in _in_loading_order(state):
        states = [states[name] for states in (shared["states"], own["states"]) if name in states]
        if isinstance(item, torch.nn.Module):
            load_module(item, states)
        elif states:
            item.load_state_dict(states[0])
    for name, item in state.items():
        if hasattr(item, "load_comm_state_dict"):
            comm = [one["comm"][name] for one in (own, *others)]
            item.load_comm_state_dict(comm)
    return own["values"]


def has_checkpoint(directory: str | os.PathLike[str], *, worker: Worker | None = None) -> bool:
    """Whether any worker sees a checkpoint there, whole or not. Collective."""
    worker = _Present(worker or default_worker())
    with all_or_none(worker, f"look into {directory}"):
        seen = bool(_Files(open_storage(directory), None).manifests())
    return any(_gather(worker, seen))


def has_local_models(items):
    """Whether the workers' models are not the same, between meetings."""
    return any(getattr(item, "has_local_models", False) for item in items)


def split_module(module):
    """A module's state_dict() as (parameters, everything else)."""
    parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    whole = module.state_dict()
    parts = collections.OrderedDict(), collections.OrderedDict()
    for name, value in whole.items():
        parts[name not in parameters][name] = value
    for part in parts:
        part._metadata = getattr(whole, "_metadata", None)  # The versions by which modules load older states.
    return parts


def _joined(parameters, rest):
    whole = parameters.copy()
    whole.update(rest)
    whole._metadata = parameters._metadata
    return whole


def load_module(module, parts):
    """What split_module() gave. Parts that lost the modules' versions, as copies do, are of this module's."""
    whole = collections.OrderedDict()
    whole._metadata = next((part._metadata for part in parts if getattr(part, "_metadata", None) is not None), None)
    if whole._metadata is None:
        whole._metadata = getattr(module.state_dict(), "_metadata", None)
    for part in parts:
        whole.update(part)
    module.load_state_dict(whole)


def _split(state, worker):
    """What rank 0 saves for all, and what this rank saves."""
    is_local = has_local_models(state.values())
    check_none_is_sharded(state)
    shared = {"states": {}}
    own = {"rank": worker.rank, "states": {}, "comm": {}, "values": {}}
    for name, item in state.items():
        if isinstance(item, torch.nn.Module):
            parameters, rest = split_module(item)
            own["states"][name] = _joined(parameters, rest) if is_local else rest
            if not is_local:
                shared["states"][name] = parameters
        elif hasattr(item, "state_dict"):
            is_shared = isinstance(item, torch.optim.Optimizer) and not is_local
            (shared if is_shared else own)["states"][name] = item.state_dict()
        elif not hasattr(item, "comm_state_dict"):
            own["values"][name] = item
        if hasattr(item, "comm_state_dict"):
            own["comm"][name] = {**item.comm_state_dict(), "rank": worker.rank, "size": worker.size}
    return shared, own


def check_none_is_sharded(state):
    """Rank 0 saves parameters for all, and has a part of each alone."""
    for name, item in state.items():
        params = item.parameters() if isinstance(item, torch.nn.Module) else _params_of(item)
        if any(is_shard(param) for param in params):
            raise Unimplemented(
                f"{name!r} has parameters that are DTensors, of which each rank holds a part: save and load it with "
                "torch.distributed.checkpoint, and what its links remember by bandoneon.torch.comm_state.CommState "
                "(docs/sharded.md)"
            )


def _params_of(item):
    groups = getattr(item, "param_groups", None) or []
    return [param for group in groups for param in group["params"]]


def _in_loading_order(state):
    """Modules first: some optimizers look at their parameters."""
    return sorted(state.items(), key=lambda item: not isinstance(item[1], torch.nn.Module))


# ---- Manifests: which checkpoint is the complete one ----


def _fields_of(text):
    """Of a manifest, whatever it holds."""
    with contextlib.suppress(ValueError):
        fields = json.loads(text)
        if isinstance(fields, dict):
            return fields
    return {}


def _number_of(fields):
    """How many saves came before, as far as its workers knew."""
    number = fields.get("number")
    return number if isinstance(number, int) else 0


def _parse(text, path):
    try:
        json.loads(text)
    except ValueError as error:
        raise DataLoss(f"{path} is not what bandoneon.torch.save wrote: {error}") from None
    manifest = _fields_of(text)
    form = manifest.get("format")
    if form != _FORMAT:
        raise InvalidArgument(f"{path} is of format {form!r}; this build reads format {_FORMAT}")
    size, token = manifest.get("size"), manifest.get("id")
    if not (isinstance(size, int) and size >= 1 and _FILE.fullmatch(f"{token}.shared.pt")):
        raise DataLoss(f"{path} is of {size!r} workers and has the id {token!r}")
    checked_tables(manifest, path)
    if not all(_ID.fullmatch(one) for one in ids_in_chains(manifest)):
        raise DataLoss(f"{path} has tables in saves with ids that are none")
    return manifest


def _newest(views, storage):
    """The manifest of the newest checkpoint that workers see, whose files are all there. The same, or the
    same error, in all workers."""
    found, errors = [], []
    for rank, view in enumerate(views):
        for path, text in view["manifests"].items():
            try:
                found.append((_parse(text, path), path, rank))
            except BandoneonError as error:
                errors.append(error)
    if not found:
        if errors:
            raise errors[0]
        raise NotFound(
            f"there is no {storage.path(storage.marker('ID'))}: no checkpoint of bandoneon.torch.save, or one "
            "that was not completed, or it lies where no worker of this job sees it"
        )
    found.sort(key=lambda entry: -_number_of(entry[0]))  # Of equal ones, that of the lowest rank.
    lacking = [_missing(manifest, views) for manifest, _, _ in found]
    manifest, path, rank = found[0]
    if lacking[0] is None:
        return manifest
    text = f"the checkpoint lacks {storage.path(lacking[0])}, which no worker sees"
    whole = [m["id"] for (m, _, _), name in zip(found, lacking) if name is None]
    if whole:
        text += f"; {whole[0]} is an older one that is whole: remove {path} where worker {rank} runs to load that"
    raise NotFound(text)


def _missing(manifest, views):
    names = {name for view in views for name in view["names"]}
    for rank, view in enumerate(views):
        for part in _parts_for(rank, len(views), manifest["size"], view["has_comm"]):
            if _name(manifest["id"], part) not in names:
                return _name(manifest["id"], part)
    for table in manifest.get("rows", []) if views[0]["tables"] else []:
        for name in (name for save in table["saves"] for name in _names_in(save)):
            if name not in names:
                return name
    return None


def _names_in(save):
    """The files of one save of a table."""
    return [_name(save["id"], part_of(save["index"], rank)) for rank in range(save["ranks"])]


def _load_tables(worker, storage, views, manifest, tables, what):
    """Sets the rows of all tables. Each file is read by a worker that sees it."""
    saved = {table["table"]: table for table in manifest.get("rows", [])}
    path = storage.path(storage.marker(manifest["id"]))
    with all_or_none(worker, what):
        for table in tables:
            if table.name not in saved:
                others = ", ".join(map(repr, saved)) or "no table"
                raise InvalidArgument(f"{path} has nothing of table {table.name!r}: it is of {others}", tensor=table.name)
            check_fits(table, saved[table.name], path)
        for table in tables if worker.rank == 0 else []:
            clear_table(table, saved[table.name]["saves"][-1]["updates"])
    # In the order of the saves: a later one has the later record of a row.
    for number in range(max((len(saved[table.name]["saves"]) for table in tables), default=0)):
        with all_or_none(worker, what):
            turn = 0
            for table in tables:
                saves = saved[table.name]["saves"]
                for name in _names_in(saves[number]) if number < len(saves) else []:
                    seen = [rank for rank, view in enumerate(views) if name in view["names"]]
                    turn += 1
                    if seen[turn % len(seen)] == worker.rank:
                        with storage.open(name) as file:
                            read_table(file, storage.path(name), table, saves[-1]["updates"])


def _forgotten(worker, tables, chains):
    """Whether servers have forgotten ids, of this worker's part of the buckets, that were removed since the last saves
    of these chains."""
    return any(
        removed_since(table, worker.rank, worker.size) > chains[table.name][-1]["updates"]
        for table in (tables if chains else [])
    )


def _parts_for(rank, size, saved_size, has_comm):
    """What a worker reads: what is everybody's, the part that it goes by, and those whose links it takes up."""
    base = base_rank(rank, saved_size)
    mapped = ranks_for(rank, size, saved_size) if has_comm else []
    return ["shared", f"rank{base}", *(f"rank{other}" for other in mapped if other != base)]


def _check_items(contents, state, manifest, directory):
    shared, own, *_ = contents
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


# ---- Files ----


def _name(token, part):
    return f"{token}.{part}." + ("rows" if part.startswith("table") else "pt")


class _Files:
    """The files of one checkpoint, which its id tells from those of others in the same place."""

    def __init__(self, storage, token):
        self._storage = storage
        self._token = token

    def create(self):
        self._storage.create()

    def names(self):
        return sorted(name for name in self._storage.names() if _FILE.fullmatch(name))

    def manifests(self):
        """{path: text} of all that are there."""
        texts = {}
        for name in sorted(self._storage.names()):
            match = _MARKER.fullmatch(name)
            if match and not match[2] and name == self._storage.marker(match[1]):
                # It may be replaced by another job meanwhile.
                with contextlib.suppress(FileNotFoundError), self._storage.open(name) as file:
                    texts[self._storage.path(name)] = file.read().decode(errors="replace")
        return texts

    def write(self, part, content):
        self._storage.write(_name(self._token, part), lambda file: torch.save(content, file))

    def write_pieces(self, part, pieces, num_bytes):
        """`pieces` can be taken only once."""
        name = _name(self._token, part)
        self._storage.write(name, lambda file: _write_all(pieces, file), num_bytes)

    def write_table(self, table, index, place, places, chain):
        """Returns the table's updates. chain: the saves before, or None for all rows."""
        updates = []
        since = chain[-1]["updates"] if chain else 0
        self._storage.write(
            _name(self._token, part_of(index, place)),
            lambda file: updates.append(write_table(file, table, place, places, since)),
        )
        return updates[-1]

    def mark(self, manifest):
        text = json.dumps(manifest).encode()
        self._storage.write(self._storage.marker(self._token), lambda file: file.write(text))

    def open(self, part):
        return self._storage.open(_name(self._token, part))

    def read(self, part, received, weights_only):
        """received: a file of it that another worker has sent."""
        path = self._storage.path(_name(self._token, part))
        try:
            with received or self.open(part) as file:
                return torch.load(file, map_location="cpu", weights_only=weights_only)
        except FileNotFoundError:
            raise NotFound(f"the checkpoint lacks {path}") from None
        except Exception as error:  # Whatever reading bytes that are not a checkpoint comes to.
            raise DataLoss(f"{path} cannot be read: {type(error).__name__}: {error}") from error

    def check(self, parts):
        for part in parts:
            if not self._storage.has(_name(self._token, part)):
                raise FailedPrecondition(
                    f"worker 0 does not see {self._storage.path(_name(self._token, part))}, which another worker "
                    'has written. Give a directory on a file system that all workers see; or layout="hosts", which '
                    'leaves each host its own files, or layout="rank0", which sends all to worker 0'
                )

    def remove_all_but(self, kept, kept_rows):
        """What earlier checkpoints, and those that were not completed, have left. kept_rows: ids of saves whose files of
        tables stay."""
        for name in self._storage.names():
            match = _FILE.fullmatch(name) or _MARKER.fullmatch(name)
            if not match or name == "checkpoint.json" or match[1] in kept:
                continue
            if not (name.endswith(".rows") and match[1] in kept_rows):
                self._storage.remove(name)

    def remove_own(self):
        with contextlib.suppress(BandoneonError):
            for name in self._storage.names():
                match = _FILE.fullmatch(name)
                if match and match[1] == self._token:
                    self._storage.remove(name)


def _write_all(pieces, file):
    for piece in pieces:
        file.write(piece)


def _bytes_of(content):
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


# ---- Between workers ----


class LostAmidSave(FailedPrecondition):
    """A worker was lost while a checkpoint was saved. All that are left have this error, and may save again."""


class _Present:
    """A worker of a job that may have lost others, as one of those that are present: `rank` is its place among them and
    `size` their number, by which a checkpoint goes. Collective to make."""

    def __init__(self, worker):
        self._worker = worker
        self._ranks = worker.present()
        self.rank = self._ranks.index(worker.rank)
        self.size = len(self._ranks)

    def broadcast(self, name, data, num_bytes, root, timeout=None):
        """Of a root that is lost some workers may have the bytes, and others not, which keep theirs: all are to look
        whether everybody is here, before they go by what came."""
        try:
            self._worker.broadcast(name, data, num_bytes, self._ranks[root], timeout)
        except FailedPrecondition:
            if self._ranks[root] == self._worker.rank:
                raise

    def check_all_are_here(self):
        """LostAmidSave, in all workers, where one was lost since this was made. Collective."""
        lost = sorted(set(self._ranks) - set(self._worker.present()))
        if lost:
            raise LostAmidSave(
                f"the job goes on without worker {', '.join(map(str, lost))}, which was lost amid a checkpoint that it had "
                "part in; the checkpoint of before stays: save again"
            )

    def __getattr__(self, name):
        return getattr(self._worker, name)


def _check_nobody_lost(worker):
    """FailedPrecondition, the same in all workers: links take up states before anybody steps."""
    lost = sorted(set(range(worker.size)) - set(worker.present()))
    if lost:
        raise FailedPrecondition(
            f"this job goes on without worker {', '.join(map(str, lost))}, and a checkpoint is loaded by all "
            f"{worker.size} workers before they step: end the job, and start one from the checkpoint, which may have fewer "
            "workers. A worker that joins a job that runs has the others' state from bandoneon.torch.TrainingState"
        )


def _send_to_first(worker, files, parts):
    """Worker 0 writes what the others would have written. Whatever fails there, all pieces are taken."""
    sizes = _gather(worker, sum(len(part) for part in parts.values()) if worker.rank else 0)
    failure = None
    for root in range(1, worker.size):
        part = f"rank{root}"
        pieces = _pieces(worker, io.BytesIO(parts[part]) if root == worker.rank else None, root)
        try:
            if worker.rank == 0 and failure is None:
                files.write_pieces(part, pieces, sizes[root])
        except Exception as error:
            failure = error
        for _ in pieces:
            pass
    if failure is not None:
        raise failure


def _fetch(worker, files, views, manifest):
    """{part: a file of it} of the parts that this worker needs and does not see, and what went wrong. Those
    that somebody lacks are sent by the lowest worker that sees them."""
    needed = [
        _parts_for(rank, worker.size, manifest["size"], view["has_comm"])
        for rank, view in enumerate(views)
    ]
    received, failures = {}, []
    for part in sorted({part for parts in needed for part in parts}):
        seen = [_name(manifest["id"], part) in view["names"] for view in views]
        lacks = [part in parts and not sees for parts, sees in zip(needed, seen)]
        if not any(lacks):
            continue
        root = seen.index(True)
        copy = io.BytesIO()
        with contextlib.ExitStack() as stack:
            file = None
            try:
                if worker.rank == root:
                    file = stack.enter_context(files.open(part))
            except Exception as error:  # The others wait for the pieces.
                failures.append(error)
                file = io.BytesIO()
            for piece in _pieces(worker, file, root, failures):
                if lacks[worker.rank]:
                    copy.write(piece)
        if lacks[worker.rank]:
            copy.seek(0)
            received[part] = copy
    return received, failures


def _pieces(worker, file, root, failures=None):
    """The bytes of root's file, in pieces, at every worker; of the others `file` is None. Collective: all
    pieces are to be taken, and a file that cannot be read on ends there."""
    while True:
        piece = b""
        if worker.rank == root:
            try:
                piece = file.read(_PIECE_BYTES)
            except Exception as error:
                failures.append(error)
        piece = broadcast_bytes(worker, "checkpoint/piece", piece, root)
        yield piece
        if len(piece) < _PIECE_BYTES:
            break


def _gather(worker, mine):
    """What each worker gave, by rank: a little of what JSON takes."""
    text = json.dumps(mine).encode()
    texts = [
        broadcast_bytes(worker, "checkpoint/view", text if root == worker.rank else b"", root) for root in range(worker.size)
    ]
    if isinstance(worker, _Present):
        worker.check_all_are_here()
    return [json.loads(text) for text in texts]


def _check_one_layout(views):
    for rank, view in enumerate(views):
        if view["layout"] != views[0]["layout"]:
            raise InvalidArgument(
                f"worker {rank} saves with layout={view['layout']!r}, worker 0 with {views[0]['layout']!r}: give "
                "the same in all workers"
            )


def _check_same_tables(views):
    for rank, view in enumerate(views):
        if view["tables"] != views[0]["tables"]:
            raise InvalidArgument(
                f"worker {rank} has the tables {view['tables']} in its state, worker 0 {views[0]['tables']}: give the same "
                "RowOptimizers in all workers"
            )


def _check_same_everywhere(worker, views, sums):
    """InvalidArgument in all workers where what worker 0 saves for all is other in some: it names what, and them."""
    if all(view["digest"] == views[0]["digest"] for view in views):
        return
    of_all = _gather(worker, sums)
    first = of_all[0]
    differing = {}  # what -> the ranks that have it otherwise
    for rank, others in enumerate(of_all):
        for name in {**first, **others}:
            if first.get(name) != others.get(name):
                differing.setdefault(name, []).append(rank)
    name, ranks = next(iter(differing.items()))
    others = f", and so are {len(differing) - 1} others" if len(differing) > 1 else ""
    where = f"worker {ranks[0]}" if len(ranks) == 1 else f"workers {', '.join(map(str, ranks))}"
    raise InvalidArgument(
        f"{name} is not the same in {where} as in worker 0{others}, and worker 0 alone would save it for all. If the "
        "workers' models have come apart, broadcast_parameters() makes them equal; what each worker has of its own goes "
        "into the state as a value, such as module.state_dict(), which every worker saves; check=False saves worker 0's",
        tensor=name,
    )


@contextlib.contextmanager
def all_or_none(worker, what):
    """Ends with an error in all workers where it does in one, whose reason all of them have. Nothing inside
    waits for other workers after an error of its own."""
    error = None
    try:
        yield
    except Exception as failure:
        error = failure
    failed = host_zeros(worker.size)
    failed[worker.rank] = error is not None
    try:
        push_pull(failed, f"checkpoint/failed/{worker.size}", push="none", pull="none", worker=worker).wait()
        if failed.any():
            root = int(failed.nonzero()[0])
            reason = broadcast_bytes(worker, "checkpoint/reason", _reason_of(error), root)
    except BandoneonError as failure:
        raise error or failure
    if error is not None:
        raise error
    if failed.any():
        code, _, text = reason.decode().partition(" ")
        raise error_for_code(int(code), f"worker {root} could not {what}: {text}")


def _reason_of(error):
    if isinstance(error, BandoneonError):
        return f"{error.code} {error}".encode()
    return f"{FailedPrecondition.code} {type(error).__name__}: {error}".encode()
