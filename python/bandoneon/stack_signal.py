"""The Python stack of this process, for `bandoneon trace hang` to ask for while a job hangs (docs/tracing.md)."""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import signal
import threading

_lock = threading.Lock()
_offers = False


def offer() -> None:
    """Has a real-time signal write the main thread's stack into memory of this process, which its user can read.

    Python's faulthandler writes it within the signal's handler, so that a thread which never gives the interpreter
    back does not hold it up. It leaves other threads out: what they run changes while it would be read, and that has
    crashed processes. The memory is a file without a directory, `bandoneon-stack-NUMBER` among the process's
    descriptors, and that is how an asker learns the signal's number. Nothing is done where every real-time signal has a
    use, or the system has no such memory. Thread-safe; calls after the first one do nothing.
    """
    global _offers
    with _lock:
        if _offers:
            return
        _offers = True
        number = _free_signal()
        if number is None:
            return
        with contextlib.suppress(OSError, RuntimeError, AttributeError):
            file = os.memfd_create(f"bandoneon-stack-{number}")
            # An asker empties the memory, and each answer begins where it ends.
            fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) | os.O_APPEND)
            faulthandler.register(number, file=file, all_threads=False, chain=False)


def _free_signal() -> int | None:
    """Returns the highest real-time signal that this process neither handles, ignores nor blocks; libraries begin below."""
    used = 0
    with contextlib.suppress(OSError), open("/proc/self/status", encoding="ascii", errors="replace") as status:
        for line in status:
            name, _, value = line.partition(":")
            if name in {"SigBlk", "SigIgn", "SigCgt"}:
                used |= int(value, 16)
        for number in range(signal.SIGRTMAX, signal.SIGRTMIN, -1):
            if not used >> (number - 1) & 1:
                return int(number)
    return None
