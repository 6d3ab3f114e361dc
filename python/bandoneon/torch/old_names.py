"""Names that were here before, until 1.0."""

import importlib
import sys

# Modules that are in bandoneon.torch.algorithms now. Pickles name their classes by these.
_MOVED_MODULES = (
    "chunked_dct",
    "cser",
    "decay_momentum_sgd",
    "decoupled_momentum",
    "ef21",
    "frozen_adam",
    "lans",
    "lion",
    "muon",
    "onebit_adam",
    "per_parameter",
    "step_exchange",
)


def keep_moved_modules(package: str) -> None:
    """Has the modules imported by their old names, too, as the same modules."""
    for name in _MOVED_MODULES:
        sys.modules[f"{package}.{name}"] = importlib.import_module(f"{package}.algorithms.{name}")
