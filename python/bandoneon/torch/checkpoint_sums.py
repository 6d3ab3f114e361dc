"""Sums by which workers find out whether what one of them saves for all is the same in all."""

import json
import zlib

import torch

from .broadcast import checksum


def checksums(states):
    """{name: sum} of all tensors and plain values in {item: state_dict()}, however they are nested. What is neither, or
    has no dense memory, is left out."""
    sums = {}
    for item, state in states.items():
        _add(sums, repr(item), state)
    return sums


def digest_of(sums):
    return zlib.crc32(json.dumps(list(sums.items())).encode())


def _add(sums, name, value):
    if isinstance(value, torch.Tensor):
        if value.layout is torch.strided and not value.is_meta and not value.is_quantized:
            sums[name] = [str(value.dtype), list(value.shape), checksum(value.detach())]
    elif isinstance(value, dict):
        for key, one in value.items():
            _add(sums, f"{name}[{key!r}]", one)
    elif isinstance(value, (list, tuple)):
        for i, one in enumerate(value):
            _add(sums, f"{name}[{i}]", one)
    elif value is None or isinstance(value, (bool, int, float, str)):
        sums[name] = repr(value)
