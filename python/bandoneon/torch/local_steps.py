"""LocalSteps: workers step by themselves, and meet every tau steps."""

from __future__ import annotations

import contextlib
import io
import time
import warnings
from dataclasses import dataclass
from typing import Any, Iterator

import torch

from ..errors import InvalidArgument
from ..session import default_worker
from ..worker import Worker
from .algorithms.outer_steps import Average, Nesterov, Prox, SignMomentum, SlowMo  # noqa: F401 (where pickles look)
from .algorithms.pace import Pace
from .algorithms.qsr import QSR
from .algorithms.streaming import Streaming, fragments_of
from .broadcast import agree
from .comm_state import ResumeCheck, fitting_state, saved_by, step_to_resume_at
from .handover import Handover, load_exactly
from .hints import Closure, NamedParameters, OuterRule, SavedState
from .hyperparameters import check_steps
from .links import Links, link_table, takes_links
from .names import Names
from .parameters import Exchange, Terms, check_weights_fit_float32, overflowed, terms_by_group
from .sliced_parameters import SlicedExchange, parameters_of, refusal_of_newcomers, settings_of
from .step_recorder import model_of
from .vote import Vote
from .weight import Weight
from .wrapped import WrappedOptimizer
from .written_weights import WrittenWeights


@dataclass
class _Travel:
    """A fragment on its way: what the worker has pushed of it, and what comes back. Lists have one a member."""

    part: list[int]  # the numbers of its members
    ends_at: int  # local steps after which it is merged
    met: list[torch.Tensor]  # the worker's own weights when it met
    weight: float  # of what was pushed
    keeps_steps: bool  # whether the weights were finite, so that steps made since can be kept
    exchange: Exchange | SlicedExchange | None = None  # None once it has come
    new: list[torch.Tensor] | None = None  # once it has come, the common weights; None where a worker's were not finite
    left_out: list[torch.Tensor] | None = None  # what the push left out, of local_residual=True


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
        between two meetings, and loops end by `meetings`. Or Streaming(...), for links that are slow beside the
        model: it meets in fragments, and workers step on while one travels; call synchronize() at the end.
    outer: SignMomentum(), Nesterov(), SlowMo(), Average() or Prox().
    links, or push and pull alone: Links has what they mean. push: codec of what was moved; "ef(onebit)" and the like
        keep what they leave out for the next meeting. "none". pull: codec of the weights; the signs for SignMomentum,
        else "none"; delta(int4(group=2048)) sends what the weights differ by from what every worker holds. weight: of
        what this worker moved since the last meeting, asked for at each meeting. 0: it only takes up what the others
        moved. "steps": as many as it has made. local_group: at a meeting the processes of a host add up what they have
        moved.
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

    @takes_links("overrides", "prefix", "timeout", "weight", "local_group")
    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: NamedParameters | None = None,
        *,
        tau: int | QSR | Pace | Streaming,
        outer: OuterRule,
        push: str | None = None,
        pull: str | None = None,
        links: Links = Links(),
        local_residual: bool = False,
        worker: Worker | None = None,
    ) -> None:
        # In one fragment, whose result is awaited, all parameters meet at once.
        if isinstance(tau, Streaming) and (tau.fragments, tau.delay) == (1, 0):
            tau = tau.tau
        self._is_paced = isinstance(tau, Pace)
        self._varies = self._is_paced or isinstance(tau, QSR)
        self._streaming = tau if isinstance(tau, Streaming) else None
        if not self._varies and self._streaming is None:
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
            _check_keeps_residuals(self._streaming)
            _check_has_its_own(links.local_group)
        self.tau = tau if self._varies or self._streaming else int(tau)
        self.outer = outer
        self.local_residual = bool(local_residual)
        self.local_steps = 0
        self.meetings = 0
        self._last_meeting = self._next_meeting = 0  # in local steps
        self.skipped_rounds = 0
        self._timeout = links.timeout
        self._weight = Weight(self._steps_since_meeting if links.weight == "steps" else links.weight)
        self._resume_check = ResumeCheck("; without it, call resume_at() in every worker")
        self._links = parameters_of(links, worker, table, as_float32=True, takes_shards=True)
        self._steps_together_in = links.local_group
        model = model_of(named_parameters)
        named = Names(named_parameters).in_forward_order(self.param_groups)
        check_weights_fit_float32(named, "LocalSteps")
        fragments = self._streaming.fragments if self._streaming else 1
        self._fragments = fragments_of(named, fragments, are_named=named_parameters is not None)
        self._travel: _Travel | None = None
        if self._streaming:
            self._agree_on_streaming(worker)
            worker.settle_before_leaving(self)
        self._links.add(named, self._terms(named))
        name = f"{links.prefix}vote on rounds"
        self._vote = Vote(worker, name, self._links.reference, self._links.step_count, links.timeout)
        if self._is_paced:
            tau._begin(worker.rank)
        self._step_ended = None  # when step() has returned last, of this process
        self._links.share_weights(links.timeout)
        members = self._links.members
        # Of Average() and Prox() the meeting is made of the mean of the models, whatever has moved them.
        watched = [] if isinstance(outer, (Average, Prox)) else self._fragments
        self._written = [WrittenWeights((members[i].name, members[i].param) for i in part) for part in watched]
        self._begin_at_parameters()
        pairs = [(member.param, self._links.number_of(member)) for member in members]
        self._record(self._links, lambda own: own.local_steps, model, pairs)

    def _agree_on_streaming(self, worker):
        """All would go on, each with other weights, where one merges in another way."""
        if not worker.is_candidate():
            agree(worker, "tau of LocalSteps", [repr(self.tau)], worker.present()[0], _differing_tau)

    def _terms(self, named):
        """By ids of parameters. Tensors of one group share frames: those of one fragment, which travel together."""
        terms = terms_by_group(self.param_groups, lambda group: self.outer.rule)
        count = len(self._fragments)
        for fragment, part in enumerate(self._fragments):
            for param in (named[index][1] for index in part):
                own = terms[id(param)]
                terms[id(param)] = Terms(own.rule, own.group * count + fragment)
        return terms

    def _begin_at_parameters(self):
        self._common = [
            m.local.detach().to("cpu", torch.float32).clone() for m in self._links.members
        ]
        self._note_written()

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
        if self._travel is not None and self.local_steps >= self._travel.ends_at:
            self._land()
        if meets and self._streaming:
            self._meet_fragment(self._streaming.fragment_after(self.local_steps))
        elif meets:
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
            self._last_meeting = self.local_steps // self._gap * self._gap
            self._next_meeting = self._last_meeting + self._gap

    @property
    def _gap(self):
        """Steps from one meeting to the next, where that stays the same."""
        return self._streaming.gap if self._streaming else self.tau

    def _warn_of_written(self):
        names = [name for written in self._written for name in written.names()]
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

    def synchronize(self) -> None:
        """Meets the others now, with all parameters, once what travels has come. Collective. With Streaming(...) all
        workers' models are equal after this alone: call it at the end, and before a model is saved for use."""
        self._land()
        self._meet(range(len(self._links.members)))
        self._note_written()

    def _note_written(self, fragment=None):
        """What the next step is to find in the parameters of a fragment, or in all."""
        for number, written in enumerate(self._written):
            written.note() if fragment in (None, number) else written.forget()

    @torch.no_grad()
    def _meet(self, part):
        """Meets with the members of these numbers, and waits."""
        members = [self._links.members[index] for index in part]
        moved = self._moved(part)
        weight = self._weight.now()
        if self._vote.all_finite(moved if weight else [], weight):
            left_out = [torch.zeros_like(m) for m in moved] if self.local_residual and weight else None
            results = self._links.update_weights(
                moved,
                self._timeout,
                members=members,
                rates=self._outer_rates(members),
                weight=weight,
                left_out=left_out,
            )
            # Now they are the new weights, but for what nobody's push counted in.
            for index, new, result in zip(part, moved, results):
                if not result.absent:
                    self._common[index] = new
        else:
            left_out = None
            self.skipped_rounds += 1
            part = range(len(self._common))  # What is not finite in a part is soon not finite in all.
        self._note_meeting()
        if left_out is None:
            return self._take_common(part)
        for m, index, rest in zip(members, part, left_out):
            # The push was `weight` times what the worker has moved, and so is what it left out.
            m.local.copy_(torch.sub(self._common[index], rest, alpha=1 / weight))

    def _moved(self, part):
        # From where each began: the common weights, rounded to the parameter's type.
        pairs = [(self._links.members[index], self._common[index]) for index in part]
        return [common.to(m.param.dtype).float() - m.local.to("cpu", torch.float32) for m, common in pairs]

    def _note_meeting(self):
        self.meetings += 1
        self._last_meeting = self.local_steps

    # ---- Fragments ----

    @torch.no_grad()
    def _meet_fragment(self, fragment):
        part = self._fragments[fragment]
        if self._streaming.delay:
            self._send(part)
        else:
            self._meet(part)
        self._note_written(fragment)

    def _send(self, part):
        """Begins an exchange of these members, which _land() ends. There is no vote: who has values that are not finite
        pushes nothing else, so the servers' weights stay as they are, and everybody is told by the result."""
        members = [self._links.members[index] for index in part]
        moved, weight = self._moved(part), self._weight.now()
        is_fit = self._vote.is_fit(moved, weight)
        for tensor in moved if weight and not is_fit else []:
            tensor.fill_(float("nan"))
        left_out = [torch.zeros_like(m) for m in moved] if self.local_residual and weight else None
        travel = _Travel(
            part=list(part),
            ends_at=self.local_steps + self._streaming.delay,
            met=[m.local.detach().clone() for m in members],
            weight=weight,
            keeps_steps=is_fit,
            left_out=left_out,
        )
        travel.exchange = self._links.begin(
            moved, members=members, rates=self._outer_rates(members), weight=weight, left_out=left_out
        )
        self._travel = travel
        self._note_meeting()

    def _await(self, travel):
        """Waits until a fragment has come. The parameters stay as they are."""
        if travel.exchange is None:
            return
        exchange = travel.exchange
        results = self._links.end(exchange, self._timeout)
        nonfinite = [member for member, result in zip(exchange.members, results) if result.nonfinite]
        if nonfinite and len(nonfinite) < len(results):
            raise overflowed(nonfinite[0])
        if not nonfinite:
            travel.new = [
                self._common[index] if result.absent else values
                for index, values, result in zip(travel.part, exchange.tensors, results)
            ]
        travel.exchange = None

    @torch.no_grad()
    def _land(self):
        """Merges what travels, if anything does."""
        travel, self._travel = self._travel, None
        if travel is None:
            return
        self._await(travel)
        if travel.new is None:
            self.skipped_rounds += 1
            return self._take_common()
        for number, (index, met) in enumerate(zip(travel.part, travel.met)):
            self._common[index] = common = travel.new[number]
            if travel.left_out is not None:
                common = torch.sub(common, travel.left_out[number], alpha=1 / travel.weight)
            local = self._links.members[index].local
            if travel.keeps_steps:
                self._streaming.merge_into(local, common, met)
            else:
                local.copy_(common)

    def _forget_travel(self):
        """What is loaded takes its place."""
        if self._travel is not None:
            self._await(self._travel)
        self._travel = None

    def settle(self) -> None:
        """Merges the fragment that travels; the worker calls it before it leaves the job."""
        if self._travel is not None:
            warnings.warn(
                "the training has ended while a fragment of the model was on its way. It is merged now, but a model "
                "that was saved before lacks it, and the workers' models differ: call the optimizer's synchronize() at "
                "the end of the training, before models are saved",
                RuntimeWarning,
                stacklevel=2,
            )
            self._land()

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
        """A context in which the parameters are the common ones of the last meeting, of each fragment's last that
        was merged: to evaluate, or to save, between meetings."""
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
        """Whether all workers' replicas are equal now: the last step ended with a meeting. With Streaming(...), whether
        all have the same common weights, and nothing travels."""
        if self.meetings == 0 or self._travel is not None:
            return False
        delay = self._streaming.delay if self._streaming else 0
        return self.local_steps in (self._last_meeting, self._last_meeting + delay)

    @property
    def replicas_are_equal(self) -> bool:
        """Whether models are the same in all workers after a meeting."""
        return not self.local_residual and self._streaming is None

    def refuses_newcomers(self) -> str | None:
        """Why no worker can be taken into a job of this one, or None."""
        if self._is_paced:
            return "tau=Pace(...) has workers make unequally many steps"
        return refusal_of_newcomers(self._links)

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
        self._travel = None
        self.local_steps = given.common["local_steps"]
        self.meetings, self._last_meeting, self._next_meeting = given.common["meetings"]
        self.skipped_rounds = given.common["skipped_rounds"]
        self._links.step_count.ended = given.common["steps"]
        self._take_common()
        self._note_written()
        self._resume_check.is_settled = True

    @property
    def _settings(self):
        settings = {"algorithm": "LocalSteps", "tau": self.tau if isinstance(self.tau, int) else repr(self.tau)}
        # Without them states are as they were before there was a choice.
        residual = {"local_residual": True} if self.local_residual else {}
        return {**settings, **residual, **settings_of(self._links)}

    def comm_state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs beside this rank's model and state_dict(): residuals, steps, place
        between meetings and common weights; of rank 0, weights and moments on the servers, too. A fragment that travels
        is waited for and saved, and not merged before its time."""
        if self._travel is not None:
            self._await(self._travel)
        place = {
            **saved_by(self._links.worker, self._settings),
            "local_steps": self.local_steps,
            "meetings": [self._last_meeting, self._next_meeting],
            "met": self.meetings,
        }
        if self._is_paced:
            place["durations"] = self.tau._state()
        if self._streaming:
            place["travel"] = _bytes_of(self._travel)
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
        travel = self._travel_of(state)
        self._forget_travel()
        self._links.load_state_dict(state, self._timeout)
        self._links.fetch_weights(self._timeout)  # Into the replicas. A reply may have rounded them.
        self._common = [state["common"][m.name].clone() for m in self._links.members]
        self.local_steps = state["local_steps"]
        self._last_meeting, self._next_meeting = last, following
        self.meetings = state.get("met", self._links.steps)  # Of before meetings were counted.
        if self._is_paced:
            self.tau._load(state.get("durations", []))
        self._travel = travel
        for written in self._written:
            written.forget()  # The model may be loaded after this.
        self._resume_check.is_settled = True
        if state["size"] != worker.sharers:
            self._leave_steps_since_meeting(state["size"])

    def resume_at(self, step: int | None = None) -> None:
        """For a checkpoint without comm_state_dict(), once the same model is loaded in all workers: it becomes
        the common weights, and `step`, rank 0's, by default the most that its optimizer state counts, says
        where codec schedules and the place between meetings go on. The outer step's moments begin at 0, and
        so do residuals; of a model saved between meetings, what the other workers had moved is lost.
        Collective, before any worker steps."""
        self._forget_travel()
        step = self._links.step_of_first(step_to_resume_at(self.inner, step))
        tau = self.tau.least if self._varies else self.tau.tau if self._streaming else self.tau
        self.meetings = step // (tau if self._varies else self._gap)
        self._links.resume_weights_at(step // tau, self._timeout)
        self._begin_at_parameters()
        self.local_steps = self._last_meeting = self._next_meeting = step
        self._resume_check.is_settled = True
        if not self._varies and self._streaming is None and step % self.tau:
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
        if self._travel is not None and self._travel.new is not None:
            for index, new in zip(self._travel.part, self._travel.new):
                self._common[index] = new
        self._travel = None
        self._take_common()
        if self.local_residual:
            warnings.warn(
                f"{saved_size} workers saved, and there are {self._links.worker.sharers} now: what the pushes have left "
                "out so far stays in the models that they saved, and all go on from the common weights",
                RuntimeWarning,
                stacklevel=3,
            )
        if self._streaming:
            warnings.warn(
                f"{saved_size} workers saved, and there are {self._links.worker.sharers} now: all go on from the "
                "common weights, without the steps that each worker has made since a fragment's last meeting. Call the "
                "optimizer's synchronize() before such a save to lose none",
                RuntimeWarning,
                stacklevel=3,
            )
        elif lost:
            warnings.warn(
                f"{saved_size} workers saved {lost} steps after their last meeting, and there are "
                f"{self._links.worker.sharers} now: those steps are left out, and all go on from that "
                f"meeting. Save {'right after one' if self._varies else f'when local_steps is a multiple of tau={self.tau}'} "
                "to lose none",
                RuntimeWarning,
                stacklevel=3,
            )

    def _travel_of(self, state):
        """The _Travel of a saved state, or None; InvalidArgument where it does not fit."""
        saved = state.get("travel")
        if saved is None:
            return None
        try:
            travel = _Travel(**torch.load(io.BytesIO(saved), map_location="cpu", weights_only=True))
            shapes = [self._links.members[index].shape for index in travel.part]
            arrays = [array for array in (travel.met, travel.new, travel.left_out) if array is not None]
            fits = travel.part in self._fragments and all([one.shape for one in array] == shapes for array in arrays)
            fits = fits and state["local_steps"] < travel.ends_at == state["meetings"][0] + self._streaming.delay
        except Exception as error:
            raise InvalidArgument(f"the state's fragment that travels cannot be read: {error!r}") from error
        if not fits:
            raise InvalidArgument(
                f"the state's fragment that travels is of parameters {travel.part} and to be merged after step "
                f"{travel.ends_at}, which is none of this model at step {state['local_steps']} with {self.tau}"
            )
        travel.met = [values.to(self._links.members[index].local) for index, values in zip(travel.part, travel.met)]
        return travel

    def close(self) -> None:
        """Frees the parameters' names for another optimizer, which begins anew, and gives back what both ends
        remember. A fragment that travels is merged before."""
        try:
            self.settle()
        finally:
            self._travel = None
            self._links.release()

    @torch.no_grad()
    def _take_common(self, part=None):
        """Of the members of these numbers, or of all."""
        for index in range(len(self._common)) if part is None else part:
            self._links.members[index].local.copy_(self._common[index])


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


def _check_keeps_residuals(streaming):
    if streaming is not None and streaming.merge != "shift":
        raise InvalidArgument(
            f"merge={streaming.merge!r} would mix what local_residual=True keeps in a worker's weights with the common "
            "ones: take merge='shift', or push=\"ef(...)\" without local_residual"
        )


def _check_has_its_own(local_group):
    if local_group is not None:
        raise InvalidArgument(
            "local_residual=True with local_group: what a push leaves out is of the sum of a group, and of no process's own "
            'weights: take push="ef(...)", which keeps it beside them'
        )


def _differing_tau(worker, mine, theirs, root):
    if mine == theirs:
        return None
    return InvalidArgument(
        f"worker {worker.rank} has tau={mine[0]} and worker {root} has {theirs[0]}: fragments meet, and are merged, in "
        "the same way in all workers"
    )


def _bytes_of(travel):
    """Without a shape, as torch.distributed.checkpoint loads it into a state of which nothing travels."""
    if travel is None:
        return None
    buffer = io.BytesIO()
    tensors = {"met": [values.to("cpu") for values in travel.met], "new": travel.new, "left_out": travel.left_out}
    torch.save({**vars(travel), **tensors}, buffer)
    return buffer.getvalue()


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
