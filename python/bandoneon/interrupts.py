"""Long calls of C that Ctrl-C must get through."""

import contextlib
import ctypes
import threading

# Waits come up for air this often, so that Ctrl-C is answered.
SLICE_SECONDS = 0.2
# Waits say what they wait for this often.
REPORT_SECONDS = 30.0


@contextlib.contextmanager
def lent(address, num_bytes, is_read=False, is_written=False):
    """Memory to call C with in place of the caller's: after Ctrl-C the call goes on, and the caller's may
    be somebody else's by then."""
    copy = (ctypes.c_char * num_bytes)()
    if is_read:
        ctypes.memmove(copy, address, num_bytes)
    yield copy
    if is_written:
        ctypes.memmove(address, copy, num_bytes)


def run_interruptibly(function, undo=lambda: None):
    """Runs it; on the main thread in a helper thread, because C does not hear of Ctrl-C.

    After Ctrl-C the helper goes on alone, and undo() follows what it does. Undoing twice must be harmless.
    """
    if threading.current_thread() is not threading.main_thread():
        function()
        return
    outcome = []
    done, gone = threading.Event(), threading.Event()

    def run():
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
