"""What optimizers have in common whose step changes every parameter by itself."""

import torch


class PerParameterOptimizer(torch.optim.Optimizer):
    """Subclasses define _step_one(param, state, group), for each parameter that has a gradient."""

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    self._step_one(param, self.state[param], group)
        return loss
