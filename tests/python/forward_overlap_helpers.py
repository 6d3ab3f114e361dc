"""What the tests of overlap="forward" share: the optimizer, and the comparison with overlap="backward"."""

import warnings

import torch

import bandoneon.torch as bdn
from cluster_helpers import fill, linked, run_job

AWAITED_AT_ONCE = "overlap='forward' awaits gradients in the next forward pass"


def distributed(worker, model, overlap, make=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), **options):
    return bdn.DistributedOptimizer(
        make(model.parameters()), model, worker=worker, overlap=overlap, **linked(**{"scaler": None, **options})
    )


def assert_same_models(job, warns=None, workers=2, **settings):
    """job(worker, overlap), what it found of a training, is the same for both. `warns`: what a warning of
    the second says; no other may come."""
    expected = run_job(lambda worker: job(worker, "backward"), workers=workers, **settings)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RuntimeWarning)
        found = run_job(lambda worker: job(worker, "forward"), workers=workers, **settings)
    assert found == expected
    said = [str(w.message) for w in caught if issubclass(w.category, RuntimeWarning)]
    assert bool(said) == bool(warns), said
    assert all(AWAITED_AT_ONCE in message and warns in message for message in said)
    return found


class Branches(torch.nn.Module):
    """Uses the branches it is told to."""

    def __init__(self):
        super().__init__()
        self.branches = torch.nn.ModuleList(torch.nn.Linear(6, 3) for _ in range(4))
        fill(self)

    def forward(self, batch, used):
        return sum(self.branches[i](batch).square().mean() for i in used)
