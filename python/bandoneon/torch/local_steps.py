"""LocalSteps: workers step by themselves, and meet every tau steps."""

from __future__ import annotations

import contextlib
import time
import warnings
from typing import Any, Iterator

import torch

from ..errors import InvalidArgument
from ..session import default_worker
from ..worker import Worker
from .algorithms.outer_steps import Average, Nesterov, Prox, SignMomentum, SlowMo  # noqa: F401 (where pickles look)
from .algorithms.pace import Pace
from .algorithms.qsr import QSR
from .comm_state import ResumeCheck, fitting_state, saved_by, step_to_resume_at
from .handover import Handover, load_exactly
from .hints import Closure, NamedParameters, OuterRule, SavedState
from .hyperparameters import check_steps
from .links import Links, link_table, takes_links
from .names import Names
from .parameters import ParameterSet, check_weights_fit_float32, terms_by_group
from .step_recorder import model_of
from .vote import Vote
from .weight import Weight
from .wrapped import WrappedOptimizer
from .written_weights import WrittenWeights


class LocalSteps(WrappedOptimizer):
    """Any optimizer, stepping in each worker by itself for tau steps; then the servers, which hold the
    common weights x, take an outer step on the mean of what the workers moved, x - x_i, and all go on
    from there. Collective: all workers construct the same and step equally often.

        optimizer = bdn.LocalSteps(
            torch.optim.AdamW(model.parameters(), lr=5e-4), model.named_parameters(),
            tau=12, outer=bdn.algorithms.SignMomentum(), push="int8")
        loss.backward()
        optimizer.step()

    optimizer: any; its state is the worker's own and never exchanged. Its learning rate at the meeting
        is that of the outer step, and must be the same everywhere.
    tau: steps between meetings, or QSR(...), which has more of them as the learning rate falls: the same in all
        workers, as the rate is. Or Pace(...), for workers that are not equally fast: each makes the steps that fit
        between two meetings, and loops end by `meetings`.
    outer: SignMomentum(), Nesterov(), SlowMo(), Average() or Prox().
    links, or push and pull alone: Links has what they mean. push: codec of what was moved; "ef(onebit)" and the like
        keep what they leave out for the next meeting. "none". pull: codec of the weights; the signs for SignMomentum,
        else "none"; delta(int4(group=2048)) sends what the weights differ by from what every worker holds. weight: of
        what this worker moved since the last meeting, asked for at each meeting. 0: it only takes up what the others
        moved. "steps": as many as it has made.
    local_residual: what a push leaves out stays in the worker's own weights instead, so that it goes on from the
        common ones less that, and sends it with what it moves next. The push codec is one without ef(...), then.
        Needs no memory for residuals. Models differ after meetings, too, so judge and save the common_weights();
        those of float16 and bfloat16 keep as much of it as their precision holds. False.

    The parameters start as rank 0's. Where any worker's parameters are not finite at a meeting, all go
    back to the common weights, and `skipped_rounds` counts it; what the optimizer keeps is left as it
    is. A copy of x is kept in each worker. A GradScaler is refused: it skips step() in the worker that
    overflowed; use bfloat16.
    """

    has_local_models = True

    @takes_links("overrides", "prefix", "timeout", "weight")
    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: NamedParameters | None = None,
        *,
        tau: int | QSR | Pace,
        outer: OuterRule,
        push: str | None = None,
        pull: str | None = None,
        links: Links = Links(),
        local_residual: bool = False,
        worker: Worker | None = None,
    ) -> None:
        self._is_paced = isinstance(tau, Pace)
        self._varies = self._is_paced or isinstance(tau, QSR)
        if not self._varies:
            check_steps(tau=tau)
        if not hasattr(outer, "rule"):
            raise InvalidArgument(
                f"outer={outer!r} is none of SignMomentum(), Nesterov(), SlowMo(), Average(), Prox()"
            )
        if self._is_paced:
            _check_has_own_rate(outer)
        super().__init__(optimizer)
        worker = worker or default_worker()
        table = link_table(links, push="none", pull=outer.pull)
        table.check_without("LocalSteps", "momentum", "warmup")
        if local_residual:
            _check_feeds_nothing_back(table)
        self.tau = tau if self._varies else int(tau)
        self.outer = outer
        self.local_residual = bool(local_residual)
        self.local_steps = 0
        self.meetings = 0
        self._last_meeting = self._next_meeting = 0  # in local steps
        self.skipped_rounds = 0
        self._timeout = links.timeout
        self._weight = Weight(self._steps_since_meeting if links.weight == "steps" else links.weight)
        self._resume_check = ResumeCheck("; without it, call resume_at() in every worker")
        self._links = ParameterSet(worker, table, links.prefix, as_float32=True, takes_shards=True)
        model = model_of(named_parameters)
        named = Names(named_parameters).in_forward_order(self.param_groups)
        check_weights_fit_float32(named, "LocalSteps")
        self._links.add(named, terms_by_group(self.param_groups, lambda group: outer.rule))
        name = f"{links.prefix}vote on rounds"
        self._vote = Vote(worker, name, self._links.reference, self._links.step_count, links.timeout)
        if self._is_paced:
            tau._begin(worker.rank)
        self._step_ended = None  # when step() has returned last, of this process
        self._links.share_weights(links.timeout)
        self._written = WrittenWeights((m.name, m.param) for m in self._links.members)
        self._begin_at_parameters()
        pairs = [(member.param, member.tensor) for member in self._links.members]
        self._record(self._links, lambda own: own.local_steps, model, pairs)

    def _begin_at_parameters(self):
        self._common = [
            m.local.detach().to("cpu", torch.float32).clone() for m in self._links.members
        ]
        self._written.note()

    def step(self, closure: Closure | None = None) -> Any:
        self._resume_check.before_step(self.inner, lambda: self.local_steps)
        if self.local_steps >= self._next_meeting:
            self._begin_round()
        loss = self.inner.step(closure)
        self.local_steps += 1
        meets = self.local_steps == self._next_meeting
        if self._is_paced and self._step_ended is not None:
            self.tau._note_step(time.monotonic() - self._step_ended)
        # A round counts as one step where the workers' steps in it differ in number.
        if meets or not self._is_paced:
            self._links.step_count.end_step()
        if meets:
            self.synchronize()
        self._step_ended = time.monotonic()
        return loss

    def _begin_round(self):
        self._warn_of_written()
        if self._is_paced:
            self._next_meeting = self.local_steps + self.tau._steps(self.meetings)
        elif self._varies:
            rate = float(self.param_groups[0]["lr"])
            self._next_meeting = self.local_steps + self.tau.steps(self.local_steps, rate)
        else:
            self._last_meeting = self.local_steps // self.tau * self.tau
            self._next_meeting = self._last_meeting + self.tau

    def _warn_of_written(self):
        """Of Average() and Prox() the meeting is made of the mean of the models, whatever has moved them."""
        names = [] if isinstance(self.outer, (Average, Prox)) else self._written.names()
        if names:
            others = f" and {len(names) - 1} others" if len(names) > 1 else ""
            warnings.warn(
                f"the program has written to {names[0]!r}{others} since the last meeting, and LocalSteps counts that "
                f"among what this worker moves: {self.outer} at the next meeting takes a step along it, and does not take "
                "up what was written. If these are other weights to go on from, load them before LocalSteps is made, or "
                "call resume_at(step) in all workers",
                RuntimeWarning,
                stacklevel=4,
            )

    @torch.no_grad()
    def synchronize(self) -> None:
        """Meets the others now. Collective."""
        self._meet()
        self._written.note()

    def _meet(self):
        members = self._links.members
        # From where each began: the common weights, rounded to the parameter's type.
        moved = [
            common.to(m.param.dtype).float() - m.local.to("cpu", torch.float32)
            for m, common in zip(members, self._common)
        ]
        weight = self._weight.now()
        if self._vote.all_finite(moved if weight else [], weight):
            left_out = [torch.zeros_like(m) for m in moved] if self.local_residual and weight else None
            results = self._links.update_weights(
                moved, self._timeout, rates=self._outer_rates(members), weight=weight, left_out=left_out
            )
            # Now they are the new weights, but for what nobody's push counted in.
            self._common = [
                old if result.absent else new
                for old, new, result in zip(self._common, moved, results)
            ]
        else:
            left_out = None
            self.skipped_rounds += 1
        self.meetings += 1
        self._last_meeting = self.local_steps
        if left_out is None:
            return self._take_common()
        for m, common, rest in zip(members, self._common, left_out):
            m.local.copy_(torch.sub(common, rest, alpha=1 / weight))  # What was pushed is `weight` times that.

    def _outer_rates(self, members):
        """What the outer step is told; servers refuse those that differ. Those of Average, Nesterov and Prox are not used."""
        own = getattr(self.outer, "rate", None)
        if own is None and not self._is_paced:
            return self.rates(members)
        return [own or 0.0] * len(members)

    def _steps_since_meeting(self):
        return self.local_steps - self._last_meeting

    @contextlib.contextmanager
    def common_weights(self) -> Iterator[None]:
        """A context in which the parameters are the common ones of the last meeting: to evaluate, or to
        save, between meetings."""
        own = [m.local.detach().clone() for m in self._links.members]
        self._take_common()
        try:
            yield
        finally:
            with torch.no_grad():
                for m, values in zip(self._links.members, own):
                    m.local.copy_(values)

    @property
    def is_together(self) -> bool:
        """Whether all workers' replicas are equal now: the last step ended with a meeting."""
        return self.meetings > 0 and self.local_steps == self._last_meeting

    @property
    def replicas_are_equal(self) -> bool:
        """Whether models are the same in all workers after a meeting."""
        return not self.local_residual

    def refuses_newcomers(self) -> str | None:
        """Why no worker can be taken into a job of this one, or None."""
        return "tau=Pace(...) has workers make unequally many steps" if self._is_paced else None

    def count_samples(self, samples: float) -> None:
        """What this worker moves until the next meeting is of so many samples: weight= of it."""
        self._weight.count_samples(samples)

    def handover(self) -> Handover:
        """What a newcomer takes over after a meeting: the common weights, and the inner optimizer of one worker."""
        place = {
            "local_steps": self.local_steps,
            "meetings": [self.meetings, self._last_meeting, self._next_meeting],
            "skipped_rounds": self.skipped_rounds,
            "steps": self._links.step_count.ended,
        }
        return Handover({"weights": self._common, **place}, {"inner": self.inner.state_dict()})

    def take_over(self, given: Handover) -> None:
        """Goes on from another worker's handover(), right after a meeting."""
        load_exactly(self.inner, given.lent["inner"])
        self._common = [weights.clone() for weights in given.common["weights"]]
        self.local_steps = given.common["local_steps"]
        self.meetings, self._last_meeting, self._next_meeting = given.common["meetings"]
        self.skipped_rounds = given.common["skipped_rounds"]
        self._links.step_count.ended = given.common["steps"]
        self._take_common()
        self._written.note()
        self._resume_check.is_settled = True

    @property
    def _settings(self):
        settings = {"algorithm": "LocalSteps", "tau": repr(self.tau) if self._varies else self.tau}
        # Without it states are as they were before there was a choice.
        return {**settings, "local_residual": True} if self.local_residual else settings

    def comm_state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs beside this rank's model and state_dict(): residuals, steps, place
        between meetings and common weights; of rank 0, weights and moments on the servers, too."""
        place = {
            **saved_by(self._links.worker, self._settings),
            "local_steps": self.local_steps,
            "meetings": [self._last_meeting, self._next_meeting],
            "met": self.meetings,
        }
        if self._is_paced:
            place["durations"] = self.tau._state()
        names = [member.name for member in self._links.members]
        common = dict(zip(names, (c.clone() for c in self._common)))
        return {**place, "common": common, **self._links.state_dict(self._timeout)}

    def load_comm_state_dict(self, state: SavedState) -> None:
        """Takes up this rank's comm_state_dict(). Load this rank's model, too. Collective.

        Where there were more or fewer workers: of the list of all ranks' what falls to this one. All go
        on from the common weights of the last meeting then: save right after one to lose nothing, but for what
        local_residual=True keeps in models."""
        worker = self._links.worker
        state = fitting_state(state, self._settings, worker)
        last, following = _meetings_of(state)
        self._links.load_state_dict(state, self._timeout)
        self._links.fetch_weights(self._timeout)  # Into the replicas. A reply may have rounded them.
        self._common = [state["common"][m.name].clone() for m in self._links.members]
        self.local_steps = state["local_steps"]
        self._last_meeting, self._next_meeting = last, following
        self.meetings = state.get("met", self._links.steps)  # Of before meetings were counted.
        if self._is_paced:
            self.tau._load(state.get("durations", []))
        self._written.forget()  # The model may be loaded after this.
        self._resume_check.is_settled = True
        if state["size"] != worker.sharers:
            self._leave_steps_since_meeting(state["size"])

    def resume_at(self, step: int | None = None) -> None:
        """For a checkpoint without comm_state_dict(), once the same model is loaded in all workers: it becomes
        the common weights, and `step`, rank 0's, by default the most that its optimizer state counts, says
        where codec schedules and the place between meetings go on. The outer step's moments begin at 0, and
        so do residuals; of a model saved between meetings, what the other workers had moved is lost.
        Collective, before any worker steps."""
        step = self._links.step_of_first(step_to_resume_at(self.inner, step))
        meetings = self.meetings = step // (self.tau.least if self._varies else self.tau)
        self._links.resume_weights_at(meetings, self._timeout)
        self._begin_at_parameters()
        self.local_steps = self._last_meeting = self._next_meeting = step
        self._resume_check.is_settled = True
        if not self._varies and step % self.tau:
            warnings.warn(
                f"step {step} is {step % self.tau} steps after a meeting (tau={self.tau}): what the other workers "
                "had moved since then is not in this model and is left out. Save comm_state_dict() too, or "
                "when local_steps is a multiple of tau",
                RuntimeWarning,
                stacklevel=2,
            )

    def _leave_steps_since_meeting(self, saved_size):
        """What other workers have moved by themselves is nobody's here."""
        lost = self.local_steps - self._last_meeting
        self.local_steps = self._next_meeting = self._last_meeting
        self._take_common()
        if self.local_residual:
            warnings.warn(
                f"{saved_size} workers saved, and there are {self._links.worker.sharers} now: what the pushes have left "
                "out so far stays in the models that they saved, and all go on from the common weights",
                RuntimeWarning,
                stacklevel=3,
            )
        if lost:
            warnings.warn(
                f"{saved_size} workers saved {lost} steps after their last meeting, and there are "
                f"{self._links.worker.sharers} now: those steps are left out, and all go on from that "
                f"meeting. Save {'right after one' if self._varies else f'when local_steps is a multiple of tau={self.tau}'} "
                "to lose none",
                RuntimeWarning,
                stacklevel=3,
            )

    def close(self) -> None:
        """Frees the parameters' names for another optimizer, which begins anew, and gives back what both ends
        remember."""
        self._links.release()

    @torch.no_grad()
    def _take_common(self):
        for m, common in zip(self._links.members, self._common):
            m.local.copy_(common)


def _check_has_own_rate(outer):
    if isinstance(outer, (SignMomentum, SlowMo)) and outer.rate is None:
        raise InvalidArgument(
            f"the outer step {type(outer).__name__} is one of the workers' learning rate, and with Pace(...) they make unequally "
            f"many steps, after which schedulers set different ones: say {type(outer).__name__}(rate=...), or take Average(), "
            "Nesterov() or Prox()"
        )


def _check_feeds_nothing_back(links):
    for options in links.rows:
        if options.feeds_back:
            raise InvalidArgument(
                f"push={options.push!r} keeps what it leaves out beside the weights, and local_residual=True in them; "
                "write the codec without ef(...)"
            )


def _meetings_of(state):
    """(local steps at the last meeting, at the next one) of a saved state; InvalidArgument where they are none."""
    steps, tau = state["local_steps"], state["settings"]["tau"]
    if "meetings" not in state and isinstance(tau, int):  # Of before meetings could grow rarer.
        last = steps // tau * tau
        return last, last + tau if steps > last else last
    places = state.get("meetings")
    fits = isinstance(places, (list, tuple)) and len(places) == 2 and all(isinstance(n, int) for n in places)
    if not (fits and isinstance(steps, int) and 0 <= places[0] <= steps <= places[1]):
        raise InvalidArgument(f"the state's local_steps={steps!r} are not within its meetings={places!r}")
    return places
