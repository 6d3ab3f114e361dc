"""Optimizers that exchange in step() what is no gradient, and step alike in all workers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from ...errors import Unimplemented
from ...session import default_worker
from ..comm_state import ResumeCheck, fitting_state, saved_by, step_to_resume_at
from ..ddp_besides import DDPBesides
from ..handover import Handover, load_exactly
from ..hints import Closure, SavedState
from ..local_memory import LocalMemory
from ..loss_scale import RefusesGradScaler
from ..names import Names, split_names
from ..parameters import Member, ParameterSet
from ..step_recorder import model_of, recorder_of
from ..wrapped import evaluate, refuse_pickling


@dataclass(eq=False)
class Part:
    """One parameter in one step."""

    links: ParameterSet
    member: Member
    group: dict[str, Any]  # of hyperparameters
    state: dict[str, Any]  # the same in all workers, and saved by state_dict()
    memory: dict[str, torch.Tensor]  # by name; this worker's own
    left_out: torch.Tensor | None = None  # the part of the message that the codec did not send, if the class asks

    @property
    def param(self):
        return self.member.param

    @cached_property
    def gradient(self):
        """This worker's own: float32 in the memory of the host, zeros where there is none. Not to be written."""
        return self.links.dense_on_host(self.member, self.param.grad)


class StepExchangeOptimizer(RefusesGradScaler, torch.optim.Optimizer):
    """A base of algorithms whose step() is one exchange. A subclass defines _message() and _apply(), which step() calls
    for each parameter before and after the exchange. State that differs between workers is in the memories that the
    subclass names; `state` is the same in all."""

    asks_for_left_out = False  # whether _apply() reads part.left_out
    lends_memory = True  # whether a newcomer begins with another worker's memories, or with zeros

    def __init__(self, params, defaults, settings, table, links, worker, memories=(), **how):
        """params: as torch.optim takes them, or with names, as split_names() does. settings: "algorithm", and the
        options on which a saved state depends. table: the LinkTable of `links`. memories: names of float32 arrays, each
        like its parameter and zeros at first, that are this worker's own. how: as ParameterSet's."""
        self._links = None  # Of the parameters that __init__ of the base adds, all at once below.
        model = model_of(params)
        params, named_parameters = split_names(params)
        super().__init__(params, defaults)
        named = Names(named_parameters).in_forward_order(self.param_groups)
        self._links = ParameterSet(
            worker or default_worker(),
            table,
            links.prefix,
            replicas_for=settings["algorithm"] if links.check else None,
            **how,
        )
        self._links.add(named)
        self._links.step_count.follow(self)
        self._settings = settings
        self._memory = LocalMemory(self._links.members, *memories)
        self._timeout = links.timeout
        self._resume_check = ResumeCheck("; without it, call resume_at() in every worker")
        besides = DDPBesides(type(self).__name__, steps_locally=False)
        self.register_step_pre_hook(lambda own, *_: besides.before_step(m.param for m in own._links.members))
        self._recorder = recorder_of(self._links.worker)
        if self._recorder is not None:
            self._recorder.watch(self._links, model, [(member.param, member.tensor) for member in self._links.members])
            self.register_step_pre_hook(lambda own, *_: own._recorder.begin_optimizer())
            self.register_step_post_hook(lambda own, *_: own._recorder.end_optimizer(own, lambda: own._links.steps))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if self._links is not None:
            raise Unimplemented(f"{type(self).__name__} takes all its parameters when it is constructed")
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:
        """One exchange with all workers, and the same step as theirs. Returns what `closure` returns. Collective."""
        loss = evaluate(closure)
        self._resume_check.before_step(self, lambda: self._links.steps)
        parts = self._parts()
        tensors = [self._message(part) for part in parts]
        if self.asks_for_left_out:
            for part, tensor in zip(parts, tensors):
                part.left_out = torch.empty_like(tensor)
        left_out = [part.left_out for part in parts] if self.asks_for_left_out else None
        results = self._links.exchange(tensors, self._timeout, left_out=left_out)
        for part, mean, result in zip(parts, tensors, results):
            part.state["step"] = part.state.get("step", 0) + 1
            if not result.nonfinite:
                self._apply(part, mean)
        return loss

    def _parts(self):
        groups = {id(param): group for group in self.param_groups for param in group["params"]}
        return [
            Part(self._links, member, groups[id(member.param)], self.state[member.param], self._memory.of(i))
            for i, member in enumerate(self._links.members)
        ]

    def _message(self, part):
        """Returns the tensor that this worker sends for a parameter: of its shape, with memory of its own. Changes no
        state, because a message that is not finite in one worker must move nothing in any."""
        raise NotImplementedError

    def _apply(self, part, mean):
        """Takes the step of a parameter by the mean of all workers' messages, which it may overwrite, and updates
        part.state and part.memory. state["step"] counts this step already."""
        raise NotImplementedError

    def handover(self) -> Handover:
        """What a newcomer takes over; its residuals are 0."""
        memory = self._memory.state_dict() if self.lends_memory else None
        return Handover({"optimizer": self.state_dict(), "steps": self._links.step_count.ended}, {"memory": memory})

    def take_over(self, given: Handover) -> None:
        """Goes on from another worker's handover()."""
        load_exactly(self, given.common["optimizer"])
        if given.lent["memory"] is not None:
            self._memory.load_state_dict(given.lent["memory"])
        self._links.step_count.ended = given.common["steps"]
        self._resume_check.is_settled = True

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
