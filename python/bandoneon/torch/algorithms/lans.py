"""LANS, and CLAN: LANS on gradients that were compressed both ways."""

from __future__ import annotations

from typing import Any

import torch

from ..hyperparameters import check_decays, check_not_negative
from .per_parameter import PerParameterOptimizer


class LANS(PerParameterOptimizer):
    """LANS (arXiv 2006.13484): Adam's direction and the gradient's, each as long as the weights.

    For every parameter x by itself, with gradient g and step t from 1:

        g <- g / (|g| + eps)                                    only if normalize_grad
        m <- b1 m + (1 - b1) g            M = m / (1 - b1^t)
        v <- b2 v + (1 - b2) g^2          V = v / (1 - b2^t)
        r = M / (sqrt(V) + eps) + wd x    q = g / (sqrt(V) + eps) + wd x
        x <- x - lr (b1 |x|/|r| r + (1 - b1) |x|/|q| q)

    |.| is the Euclidean norm; a ratio with a norm of 0 is 1. The ratios are taken with wd = 0 too.

    CLAN (arXiv 2105.07829) is LANS in the workers on the compressed mean, the same everywhere:

        inner = bdn.algorithms.LANS(model.parameters(), lr=1e-3)
        optimizer = bdn.DistributedOptimizer(
            inner, model.named_parameters(), links=bdn.Links(push="ef(onebit)", pull="ef(onebit)", warmup=100))
        loss.backward()
        optimizer.step()

    betas: (0.9, 0.999), b1 and b2.
    eps: 1e-6.
    weight_decay: 0.01, wd; put biases and norms in a group of their own with 0.
    normalize_grad: False, as in CLAN's BERT runs; LANS as published has True.
    """

    def __init__(
        self,
        params: Any,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        normalize_grad: bool = False,
    ) -> None:
        check_not_negative(lr=lr, eps=eps, weight_decay=weight_decay)
        check_decays(beta1=betas[0], beta2=betas[1])
        defaults = dict(
            lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, normalize_grad=normalize_grad
        )
        super().__init__(params, defaults)

    def _step_one(self, param, state, group):
        if not state:
            state["step"] = 0
            state["exp_avg"] = torch.zeros_like(param)
            state["exp_avg_sq"] = torch.zeros_like(param)
        state["step"] += 1
        (beta1, beta2), eps = group["betas"], group["eps"]
        grad = param.grad
        if group["normalize_grad"]:
            grad = grad / (torch.linalg.vector_norm(grad) + eps)
        mean = state["exp_avg"].mul_(beta1).add_(grad, alpha=1 - beta1)
        square = state["exp_avg_sq"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        spread = (square / (1 - beta2 ** state["step"])).sqrt_().add_(eps)

        decay = group["weight_decay"]
        by_mean = (mean / (1 - beta1 ** state["step"])).div_(spread).add_(param, alpha=decay)
        by_grad = (grad / spread).add_(param, alpha=decay)
        by_mean.mul_(beta1 * _trust_ratio(param, by_mean))
        by_grad.mul_((1 - beta1) * _trust_ratio(param, by_grad))
        param.sub_(by_mean.add_(by_grad), alpha=group["lr"])


def _trust_ratio(param, direction):
    """|param| / |direction|, 1 where either is 0."""
    ours, theirs = torch.linalg.vector_norm(param), torch.linalg.vector_norm(direction)
    return torch.where((ours > 0) & (theirs > 0), ours / theirs, torch.ones_like(ours))
