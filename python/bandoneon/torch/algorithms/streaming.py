"""Meetings of LocalSteps by fragments of the model, whose results come while the workers step on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterable

import torch

from ...errors import InvalidArgument
from .pace import Pace
from .qsr import QSR


@dataclass(frozen=True)
class Streaming:
    """For LocalSteps(tau=): the model meets in fragments, each at its own time, and workers step on while one travels
    (Streaming DiLoCo, arXiv 2501.18512). So a step has a `fragments`-th of the bytes at most, and nobody waits for an
    exchange that takes less than `delay` steps.

        tau = bdn.algorithms.Streaming(24, fragments=4, delay=2)
        optimizer = bdn.LocalSteps(inner, model, tau=tau, outer=bdn.algorithms.Nesterov())
        ...                          # train as ever
        optimizer.synchronize()      # at the end, and before a model is saved: all have the same weights

    Fragment p of P meets after steps p tau / P + m tau, of all m. What the worker has moved of it until then, x - x_i,
    is pushed; `delay` steps later the new common weights x' are merged into what the worker has then:

        merge="shift":  x_i(now) <- x' + (x_i(now) - x_i(meeting))
        merge=alpha:    x_i(now) <- (1 - alpha) x' + alpha x_i(now)

    "shift" keeps the steps that were computed meanwhile, as a part of what is moved next. A number is the paper's alpha
    and torchft's fragment_update_alpha: 0 forgets those steps, 1 would take nothing from the others.

    tau: steps between two meetings of one fragment.
    fragments: how many, so that they divide tau. A fragment has whole modules: those of most elements are dealt out
        first, each to the fragment that has least, and equal ones in the order of the model. A weight that is tied is
        in one fragment. With 1 all parameters meet at once.
    delay: steps that are computed while a fragment travels, less than tau / fragments: so there is one on its way at
        most, and between two of them a step without any, at which others may come into the job.
    merge: "shift", or alpha, at least 0 and less than 1, where there is a delay.

    With fragments=1 and delay=0 it is LocalSteps(tau=tau), bit for bit.
    """

    tau: int
    fragments: int = 1
    delay: int = 0
    merge: str | float = "shift"

    def __post_init__(self):
        if isinstance(self.tau, (QSR, Pace)):
            raise InvalidArgument(
                f"Streaming(tau={self.tau!r}): fragments meet at fixed steps of a tau that stays the same, so give "
                f"Streaming a number of steps, or LocalSteps the {type(self.tau).__name__} without Streaming"
            )
        for name, least in (("tau", 1), ("fragments", 1), ("delay", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise InvalidArgument(f"{name}={value!r} of Streaming is not a whole number, {least} or more")
        if self.tau % self.fragments:
            nearest = self.tau // self.fragments * self.fragments or self.fragments
            raise InvalidArgument(
                f"fragments={self.fragments} do not divide tau={self.tau}, so they could not meet equally far apart: "
                f"take tau={nearest}, or another number of fragments"
            )
        if self.delay >= self.gap:
            raise InvalidArgument(
                f"delay={self.delay}: a meeting comes every tau / fragments = {self.gap} steps, and a fragment must "
                f"have come before the next one leaves: take a delay of at most {self.gap - 1}, a longer tau or fewer "
                "fragments"
            )
        self._check_merge()

    def _check_merge(self):
        if self.merge == "shift":
            return
        is_number = isinstance(self.merge, (int, float)) and not isinstance(self.merge, bool)
        if not is_number or not 0 <= self.merge < 1:
            raise InvalidArgument(
                f"merge={self.merge!r} is neither 'shift' nor a number from 0 up to, but not including, 1: the share "
                "of the worker's own weights when a fragment has come"
            )
        if self.delay == 0:
            raise InvalidArgument(
                f"merge={self.merge!r} says what becomes of the steps that are computed while a fragment travels, and "
                "with delay=0 there are none: leave it out, or give a delay"
            )

    @property
    def gap(self) -> int:
        """Steps from one meeting to the next, of whatever fragments."""
        return self.tau // self.fragments

    def fragment_after(self, step: int) -> int:
        """The fragment that meets after so many steps, a multiple of the gap."""
        return step // self.gap % self.fragments

    @torch.no_grad()
    def merge_into(self, now: torch.Tensor, common: torch.Tensor, met: torch.Tensor) -> None:
        """Gives a parameter its new values: of its new common weights, in float32, of what the worker had when it met,
        and of what it has now."""
        common = common.to(now.device)
        exact = now.float()  # The parameter itself where it is float32, which is then changed without a copy.
        if self.merge == "shift":
            exact = exact.sub_(met).add_(common)
        else:
            exact = torch.lerp(common, exact, float(self.merge))
        if exact is not now:
            now.copy_(exact)


def fragments_of(named: Iterable[tuple[str, torch.Tensor]], count: int, are_named: bool = True) -> list[list[int]]:
    """Deals (name, parameter) pairs out to so many fragments: the pairs' numbers, by fragment. The same for equal names
    and shapes, of DTensors those of the whole. are_named: whether names tell the module that a parameter is of.

    InvalidArgument: the model has fewer modules."""
    named = list(named)
    if count == 1:
        return [list(range(len(named)))]
    modules: dict[str, list[int]] = {}
    for number, (name, _) in enumerate(named):
        module = name.rpartition(".")[0] if are_named else ""
        modules.setdefault(module or f" {name}", []).append(number)  # One that is of no module is by itself.
    if len(modules) < count:
        raise InvalidArgument(
            f"fragments={count}, and the model has {len(modules)} modules with parameters, which stay whole: take "
            f"fragments={len(modules)} or fewer that divide tau"
        )
    sizes = {module: sum(named[number][1].numel() for number in numbers) for module, numbers in modules.items()}
    loads = [0] * count
    fragments: list[list[int]] = [[] for _ in range(count)]
    for module in sorted(modules, key=lambda module: -sizes[module]):  # Equal ones stay in their order.
        least = loads.index(min(loads))
        loads[least] += sizes[module]
        fragments[least] += modules[module]
    return [sorted(fragment) for fragment in fragments]
