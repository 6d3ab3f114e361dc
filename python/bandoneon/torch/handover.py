"""What a worker that comes into a running job takes over from the others, and how it gets there."""

from __future__ import annotations

import functools
import pickle
import threading
from dataclasses import dataclass, field
from typing import Any, Iterator, NamedTuple

import torch

from .. import _native
from ..calls import Holding
from ..errors import InvalidArgument
from ..worker import Worker
from .broadcast import broadcast_bytes, room_for
from .shards import Layout, LocalPart, joined_to, layout_of, local_of
from .tensors import host_zeros

# State travels in pieces of this size, so that nobody needs room for a second copy of it, and so many at once, so that
# one is cut and hashed while another is on its way.
_PIECE_BYTES = 32 << 20
_PIECES_AT_ONCE = 2


@dataclass
class Handover:
    """State of one object: trees of dicts, lists, tuples, tensors, and values that pickle takes. `common` is the same in
    all workers, which is checked where it is handed over. `lent` is the giver's own: a newcomer begins with a copy.
    A worker gives the part of a DTensor that it holds, which comes as a LocalPart."""

    common: Any = field(default_factory=dict)
    lent: Any = field(default_factory=dict)


class Received(NamedTuple):
    """What hand_over() returns."""

    state: dict[str, Handover]  # of the giver; of one that has a state, its own
    differs: str | None  # the first place at which this worker has something else than the giver in what is common
    num_bytes: int  # of all tensors


def load_exactly(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """load_state_dict() without torch's cast of the state to the parameters' types, which would round what the others
    keep as it is."""
    params = [param for group in optimizer.param_groups for param in group["params"]]
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    of_params = {
        number: _map(state["state"][number], functools.partial(joined_to, like=param))
        for number, param in zip(numbers, params)
        if number in state["state"]
    }
    state = {**state, "state": {**state["state"], **of_params}}
    optimizer.load_state_dict(state)
    for number, param in zip(numbers, params):
        if number in state["state"]:
            optimizer.state[param] = _as_given(optimizer.state[param], state["state"][number])


def _as_given(loaded, given):
    """The loaded tree, with the given values where torch has cast them."""
    if isinstance(given, torch.Tensor) and isinstance(loaded, torch.Tensor):
        return loaded if loaded.dtype == given.dtype else given.to(loaded.device, copy=True)
    if isinstance(given, dict) and isinstance(loaded, dict):
        for key in given:
            loaded[key] = _as_given(loaded.get(key), given[key])
        return loaded
    if type(given) is type(loaded) and isinstance(given, (list, tuple)) and not hasattr(given, "_fields"):
        return type(given)(_as_given(*pair) for pair in zip(loaded, given))
    return loaded


def check_can_travel(name: str, given: Handover) -> None:
    """InvalidArgument where a state has something that hand_over() could not give."""
    try:
        pickle.dumps(_map(_trees_of({name: given}), _slot_of))
    except InvalidArgument:
        raise
    except Exception as error:
        raise InvalidArgument(f"the state of {name!r} cannot be pickled, and so not be handed over: {error}") from None


def hand_over(worker: Worker, mine: dict[str, Handover] | None, giver: int) -> Received:
    """Gives the state of worker `giver`, by the objects' names, to those that have none. Collective. `mine` is this worker's
    state, which stays as it is and is compared with the giver's; None says that it has none. FailedPrecondition, in all
    workers or in some, where the giver is lost."""
    tree = None if mine is None else _map(_trees_of(mine), _slot_of)
    payload = pickle.dumps(tree) if worker.rank == giver else b""
    given = pickle.loads(broadcast_bytes(worker, "state of training", payload, giver))
    slots = list(_tensors_of(given))
    sizes = [slot.num_bytes() for _, slot, _ in slots]
    if mine is None:
        tensors = [host_zeros(slot.shape, slot.dtype) for _, slot, _ in slots]
        _broadcast(worker, tensors, sizes, giver)
        broadcast_bytes(worker, "state of training/sums", b"", giver)
        rest = iter(tensors)
        whole = _map(given, lambda leaf: leaf.filled(next(rest)) if isinstance(leaf, _Slot) else leaf)
        state = {name: Handover(common, whole["lent"][name]) for name, common in whole["common"].items()}
        return Received(state, None, sum(sizes))
    own = {path: tensor for path, tensor, _ in _tensors_of(_trees_of(mine))}
    # The common state that this worker has, too.
    compared = [path for path, slot, is_common in slots if is_common and path in own and _slot_of(own[path]) == slot]
    sums = _Thread(_sums_of, [own[path] for path in compared])
    try:
        _broadcast(worker, list(own.values()) if worker.rank == giver else None, sizes, giver)
    finally:
        _join([sums])
    named = dict(zip(compared, sums.outcome))
    theirs = pickle.loads(broadcast_bytes(worker, "state of training/sums", pickle.dumps(named), giver))
    differs = _difference(tree, given) or next((_named(path[1:]) for path in compared if named[path] != theirs[path]), None)
    return Received(mine, differs, sum(sizes))


class _Slot(NamedTuple):
    """The place of a tensor in a tree."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    layout: Layout | None = None  # of the DTensor whose part stands here

    def filled(self, tensor: torch.Tensor) -> torch.Tensor | LocalPart:
        """What stands here once its bytes have come."""
        return tensor if self.layout is None else LocalPart(tensor, self.layout)

    def num_bytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize


def _trees_of(state):
    return {
        "common": {name: handover.common for name, handover in state.items()},
        "lent": {name: handover.lent for name, handover in state.items()},
    }


def _slot_of(leaf):
    """A leaf of a tree as it travels in the tree."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    if leaf.layout is not torch.strided or leaf.is_quantized:
        raise InvalidArgument(f"a tensor of the type {type(leaf).__name__} and the layout {leaf.layout} cannot be handed over")
    return _Slot(leaf.dtype, tuple(local_of(leaf).shape), layout_of(leaf))


def _map(tree, change):
    """A copy of a tree with all leaves changed, in their order."""
    if isinstance(tree, _Slot):
        return change(tree)
    if isinstance(tree, dict):
        return {key: _map(value, change) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_map(value, change) for value in tree]
    if isinstance(tree, tuple) and not hasattr(tree, "_fields"):
        return tuple(_map(value, change) for value in tree)
    return change(tree)


def _leaves(tree, path=()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _leaves(value, (*path, key))
    elif isinstance(tree, (list, tuple)) and not hasattr(tree, "_fields"):
        for index, value in enumerate(tree):
            yield from _leaves(value, (*path, index))
    else:
        yield path, tree


def _tensors_of(trees):
    """(path, tensor or slot, whether it is common) of all, in their order."""
    for path, leaf in _leaves(trees):
        if isinstance(leaf, (torch.Tensor, _Slot)):
            yield path, leaf, path[0] == "common"


def _difference(mine, theirs):
    """The first place in which two trees differ in what is common, but for the values of tensors; or None."""
    own, others = (dict(_leaves(tree["common"])) for tree in (mine, theirs))
    for path in (*others, *own):
        if path not in own or path not in others or not _is_same(own[path], others[path]):
            return _named(path)
    return None


def _is_same(mine, theirs):
    if isinstance(mine, float) and mine != mine:
        return isinstance(theirs, float) and theirs != theirs
    if type(mine) is not type(theirs):
        return False
    if isinstance(mine, (bool, int, float, str, type(None), _Slot)):
        return mine == theirs
    return pickle.dumps(mine) == pickle.dumps(theirs)


def _named(path):
    """Of a tree of common things: the object's name, and where in it."""
    name, *within = map(str, path)
    return f"{name}[{']['.join(within)}]" if within else name


class Lane:
    """One of the pieces that are on their way at once, with a name of its own, and its piece of each time."""

    def __init__(self, worker, number, tensors, giver):
        self._worker = worker
        self._name = f"state of training/piece {number}"
        self._tensors = tensors  # None: this worker has them already
        self._giver = giver
        self._flat = None  # (index, bytes) of the tensor that the last piece ended in

    def has_bytes(self):
        """Whether this worker gives the pieces, or gets them."""
        return self._tensors is not None

    def send(self, piece, num_bytes):
        """Gives, or gets, a piece: (index of a tensor, first byte, last byte) of each, and maybe more bytes, which are 0."""
        held = []
        for index, begin, end in piece if self._tensors is not None else ():
            held.append(self._bytes_of(index)[begin:end].to("cpu"))
        rest = num_bytes - sum(end - begin for _, begin, end in piece)
        if self._tensors is None:
            self._worker.broadcast_parts(self._name, [(0, num_bytes)], self._giver, Holding.VALUE)
            return
        if rest:
            held.append(host_zeros(rest, torch.uint8))
        places = [(part.data_ptr(), part.numel()) for part in held]
        self._worker.broadcast_parts(self._name, places, self._giver, Holding.NOTHING, keep=held)

    def _bytes_of(self, index):
        """Of the tensor itself where it lies as it is to travel, as one always does that is new."""
        if self._flat is None or self._flat[0] != index:
            self._flat = index, _flat(self._tensors[index])
        return self._flat[1]


def _flat(tensor):
    return local_of(tensor).detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def _pieces_of(sizes):
    """Of tensors of so many bytes: lists of (index, first byte, last byte), all but the last of _PIECE_BYTES."""
    piece, filled = [], 0
    for index, size in enumerate(sizes):
        at = 0
        while at < size:
            count = min(size - at, _PIECE_BYTES - filled)
            piece.append((index, at, at + count))
            at += count
            filled += count
            if filled == _PIECE_BYTES:
                yield piece
                piece, filled = [], 0
    if piece:
        yield piece


def _broadcast(worker, tensors, sizes, giver):
    """Gives tensors of so many bytes to who has none yet. `tensors`: what is given, or written to; None: neither."""
    pieces = list(_pieces_of(sizes))
    lanes = [Lane(worker, number, tensors, giver) for number in range(_PIECES_AT_ONCE)]
    has_rest = bool(pieces) and sum(sizes) % _PIECE_BYTES != 0
    rest = pieces.pop() if has_rest else []
    # One after the other, as each declares its name, and all workers must declare in one order.
    for lane, piece in zip(lanes, pieces):
        lane.send(piece, _PIECE_BYTES)
    if has_rest:
        lanes[0].send(rest, min(room_for(sum(end - begin for _, begin, end in rest)), _PIECE_BYTES))
    threads = [_Thread(_send_all, lane, pieces[number + _PIECES_AT_ONCE :: _PIECES_AT_ONCE]) for number, lane in enumerate(lanes)]
    _join(threads)


def _send_all(lane, pieces):
    for piece in pieces:
        lane.send(piece, _PIECE_BYTES)


class _Thread(threading.Thread):
    """Runs a function beside its maker, with its outcome."""

    def __init__(self, function, *arguments):
        super().__init__(name="bandoneon-handover", daemon=True)
        self._function, self._arguments = function, arguments
        self.outcome = self.error = None
        self.start()

    def run(self):
        try:
            self.outcome = self._function(*self._arguments)
        except BaseException as error:
            self.error = error


def _join(threads):
    """Waits for all, and raises the first one's error."""
    for thread in threads:
        thread.join()
    for thread in threads:
        if thread.error is not None:
            raise thread.error


def _sums_of(tensors):
    """A checksum of each."""
    library = _native.library()
    sums = []
    for tensor in tensors:
        flat = _flat(tensor).to("cpu")
        sums.append(library.bdn_crc32c(flat.data_ptr(), flat.numel()))
    return sums
