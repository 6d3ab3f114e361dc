"""Weights of experts that are set to zero, and kept so."""

from __future__ import annotations

import weakref
from typing import Any, Callable, Iterable, Mapping

import torch

from ...errors import InvalidArgument

Masks = Mapping[str, torch.Tensor]
Gate = Callable[[str, torch.nn.Module], "torch.Tensor | None"]

_SCORES = ("gate", "inputs", "magnitude")


def prune_experts(
    model: torch.nn.Module,
    batches: Iterable[Any],
    sparsity: float | str = 0.5,
    *,
    experts: Iterable[str] | None = None,
    gate: Gate | None = None,
    score: str = "gate",
) -> dict[str, torch.Tensor]:
    """Sets the weights of a mixture's experts to zero that least depends on, in one shot, as MoE-Pruner does (arXiv
    2410.12013), and returns {name of a weight: mask}, True where it stays. Every worker may call it with the same model
    and batches, or one does, and broadcasts.

        masks = bdn.algorithms.prune_experts(model, batches, 0.5, gate=lambda name, expert: expert.last_gate)
        optimizer = bdn.algorithms.masked(optimizer, model, masks)

    The score of a weight is |W_ij| times the norm of X_j gate: of input j, over the tokens that were routed to this expert,
    each times its gate. The lowest of each row, which is an output, become 0.

    batches: for model(batch), or model(*batch) of a tuple, without gradients. Few hundred texts are enough.
    sparsity: the share of each row, or "2:4": two of each four neighbours.
    experts: names of the modules whose Linear layers are pruned; by default each module in a ModuleList called "experts".
    gate: a function of an expert's name and module that returns, while it computes, the gates of the rows of its input;
        None, or a function that returns it, counts all alike.
    score: "gate"; "inputs", which is Wanda's, without gates; "magnitude", of the weights alone.

    InvalidArgument, and nothing is changed, where an expert got no token, where there are no experts, or where inputs or
    gates are not finite.
    """
    _check(model, sparsity, score)
    layers = _layers_of(model, experts)
    sums = {name: None for name in layers}
    if score != "magnitude":
        _watch(model, batches, layers, sums, gate if score == "gate" else None)
        _check_sums(sums)
    masks = {}
    for name, (_, _, linear) in layers.items():
        scores = linear.weight.detach().float().abs()
        if sums[name] is not None:
            scores = scores * sums[name].sqrt().to(scores.device)
        if not scores.isfinite().all():
            raise InvalidArgument(f"the scores of {name!r} are not finite: its weights or inputs are not")
        masks[f"{name}.weight"] = _kept(scores, sparsity, name)
    with torch.no_grad():
        for name, (_, _, linear) in layers.items():
            linear.weight.mul_(masks[f"{name}.weight"])
    return masks


def masked(optimizer: torch.optim.Optimizer, model: torch.nn.Module, masks: Masks) -> torch.optim.Optimizer:
    """Has an optimizer keep what prune_experts() has set to zero: gradients there are zeros before they are exchanged, and
    weights after each step. Returns the same optimizer, of any kind.

    Rows that are masked whole travel as rows of zeros: codecs that send few elements send none of them."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InvalidArgument(f"masked() takes the optimizer first, and got a {type(optimizer).__name__}")
    params = dict(model.named_parameters())
    stepped = {id(param) for group in optimizer.param_groups for param in group["params"]}
    for name, mask in masks.items():
        param = params.get(name)
        if param is None:
            raise InvalidArgument(f"masks: the model has no parameter {name!r}")
        if mask.dtype != torch.bool or mask.shape != param.shape:
            raise InvalidArgument(
                f"the mask of {name!r} is {list(mask.shape)} of {mask.dtype}, and the parameter {list(param.shape)}; it is bool"
            )
        if id(param) not in stepped:
            raise InvalidArgument(f"masks: {name!r} is in no group of this {type(optimizer).__name__}")
    kept = [(params[name], mask.to(params[name].device)) for name, mask in masks.items()]
    hooks = [param.register_hook(lambda grad, mask=mask: grad * mask) for param, mask in kept if param.requires_grad]

    def after_step(*_):
        with torch.no_grad():
            for param, mask in kept:
                param.mul_(mask)

    after_step()
    hooks.append(optimizer.register_step_post_hook(after_step))
    weakref.finalize(optimizer, _remove, hooks).atexit = False
    return optimizer


def _remove(hooks):
    while hooks:
        hooks.pop().remove()


def _check(model, sparsity, score):
    if not isinstance(model, torch.nn.Module):
        raise InvalidArgument(f"prune_experts() takes the model first, and got a {type(model).__name__}")
    is_share = isinstance(sparsity, (int, float)) and not isinstance(sparsity, bool) and 0 <= sparsity < 1
    if not is_share and sparsity != "2:4":
        raise InvalidArgument(f"sparsity={sparsity!r} is neither a share of 0 to 1, without 1, nor '2:4'")
    if score not in _SCORES:
        raise InvalidArgument(f"score={score!r} is none of {', '.join(map(repr, _SCORES))}")


def _layers_of(model, experts):
    """{name of a Linear: (name of its expert, the expert, the Linear)}"""
    modules = dict(model.named_modules())
    if experts is None:
        names = [
            f"{name}.{child}"
            for name, module in modules.items()
            if isinstance(module, torch.nn.ModuleList) and name.split(".")[-1] == "experts"
            for child, _ in module.named_children()
        ]
    else:
        names = list(experts)
    missing = [name for name in names if name not in modules]
    if missing:
        raise InvalidArgument(f"experts: the model has no module {missing[0]!r}")
    layers = {
        (f"{expert}.{name}" if name else expert): (expert, modules[expert], module)
        for expert in names
        for name, module in modules[expert].named_modules()
        if isinstance(module, torch.nn.Linear)
    }
    if not layers:
        raise InvalidArgument(
            "the model has no experts with Linear layers: there is no ModuleList called 'experts'; give experts= the names of the "
            "modules that are experts"
        )
    return layers


def _watch(model, batches, layers, sums, gate):
    """Adds up, for each layer, the squares of its inputs times their gates."""
    hooks = []
    try:
        for name, (expert_name, expert, linear) in layers.items():

            def watch(module, args, name=name, expert_name=expert_name, expert=expert):
                rows = args[0].detach().reshape(-1, args[0].shape[-1]).float()
                weights = gate(expert_name, expert) if gate is not None else None
                if weights is not None:
                    weights = weights.detach().reshape(-1).float()
                    if len(weights) != len(rows):
                        raise InvalidArgument(
                            f"gate returned {len(weights)} gates of {expert_name!r}, whose input has {len(rows)} rows"
                        )
                    rows = rows * weights[:, None]
                added = rows.square().sum(0)
                sums[name] = added if sums[name] is None else sums[name] + added

            hooks.append(linear.register_forward_pre_hook(watch))
        with torch.no_grad():
            for batch in batches:
                model(*batch) if isinstance(batch, (tuple, list)) else model(batch)
    finally:
        _remove(hooks)


def _check_sums(sums):
    for name, total in sums.items():
        if total is None or not total.any():
            raise InvalidArgument(
                f"no token of the batches has come to {name!r}, or all were zeros: give more batches, for what is not used is not known"
            )
        if not total.isfinite().all():
            raise InvalidArgument(f"the inputs of {name!r}, or its gates, are not finite in these batches")


def _kept(scores, sparsity, name):
    if sparsity == "2:4":
        if scores.shape[1] % 4:
            raise InvalidArgument(f"sparsity='2:4' takes rows of a multiple of 4 inputs, and {name!r} has {scores.shape[1]}")
        groups = scores.view(len(scores), -1, 4)
        return _highest(groups, 2).view(scores.shape)
    return _highest(scores, scores.shape[1] - int(sparsity * scores.shape[1]))


def _highest(scores, count):
    """True at the `count` highest of the last dimension; of equal ones the first."""
    order = scores.argsort(dim=-1, descending=True, stable=True)[..., :count]
    return torch.zeros_like(scores, dtype=torch.bool, device=scores.device).scatter_(-1, order, True)
