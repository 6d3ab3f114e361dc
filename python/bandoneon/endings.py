"""What Python knows of how this process's program ends.

The exit status alone decides whether a worker leaves the job or has failed. exit() tells it to the library
(bdn_leave_at_exit), and to Python it tells nothing; a child of multiprocessing ends without exit(), but there
the exception that ends it can be seen. What is kept here is the cause, for the job's error.
"""

from __future__ import annotations

import functools
import sys
import threading
from typing import Any, Callable, NoReturn

START_ME_AGAIN = 75  # The exit status of a program that failed for a while only: EX_TEMPFAIL of sysexits.h.

_plain_exit = sys.exit
_asking: list[Callable[[BaseException], bool]] = []  # The functions of ask_for_a_restart_where().
_last_exit = (0, "")  # The status and the cause of the last sys.exit().


def ending_of(error: BaseException | None) -> tuple[int, str]:
    """(status, cause) of a program that this exception ends; None is its last line. The cause may be ""."""
    if error is None:
        return 0, ""
    if not isinstance(error, SystemExit):
        return 1, describe(error)
    return _status_of(error.code), _cause_of(error.code, error.__cause__ or error.__context__)


def describe(error: BaseException) -> str:
    """As the last line of a traceback."""
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def watch_exits() -> None:
    """Has sys.exit() remember its cause: frameworks end a program so when they have caught its exception."""
    if sys.exit is not _noted_exit:
        sys.exit = _noted_exit


def ask_for_a_restart_where(asks: Callable[[BaseException], bool]) -> None:
    """Has a program that an uncaught error ends return START_ME_AGAIN, after its traceback, where asks(error) says so."""
    if asks in _asking:
        return
    _asking.append(asks)  # The hook has them all.
    if len(_asking) > 1:
        return
    plain_hook = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        plain_hook(kind, error, trace)
        if not is_at_prompt() and any(asks(error) for asks in _asking):
            raise SystemExit(START_ME_AGAIN)  # Python ends with this status where a hook raises it.

    sys.excepthook = hook


def watch_threads(function: Callable[[threading.Thread, BaseException], None]) -> None:
    """Calls function(thread, its exception) where an exception that nobody catches ends a thread, which tells
    the end of the program nothing."""
    before = threading.excepthook
    if getattr(before, "watches", None) is function:
        return

    def hook(args: threading.ExceptHookArgs, /) -> None:
        error = args.exc_value
        if args.thread is not None and error is not None and not isinstance(error, SystemExit) and not is_at_prompt():
            function(args.thread, error)
        before(args)

    hook.watches = function  # type: ignore[attr-defined]
    threading.excepthook = hook


def last_cause() -> str:
    """What is known of why the program ends with a status that is not 0; "" where nothing is."""
    status, cause = _last_exit
    if status != 0 and cause:
        return cause
    uncaught = None if is_at_prompt() else getattr(sys, "last_value", None)
    return "" if uncaught is None else describe(uncaught)


def may_have_failed() -> bool:
    """Whether an exception or sys.exit() may be what ends the program. A status of 0 overrules it."""
    return _last_exit[0] != 0 or (not is_at_prompt() and getattr(sys, "last_value", None) is not None)


def is_interrupted() -> bool:
    """Whether Ctrl-C ends the program: by the signal, after Python's own end, so that no exit() comes."""
    return not is_at_prompt() and isinstance(getattr(sys, "last_value", None), KeyboardInterrupt)


def is_at_prompt() -> bool:
    """Whether the program is a prompt's, as a notebook's: an exception there ends no program."""
    return hasattr(sys, "ps1")


def is_child() -> bool:
    """Whether multiprocessing started this process."""
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


def finish_with_child(function: Callable[[BaseException | None], None]) -> bool:
    """Whether this process is a child that multiprocessing started. function(error) is then called at its end, with
    the exception that ends it: it may skip atexit's functions and exit()."""
    if not is_child():
        return False
    from multiprocessing.util import Finalize

    # After those that have no such priority: its children, for one, have ended by then.
    Finalize(None, lambda: function(sys.exc_info()[1]), exitpriority=-100)
    return True


@functools.wraps(_plain_exit)
def _noted_exit(status: Any = None, /) -> NoReturn:
    global _last_exit
    _last_exit = _status_of(status), _cause_of(status, sys.exc_info()[1])
    _plain_exit(status)


def _status_of(code: Any) -> int:
    if code is None:
        return 0
    return code if isinstance(code, int) else 1


def _cause_of(code: Any, handled: BaseException | None) -> str:
    """Of an exit while an exception was handled, or None was."""
    while isinstance(handled, SystemExit):
        handled = handled.__cause__ or handled.__context__
    if handled is not None:
        return describe(handled)
    return "" if code is None or isinstance(code, int) else f"SystemExit: {code}"
