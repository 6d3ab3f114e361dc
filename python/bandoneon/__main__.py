"""The command `bandoneon`: by its name after an installation, and as `python -m bandoneon`."""

import os
import pathlib
import sys


def command_paths():
    """Where the command may be, most wanted first. The daemons that it starts are beside it."""
    here = pathlib.Path(__file__).resolve().parent
    return [here / "bin" / "bandoneon", here.parent.parent / "build" / "release" / "bin" / "bandoneon"]


def main():
    paths = command_paths()
    for path in paths:
        if path.exists():
            os.execv(path, [str(path), *sys.argv[1:]])
    sys.exit("bandoneon: the command is at none of " + ", ".join(map(str, paths)) + "; build it (scripts/build)")


if __name__ == "__main__":
    main()
