"""AdamW that stops learning its second moment."""

from __future__ import annotations

from typing import Any

import torch

from ..hyperparameters import check_decays, check_not_negative, check_steps
from .per_parameter import PerParameterOptimizer


class FrozenAdamW(PerParameterOptimizer):
    """AdamW (arXiv 1711.05101) whose second moment v stays as it is after `freeze_after` steps, as
    in 1-bit Adam (arXiv 2102.02888): what a lossy link adds to a gradient would be squared into v.

    With t counted from 1 and T the steps that v has learned from, min(t, freeze_after):

        m <- b1 m + (1 - b1) g
        v <- b2 v + (1 - b2) g^2                                only if t <= freeze_after
        x <- (1 - lr wd) x - lr m / (1 - b1^t) / (sqrt(v / (1 - b2^T)) + eps)   without m where v is 0

    What no gradient has reached by then, like an embedding's rows, has v = 0, and only decays from there
    on: there is no scale for its steps, and what a lossy link sends in place of 0 would be divided by
    eps. Up to then it is torch.optim.AdamW. Let the gradients go uncompressed as long:

        inner = bdn.algorithms.FrozenAdamW(model.parameters(), lr=1e-3, freeze_after=200)
        optimizer = bdn.DistributedOptimizer(
            inner, model.named_parameters(), links=bdn.Links(push="ef(onebit)", pull="ef(onebit)", warmup=200))
        loss.backward()
        optimizer.step()

    betas: (0.9, 0.999). eps: 1e-8. weight_decay: 0.01, wd.
    freeze_after: steps of a parameter, counted as it gets gradients. By then v must have settled:
        where it is too small it stays so, and the steps too long. A fifth of a short run.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        *,
        freeze_after: int,
    ) -> None:
        check_not_negative(lr=lr, eps=eps, weight_decay=weight_decay)
        check_decays(beta1=betas[0], beta2=betas[1])
        check_steps(freeze_after=freeze_after)
        defaults = dict(
            lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, freeze_after=freeze_after
        )
        super().__init__(params, defaults)

    def _step_one(self, param, state, group):
        if not state:
            state.update(new_moments(param))
        # States of before freeze_after could change do not say how far v has learned.
        learned = state.get("learned", min(state["step"], group["freeze_after"]))
        state["step"] += 1
        beta1, beta2 = group["betas"]
        state["exp_avg"].mul_(beta1).add_(param.grad, alpha=1 - beta1)
        if state["step"] <= group["freeze_after"]:
            state["exp_avg_sq"].mul_(beta2).addcmul_(param.grad, param.grad, value=1 - beta2)
            learned += 1
        state["learned"] = learned
        descend(param, state, group, learned)


def new_moments(param):
    """State of a parameter before its first step."""
    return {
        "step": 0,
        "exp_avg": torch.zeros_like(param),
        "exp_avg_sq": torch.zeros_like(param),
    }


def descend(param, state, group, learned):
    """AdamW's change of the parameter by its moments, the second of which has learned from so many steps; by the
    decay alone where it is 0."""
    beta1, beta2 = group["betas"]
    step, lr = state["step"], group["lr"]
    square = state["exp_avg_sq"] / (1 - beta2**learned)
    unseen = square == 0
    scale = square.sqrt_().add_(group["eps"]).masked_fill_(unseen, torch.inf)
    param.mul_(1 - lr * group["weight_decay"])
    param.addcdiv_(state["exp_avg"], scale, value=-lr / (1 - beta1**step))
