"""GPUs whose memory is pushed as it is, and the streams that its exchanges keep to."""

import torch

from .torch_internals import raw_stream_of_gpu

# Whether there may be any: not ROCm's, which calls itself CUDA as well. Asked before anything else of here:
# where there is none, it costs a gradient no call.
ARE_HERE = torch.version.cuda is not None


def is_pushable(tensor):
    """Whether the library reads and writes the tensor's memory where it is, though it is not the host's."""
    return tensor.is_cuda


def place_of(tensor):
    """What Push calls the tensor's device, and the stream in which the tensor is ready by now."""
    index = tensor.device.index
    return index + 1, current_stream(index)


def current_stream(index):
    if raw_stream_of_gpu is not None:
        return raw_stream_of_gpu(index)
    return torch.cuda.current_stream(index).cuda_stream


def stream_of(tensor):
    """The stream that is current on the tensor's GPU, for follow(); None of a tensor that is not on one."""
    return place_of(tensor)[1] if is_pushable(tensor) else None


def follow(tensor, stream):
    """The current stream of the tensor's GPU waits from now on for what is in that other one by now."""
    current = torch.cuda.current_stream(tensor.device)
    if current.cuda_stream != stream:
        current.wait_stream(torch.cuda.ExternalStream(stream, device=tensor.device))


def used_in_current_stream(tensor):
    """What is freed from now on is not used again before the current stream has come here: it waits for
    the result, and the stream that the memory was made in may not."""
    tensor.record_stream(torch.cuda.current_stream(tensor.device))


def future_of(tensor):
    """A future of the tensor, as who waits for it wants it: one that knows its device."""
    return torch.futures.Future(devices=[tensor.device] if tensor.is_cuda else [])
