"""`bandoneon run` whose daemons a test kills amid the steps of its workers."""

import os
import pathlib
import re
import sys

import pytest
from process_helpers import BIN, Process, children_of

PROGRAM = pathlib.Path(__file__).with_name("restarted_scheduler_program.py")
WORKERS = 2


class Run:
    """`bandoneon run` with workers that stop at steps 15 and 30 until they are told to go on."""

    def __init__(self, folder, servers, *options, program=PROGRAM, workers=WORKERS):
        folder.mkdir()
        self.folder = folder
        env = {k: v for k, v in os.environ.items() if not k.startswith("BANDONEON_")}
        workers = ["-n", str(workers)] if "--hosts" not in options else []
        command = [BIN / "bandoneon", "run", *workers, "-s", str(servers), "--seed", "7", "--set", "min-compress-bytes=1", *options,
                   "--", sys.executable, program]
        self.process = Process("run", [str(part) for part in command], env | {"TEST_DIR": str(folder), "TMPDIR": str(folder)})

    def go(self, step):
        (self.folder / f"go-{step}").touch()

    def daemon(self, *words):
        """The pid of the process that runs with these words in its command line."""
        (guardian,) = children_of(self.process.child.pid)
        (pid,) = [pid for pid in children_of(guardian)
                  if all(word in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode() for word in words)]
        return pid

    def worker(self, rank):
        """The pid of this worker."""
        (guardian,) = children_of(self.process.child.pid)
        (pid,) = [pid for pid in children_of(guardian)
                  if f"BANDONEON_RANK={rank}" in pathlib.Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")]
        return pid

    def end(self):
        """The exit code and the output."""
        code = self.process.child.wait(120)
        return code, self.process.output()

    def close(self):
        self.process.close()


@pytest.fixture
def start(tmp_path):
    """Starts a Run with these options, which is ended with the test."""
    runs = []

    def make(*options, servers=2):
        runs.append(Run(tmp_path / f"run-{len(runs)}", servers, *options))
        return runs[-1]

    yield make
    for run in runs:
        run.close()


def weights_of(output):
    """The checksums, which are those of all workers."""
    found = re.findall(r"^\[worker \d+\] weights (.*)$", output, re.MULTILINE)
    assert len(found) == WORKERS and len(set(found)) == 1, output[-3000:]
    return found[0]


def undisturbed(start, *options, servers=2):
    """The weights of a job that loses nothing."""
    run = start(*options, servers=servers)
    run.go(15)
    run.go(30)
    code, output = run.end()
    assert code == 0 and "was killed" not in output and "started again" not in output, output[-3000:]
    return weights_of(output)
