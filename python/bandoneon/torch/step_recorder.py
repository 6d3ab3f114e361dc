"""What a program does in its steps, recorded as marks of its worker: docs/tracing.md."""

import collections
import functools
import gc
import os
import threading
import time
import weakref

import torch

from .. import marks
from .._native import NO_TENSOR
from ..json_log import LOGGER as _log
from . import any_optimizer, backward_pass
from .model_hooks import ModelHook
from .torch_internals import is_compiling, is_profiling, module_of

_MOST = 1 << 14  # marks of one kind of list that wait for the end of their step; the oldest are dropped
_MANY = 1 << 12  # so many are handed over before that, at the end of a pass or of a wait
_LONG_NS = 1_000_000_000  # and so long after the last ones
_SHORT_NS = 100_000  # A shorter collection of young objects, of which there are many, is not recorded.

_recorders = weakref.WeakSet()


def recorder_of(worker):
    """The one StepRecorder of a worker, or of a group's; None where nothing is recorded."""
    worker = worker.whole
    if worker.records and worker.recorder is None and not worker.is_closed():
        worker.recorder = StepRecorder(worker)
    return worker.recorder


def model_of(given):
    """The module that an optimizer was given, itself or as its named_parameters(), which nothing has read yet; None
    where it was given something else."""
    return given if isinstance(given, torch.nn.Module) else module_of(given)


def _never_raises(method):
    """Has a method do nothing once nothing is recorded. An error is logged, and is the end of the recording."""

    @functools.wraps(method)
    def guarded(self, *arguments):
        if not self._is_on:
            return None
        try:
            return method(self, *arguments)
        except Exception:
            _log.warning("the program's steps are recorded no longer, as recording one has failed", exc_info=True)
            self._stop()
            return None

    return guarded


class StepRecorder:
    """Collects the marks of a step, and hands them over at its end. One a worker, however many optimizers it has. Does
    not keep the worker, models and optimizers alive.

    The thread that trains calls it; waits, readiness and collections may come from others.
    """

    def __init__(self, worker):
        self.step = 0  # before the first one
        self._worker = weakref.ref(worker)
        self._is_on = True
        # Lists that any thread may append to: marks.Span; and marks.instant() of gradients that are ready, numbers, of
        # which the garbage collector need not know.
        self._spans = collections.deque(maxlen=_MOST)
        self._instants = collections.deque(maxlen=_MOST)
        # note_ready(marks.instant(tensor)): for hooks that come once a gradient and are to make few calls.
        self.note_ready = self._instants.append
        self._handed_over = marks.clock()
        self._hooks = weakref.WeakKeyDictionary()  # by their owner, as each optimizer of ours has one
        self._follows_any = False
        self._thread = None  # whose steps those are
        # Readings, None where there is none:
        self._first = None  # at the first mark of all
        self._ended = None  # at the end of the last step
        self._optimizer = None  # at the begin of the optimizer's step() that runs
        self._forward = None  # at the begin of the forward pass that runs
        self._module = None  # id of its module
        self._backward = None  # at the begin of the last backward pass, which is noted when it cannot go on any more
        self._backward_end = None
        self._task = None  # number of that pass
        self._has_input = False  # whether this step's first forward pass has begun
        self._pace = _Pace()
        self._range = None  # of a profiler, for the step
        self._watch_collections()
        _recorders.add(self)

    # ---- What is watched ----

    def _watch_collections(self):
        callback = _collection_callback(weakref.ref(self))
        gc.callbacks.append(callback)
        self._unwatch = weakref.finalize(self, _remove_callback, callback)
        self._unwatch.atexit = False

    @_never_raises
    def watch(self, owner, model=None, pairs=()):
        """As long as the ParameterSet `owner` has its parameters: notes the forward passes of a module, and backward
        passes that come through what it returns; and when gradients are there, of (parameter, tensor) pairs, which no
        Synchronizer has."""
        handles = [
            param.register_post_accumulate_grad_hook(_ready_hook(self.note_ready, tensor))
            for param, tensor in pairs
            if param.requires_grad
        ]
        if model is not None:
            itself = weakref.ref(self)
            # First, and last: hooks of the program are part of the pass.
            handles.append(model.register_forward_pre_hook(_BeforeForward(itself), prepend=True))
            handles.append(model.register_forward_hook(_AfterForward(itself)))
        self._hooks.setdefault(owner, []).extend(handles)
        weakref.finalize(owner, backward_pass.remove, handles).atexit = False

    def unwatch(self, owner):
        """Takes those hooks away."""
        backward_pass.remove(self._hooks.pop(owner, []))

    @_never_raises
    def follow_any_optimizer(self):
        """For a program that exchanges gradients by push_pull() alone: its steps are those of torch's optimizers in
        the thread that calls this."""
        self._thread = threading.get_ident()
        if not self._follows_any:
            self._follows_any = True
            any_optimizer.follow(self)

    def before_any_step(self, optimizer):
        if self._follows():
            self.begin_optimizer()

    def after_any_step(self, optimizer):
        if self._follows():
            self.end_optimizer(optimizer, lambda: 1)

    def _follows(self):
        return not self._hooks and threading.get_ident() == self._thread

    # ---- Passes ----

    @_never_raises
    def begin_forward(self, module):
        # In a backward pass it is computed once more, because its activations were not kept.
        if self._forward is not None and self._module != id(module) or backward_pass.current_task() != -1:
            return
        self._note_backward()
        now = self._begin_part()
        if not self._has_input:
            self._has_input = True
            if self._ended is not None:
                self._spans.append(marks.span(marks.INPUT, self._ended, now))
        self._forward, self._module = now, id(module)

    @_never_raises
    def end_forward(self, module, output):
        if self._forward is None or self._module != id(module):
            return
        begun, self._forward = self._forward, None
        now = marks.read()
        self._spans.append(marks.span(marks.FORWARD, begun, now))
        node = _node_of(output)
        if node is not None:
            node.register_prehook(_backward_hook(weakref.ref(self)))
        self._hand_over_many(now)

    @_never_raises
    def begin_backward(self):
        """Inside of a backward pass: when its first gradient comes. Each may call it."""
        task = backward_pass.current_task()
        if task in (-1, self._task):
            return
        self._note_backward()
        self._task = task
        self._backward = self._begin_part()
        backward_pass.at_end_of_pass(self.end_backward)

    @_never_raises
    def end_backward(self):
        """At the end of a backward pass. What comes behind it, such as a wait, calls it again."""
        if self._backward is not None and backward_pass.current_task() == self._task:
            self._backward_end = marks.read()

    def _note_backward(self):
        begun, ended = self._backward, self._backward_end
        self._backward = self._backward_end = None
        if begun is not None and ended is not None:  # Otherwise it broke off.
            self._spans.append(marks.span(marks.BACKWARD, begun, ended))
            self._hand_over_many(ended)

    # ---- Waits ----

    @_never_raises
    def begin_wait(self):
        # With overlap="forward" there is one for each module.
        begun = marks.read() if self._forward is None else marks.glance()
        return begun, _enter_range("bandoneon::wait") if is_profiling() else None

    @_never_raises
    def end_wait(self, begun):
        """`begun`: what begin_wait() has returned."""
        if begun is None:
            return
        begun, profiled = begun
        ended = marks.glance() if begun[3] == 0 else marks.read()
        if profiled is not None:
            profiled.__exit__(None, None, None)
        self._spans.append(marks.span(marks.WAITING, begun, ended))
        self._hand_over_many(ended)

    # ---- Optimizers ----

    @_never_raises
    def begin_optimizer(self):
        self._optimizer = self._begin_part()

    @_never_raises
    def end_optimizer(self, owner, steps):
        """`owner`, the same in each step, has ended one. steps() says how many it has ended, with those before a
        checkpoint; it is asked once."""
        now = marks.read()
        begun, self._optimizer = self._optimizer, None
        # A closure's passes are no part of it.
        if begun is not None and self._backward_end is not None and self._backward_end[0] > begun[0]:
            begun = self._backward_end
        self._note_backward()
        if begun is not None:
            self._spans.append(marks.span(marks.OPTIMIZER, begun, now))
        if self._pace.ends_step(owner, now):
            if self._ended is None:
                self.step = max(1, steps())
            self._end_step(self._ended or self._first, now)
        elif self._pace.moved is not None:
            self._ended, self._pace.moved = self._pace.moved, None

    @_never_raises
    def note_part_of_optimizer(self, begun):
        """From the reading `begun` to now a step was taken of a few parameters, as with overlap="forward"."""
        self._spans.append(marks.span(marks.OPTIMIZER, begun, marks.glance()))

    def _begin_part(self):
        """A reading, at the begin of something that a step is made of."""
        now = marks.read()
        if self._first is None:
            self._hand_over(now[0])  # Waits of what was made before.
            self._first, self.step = now, 1
        if self._range is None and is_profiling():
            self._range = _enter_range("bandoneon::step")
        return now

    def _end_step(self, begun, now):
        if begun is not None:
            self._spans.append(marks.span(marks.STEP, begun, now))
        self._hand_over(now[0])
        self.step += 1
        self._ended = now
        self._forward = None  # One that ended in an error was not told.
        self._has_input = False
        profiled, self._range = self._range, None
        if profiled is not None:
            profiled.__exit__(None, None, None)

    # ---- Collections ----

    @_never_raises
    def note_collection(self, begun, generation):
        """A garbage collection from the reading `begun` to now, in any thread: no other one runs Python meanwhile."""
        now = marks.clock()
        if generation == 2 or now - begun[0] >= _SHORT_NS:
            cpu = time.thread_time_ns() - begun[1]
            self._spans.append((begun[0], now - begun[0], max(0, cpu), 0, marks.COLLECTION, NO_TENSOR))

    # ---- Handing over ----

    def _hand_over_many(self, now):
        """Between ends of steps, of which a program may have none: `now` is a reading."""
        if len(self._spans) + len(self._instants) >= _MANY or now[0] - self._handed_over > _LONG_NS:
            self._hand_over(now[0])

    def _hand_over(self, now):
        self._handed_over = now
        worker = self._worker()
        spans, instants = _taken(self._spans), _taken(self._instants)
        if (spans or instants) and worker is not None:
            worker.record_marks(marks.pack(spans, self.step, instants))

    @_never_raises
    def hand_over(self):
        """Gives the worker what there is so far, as a wait that takes long does."""
        self._hand_over(marks.clock())

    @_never_raises
    def close(self):
        """Hands over what is left, and takes the hooks away."""
        self._note_backward()
        self._hand_over(marks.clock())
        self._stop()

    def _stop(self):
        self._is_on = False
        self._unwatch()
        any_optimizer.leave(self)
        for handles in self._hooks.values():
            backward_pass.remove(handles)
        self._spans.clear()
        self._instants.clear()


class _Pace:
    """Which optimizer's step ends the program's, of several. It is the one that steps last between two steps of the
    first, unless another one steps twice without it."""

    def __init__(self):
        self.moved = None  # a reading: where the running step has begun, as another optimizer ends steps from now on
        self._owner = lambda: None  # a weak reference
        self._others = weakref.WeakSet()  # that have stepped since
        self._last = None  # (weak reference to the last of them, reading at its end)
        self._has_changed = False

    def ends_step(self, owner, now):
        """Whether the program's step ends with this one of `owner`."""
        pace = self._owner()
        if owner is pace and self._others and not self._has_changed:
            # Two optimizers that have a part of the parameters each step one after the other.
            self._has_changed = True
            reference, self.moved = self._last
            self._take(reference)
            self._others.add(owner)
            return False
        if pace is None or owner is pace or owner in self._others:
            self._take(weakref.ref(owner))
            return True
        self._others.add(owner)
        self._last = weakref.ref(owner), now
        return False

    def _take(self, reference):
        self._owner, self._last = reference, None
        self._others.clear()


# ---- Hooks, which keep no recorder alive ----


class _BeforeForward(ModelHook):
    __slots__ = ("recorder",)

    def __init__(self, recorder):
        self.recorder = recorder

    def __call__(self, module, args):
        if is_compiling():
            return
        recorder = self.recorder()
        if recorder is not None:
            recorder.begin_forward(module)


class _AfterForward(ModelHook):
    __slots__ = ("recorder",)

    def __init__(self, recorder):
        self.recorder = recorder

    def __call__(self, module, args, output):
        if is_compiling():
            return
        recorder = self.recorder()
        if recorder is not None:
            recorder.end_forward(module, output)


def _backward_hook(reference):
    def hook(_):
        recorder = reference()
        if recorder is not None:
            recorder.begin_backward()

    return hook


def _ready_hook(note, tensor):
    clock = marks.clock
    return lambda _: note(clock() << 32 | tensor)


def _collection_callback(reference):
    begun = None

    def callback(phase, info):
        nonlocal begun
        if phase == "start":
            begun = marks.clock(), time.thread_time_ns()
        elif begun is not None:
            recorder = reference()
            if recorder is not None:
                recorder.note_collection(begun, info.get("generation"))

    return callback


def _remove_callback(callback):
    if callback in gc.callbacks:
        gc.callbacks.remove(callback)


def _node_of(output):
    """The node of autograd at which a backward pass through a module's output begins; None where there is none."""
    if isinstance(output, torch.Tensor):
        return output.grad_fn
    if isinstance(output, dict):
        output = output.values()
    elif not isinstance(output, (tuple, list)):
        output = vars(output).values() if hasattr(output, "__dict__") else ()
    tensors = (one for one in output if isinstance(one, torch.Tensor))
    return next((one.grad_fn for one in tensors if one.grad_fn is not None), None)


def _enter_range(name):
    profiled = torch.autograd.profiler.record_function(name)
    profiled.__enter__()
    return profiled


def _taken(marked):
    """All of a deque that others append to meanwhile."""
    taken = []
    try:
        for _ in range(len(marked)):
            taken.append(marked.popleft())
    except IndexError:
        pass  # Another thread has taken them.
    return taken


def _after_fork():
    """A child has no worker."""
    for recorder in list(_recorders):
        recorder._stop()


os.register_at_fork(after_in_child=_after_fork)
