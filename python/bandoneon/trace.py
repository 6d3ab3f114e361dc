"""Names for what a program does, in the recording of its job, and recordings on demand (docs/tracing.md)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pathlib
from types import TracebackType
from typing import Any

from . import _native, errors, marks, session
from .json_log import LOGGER as _log
from .worker import Worker

__all__ = ["Mark", "dump", "mark", "write"]

_LONGEST = 255  # bytes of a text
_SUFFIX = ".bdntrace"


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


def dump(
    directory: str | os.PathLike[str],
    *,
    last: float | None = None,
    nodes: str | None = None,
    timeout: float = 5.0,
    **settings: Any,
) -> list[str]:
    """Writes what all nodes of the job have recorded last to new files of the directory, and returns their paths: what
    `bandoneon trace dump` does, when the program finds that it is time. One worker of a job calls it.

        if rank == 0 and step_took > 2 * median:
            bandoneon.trace.dump(f"slow-{step}", last=30)  # then: bandoneon trace explain slow-812

    `last`: of each node only what it recorded in so many seconds; else all that fits in 1 MiB. `nodes`: of which nodes,
    as "servers,worker-0..7"; else of all, 64 at most. A node that sends nothing for `timeout` seconds is left out, with
    a warning. `settings` say where the scheduler is and who asks, where that is not what init() or the environment
    says: scheduler, token, tls_cert and so on. A process of a host's daemon names the scheduler here.

    It blocks until all have answered, some tenths of a second mostly, and others train on meanwhile. AlreadyExists: the
    directory has recordings. NotFound: no node gave one, or the job has none of `nodes`. FailedPrecondition: another
    dump of the job runs. PermissionDenied: the settings do not admit this process.
    """
    if last is not None and not last > 0:
        raise errors.InvalidArgument(f"dump(last={last!r}): expected seconds, more than 0, or None for all that fits")
    folder = pathlib.Path(directory)
    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        there = next(folder.glob("*" + _SUFFIX), None)
    except OSError as error:
        raise errors.Unavailable(f"dump({os.fspath(directory)!r}): the directory cannot be made: {error}") from error
    if there is not None:
        raise errors.AlreadyExists(
            f"dump({os.fspath(directory)!r}): it has recordings already ({there.name}), which the new ones would be mixed "
            "with: name another directory"
        )
    named = {name.replace("_", "-"): value for name, value in settings.items()}
    asked = _native.options(session.access() | named)
    taken: list[str] = []
    missing: list[str] = []
    failed: list[Exception] = []  # An exception must not leave a function that C calls.

    def take(_: int | None, of: Any) -> None:
        node = of.contents
        name = f"{node.role.decode()}-{node.rank}"
        if node.failure:
            missing.append(f"{name}: {node.failure.decode(errors='replace')}")
        if not node.recording_bytes or failed:
            return
        path = folder / (name + _SUFFIX)
        try:
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
                file.write(ctypes.string_at(node.recording, node.recording_bytes))
        except OSError as error:
            failed.append(error)
            if not isinstance(error, FileExistsError):
                path.unlink(missing_ok=True)  # A part of a recording would be in the way of the next dump.
        else:
            taken.append(os.fspath(path))

    try:
        _native.check(
            _native.library().bdn_dump_traces(
                asked,
                _native.c_text("nodes", nodes or ""),
                0.0 if last is None else float(last),
                float(timeout),
                _native.TakeDumped(take),
                None,
            )
        )
    finally:
        if is_new and not taken:
            with contextlib.suppress(OSError):
                folder.rmdir()
    if failed:
        raise errors.Unavailable(f"dump({os.fspath(directory)!r}): a recording cannot be written: {failed[0]}") from failed[0]
    if not taken:
        raise errors.NotFound("dump(): no node gave a recording: " + "; ".join(missing))
    if missing:
        _log.warning("dump(%r): recordings are missing or cut off: %s", os.fspath(directory), "; ".join(missing))
    return taken
