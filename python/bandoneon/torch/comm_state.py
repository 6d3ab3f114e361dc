"""Saved states of what is exchanged: what they are saved under, and whose of them a worker takes up."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from ..errors import InvalidArgument
from ..session import default_worker
from ..worker import Worker
from .link_options import corrects_by_rate
from .tensors import host_zeros

__all__ = ["CommState"]

_FORMAT = 2
# Settings that states of this format may lack, as what they were saved under.
_BEFORE_THERE_WAS_A_CHOICE = {"average": "after"}


def saved_by(worker, settings):
    """What every comm_state_dict() begins with."""
    return {"format": _FORMAT, "settings": settings, "rank": worker.place, "size": worker.sharers}


def ranks_for(rank, size, saved_size):
    """The ranks of a job of `saved_size` workers whose residuals worker `rank` of `size` takes up: each
    belongs to exactly one. In the same number of workers, its own."""
    return list(range(rank, saved_size, size))


def base_rank(rank, saved_size):
    """The rank whose state `rank` goes by in what is the same in all, such as steps."""
    return rank % saved_size


def fitting_state(state, settings, worker, only_same_size=None):
    """This worker's part of a comm_state_dict() that was saved under the same settings. `state` is this
    rank's, or a list of those of all ranks, which may be of a job of another number of workers: see
    _mapped. InvalidArgument says what does not fit.

    only_same_size: why another number of workers is refused.
    """
    states = list(state) if isinstance(state, (list, tuple)) else [state]
    if not states:
        raise InvalidArgument("an empty list of states; give it the comm_state_dict() of every rank")
    for one in states:
        _check_header(one)
        check_settings(one, settings)
    saved_size = states[0]["size"]
    for one in states:
        if one["size"] != saved_size:
            raise InvalidArgument(
                f"the states are of jobs of {saved_size} and of {one['size']} workers; give those of one "
                "checkpoint"
            )
    by_rank = {one["rank"]: one for one in states}
    if saved_size == worker.sharers:
        if worker.place not in by_rank:
            raise InvalidArgument(
                f"this state is of worker {states[0]['rank']} of {saved_size}, but this is worker "
                f"{worker.place} of {worker.sharers}; every rank loads its own"
            )
        return by_rank[worker.place]
    resized = f"the state is of a job of {saved_size} workers, and this one has {worker.sharers}"
    if only_same_size:
        raise InvalidArgument(f"{resized}: {only_same_size}")
    base = base_rank(worker.place, saved_size)
    mapped = ranks_for(worker.place, worker.sharers, saved_size)
    missing = [str(r) for r in sorted({base, *mapped}) if r not in by_rank]
    if missing:
        raise InvalidArgument(
            f"{resized}: worker {worker.place} also needs the state of rank {', '.join(missing)}. Give "
            "load_comm_state_dict() the list of all ranks' states, or use bandoneon.torch.load"
        )
    return _mapped(by_rank[base], [by_rank[r] for r in mapped], worker)


def _mapped(base, mapped, worker):
    """The base's state with what the mapped ranks' links owe, for a worker of another number of workers.

    Every worker's residual e comes to the mean as e / n. So what n workers owe to it is owed by n' of
    them if each has n' / n times the sum of those that are mapped to it; momentum likewise, being
    linear, too, and so does what an optimizer keeps in a LocalMemory. A worker that none are mapped to owes
    nothing. What servers keep is of the mean already.
    """
    scale = worker.sharers / base["size"]
    tensors = {}
    for name, entry in base["tensors"].items():
        others = [_entry_of(one, name, entry["step"]) for one in mapped]
        tensors[name] = _sum_of_entries(entry, others, scale)
    local = {}
    for what, arrays in base.get("local", {}).items():
        local[what] = {
            name: _scaled_sum([_local_of(one, what, name, array) for one in mapped], array, scale)
            for name, array in arrays.items()
        }
    return {**base, "tensors": tensors, **({"local": local} if local else {})}


def _entry_of(state, name, step):
    entry = state["tensors"].get(name)
    if entry is None:
        raise InvalidArgument(f"the state of rank {state['rank']} has no {name!r}", tensor=name)
    if entry["step"] != step:
        raise InvalidArgument(
            f"{name!r} is at step {entry['step']} in the state of rank {state['rank']} and at step {step} "
            "in another; give those of one checkpoint",
            tensor=name,
        )
    return entry


def _sum_of_entries(base, entries, scale):
    rate = next((e["learning_rate"] for e in entries if e["learning_rate"] > 0), 0.0)
    result = {**base, "learning_rate": rate}
    for what in ("residual", "momentum"):
        if what not in base:
            continue
        arrays = []
        for entry in entries:
            # A residual is worth its learning rate where ef(..., correction=lr) goes by it.
            own = entry["learning_rate"]
            by_rate = what == "residual" and own > 0 and corrects_by_rate(entry["facts"]["push"])
            arrays.append(entry[what].to(torch.float64) * (own / rate if by_rate else 1.0))
        result[what] = _scaled_sum(arrays, base[what], scale)
    return result


def _local_of(state, what, name, like):
    array = state.get("local", {}).get(what, {}).get(name)
    if array is None or array.shape != like.shape:
        raise InvalidArgument(
            f"the state of rank {state['rank']} has no {what} of {name!r} with the shape {list(like.shape)}; give "
            "those of one checkpoint",
            tensor=name,
        )
    return array


def _scaled_sum(arrays, like, scale):
    total = host_zeros(like.shape, torch.float64)
    for array in arrays:
        total += array.to(torch.float64)
    largest = torch.finfo(torch.float32).max
    return (total * scale).clamp(-largest, largest).to(torch.float32)


def _check_header(state):
    """InvalidArgument where it is not a comm_state_dict() of this format."""
    form = state.get("format") if isinstance(state, dict) else None
    if form != _FORMAT:
        what = f"of format {form!r}" if isinstance(state, dict) and "tensors" in state else "foreign"
        raise InvalidArgument(
            f"the state is {what}: this build reads what comm_state_dict() gave in format {_FORMAT}"
        )
    size, rank = state.get("size"), state.get("rank")
    if not (isinstance(size, int) and isinstance(rank, int) and 0 <= rank < size):
        raise InvalidArgument(f"the state says that it is of worker {rank!r} of {size!r}")


def check_settings(state, settings):
    """InvalidArgument where a saved state's settings are others."""
    saved = state.get("settings", {})
    for name in {**settings, **saved}:
        mine, theirs = (one.get(name, _BEFORE_THERE_WAS_A_CHOICE.get(name)) for one in (settings, saved))
        if theirs != mine:
            raise InvalidArgument(f"the state was saved under {name}={theirs!r}, and here it is {name}={mine!r}")


class CommState:
    """The comm_state_dict() of an optimizer as torch.distributed.checkpoint takes it, which saves what
    two ranks have under one name only once: a Stateful, with this rank in its keys. AppState has model
    and optimizer beside it.

    owner: anything with comm_state_dict() and load_comm_state_dict(), both collective here.
    saved_size: workers of the job, or of the group, that saved, to load it where there are more or fewer now.
    worker: the group, where `owner` has one.

    Around LocalSteps and CSER every rank has a model and optimizer state of its own: there, put the rank
    into their names, too, f"model{rank}". get_optimizer_state_dict() and its like take a step where an
    optimizer has no state yet: give them `inner`, whose steps do not count.
    """

    def __init__(
        self, owner: Any, *, saved_size: int | None = None, worker: Worker | None = None
    ) -> None:
        self._owner = owner
        self._worker = worker or default_worker()
        self._saved_size = check_saved_size(saved_size, self._worker)

    def state_dict(self) -> dict[str, Any]:
        """Of this rank; where saved_size is another, of the ranks that it would take up."""
        rank, size, saved_size = self._worker.place, self._worker.sharers, self._saved_size
        own = self._owner.comm_state_dict()
        if saved_size == size:
            return {self._key(rank): own}
        ranks = {base_rank(rank, saved_size), *ranks_for(rank, size, saved_size)}
        return {self._key(r): _shaped_as(own, with_servers=r == rank) for r in sorted(ranks)}

    def _key(self, rank):
        """Of the state of the worker at this place, of the whole job or of its group."""
        return self._worker.named(f"rank{rank}")

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from what state_dict() gave. InvalidArgument names the ranks that the state is of."""
        states = [state_dict[key] for key in sorted(state_dict)]
        key = self._key(self._worker.place)
        if self._saved_size == self._worker.sharers and key not in state_dict:
            raise InvalidArgument(
                f"the state is of {', '.join(sorted(state_dict))}, and this is {key}; every rank saves "
                "and loads its own"
            )
        for state in states:
            _check_header(state)
            if state["size"] != self._saved_size:
                raise InvalidArgument(
                    f"the state is of a job of {state['size']} workers, not {self._saved_size}; give "
                    f"saved_size={state['size']}"
                )
        self._owner.load_comm_state_dict(states)


def _shaped_as(state, with_servers):
    """A copy to be read into. What servers hold is in the state of the worker that needs it, and of no other."""
    if not isinstance(state, dict):
        return state.clone() if isinstance(state, torch.Tensor) else state
    kept = {key: value for key, value in state.items() if with_servers or key != "server"}
    return {key: _shaped_as(value, with_servers) for key, value in kept.items()}


def check_saved_size(saved_size, worker):
    if saved_size is None:
        return worker.sharers
    if not isinstance(saved_size, int) or saved_size < 1:
        raise InvalidArgument(f"saved_size={saved_size!r} is not a number of workers")
    return saved_size


def steps_taken(optimizer):
    """The most steps that an optimizer's state counts, 0 before the first; None where it keeps something
    and counts none, like SGD with momentum."""
    steps = _counted(optimizer)
    if steps:
        return max(steps)
    kept = [value for state in optimizer.state.values() for value in state.values()]
    return None if any(isinstance(value, torch.Tensor) and value.any() for value in kept) else 0


def _counted(optimizer):
    return [int(state["step"]) for state in optimizer.state.values() if "step" in state]


def step_to_resume_at(optimizer, step):
    """`step`, or if None the most that the optimizer's state counts: none, too, where none was loaded."""
    if step is not None:
        return step
    steps = _counted(optimizer)
    if not steps:
        raise InvalidArgument(
            f"the state of {type(optimizer).__name__} counts no steps; say resume_at(step)"
        )
    return max(steps)


class ResumeCheck:
    """Says it once where an optimizer goes on from a checkpoint and its links begin anew."""

    def __init__(self, remedy=""):
        self._remedy = remedy
        self._seen = None  # load_state_dict() puts another dict into its place
        self.is_settled = False  # a comm state was loaded, or there is nothing to lose

    def before_step(self, optimizer, link_steps):
        """link_steps() is how many steps the links have taken before this one."""
        if self.is_settled or optimizer.state is self._seen:
            return
        self._seen = optimizer.state
        own = steps_taken(optimizer)
        if own == 0:
            return
        links = link_steps()
        # One step may be get_optimizer_state_dict()'s, which makes an optimizer's state by it.
        if links > 0 if own is None else own <= links + 1:
            return
        self.is_settled = True
        warnings.warn(
            f"the optimizer's state is {'not new' if own is None else f'of step {own}'}, and its links "
            f"stand at step {links}: codec schedules and warm-ups begin again, and residuals are lost. If "
            "this goes on from a checkpoint, save comm_state_dict() with it and load that, too "
            f"(bandoneon.torch.save and load do){self._remedy}",
            RuntimeWarning,
            stacklevel=5,
        )
