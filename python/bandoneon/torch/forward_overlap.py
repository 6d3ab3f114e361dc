"""overlap="forward": a step is taken where the next forward pass reads its parameters, each when its mean
has come."""

import contextlib
import weakref

import torch
from torch.utils._pytree import tree_map

from ..errors import FailedPrecondition, InvalidArgument
from . import backward_pass
from .algorithms.per_parameter import PerParameterOptimizer
from .model_hooks import IdleHook as _IdleHook  # noqa: F401 (where pickles look)
from .model_hooks import ModelHook
from .torch_internals import (
    call_between_graphs,
    end_graphs_at_calls,
    hooks_after_any_step,
    hooks_before_any_step,
    is_compiling,
    no_torch_function,
)

# Of torch.optim: each parameter's step depends on that parameter, its gradient and its state alone.
_PER_PARAMETER = tuple(
    getattr(torch.optim, name)
    for name in (
        "ASGD Adadelta Adafactor Adagrad Adam AdamW Adamax Muon NAdam RAdam RMSprop Rprop SGD"
    ).split()
    if hasattr(torch.optim, name)
)


def check_steps_one_by_one(optimizer):
    """InvalidArgument where a step of some parameters, and later of the others, may not be the step of all."""
    name = type(optimizer).__name__
    if type(optimizer) in _PER_PARAMETER:
        return
    if isinstance(optimizer, PerParameterOptimizer):
        if optimizer.steps_one_by_one:
            return
        raise InvalidArgument(
            f"overlap='forward' steps the parameters of one module at a time, and {name} computes those of several "
            f"together, whose last bits may differ by which they are; make it {name}(..., batched=False), or use "
            "overlap='backward'"
        )
    raise InvalidArgument(
        f"overlap='forward' steps the parameters of one module at a time, and of {name} it is "
        "not known that this is the same as a step of all at once; use overlap='backward', or an optimizer of "
        "torch.optim (other than LBFGS) or of bandoneon.torch"
    )


def has_other_hooks(optimizer):
    """Whether step() runs hooks of the program's, which may look at gradients and parameters."""
    return bool(
        len(optimizer._optimizer_step_pre_hooks) > 1
        or len(optimizer._optimizer_step_post_hooks) > 1
        or any(
            not hasattr(hook, "looks_at_no_gradients")
            for hooks in (hooks_before_any_step, hooks_after_any_step)
            for hook in hooks.values()
        )
    )


class PendingGradient(torch.Tensor):
    """What param.grad is while its mean is on its way: whatever computes with it has awaited the mean first.
    Without memory of its own, so that what goes around torch's operators (numpy(), data_ptr()) fails."""

    __torch_function__ = no_torch_function

    @staticmethod
    def __new__(cls, grad, settle):
        """`grad` is the local one, whose form the mean will have; `settle` a weak reference to what calls
        arrive()."""
        self = torch.Tensor._make_wrapper_subclass(
            cls, grad.shape, strides=grad.stride(), dtype=grad.dtype, device=grad.device
        )
        self._settle = settle
        self._mean = None
        return self

    def arrive(self, mean, like):
        """The mean; None where no worker had a gradient, which is zeros for who asks here."""
        self._settle = None
        self._mean = torch.zeros_like(like, requires_grad=False) if mean is None else mean

    def now(self):
        if self._mean is None:
            settle = self._settle()
            if settle is None:
                raise FailedPrecondition("the mean of this gradient was on its way when its optimizer was dropped")
            settle()
        if self._mean is None:
            raise FailedPrecondition(
                "the exchange of this gradient ended in an error, which was raised then: set the gradients to None, "
                "as optimizer.zero_grad() does, before the next backward pass"
            )
        return self._mean

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        args, kwargs = tree_map(_now, (args, kwargs or {}))
        return function(*args, **kwargs)

    def __deepcopy__(self, memo):
        return self.now().clone()

    def __reduce_ex__(self, protocol):
        return self.now().__reduce_ex__(protocol)


def _now(value):
    return value.now() if isinstance(value, PendingGradient) else value


@contextlib.contextmanager
def outside_of_forward(params):
    """As between two passes, whatever the forward pass that is about to begin runs under."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))  # What a first step makes is kept for training.
        stack.enter_context(torch.no_grad())
        for kind in {param.device.type for param in params}:
            stack.enter_context(torch.autocast(kind, enabled=False))
        yield


class DeferredStep:
    """A step that the program has asked for, at the groups' settings of that moment, to be taken of a few
    parameters at a time. Keeps the optimizer alive."""

    def __init__(self, optimizer):
        self._optimizer = optimizer
        self._step = _step_without_hooks(type(optimizer))
        self._settings, self._group_of = [], {}
        for number, group in enumerate(optimizer.param_groups):
            # A rate may be a tensor, which schedulers change in place.
            self._settings.append(
                {
                    key: value.clone() if isinstance(value, torch.Tensor) else value
                    for key, value in group.items()
                    if key != "params"
                }
            )
            self._group_of.update(dict.fromkeys(map(id, group["params"]), number))

    def take(self, gradients):
        """Of (parameter, gradient) pairs; without a gradient a parameter stays as it is."""
        gradients = [(param, grad) for param, grad in gradients if grad is not None]
        if not gradients:
            return
        params = {}
        for param, _ in gradients:
            params.setdefault(self._group_of[id(param)], []).append(param)
        optimizer = self._optimizer
        groups, before = optimizer.param_groups, [param.grad for param, _ in gradients]
        optimizer.param_groups = [
            {"params": params[number], **self._settings[number]} for number in sorted(params)
        ]
        try:
            for param, grad in gradients:
                param.grad = grad
            self._step(optimizer)
        finally:
            optimizer.param_groups = groups
            for (param, _), grad in zip(gradients, before):
                param.grad = grad


def _step_without_hooks(cls):
    """The class's step() as it was written: those hooks ran when the program called it."""
    step = cls.step
    while getattr(step, "hooked", False):
        step = step.__wrapped__
    return step


class _Reader:
    """A module, and the parameters that its forward is the first to read."""

    def __init__(self):
        self.parents = []
        self.is_called = False  # ever
        self.slots = {}  # as keys


class ForwardHooks:
    """On a model's modules: before the forward of one, the deferred step of what it reads is taken.

    A module reads its own parameters, and those of modules inside it that nothing has called so far, as
    torch.nn.MultiheadAttention reads its out_proj's. What the model's state_dict() reads, and what
    load_state_dict() writes, is stepped before.

    Inside of compiled code only the outermost module has a hook, which takes the step of all parameters.

    Lives as long as the model, and with it a step that was not taken and its optimizer.
    """

    def __init__(self, synchronizer):
        end_graphs_at_calls()
        self.step = None  # the DeferredStep, where there is one
        self._synchronizer = weakref.ref(synchronizer)
        self._readers = weakref.WeakKeyDictionary()  # by module
        self._handles = []
        self._is_assigned = False
        self._read_first = {}  # slots of modules that neither are called nor inside of one that is

    def add(self, model):
        self._is_assigned = False
        for module in model.modules():
            if module in self._readers:
                continue
            self._readers[module] = reader = _Reader()
            hook = _ForwardHook(self, reader, is_outermost=module is model)
            settle = _SettleHook(self)
            self._handles += [
                # First, for a hook of the program may read the parameters, as weight_norm's does.
                module.register_forward_pre_hook(hook, prepend=True),
                module.register_state_dict_pre_hook(settle),
                module._register_load_state_dict_pre_hook(settle),
            ]
        for module in model.modules():
            for child in module.children():
                self._readers[child].parents.append(self._readers[module])

    def note_added(self, named):
        """Of (name, parameter) pairs that are to be stepped, too. InvalidArgument where one is of none of the modules:
        nothing would take its step."""
        self._is_assigned = False
        read = {id(param) for module in self._readers for param in module._parameters.values()}
        for name, param in named:
            if id(param) not in read:
                raise InvalidArgument(
                    f"{name!r} is a parameter of no module of the model that overlap='forward' was given, whose "
                    "forward pass awaits it; give it a model that has all parameters, give add_param_group() the module that "
                    "has it, in place of its named_parameters(), or use overlap='backward'",
                    tensor=name,
                )

    def remove(self):
        backward_pass.remove(self._handles)

    def settle(self):
        synchronizer = self._synchronizer()
        if synchronizer is not None:
            synchronizer.settle()

    def take_all(self):
        synchronizer = self._synchronizer()
        if synchronizer is not None:
            synchronizer.take_deferred()

    def before_forward(self, reader):
        if not reader.is_called:
            reader.is_called = True
            self._is_assigned = False
        synchronizer = self._synchronizer()
        if synchronizer is None or not synchronizer.has_deferred_step:
            return
        if not self._is_assigned:
            self._assign(synchronizer)
        if reader.slots or self._read_first:
            synchronizer.take_deferred([*reader.slots, *self._read_first])

    def _assign(self, synchronizer):
        by_param = synchronizer.slots_by_param()
        self._read_first = {}
        for reader in self._readers.values():
            reader.slots = {}
        for module, reader in self._readers.items():
            params = module._parameters.values()
            slots = [by_param[id(param)] for param in params if id(param) in by_param]
            for place in self._first_to_read(reader) if slots else ():
                place.update(dict.fromkeys(slots))
        self._is_assigned = True

    def _first_to_read(self, reader):
        """Where its slots belong: to the module itself if it is called, else to what holds it."""
        if reader.is_called:
            return [reader.slots]
        if not reader.parents:
            return [self._read_first]
        return [place for parent in reader.parents for place in self._first_to_read(parent)]


class _ForwardHook(ModelHook):
    __slots__ = ("hooks", "is_outermost", "reader")

    def __init__(self, hooks, reader, is_outermost):
        self.hooks = hooks
        self.reader = reader
        self.is_outermost = is_outermost

    def __call__(self, module, args):
        if is_compiling():
            if self.is_outermost:
                call_between_graphs(self.hooks.take_all)
            return
        self.hooks.before_forward(self.reader)


class _SettleHook(ModelHook):
    __slots__ = ("hooks",)

    def __init__(self, hooks):
        self.hooks = hooks

    def __call__(self, *_):
        self.hooks.settle()


def read_too_early(name):
    """The error for a gradient of a parameter whose step is still to be taken."""
    return FailedPrecondition(
        f"{name!r} got a gradient from a forward pass that read it before its last step was taken: "
        "overlap='forward' takes it when a module that has the parameter is called. What reads parameters "
        "otherwise (module.forward(), functions of weights, code compiled before the optimizer was made) needs "
        "optimizer.synchronize() before it, or overlap='backward'",
        tensor=name,
    )
