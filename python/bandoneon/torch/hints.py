"""What annotations of this package's interface are made of."""

from typing import Any, Callable, Dict, Iterable, List, Mapping, Tuple, Union

import torch

# model.named_parameters(), or the model itself.
NamedParameters = Union[torch.nn.Module, Iterable[Tuple[str, torch.Tensor]]]
# Other push, pull, momentum or warmup by the pattern of a parameter's name.
Overrides = Mapping[str, Dict[str, Any]]
# How many samples a worker's gradients are means over, or what says it before each exchange; of LocalSteps, "steps", too.
Weighting = Union[float, Callable[[], float], str]
# comm_state_dict() of this rank, or of all ranks in the order of their numbers.
SavedState = Union[Dict[str, Any], List[Dict[str, Any]]]
# What step() evaluates, and returns the loss of.
Closure = Callable[[], Any]
# SignMomentum(), Nesterov(), SlowMo(), Average() or Prox().
OuterRule = Any
