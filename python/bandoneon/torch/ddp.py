"""Bandoneon below DistributedDataParallel, as its communication hook.

state = bandoneon.torch.DDPState(ddp_model.module.named_parameters(), push="ef(onebit)")
ddp_model.register_comm_hook(state, bandoneon.torch.ddp_hook)
"""

from __future__ import annotations

import threading
import warnings
import weakref
from typing import Any

import torch

from .. import _native
from ..calls import Push
from ..errors import BandoneonError, DeadlineExceeded, FailedPrecondition, InvalidArgument
from ..interrupts import SLICE_SECONDS
from ..session import default_worker
from ..worker import Worker
from . import backward_pass, devices
from .comm_state import fitting_state, saved_by
from .exchange_guard import ExchangeGuard
from .hints import NamedParameters, SavedState, Weighting
from .links import Links, link_table, takes_links
from .loss_scale import AUTO, LossScale, overflow_as_half
from .names import named_entries, with_elements
from .parameters import ParameterSet
from .step_count import SteppedRounds
from .step_recorder import model_of, recorder_of
from .tensors import check_exchangeable, copy_back, fill, memory_for
from .weight import Weight, average_unit


class DDPState:
    """What the hook exchanges and how. Keyed by parameter, because DDP regroups its buckets.

    A parameter that a worker's backward pass does not reach (find_unused_parameters=True) is told to the
    others as absent: it adds nothing to the mean, and what error feedback still owes stays owed until
    some worker reaches it again, for DDP throws the mean of what nobody has reached away.

    DDP's own join(), for data of which the workers have unequally much, works with it: who has run out is
    absent, and counts for nothing where there is a weight=.

    Constructing it is collective. It can be pickled together with its residuals; after loading,
    attach() joins it to the model of the new process.

    links, or push and pull alone: Links has what they mean; not so ef(..., correction=lr), as a hook knows no learning
        rate. Nothing is exchanged after a DeadlineExceeded out of backward(): the others may have taken the step.
    """

    @takes_links("momentum", "warmup", "overrides", "prefix", "timeout", "check", "scaler", "weight", "average")
    def __init__(
        self,
        named_parameters: NamedParameters,
        *,
        push: str | None = None,
        pull: str | None = None,
        links: Links = Links(),
        worker: Worker | None = None,
    ) -> None:
        self._timeout = links.timeout
        self._links = link_table(links)
        self._links.check_without_correction("DDPState")
        self._prefix = links.prefix
        self._average = links.average
        self._loaded = None
        self.attach(named_parameters, scaler=links.scaler, weight=links.weight, check=links.check, worker=worker)

    def attach(
        self,
        named_parameters: NamedParameters,
        *,
        scaler: Any = AUTO,
        weight: Weighting | None = None,
        check: bool = True,
        worker: Worker | None = None,
    ) -> None:
        """Declares the parameters with this process's worker. Collective. scaler, weight, check: as Links has them."""
        worker = worker or default_worker()
        self._weight = Weight(weight, average_unit(self._average, worker))
        self._parameters = ParameterSet(
            worker,
            self._links,
            self._prefix,
            replicas_for="DDPState" if check else None,
        )
        model = model_of(named_parameters)
        trained = with_elements((name, p) for name, p in named_entries(named_parameters) if p.requires_grad)
        members = self._parameters.add(trained)
        self._members = {id(member.param): member for member in members}
        self._reached = _Reached(member.param for member in members)
        self._recorder = recorder_of(worker)
        parameters = weakref.proxy(self._parameters)
        self._stepped = SteppedRounds((member.param for member in members), self._recorder, lambda: parameters.steps)
        if self._recorder is not None:
            pairs = [(member.param, member.tensor) for member in members]
            self._recorder.watch(self._parameters, model, pairs)
        self._scale = LossScale(scaler, self._links)
        self._round = None
        self._guard = ExchangeGuard(worker, self._parameters.reference)
        if self._loaded is not None:
            self.load_comm_state_dict(self._loaded)
            self._loaded = None

    def refuses_newcomers(self) -> str | None:
        """Why no worker can be taken into a job of this one."""
        return "DistributedDataParallel's process group takes no process in, and does not outlive one that is lost"

    def comm_state_dict(self) -> dict[str, Any]:
        """This rank's residuals, momentum and steps; of rank 0, what the servers owe, too."""
        self._guard.check()
        parameters = self._parameters
        return {**saved_by(parameters.worker, self._settings), **parameters.state_dict()}

    def load_comm_state_dict(self, state: SavedState, timeout: float | None = None) -> None:
        """Takes up this rank's comm_state_dict(), or of the list of all ranks' what falls to this one,
        where there were more or fewer workers; the next step is the one after it. Collective."""
        state = fitting_state(state, self._settings, self._parameters.worker)
        self._parameters.load_state_dict(state, timeout)

    def resume_at(self, step: int, timeout: float | None = None) -> None:
        """For a checkpoint without comm_state_dict(): codec schedules and warm-ups go on after `step`,
        rank 0's; residuals and momentum begin at 0. Collective, before any worker's first backward()."""
        self._parameters.resume_at(step, timeout)

    @property
    def _settings(self):
        return {"algorithm": "DDPState", "average": self._average}

    def close(self) -> None:
        """Frees the parameters' names for another owner, which begins anew, and gives back what both ends
        remember."""
        self._reached.close()
        self._stepped.close()
        self._parameters.release()

    def __getstate__(self):
        return {
            "links": self._links,
            "prefix": self._prefix,
            "timeout": self._timeout,
            "average": self._average,
            "comm": self._loaded if self._parameters is None else self.comm_state_dict(),
        }

    def __setstate__(self, saved):
        self._links = saved["links"]
        self._prefix = saved["prefix"]
        self._timeout = saved.get("timeout")
        self._average = saved.get("average", "after")
        self._loaded = saved["comm"]
        self._parameters = None
        self._round = None

    def _exchange(self, bucket):
        if self._parameters is None:
            raise FailedPrecondition(
                "this DDPState was unpickled; call attach(named_parameters) first"
            )
        self._reached.hook_has_run = True
        if self._round is None or self._round.is_over or backward_pass.current_task() == -1:
            self._guard.check()
            self._round = _Round(
                self._scale, self._weight, self._reached, self._stepped, self._timeout, self._guard, self._recorder
            )
        return self._round.exchange(self._parameters, self._members, bucket)


_DENSE_MODULE = (
    "build the module with sparse=False, or use DistributedOptimizer(..., links=Links(sparse_as_dense=True)) in place of "
    "DDP and its hook"
)


def ddp_hook(state, bucket):
    # In a comment, for torch looks at the annotations of a hook itself, and takes none but its own, unquoted.
    # type: (object, Any) -> torch.futures.Future[torch.Tensor]
    """The communication hook: a future of the bucket with the workers' mean."""
    if not isinstance(state, DDPState):
        raise InvalidArgument(
            f"ddp_hook was registered with {state!r} in place of a DDPState: "
            "ddp_model.register_comm_hook(DDPState(ddp_model.module.named_parameters()), ddp_hook)"
        )
    return state._exchange(bucket)


class _Reached:
    """The parameters that backward passes have reached since the last round.

    DDP puts zeros into its buckets for the others, as for a gradient that is zero.
    """

    def __init__(self, params):
        self.hook_has_run = False
        self._ids = set()
        self._grads = {}  # weak references to the first, until the hook has run
        itself = weakref.ref(self)
        self._hooks = [
            param.register_post_accumulate_grad_hook(lambda param: itself()._mark(param))
            for param in params
        ]
        weakref.finalize(self, backward_pass.remove, self._hooks).atexit = False

    def _mark(self, param):
        self._ids.add(id(param))
        if self.hook_has_run or param.grad is None:  # A hook of the program may have taken it away.
            return
        first = self._grads.setdefault(id(param), weakref.ref(param.grad))
        if first() is not param.grad:  # The first one was stepped on, or thrown away.
            self.hook_has_run = True  # Say it once.
            warnings.warn(
                "a DDPState's parameters have got new gradients, and its hook has never run: Bandoneon has "
                "exchanged nothing of them. Call ddp_model.register_comm_hook(state, "
                "bandoneon.torch.ddp_hook) on the DistributedDataParallel model that trains; some "
                "frameworks leave a hook out on the CPU",
                RuntimeWarning,
                stacklevel=2,
            )

    def has(self, param, grad):
        """Whether there is a gradient of it; `grad` is what DDP has put into its bucket."""
        if param.grad is None:
            return False
        # One that DDP accumulated before the last round's end is in the bucket, too.
        return id(param) in self._ids or bool(grad.any())

    def forget(self):
        self._ids.clear()

    def close(self):
        backward_pass.remove(self._hooks)


class _Round:
    """The buckets of one backward pass. Its errors come out of backward() as what they are: an
    exception inside a hook's future would reach the program as text.

    Outside of any pass, as DDP's join() calls the hook where a worker has run out of data, of one bucket:
    there this worker has no gradients, and errors can be nowhere but in the future.
    """

    def __init__(self, loss_scale, weight, reached, stepped, timeout, guard, recorder):
        self._loss_scale = loss_scale.current()
        self._travels_scaled = loss_scale.travels
        self._reached = reached
        self._timeout = timeout
        self._guard = guard
        self._recorder = recorder
        self._has_pass = backward_pass.current_task() != -1
        self._weight = weight.now() if self._has_pass else weight.out_of_data
        self._changed = threading.Condition()
        self._pending = 0  # buckets
        self._error = None
        self.is_over = not self._has_pass
        if self._has_pass:
            if recorder is not None:
                recorder.begin_backward()
            backward_pass.at_end_of_pass(self._end)
        else:
            stepped.lose_count()
        self._program_steps = stepped.begin_round()

    def exchange(self, parameters, members, bucket):
        """The bucket's future, due when all its gradients are back."""
        buffer = bucket.buffer()
        future = devices.future_of(buffer)

        def end(error):
            if error is None or self._has_pass:
                future.set_result(buffer)
            else:
                future.set_exception(error)

        try:
            pushes, places = self._parts(parameters, members, bucket)
        except BandoneonError as error:
            self._fail(error)
            end(error)
            return future

        def done(error):
            if error is None:
                for memory, grad in places:
                    copy_back(memory, grad)
            else:
                self._fail(error)
            end(error)
            self._count(-1)

        self._count(1)
        parameters.worker.push_notified(pushes, done, self._timeout)
        return future

    def _parts(self, parameters, members, bucket):
        """What to push of the bucket, and for each the memory that C reads and writes with the gradient
        that it stands for."""
        pushes, places = [], []
        if bucket.buffer().layout is not torch.strided:
            for param in bucket.parameters():  # One: DDP gives each sparse gradient a bucket of its own.
                name = members[id(param)].name if id(param) in members else f"of shape {list(param.shape)}"
                check_exchangeable(bucket.buffer(), name, remedy=_DENSE_MODULE)
        for param, grad in zip(bucket.parameters(), bucket.gradients()):
            if not param.numel():
                continue
            member = members.get(id(param))
            if member is None:
                raise InvalidArgument(
                    f"DDP reduces a parameter of shape {list(param.shape)} that DDPState was not given; "
                    "construct it from ddp_model.module.named_parameters()"
                )
            is_present = self._has_pass and self._reached.has(param, grad) and self._weight > 0
            # A bucket's views don't overlap, so each is exclusive though its storage is shared.
            grad = parameters.dense(member, grad)
            if self._travels_scaled and member.options.clips_as_half:
                overflow_as_half(grad, self._weight)
            if not self._weight:
                grad.zero_()  # What DDP goes on with where no worker's weight is more.
            memory = memory_for(grad, exclusive=True)
            places.append((memory, grad))
            pushes.append(
                Push(
                    tensor=member.tensor,
                    data=None,
                    flags=0 if is_present else _native.ABSENT,
                    priority=-member.priority,  # the order of the buckets: all are awaited together
                    weight=self._weight,
                    loss_scale=self._loss_scale,
                    program_steps=self._program_steps,
                )
            )
            fill(pushes[-1], memory)
        return pushes, places

    def _end(self):
        """The last action of the pass, before DDP takes its buckets back."""
        try:
            with self._guard.exchange():
                self._await_all()
                if isinstance(self._error, DeadlineExceeded):
                    raise self._take_error()
        finally:
            self.is_over = True
            self._reached.forget()
            if self._recorder is not None:
                self._recorder.end_backward()
        error = self._take_error()
        if error is not None:
            raise error

    def _fail(self, error):
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def _take_error(self):
        """Not kept here: DDP holds this by C++, where the garbage collector does not look, and the frames of an
        error that was raised hold DDP."""
        error, self._error = self._error, None
        return error

    def _await_all(self):
        if self._recorder is None:
            self._await_pending()
            return
        begun = self._recorder.begin_wait()
        try:
            self._await_pending()
        finally:
            self._recorder.end_wait(begun)

    def _await_pending(self):
        with self._changed:
            while self._pending and self._error is None:
                if not self._changed.wait(SLICE_SECONDS) and self._recorder is not None:
                    self._recorder.hand_over()

    def _count(self, change):
        with self._changed:
            self._pending += change
            self._changed.notify_all()
