"""Somebody sets the clock of the machine while a job runs: no wait, lease or exchange may end by that.

A job of real processes, each with clock_step.c preloaded; the clock that they see jumps while one worker
waits for the other. Needs the release build; no torch.
"""

import os
import pathlib
import struct
import subprocess
import sys
import threading

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "release"
BIN = pathlib.Path(os.environ.get("BANDONEON_BIN", BUILD / "bin"))
CLOCK_STEP = pathlib.Path(os.environ.get("BANDONEON_CLOCK_STEP", BUILD / "lib" / "libclock_step.so"))
LIMIT = 60  # seconds for the whole job
LEASE = 1  # seconds
HOUR = 3600

# Rank 0 pushes and waits; rank 1 lets it wait until the clock has jumped and a lease has passed since.
WORKER = """
import ctypes, pathlib, sys, time
import bandoneon
from bandoneon.calls import Declaration
folder, jumps, lease = pathlib.Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
with bandoneon.init() as worker:
    n = 1000
    data = (ctypes.c_float * n)()
    (tensor,) = worker.declare([Declaration("w", n)])
    def step():
        worker.wait(worker.push(tensor, ctypes.addressof(data), keep=data))
    for jump in range(jumps):
        step()
        if worker.rank == 1:
            print(f"ready for jump {jump}", flush=True)
            while not (folder / f"jumped {jump}").exists():
                time.sleep(0.01)
            time.sleep(2 * lease)
        step()
    worker.barrier("end")
print("ended well", flush=True)
"""


@pytest.fixture
def clock(tmp_path):
    """What the job's clock is ahead by; call it with seconds to set it."""
    file = tmp_path / "offset"
    file.write_bytes(bytes(8))

    def set_ahead(seconds):
        with open(file, "r+b") as mapped:  # in place: the processes have it mapped
            mapped.write(struct.pack("=q", seconds * 10**9))

    set_ahead.file = file
    return set_ahead


def test_a_job_goes_on_when_its_clock_jumps(clock, tmp_path):
    jumps = [2 * HOUR, -2 * HOUR]
    env = {k: v for k, v in os.environ.items() if not k.startswith("BANDONEON_")}
    env.update(LD_PRELOAD=str(CLOCK_STEP), CLOCK_STEP_FILE=str(clock.file))
    job = subprocess.Popen(
        [BIN / "bandoneon", "run", "-n", "2", "-s", "1", "--linger", "0s",
         "--set", "heartbeat-interval=200ms", "--set", f"lease-timeout={LEASE}s", "--",
         sys.executable, "-c", WORKER, tmp_path, str(len(jumps)), str(LEASE)],
        env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    deadline = threading.Timer(LIMIT, job.terminate)
    deadline.start()
    seen = []
    try:
        for line in job.stdout:
            seen.append(line)
            for jump, seconds in enumerate(jumps):
                if f"ready for jump {jump}" in line:
                    clock(seconds)
                    (tmp_path / f"jumped {jump}").touch()
    finally:
        deadline.cancel()
        code = job.wait()
        job.stdout.close()
    output = "".join(seen)
    assert code == 0, output
    assert output.count("ended well") == 2, output
