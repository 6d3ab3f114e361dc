"""A job of `bandoneon run` whose processes a benchmark kills."""

import json
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]


class DrivenJob:
    """A job of this program, whose workers write each step's end into a folder: [when, step, rank, workers]."""

    def __init__(self, program, *arguments, options):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="bandoneon-bench-"))
        self.log = open(self.folder / "log", "w")
        command = [ROOT / "build" / "release" / "bin" / "bandoneon", "run", *options,
                   "--", sys.executable, program, *arguments, "--in", self.folder]
        self.child = subprocess.Popen([str(word) for word in command], stdout=self.log, stderr=subprocess.STDOUT)

    def steps(self):
        """[(when it ended, step, rank, workers)], in the order of time."""
        lines = [json.loads(line) for path in self.folder.glob("steps.*") for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        return sorted(map(tuple, lines))

    def await_step(self, condition, limit=120):
        """Waits until condition(steps) holds, and returns the steps."""
        end = time.monotonic() + limit
        while True:
            steps = self.steps()
            if condition(steps):
                return steps
            if self.child.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"the job has not got on:\n{(self.folder / 'log').read_text()[-3000:]}")
            time.sleep(0.05)

    def await_whole(self, since):
        """Waits for 30 steps of all three that have ended after that time, behind one of fewer."""

        def is_whole(steps):
            later = [step for step in steps if step[0] > since]
            fewer = [when for when, _, _, count in later if count < 3]
            return bool(fewer) and len([1 for when, _, _, count in later if count == 3 and when > max(fewer)]) > 90

        self.await_step(is_whole)

    def pid(self, kind):
        """The process "worker 1", "server 0" or "scheduler"."""
        name, _, number = kind.partition(" ")
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                environment = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            is_kind = {
                "worker": str(self.folder).encode() in words and f"BANDONEON_RANK={number}".encode() in environment and b"run" not in words,
                "server": words[0].endswith(b"bandoneon-server") and f"--rank={number}".encode() in words,
                "scheduler": words[0].endswith(b"bandoneon-scheduler"),
            }
            if is_kind[name] and self._is_descendant(int(entry.name)):
                return int(entry.name)
        raise SystemExit(f"there is no {kind}")

    def _is_descendant(self, pid):
        while pid > 1:
            if pid == self.child.pid:
                return True
            try:
                pid = int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                return False
        return False

    def end(self):
        """Asks the workers to end at the same step, and waits until they have."""
        (self.folder / "end").touch()
        self.await_end()

    def await_end(self):
        if self.child.wait(300) != 0:
            raise SystemExit((self.folder / "log").read_text()[-3000:])
        self.log.close()


def gaps_of(steps):
    """[(when, seconds from the end of a step to that of the next)], each by the first worker that ended it."""
    first = {}
    for when, step, _, _ in steps:
        first.setdefault(step, when)
    ends = sorted(first.values())
    return [(later, later - earlier) for earlier, later in zip(ends, ends[1:])]
