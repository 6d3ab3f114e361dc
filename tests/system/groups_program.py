"""A worker of groups_test.py: forty steps of gradient descent, of a tensor of each of two groups and of one that all exchange.

At step 15 it goes on with exchanges that change no weights until the file TEST_DIR/go-15 is there. Its last line has a checksum of
the weights of its group, and one of those of all. No torch.
"""

import ctypes
import sys
import zlib

import bandoneon
from bandoneon.calls import Declaration
from bandoneon.worker_group import WorkerGroup
from restarted_scheduler_program import CODEC, STEPS, exchange, gradients, is_told

SIZES = (30_000, 1000)  # of a group's tensor, and of that of all


def main():
    with bandoneon.init() as worker:
        group = WorkerGroup(worker, [worker.rank % 2, worker.rank % 2 + 2])
        weights = [(ctypes.c_float * n)() for n in SIZES]
        spec = dict(push=CODEC, pull=CODEC)
        tensors = group.declare([Declaration("w", SIZES[0], **spec)]) + worker.declare([Declaration("w", SIZES[1], **spec)])
        (idle,) = worker.declare([Declaration("idle", 100)])
        idle_array = (ctypes.c_float * 100)()
        for step in range(STEPS):
            if step == 15:
                print("at 15", flush=True)
                rounds = 1
                while not is_told(worker, "go-15", idle, idle_array, rounds):
                    rounds += 1
            if step % 10 == 0:
                assert worker.rank in group.present()
            means = gradients(worker, step, weights)
            exchange(worker, tensors, means)
            for weight, mean in zip(weights, means):
                weight[:] = [w - 0.25 * g for w, g in zip(weight, mean)]
        print(f"weights of {worker.rank}:", *(f"{zlib.crc32(bytes(weight)):08x}" for weight in weights), flush=True)


if __name__ == "__main__":
    main()
    sys.exit(0)
