"""Exchanges inside step(): none follows one that was left."""

import contextlib

from ..errors import BandoneonError, FailedPrecondition


class ExchangeGuard:
    """Refuses what comes after an exchange that this worker left before its end (a timeout, Ctrl-C): the
    others may have taken that step, and would take the next one for another than this worker does."""

    def __init__(self, worker, owner):
        """owner: a weak reference to what its worker notes as failed."""
        self._worker = worker
        self._owner = owner
        self._left_for = None  # what the exchange was left for

    def check(self):
        if self._left_for is not None:
            raise FailedPrecondition(
                f"an exchange was left before its end ({self._left_for}), and the other workers may have "
                "taken its step; start a new job from a checkpoint, with a longer timeout="
            )

    @contextlib.contextmanager
    def exchange(self):
        """Around one exchange, after what can be checked without the others."""
        self.check()
        try:
            yield
        except BaseException as error:
            self._left_for = f"{type(error).__name__}: {error}"
            owner = self._owner()
            if owner is not None and isinstance(error, BandoneonError):
                self._worker.note_failed_round(owner, error)
            raise
