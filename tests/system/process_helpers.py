"""Children of a test: daemons and programs whose output is read as it comes."""

import contextlib
import os
import pathlib
import random
import socket
import subprocess
import threading

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("BANDONEON_BIN", ROOT / "build" / "release" / "bin"))


def free_port(address="127.0.0.1"):
    """A port that nobody has, below those of which the kernel gives one to each connection: it might give it to another
    test's, before the process that is told to listen there does."""
    first_given = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.SystemRandom().randrange(10_000, first_given)
        with socket.socket() as taken, contextlib.suppress(OSError):
            taken.bind((address, port))
            return port


class Process:
    """A child whose output is read as it comes."""

    def __init__(self, name, command, env, **options):
        self.name = name
        self.lines = []
        self._seen = threading.Condition()
        self.child = subprocess.Popen(command, env=env, stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, text=True, **options)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.child.stdout:
            with self._seen:
                self.lines.append(line)
                self._seen.notify_all()
        with self._seen:
            self._seen.notify_all()

    def wait_for(self, text, timeout=60, times=1):
        with self._seen:
            found = self._seen.wait_for(
                lambda: "".join(self.lines).count(text) >= times or self.child.poll() is not None, timeout)
            found = found and "".join(self.lines).count(text) >= times
        assert found, f"{self.name} never said {text!r}:\n{''.join(self.lines)}"

    def output(self):
        self._reader.join()
        return "".join(self.lines)

    def close(self):
        """Ends it, if it still runs, and reads the rest of its output."""
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait()
        self.output()
        self.child.stdout.close()


def children_of(pid):
    """The pids of a process's children."""
    found = []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(stat.parent.name))
        except OSError:
            continue  # It has just ended.
    return found
