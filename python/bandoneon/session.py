"""The usual case: one worker a process, found by the environment."""

from __future__ import annotations

import atexit
import contextlib
import difflib
import os
import re
import sys
import threading
from typing import Any, Mapping

from . import _native, endings, errors
from .json_log import LOGGER as _log
from .worker import Worker

_lock = threading.Lock()
_worker: Worker | None = None
_address: str | None = None  # of its scheduler, or of its host's daemon
_codecs: dict[str, str | None] = {}  # "push" and "pull", where init() was told
_access: dict[str, Any] = {}  # the settings of init() by which the scheduler is asked
_left: str | None = None  # the scheduler of the job that this process has left


_ACCESS = ("scheduler", "token", "token-file", "tls-ca", "tls-cert", "tls-key", "insecure")

_LEFT_BEFORE = (
    "this process has left the job of that scheduler by shutdown(), and a job is over when its workers "
    "have left: call shutdown() once, at the program's end, or start another job and join that one"
)

_RUN_AGAIN = (
    "multiprocessing has started this process, as a DataLoader or a Pool does by spawn or forkserver, and it runs the "
    "program's file anew, with init() in it: if it is to be no worker, put all of the program but its functions and "
    "classes under if __name__ == \"__main__\":"
)


def init(
    scheduler: str | None = None,
    rank: int | None = None,
    *,
    config: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> Worker:
    """Joins the job and waits until everybody has come; returns this process's worker.

    Under `bandoneon run` there is nothing to say. Under torchrun the rank is torchrun's, and the
    scheduler's address comes from `scheduler="host:port"` or BANDONEON_SCHEDULER. Where several torchruns share a job,
    each an island of as many processes, BANDONEON_ISLAND numbers them from 0, and the rank is counted on from one
    to the next (docs/sharded.md). With `attach="unix:@NAME"`
    or BANDONEON_ATTACH the process takes part through its host's bandoneon-worker, which listens there and
    knows the scheduler. `settings` are
    those of a worker (bandoneon.settings_help()), with underscores for dashes. `config` is a file of
    them, a line "name = value" each, # before comments: the environment goes before it, and arguments
    before both. A second call returns the same worker. After shutdown() the job is over, and only another
    one can be joined.

    A program that ends with exit status 0 leaves: whoever waits for it hears that, and it waits until the
    others leave too. With any other status, by an exception, sys.exit(1) or a signal, it ends the job for
    everybody, with an error that says why.
    """
    global _worker, _address, _codecs, _access
    with _lock:
        if _worker is not None:
            _worker.stats()  # Raises in a forked child.
            return _worker
        given = {} if config is None else _read_config(config)
        named = {name.replace("_", "-"): value for name, value in settings.items()}
        attach = named.get("attach") or os.environ.get("BANDONEON_ATTACH") or given.get("attach")
        if attach:
            address = attach
            given.update(_place_to_attach(given))
            given["scheduler"] = scheduler  # Of no use to it, but for trace.dump().
            facts = dict(given, **named)
        else:
            address = _scheduler(scheduler, given.pop("scheduler", None))
            facts = dict(given, **named, scheduler=address, rank=_rank(rank, given.pop("rank", None)))
        options = _native.options(facts)
        lib = _native.library()
        # Before the join, as a process that was held up then may be out before it is in.
        endings.ask_for_a_restart_where(_is_evicted)
        try:
            worker = Worker(lambda out: lib.bdn_create(options, out))
        except errors.BandoneonError as error:
            if "takes no more" in str(error) and endings.is_child():
                raise errors.FailedPrecondition(f"{error}; {_RUN_AGAIN}") from error
            if address != _left or isinstance(error, errors.InvalidArgument):
                raise
            raise errors.FailedPrecondition(f"{error}; {_LEFT_BEFORE}") from error
        _check_world_size(worker)
        if attach:
            _check_rank(worker)
        endings.watch_exits()
        endings.watch_threads(_at_end_of_thread)
        endings.finish_with_child(_at_end_of_child)
        _worker = worker
        _address = address
        _codecs = {direction: facts.get(direction) for direction in ("push", "pull")}
        _access = {name: facts[name] for name in _ACCESS if facts.get(name) is not None}
        return worker


def shutdown(timeout: float | None = None) -> None:
    """Waits until all workers are done, then leaves the job. Harmless when there is none. It leaves in peace even
    while an exception is on its way, as in a `finally:`, so that the others do not hear of that: there, do without
    it, and the end of the program or of `with init():` tells them."""
    global _worker, _left
    with _lock:
        worker, _worker = _worker, None
        if worker is None:
            return
        _left = _address
    try:
        worker.check_last_rounds()
        worker.leave(timeout)
    finally:
        worker.close()


def is_initialized() -> bool:
    """Whether this process has a worker: between init() and shutdown()."""
    return _worker is not None


def default_worker() -> Worker:
    """This process's worker; FailedPrecondition before init()."""
    if _worker is None:
        raise errors.FailedPrecondition(
            "bandoneon is not initialised in this process; call bandoneon.torch.init() first"
        )
    return _worker


def access() -> dict[str, Any]:
    """The settings by which this process asks its job's scheduler, as far as init() was told them; the environment
    may have others."""
    return dict(_access)


def default_codec(direction: str) -> str:
    """The codec spec of "push" or "pull" where nothing else is said: init()'s, or BANDONEON_PUSH and
    BANDONEON_PULL, or "none"."""
    return _codecs.get(direction) or os.environ.get(f"BANDONEON_{direction.upper()}") or "none"


def rank() -> int:
    """This process's number among the job's workers, from 0."""
    return default_worker().rank


def size() -> int:
    """How many workers the job has. One that was lost does not count, once this worker has heard of it, and the
    ranks of the others stay as they are: ranks may then be as high as size(), or higher."""
    return default_worker().count_present()


def local_rank() -> int:
    """This process's number among the job's workers on its host, to choose a device by: LOCAL_RANK, as
    `bandoneon run` and torchrun set it."""
    return _place_on_host()[0]


def local_size() -> int:
    """How many of the job's workers run on this host: LOCAL_WORLD_SIZE."""
    return _place_on_host()[1]


def report(name: str, value: float, step: int | None = None) -> None:
    """Says a value of this program, its loss, for the scheduler's status page: Worker.report."""
    default_worker().report(name, value, step)


def settings_help() -> str:
    """Names, defaults and meanings of a worker's settings."""
    text: bytes = _native.library().bdn_settings_help()
    return text.decode()


def _read_config(path: str | os.PathLike[str]) -> dict[str, Any]:
    """{name: value} of a file of settings, without those that the environment has."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise errors.InvalidArgument(f"config={os.fspath(path)!r} cannot be read: {error}") from error
    known = re.findall(r"^ +--([a-z][a-z0-9-]*)", settings_help(), re.MULTILINE)
    found = {}
    for number, line in enumerate(lines, 1):
        name, equals, value = (part.strip() for part in line.partition("#")[0].partition("="))
        if not (name or equals):
            continue
        place = f"{os.fspath(path)}:{number}"
        if not (name and equals and value):  # Without the line, which may hold a secret.
            raise errors.InvalidArgument(f"{place}: a setting is a line of the form name = value")
        if name not in known:
            near = difflib.get_close_matches(name.replace("_", "-"), known, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise errors.InvalidArgument(f"{place}: there is no setting {name!r} of a worker{hint}")
        if name == "library":
            raise errors.InvalidArgument(f"{place}: the library is loaded by now; set BANDONEON_LIBRARY")
        if name in found:
            raise errors.InvalidArgument(f"{place}: {name!r} was set above already")
        found[name] = value
    return {
        name: value
        for name, value in found.items()
        if "BANDONEON_" + name.upper().replace("-", "_") not in os.environ
    }


def _scheduler(argument: str | None, configured: str | None = None) -> str:
    address = argument or os.environ.get("BANDONEON_SCHEDULER") or configured
    if address:
        return address
    under = "torchrun started this process, but it" if "RANK" in os.environ else "this process"
    raise errors.InvalidArgument(
        f"{under} does not know where the scheduler is. Start `bandoneon-scheduler --workers=N "
        "--servers=S` and the servers, then set BANDONEON_SCHEDULER=host:port for every worker or call "
        'init(scheduler="host:port"); on one machine `bandoneon run -n N -s S -- COMMAND` does it all'
    )


def _rank(argument: int | None, configured: str | None = None) -> int | str | None:
    if argument is not None:
        return argument
    if "BANDONEON_RANK" in os.environ:
        return None  # The library reads it.
    if configured is not None:
        return configured
    return _rank_of_torchrun()


def _rank_of_torchrun() -> int | None:
    """This process's rank among all torchruns of the job; None where none has started it."""
    rank, island = _torchrun_number("RANK"), _island()
    return rank if island is None or rank is None else island * _world_size_of_island() + rank


def _island() -> int | None:
    """The number of this process's torchrun among those that share the job; None where it has one alone."""
    text = os.environ.get("BANDONEON_ISLAND")
    if text is None:
        return None
    if not text.isdecimal():
        raise errors.InvalidArgument(f"BANDONEON_ISLAND={text!r} is no number of an island, 0 or more")
    if "RANK" not in os.environ:
        raise errors.InvalidArgument(
            "BANDONEON_ISLAND numbers torchruns, and torchrun has not started this process, which has no RANK"
        )
    return int(text)


def _world_size_of_island() -> int:
    size = _torchrun_number("WORLD_SIZE")
    if size is None or size < 1:
        raise errors.InvalidArgument("BANDONEON_ISLAND needs torchrun's WORLD_SIZE, the number of processes of an island")
    return size


def _place_to_attach(configured: Mapping[str, Any]) -> dict[str, int | None]:
    """{setting: value}: torchrun's place of this process on its host, where nobody has said another."""
    places = {"local-rank": "LOCAL_RANK", "local-size": "LOCAL_WORLD_SIZE"}
    return {
        setting: _torchrun_number(variable)
        for setting, variable in places.items()
        if "BANDONEON_" + setting.upper().replace("-", "_") not in os.environ and setting not in configured
    }


def _check_rank(worker: Worker) -> None:
    """Its daemon says which rank a process has; torch.distributed must mean the same by it."""
    rank = _rank_of_torchrun()
    if rank is None or rank == worker.rank:
        return
    refusal = (
        f"torchrun's RANK is {rank} where this host's daemon counts {worker.rank}: start each host's "
        "bandoneon-worker with the --rank that its torchrun has as --node-rank, or as BANDONEON_ISLAND where it has one of its own"
    )
    worker.abort_job(refusal)
    worker.close()
    raise errors.InvalidArgument(refusal)


def _check_world_size(worker: Worker) -> None:
    world_size = None if "BANDONEON_RANK" in os.environ else _torchrun_number("WORLD_SIZE")
    if world_size is None or world_size == worker.size:
        return
    # Some of the job's workers may come later, or be lost already: then fewer are there, and nobody whom torchrun does not know.
    if world_size < worker.size and (worker.is_candidate() or world_size >= worker.count_present()):
        return
    if _island() is not None and worker.size % world_size == 0:
        return
    refusal = (
        f"torchrun's WORLD_SIZE is {world_size} but the job has {worker.size} workers; give "
        f"bandoneon-scheduler --workers={world_size} (hosts, where each has a bandoneon-worker) or start "
        f"{worker.size} processes; or BANDONEON_ISLAND, where each island of the job has a torchrun of its own"
    )
    worker.abort_job(refusal)  # So that a worker that has not come this far hears why.
    worker.close()
    raise errors.InvalidArgument(refusal)


def _torchrun_number(name: str) -> int | None:
    text = os.environ.get(name)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise errors.InvalidArgument(f"torchrun's {name} is not a number: {text!r}") from None


def _place_on_host() -> tuple[int, int]:
    rank, size = _torchrun_number("LOCAL_RANK"), _torchrun_number("LOCAL_WORLD_SIZE")
    if rank is None or size is None:
        raise errors.FailedPrecondition(
            "LOCAL_RANK and LOCAL_WORLD_SIZE say which of its host's workers a process is; `bandoneon run` "
            "and torchrun set them, and who starts workers otherwise has to"
        )
    if not 0 <= rank < size:
        raise errors.InvalidArgument(f"LOCAL_RANK is {rank} where LOCAL_WORLD_SIZE is {size}")
    return rank, size


def _take_worker() -> Worker | None:
    """This process's worker, which is the session's no more; None where there is none, or it is closed already."""
    global _worker
    worker, _worker = _worker, None
    return None if worker is None or os.getpid() != worker._pid or worker.is_closed() else worker


def _abort(worker: Worker, reason: str) -> None:
    with contextlib.suppress(errors.BandoneonError):  # The job has failed before, and has that reason.
        worker.abort_job(reason)
    worker.close()


def _at_exit() -> None:
    """The exit status, which nobody knows yet, decides whether the worker leaves or has failed."""
    worker = _take_worker()
    if worker is None:
        return
    try:
        if endings.is_interrupted():
            _abort(worker, endings.last_cause())
            return
        if not endings.may_have_failed():
            worker.check_last_rounds()
            worker.settle()  # After a failure it could wait for long.
        worker.leave_at_exit(endings.last_cause())
    except errors.BandoneonError as error:
        _log.error("bandoneon: %s", error)
        worker.close()


def _is_evicted(error: BaseException) -> bool:
    return isinstance(error, errors.Evicted)


def _at_end_of_thread(thread: threading.Thread, error: BaseException) -> None:
    worker = _worker
    if worker is not None:
        worker.note_end_of_thread(thread, error)


def _at_end_of_child(failure: BaseException | None) -> None:
    """As _at_exit, of a child of multiprocessing, where the exception is known that ends it."""
    worker = _take_worker()
    if worker is None:
        return
    status, cause = endings.ending_of(failure)
    if status != 0:
        _abort(worker, f"{cause} (exit status {status})" if cause else f"its program ended with exit status {status}")
        return
    try:
        worker.check_last_rounds()
        worker.leave()
    except errors.BandoneonError as error:
        _log.error("bandoneon: %s", error)
    finally:
        worker.close()


atexit.register(_at_exit)
