"""What optimizers have in common whose step changes every parameter by itself."""

from __future__ import annotations

from typing import Any

import torch

from ..hints import Closure


class PerParameterOptimizer(torch.optim.Optimizer):
    """Subclasses define _step_one(param, state, group), for each parameter that has a gradient, or
    _step_group(params, group), for all of a group that have."""

    # Whether the step of some parameters, and later of the others, has the bits of a step of all at once.
    steps_one_by_one = True

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:
        """A step on the gradients that are there. Returns what `closure` returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self._step_group([param for param in group["params"] if param.grad is not None], group)
        return loss

    def _step_group(self, params, group):
        for param in params:
            self._step_one(param, self.state[param], group)
