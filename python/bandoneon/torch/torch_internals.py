"""What this package needs of torch and of CPython that they do not promise: nothing else in it uses such things.

A newer torch may lose one of them, and no fallback would be right: without the number of the pass, gradients of two
passes are taken for those of one. So a torch that lacks one is refused when bandoneon.torch is imported, by name.
"""

import pkgutil
import sys

import torch

from ..errors import Unimplemented

_NEEDED = {
    "torch._C:_current_graph_task_id": "tells by it which backward pass a gradient belongs to",
    "torch._C:_disabled_torch_function_impl": "keeps by it a gradient that is on its way from torch functions",
    "torch.autograd:Variable._execution_engine.queue_callback": "ends by it an exchange with its backward pass",
    "torch.autograd.function:BackwardCFunction.apply.__code__": "finds by it the pass that a reentrant one runs inside of",
    "torch.optim.optimizer:_global_optimizer_pre_hooks": "sees by it whether a step() runs hooks of the program's",
    "torch.optim.optimizer:_global_optimizer_post_hooks": "sees by it whether a step() runs hooks of the program's",
    "sys:_getframe": "finds by it the pass that a reentrant one runs inside of",
    "gc:get_objects": "finds by it the GradScaler that scales the gradients",
}


def needed(place):
    """The object at a "module:name". Unimplemented, which says what it is for, where this torch or Python lacks it."""
    try:
        return pkgutil.resolve_name(place)
    except (AttributeError, ImportError) as error:
        version = f"torch {torch.__version__}" if place.startswith("torch") else f"Python {sys.version.split()[0]}"
        raise Unimplemented(
            f"{version} has no {place.replace(':', '.')}, and bandoneon.torch {_NEEDED[place]}: install a version that "
            "has it (docs/coming_from.md names those that were tried), or a newer bandoneon"
        ) from error


# Number of the backward pass that runs on this thread, -1 outside of any. Asked for each gradient, so not wrapped.
current_task = needed("torch._C:_current_graph_task_id")
# For __torch_function__ of a subclass of torch.Tensor that torch functions are to see as a plain one.
no_torch_function = needed("torch._C:_disabled_torch_function_impl")
# Has a function called as the last action of the pass that runs on this thread.
queue_callback = needed("torch.autograd:Variable._execution_engine.queue_callback")
# Hooks of all optimizers of the process, as dicts: changed in place, never replaced.
hooks_before_any_step = needed("torch.optim.optimizer:_global_optimizer_pre_hooks")
hooks_after_any_step = needed("torch.optim.optimizer:_global_optimizer_post_hooks")

_apply = needed("torch.autograd.function:BackwardCFunction.apply.__code__")
_get_frame = needed("sys:_getframe")
_get_objects = needed("gc:get_objects")

# Whether torch.compile traces the caller.
is_compiling = getattr(torch.compiler, "is_compiling", None) or torch._utils.is_compiling
# Those that some versions lack, where there is another way: None there.
raw_stream_of_gpu = getattr(torch._C, "_cuda_getCurrentRawStream", None)
# Whether a profiler runs in this thread.
is_profiling = getattr(torch.autograd, "_profiler_enabled", lambda: False)
num_users_of_storage = getattr(torch._C, "_storage_Use_Count", None)


def _call(function, *positional):
    return function(*positional)


_call_between_graphs = _call


def end_graphs_at_calls():
    """From now on torch.compile ends its graph at a call_between_graphs(). Imports the compiler, which takes as long as
    all else of torch; torch does so itself for the first optimizer, so call this where there is one."""
    global _call_between_graphs
    if _call_between_graphs is _call:
        _call_between_graphs = torch.compiler.disable(_call)


def call_between_graphs(function, *positional):
    """Calls a function that torch.compile does not look into."""
    return _call_between_graphs(function, *positional)


def outermost_node():
    """The node of the outermost backward pass that this call is inside of, where that pass is another than the
    running one; None otherwise. It is seen by the frame in which Python runs a node's function."""
    found = None
    frame = _get_frame(1)
    while frame is not None:
        if frame.f_code is _apply:
            found = frame.f_locals["self"]
        frame = frame.f_back
    return found


def self_of_caller():
    """The `self` of the method from which the function that asks was called; None where that is no method."""
    return _get_frame(2).f_locals.get("self")


def module_of(named_parameters):
    """The module whose named_parameters() this is, which nobody has asked for a name yet; None of anything else."""
    if getattr(named_parameters, "gi_code", None) is not torch.nn.Module.named_parameters.__code__:
        return None
    frame = named_parameters.gi_frame
    return None if frame is None else frame.f_locals.get("self")


def live_objects(kind):
    """All objects of a class that the garbage collector knows. Takes long: looks through all that the process has."""
    # isinstance() would ask objects that pretend to be others, and run code of theirs.
    return [found for found in _get_objects() if issubclass(type(found), kind)]
