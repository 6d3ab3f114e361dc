"""What may be exchanged, and the host memory that stands in for a tensor while it is."""

import torch

from .. import _native
from ..errors import InvalidArgument, Unimplemented

DTYPES = {
    torch.float32: _native.FLOAT32,
    torch.float16: _native.FLOAT16,
    torch.bfloat16: _native.BFLOAT16,
    torch.float64: _native.FLOAT64,
}


_use_count = getattr(torch._C, "_storage_Use_Count", None)


def dtype_number(tensor, name):
    number = DTYPES.get(tensor.dtype)
    if number is None:
        raise InvalidArgument(
            f"tensor {name!r} has type {tensor.dtype}; push and pull take float32, float16, bfloat16 and "
            "float64 (broadcast_parameters takes every type)",
            tensor=name,
        )
    return number


def check_exchangeable(tensor, name):
    """Refuses what only looks like a plain tensor."""
    if any(cls.__name__ == "DTensor" for cls in type(tensor).__mro__):
        raise Unimplemented(
            f"{name!r} is a DTensor (FSDP2 or tensor parallelism): its shards differ between workers, "
            "so a parameter server cannot sum them. Keep the parameters replicated: use a plain model "
            "with bandoneon.torch.DistributedOptimizer, or DistributedDataParallel with "
            "bandoneon.torch.ddp_hook",
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
            f"the gradient of {name!r} is sparse ({tensor.layout}); pass sparse_as_dense=True to "
            "exchange it densely, or build the module with sparse=False",
            tensor=name,
        )


def host_copy_or_self(tensor, exclusive=False):
    """Contiguous host memory with the tensor's values: the tensor's own where that is safe.

    It is not where the memory is another device's, not in row-major order (which is the order that
    all workers share), or seen through another tensor as well; `exclusive` rules the latter out.
    """
    if tensor.is_cpu and tensor.is_contiguous():
        if exclusive or not _is_shared(tensor):
            return tensor
    host = torch.empty(
        tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=tensor.device.type == "cuda"
    )
    return host.copy_(tensor)


def copy_back(host, tensor):
    """The result, which came to `host`, into the tensor it belongs to."""
    if host is not tensor:
        with torch.no_grad():
            tensor.copy_(host)


def _is_shared(tensor):
    storage = tensor.untyped_storage()
    if storage.nbytes() != tensor.nbytes:
        return True
    return _use_count is not None and _use_count(storage._cdata) > 2  # The tensor and our view of it.
