"""A worker of restarted_scheduler_test.py: forty steps of gradient descent, whose last line is a checksum of the weights.

Their scheduler is killed twice. At step 15 the workers go on with exchanges that change no weights until the file TEST_DIR/go-15 is
there; at step 30 all but rank 0, which waits for go-30, are in a barrier meanwhile. No torch.
"""

import ctypes
import os
import pathlib
import sys
import time
import zlib

import bandoneon
from bandoneon.calls import Declaration

STEPS = 40
CODEC = "ef(onebit)"  # what it has left out makes each step depend on those before
SIZES = (1000, 20_000)
DIRECTORY = pathlib.Path(os.environ["TEST_DIR"])


def exchange(worker, tensors, arrays):
    tickets = [worker.push(tensor, ctypes.addressof(array), keep=array) for tensor, array in zip(tensors, arrays)]
    for ticket in tickets:
        worker.wait(ticket)


def gradients(worker, step, weights):
    """Of this rank, near weights of its own: what is exchanged depends on the step, and on the weights."""
    return [(ctypes.c_float * len(w))(*(v - (i * 7 + step) % 11 - worker.rank for i, v in enumerate(w))) for w in weights]


def is_told(worker, name, idle, idle_array, rounds):
    """Whether rank 0 has seen the file. Exchanges something meanwhile, so that no step stands still for a scheduler."""
    idle_array[:] = [float(rounds)] * len(idle_array)
    exchange(worker, [idle], [idle_array])
    assert idle_array[0] == rounds, idle_array[0]
    told = ctypes.c_uint64((DIRECTORY / name).exists())
    worker.broadcast("told", ctypes.addressof(told), 8, 0)
    return told.value != 0


def main():
    with bandoneon.init() as worker:
        weights = [(ctypes.c_float * n)() for n in SIZES]
        tensors = worker.declare([Declaration(f"w{i}", n, push=CODEC, pull=CODEC) for i, n in enumerate(SIZES)])
        (idle,) = worker.declare([Declaration("idle", 100)])
        idle_array = (ctypes.c_float * 100)()
        for step in range(STEPS):
            if step == 15:
                print("at 15", flush=True)
                rounds = 1
                while not is_told(worker, "go-15", idle, idle_array, rounds):
                    rounds += 1
                print("exchanged", rounds, "times meanwhile", flush=True)
                # A scheduler that went on with the job knows the tensors of its predecessor, and takes more.
                assert worker.declare([Declaration("w0", SIZES[0], push=CODEC, pull=CODEC)]) == tensors[:1]
                worker.declare([Declaration("further", 10)])
            if step == 30:
                print("at 30", flush=True)
                while worker.rank == 0 and not (DIRECTORY / "go-30").exists():
                    time.sleep(0.01)
            if step % 10 == 0:
                worker.barrier(f"step {step}")
            means = gradients(worker, step, weights)
            exchange(worker, tensors, means)
            for weight, mean in zip(weights, means):
                weight[:] = [w - 0.25 * g for w, g in zip(weight, mean)]
        print("weights", *(f"{zlib.crc32(bytes(weight)):08x}" for weight in weights), flush=True)


if __name__ == "__main__":
    main()
    sys.exit(0)
