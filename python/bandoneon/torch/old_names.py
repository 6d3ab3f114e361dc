"""Names that were here before, until 1.0."""

import importlib
import sys
import warnings
from typing import Any

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


_MOVED_NAMES = {
    "AppState": "bandoneon.torch.app_state",
    "Average": "bandoneon.torch.algorithms",
    "CSER": "bandoneon.torch.algorithms",
    "CommState": "bandoneon.torch.comm_state",
    "DeMo": "bandoneon.torch.algorithms",
    "DecayMomentumSGD": "bandoneon.torch.algorithms",
    "EF21": "bandoneon.torch.algorithms",
    "FrozenAdamW": "bandoneon.torch.algorithms",
    "Handle": "bandoneon.torch.exchange",
    "LANS": "bandoneon.torch.algorithms",
    "Lion": "bandoneon.torch.algorithms",
    "LocalCluster": "bandoneon",
    "Muon": "bandoneon.torch.algorithms",
    "Nesterov": "bandoneon.torch.algorithms",
    "OneBitAdam": "bandoneon.torch.algorithms",
    "QSR": "bandoneon.torch.algorithms",
    "Recipe": "bandoneon.torch.named_recipes",
    "SignMomentum": "bandoneon.torch.algorithms",
    "SlowMo": "bandoneon.torch.algorithms",
    "average_batch_norm": "bandoneon.torch.batch_norm",
    "default_worker": "bandoneon",
    "empty": "bandoneon.torch.exchange",
    "muon_groups": "bandoneon.torch.algorithms",
    "recipes": "bandoneon.torch.named_recipes",
    "synchronize": "bandoneon.torch.exchange",
}


def moved_name(package: str, name: str) -> Any:
    """What the package had by that name, with a DeprecationWarning that says where it is; None of what it never had."""
    place = _MOVED_NAMES.get(name)
    if place is None:
        return None
    # The frame in between is __getattr__() of the package.
    warnings.warn(
        f"{package}.{name} is {place}.{name} now, and will not be found at its old place from release 1.0 on",
        DeprecationWarning,
        stacklevel=3,
    )
    return getattr(importlib.import_module(place), name)
