"""The usual case: one worker a process, found by the environment."""

import atexit
import os
import sys
import threading

from . import _native, errors
from .worker import Worker

_lock = threading.Lock()
_worker = None
_address = None  # of its scheduler
_left = None  # the scheduler of the job that this process has left


_LEFT_BEFORE = (
    "this process has left the job of that scheduler by shutdown(), and a job is over when its workers "
    "have left: call shutdown() once, at the program's end, or start another job and join that one"
)


def init(scheduler=None, rank=None, **settings):
    """Joins the job and waits until everybody has come; returns this process's worker.

    Under `bandoneon run` there is nothing to say. Under torchrun the rank is torchrun's, and the
    scheduler's address comes from `scheduler="host:port"` or BANDONEON_SCHEDULER. `settings` are
    those of a worker (bandoneon.settings_help()), with underscores for dashes. A second call
    returns the same worker. After shutdown() the job is over, and only another one can be joined.

    A program that ends by an exception ends the job for everybody. One that ends in any other way
    leaves: whoever waits for it hears that, and it waits until the others leave too.
    """
    global _worker, _address
    with _lock:
        if _worker is not None:
            _worker.stats()  # Raises in a forked child.
            return _worker
        address = _scheduler(scheduler)
        facts = dict(settings, scheduler=address, rank=_rank(rank))
        options = _native.options(facts)
        lib = _native.library()
        try:
            worker = Worker(lambda out: lib.bdn_create(options, out))
        except errors.BandoneonError as error:
            if address != _left or isinstance(error, errors.InvalidArgument):
                raise
            raise errors.FailedPrecondition(f"{error}; {_LEFT_BEFORE}") from error
        _check_world_size(worker)
        _worker = worker
        _address = address
        return worker


def shutdown(timeout=None):
    """Waits until all workers are done, then leaves the job. Harmless when there is none."""
    global _worker, _left
    with _lock:
        worker, _worker = _worker, None
        if worker is None:
            return
        _left = _address
    try:
        worker.leave(timeout)
    finally:
        worker.close()


def is_initialized():
    return _worker is not None


def default_worker():
    """This process's worker; FailedPrecondition before init()."""
    if _worker is None:
        raise errors.FailedPrecondition(
            "bandoneon is not initialised in this process; call bandoneon.torch.init() first"
        )
    return _worker


def rank():
    return default_worker().rank


def size():
    return default_worker().size


def local_rank():
    """This process's number among the job's workers on its host, to choose a device by: LOCAL_RANK, as
    `bandoneon run` and torchrun set it."""
    return _place_on_host()[0]


def local_size():
    """How many of the job's workers run on this host: LOCAL_WORLD_SIZE."""
    return _place_on_host()[1]


def settings_help():
    """Names, defaults and meanings of a worker's settings."""
    return _native.library().bdn_settings_help().decode()


def _scheduler(argument):
    address = argument or os.environ.get("BANDONEON_SCHEDULER")
    if address:
        return address
    under = "torchrun started this process, but it" if "RANK" in os.environ else "this process"
    raise errors.InvalidArgument(
        f"{under} does not know where the scheduler is. Start `bandoneon-scheduler --workers=N "
        "--servers=S` and the servers, then set BANDONEON_SCHEDULER=host:port for every worker or call "
        'init(scheduler="host:port"); on one machine `bandoneon run -n N -s S -- COMMAND` does it all'
    )


def _rank(argument):
    if argument is not None:
        return argument
    if "BANDONEON_RANK" in os.environ:
        return None  # The library reads it.
    return _torchrun_number("RANK")


def _check_world_size(worker):
    world_size = None if "BANDONEON_RANK" in os.environ else _torchrun_number("WORLD_SIZE")
    if world_size is None or world_size == worker.size:
        return
    size = worker.size
    worker.close()
    raise errors.InvalidArgument(
        f"torchrun's WORLD_SIZE is {world_size} but the job has {size} workers; give "
        f"bandoneon-scheduler --workers={world_size} or start {size} processes"
    )


def _torchrun_number(name):
    text = os.environ.get(name)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise errors.InvalidArgument(f"torchrun's {name} is not a number: {text!r}") from None


def _place_on_host():
    rank, size = _torchrun_number("LOCAL_RANK"), _torchrun_number("LOCAL_WORLD_SIZE")
    if rank is None or size is None:
        raise errors.FailedPrecondition(
            "LOCAL_RANK and LOCAL_WORLD_SIZE say which of its host's workers a process is; `bandoneon run` "
            "and torchrun set them, and who starts workers otherwise has to"
        )
    if not 0 <= rank < size:
        raise errors.InvalidArgument(f"LOCAL_RANK is {rank} where LOCAL_WORLD_SIZE is {size}")
    return rank, size


def _at_exit():
    """An exception that ended the program ends the job; else it leaves. At a prompt, as a notebook's, an
    exception ends no program, though it is remembered just so."""
    global _worker
    worker, _worker = _worker, None
    if worker is None or os.getpid() != worker._pid:
        return
    failure = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
    try:
        if failure is None:
            worker.leave()
        else:
            worker.abort_job(f"{type(failure).__name__}: {failure}")
    except errors.BandoneonError as error:
        print(f"bandoneon: {error}", file=sys.stderr)
    finally:
        worker.close()


atexit.register(_at_exit)
