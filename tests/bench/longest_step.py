"""How long the others stand when a process of a job is lost: the longest step beside the median one.

    build/venv/bin/python tests/bench/longest_step.py                       # 100 million parameters, every case
    build/venv/bin/python tests/bench/longest_step.py --parameters 1e6 server scheduler

Each case trains a model with DistributedOptimizer and ef(onebit) over two servers, and kills, or stops for eight seconds, one
process at step 15 of 40. A step here ends with the first worker that ends it. Leases have their default of two seconds under
`bandoneon run`.
"""

import argparse
import json
import os
import pathlib
import signal
import statistics
import threading
import time

from driven_job import DrivenJob, gaps_of

CASES = {
    # name: (the process, is it stopped and not killed, workers, options of bandoneon run, aim as text)
    "server": ("server 1", False, 2, ["--restarts", 1], "the lease + 3 s"),
    "stopped-server": ("server 1", True, 2, ["--restarts", 1], "8 s"),
    "scheduler": ("scheduler", False, 2, ["--restarts", 1], "1.2 times the median"),
    "worker": ("worker 2", False, 3, ["--set", "min-workers=1"], "the lease + one step"),
}
STEPS, AT = 40, 15


def drive(case, parameters):
    process, is_stopped, workers, run_options, aim = CASES[case]
    job = DrivenJob(__file__, "--parameters", parameters, options=["-n", workers, "-s", 2, "--seed", 1, *run_options])
    job.await_step(lambda steps: len([1 for _, step, _, _ in steps if step >= AT]) == workers, 600)
    # A descriptor, as the number may be another process's when eight seconds are over.
    descriptor = os.pidfd_open(job.pid(process))
    signal.pidfd_send_signal(descriptor, signal.SIGSTOP if is_stopped else signal.SIGKILL)
    if is_stopped:
        threading.Timer(8, signal.pidfd_send_signal, (descriptor, signal.SIGCONT)).start()
    job.await_end()
    gaps = [seconds for _, seconds in gaps_of(job.steps())][2:]
    done = max(step for _, step, _, _ in job.steps())
    assert done == STEPS - 1, f"the job ended after step {done}"
    median = statistics.median(gaps)
    print(f"{case}: a step takes {median * 1e3:.0f} ms (median of {len(gaps)}, {min(gaps) * 1e3:.0f} to {sorted(gaps)[-2] * 1e3:.0f}), "
          f"the longest {max(gaps):.2f} s, {max(gaps) / median:.2f} times as long; aim: {aim}", flush=True)


def train(parameters, folder):
    import torch

    import bandoneon.torch as bdn

    worker = bdn.init()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    width = min(4096, int((parameters / 2) ** 0.5))
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(max(1, round(parameters / width / (width + 1))))))
    optimizer = bdn.DistributedOptimizer(torch.optim.SGD(model.parameters(), 1e-3), model, push="ef(onebit)", pull="ef(onebit)")
    with open(folder / f"steps.{worker.rank}", "a", buffering=1) as file:
        for step in range(STEPS):
            time.sleep(0.1)  # of a small model's steps too many end before one is noticed
            optimizer.zero_grad()
            model(torch.ones(1, width)).square().mean().backward()
            optimizer.step()
            file.write(json.dumps([time.monotonic(), step, worker.rank, worker.size]) + "\n")
    bdn.shutdown()


parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0], formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; default: all")
parser.add_argument("--parameters", type=float, default=100e6)
parser.add_argument("--in", dest="folder", type=pathlib.Path, help=argparse.SUPPRESS)  # of the workers that this program starts
options = parser.parse_args()
if options.folder:
    train(options.parameters, options.folder)
else:
    for name in options.cases or CASES:
        if name not in CASES:
            parser.error(f"{name} is no case; there are {', '.join(CASES)}")
        drive(name, options.parameters)
