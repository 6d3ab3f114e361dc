"""What optimizers have in common that are put around another one."""

from __future__ import annotations

from typing import Any, Iterable, NoReturn

import torch

from ..errors import InvalidArgument, Unimplemented
from .ddp_besides import DDPBesides
from .foreign_words import check_optimizer
from .loss_scale import RefusesGradScaler
from .parameters import learning_rates
from .step_recorder import recorder_of


class WrappedOptimizer(RefusesGradScaler, torch.optim.Optimizer):
    """Shares groups and state with the optimizer that it is put around: schedulers, state_dict() and
    load_state_dict() may be used on either. Give torch.distributed.checkpoint.state_dict the `inner` one
    of LocalSteps and CSER: where an optimizer has no state yet, it takes a step, which would count."""

    has_local_models = False  # whether each worker's parameters and state are its own
    _steps_together_in: Any = None  # a process group in which DDP may exchange the gradients besides

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        check_optimizer(type(self).__name__, inner)
        if hasattr(inner, "comm_state_dict"):
            raise InvalidArgument(
                f"{type(inner).__name__} exchanges by itself already; put one around a plain optimizer"
            )
        self.inner = None
        super().__init__(inner.param_groups, inner.defaults)
        self.inner = inner
        inner.is_inside = type(self).__name__
        besides = DDPBesides(type(self).__name__, self.has_local_models)
        self.register_step_pre_hook(lambda own, *_: besides.before_step(_params_of(own.param_groups), own._steps_together_in))
        self._recorder = None

    def _record(self, owner, steps, model=None, pairs=()):
        """Has steps recorded, and what StepRecorder.watch() notes. steps: a function of this optimizer, for the number
        of its steps."""
        self._recorder = recorder = recorder_of(owner.worker)
        if recorder is None:
            return
        recorder.watch(owner, model, pairs)
        self.register_step_pre_hook(lambda own, *_: own._recorder.begin_optimizer())
        self.register_step_post_hook(lambda own, *_: own._recorder.end_optimizer(own, lambda: steps(own)))

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.inner.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        if self.inner is not None:  # Not those that the base begins with.
            self.inner.param_groups = groups

    @property
    def state(self) -> Any:
        return self.inner.state

    @state.setter
    def state(self, state: Any) -> None:
        if self.inner is not None:
            self.inner.state = state

    def state_dict(self) -> dict[str, Any]:
        return self.inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.inner.load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if self.inner is not None:
            raise Unimplemented(f"{type(self).__name__} takes its parameters when it is made")

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        refuse_pickling(self)

    def rates(self, members: Iterable[Any]) -> list[float]:
        """The learning rate of each member's group."""
        rates = learning_rates(self.param_groups)
        return [rates[id(member.param)] for member in members]


def _params_of(groups):
    return [param for group in groups for param in group["params"]]


def refuse_pickling(optimizer: object) -> NoReturn:
    """Also copying, which goes the same way: what came out would exchange nothing."""
    raise Unimplemented(
        f"a {type(optimizer).__name__} is tied to this process's worker and cannot be pickled or copied: "
        "save state_dict() and comm_state_dict(), and make another one where they are loaded"
    )


def evaluate(closure):
    """The loss of a closure that step() was called with, evaluated once and with its gradients; None of
    none."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()
