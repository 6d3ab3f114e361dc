"""DistributedOptimizer: any torch optimizer, stepping on the mean of all workers' gradients."""

from __future__ import annotations

import contextlib
import warnings
import weakref
from typing import Any, Callable, ContextManager, Iterator

import torch

from ..errors import FailedPrecondition, InvalidArgument, Unimplemented
from ..session import default_worker
from ..worker import Worker
from .attendance import Attendance
from .broadcast import check_replicas
from .comm_state import ResumeCheck, fitting_state, saved_by, step_to_resume_at
from .ddp_besides import DDPBesides
from .deferring_synchronizer import DeferringSynchronizer
from .foreign_words import check_optimizer
from .forward_overlap import (
    DeferredStep,
    ForwardHooks,
    check_steps_one_by_one,
    has_other_hooks,
)
from .handover import Handover, load_exactly
from .hints import NamedParameters, SavedState
from .hyperparameters import check_steps
from .late_parameters import LateParameters
from .links import Links, link_table, takes_links
from .local_group import LocalGroup
from .local_group_synchronizer import LocalGroupSynchronizer
from .loss_scale import LossScale
from .names import Names
from .parameters import ParameterSet, learning_rates, terms_by_group, tied_by_memory
from .shards import is_shard, local_of, warn_of_unsharded
from .sliced_parameters import SlicedParameterSet, refusal_of_newcomers
from .sparse_sketch import SparseSketches, check_sketches_travel
from .step_recorder import recorder_of
from .summed_rows import SummedRows, split_sparse
from .synchronizer import Synchronizer
from .torch_internals import module_of
from .weight import Weight, average_unit
from .wrapped import refuse_pickling


@takes_links(
    "momentum", "warmup", "overrides", "prefix", "timeout", "check", "scaler", "weight", "average",
    "sparse_as_dense", "sparse", "local_group",
)
def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: NamedParameters | None = None,
    *,
    push: str | None = None,
    pull: str | None = None,
    links: Links = Links(),
    overlap: str | bool = "backward",
    backward_passes_per_step: int = 1,
    local_group: Any = None,
    worker: Worker | None = None,
) -> Any:
    """The optimizer, made distributed. Collective: all workers construct the same, in the same order.

    From now on loss.backward() returns with every gradient being the mean over all workers. The
    object returned is an instance of the optimizer's class and shares its state and groups, so
    schedulers, scalers and state_dict() work on either. step(closure) is for optimizers that evaluate
    their closure once, and returns its loss; LBFGS and others that do it several times are refused.

    One backward pass may go through the parameters of several of them. A worker whose pass leaves one out
    says so in its step(), and the others wait for that; so no two workers may each leave out one that the
    other's pass goes through.

    named_parameters: model.named_parameters(), in forward order, or the model itself; also names what
        add_param_group() adds later.
    links, or push and pull alone: Links has what they mean. After DeadlineExceeded synchronize(), or step(), waits
        again.
    overlap: beside what the gradients travel. "backward": the rest of the backward pass, which ends when
        their means have come. "forward": the next forward pass, too, see below. False: nothing, they leave
        at the end of the backward pass.
    backward_passes_per_step: n backward passes add up in each worker, and the n-th exchanges their sum,
        so that gradients are means over the workers of sums over the passes, as with Horovod: divide the
        losses by n for the mean. A step() that comes after fewer exchanges what there is. With a
        GradScaler, or before gradients are clipped, call synchronize() first then.
    local_group: that of Links, which says what it means; nothing else uses the group while gradients are exchanged.
        InvalidArgument where it is none, and with overlap="forward".

    With overlap="forward" neither backward() nor step() waits. step() notes the groups' settings and takes
    the gradients, so that param.grad is None after it; and when the next forward pass calls a module, the
    means of the module's parameters are awaited and the step is taken of them. named_parameters must be
    the model, and the optimizer one whose steps are each parameter's own (torch.optim's but for LBFGS,
    and ours; Muon with batched=False). The models are the same bit for bit as with "backward", if each step begins
    with zero_grad().

    All is awaited, and stepped, before what reads it otherwise: gradients between backward() and step()
    (to clip them, or a GradScaler), state_dict() and load_state_dict() of model and optimizer, the
    methods here, a step(closure), step hooks. A warning says it where that makes every step wait. What
    reads or writes parameters, or optimizer.state, otherwise (averaging weights, copy.deepcopy(model))
    needs optimizer.synchronize() before it, and so do functions of another module's parameters that are
    computed before that module is called. A forward pass that read parameters which were still to be
    stepped is an error in its backward(). Of a compiled model everything is awaited before its forward
    pass: give the compiled one for fullgraph=True.
    """
    check_optimizer("DistributedOptimizer", optimizer, named_parameters)
    if isinstance(optimizer, _Distributed):
        raise InvalidArgument("this optimizer is distributed already")
    if overlap not in ("backward", "forward", True, False):
        raise InvalidArgument(f"overlap={overlap!r} is neither 'backward' nor 'forward' nor False")
    if local_group is None:
        local_group = links.local_group
    if local_group is not None and overlap == "forward":
        raise InvalidArgument(
            "overlap='forward' with local_group: the members of a group gather all results in one order, not in "
            "that of their forward passes; use overlap='backward'"
        )
    model, named_parameters = _model_of(named_parameters)
    if overlap == "forward":
        check_steps_one_by_one(optimizer)
        if model is None:
            raise InvalidArgument(
                "overlap='forward' awaits gradients in the model's forward pass; give DistributedOptimizer the "
                "model in place of named_parameters"
            )
    check_steps(backward_passes_per_step=backward_passes_per_step)
    worker = worker or default_worker()
    unit = average_unit(links.average, worker)
    table = link_table(links)
    watched = module_of(named_parameters)
    names = Names(named_parameters)
    _check_momentum(optimizer.param_groups, names, table)
    how = dict(replicas_for="DistributedOptimizer" if links.check else None)
    if local_group is None:
        make_parameters = ParameterSet
        make_synchronizer = DeferringSynchronizer if overlap == "forward" else Synchronizer
        how["takes_shards"] = overlap != "forward"
    else:
        make_parameters, make_synchronizer = SlicedParameterSet, LocalGroupSynchronizer
        how["group"] = LocalGroup(local_group, worker, links.prefix, links.timeout)
    sparse = links.sparse_way
    if sparse == "rows":
        _check_rows_travel(overlap, local_group)
    if sparse == "sketch":
        check_sketches_travel(overlap, local_group, table)
    parameters = make_parameters(worker, table, links.prefix, sparse == "dense" or links.sparse_as_dense, **how)
    sketches = SparseSketches(parameters, links.timeout) if sparse == "sketch" else None
    groups = optimizer.param_groups
    if overlap == "forward":
        _check_apart_in_forward(names.in_forward_order(groups))
        _check_none_is_sharded(names.in_forward_order(groups))
    named = names.in_forward_order(groups)
    dense, of_rows = split_sparse(named, model, sparse)
    added = parameters.add(dense, terms_by_group(groups), besides=of_rows)
    summed = SummedRows(parameters, of_rows, links.timeout) if of_rows else None
    warn_of_unsharded(watched, named)
    scale = LossScale(links.scaler, table)
    weights = Weight(links.weight, unit)

    cls = type(optimizer)
    distributed = object.__new__(type(f"Distributed{cls.__name__}", (_Distributed, cls), {}))
    distributed.__dict__ = optimizer.__dict__  # One set of groups, state and step hooks.
    rates = _rates_of(optimizer, distributed)
    synchronizer = make_synchronizer(
        parameters, scale, weights, rates, overlap, links.timeout, passes_per_round=backward_passes_per_step
    )
    synchronizer.sketches = sketches
    synchronizer.add(added)
    if summed is not None:
        synchronizer.set_summed_rows(summed)
    optimizer._bandoneon = _Parts(parameters, synchronizer, scale, names, links.timeout, links.average)
    if watched is not None:
        optimizer._bandoneon.late_parameters = LateParameters(watched, names)
    optimizer.register_step_pre_hook(_before_step)
    optimizer.register_step_post_hook(_after_step)
    if overlap == "forward":
        hooks = optimizer._bandoneon.forward_hooks = ForwardHooks(synchronizer)
        hooks.add(model)
        synchronizer.set_forward_hooks(hooks)
        worker.settle_before_leaving(synchronizer)
        optimizer.register_state_dict_pre_hook(_settle)
        optimizer.register_load_state_dict_pre_hook(_settle)
    recorder = optimizer._bandoneon.recorder = recorder_of(worker)
    if recorder is not None:
        recorder.watch(parameters, watched)  # Its first hook is before those that take a deferred step.
    return distributed


class _Distributed:
    """What DistributedOptimizer adds to the optimizer's class."""

    def no_sync(self) -> ContextManager[None]:
        """A context in which backward() adds to the local gradients and exchanges nothing. The next
        backward() outside sends the sum. A step() before that steps by this worker's own gradients, as under DDP, and
        is warned of: the last backward() of each step belongs outside."""
        return self._bandoneon.synchronizer.no_sync()

    @contextlib.contextmanager
    def join(self, step: Callable[[], Any] | None = None) -> Iterator[None]:
        """Around a loop over data of which the workers have unequally much: who leaves it takes part in the
        others' steps, without gradients of its own, until all have left. Collective.

            with optimizer.join():
                for batch in batches:
                    optimizer.zero_grad()
                    loss_of(model, batch).backward()
                    optimizer.step()

        A mean stays one over all workers, to which those without batches add nothing; with weight= they
        count for nothing, too. They take the same steps, so the replicas stay equal.

        step: what the loop does from optimizer.step() on, where that is more: a scheduler's step, a
            scaler's. A function, which a worker without batches calls once an exchange.

        Inside, each step has one exchange (no_sync() and backward_passes_per_step are made for that), and
        the loop exchanges nothing else: no second optimizer's gradients, no push_pull. FailedPrecondition
        at the end if the replicas came apart.
        """
        parts = self._bandoneon
        worker = parts.parameters.worker
        if worker in _joining:
            raise Unimplemented(
                "join() inside another join(): who has left one loop would wait there for the other's rounds; "
                "give one optimizer all parameters, as groups"
            )
        _joining.add(worker)
        synchronizer = parts.synchronizer
        attendance = Attendance(
            worker,
            f"{parts.parameters.prefix}attendance of join()",
            parts.parameters.reference,
            parts.timeout,
        )
        synchronizer.attendance = attendance
        try:
            with _explained_rates():
                yield
            synchronizer.settle()
            synchronizer.attendance = None
            while attendance.anyone_present():
                self.zero_grad()
                with _explained_rates():
                    synchronizer.answer_round()
                (step or self.step)()
        finally:
            synchronizer.attendance = None
            _joining.discard(worker)
        named = [(member.name, member.param) for member in parts.parameters.members]
        try:
            check_replicas(worker, named, "join()")
        except InvalidArgument as error:
            what = repr(error.tensor) if error.tensor else "a parameter"
            raise FailedPrecondition(
                f"after join() {what} is not the same in all workers: those that "
                "ran out of batches did not step as the others; give join(step=) all that the loop does from "
                "optimizer.step() on, and let each step have one exchange",
                tensor=error.tensor,
            ) from error

    def synchronize(self) -> None:
        """Ends a round that was not ended by a backward pass; usually there is none, but where fewer
        than `backward_passes_per_step` were made, or with overlap="forward", whose deferred step it takes."""
        self._bandoneon.synchronizer.synchronize()

    def set_loss_scale(self, scale: float | None) -> None:
        """For gradients scaled otherwise than by a GradScaler: call it before backward()."""
        self._bandoneon.scale.set(scale)

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """As the optimizer's. A step that no backward() comes before is then a round of its own."""
        self._bandoneon.synchronizer.let_go_of_gradients()
        super().zero_grad(*args, **kwargs)
        self._bandoneon.synchronizer.forget_pass()
        self._bandoneon.scale.copy_ahead()

    def add_param_group(
        self, param_group: dict[str, Any], named_parameters: NamedParameters | None = None
    ) -> None:
        """As the optimizer's. Collective: all workers add the same."""
        parts = self._bandoneon
        model, named_parameters = _model_of(named_parameters)
        parts.synchronizer.settle()
        if parts.forward_hooks is not None and model is not None:
            parts.forward_hooks.add(model)
        parts.names.learn(named_parameters)
        first = len(self.param_groups)
        super().add_param_group(param_group)  # First, for it makes lists of what can be read only once.
        groups = self.param_groups[first:]
        try:
            _check_momentum(groups, parts.names, parts.parameters.links, first)
            named = parts.names.in_forward_order(groups, first)
            if parts.forward_hooks is not None:
                parts.forward_hooks.note_added(named)
                _check_apart_in_forward([(m.name, m.param) for m in parts.parameters.members] + list(named))
            if parts.synchronizer.has_summed_rows and split_sparse(named, model, "rows")[1]:
                raise Unimplemented("Links(sparse='rows'): give the optimizer all sparse weights when it is made")
            added = parts.parameters.add(named, terms_by_group(groups, first=first))
        except BaseException:
            del self.param_groups[first:]
            raise
        parts.synchronizer.add(added)

    @property
    def is_together(self) -> bool:
        """Whether a newcomer may begin now: no gradients wait that workers have added up by themselves."""
        return not self._bandoneon.synchronizer.has_local_part

    def refuses_newcomers(self) -> str | None:
        """Why no worker can be taken into a job of this one, or None."""
        if isinstance(self._bandoneon.synchronizer, LocalGroupSynchronizer):
            return refusal_of_newcomers(self._bandoneon.parameters)
        if self._bandoneon.synchronizer.sketches is not None:
            return "sparse='sketch' declares gradients anew by what the workers have measured, which a newcomer has not"
        if self._bandoneon.synchronizer.has_summed_rows:
            return "Links(sparse='rows') hands no sparse gradients over"
        return None

    def count_samples(self, samples: float) -> None:
        """This worker's part of the next step is the mean of so many: weight= of it."""
        self._bandoneon.synchronizer.count_samples(samples)

    def handover(self) -> Handover:
        """What a newcomer takes over: its links begin without residuals and momentum."""
        common = {"optimizer": self.state_dict(), "steps": self._bandoneon.parameters.step_count.ended}
        return Handover(common, {"gradients": self._bandoneon.synchronizer.gradients()})

    def take_over(self, given: Handover) -> None:
        """Goes on from another worker's handover()."""
        load_exactly(self, given.common["optimizer"])
        self._bandoneon.synchronizer.take_gradients(given.lent["gradients"])
        self._bandoneon.parameters.step_count.ended = given.common["steps"]
        self._bandoneon.resume_check.is_settled = True

    def sketches(self) -> dict[str, dict[str, Any]]:
        """With sparse="sketch", of each parameter that may go as a sketch: the largest `share` of its gradient that was
        not zero, the `cells` of its sketch as a share of the elements, None where it has none, and how many elements
        were `guessed`, for a reply did not determine them, in `guessed_steps` steps."""
        sketches = self._bandoneon.synchronizer.sketches
        found = {} if sketches is None else sketches.found
        kept = ("share", "cells", "guessed", "guessed_steps")
        return {name: {fact: getattr(measured, fact) for fact in kept} for name, measured in found.items()}

    def comm_state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs beside state_dict(): this rank's residuals, momentum and steps; of
        rank 0, what the servers owe, too."""
        parts = self._bandoneon
        parts.synchronizer.settle()
        parameters = parts.parameters
        return {**saved_by(parameters.worker, parts.settings), **parameters.state_dict(parts.timeout)}

    def load_comm_state_dict(self, state: SavedState) -> None:
        """Takes up this rank's comm_state_dict(), or of the list of all ranks' what falls to this one,
        where there were more or fewer workers; the next step is the one after it. Collective: all
        workers load before any of them steps."""
        parts = self._bandoneon
        parts.synchronizer.settle()
        state = fitting_state(state, parts.settings, parts.parameters.worker)
        if parts.synchronizer.sketches is not None:
            parts.synchronizer.sketches.resume(state, parts.synchronizer)
        parts.parameters.load_state_dict(state, parts.timeout)
        parts.resume_check.is_settled = True

    def resume_at(self, step: int | None = None) -> None:
        """For a checkpoint without comm_state_dict(): codec schedules and warm-ups go on after `step`, by
        default the most that rank 0's optimizer state counts; residuals and momentum begin at 0.
        Collective, before any worker's first backward()."""
        parts = self._bandoneon
        parts.synchronizer.settle()
        parts.parameters.resume_at(step_to_resume_at(self, step), parts.timeout)
        parts.resume_check.is_settled = True

    def __reduce_ex__(self, protocol):
        refuse_pickling(self)

    def close(self) -> None:
        """Takes the hooks away and frees the parameters' names for another optimizer, which begins at step 0 with
        empty memories. Workers and servers give back what they remember of this one: save comm_state_dict() before."""
        self._bandoneon.synchronizer.settle()
        synchronizer = self._bandoneon.synchronizer
        synchronizer.close()
        synchronizer.forget_failure()
        self._bandoneon.parameters.release()


_joining = weakref.WeakSet()  # workers inside a join()


@contextlib.contextmanager
def _explained_rates():
    """Within join(): why the workers' learning rates are not the same, as servers say it."""
    try:
        yield
    except InvalidArgument as error:
        if "has learning rate" not in str(error):
            raise
        raise InvalidArgument(
            f"{error}. Who has no batches left in join() takes the optimizer's steps alone: where the loop steps a "
            "scheduler, too, give join(step=) a function of all that the loop does from optimizer.step() on",
            tensor=error.tensor,
        ) from error


class _Parts:
    """What belongs to one distributed optimizer; takes its hooks with it when it goes."""

    def __init__(self, parameters, synchronizer, scale, names, timeout, average):
        self.parameters = parameters
        self.synchronizer = synchronizer
        self.scale = scale
        self.names = names
        self.timeout = timeout
        self._average = average
        self.forward_hooks = None  # with overlap="forward"
        self.recorder = None  # where step() is recorded
        self.late_parameters = None  # those of the model, where it is known
        self.has_warned_of_local = False
        self.has_warned_of_late = False
        self.ddp_besides = DDPBesides("DistributedOptimizer", steps_locally=False)
        self.resume_check = ResumeCheck("; without it, call resume_at() in every worker")
        self.resume_check.is_settled = not parameters.links.begins_anew
        weakref.finalize(self, synchronizer.close).atexit = False

    @property
    def settings(self):
        """What a saved state must have been saved under, too."""
        return {
            "algorithm": "DistributedOptimizer",
            "local_group": self.parameters.group_size,
            "average": self._average,
        }


def _model_of(named_parameters):
    """(the model or None, its named parameters) of what may be either."""
    if isinstance(named_parameters, torch.nn.Module):
        return named_parameters, named_parameters.named_parameters()
    return None, named_parameters


def _check_rows_travel(overlap, local_group):
    if overlap == "forward":
        raise InvalidArgument(
            "Links(sparse='rows') with overlap='forward': which rows come is known once all have come, so that a step "
            "cannot be taken module by module; use overlap='backward'"
        )
    if local_group is not None:
        raise InvalidArgument(
            "Links(sparse='rows') with local_group: the members of a group add up slices of dense gradients; give "
            "sparse='dense', or leave local_group out"
        )


def _check_none_is_sharded(named):
    for name, param in named:
        if is_shard(param):
            raise Unimplemented(
                f"overlap='forward' with {name!r}, which is a DTensor: FSDP2 gathers a layer's parameters before the forward "
                "pass comes to it, and would gather those of the step before; use overlap='backward'",
                tensor=name,
            )


def _rates_of(*optimizers):
    """A function for the learning rates of optimizers that share their groups; it keeps none of them
    alive, so that their end is that of the exchange."""
    references = [weakref.ref(optimizer) for optimizer in optimizers]

    def rates():
        alive = [optimizer for reference in references if (optimizer := reference()) is not None]
        return learning_rates(alive[0].param_groups) if alive else {}

    return rates


def _check_momentum(groups, names, links, first_group=0):
    if not any(options.momentum for options in links.rows):
        return
    for g, group in enumerate(groups, first_group):
        own = group.get("momentum") or 0
        for name, _ in names.in_forward_order([group], g) if own else ():
            before = links.options_of(name).momentum
            if before:
                raise InvalidArgument(
                    f"momentum={before} of DistributedOptimizer goes before error feedback, and "
                    f"momentum={own} of the optimizer's group {g} would be applied to {name!r} on "
                    "top; set one to 0, and give a scheduler that turns it (OneCycleLR, CyclicLR) "
                    "cycle_momentum=False",
                    tensor=name,
                )


def _before_step(optimizer, args, kwargs):
    parts = optimizer._bandoneon
    if parts.recorder is not None:
        parts.recorder.begin_optimizer()
    _check_all_are_exchanged(optimizer, parts)
    _warn_of_local_gradients(parts)
    parts.ddp_besides.before_step(member.param for member in parts.parameters.members)
    # Schedulers turn it, too.
    _check_momentum(optimizer.param_groups, parts.names, parts.parameters.links)
    closure = _closure_of(args, kwargs)
    if closure is None:
        _gradients_are_there(optimizer)
        return None
    name = type(optimizer).__name__
    if isinstance(optimizer, torch.optim.LBFGS):
        raise Unimplemented(_SEVERAL_TIMES.format(name))
    once = _Once(closure, name, lambda: _gradients_are_there(optimizer, has_closure=True))
    args = tuple(once if arg is closure else arg for arg in args)
    return args, {key: once if value is closure else value for key, value in kwargs.items()}


def _check_all_are_exchanged(optimizer, parts):
    """A parameter that was given to the groups behind this optimizer's back would step by this worker's gradient."""
    if parts.synchronizer.is_closed:
        return
    known = parts.parameters.known_ids
    for g, group in enumerate(optimizer.param_groups):
        for i, param in enumerate(group["params"]):
            if id(param) not in known and param.grad is not None and local_of(param).numel():
                raise FailedPrecondition(
                    f"parameter {i} of group {g}, {_shape_of(param)}, has a gradient, and nothing exchanges it: it was "
                    "put into param_groups, or given to add_param_group() of the optimizer inside, and would step by "
                    "the gradient of this worker alone. Call add_param_group() of the DistributedOptimizer in all workers"
                )


def _warn_of_local_gradients(parts):
    """Of parameters of the model that are stepped by nobody, as DDP would average them for what reads them."""
    _warn_of_late_gradients(parts)
    if parts.has_warned_of_local:
        return
    for name, param in parts.names.besides(parts.parameters.known_ids):
        if param.grad is None or not local_of(param).numel() or parts.parameters.is_exchanged(param):
            continue
        parts.has_warned_of_local = True
        warnings.warn(
            f"{name!r} has a gradient and is in no group of this optimizer, so nothing exchanges it: the gradient is of "
            "this worker alone, and what reads it, as clip_grad_norm_(model.parameters()) does, comes out otherwise in "
            "each worker, and with it the step. Freeze the parameter (requires_grad_(False)), or clip what the groups "
            "have alone, or give it a group, with lr=0 where it is not to move",
            RuntimeWarning,
            stacklevel=4,
        )
        return


def _warn_of_late_gradients(parts):
    """Of parameters that came into the model after this optimizer was made."""
    if parts.late_parameters is None or parts.has_warned_of_late or parts.synchronizer.is_closed:
        return
    known = parts.parameters.known_ids
    for name, param in parts.late_parameters.named():
        if param.grad is None or id(param) in known or not local_of(param).numel() or parts.parameters.is_exchanged(param):
            continue
        parts.has_warned_of_late = True
        warnings.warn(
            f"{name!r} has a gradient and came into the model after this optimizer was made, as a module does that is put "
            "in the place of another, so nothing exchanges it, and this optimizer does not step it: the gradient is of this "
            "worker alone, as are a norm over it and the steps of another optimizer. Make the optimizer when the model is "
            "whole (close() this one before), or give add_param_group() of this one the parameter, under a name that it "
            "has not had, after broadcast_parameters(), in all workers; or freeze it (requires_grad_(False))",
            RuntimeWarning,
            stacklevel=5,
        )
        return


def _shape_of(param):
    return "a number" if param.dim() == 0 else " x ".join(map(str, param.shape)) + " elements"


def _check_apart_in_forward(named):
    tied = tied_by_memory(named)
    if tied:
        raise InvalidArgument(
            f"the parameters {tied[0]!r} and {tied[1]!r} lie in the same memory, and overlap='forward' takes the step of "
            "each when its module is called, when the other's may be still to come: make them one parameter, as by "
            "module.weight = other.weight, or use overlap='backward'",
            tensor=tied[1],
        )


def _gradients_are_there(optimizer, has_closure=False):
    """Those of this step, but for what no backward pass has gone through; or there are none, and the step is
    deferred."""
    parts = optimizer._bandoneon
    synchronizer = parts.synchronizer
    parts.resume_check.before_step(optimizer, lambda: max(parts.parameters.steps - 1, 0))
    if parts.forward_hooks is not None:
        if has_closure or has_other_hooks(optimizer):
            why = "step() was given a closure" if has_closure else "step() has hooks of the program's"
            synchronizer.settle_early(why)
        elif synchronizer.defer(lambda: DeferredStep(optimizer)):
            return
    synchronizer.before_step()


def _settle(optimizer, *_):
    optimizer._bandoneon.synchronizer.settle()


def _after_step(optimizer, args, kwargs):
    parts = optimizer._bandoneon
    parts.synchronizer.forget_pass()
    parts.parameters.step_count.end_step()
    parts.synchronizer.end_step()
    if parts.recorder is not None:
        parts.recorder.end_optimizer(parts, lambda: parts.parameters.steps)
    once = _closure_of(args, kwargs)
    if once is not None and not once.is_evaluated:
        raise Unimplemented(
            f"{type(optimizer).__name__}.step took a closure and did not evaluate it, so no gradients were "
            "exchanged; call backward() before step(), without a closure"
        )


_SEVERAL_TIMES = (
    "{}.step(closure) evaluates its closure several times, as often as the loss of this worker alone "
    "tells it to, and every time would be a round with all workers; use an optimizer that evaluates it once"
)


class _Once:
    """A closure that computes the loss and its gradients, which the optimizer may evaluate once: that is
    the round."""

    def __init__(self, closure, name, then):
        self._closure = closure
        self._name = name
        self._then = then
        self.is_evaluated = False

    def __call__(self):
        if self.is_evaluated:
            raise Unimplemented(_SEVERAL_TIMES.format(self._name))
        self.is_evaluated = True
        loss = self._closure()
        self._then()
        return loss


def _closure_of(args, kwargs):
    """The closure that step() was called with, or None; args may begin with the optimizer."""
    positional = [arg for arg in args if callable(arg) and not isinstance(arg, torch.optim.Optimizer)]
    return positional[0] if positional else kwargs.get("closure")
