"""The thread of a worker that waits for exchanges to end."""

import logging
import threading
from ctypes import byref, c_uint64

from . import _native, errors

_log = logging.getLogger("bandoneon")

# "No limit" as the C library wants it: a number.
FOREVER_SECONDS = 1e9


class Completions:
    """The one thread that waits in C for exchanges to end, and runs their callbacks."""

    def __init__(self, worker):
        self._worker = worker
        self._lock = threading.Lock()
        self._callbacks = {}  # ticket -> callback
        self._early = set()  # tickets that ended before anybody expected them
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="bandoneon-completions", daemon=True)
        self._thread.start()

    def expect(self, ticket, callback):
        with self._lock:
            if ticket not in self._early:
                self._callbacks[ticket] = callback
                return
            self._early.discard(ticket)
        self._finish(ticket, callback)

    def close(self, wake):
        """Stops the thread; callbacks that are left get the error."""
        self._closed = True
        wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=30)
        with self._lock:
            callbacks, self._callbacks = self._callbacks, {}
        for callback in callbacks.values():
            callback(None, errors.Cancelled("the worker is being closed"))

    def _run(self):
        lib, handle = self._worker._lib, self._worker._handle
        ticket = c_uint64()
        while not self._closed:
            code = lib.bdn_next_done(handle, FOREVER_SECONDS, byref(ticket))
            if code == _native.OK:
                self._dispatch(ticket.value)
            elif code not in (_native.CANCELLED, _native.DEADLINE_EXCEEDED):
                _log.error("completion thread: %s", _native.last_error(code))
                return

    def _dispatch(self, ticket):
        with self._lock:
            callback = self._callbacks.pop(ticket, None)
            if callback is None:
                self._early.add(ticket)
                return
        self._finish(ticket, callback)

    def _finish(self, ticket, callback):
        try:
            callback(self._worker.wait(ticket), None)
        except Exception as error:  # The callback's own failures end here too: there is no caller.
            callback(None, error)
