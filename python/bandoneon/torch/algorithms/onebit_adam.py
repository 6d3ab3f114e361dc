"""1-bit Adam: the workers exchange momentum in place of gradients."""

from __future__ import annotations

from typing import Any

import torch

from ...worker import Worker
from ..hints import Closure, NamedParameters, Overrides
from ..hyperparameters import check_decays, check_not_negative, check_steps
from ..link_options import LinkOptions, LinkTable
from ..wrapped import evaluate
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

        optimizer = bdn.OneBitAdam(
            model.parameters(), lr=1e-3, warmup=200, named_parameters=model.named_parameters())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    The exchange is in step(), none of it beside the backward pass: backward() leaves local
    gradients, several of which add up. A parameter without one counts as one of zeros; leave frozen
    ones out. What is not finite in one worker leaves that parameter as it is in all. A GradScaler
    is refused: it skips step() in the worker that overflowed, and the others wait; use bfloat16.

    betas: (0.9, 0.999). eps: 1e-8. weight_decay: 0, wd.
    warmup: steps; the paper takes a fifth of the run or so.
    push, pull: codec specs, "ef(onebit)".
    named_parameters, overrides, prefix, timeout, check: as DistributedOptimizer's; an override's `warmup`
        is of its links alone. After DeadlineExceeded out of step() every further step is refused.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        warmup: int,
        push: str = "ef(onebit)",
        pull: str = "ef(onebit)",
        named_parameters: NamedParameters | None = None,
        overrides: Overrides | None = None,
        prefix: str = "",
        timeout: float | None = None,
        check: bool = True,
        worker: Worker | None = None,
    ) -> None:
        check_not_negative(lr=lr, eps=eps, weight_decay=weight_decay)
        check_decays(beta1=betas[0], beta2=betas[1])
        check_steps(warmup=warmup)
        links = LinkTable(LinkOptions.of(push, pull, warmup=warmup), overrides)
        links.check_without_correction("OneBitAdam")
        super().__init__(
            params,
            dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay),
            {"algorithm": "OneBitAdam", "warmup": warmup},
            links,
            named_parameters,
            prefix,
            timeout,
            check,
            worker,
        )
        self._warmup = warmup

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:
        loss = evaluate(closure)
        self._resume_check.before_step(self, lambda: self._links.steps)
        groups = self._groups()
        members = self._links.members
        for member in members:
            self.state[member.param] = self.state[member.param] or new_moments(member.param)
        messages = [self._message(member, groups[id(member.param)]) for member in members]
        results = self._links.exchange(messages, self._timeout)
        for member, mean, result in zip(members, messages, results):
            self.state[member.param]["step"] += 1
            if not result.nonfinite:
                self._apply(member.param, mean, groups[id(member.param)])
        return loss

    def _message(self, member, group):
        """What this worker sends: its gradient, or once v is frozen its momentum."""
        param, state = member.param, self.state[member.param]
        grad = torch.zeros_like(param) if param.grad is None else param.grad
        grad = self._links.dense(member, grad).clone()
        if self._is_warm(state["step"] + 1):
            return grad
        beta1 = group["betas"][0]
        return grad.mul_(1 - beta1).add_(state["exp_avg"], alpha=beta1)

    def _apply(self, param, mean, group):
        state = self.state[param]
        if self._is_warm(state["step"]):
            beta1, beta2 = group["betas"]
            state["exp_avg"].mul_(beta1).add_(mean, alpha=1 - beta1)
            state["exp_avg_sq"].mul_(beta2).addcmul_(mean, mean, value=1 - beta2)
        else:
            state["exp_avg"] = mean
        descend(param, state, group, min(state["step"], self._warmup))

    def _is_warm(self, step):
        return step <= self._warmup
