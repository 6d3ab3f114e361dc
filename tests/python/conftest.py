import gc
import os
import pathlib
import sys

import pytest
import torch

# The helpers beside the tests, and the plain algorithms.
here = pathlib.Path(__file__).parent
sys.path[:0] = [str(here), str(here.parent / "reference")]

torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"
for name in [name for name in os.environ if name.startswith("BANDONEON_")]:
    if name != "BANDONEON_LIBRARY":
        del os.environ[name]


@pytest.fixture(autouse=True, scope="session")
def warmed_up():
    """One pass on this thread before ranks run on threads of their own. Where two threads were the first
    of a process to compute, gradients of one pass were seen to be off by some 1e-5 of their size, in one
    process of twenty; in a process that had computed before, never. Tests for equal bits start warm."""
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))
    model(torch.ones(4, 6)).square().mean().backward()
    torch.optim.SGD(model.parameters(), 0.1).zero_grad()  # Imports what a first use does.
    gc.freeze()  # What is here now stays: no_leftovers need not look through it after every test.


@pytest.fixture(autouse=True)
def no_leftovers():
    """A GradScaler or a worker of one test must not be found by the next."""
    yield
    gc.collect()
