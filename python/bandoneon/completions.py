"""The thread of a worker that waits for exchanges to end."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Callable, Optional, Sequence

from . import errors
from .json_log import LOGGER as _log

if TYPE_CHECKING:
    from .worker import Worker

# "No limit" as the C library wants it: a number.
FOREVER_SECONDS = 1e9


# Called with the error of an exchange, or with None.
Callback = Callable[[Optional[errors.BandoneonError]], object]
_Expected = tuple[Sequence[int], Callback, Optional[errors.BandoneonError], Optional[float]]


class Completions:
    """The one thread that waits for exchanges to end, and runs their callbacks in the order in which they
    were started."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._expected: queue.SimpleQueue[_Expected | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="bandoneon-completions", daemon=True)
        self._thread.start()

    def expect(
        self,
        tickets: Sequence[int],
        callback: Callback,
        error: errors.BandoneonError | None,
        timeout: float | None = None,
    ) -> None:
        """callback(`error`) once all tickets have ended, or with that of one that failed or was late."""
        self._expected.put((tickets, callback, error, timeout))

    def close(self) -> None:
        """Stops the thread; callbacks that are left get the error. For a worker that takes no more calls."""
        self._expected.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=30)

    def _run(self) -> None:
        while (expected := self._expected.get()) is not None:
            tickets, callback, error, timeout = expected
            try:
                callback(self._await_all(tickets, timeout) or error)
            except Exception:  # Nobody is there to hear of it.
                _log.exception("a callback on the completion thread failed")

    def _await_all(self, tickets: Sequence[int], timeout: float | None) -> errors.BandoneonError | None:
        try:
            results, error = self._worker.wait_unrecorded(tickets, timeout)
        except errors.BandoneonError as closed:
            return errors.Cancelled(f"the exchange was not waited for: {closed}")
        for ticket in tickets[len(results) :]:
            self._worker.drop(ticket)
        return error
