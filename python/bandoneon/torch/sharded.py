"""Exchange among some of the ranks: groups, and models whose parameters are sharded inside an island.

    from bandoneon.torch import sharded

    island = sharded.new_group([0, 2])           # all of them call it; or a dimension of a DeviceMesh: mesh["island"]
    bdn.push_pull(loss, "loss", worker=island).wait()
    optimizer = bdn.DistributedOptimizer(sgd, expert, worker=island)

A group goes wherever worker= does (docs/sharded.md).
"""

from __future__ import annotations

import operator
from typing import Any, Iterable

import torch

from ..errors import InvalidArgument
from ..session import default_worker
from ..worker import Worker
from ..worker_group import WorkerGroup
from .broadcast import allgather_object

__all__ = ["WorkerGroup", "across_islands", "new_group"]


def new_group(ranks: Iterable[int] | Any, *, worker: Worker | None = None) -> WorkerGroup:
    """A group of some of the job's workers, this one among them: what is given it as worker= exchanges among these
    alone, and nobody else sends, is sent or holds anything for it. Only its members call it, and calling it
    exchanges nothing, but where it says so.

    ranks: of the job, as bandoneon.torch.rank() tells them, in any order. Or a torch.distributed process group,
        or one dimension of a DeviceMesh, mesh["island"]: its members then tell each other their ranks in this job,
        through that group, so all of them call it.
    """
    worker = worker or default_worker()
    group = _process_group(ranks)
    return WorkerGroup(worker, _listed(ranks) if group is None else _ranks_of(group, worker))


def across_islands(group: Any = None, *, worker: Worker | None = None) -> WorkerGroup:
    """The group of those that have this process's rank in a torch.distributed of their own: for islands that know
    nothing of each other but through this job, as where each has a torchrun. Collective in the whole job.

    group: the process group inside the island whose ranks tell who holds which part; by default all of the island.

    A worker that joins a job that runs cannot ask the others yet: there it is the group of those whose places in their
    islands are this one's, as BANDONEON_ISLAND numbers them.
    """
    worker = worker or default_worker()
    mine = [torch.distributed.get_rank(group), torch.distributed.get_world_size(group)]
    if worker.is_candidate():
        return _across_numbered(worker, *mine)
    places = dict(zip(worker.present(), allgather_object(mine, worker=worker)))
    for rank, other in places.items():
        if other[1] != mine[1]:
            raise InvalidArgument(
                f"worker {worker.rank} is one of {mine[1]} ranks of its island, and worker {rank} one of {other[1]}: islands "
                "that exchange a sharded model are of one size"
            )
    return WorkerGroup(worker, [rank for rank, other in places.items() if other[0] == mine[0]])


def _across_numbered(worker, place, size):
    if worker.rank % size != place or worker.size % size:
        raise InvalidArgument(
            f"worker {worker.rank} of {worker.size} joins a job that runs, and is rank {place} of {size} in its island: islands are "
            "to be counted on by BANDONEON_ISLAND, so that it can tell whose parts are its own"
        )
    return WorkerGroup(worker, range(place, worker.size, size))


def _process_group(ranks):
    """torch's process group of what was given; None where it lists ranks."""
    if not torch.distributed.is_available():
        return None
    if isinstance(ranks, torch.distributed.ProcessGroup):
        return ranks
    if not hasattr(ranks, "get_group"):
        return None
    if ranks.ndim != 1:
        names = ranks.mesh_dim_names or ()
        example = f"mesh[{names[0]!r}]" if names else "a mesh with mesh_dim_names, by name"
        raise InvalidArgument(
            f"a mesh of {ranks.ndim} dimensions is no group: give the dimension along which to exchange, {example}"
        )
    return ranks.get_group()


def _ranks_of(group, worker):
    ranks = [None] * torch.distributed.get_world_size(group)
    torch.distributed.all_gather_object(ranks, worker.rank, group=group)
    return ranks


def _listed(ranks):
    try:
        return [operator.index(rank) for rank in ranks]
    except TypeError:
        raise InvalidArgument(
            f"new_group({ranks!r}): give a list of ranks, a process group of torch.distributed, or one dimension of a "
            "DeviceMesh"
        ) from None
