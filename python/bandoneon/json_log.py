"""What this package logs, as lines of JSON where setting log-format is json: logger "bandoneon" of the standard logging module."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

from . import _native, errors

LOGGER = logging.getLogger("bandoneon")


class JsonFormatter(logging.Formatter):
    """Records as lines that fit the library's and the daemons': an object with time, level, role and message, and with
    job, node, rank, epoch and step where they are known. For a program's own handlers, of whatever loggers."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, with a traceback, if there is one, in its message."""
        message = super().format(record)
        level = _level(record.levelno)
        try:
            lib = _native.library()
            line = _native.read_text(
                lambda buffer, capacity: lib.bdn_json_log_line(
                    level.encode(), message.encode(errors="replace"), record.created, buffer, capacity
                )
            )
        except errors.BandoneonError:  # In a forked child, which is not in the job.
            line = ""
        return line or _without_place(record.created, level, message)


class _LastResort(logging.StreamHandler):  # type: ignore[type-arg]  # Python 3.9 takes no argument here.
    """To standard error, whatever that is by then, as long as the program has no handlers of its own."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.setFormatter(JsonFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            self.stream = sys.stderr
            super().emit(record)


def log_as_json() -> None:
    """Where log-format is json: lines of this package, and warnings of Python's, as JSON from now on, unless the program says
    itself where they go. A second call changes nothing."""
    if not _native.library().bdn_json_log_line(b"info", b"", 0.0, None, 0):
        return
    logging.captureWarnings(True)
    for logger in (LOGGER, logging.getLogger("py.warnings")):
        if not logger.handlers:
            logger.addHandler(_LastResort())


def _level(number: int) -> str:
    for least, name in ((logging.ERROR, "error"), (logging.WARNING, "warning"), (logging.INFO, "info")):
        if number >= least:
            return name
    return "debug"


def _without_place(seconds: float, level: str, message: str) -> str:
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds % 1 * 1000):03d}Z"
    line: dict[str, Any] = {"time": at, "level": level, "role": "worker", "message": message}
    return json.dumps(line, ensure_ascii=False)
