"""Errors as Python exceptions: one class a code, the facts as attributes."""

from __future__ import annotations

from typing import Any


class BandoneonError(RuntimeError):
    """What went wrong and what to do next.

    Attributes:
      code: number of the code, equal to Abseil's.
      tensor, step, stage, waiting_for: what the failing exchange was about, None where that does
        not apply. `stage` is "encode", "exchange" or "decode"; `waiting_for` is like "server 0".
    """

    code = 2

    def __init__(
        self,
        message: str,
        *,
        code: int | None = None,
        tensor: str | None = None,
        step: int | str | None = None,
        stage: str | None = None,
        waiting_for: str | None = None,
    ) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code
        self.tensor = tensor
        self.step = step
        self.stage = stage
        self.waiting_for = waiting_for

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), str(self), self.__dict__)


def _rebuild(cls: type[BandoneonError], message: str, facts: dict[str, Any]) -> BandoneonError:
    error = cls(message)
    error.__dict__.update(facts)
    return error


class Cancelled(BandoneonError):
    """The worker is being closed."""

    code = 1


class OutcomeUnknown(BandoneonError, TimeoutError):
    """A server owed an exchange's answer for `wait-timeout`, or its push was refused as not yet possible too
    often; `waiting_for` says whose answer is missing. While the server waits for other workers that time does
    not run.

    Whether the servers have counted its push is not known. The worker finds it out: what is pushed of the
    tensor waits for that (and ends the job if it waits for as long in vain), and with push="ef(...)" what
    was not counted goes with the next push.
    """

    code = 2


class InvalidArgument(BandoneonError, ValueError):
    """The call or a setting is wrong; nothing was changed."""

    code = 3


class DeadlineExceeded(BandoneonError, TimeoutError):
    """It did not happen in time; `waiting_for` says who was missing."""

    code = 4


class NotFound(BandoneonError, LookupError):
    """There is no such tensor, file or library; the message says which."""

    code = 5


class AlreadyExists(BandoneonError):
    """A name or a rank is taken."""

    code = 6


class PermissionDenied(BandoneonError):
    """A token or a certificate is wrong, or of another job or role."""

    code = 7


class ResourceExhausted(BandoneonError):
    """Memory, or a number that is bounded, is used up; the message names the bound."""

    code = 8


class FailedPrecondition(BandoneonError):
    """Not now: in a forked child, after close, or while an exchange is in flight."""

    code = 9


class JobFailed(BandoneonError):
    """The job has ended for everybody; the message names the node that ended it."""

    code = 10


class Evicted(BandoneonError):
    """The job goes on without this worker: it did not answer for its lease, or rounds waited for it for
    `stuck-timeout`. Nothing is wrong with the job. The process may be started anew; a program that this error
    ends has the exit status 75, which says so.
    """

    code = 17


class OutOfRange(BandoneonError, IndexError):
    """A number is outside of what there is."""

    code = 11


class Unimplemented(BandoneonError, NotImplementedError):
    """This build, or what answers, cannot do that."""

    code = 12


class InternalError(BandoneonError):
    """A mistake of Bandoneon's own: please report it."""

    code = 13


class Unavailable(BandoneonError, ConnectionError):
    """A node could not be reached or was lost."""

    code = 14


class DataLoss(BandoneonError):
    """What was read is damaged: a frame, or a checkpoint."""

    code = 15


_CLASSES = {cls.code: cls for cls in BandoneonError.__subclasses__()}


def error_for_code(code: int, message: str, **facts: Any) -> BandoneonError:
    """The exception for one of the C library's codes."""
    return _CLASSES.get(code, BandoneonError)(message, code=code, **facts)
