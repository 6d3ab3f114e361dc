"""A worker of lost_worker_test.py: exchanges three tensors until the job has gone on without somebody for a while.

It prints a line a step with each tensor's mean and a checksum of all its bytes: what a step's pushes must give is known, and the
lines of all workers must be equal. No torch.
"""

import ctypes
import os
import sys
import time
import zlib

import bandoneon
from bandoneon.calls import Declaration

CODEC = os.environ.get("TEST_CODEC", "none")
STUCK_RANK = int(os.environ.get("TEST_STUCK_RANK", "-1"))  # This rank stops pushing at step 20, and lives.
SIZES = (1000, 70_000, 300_000)
STEPS_AFTER = 25  # steps of fewer workers before the end


def tell_last(worker, last):
    """Whether the last worker says that this step is the last. None does where it is lost just now."""
    root = worker.present()[-1]
    try:
        worker.broadcast("last", ctypes.addressof(last), 8, root)
    except bandoneon.FailedPrecondition:
        return False
    return last.value != 0


def main():
    with bandoneon.init() as worker:
        arrays = [(ctypes.c_float * n)() for n in SIZES]
        tensors = worker.declare([Declaration(f"w{i}", n, push=CODEC, pull=CODEC) for i, n in enumerate(SIZES)])
        fewer = 0
        step = 0
        while fewer < STEPS_AFTER:
            step += 1
            if step == 20:
                print("running", flush=True)
                while worker.rank == STUCK_RANK:
                    time.sleep(0.1)
                    worker.report("waiting", 1.0)  # It says nothing of the job before that has an error for it.
            for array in arrays:
                value = float((worker.rank + 1) ** 2 * (step % 16 + 1))
                ctypes.memmove(array, (ctypes.c_float * len(array))(*[value] * len(array)), ctypes.sizeof(array))
            tickets = [worker.push(tensor, ctypes.addressof(array), keep=array) for tensor, array in zip(tensors, arrays)]
            for ticket in tickets:
                worker.wait(ticket)
            sums = [zlib.crc32(bytes(array)) for array in arrays]
            print("step", step, *(f"{array[0]:g}/{sum_:08x}" for array, sum_ in zip(arrays, sums)), flush=True)
            fewer += worker.count_present() < worker.size
            # All are to end with the same step, so one of them says when.
            last = ctypes.c_uint64(step if fewer >= STEPS_AFTER else 0)
            is_last = step % 10 == 0 and tell_last(worker, last)
            fewer = STEPS_AFTER if is_last else min(fewer, STEPS_AFTER - 1)
        present = worker.present()
        print("present", *present, "of", worker.size, "first", worker.first_rank(), flush=True)
        word = ctypes.create_string_buffer(b"%d" % worker.rank, 8)
        worker.broadcast("word", ctypes.addressof(word), 8, present[-1])
        assert word.value == b"%d" % present[-1], word.value
        lost = next(rank for rank in range(worker.size) if rank not in present)
        try:
            worker.broadcast("word", ctypes.addressof(word), 8, lost)
        except bandoneon.FailedPrecondition as error:
            print("refused:", error, flush=True)
    print("left", flush=True)


if __name__ == "__main__":
    main()
    sys.exit(0)
