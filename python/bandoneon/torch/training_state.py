"""A training that workers leave, and that others come into, between two steps."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import warnings
import weakref
from typing import Any, Callable, Iterator, Mapping

import torch

from .. import endings
from ..calls import Declaration
from ..errors import BandoneonError, Evicted, FailedPrecondition, InvalidArgument
from ..json_log import LOGGER as _log
from ..session import default_worker
from ..worker import Worker
from .broadcast import broadcast_bytes
from .checkpoint import LostAmidSave, has_checkpoint, load, load_module, save, split_module
from .handover import Handover, check_can_travel, hand_over, load_exactly
from .islands import Islands, is_failure_inside, warn_of_old_addresses
from .shards import is_shard, joined_to
from .tensors import host_zeros

__all__ = ["TrainingState"]

# A change waits for this many times as long as the last one took, so that all take a tenth of a job's time at most.
_STEADY_TIMES = 10.0
_LEAST_SECONDS = 1.0
# A ballot costs half a millisecond of processor time, so there is one in so long, or each step where a
# step takes longer; and once in so many steps at least, as the next steps may take longer than the last ones.
_BALLOT_SECONDS = 0.1
_APART_SECONDS = 60.0  # without a common meeting, after which that is said to who has somebody wait
_MOST_STEPS = 16
_STEP = "step of TrainingState"
_JOB_IS_DONE = "is done and takes no more"  # in the scheduler's answer to who waits then


class TrainingState:
    """What a training is at a step: with it a job goes on while workers leave, are lost, and come back. Made by all
    workers, behind all of its objects.

        state = bdn.TrainingState({"model": model, "optimizer": optimizer, "schedule": schedule}, checkpoint="run1")
        for step in state.steps(10_000):
            inputs, labels = batch_of(step, *state.shard)
            loss_of(model, inputs, labels).backward()
            optimizer.step(); optimizer.zero_grad(); schedule.step()

    Where the scheduler's setting min-workers lets a job go on without a lost worker, another process of the same program
    may take its rank: it runs up to steps(), waits there while the others train, and is taken in between two of their
    steps. There it is given the state of one of them, and goes on from their step. Its residuals are 0. Before steps()
    its broadcast_parameters(), barriers and loads by optimizers leave what it has; broadcast_object() and push_pull()
    are refused there.

    objects: by name, what is the same in all workers: modules, the optimizers, and whatever else has state_dict() and
        load_state_dict(): schedulers, GradScaler, averaged models. Of modules each worker's buffers are its own, and a
        newcomer begins with those of one of the others. Where a newcomer comes, all compare what they have: a worker
        whose state is another than that of most is named, and out.
    own: the same, of objects that are each worker's own, such as a loader: checkpoints keep them, newcomers begin with
        theirs as they are.
    checkpoint: a directory, or URL, as bdn.save() takes it. The first steps() goes on from what it holds; it saves there every
        `every` steps and at the end, and when all workers leave at once, as where one is to leave and the job may not
        go on without it.
    on_sigterm: "leave": at SIGTERM this worker leaves within two ballots, and its process ends with status 75, which says:
        start me again. None: SIGTERM is the program's.
    on_change: a function that each worker calls when others have come or gone, between two steps.
    join_interval: seconds from one taking in of newcomers to the next. By default ten times as long as the last one took,
        and 1 s at least.
    heal_timeout: a newcomer that has not got the state after so many seconds goes again; the others wait for it so long.

    Workers tell each other in a ballot who is there, leaves, or waits to come: at the end of each step, or once in a tenth of
    a second where steps take less than half of that.

    All that exchanges by steps belongs to the objects, a RowOptimizer, too: where something is left out, nobody is taken in.
    Inside the loop each step has one step() of each optimizer, or none of any; what is exchanged beside that, as to
    evaluate, is exchanged inside the loop, too, for a newcomer comes to no step of before. One TrainingState a program.
    With LocalSteps workers are taken in at meetings. Not together with DistributedDataParallel and its hook,
    local_group= and Pace: with them a job survives what it survives without this, and takes nobody in.

    The processes of a host's daemon come and go together.

    worker: of a sharded model the group across islands, as sharded.across_islands() makes it. Islands then come and go
        whole: each rank of one that comes is given its part by a rank that holds the same, and where one leaves, all of
        its island do. Not with checkpoint=: torch.distributed.checkpoint saves shards.
    """

    def __init__(
        self,
        objects: Mapping[str, Any],
        *,
        own: Mapping[str, Any] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        every: int | None = None,
        on_sigterm: str | None = "leave",
        on_change: Callable[[], Any] | None = None,
        join_interval: float | None = None,
        heal_timeout: float = 300.0,
        worker: Worker | None = None,
    ) -> None:
        # Workers come and go in the whole job, and state is handed over in the group.
        self._group = worker or default_worker()
        self._worker = self._group.whole
        self._islands = Islands.of(self._group)
        self._objects = dict(objects)
        self._own = dict(own or {})
        _check_objects(self._objects, self._own)
        if on_sigterm not in ("leave", None):
            raise InvalidArgument(f"on_sigterm={on_sigterm!r} is neither 'leave' nor None")
        if every is not None and (checkpoint is None or not isinstance(every, int) or every < 1):
            raise InvalidArgument(f"every={every!r}: 1 or more steps from one checkpoint to the next, with checkpoint=")
        if checkpoint is not None and self._islands.is_sharded:
            raise InvalidArgument(
                "checkpoint= keeps what is the same in all workers, and of a sharded model each rank has a part: leave it out, and "
                "save by torch.distributed.checkpoint"
            )
        if self._islands.is_sharded:
            warn_of_old_addresses()
        for name, seconds in (("join_interval", join_interval), ("heal_timeout", heal_timeout)):
            if seconds is not None and not seconds >= 0:
                raise InvalidArgument(f"{name}={seconds!r} is not a number of seconds, 0 or more")
        self._checkpoint, self._every = checkpoint, every
        self._on_sigterm, self._on_change = on_sigterm, on_change
        self._join_interval, self._heal_timeout = join_interval, heal_timeout
        self._refusal = _refusal_of(self._objects, self._group)
        self._step = 0  # that comes next
        self._saved_at = 0
        self._roster: list[int] = []
        self._why_leave: str | None = None
        self._next_change = 0.0
        self._ballot: Ballot | None = None
        self._steps_planned = 1  # from a ballot to the next
        self._steps_left = 1  # to the one at whose end the next ballot is counted
        self._counted_at = 0.0
        self._steps_since = 0  # that count
        self._step_seconds = 0.0  # of a step, before that
        self._is_running = self._has_left = self._must_all_leave = self._has_warned_of_parts = False
        self._apart_since: float | None = None  # the end of the last step after which all were together
        self._has_said_apart = False
        self._came: dict[int, int] = {}  # by rank: the number of the change by which a worker came
        self._changes = 0
        self._number = self._worker.num_training_states
        self._worker.num_training_states += 1
        for name, given in self._given().items() if self._refusal is None else ():
            check_can_travel(name.removeprefix("object "), given)

    # ---- For the program ----

    @property
    def shard(self) -> tuple[int, int]:
        """(index, count): this worker's part of a step's data, of so many parts that the workers of this step take."""
        if not self._roster:
            raise FailedPrecondition("shard and count() are of a step: ask for them in the loop over steps()")
        return self._roster.index(self._worker.rank), len(self._roster)

    def count(self, total: int) -> int:
        """How many of a step's `total` samples are this worker's part, so that the batch of all stays the same however
        many workers there are: parts differ by one at most, and count in the mean by their samples. Of islands it is theirs that
        count; inside one, FSDP2 counts ranks alike."""
        if not isinstance(total, int) or total < 1:
            raise InvalidArgument(f"total={total!r} is not a number of samples, 1 or more")
        _, count = self.shard
        parts = {rank: total // count + (index < total % count) for index, rank in enumerate(self._roster)}
        counting = [item for item in self._objects.values() if hasattr(item, "count_samples")]
        own = [self._worker.rank]
        counted = self._islands.mates_among(own, parts) if self._islands.is_sharded else own
        for item in counting:
            item.count_samples(sum(parts[mate] for mate in counted))
        if not counting and total % count and not self._has_warned_of_parts:
            self._has_warned_of_parts = True
            warnings.warn(
                f"{total} samples are no equal parts for {count} workers, and nothing in this TrainingState has a weight: each "
                "part counts as one in the means. Put the DistributedOptimizer, ServerOptimizer or LocalSteps into it, or "
                "give weight= yourself",
                RuntimeWarning,
                stacklevel=2,
            )
        return parts[self._worker.rank]

    def leave(self, reason: str = "its program said so") -> None:
        """Has this worker leave the job within two ballots: its loop over steps() ends early, and the others go on. A process that
        then ends with status 0 is not started again, and one that ends with 75 is."""
        self._why_leave = self._why_leave or reason

    def steps(self, total: int) -> Iterator[int]:
        """The numbers of the steps that are left of `total`, for a for loop. Collective. Begins at 0, at the step of the
        checkpoint, or, in a worker that comes into a job that runs, at that of the others. A step that is left by break
        counts as taken."""
        if not isinstance(total, int) or total < 0:
            raise InvalidArgument(f"total={total!r} is not a number of steps, 0 or more")
        if self._is_running:
            raise FailedPrecondition("steps() runs already: one loop at a time")
        self._is_running = True
        if self._islands.is_sharded:
            goes = weakref.WeakMethod(self._goes_with_its_island)
            endings.ask_for_a_restart_where(lambda error: (ask := goes()) is not None and ask(error))
        try:
            with self._noticing_sigterm():
                self._begin()
                while self._step < total and not self._has_left:
                    self._step += 1  # Also where the program leaves the loop by break: it has taken this step.
                    yield self._step - 1
                    self._end_step(is_last=self._step == total)
                if self._checkpoint is not None and not self._has_left and self._saved_at < self._step:
                    self._save()
        finally:
            self._is_running = False

    # ---- Between two steps ----

    def _begin(self):
        worker = self._worker
        self._refusal = _refusal_of(self._objects, self._group) or _refusal_of_left_out(worker, self._objects)
        if worker.is_candidate():
            if self._refusal is not None:
                raise FailedPrecondition(f"this worker cannot come into a job that runs: {self._refusal}")
            _log.info("this worker joins a job that runs, and waits for the end of a step of the others")
            self._come()
        else:
            if self._ballot is None:  # Otherwise the program goes on behind a loop of before.
                self._ballot = Ballot(worker)
                self._load()
            self._set_roster(worker.present())
        self._plan_count(1)

    def _end_step(self, is_last):
        if not all(getattr(item, "is_together", True) for item in self._objects.values()):
            self._note_apart()
            return
        self._apart_since = None
        self._steps_since += 1
        self._steps_left -= 1
        present, leaving, wants, must_all_leave = self._roster, [], False, False
        is_counted = self._steps_left == 0
        if is_counted:
            present, leaving, wants, must_all_leave, seconds = self._ballot.count()
            leaving = self._islands.mates_among(leaving, present)
            self._set_roster(present)
            self._step_seconds = self._seconds_of_a_step()
        if is_last:
            return
        # Before newcomers come, who would not know that it is due.
        if self._every is not None and self._step - self._saved_at >= self._every:
            self._save()
        if must_all_leave:
            self._why_leave = self._why_leave or _SIGTERM
            self._leave_with_all()
        elif leaving or wants:
            self._change(leaving)
        if self._has_left:
            return
        if not is_counted:
            self._cast_if_due()
        elif leaving or wants or seconds <= 0:
            self._plan_count(1)
        else:
            # The mean is the same in all, so they agree on the number. First steps tell little, so it grows slowly.
            self._plan_count(max(1, min(int(_BALLOT_SECONDS / seconds), 2 * self._steps_planned, _MOST_STEPS)))

    def _note_apart(self):
        """Says once that a process waits, and why: each object may meet often, and never after the same step as all others."""
        now = time.monotonic()
        if self._apart_since is None:
            self._apart_since = now
        waited = now - self._apart_since
        if waited < _APART_SECONDS or self._has_said_apart or self._worker.candidates() == 0:
            return
        self._has_said_apart = True
        meeting = ", ".join(repr(name) for name, item in self._objects.items() if hasattr(item, "is_together"))
        _log.warning(
            "a process waits to come into the job: workers are taken in after a step at which all have met by %s, and for %.0f s there "
            "was none. Give them meetings that fall together, by the same tau say",
            meeting, waited,
        )

    def _plan_count(self, steps):
        """Has the next ballot counted at the end of the step that is so many further."""
        self._steps_left = self._steps_planned = steps
        self._steps_since, self._counted_at = 0, time.monotonic()
        self._cast_if_due()

    def _cast_if_due(self):
        if self._steps_left == 1:
            is_leaving = self._why_leave is not None
            self._ballot.cast(is_leaving, self._wants_change(), self._must_all_leave, self._seconds_of_a_step())

    def _seconds_of_a_step(self):
        if self._steps_since == 0:
            return self._step_seconds
        return (time.monotonic() - self._counted_at) / self._steps_since

    def _wants_change(self):
        # Before an island has come with all of its ranks it could not train. A host comes by one daemon.
        candidates = self._worker.candidates()
        has_island = candidates > 0 and candidates % self._islands.size == 0
        return self._refusal is None and has_island and time.monotonic() >= self._next_change

    def _set_roster(self, ranks):
        before, self._roster = self._roster, list(ranks)
        self._worker.seniority = sorted(ranks, key=lambda rank: (self._came.get(rank, 0), rank))
        if before and before != self._roster and self._on_change is not None:
            self._on_change()

    def _change(self, leaving):
        """All are here. Takes newcomers in, and lets go who leaves."""
        began = time.monotonic()
        worker = self._worker
        worker.settle()
        came = worker.boundary()
        newcomers = self._islands.whole(came)
        halves = set(came) - set(newcomers)  # Of islands that are not there: they go at once.
        if newcomers:
            self._changes += 1
            self._came.update(dict.fromkeys(newcomers, self._changes))
            present, num_bytes = self._heal(newcomers, self._given(leaving))
        else:
            present, num_bytes = worker.present(), 0
        present = [rank for rank in present if rank not in halves]
        took = self._change_ended(began)
        if newcomers:
            _log.info(
                "step %d: worker %s came into the job, which stood %.2f s for it and %.1f MB of state",
                self._step, ", ".join(map(str, newcomers)), took, num_bytes / 1e6,
            )
        staying = [rank for rank in present if rank not in leaving]
        if not staying:
            self._leave_with_all()
        elif worker.rank not in leaving:
            self._set_roster(staying)
        else:
            self._leave_to_others(present)

    def _change_ended(self, began):
        """Returns how long it took; the next one waits in proportion."""
        now = time.monotonic()
        by_itself = max(_STEADY_TIMES * (now - began), _LEAST_SECONDS)
        self._next_change = now + (by_itself if self._join_interval is None else self._join_interval)
        return now - began

    def _leave_to_others(self, present):
        try:
            self._worker.depart(self._why_leave or f"others of its {self._islands.noun} leave")
        except FailedPrecondition as error:
            _log.warning("%s; so all save what they have, and end", error)
            self._must_all_leave = True
            self._set_roster(present)
        else:
            self._gone()

    def _leave_with_all(self):
        if self._checkpoint is not None and self._saved_at < self._step:
            self._save()
        self._worker.leave()
        self._gone()

    def _gone(self):
        self._has_left = True
        if self._why_leave == _SIGTERM:
            raise SystemExit(endings.START_ME_AGAIN)

    def _goes_with_its_island(self, error):
        """Whether this worker has left the job because it cannot train without a rank of its island that is lost."""
        if self._worker.is_closed() or not is_failure_inside(error):
            return False
        try:
            self._worker.depart(f"its island has failed: {endings.describe(error)}")
        except BandoneonError as refused:
            _log.warning("%s", refused)
            return False
        return True

    # ---- Newcomers ----

    def _come(self):
        """Waits to be taken in, and takes the others' state over."""
        worker = self._worker
        try:
            newcomers = worker.boundary()
        except FailedPrecondition as error:
            if _JOB_IS_DONE not in str(error):
                raise
            # What the program does behind the loop the others have done, together: there is nothing left to do.
            _log.warning("this worker came to a job that has ended well meanwhile, without it: %s; it ends, too", error)
            worker.close_unneeded()
            raise SystemExit(0) from None
        is_late = threading.Event()

        def give_up():
            is_late.set()
            with contextlib.suppress(BandoneonError):
                worker.depart(f"it had not got the state of training after {self._heal_timeout:g} s")

        timer = threading.Timer(self._heal_timeout, give_up)
        timer.daemon = True
        timer.start()
        began = time.monotonic()
        try:
            if worker.rank not in self._islands.whole(newcomers):
                raise Evicted(
                    f"worker {worker.rank} was taken in without others of its island, which were not there yet: it has left the job, "
                    "and is to be started again with them"
                )
            self._ballot = Ballot(worker)
            present, _ = self._heal(self._islands.whole(newcomers), None)
        except BaseException as error:
            if is_late.is_set():
                raise Evicted(
                    f"this worker had not got the state of training after heal_timeout, {self._heal_timeout:g} s, and has "
                    "left the job, which goes on without it"
                ) from error
            with contextlib.suppress(BandoneonError):
                worker.depart(f"it could not take the state of training over: {endings.describe(error)}")
            raise
        finally:
            timer.cancel()
        self._change_ended(began)
        self._set_roster([rank for rank in present if rank not in self._leaving])

    def _given(self, leaving=()):
        """This worker's state, as it is handed over at a change in which `leaving` go."""
        equal = all(getattr(item, "replicas_are_equal", True) for item in self._objects.values())
        at = {
            "number": self._number,
            "step": self._step,
            "saved at": self._saved_at,
            "steps ended": self._worker.num_steps_ended,
            "leaving": list(leaving),
            "came": dict(self._came),
            "changes": self._changes,
        }
        state = {"training": Handover(at)}
        for name, item in self._objects.items():
            if isinstance(item, torch.nn.Module):
                parameters, rest = split_module(item)
                trained = [param.requires_grad for param in item.parameters()]
                common, lent = ({"parameters": parameters}, {}) if equal else ({}, {"parameters": parameters})
                state[f"object {name}"] = Handover({**common, "requires_grad": trained}, {**lent, "rest": rest})
            elif hasattr(item, "handover"):
                state[f"object {name}"] = item.handover()
            else:
                state[f"object {name}"] = Handover({"state": item.state_dict()})
        return state

    def _take(self, state):
        at = state["training"].common
        if at["number"] != self._number:
            raise FailedPrecondition(
                f"the others are in the loop of the TrainingState that they made as number {at['number'] + 1}, and this worker, "
                f"which has come into the job, in that of its number {self._number + 1}: what is between cannot be made up "
                "for. Use one TrainingState for the whole program"
            )
        missing = {f"object {name}" for name in self._objects} ^ (set(state) - {"training"})
        if missing:
            raise InvalidArgument(f"the TrainingState of the others has other objects than this one's: {sorted(missing)[0]}")
        for name, item in sorted(self._objects.items(), key=lambda entry: _order_of(entry[1])):
            given = state[f"object {name}"]
            if isinstance(item, torch.nn.Module):
                parts = {**given.common, **given.lent}
                own = item.state_dict()
                parameters = {key: joined_to(value, own.get(key)) for key, value in parts["parameters"].items()}
                load_module(item, [parameters, parts["rest"]])
                for param, is_trained in zip(item.parameters(), parts["requires_grad"]):
                    param.requires_grad_(is_trained)
            elif hasattr(item, "take_over"):
                item.take_over(given)
            elif isinstance(item, torch.optim.Optimizer):
                load_exactly(item, given.common["state"])
            else:
                item.load_state_dict(given.common["state"])
        self._step, self._saved_at, self._leaving = at["step"], at["saved at"], at["leaving"]
        self._came, self._changes = at["came"], at["changes"]
        self._worker.num_steps_ended = at["steps ended"]

    def _heal(self, newcomers, mine):
        """Has the newcomers take over the state of the lowest rank of the others that hold the same part; who is present
        then, and the bytes of the state. `mine`: this worker's state, None of a newcomer."""
        worker = self._worker
        while True:
            present = worker.present()
            staying = [rank for rank in present if rank not in newcomers]
            # All of an island get theirs from one other: what is its own, as an inner optimizer's state, then fits together.
            givers = self._islands.peers_among(worker.rank, self._islands.whole(staying) or staying)
            if not givers:
                raise FailedPrecondition(
                    "all workers that had the state of training were lost while they gave it; start the job again"
                    + ("" if self._checkpoint is None else " from its checkpoint")
                )
            received = None
            try:
                received = hand_over(self._group, mine, givers[0])
            except FailedPrecondition as error:
                _log.warning("worker %d was lost while it gave the state of training: %s", givers[0], error)
            differs = received is not None and received.differs is not None
            failed, differing = self._ballot.agree(received is None, differs)
            if not failed:
                break
        if differing:
            self._end_of_those_that_differ(differing, staying, received.differs)
        if mine is None:
            self._take(received.state)
        return worker.present(), received.num_bytes

    def _end_of_those_that_differ(self, differing, staying, what):
        rank = self._worker.rank
        who = ", ".join(map(str, differing))
        text = broadcast_bytes(self._worker, "state of training/difference", (what or "").encode(), differing[0])
        what = (what or text.decode()).removeprefix("object ")
        giver = self._islands.peers_among(differing[0], self._islands.whole(staying) or staying)[0]
        apart = self._islands.of_ranks(differing)
        if 2 * len(apart) >= len(self._islands.of_ranks(staying)):
            raise FailedPrecondition(
                f"the replicas have come apart: {what} of worker {who} is not that of worker {giver}, and no more than "
                "half of the workers have the same. What is each worker's own goes into TrainingState(own=)"
            )
        if self._islands.of_rank(rank) in apart:
            it, its = ("it", "this worker's state") if rank in differing else (f"worker {who} of its {self._islands.noun}", f"the state of worker {who}")
            self._worker.depart(f"{what} is not the same in {it} as in worker {giver} and most others")
            raise Evicted(
                f"{its} is not that of the others: {what} differs from that of worker {giver}. This worker has left the job, which "
                "goes on without it; started again, it takes the others' state over. What is each worker's own goes into "
                "TrainingState(own=)"
            )

    # ---- Checkpoints and signals ----

    def _load(self):
        if self._checkpoint is None or not has_checkpoint(self._checkpoint, worker=self._worker):
            return
        values = load(self._checkpoint, self._objects, worker=self._worker)
        step = values.get(_STEP)
        if not isinstance(step, int) or step < 0 or not self._own.keys() <= values.keys():
            raise InvalidArgument(
                f"the checkpoint in {self._checkpoint} is none of this TrainingState: its step is {step!r}, and of own= it has "
                f"{sorted(values.keys() - {_STEP})}. Give another directory, and bdn.load() that one before"
            )
        for name, item in self._own.items():
            item.load_state_dict(values[name])
        self._step = self._saved_at = step

    def _save(self):
        try:
            own = {name: item.state_dict() for name, item in self._own.items()}
            save(self._checkpoint, {**self._objects, **own, _STEP: self._step}, worker=self._worker)
        except LostAmidSave as error:  # In all workers; the next step tries again.
            _log.warning("no checkpoint of step %d: %s", self._step, error)
            return
        self._saved_at = self._step

    @contextlib.contextmanager
    def _noticing_sigterm(self):
        """Leaves the signal alone where the program has a handler of its own, and a second one ends the process."""
        is_ours = (
            self._on_sigterm == "leave"
            and threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        )

        process = os.getpid()

        def note(number, frame):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            if os.getpid() != process:  # A forked child, as of multiprocessing, has inherited this.
                os.kill(os.getpid(), signal.SIGTERM)
            self.leave(_SIGTERM)

        if is_ours:
            signal.signal(signal.SIGTERM, note)
        try:
            yield
        finally:
            if is_ours and signal.getsignal(signal.SIGTERM) is note:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)


_SIGTERM = "SIGTERM asked it to leave"


class Ballot:
    """What all workers are told of each other, by two small exchanges: one that travels beside a step, and one for the
    moment in which state is handed over. All get the same answer, whoever is lost meanwhile."""

    def __init__(self, worker):
        self._worker = worker
        self._size = worker.size
        # A part for each rank, whether it is there and whether it leaves, and three of all.
        spec = dict(push="none", pull="none")
        self._beside, self._healed = worker.declare(
            [
                Declaration("state of training/roster", 2 * self._size + 3, **spec),
                Declaration("state of training/healed", self._size + 1, **spec),
            ]
        )
        self._values = host_zeros(2 * self._size + 3)
        self._ticket = None

    def cast(self, leaves, wants_change, must_all_leave, seconds):
        """Begins the exchange beside the next step."""
        self._wait()  # For that of a loop that the program has left.
        values = self._values.zero_()
        values[self._worker.rank] = 1
        values[self._size + self._worker.rank] = float(leaves)
        values[-3] = float(wants_change)
        values[-2] = float(must_all_leave)
        values[-1] = seconds
        self._ticket = self._worker.push(self._beside, values.data_ptr(), keep=values)

    def count(self):
        """(ranks that took part, those of them that leave, whether anybody wants a change, whether all must leave, the mean of
        the seconds)"""
        self._wait()
        present = self._values[: self._size].nonzero().flatten().tolist()
        leaving = self._values[self._size : -3].nonzero().flatten().tolist()
        return present, leaving, bool(self._values[-3]), bool(self._values[-2]), self._values[-1].item()

    def _wait(self):
        if self._ticket is not None:
            self._worker.wait(self._ticket)
            self._ticket = None

    def agree(self, has_failed, differs):
        """(whether anybody has failed, the ranks of those that differ)"""
        values = host_zeros(self._size + 1)
        values[self._worker.rank] = float(differs)
        values[-1] = float(has_failed)
        self._worker.wait(self._worker.push(self._healed, values.data_ptr(), keep=values))
        return bool(values[-1]), values[:-1].nonzero().flatten().tolist()


def _order_of(item):
    """Modules first, as optimizers look at their parameters, and then optimizers, which schedulers look at."""
    return 0 if isinstance(item, torch.nn.Module) else 1 if isinstance(item, torch.optim.Optimizer) else 2


def _check_objects(objects, own):
    for argument, items in (("objects", objects), ("own", own)):
        for name, item in items.items():
            if not isinstance(name, str):
                raise InvalidArgument(f"{argument}: the name {name!r} is no text")
            if not (hasattr(item, "state_dict") and hasattr(item, "load_state_dict")) and not hasattr(item, "handover"):
                is_hook = hasattr(item, "refuses_newcomers")
                if not is_hook:
                    raise InvalidArgument(
                        f"{argument}[{name!r}] is a {type(item).__name__}, which has no state_dict() and load_state_dict(); keep "
                        "values in an object that has them"
                    )
    both = objects.keys() & own.keys()
    if both or _STEP in objects or _STEP in own:
        raise InvalidArgument(f"{sorted(both)[0] if both else _STEP!r} is the name of two things: give each another one")
    for name, item in objects.items():
        outside = getattr(item, "is_inside", None)
        if outside is None and hasattr(item, "_bandoneon") and not hasattr(item, "handover"):
            outside = "DistributedOptimizer"
        if outside is not None:
            raise InvalidArgument(f"objects[{name!r}] is the optimizer inside a {outside}: give the TrainingState that one")
        if hasattr(item, "comm_state_dict") and not hasattr(item, "handover") and not hasattr(item, "refuses_newcomers"):
            raise InvalidArgument(
                f"objects[{name!r}] is a {type(item).__name__}, which exchanges something and has no handover(): what a worker "
                "that comes into a running job is to begin with is not known"
            )


def _is_of_another_group(item, group):
    """Whether an optimizer exchanges among others than `group` or all, or a model is sharded without a group."""
    if isinstance(item, torch.nn.Module):
        return group is group.whole and any(is_shard(param) for param in item.parameters())
    parts = (getattr(item, "_links", None), getattr(item, "_reset", None), getattr(getattr(item, "_bandoneon", None), "parameters", None))
    workers = [worker for part in parts if (worker := getattr(part, "worker", None)) is not None]
    return any(worker is not worker.whole and list(worker.ranks) != list(group.ranks) for worker in workers)


def _refusal_of_left_out(worker, objects):
    """Why nobody can be taken in: something counts its steps, and is not among the objects that are handed over."""
    given = set()
    for item in objects.values():
        parts = [item, *getattr(item, "__dict__", {}).values(), getattr(getattr(item, "_bandoneon", None), "parameters", None)]
        given.update(map(id, parts))
    for name, owner in worker.owners().items():
        if getattr(owner, "needs_handover", False) and id(owner) not in given:
            return f"{name!r} is exchanged by an optimizer or hook that is not in the TrainingState: put it there, too"
    return None


def _refusal_of(objects, group):
    for name, item in objects.items():
        why = getattr(item, "refuses_newcomers", lambda: None)()
        if why is not None:
            return f"{name!r} takes nobody in, because {why}"
        if _is_of_another_group(item, group):
            return (
                f"{name!r} takes nobody in, because it exchanges among a group of ranks, each with a state of its own: give the "
                "TrainingState that group, worker=, if it is one across islands"
            )
        if isinstance(item, torch.nn.parallel.DistributedDataParallel):
            return f"{name!r} is in DistributedDataParallel, whose process group takes nobody in"
    return None
