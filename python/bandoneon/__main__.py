"""The command `bandoneon` and the daemons: by their names after an installation, and as `python -m bandoneon`."""

from __future__ import annotations

import os
import pathlib
import sys
from typing import NoReturn


def program_paths(name: str = "bandoneon") -> list[pathlib.Path]:
    """Where the program may be, most wanted first. All of them are in one folder."""
    here = pathlib.Path(__file__).resolve().parent
    return [here / "bin" / name, here.parent.parent / "build" / "release" / "bin" / name]


def become(name: str) -> NoReturn:
    """Runs the program in place of this process, with its arguments."""
    paths = program_paths(name)
    for path in paths:
        if path.exists():
            os.execv(path, [str(path), *sys.argv[1:]])
    sys.exit(f"{name}: the program is at none of " + ", ".join(map(str, paths)) + "; build it (scripts/build)")


def main() -> NoReturn:
    become("bandoneon")


def scheduler() -> NoReturn:
    become("bandoneon-scheduler")


def server() -> NoReturn:
    become("bandoneon-server")


def worker() -> NoReturn:
    become("bandoneon-worker")


if __name__ == "__main__":
    main()
