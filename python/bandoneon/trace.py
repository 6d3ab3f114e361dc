"""Names for what a program does, in the recording of its job (docs/tracing.md)."""

from __future__ import annotations

import os
from types import TracebackType

from . import _native, errors, marks, session
from .worker import Worker

__all__ = ["Mark", "mark", "write"]

_LONGEST = 255  # bytes of a text


class Mark:
    """What mark() returns: a context manager, or, where nothing enters it, the instant at which it was made."""

    __slots__ = ("_begun", "_text", "_worker")

    def __init__(self, worker: Worker | None, text: bytes) -> None:
        self._worker = worker  # None: nothing is recorded.
        self._text = text
        self._begun: marks.Reading | None = None if worker is None else marks.glance()

    def __enter__(self) -> Mark:
        if self._worker is not None:
            self._begun = marks.read()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        begun, self._begun = self._begun, None
        if begun is not None:
            self._record(marks.span(marks.USER, begun, marks.read()))

    def __del__(self) -> None:
        begun = getattr(self, "_begun", None)
        if begun is not None and begun[3] == 0:  # It was not entered.
            self._record(marks.span(marks.USER, begun, begun))

    def _record(self, one: marks.Span) -> None:
        worker = self._worker
        if worker is None:
            return
        try:
            worker.record_marks(marks.pack([one], worker.marked_step, text=self._text))
        except errors.BandoneonError:
            pass  # The worker was closed, or is of the process that this one was forked from.


def mark(text: str, *, worker: Worker | None = None) -> Mark:
    """Records what the program does, under a name of its own, beside steps, passes and waits, which are recorded anyway.

        with bandoneon.trace.mark("validation"):  # from when to when
            validate(model)
        bandoneon.trace.mark("learning rate halved")  # an instant

    Does nothing where no worker was made, or nothing is recorded (settings recorder-bytes and trace). Costs some
    microseconds otherwise, so it is for what happens a few times a step. `text` has 1 to 255 bytes as UTF-8, without
    NUL; use few different ones, for a recording has room for some thousand names.
    """
    if not isinstance(text, str) or not text:
        raise errors.InvalidArgument(f"mark({text!r}): a mark needs a text, such as mark('validation')")
    encoded = _native.c_text("mark", text)
    if len(encoded) > _LONGEST:
        raise errors.InvalidArgument(
            f"mark({text[:40]!r}...): the text has {len(encoded)} bytes, and at most {_LONGEST} may be"
        )
    if worker is None and session.is_initialized():
        worker = session.default_worker()
    return Mark(worker.whole if worker is not None and worker.records else None, encoded)


def write(directory: str | os.PathLike[str], *, worker: Worker | None = None) -> str:
    """Writes what this process has recorded to a new file of the directory, and returns the file's path.

        if step_took > 2 * median:
            bandoneon.trace.write("slow")  # then: bandoneon trace explain slow

    The latest spans lie in memory of `recorder-bytes`, always; with setting `trace` all lie in a file already.
    FailedPrecondition: nothing is recorded. Unavailable: the directory cannot be written.
    """
    return (session.default_worker() if worker is None else worker.whole).write_recording(directory)
