"""A process that trains through its host's daemon: a push, another one once it is told to go on."""

import ctypes
import sys

import bandoneon
from bandoneon.calls import Declaration

with bandoneon.init() as worker:
    n = 100_000
    data = (ctypes.c_float * n)(*([worker.rank + 1.0] * n))
    (tensor,) = worker.declare([Declaration("w", n)])
    worker.wait(worker.push(tensor, ctypes.addressof(data), keep=data))
    assert set(data) == {1.5}, set(data)
    print("half way", flush=True)
    sys.stdin.readline()
    worker.wait(worker.push(tensor, ctypes.addressof(data), keep=data))
    assert set(data) == {1.5}, set(data)
print("ended well", flush=True)
