"""A worker of lost_scheduler_test.py: declares, exchanges, meets and leaves, and prints what each step gave. No torch.

The test kills schedulers while this runs; nothing here knows of that. TEST_PAUSE names the moment at which it waits for a line on
its standard input.
"""

import array
import ctypes
import os
import sys
import time
import zlib

import bandoneon
from bandoneon.calls import Declaration

CODEC = os.environ.get("TEST_CODEC", "none")
PAUSE = os.environ.get("TEST_PAUSE", "")
STEPS = int(os.environ.get("TEST_STEPS", "60"))
SIZES = (1000, 70_000, 300_000)


def reach(moment):
    """Says that the program is here, and waits for the test where that wants it."""
    print("at", moment, flush=True)
    if moment == PAUSE:
        sys.stdin.readline()


def main():
    with bandoneon.init() as worker:
        arrays = [(ctypes.c_float * n)() for n in SIZES]
        reach("declare")
        tensors = worker.declare([Declaration(f"w{i}", n, push=CODEC, pull=CODEC) for i, n in enumerate(SIZES)])
        for step in range(1, STEPS + 1):
            if step == 20:
                reach("steps")
            if step % 10 == 0:
                if step == 30:
                    reach("barrier")
                worker.barrier(f"b{step % 20}")
            if step == 50:
                reach("declare more")
                tensors.append(worker.declare([Declaration("more", 5000, push=CODEC, pull=CODEC)])[0])
                arrays.append((ctypes.c_float * 5000)())
            value = float((worker.rank + 1) ** 2 * (step % 16 + 1))
            for values in arrays:
                ctypes.memmove(values, array.array("f", [value]).tobytes() * len(values), ctypes.sizeof(values))
            tickets = [worker.push(tensor, ctypes.addressof(values), keep=values) for tensor, values in zip(tensors, arrays)]
            for ticket in tickets:
                worker.wait(ticket)
            print("step", step, *(f"{values[0]:g}/{zlib.crc32(values):08x}" for values in arrays), flush=True)
            time.sleep(0.01)
        print("present", *worker.present(), flush=True)
        reach("leave")
    print("left", flush=True)


if __name__ == "__main__":
    main()
