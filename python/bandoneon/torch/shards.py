"""DTensors, as FSDP2 and tensor parallelism make them: each worker exchanges the part that it holds."""

from __future__ import annotations

import functools
import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from ..errors import InvalidArgument, Unimplemented

# Codecs whose output does not depend on draws: copies of one tensor that are exchanged apart stay copies.
_WITHOUT_DRAWS = ("none", "fp16", "bf16", "onebit", "sign", "topk(", "ef(", "delta(")


@functools.lru_cache(maxsize=None)
def _is_dtensor(kind):
    return any(cls.__name__ == "DTensor" for cls in kind.__mro__)


def is_shard(tensor):
    """Whether it is a DTensor."""
    return type(tensor) is not torch.Tensor and _is_dtensor(type(tensor))


def local_of(tensor):
    """The part of a DTensor that this process holds, in the same memory; any other tensor as it is."""
    if not is_shard(tensor):
        return tensor
    with torch.no_grad():
        return tensor.to_local()


def divided_like(tensor, param):
    """A DTensor divided as the DTensor `param`, which may take a call of all processes of its mesh; any other tensor
    as it is."""
    if not is_shard(tensor) or tensor.placements == param.placements:
        return tensor
    return tensor.redistribute(placements=param.placements)


class Layout(NamedTuple):
    """What a DTensor is besides the parts that processes hold, but for its mesh."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    placements: tuple[Any, ...]


def layout_of(tensor):
    """The Layout of a DTensor; None of any other tensor."""
    if not is_shard(tensor):
        return None
    return Layout(tuple(tensor.shape), tuple(tensor.stride()), tuple(tensor.placements))


@dataclass(frozen=True)
class LocalPart:
    """The part of a DTensor that a process holds, as one process gives it to another."""

    tensor: torch.Tensor
    layout: Layout


def joined_to(given, like):
    """A LocalPart as the DTensor that it is a part of, in the mesh of the DTensor `like`; anything else as it is."""
    if not isinstance(given, LocalPart):
        return given
    shape, stride, placements = given.layout
    local = given.tensor.to(local_of(like).device)
    return type(like).from_local(local, like.device_mesh, placements, run_check=False, shape=torch.Size(shape), stride=stride)


def local_named(named):
    """(name, tensor) pairs with the parts that this process holds."""
    return [(name, local_of(tensor)) for name, tensor in named]


def check_may_be_sharded(name, param, options):
    """Refuses a DTensor that could not stay what it is: with parts that are to be added up, or with copies that
    codecs with draws would make differ."""
    placements = param.placements
    if any(placement.is_partial() for placement in placements):
        raise Unimplemented(
            f"{name!r} is a DTensor whose parts are still to be added up ({_described(param)}); redistribute it to "
            "Shard() or Replicate() before its optimizer is made",
            tensor=name,
        )
    has_copies = any(
        placement.is_replicate() and size > 1 for placement, size in zip(placements, param.device_mesh.shape)
    )
    draws = [spec for spec in (options.push, options.pull) if not _is_without_draws(spec)]
    if has_copies and draws:
        raise InvalidArgument(
            f"{name!r} has copies in the ranks of its mesh ({_described(param)}), which would come apart, as each is "
            f"exchanged with draws of its own by {draws[0]!r}: give it push='none' and pull='none', or a codec that does "
            'not draw, by Links(overrides={"PATTERN": dict(push="none", pull="none")})',
            tensor=name,
        )


def warn_of_unsharded(model, named):
    """Where FSDP2 shards a model but for some parameters, whose gradients it does not reduce."""
    if model is None or not any(_is_fsdp(type(module)) for module in model.modules()):
        return
    plain = [name for name, param in named if param.requires_grad and not is_shard(param)]
    if plain:
        warnings.warn(
            f"{plain[0]!r} ({len(plain)} of {len(named)} parameters) is not sharded, so FSDP2 does not reduce its gradient "
            "inside an island, and the ranks of an island would come apart: call fully_shard() on the whole model, too, or reduce "
            "the gradient yourself",
            RuntimeWarning,
            stacklevel=4,
        )


@functools.lru_cache(maxsize=None)
def _is_fsdp(kind):
    return any(cls.__name__ == "FSDPModule" for cls in kind.__mro__)


def places_of(named):
    """What workers that exchange these must have in common: [[name, placements and mesh, coordinate], ...] of those that
    are DTensors."""
    return [
        [name, _described(tensor), list(tensor.device_mesh.get_coordinate() or [])]
        for name, tensor in named
        if is_shard(tensor)
    ]


def differing_place(worker, mine, theirs, root):
    """As agree() of broadcast.py calls it, with two lists of places_of()."""
    for own, roots in zip(mine, theirs):
        if own == roots:
            continue
        if own[:2] != roots[:2]:
            return InvalidArgument(
                f"worker {worker.rank} has {own[0]!r} as {own[1]} where worker {root} has {roots[0]!r} as {roots[1]}: all that "
                "exchange a parameter shard it alike",
                tensor=own[0],
            )
        return InvalidArgument(
            f"worker {worker.rank} holds another part of {own[0]!r} (place {own[2]} in its mesh) than worker {root} (place "
            f"{roots[2]}), and parts of different places cannot be added up: give worker=bandoneon.torch.sharded.new_group(...) "
            'of the ranks that hold the same part, as new_group(mesh["island"]), along the dimension that is not sharded',
            tensor=own[0],
        )
    if len(mine) == len(theirs):
        return None
    return InvalidArgument(
        f"worker {worker.rank} has {len(mine)} parameters that are DTensors, and worker {root} has {len(theirs)}: all that "
        "exchange a model shard it alike"
    )


def _described(tensor):
    placements = ", ".join(str(placement) for placement in tensor.placements)
    return f"DTensor({placements}; mesh of {' x '.join(str(size) for size in tensor.device_mesh.shape)})"


def _is_without_draws(spec):
    periods = [period.split(" for ")[0].strip() for period in spec.split(";")]
    inner = [period.removeprefix("ef(").removeprefix("delta(").lstrip() for period in periods]
    return all(one.startswith(_WITHOUT_DRAWS) and "sampled" not in one for one in inner)
