"""Long calls of C that Ctrl-C must get through."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from typing import Any, Callable, Iterator

# Waits come up for air this often, so that Ctrl-C is answered.
SLICE_SECONDS = 0.2
# Waits say what they wait for this often.
REPORT_SECONDS = 30.0


@contextlib.contextmanager
def lent(
    address: int, num_bytes: int, is_read: bool = False, is_written: bool = False
) -> Iterator[ctypes.Array[ctypes.c_char]]:
    """Memory to call C with in place of the caller's: after Ctrl-C the call goes on, and the caller's may
    be somebody else's by then."""
    copy = (ctypes.c_char * num_bytes)()
    if is_read:
        ctypes.memmove(copy, address, num_bytes)
    yield copy
    if is_written:
        ctypes.memmove(address, copy, num_bytes)


def run_interruptibly(function: Callable[[], Any], undo: Callable[[], Any] = lambda: None) -> None:
    """Runs it; on the main thread in a helper thread, because C does not hear of Ctrl-C.

    After Ctrl-C the helper goes on alone, and undo() follows what it does. Undoing twice must be harmless.
    """
    if threading.current_thread() is not threading.main_thread():
        function()
        return
    outcome: list[BaseException] = []
    done, gone = threading.Event(), threading.Event()

    def run() -> None:
        try:
            function()
        except BaseException as error:
            outcome.append(error)
        finally:
            done.set()
            if gone.is_set():
                undo()

    try:
        try:
            threading.Thread(target=run, name="bandoneon-call", daemon=True).start()
        except RuntimeError:  # The interpreter is shutting down.
            run()
        while not done.wait(SLICE_SECONDS):
            pass  # A signal that comes just before a wait does not end it.
    except BaseException:
        gone.set()  # Each side tells first and looks then, so that one of them undoes.
        if done.is_set():
            undo()
        raise
    if outcome:
        raise outcome[0]
