"""Optimizers that exchange in step() what is no gradient, and step alike in all workers."""

from __future__ import annotations

from typing import Any

import torch

from ...errors import Unimplemented
from ...session import default_worker
from ..comm_state import ResumeCheck, fitting_state, saved_by, step_to_resume_at
from ..ddp_besides import DDPBesides
from ..hints import SavedState
from ..local_memory import LocalMemory
from ..loss_scale import RefusesGradScaler
from ..names import Names
from ..parameters import ParameterSet
from ..wrapped import refuse_pickling


class StepExchangeOptimizer(RefusesGradScaler, torch.optim.Optimizer):
    """Subclasses define step() with _links, and _settings, which a saved state must have been saved under. What
    differs between workers is in _memory; state is the same in all."""

    def __init__(
        self, params, defaults, settings, links, named_parameters, prefix, timeout, check, worker, memories=(), **how
    ):
        """links: a LinkTable. memories: names of what LocalMemory keeps. how: as ParameterSet's."""
        self._links = None  # Of the parameters that __init__ of the base adds, all at once below.
        super().__init__(params, defaults)
        named = Names(named_parameters).in_forward_order(self.param_groups)
        self._links = ParameterSet(
            worker or default_worker(),
            links,
            prefix,
            replicas_for=settings["algorithm"] if check else None,
            **how,
        )
        self._links.add(named)
        self._links.step_count.follow(self)
        self._settings = settings
        self._memory = LocalMemory(self._links.members, *memories)
        self._timeout = timeout
        self._resume_check = ResumeCheck("; without it, call resume_at() in every worker")
        besides = DDPBesides(type(self).__name__, steps_locally=False)
        self.register_step_pre_hook(lambda own, *_: besides.before_step(m.param for m in own._links.members))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if self._links is not None:
            raise Unimplemented(f"{type(self).__name__} takes all its parameters when it is constructed")
        super().add_param_group(param_group)

    def _groups(self):
        """{id(parameter): its group}"""
        return {id(param): group for group in self.param_groups for param in group["params"]}

    def comm_state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs beside state_dict(): what this rank alone keeps, its residuals and steps; of
        rank 0, what the servers owe, too."""
        header = saved_by(self._links.worker, dict(self._settings))
        return {**header, "local": self._memory.state_dict(), **self._links.state_dict(self._timeout)}

    def load_comm_state_dict(self, state: SavedState) -> None:
        """Takes up this rank's comm_state_dict(), or of the list of all ranks' what falls to this one,
        where there were more or fewer workers; the next step is the one after it. Collective: all
        workers load before any of them steps."""
        state = fitting_state(state, self._settings, self._links.worker)
        local = state.get("local", {})
        self._memory.check(local)
        self._links.load_state_dict(state, self._timeout)
        self._memory.load_state_dict(local)
        self._resume_check.is_settled = True

    def resume_at(self, step: int | None = None) -> None:
        """For a checkpoint without comm_state_dict(): codec schedules and warm-ups go on after `step`, by
        default the most that rank 0's optimizer state counts; residuals, and what each worker keeps by
        itself, begin at 0. Collective, before any worker steps."""
        self._memory.clear()
        self._links.resume_at(step_to_resume_at(self, step), self._timeout)
        self._resume_check.is_settled = True

    def __reduce_ex__(self, protocol):
        refuse_pickling(self)

    def close(self) -> None:
        """Frees the parameters' names for another optimizer, which begins anew, and gives back what both ends
        remember."""
        self._links.release()


def step_by(param, update, rate, decay):
    """x <- (1 - rate decay) x - rate update, rounded once to x's type. `update` lies in the host's memory."""
    values = param.to(torch.promote_types(param.dtype, torch.float32))
    values.mul_(1 - rate * decay).add_(update.to(values.device, values.dtype), alpha=-rate)
    if values is not param:
        param.copy_(values)
