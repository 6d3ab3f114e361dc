"""Recipes: compositions that have a name, a ratio and limits, for who does not want to choose codecs."""

from __future__ import annotations

import json
import pathlib
import warnings
from dataclasses import dataclass
from typing import Any, Iterable

import torch

from ..errors import InvalidArgument
from ..worker import Worker
from .algorithms.muon import Muon, muon_groups
from .algorithms.outer_steps import Average
from .links import Links
from .local_steps import LocalSteps
from .optimizer import DistributedOptimizer

__all__ = ["Recipe", "recipe", "recipes"]

_TABLE = pathlib.Path(__file__).resolve().parent.parent / "recipes.json"
# Compression spoils what they learn of the gradients' squares.
_LEARN_SQUARES = (torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.RAdam, torch.optim.RMSprop)
_INNER = {"SGD": torch.optim.SGD, "AdamW": torch.optim.AdamW, "Muon": Muon}


@dataclass(frozen=True)
class Recipe:
    """One line of docs/recipes.md. Printed it is the code that it stands for; called it makes that:

        optimizer = bdn.recipe("updates-100x")(model, lr=0.016)
        optimizer = bdn.recipe("gradients-8x")(model, torch.optim.AdamW(model.parameters(), lr=1e-3))

    ratio: about so many times fewer bytes, both ways together, than float32 gradients both ways at every
        step, headers counted, without the first weights, of models whose tensors are large enough to be
        compressed (setting min-compress-bytes).
    inner: "yours", or the optimizer that it makes itself.
    evidence: rows of docs/journal/convergence.md's table of convergence; empty where there is none yet.
    """

    name: str
    ratio: float
    strategy: str
    inner: str
    push: str
    pull: str
    use: str
    limits: str
    evidence: tuple[str, ...]
    tau: int = 1
    momentum: float = 0.0

    def __call__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        others: Iterable[torch.Tensor] | None = None,
        prefix: str = "",
        worker: Worker | None = None,
        **hyperparameters: Any,
    ) -> Any:
        """The model's optimizer, wrapped. Collective.

        optimizer: for a recipe with an `inner` of "yours" it has to be given, and any other takes it in place of
            the one that it would make; with a warning where it is of another class than that, of which the
            evidence says nothing, and not at all where the limits rule it out.
        hyperparameters: of the optimizer that the recipe makes: lr, and what else its class takes.
        others: for Muon, the parameters that AdamW steps although they are matrices; unless given, those
            of embeddings and of the last Linear.
        prefix: of tensors' names, where a program has several optimizers.
        """
        inner = self._inner(model, optimizer, others, hyperparameters)
        links = Links(push=self.push, pull=self.pull, momentum=self.momentum, prefix=prefix)
        how = dict(links=links, worker=worker)
        if self.strategy == "LocalSteps":
            return LocalSteps(inner, model.named_parameters(), tau=self.tau, outer=Average(), **how)
        return DistributedOptimizer(inner, model, **how)

    def __repr__(self) -> str:
        inner = "optimizer"
        if self.inner == "Muon":
            inner = "bdn.algorithms.Muon(bdn.algorithms.muon_groups(model), lr=lr)"
        elif self.inner != "yours":
            inner = f"torch.optim.{self.inner}(model.parameters(), lr=lr)"
        if self.strategy == "LocalSteps":
            what, how = "model.named_parameters()", f" tau={self.tau}, outer=bdn.algorithms.Average(),"
        else:
            what, how = "model", ""
        links = f'push="{self.push}", pull="{self.pull}"'
        if self.momentum:
            links = f"links=bdn.Links({links}, momentum={self.momentum})"
        return f"bdn.{self.strategy}(\n    {inner}, {what},{how}\n    {links})"

    def __str__(self) -> str:
        if self.inner != "Muon":
            return repr(self)
        return (
            f"{self!r}\n"
            "# Muon's products take 3 to 5 x width / (tokens of a worker's batch) of the time of forward and backward,\n"
            '# a quarter of that with products="bfloat16" where the processor multiplies it itself.'
        )

    def _check_fits(self, optimizer):
        """An optimizer that is given in the place of the one which the recipe was measured with."""
        if self.inner == "yours" or isinstance(optimizer, _INNER[self.inner]):
            return
        given = type(optimizer).__name__
        if self.inner == "SGD" and isinstance(optimizer, _LEARN_SQUARES):
            raise InvalidArgument(
                f"recipe {self.name!r} is {self.limits.split(';')[0]}, and {given} has one: 'gradients-8x' takes "
                "any optimizer, and FrozenAdamW stops learning the second moment"
            )
        of_inner = [name for name, row in recipes().items() if row.inner in (given, "yours")]
        warnings.warn(
            f"recipe {self.name!r} is for {self.inner}, with which its rows in docs/journal/convergence.md were "
            f"measured, and nothing is known of it around {given}: leave the optimizer out and give lr= for {self.inner}, or take "
            f"{', '.join(map(repr, of_inner))} for {given}",
            RuntimeWarning,
            stacklevel=4,
        )

    def _inner(self, model, optimizer, others, hyperparameters):
        if optimizer is not None:
            if hyperparameters or others is not None:
                given = ", ".join([*hyperparameters, *(["others"] if others is not None else [])])
                raise InvalidArgument(f"recipe {self.name!r} was given an optimizer, and {given} for one of its own")
            if self.momentum and any(group.get("momentum") for group in optimizer.param_groups):
                raise InvalidArgument(
                    f"recipe {self.name!r} applies momentum={self.momentum} before error feedback: give it an "
                    "optimizer without momentum of its own"
                )
            self._check_fits(optimizer)
            return optimizer
        if self.inner == "yours":
            raise InvalidArgument(
                f"recipe {self.name!r} goes around an optimizer of yours: "
                f"bdn.recipe({self.name!r})(model, torch.optim.AdamW(model.parameters(), lr=1e-3))"
            )
        if "lr" not in hyperparameters:
            raise InvalidArgument(f"recipe {self.name!r} makes {self.inner}, which needs lr=")
        if self.inner == "Muon":
            return Muon(muon_groups(model, others), **hyperparameters)
        if others is not None:
            raise InvalidArgument(f"others= is for Muon, and recipe {self.name!r} makes {self.inner}")
        return _INNER[self.inner](model.parameters(), **hyperparameters)


def recipes() -> dict[str, Recipe]:
    """All recipes by their names, from the fewest savings to the most; `bandoneon recipes` prints them."""
    rows = json.loads(_TABLE.read_text(encoding="utf-8"))
    return {row["name"]: Recipe(**{**row, "evidence": tuple(row["evidence"])}) for row in rows}


def recipe(name: str) -> Recipe:
    """The recipe of that name: "gradients-8x", "updates-100x" and so on."""
    known = recipes()
    if name not in known:
        raise InvalidArgument(f"there is no recipe {name!r}; there are {', '.join(known)}")
    return known[name]
