"""CSER: compressed gradients, and errors that are put right by resetting them now and then."""

from __future__ import annotations

import contextlib
from typing import Any, ContextManager

import torch

from ... import _native
from ...errors import InvalidArgument, OutOfRange
from ...session import default_worker
from ...worker import Worker
from ..broadcast import broadcast_parameters
from ..comm_state import ResumeCheck, fitting_state, saved_by, step_to_resume_at
from ..handover import Handover, load_exactly
from ..hints import Closure, NamedParameters, SavedState
from ..hyperparameters import check_steps
from ..link_options import LinkOptions, LinkTable
from ..links import Links, takes_links
from ..names import Names
from ..parameters import ParameterSet, check_apart, check_weights_fit_float32
from ..step_recorder import model_of
from ..tensors import host_empty
from ..wrapped import WrappedOptimizer


class CSER(WrappedOptimizer):
    """Communication-efficient SGD with error reset (arXiv 2007.13221), around any optimizer. What the
    codec of the gradients leaves out moves the worker's own model at once, and the models, which drift
    apart by that, are drawn together every `period` steps. Collective.

    With p_i what the optimizer's step moves in worker i, and e_i = x_i - xhat its drift:

        every step:      c = mean of C2(p_i);  r_i = p_i - C2(p_i)
                         xhat <- xhat - c;     x_i <- x_i - c - r_i
        every `period`:  c = mean of C1(e_i);  r_i = e_i - C1(e_i)
                         xhat <- xhat + c;     x_i <- xhat + r_i

    xhat is a vector of its own that only replies change, so it is the same bits in all workers: it is
    what is saved. The paper evaluates the mean of the models, averaged_weights(). With
    torch.optim.SGD(momentum=, nesterov=True) this is M-CSER.

        optimizer = bdn.algorithms.CSER(
            torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True),
            model.named_parameters(), gradient=512, reset=16, period=32)    # 256x
        loss.backward()
        optimizer.step()
        with optimizer.averaged_weights():
            evaluate(model)

    gradient, reset: C2 and C1. A number R is blocks(ratio=1/R), the paper's GRBS: all workers draw the
        same blocks. Or a codec spec; where a reply by the same codec would lose something of the sum
        (in a schedule: at any stage), it goes uncompressed. So does that to an override's push. None:
        nothing is sent of the gradients.
    links: Links has what it means; push and pull are gradient and reset here.
    period: H. The ratio of all is 1 / (1 / R2 + 1 / (H R1)); the paper takes R2 = 2 R, H = R2 / R1.
    block: elements of a block, where a number is given.
    implementation: "residual", the above; or "model", which averages blocks of the models themselves
        (the paper's second: no xhat, a copy less, and common_weights() must ask the others).

    The parameters start as rank 0's. A GradScaler is refused: it skips step() in the worker that
    overflowed, and the others wait; use bfloat16.

    Special cases: CSEA is gradient=None, period=1; CSER-PL is gradient=None; local SGD is gradient=None,
    reset="none"; synchronous SGD is gradient="none".
    """

    has_local_models = True

    @takes_links("overrides", "prefix", "timeout")
    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: NamedParameters | None = None,
        *,
        reset: str | float,
        gradient: str | float | None = None,
        period: int = 1,
        block: int = 1024,
        implementation: str = "residual",
        links: Links = Links(),
        worker: Worker | None = None,
    ) -> None:
        check_steps(period=period, block=block)
        if implementation not in ("residual", "model"):
            raise InvalidArgument(
                f"implementation={implementation!r} is neither residual nor model"
            )
        super().__init__(optimizer)
        self.settings = dict(
            algorithm="CSER",
            gradient=_codec("gradient", gradient, block),
            reset=_codec("reset", reset, block),
            period=int(period),
            implementation=implementation,
        )
        self.steps = 0
        self._timeout = links.timeout
        self._resume_check = ResumeCheck(
            "; without it, load what was saved inside averaged_weights(), and call resume_at(step) in every worker"
        )
        model = model_of(named_parameters)
        named = Names(named_parameters).in_forward_order(self.param_groups)
        worker = worker or default_worker()
        check_weights_fit_float32(named, "CSER")

        def parameters(kind, spec, beside=None):
            table = LinkTable(LinkOptions.of(spec, _reply_to(spec)), _with_replies(links.overrides))
            _check_links(table, kind, implementation)
            return ParameterSet(worker, table, f"{links.prefix}{kind}/", as_float32=True, beside=beside)

        self._worker = worker
        self._prefix = links.prefix
        self._reset = parameters("reset", self.settings["reset"])
        self._gradient = parameters("gradient", self.settings["gradient"], self._reset) if gradient else None
        self._reset.check_owner(named)
        check_apart(named)
        broadcast_parameters(named, worker=worker)
        for own in (self._reset, self._gradient):
            if own:
                own.add(named)
        self._mean = None  # Declared when averaged_weights() is first asked for.
        self._common = None
        self._begin_at_parameters()
        pairs = [(member.param, member.tensor) for member in self._reset.members]
        self._record(self._reset, lambda own: own.steps, model, pairs)

    def _begin_at_parameters(self):
        if self.settings["implementation"] == "residual":
            self._common = [_host(param).clone() for param in self._params]

    @property
    def _params(self):
        return [member.param for member in self._reset.members]

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:
        residual = self._common is not None
        before = [_host(p).clone() for p in self._params] if residual and self._gradient else None
        self._resume_check.before_step(self.inner, lambda: self.steps)
        loss = self.inner.step(closure)
        self.steps += 1
        self._reset.step_count.end_step()
        is_reset = self.steps % self.settings["period"] == 0
        if residual and self._gradient:
            self._synchronize_gradients(before)
        elif self._gradient and not is_reset:
            self._average_models(self._gradient)
        if is_reset and residual:
            self._synchronize_errors()
        elif is_reset:
            self._average_models(self._reset)
        return loss

    def _synchronize_gradients(self, before):
        moved = [old - _host(p) for old, p in zip(before, self._params)]
        means, rests, results = self._exchange(self._gradient, moved)
        for i, (param, result) in enumerate(zip(self._params, results)):
            if result.nonfinite:
                param.copy_(before[i])  # Nobody takes this step.
                continue
            self._common[i] -= means[i]
            param.copy_(before[i].sub_(means[i]).sub_(rests[i]))

    def _synchronize_errors(self):
        errors = [_host(p) - common for p, common in zip(self._params, self._common)]
        means, rests, results = self._exchange(self._reset, errors)
        for i, (param, result) in enumerate(zip(self._params, results)):
            if not result.nonfinite:
                self._common[i] += means[i]
                param.copy_(rests[i].add_(self._common[i]))
            elif not torch.isfinite(param).all():
                param.copy_(self._common[i])

    def _average_models(self, links):
        models = [_host(p).clone() for p in self._params]
        means, rests, results = self._exchange(links, models)
        for member, mean, rest, result in zip(links.members, means, rests, results):
            if result.nonfinite:
                raise OutOfRange(
                    f"{member.name!r} is not finite in some worker, and implementation='model' has no "
                    "common weights to go back to; start again from a checkpoint, or use 'residual'",
                    tensor=member.name,
                )
            member.param.copy_(rest.add_(mean))

    def _exchange(self, links, tensors):
        """(means of what the codec sent, what it left out here, Results)"""
        rests = [host_empty(t.shape) for t in tensors]  # In row-major order.
        results = links.exchange(tensors, self._timeout, left_out=rests)
        return tensors, rests, results

    def common_weights(self) -> ContextManager[None]:
        """A context in which the parameters are xhat, to save them, say: the same in all workers, and
        nothing is asked for. Where implementation="model", averaged_weights()."""
        if self._common is None:
            return self.averaged_weights()
        return self._weights(self._common)

    def averaged_weights(self) -> ContextManager[None]:
        """A context in which the parameters are the mean of all workers' models, which is what the paper
        evaluates: xhat and the mean drift. Collective; asks for the mean, uncompressed."""
        if self._mean is None:
            named = [(member.name, member.param) for member in self._reset.members]
            links = LinkTable(LinkOptions())
            prefix = f"{self._prefix}mean/"
            self._mean = ParameterSet(self._worker, links, prefix, as_float32=True, beside=self._reset)
            self._mean.add(named)
        models = [_host(p).clone() for p in self._params]
        self._mean.exchange(models, self._timeout)
        return self._weights(models)

    @contextlib.contextmanager
    def _weights(self, weights):
        own = [param.detach().clone() for param in self._params]
        try:
            with torch.no_grad():
                for param, values in zip(self._params, weights):
                    param.copy_(values)
            yield
        finally:
            with torch.no_grad():
                for param, values in zip(self._params, own):
                    param.copy_(values)

    replicas_are_equal = False  # Models drift apart.

    def handover(self) -> Handover:
        """What a newcomer takes over: xhat, from which it has not drifted, and the inner optimizer of one worker; with
        implementation="model", which has no xhat, that worker's model."""
        common = {"steps": self.steps, "ended": self._reset.step_count.ended, "weights": self._common}
        return Handover(common, {"inner": self.inner.state_dict()})

    @torch.no_grad()
    def take_over(self, given: Handover) -> None:
        """Goes on from another worker's handover(), once the model has that one's weights."""
        load_exactly(self.inner, given.lent["inner"])
        if self._common is not None:
            self._common = [weights.clone() for weights in given.common["weights"]]
            for param, values in zip(self._params, self._common):
                param.copy_(values)
        self.steps = given.common["steps"]
        self._reset.step_count.ended = given.common["ended"]
        self._resume_check.is_settled = True

    def comm_state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs beside this rank's model and state_dict(): xhat and steps."""
        links = dict(reset=self._reset, gradient=self._gradient)
        state = {**saved_by(self._worker, dict(self.settings)), "steps": self.steps}
        state["links"] = {kind: own.state_dict(self._timeout) for kind, own in links.items() if own}
        if self._common is not None:
            names = [member.name for member in self._reset.members]
            state["common"] = dict(zip(names, (c.clone() for c in self._common)))
        return state

    def load_comm_state_dict(self, state: SavedState) -> None:
        """Takes up this rank's comm_state_dict(). Load this rank's model, too. Collective. Not of another
        number of workers: each has drifted by itself."""
        state = fitting_state(
            state,
            self.settings,
            self._worker,
            only_same_size="every worker's model has drifted by itself, and nobody here could go on with "
            "that of a worker that is not there. Start a new CSER from weights that were saved inside "
            "averaged_weights()",
        )
        for kind, own in dict(reset=self._reset, gradient=self._gradient).items():
            if own:
                own.load_state_dict(state["links"][kind], self._timeout)
        if self._common is not None:
            self._common = [state["common"][m.name].clone() for m in self._reset.members]
        self.steps = state["steps"]
        self._resume_check.is_settled = True

    def resume_at(self, step: int | None = None) -> None:
        """For a checkpoint without comm_state_dict(), once the same model is loaded in all workers, best what
        was saved inside averaged_weights(): it becomes xhat, and no worker has drifted from it. Resets and
        codec schedules go on after `step`, rank 0's, by default the most that its optimizer state counts.
        Collective, before any worker steps. InvalidArgument where the workers' parameters differ: each
        has drifted by itself, and xhat is not among them."""
        step = self._reset.step_of_first(step_to_resume_at(self.inner, step))
        self._reset.check_same_weights()
        resets = step // self.settings["period"]
        self._reset.resume_at(resets, self._timeout)
        if self._gradient:
            # Where models are averaged, a reset takes the gradients' place.
            self._gradient.resume_at(step if self._common is not None else step - resets, self._timeout)
        self._begin_at_parameters()
        self.steps = step
        self._resume_check.is_settled = True

    def close(self) -> None:
        """Frees the parameters' names for another optimizer, which begins anew, and gives back what both ends
        remember."""
        for own in (self._reset, self._gradient, self._mean):
            if own:
                own.release()


def _host(param):
    return param.detach().to("cpu", torch.float32)


def _carries_sums(spec):
    """Whether a reply by the same codec loses nothing of the sum of its pushes."""
    return _native.CodecTraits.CARRIES_SUMS in _native.codec_traits(spec)


def _reply_to(spec):
    return spec if _carries_sums(spec) else "none"


def _with_replies(overrides):
    """The overrides, in which a reply that is not given goes with the push."""
    return {
        pattern: {"pull": _reply_to(changes["push"]), **changes} if "push" in changes else changes
        for pattern, changes in (overrides or {}).items()
    }


def _check_links(table, kind, implementation):
    table.check_without("CSER", "momentum", "warmup")
    for options in table.rows:
        if options.feeds_back:
            raise InvalidArgument(
                f"{kind}={options.push!r} keeps what it leaves out, which is CSER's to keep; write the "
                "codec without ef(...)"
            )
        if implementation == "model" and not _carries_sums(options.push):
            raise InvalidArgument(
                f"{kind}={options.push!r} does not do with implementation='model', which averages what "
                "all workers choose alike: a ratio, blocks(...) or randomk(...); use 'residual'"
            )


def _codec(name, wanted, block):
    """A codec spec, of a ratio or of itself; None stays."""
    if wanted is None and name == "gradient":
        return None
    if isinstance(wanted, str):
        return wanted
    if not isinstance(wanted, (int, float)) or not wanted >= 1:
        raise InvalidArgument(
            f"{name}={wanted!r} is neither a codec spec nor a ratio, which is 1 or more: 256 sends a "
            "256th of the blocks"
        )
    return f"blocks(ratio={1 / wanted!r},size={block})"
