"""A worker of restarted_worker_test.py: takes nobody in, and leaves once the file "leave" is there. After "exit" it ends instead."""

import ctypes
import os
import pathlib
import sys

import bandoneon
from bandoneon.calls import Declaration
from returning_worker_program import boundary

FOLDER = pathlib.Path(os.environ["TEST_DIR"])


def main():
    with bandoneon.init() as worker:
        (tensor,) = worker.declare([Declaration("w", 10)])
        with worker._call() as (lib, handle):
            is_candidate = lib.bdn_is_candidate(handle) != 0
        if is_candidate:
            print("candidate", worker.rank, flush=True)
            boundary(worker)
            return
        data = (ctypes.c_float * 10)()
        for step in range(1_000_000_000):
            # One of them sees it first, and all have the same mean.
            data[0] = (FOLDER / "leave").exists()
            worker.wait(worker.push(tensor, ctypes.addressof(data), keep=data))
            if step == 20:
                print("running", flush=True)
            if data[0] > 0:
                break
            if (FOLDER / f"exit-{worker.rank}").exists():
                sys.exit(75)
            if (FOLDER / f"_exit-{worker.rank}").exists():
                os._exit(75)
    print("left", flush=True)


if __name__ == "__main__":
    main()
