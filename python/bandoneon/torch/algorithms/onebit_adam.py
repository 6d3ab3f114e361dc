"""1-bit Adam: the workers exchange momentum in place of gradients."""

from __future__ import annotations

from typing import Any

import torch

from ...errors import InvalidArgument
from ...worker import Worker
from ..hyperparameters import check_decays, check_not_negative, check_steps
from ..links import Links, link_table, takes_links
from .frozen_adam import descend, new_moments
from .step_exchange import StepExchangeOptimizer


class OneBitAdam(StepExchangeOptimizer):
    """1-bit Adam (arXiv 2102.02888). Distributed by itself: no DistributedOptimizer goes around it.
    Collective: all workers construct the same and step together.

    For `warmup` steps Adam on the mean gradient, uncompressed. Then the second moment v is frozen,
    and worker i sends its momentum, compressed with error feedback both ways:

        m_i = b1 m + (1 - b1) g_i
        m   = mean of m_i                          through the links: the same on all workers
        x  <- (1 - lr wd) x - lr M / (sqrt(V) + eps)

    M = m / (1 - b1^t) and V = v / (1 - b2^T), T = min(t, warmup), are Adam's corrections for
    moments that began at 0. The paper's rule is without: the same where t and warmup are large, and
    steps 1 / sqrt(1 - b2^T) times as long after a short warm-up. Where V is 0 there is no step, only
    decay: what no gradient has reached in the warm-up, like an embedding's rows, is not trained after
    it. Nothing tells how long its steps should be, and lossy links send what is not 0 for it.

        optimizer = bdn.algorithms.OneBitAdam(model.named_parameters(), lr=1e-3, links=bdn.Links(warmup=200))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    The exchange is in step(), none of it beside the backward pass: backward() leaves local
    gradients, several of which add up. A parameter without one counts as one of zeros; leave frozen
    ones out. What is not finite in one worker leaves that parameter as it is in all. A GradScaler
    is refused: it skips step() in the worker that overflowed, and the others wait; use bfloat16.

    params: model.named_parameters(), the model, or groups whose "params" are either; or without names, as torch's.
    betas: (0.9, 0.999). eps: 1e-8. weight_decay: 0, wd.
    links: Links has what they mean. warmup, which they must have: the steps above; the paper takes a fifth of the run
        or so. That of an override is of its links alone. push, pull: "ef(onebit)". After DeadlineExceeded out of
        step() every further step is refused.
    """

    @takes_links("push", "pull", "warmup", "overrides", "prefix", "timeout", "check")
    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        links: Links,
        worker: Worker | None = None,
    ) -> None:
        check_not_negative(lr=lr, eps=eps, weight_decay=weight_decay)
        check_decays(beta1=betas[0], beta2=betas[1])
        if not links.warmup:
            raise InvalidArgument("OneBitAdam has to have a warm-up: give links=bandoneon.torch.Links(warmup=steps)")
        check_steps(warmup=links.warmup)
        table = link_table(links, push="ef(onebit)", pull="ef(onebit)")
        table.check_without_correction("OneBitAdam")
        defaults = dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
        super().__init__(params, defaults, {"algorithm": "OneBitAdam", "warmup": links.warmup}, table, links, worker)
        self._warmup = links.warmup

    def _message(self, part):
        """The gradient, or once v is frozen the momentum."""
        param, state = part.param, part.state
        if not state:
            state.update(new_moments(param))
        grad = torch.zeros_like(param) if param.grad is None else param.grad
        grad = self._links.dense(part.member, grad).clone()
        if self._is_warm(state["step"] + 1):
            return grad
        beta1 = part.group["betas"][0]
        return grad.mul_(1 - beta1).add_(state["exp_avg"], alpha=beta1)

    def _apply(self, part, mean):
        state = part.state
        if self._is_warm(state["step"]):
            beta1, beta2 = part.group["betas"]
            state["exp_avg"].mul_(beta1).add_(mean, alpha=1 - beta1)
            state["exp_avg_sq"].mul_(beta2).addcmul_(mean, mean, value=1 - beta2)
        else:
            state["exp_avg"] = mean
        descend(part.param, state, part.group, min(state["step"], self._warmup))

    def _is_warm(self, step):
        return step <= self._warmup
