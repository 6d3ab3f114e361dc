import gc
import os
import pathlib
import sys

import pytest
import torch

# The helpers beside the tests.
sys.path.insert(0, str(pathlib.Path(__file__).parent))

torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"
for name in [name for name in os.environ if name.startswith("BANDONEON_")]:
    if name != "BANDONEON_LIBRARY":
        del os.environ[name]


@pytest.fixture(autouse=True)
def no_leftovers():
    """A GradScaler or a worker of one test must not be found by the next."""
    yield
    gc.collect()
