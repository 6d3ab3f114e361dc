"""Running statistics of BatchNorm, which stay local in training."""

from __future__ import annotations

import torch

from ..session import default_worker
from ..worker import Worker
from .broadcast import broadcast_parameters
from .exchange import push_pull

_BATCH_NORM = torch.nn.modules.batchnorm._BatchNorm


def average_batch_norm(
    model: torch.nn.Module, *, prefix: str = "", worker: Worker | None = None
) -> None:
    """Gives every worker the mean of all workers' running means and variances, and rank 0's counts of
    batches: before evaluating or saving. Collective."""
    worker = worker or default_worker()
    handles, counts = [], []
    for name, module in model.named_modules():
        if not isinstance(module, _BATCH_NORM) or not module.track_running_stats:
            continue
        for what in ("running_mean", "running_var"):
            handles.append(
                push_pull(
                    getattr(module, what),
                    f"{prefix}batch_norm/{name}.{what}",
                    push="none",
                    pull="none",
                    worker=worker,
                )
            )
        counts.append((f"{name}.num_batches_tracked", module.num_batches_tracked))
    for handle in handles:
        handle.wait()
    if counts:
        broadcast_parameters(counts, worker=worker)
