"""For every Python test."""

import os
import pathlib
import signal

# A test run started in the background inherits an ignored SIGINT; tests of Ctrl-C, and the processes
# that they start, need it as it is in a terminal.
signal.signal(signal.SIGINT, signal.default_int_handler)

# What every Python that a test starts does first: tests/support/start/sitecustomize.py.
_start = str(pathlib.Path(__file__).parent / "support" / "start")
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (_start, os.environ.get("PYTHONPATH"))))


def pytest_configure(config):
    config.addinivalue_line("markers", "long: takes hours, and is left out but with -m long")


def pytest_collection_modifyitems(config, items):
    if "long" in config.option.markexpr:
        return
    for item in [item for item in items if item.get_closest_marker("long")]:
        items.remove(item)
