"""What a worker that comes into a running job takes over from the others, and how it gets there."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import Any, Iterator, NamedTuple

import torch

from ..errors import InvalidArgument
from ..worker import Worker
from .broadcast import broadcast_bytes, room_for
from .tensors import host_zeros

# State travels in pieces of this size, so that nobody needs room for a second copy of it.
_PIECE_BYTES = 16 << 20


@dataclass
class Handover:
    """State of one object: trees of dicts, lists, tuples, tensors, and values that pickle takes. `common` is the same in
    all workers, which is checked where it is handed over. `lent` is the giver's own: a newcomer begins with a copy."""

    common: Any = field(default_factory=dict)
    lent: Any = field(default_factory=dict)


class Received(NamedTuple):
    """What hand_over() returns."""

    state: dict[str, Handover]  # of the giver
    differs: str | None  # the first place at which this worker has something else than the giver in what is common
    num_bytes: int  # of all tensors


def load_exactly(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """load_state_dict() without torch's cast of the state to the parameters' types, which would round what the others
    keep as it is."""
    optimizer.load_state_dict(state)
    params = [param for group in optimizer.param_groups for param in group["params"]]
    numbers = [number for group in state["param_groups"] for number in group["params"]]
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
    """Gives the state of worker `giver`, by the objects' names, to all. Collective. `mine` is this worker's state; None
    says that it has none, and is to be sent everything. What the others have already, by its hash, is not sent to them,
    and stays. FailedPrecondition, in all workers or in some, where the giver is lost."""
    own = {} if mine is None else {path: tensor for path, tensor, _ in _tensors_of(_trees_of(mine))}
    tree = _map(_trees_of(mine), _slot_of) if mine is not None else None
    payload = pickle.dumps(tree) if worker.rank == giver else b""
    given = pickle.loads(broadcast_bytes(worker, "state of training", payload, giver))
    differs = None if mine is None else _difference(tree, given)
    places, taken = [], []
    for path, slot, is_common in _tensors_of(given):
        tensor = own.get(path)
        if tensor is not None and _slot_of(tensor) == slot:
            places.append(_Place(path, tensor, is_common, False))
        else:
            tensor = host_zeros(slot.shape, slot.dtype)
            places.append(_Place(path, tensor, False, True))
        taken.append(tensor)
    unequal = _broadcast(worker, places, giver)
    rest = iter(taken)
    whole = _map(given, lambda leaf: next(rest) if isinstance(leaf, _Slot) else leaf)
    state = {name: Handover(common, whole["lent"][name]) for name, common in whole["common"].items()}
    return Received(state, differs or unequal, sum(tensor.nbytes for tensor in taken))


class _Slot(NamedTuple):
    """The place of a tensor in a tree."""

    dtype: torch.dtype
    shape: tuple[int, ...]


class _Place(NamedTuple):
    """A tensor on its way."""

    path: str
    tensor: torch.Tensor
    is_checked: bool  # it must be the giver's
    is_written: bool  # it becomes the giver's


def _trees_of(state):
    return {
        "common": {name: handover.common for name, handover in state.items()},
        "lent": {name: handover.lent for name, handover in state.items()},
    }


def _slot_of(leaf):
    """A leaf of a tree as it travels in the tree."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    if leaf.layout is not torch.strided or leaf.is_quantized or hasattr(leaf, "device_mesh"):
        raise InvalidArgument(f"a tensor of the type {type(leaf).__name__} and the layout {leaf.layout} cannot be handed over")
    return _Slot(leaf.dtype, tuple(leaf.shape))


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


def _broadcast(worker, places, giver):
    """Returns the name of the first tensor that is checked and not the giver's, or None."""
    piece = host_zeros(_PIECE_BYTES, torch.uint8)
    filled, within, unequal = 0, [], []

    def send(num_bytes):
        before = piece[:num_bytes].clone() if any(place.is_checked for place, *_ in within) else None
        worker.broadcast("state of training/piece", piece.data_ptr(), num_bytes, giver)
        for place, target, begin, end in within:
            if place.is_written:
                target.copy_(piece[begin:end])
            elif place.is_checked and not torch.equal(before[begin:end], piece[begin:end]):
                unequal.append(_named(place.path[1:]))

    for place in places:
        data = place.tensor.detach().resolve_conj().resolve_neg().to("cpu").contiguous().reshape(-1).view(torch.uint8)
        at = 0
        while at < data.numel():
            count = min(data.numel() - at, _PIECE_BYTES - filled)
            piece[filled : filled + count] = data[at : at + count]
            within.append((place, data[at : at + count], filled, filled + count))
            at += count
            filled += count
            if filled == _PIECE_BYTES:
                send(filled)
                filled, within = 0, []
    if filled:
        num_bytes = min(room_for(filled), _PIECE_BYTES)
        piece[filled:num_bytes] = 0
        send(num_bytes)
    return unequal[0] if unequal else None
