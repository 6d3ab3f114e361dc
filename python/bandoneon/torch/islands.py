"""Islands: ranks of a job that hold one sharded model together, and so come and go together."""

from __future__ import annotations

import os
import traceback
import warnings
from typing import Iterable, Sequence

import torch

from ..errors import BandoneonError, InvalidArgument
from ..worker import Worker


class Islands:
    """Ranks that come and go together. Islands of `size` ranks each hold a sharded model together, and are counted on: island k
    has the ranks k * size to (k + 1) * size - 1. Where replicas are whole, each rank is an island, or each host whose processes
    take part by its daemon."""

    def __init__(self, size: int, firsts: Sequence[int] = ()) -> None:
        self.size = size
        self._firsts = firsts  # of whole replicas: by rank, the lowest rank of its host

    @property
    def is_sharded(self) -> bool:
        """Whether a rank holds a part of a model, and not the whole of it."""
        return self.size > 1

    @property
    def noun(self) -> str:
        return "island" if self.is_sharded else "host"

    @classmethod
    def of(cls, worker: Worker) -> Islands:
        """The islands of a job whose group `worker` exchanges one part of a sharded model, as sharded.across_islands() makes
        it; the hosts, or ranks, of a worker that is no group."""
        ranks, total = list(worker.ranks), worker.whole.size
        size = max(total // len(ranks), 1)
        if ranks != list(range(ranks[0], total, size)) or ranks[0] >= size:
            raise InvalidArgument(
                f"a group of ranks {ranks} of {total} does not come and go by islands: those are {size} ranks each, counted "
                "on, and a group has one of each, as bandoneon.torch.sharded.across_islands() makes it where BANDONEON_ISLAND "
                "numbers the torchruns"
            )
        return cls(size) if size > 1 else cls(1, [worker.whole.host_ranks(rank).start for rank in ranks])

    def of_rank(self, rank: int) -> int:
        """The number of its island."""
        return self._firsts[rank] if self._firsts else rank // self.size

    def of_ranks(self, ranks: Iterable[int]) -> set[int]:
        """The numbers of the islands that have any of these."""
        return {self.of_rank(rank) for rank in ranks}

    def whole(self, ranks: Iterable[int]) -> list[int]:
        """Those of the ranks whose islands are there with all of their ranks, rising."""
        given = sorted(ranks)
        islands = [self.of_rank(rank) for rank in given]
        return [rank for rank, island in zip(given, islands) if islands.count(island) == self._size_of(island)]

    def _size_of(self, island):
        return self._firsts.count(island) if self._firsts else self.size

    def mates_among(self, ranks: Iterable[int], present: Iterable[int]) -> list[int]:
        """Those of `present` that are of an island with one of the ranks, rising."""
        islands = self.of_ranks(ranks)
        return sorted(rank for rank in present if self.of_rank(rank) in islands)

    def peers_among(self, rank: int, present: Iterable[int]) -> list[int]:
        """Those of `present` that hold the part that `rank` holds, rising."""
        return sorted(other for other in present if other % self.size == rank % self.size)


def warn_of_old_addresses() -> None:
    """Warns where torchrun would start this island again with the store of torch.distributed that it has: what the processes
    before wrote into it is read by those after, which then wait for addresses where nobody listens (pytorch#135712)."""
    environment = os.environ
    may_restart = environment.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0"
    if environment.get("RANK") == "0" and may_restart and environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        warnings.warn(
            "torchrun keeps its store when it starts this island again, and init_process_group() then hangs now and then; start "
            "torchrun with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in its environment, and with --standalone or --rdzv-backend c10d",
            stacklevel=3,
        )


def is_failure_inside(error: BaseException) -> bool:
    """Whether torch.distributed has failed, as it does in the ranks of an island that has lost one: nobody can train on there."""
    if isinstance(error, getattr(torch.distributed, "DistError", ())):
        return True
    if not isinstance(error, RuntimeError) or isinstance(error, BandoneonError):
        return False
    if any(word in str(error).lower() for word in ("gloo", "nccl")):
        return True
    files = [frame.f_code.co_filename.replace(os.sep, "/") for frame, _ in traceback.walk_tb(error.__traceback__)]
    while files and files[-1].endswith(("/torch/_ops.py", "/torch/utils/_contextlib.py")):
        files.pop()
    return bool(files) and "/torch/distributed/" in files[-1]
