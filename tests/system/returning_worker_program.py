"""A worker of returning_worker_test.py: exchanges three tensors, and takes in at boundaries the workers that come in the place of
lost ones. It ends once so many have come, some steps later.

It prints a line a step with each tensor's mean and a checksum of all its bytes: what a step's pushes must give is known, and the
lines of all workers must be equal. No torch.
"""

import ctypes
import os
import sys
import zlib

import bandoneon
from bandoneon import _native
from bandoneon.calls import Declaration

PUSH = os.environ.get("TEST_PUSH", "none")
PULL = os.environ.get("TEST_PULL", "none")
RULE = os.environ.get("TEST_RULE", "")
RETURNS = int(os.environ.get("TEST_RETURNS", "1"))
SIZES = (1000, 70_000, 300_000)
STEPS_AFTER = 25  # after the last worker has come
GO_ON, MEET, END = range(3)


def boundary(worker):
    """The ranks of the workers that were taken in."""
    ranks, count = (ctypes.c_int32 * 8)(), ctypes.c_size_t()
    with worker._call() as (lib, handle):
        _native.check(lib.bdn_boundary(handle, 60.0, ranks, len(ranks), ctypes.byref(count)))
    return list(ranks)[: count.value]


def agree(worker, word):
    """What the lowest rank says is next. It may be lost just now."""
    root = worker.present()[0]
    said = ctypes.c_uint64(word)
    try:
        worker.broadcast("next", ctypes.addressof(said), 8, root)
    except bandoneon.FailedPrecondition:
        return GO_ON
    return said.value


def main():
    with bandoneon.init() as worker:
        with worker._call() as (lib, handle):
            is_candidate = lib.bdn_is_candidate(handle) != 0
        arrays = [(ctypes.c_float * n)() for n in SIZES]
        rule = {"rule": RULE} if RULE else {}
        tensors = worker.declare([Declaration(f"w{i}", n, push=PUSH, pull=PULL, **rule) for i, n in enumerate(SIZES)])
        if RULE:
            for tensor, array in zip(tensors, arrays):
                if worker.rank == 0:
                    worker.set_server_state(tensor, "weights", ctypes.addressof(array), len(array), 0)
            worker.barrier("weights")
        agree(worker, GO_ON)
        came = 0
        if is_candidate:
            print("candidate", worker.rank, "of", worker.count_present(), flush=True)
            came = int(os.environ["TEST_CAME"]) + len(boundary(worker))
            print("taken in, at step", worker.get_step(tensors[0]), flush=True)
        since = 0
        while True:
            step = worker.get_step(tensors[0]) + 1
            if step == 20:
                print("running", flush=True)
            for array in arrays:
                value = float((worker.rank + 1) ** 2 * (step % 16 + 1))
                ctypes.memmove(array, (ctypes.c_float * len(array))(*[value] * len(array)), ctypes.sizeof(array))
            tickets = [
                worker.push(tensor, ctypes.addressof(array), keep=array, learning_rate=0.01) for tensor, array in zip(tensors, arrays)
            ]
            for ticket in tickets:
                worker.wait(ticket)
            sums = [zlib.crc32(bytes(array)) for array in arrays]
            print("step", step, *(f"{array[0]:g}/{sum_:08x}" for array, sum_ in zip(arrays, sums)), flush=True)
            since += 1
            if step % 10 != 0:
                continue
            with worker._call() as (lib, handle):
                waiting = lib.bdn_candidates(handle)
            is_last = came == RETURNS and since >= STEPS_AFTER
            word = agree(worker, MEET if waiting > 0 else END if is_last else GO_ON)
            if word == END:
                break
            if word == MEET:
                newcomers = boundary(worker)
                came += len(newcomers)
                since = 0
                print("newcomers", *newcomers, flush=True)
        print("present", *worker.present(), flush=True)
    print("left", flush=True)


if __name__ == "__main__":
    main()
    sys.exit(0)
