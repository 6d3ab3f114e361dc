"""The half of dist-EF-SGDM that comes after the pull."""

from __future__ import annotations

from typing import Any

import torch

from ..hyperparameters import check_decays, check_not_negative
from .per_parameter import PerParameterOptimizer


class DecayMomentumSGD(PerParameterOptimizer):
    """SGD whose weight decay has a Nesterov momentum of its own, for dist-EF-SGDM (arXiv
    1905.10936, 2105.07829): the gradients' momentum goes before the compression, and the decay,
    which every worker knows, stays out of it. With u the pulled mean:

        w <- mu (w + wd x)
        x <- x - lr (u + w + wd x)

        inner = bdn.algorithms.DecayMomentumSGD(model.parameters(), lr=0.1, weight_decay=1e-4)
        optimizer = bdn.DistributedOptimizer(
            inner, model.named_parameters(), links=bdn.Links(push="ef(onebit)", pull="ef(onebit)", momentum=0.9))
        loss.backward()
        optimizer.step()

    Over uncompressed links that is torch.optim.SGD(momentum=mu, nesterov=True, weight_decay=wd).

    weight_decay: 0, wd.
    decay_momentum: 0.9, mu; the `momentum` of Links.
    """

    def __init__(
        self, params: Any, lr: float, weight_decay: float = 0.0, decay_momentum: float = 0.9
    ) -> None:
        check_not_negative(lr=lr, weight_decay=weight_decay)
        check_decays(decay_momentum=decay_momentum)
        super().__init__(
            params, dict(lr=lr, weight_decay=weight_decay, decay_momentum=decay_momentum)
        )

    def _step_one(self, param, state, group):
        update = param.grad
        if group["weight_decay"]:
            if not state:
                state["decay_momentum"] = torch.zeros_like(param)
            decay = param * group["weight_decay"]
            kept = state["decay_momentum"].add_(decay).mul_(group["decay_momentum"])
            update = decay.add_(kept).add_(update)
        param.sub_(update, alpha=group["lr"])
