"""What the tests of the command share: the binary, stand-in daemons, and waiting for processes."""

import os
import pathlib
import select
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("BDN_BIN_DIR", ROOT / "build" / "release" / "bin"))
LIMIT = 30  # seconds after which a wait counts as hanging

# Writes the port file as the real one does, then waits for its end.
SCHEDULER = """#!/bin/sh
for arg in "$@"; do case $arg in --port-file=*) file=${arg#*=};; esac; done
echo 4242 > "$file.new"; mv "$file.new" "$file"
exec sleep 1000
"""
SERVER = """#!/bin/sh
exec sleep 1000
"""


class Command:
    """The command in a folder of its own, with whatever daemons lie beside it."""

    def __init__(self, folder: pathlib.Path, temporary: pathlib.Path):
        self.path = folder / "bandoneon"
        self.temporary = temporary
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("BANDONEON_")}
        self.environment["TMPDIR"] = str(temporary)
        self.started = []

    def start(self, *args, **options) -> subprocess.Popen:
        process = subprocess.Popen(
            [self.path, *map(str, args)], env=self.environment, stdin=options.pop("stdin", subprocess.DEVNULL), text=True,
            stdout=options.pop("stdout", subprocess.PIPE), stderr=options.pop("stderr", subprocess.PIPE))
        self.started.append(process)
        return process

    def run(self, *args, input=None) -> subprocess.CompletedProcess:
        process = self.start(*args, stdin=subprocess.DEVNULL if input is None else subprocess.PIPE)
        out, error = process.communicate(input, timeout=LIMIT)
        return subprocess.CompletedProcess(args, process.returncode, out, error)

    def left_behind(self) -> list:
        return sorted(self.temporary.iterdir())


def write_program(path: pathlib.Path, text: str):
    path.write_text(text)
    path.chmod(0o755)


def read_until(stream, count: int, text: str) -> list[str]:
    """Lines of `stream` until `count` of them held `text`."""
    lines = []
    while sum(text in line for line in lines) < count:
        line = stream.readline()
        assert line, f"ended before {text!r} came {count} times: {lines}"
        lines.append(line.rstrip("\n"))
    return lines


class Watched:
    """A process that is not our child: knows, by a pidfd, whether it has ended."""

    def __init__(self, pid: int):
        self.pid = pid
        self.fd = os.pidfd_open(pid)

    def ends(self) -> bool:
        ended = bool(select.select([self.fd], [], [], LIMIT)[0])
        os.close(self.fd)
        return ended


def children_of(pid: int) -> list[int]:
    found = []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue  # it has just ended
        if int(text.rpartition(")")[2].split()[1]) == pid:
            found.append(int(stat.parent.name))
    return found


def descendants_of(pid: int) -> list[int]:
    found = children_of(pid)
    for child in list(found):
        found += descendants_of(child)
    return found

