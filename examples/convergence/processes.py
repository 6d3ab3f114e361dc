"""The same run over real processes: a scheduler, a server and four workers that speak TCP.

python -m convergence.processes FILE is one of the workers, under `bandoneon run`; FILE is a record
whose run it repeats.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import torch

import bandoneon.torch as bdn

from . import methods, training

EXAMPLES = pathlib.Path(__file__).resolve().parent.parent


def repeat(record, bandoneon, data=None):
    """What each rank of the record's run has over processes: its curve, and its hash of the weights."""
    with tempfile.TemporaryDirectory() as directory:
        file = pathlib.Path(directory) / "record.json"
        file.write_text(json.dumps({**record, "data": data}))
        command = [bandoneon, "run", "-n", str(training.WORKERS), "-s", str(training.SERVERS)]
        command += ["--seed", str(record["seed"]), "--set", "log-level=warning", "--"]
        command += [sys.executable, "-m", "convergence.processes", str(file)]
        subprocess.run(command, env=_environment(), check=True)
        return [json.loads(path.read_text()) for path in sorted(file.parent.glob("rank-*.json"))]


def difference(ranks, record):
    """What of `ranks` is not the record's bit for bit, as text; None if all is."""
    hashes = sorted({rank["hash"] for rank in ranks})
    if hashes != record["hashes"]:
        return f"weights are {hashes}, in one process they were {record['hashes']}"
    again = training.mean_curve([rank["curve"] for rank in ranks])
    if [point[3] for point in again] != [point[3] for point in record["curve"]]:
        return "the weights at the end are equal, the losses on the way are not"
    return None


def _environment():
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("BANDONEON_") or name == "BANDONEON_LIBRARY"
    }
    path = os.pathsep.join(filter(None, [str(EXAMPLES), kept.get("PYTHONPATH")]))
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}


def work(file):
    record = json.loads(file.read_text())
    worker = bdn.init()
    task = training.Task(record["data"])
    scale = training.Scale(**record["scale"])
    seed = record["seed"]
    run = training.Run(scale.model(seed), worker, scale, record["lr"], seed, record["steps"])
    curve = []
    digest = training.train_rank(task, methods.named(record["method"]), run, curve)
    result = json.dumps({"curve": curve, "hash": digest})
    file.with_name(f"rank-{worker.rank}.json").write_text(result)
    bdn.shutdown()


if __name__ == "__main__":
    torch.set_num_threads(1)
    work(pathlib.Path(sys.argv[1]))
