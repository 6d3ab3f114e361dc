"""What may be exchanged, and the memory that stands in for a tensor while it is."""

import torch

from .. import _native
from ..errors import InvalidArgument, Unimplemented
from . import devices
from .shards import is_shard
from .torch_internals import num_users_of_storage

DTYPES = {
    torch.float32: _native.FLOAT32,
    torch.float16: _native.FLOAT16,
    torch.bfloat16: _native.BFLOAT16,
    torch.float64: _native.FLOAT64,
}


def dtype_number(tensor, name):
    number = DTYPES.get(tensor.dtype)
    if number is None:
        raise InvalidArgument(
            f"tensor {name!r} has type {tensor.dtype}; push and pull take float32, float16, bfloat16 and "
            "float64 (broadcast_parameters takes every type)",
            tensor=name,
        )
    return number


_DENSE_GRADIENT = (
    "give links=Links(sparse='rows') to exchange it row by row, or sparse='dense' to exchange it densely, or build the "
    "module with sparse=False"
)


def check_is_tensor(value, name):
    """InvalidArgument for what push_pull() was given in place of a tensor, or of its name."""
    if not isinstance(name, str):
        raise InvalidArgument(f"the name of a tensor is a string, not {name!r}; write push_pull(tensor, name)")
    if isinstance(value, torch.Tensor):
        return
    kind = type(value).__name__
    if isinstance(value, (int, float, complex)):
        remedy = f"give it {name} = torch.tensor([{value!r}]), whose value is the mean afterwards"
    elif kind == "ndarray":
        remedy = "give it torch.from_numpy(array), which has the array's memory"
    else:
        remedy = "give it a torch.Tensor"
    raise InvalidArgument(
        f"push_pull() replaces a tensor by the mean, in place, and {name!r} is a {kind}: {remedy}", tensor=name
    )


def overlaps_itself(tensor):
    """Whether several of its elements are one place in memory, as expand() makes them."""
    return any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride()))


def note_written(tensor):
    """Tells autograd that the tensor's memory was written to, as it sees of torch's own operations alone."""
    if hasattr(torch.autograd.graph, "increment_version"):
        torch.autograd.graph.increment_version(tensor)
    else:  # Before torch 2.5: an operation that changes nothing.
        with torch.no_grad():
            tensor.mul_(1)


def check_writable(tensor, name):
    """InvalidArgument where a result could not be written to the tensor."""
    if overlaps_itself(tensor):
        raise InvalidArgument(
            f"several elements of {name!r} share one place in memory, as expand() makes them, so no result can be "
            "written there; exchange a clone() of it",
            tensor=name,
        )


def check_exchangeable(tensor, name, what="the gradient of ", remedy=_DENSE_GRADIENT):
    """Refuses what only looks like a plain tensor. Of a sparse one the error says `what` it is and the `remedy`."""
    if is_shard(tensor):
        raise Unimplemented(
            f"{name!r} is a DTensor (FSDP2 or tensor parallelism), which DistributedOptimizer and LocalSteps take "
            "(docs/sharded.md), and nothing else does; for one tensor give tensor.to_local()",
            tensor=name,
        )
    if getattr(tensor, "_is_flat_param", False):
        raise Unimplemented(
            f"{name!r} is a FlatParameter of FullyShardedDataParallel, which reduces gradients itself. "
            "Use DistributedDataParallel with bandoneon.torch.ddp_hook instead",
            tensor=name,
        )
    if tensor.layout is not torch.strided:
        raise InvalidArgument(
            f"{what}{name!r} is sparse ({tensor.layout}); {remedy}",
            tensor=name,
        )
    if tensor.is_meta:
        raise InvalidArgument(
            f"{name!r} is on the meta device, where it has no values to exchange; give the model memory and values "
            "before, as by model.to_empty(device='cpu') and loading a checkpoint",
            tensor=name,
        )


def memory_for(tensor, exclusive=False):
    """Contiguous memory with the tensor's values, the host's or a GPU's: the tensor's own where that is
    safe.

    It is not where the memory is of another kind of device, not in row-major order (which is the order that
    all workers share), or seen through another tensor as well; `exclusive` rules the latter out.
    """
    is_device = devices.ARE_HERE and devices.is_pushable(tensor)
    if (tensor.is_cpu or is_device) and tensor.is_contiguous():
        if exclusive or not _is_shared(tensor):
            return tensor
    if is_device:
        return tensor.clone(memory_format=torch.contiguous_format)
    return host_copy(tensor)


# Memory that C reads and writes by its address is made by the next four, whatever a program's default type and
# device are (torch.set_default_dtype, set_default_device, torch.device contexts).


def host_empty(shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="cpu")


def host_zeros(shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype, device="cpu")


def host_values(values, dtype=torch.float32):
    """A tensor of these numbers."""
    return torch.tensor(values, dtype=dtype, device="cpu")


def host_copy(tensor):
    """As memory_for(), of the host and never the tensor's own."""
    return host_empty(tensor.shape, tensor.dtype).copy_(tensor)


def fill(push, memory):
    """Makes the push one of that memory as it is by now; None: of none."""
    push.keep = memory
    push.data = None if memory is None else memory.data_ptr()
    if devices.ARE_HERE:
        place(push, memory)


def place(push, memory):
    """The part of fill() that has to do with GPUs."""
    if memory is not None and devices.is_pushable(memory):
        push.device, push.stream = devices.place_of(memory)
    else:
        push.device, push.stream = _native.HOST, None


def streams_for(memories):
    """For Worker.wait_all(): the current streams of those on GPUs; None where none is."""
    if not devices.ARE_HERE:
        return None
    streams = [
        devices.place_of(m)[1] if m is not None and devices.is_pushable(m) else None
        for m in memories
    ]
    return None if all(stream is None for stream in streams) else streams


def copy_back(memory, tensor):
    """The result, which came to `memory`, into the tensor it belongs to. On a GPU in the order of the
    current stream, which waits for it."""
    if devices.ARE_HERE and devices.is_pushable(memory):
        devices.used_in_current_stream(memory)
    if memory is not tensor:
        with torch.no_grad():
            tensor.copy_(memory)


def has_own_storage(tensor):
    """Whether all of its memory is the tensor's, though others may see it, too; not of a sparse one, which has several."""
    return tensor.layout is torch.strided and tensor.untyped_storage().nbytes() == tensor.nbytes


def _is_shared(tensor):
    storage = tensor.untyped_storage()
    if storage.nbytes() != tensor.nbytes:
        return True
    if num_users_of_storage is None:
        return False
    return num_users_of_storage(storage._cdata) > 2  # The tensor and our view of it.
