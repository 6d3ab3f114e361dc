"""A worker: this process's, or one of several in a LocalCluster. Speaks in pointers; knows no torch."""

from __future__ import annotations

import collections
import contextlib
import copy
import ctypes
import gc
import json
import operator
import os
import struct
import threading
import time
import weakref
from ctypes import POINTER, byref, c_float, c_int, c_int32, c_size_t, c_uint32, c_uint64, c_void_p, sizeof
from types import TracebackType
from typing import Any, Callable, Iterable, Iterator, Protocol, Sequence

from . import _native, errors, stack_signal
from .calls import LIST_ROWS, Declaration, Holding, Push, Result, Rows, RowScan, Table, TableLayout, c_declaration, c_table
from .completions import FOREVER_SECONDS, Callback, Completions
from .endings import describe, ending_of
from .interrupts import REPORT_SECONDS as _REPORT_SECONDS
from .interrupts import SLICE_SECONDS, lent, run_interruptibly
from .json_log import LOGGER as _log
from .json_log import log_as_json

# In the error of an exchange whose other worker has ended its program in peace.
_ONE_LEAVES = "is leaving the job and pushes no more"

# So long a worker that joins a job that runs waits for the others to declare what it declares.
_CANDIDATE_SECONDS = 20.0

_EMPTY_RESULT = bytes(_native.Result(sizeof(_native.Result)))
_RESULT = struct.Struct("@NQII")  # as _native.Result: reading its fields one by one takes long
assert _RESULT.size == sizeof(_native.Result)

# What exchanges a tensor, as a weak reference to it.
Owner = Callable[[], Any]


class Settles(Protocol):
    """An object that takes in what it has in flight when it is told to."""

    def settle(self) -> None: ...


class Recorder(Protocol):
    """What records the program's waits, and marks of its own: StepRecorder of bandoneon.torch. No method raises."""

    step: int  # that the program is in

    def begin_wait(self) -> Any: ...

    def end_wait(self, begun: Any) -> None: ...

    def hand_over(self) -> None: ...

    def close(self) -> None: ...


class Worker:
    """One worker of a job. Thread-safe; a forked child may hold one but not use it."""

    def __init__(self, create: Callable[[Any], int]) -> None:
        """`create(pointer)` calls one of the C library's constructors; it may block."""
        self._pid = os.getpid()
        self._lib = _native.library()
        self._handle = c_void_p()
        self._idle = threading.Condition()
        self._next_steps: dict[str, int] = {}  # of reports without a step, by name
        self._calls = 0
        self._closing = False
        self._left = False
        self._why_closed = "closed before it left"
        self._in_flight: dict[int, object] = {}  # ticket -> what must outlive it
        self._dropped: collections.deque[int] = collections.deque()  # tickets nobody waits for any more
        self._declared: dict[str, tuple[Declaration | Table, int]] = {}  # name -> (its declaration, id)
        self._unsettled: weakref.WeakSet[Settles] = weakref.WeakSet()
        # Of what settles before the worker leaves:
        self._failed_rounds: weakref.WeakKeyDictionary[object, BaseException] = weakref.WeakKeyDictionary()
        # The last of them, whose owner may be gone by the program's end; until another optimizer has ended a step.
        self._last_failure: tuple[weakref.ref[object], BaseException] | None = None
        self._thread_failure: str | None = None  # how the thread ended that had ended the last step
        self._owners: dict[str, Owner] = {}  # by name
        self._steps_ended = 0  # of all optimizers
        self._stepping_thread: int | None = None  # that ended the last
        self._stepping: weakref.ref[threading.Thread] | None = None  # the same
        self._completions: Completions | None = None
        self.seniority: Sequence[int] = ()  # ranks that are present, the longest first, where a TrainingState knows
        self.num_training_states = 0  # that were made
        self.recorder: Recorder | None = None  # where something records the program's steps

        def run() -> None:
            pointer = c_void_p()
            _native.check(create(byref(pointer)))
            self._handle = pointer

        run_interruptibly(run, undo=self.close)
        log_as_json()
        stack_signal.offer()
        self.rank: int = self._lib.bdn_rank(self._handle)
        # The number of workers that have joined: all ranks are below it, whoever is lost later.
        self.size: int = self._lib.bdn_joined_size(self._handle)
        # Whether record_marks() records anything, which is so for as long as the worker lives.
        self.records = bool(self._lib.bdn_records(self._handle))

    # A worker as its group sees it has others: WorkerGroup.

    @property
    def whole(self) -> Worker:
        """The worker itself."""
        return self

    def named(self, name: str) -> str:
        """The name that its group uses for `name`, among all names of the job."""
        return name

    @property
    def ranks(self) -> Sequence[int]:
        """The ranks that a mean is of, rising, whoever is lost."""
        return range(self.size)

    @property
    def sharers(self) -> int:
        """How many they are."""
        return self.size

    @property
    def place(self) -> int:
        """This worker's place among them."""
        return self.rank

    def count_present(self) -> int:
        """How many workers the job has that were not lost, as far as this one has heard."""
        with self._call() as (lib, handle):
            count: int = lib.bdn_size(handle)
            return count

    def rank_in_charge(self) -> int:
        """The rank that tells servers what one tells for all: the lowest, and where workers come back the one that is there
        for longest, as servers take it from one until that is lost."""
        return self.first_rank() if self.in_charge is None else self.in_charge

    @property
    def in_charge(self) -> int | None:
        """Whoever of its ranks is there for longest, where that is known."""
        return next((rank for rank in self.seniority if rank in self.ranks), None)

    def first_rank(self) -> int:
        """The lowest rank of those. Another worker may hear of a loss earlier or later: present() is the same to all."""
        with self._call() as (lib, handle):
            rank: int = lib.bdn_first_rank(handle)
            return rank

    # ---- Coming into a job that runs, and going from one ----

    def is_candidate(self) -> bool:
        """Whether this worker has joined a job that runs, and was not taken in yet: bdn_is_candidate of bandoneon.h."""
        with self._call() as (lib, handle):
            return bool(lib.bdn_is_candidate(handle))

    def candidates(self) -> int:
        """How many workers wait at a boundary, as far as this one has heard. Others hear it earlier or later."""
        with self._call() as (lib, handle):
            count: int = lib.bdn_candidates(handle)
            return count

    def host_ranks(self, rank: int) -> range:
        """The ranks that come and go together with a rank: the processes of its host's daemon, or itself alone."""
        first, count = c_int(), c_int()
        with self._call() as (lib, handle):
            _native.check(lib.bdn_host_ranks(handle, rank, byref(first), byref(count)))
        return range(first.value, first.value + count.value)

    def boundary(self, timeout: float | None = None) -> list[int]:
        """Waits for all workers that are present, with nothing in flight, and takes in the candidates that wait here, too.
        The ranks of those, rising: the same list in all."""
        ranks = (c_int32 * self.size)()
        count = c_size_t()
        self._blocking(
            lambda lib, handle: lib.bdn_boundary(handle, _seconds(timeout), ranks, self.size, byref(count))
        )
        return list(ranks)[: count.value]

    def depart(self, reason: str) -> None:
        """Goes from a job that goes on without this worker, as without one that is lost, and closes it. Between steps.
        FailedPrecondition, and nothing has changed: the job may not go on without it (min-workers)."""
        self._blocking(lambda lib, handle: lib.bdn_depart(handle, _encoded(reason)))
        self._left = True
        self.close()

    def close_unneeded(self) -> None:
        """Closes a worker that a job has ended well without, which it need not leave."""
        self._left = True
        self.close()

    # ---- Life ----

    def leave(self, timeout: float | None = None) -> None:
        """Says that this worker is done, once the servers have all that it has started, and waits until
        all workers have said so. What needs it from then on fails in the others."""
        if self._left:
            return
        try:
            self.settle()
        except errors.BandoneonError as error:
            self._why_closed = f"{type(error).__name__}: {error}"  # What the others must hear.
            raise
        self._blocking(lambda lib, handle: lib.bdn_leave(handle, _seconds(timeout)))
        self._left = True

    def settle(self) -> None:
        """Has its owners take in what they have in flight."""
        for owner in list(self._unsettled):
            owner.settle()

    def note_failed_round(self, owner: object, error: BaseException) -> None:
        """A round of owner's failed: a program that ends politely without a better one of it has failed. Not noted
        where the whole job has failed, which leaving will say, too."""
        if _is_of_whole_job(error):
            return
        error = copy.copy(error)  # Without its traceback, which would keep the owner.
        self._failed_rounds[owner] = error
        self._last_failure = weakref.ref(owner), error

    def note_good_round(self, owner: object) -> None:
        """A round of owner's succeeded, whatever had failed before."""
        self._failed_rounds.pop(owner, None)
        if self._last_failure is not None and self._last_failure[0]() in (owner, None):
            self._last_failure = None

    def note_end_of_thread(self, thread: threading.Thread, error: BaseException) -> None:
        """A thread has ended with an exception that nobody caught: a program that ends politely has failed if that thread
        trained, and no other has since."""
        if self._stepping is not None and self._stepping() is thread and not _is_of_whole_job(error):
            self._thread_failure = f"its thread {thread.name!r}, which trained, had ended with {describe(error)}"

    def check_last_rounds(self) -> None:
        """Raises FailedPrecondition where the last round of an owner failed, which its program has caught, or where the
        thread that trained has died."""
        if self._thread_failure is not None:
            self._why_closed = f"its program ended after {self._thread_failure}"
            raise errors.FailedPrecondition(f"the program ends although {self._thread_failure}")
        last = [] if self._last_failure is None else [self._last_failure[1]]
        for error in [*self._failed_rounds.values(), *last]:
            self._why_closed = f"its program ended after an exchange that had failed: {error}"
            raise errors.FailedPrecondition(
                f"the program ends although its last exchange of gradients failed, so the replicas may differ: {error}"
            ) from error

    def settle_before_leaving(self, owner: Settles) -> None:
        """leave() calls owner.settle() first, which takes in what it has in flight; keeps no owner alive."""
        self._unsettled.add(owner)

    def leave_at_exit(self, cause: str) -> None:
        """Gives the worker to the end of the process: with exit status 0 it leaves, with any other it ends the
        job for everybody with an error that has the status and `cause`. No call is taken from now on."""
        self._close_recorder()
        with self._call() as (lib, handle):
            _native.check(lib.bdn_leave_at_exit(handle, _encoded(cause)))
        with self._idle:
            self._closing = True
        self._handle = c_void_p()  # Which the library frees.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))  # What is in flight outlives the interpreter.

    def abort_job(self, reason: str) -> None:
        """Ends the job for everybody with an error that names this worker and `reason`."""
        with self._call() as (lib, handle):
            _native.check(lib.bdn_abort_job(handle, _encoded(reason)))

    def close(self) -> None:
        """Gives everything back. Without leave() before, this ends the job for everybody."""
        if os.getpid() != self._pid or not self._handle:
            return
        self._close_recorder()
        with self._idle:
            if self._closing:
                return
            self._closing = True
        lib, handle = self._lib, self._handle
        if not self._left:
            lib.bdn_abort_job(handle, _encoded(self._why_closed))
        if self._completions is not None:
            self._completions.close()
        with self._idle:
            if not self._idle.wait_for(lambda: self._calls == 0, timeout=30):
                _log.error("a call on the worker does not end; its memory is not given back")
                return
        lib.bdn_free(handle)
        self._in_flight.clear()
        self._handle = c_void_p()

    def is_closed(self) -> bool:
        """Whether close() was called, or began."""
        return self._closing or not self._handle

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            status, cause = ending_of(error)
            if status == 0:
                self.leave()
            else:
                with contextlib.suppress(errors.BandoneonError):
                    self.abort_job(cause or f"its program ended with exit status {status}")
        finally:
            self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()

    # ---- Tensors ----

    def alloc(self, num_bytes: int) -> ctypes.Array[ctypes.c_char]:
        """Memory that is best pushed from, a ctypes array: through a host's daemon it is not copied before the
        sum. It is given back when nobody has the array any more, which may be after close()."""
        if not 0 < num_bytes < 1 << 64:
            raise errors.InvalidArgument(f"alloc: {num_bytes} bytes are not one of 1 to 2**64 - 1")
        block = c_void_p()
        with self._call() as (lib, handle):
            _native.check(lib.bdn_alloc(handle, num_bytes, byref(block)))
        assert block.value is not None
        memory = (ctypes.c_char * num_bytes).from_address(block.value)
        finalizer = weakref.finalize(memory, _give_back, lib, block, self._pid)
        finalizer.atexit = False  # type: ignore[misc]  # It is a property; typeshed lists slots alone.
        return memory

    def declare(
        self, declarations: Iterable[Declaration], timeout: float | None = None, owner: Owner | None = None
    ) -> list[int]:
        """Ids of the tensors. Collective: every worker declares the same ones in the same call.

        A name that another live `owner` exchanges, or push_pull(), is refused: two models must not share a
        tensor. One whose owner was collected is a new tensor.
        """
        declarations = list(declarations)
        for item in declarations:
            self._check_owner(item.name, owner)
        array = (_native.Declaration * len(declarations))(
            *[c_declaration(d) for d in declarations]
        )
        ids = self._declare_with(
            lambda lib, handle, ids: lib.bdn_declare(handle, array, len(array), ids, _seconds(timeout)),
            len(declarations),
            timeout,
        )
        for item, number in zip(declarations, ids):
            self._declared[item.name] = (item, number)
            if owner is not None:
                self._owners[item.name] = owner
        return ids

    def declare_tables(
        self, tables: Iterable[Table], timeout: float | None = None, owner: Owner | None = None
    ) -> list[int]:
        """Ids of tables of rows, as declare() gives those of tensors, whose names are others. Collective."""
        tables = list(tables)
        for item in tables:
            self._check_owner(item.name, owner)
        array = (_native.Table * len(tables))(*[c_table(table) for table in tables])
        ids = self._declare_with(
            lambda lib, handle, ids: lib.bdn_declare_tables(handle, array, len(array), ids, _seconds(timeout)),
            len(tables),
            timeout,
        )
        for item, number in zip(tables, ids):
            self._declared[item.name] = (item, number)
            if owner is not None:
                self._owners[item.name] = owner
        return ids

    def _declare_with(
        self, call: Callable[[ctypes.CDLL, c_void_p, Any], int], count: int, timeout: float | None
    ) -> list[int]:
        ids = (c_uint32 * count)()
        # The others may be about to declare what a candidate, which began later, declares already.
        patience = time.monotonic() + min(_seconds(timeout), _CANDIDATE_SECONDS)
        while True:
            try:
                self._blocking(lambda lib, handle: call(lib, handle, ids))
                break
            except errors.NotFound as error:
                if not self.is_candidate() or time.monotonic() > patience:
                    raise errors.InvalidArgument(str(error), tensor=error.tensor) from error
                time.sleep(1.0)
        return list(ids)

    def declare_once(
        self, declaration: Declaration, timeout: float | None = None, owner: Owner | None = None
    ) -> int:
        """The id of one tensor, declared at its first use. One without an owner stays as long as the worker."""
        self._check_owner(declaration.name, owner, may_be_known=True)
        known = self._declared.get(declaration.name)
        if known is None:
            return self.declare([declaration], timeout, owner)[0]
        if known[0] != declaration:
            before, now = vars(known[0]), vars(declaration)
            differs = [fact for fact in now if now[fact] != before[fact]]
            raise errors.InvalidArgument(
                f"tensor {declaration.name!r} was declared with {_listed(before, differs)}, and now it has "
                f"{_listed(now, differs)}: what one name exchanges stays as it was at first; use another name for another "
                "tensor, and fill up a last batch that is smaller, or leave it out",
                tensor=declaration.name,
            )
        return known[1]

    def owners(self) -> dict[str, Any]:
        """The optimizers and the like that exchange tensors, by the names of these."""
        return {name: owner for name, held in self._owners.items() if (owner := held()) is not None}

    def disown(self, owner: Owner) -> None:
        """Frees the names that `owner` held, and retires its tensors: the next owner of these names begins at step
        0 with empty memories, and servers give theirs back once all workers have come so far. Never waits."""
        self.retire([name for name, held in list(self._owners.items()) if held is owner])

    def retire(self, names: Iterable[str]) -> None:
        """Frees these names, as disown() does."""
        numbers = []
        for name in names:
            self._owners.pop(name, None)
            known = self._declared.pop(name, None)
            if known is not None:
                numbers.append(known[1])
        if not numbers:
            return
        with contextlib.suppress(errors.FailedPrecondition):  # Closed, or of another process: then all is gone.
            with self._call() as (lib, handle):
                ids = (c_uint32 * len(numbers))(*numbers)
                _native.check(lib.bdn_retire(handle, ids, len(numbers)))

    def end_step(self) -> None:
        """An optimizer of this worker's has ended a step, in this thread."""
        self._steps_ended += 1
        self._stepping_thread = threading.get_ident()
        self._stepping = weakref.ref(threading.current_thread())
        self._last_failure = self._thread_failure = None

    @property
    def steps_ended(self) -> int | None:
        """By all optimizers; None where this is not the thread that steps, which may be anywhere between two."""
        return self._steps_ended if threading.get_ident() == self._stepping_thread else None

    @property
    def num_steps_ended(self) -> int:
        """By all optimizers, whatever thread asks. A worker that goes on from another's state sets that one's."""
        return self._steps_ended

    @num_steps_ended.setter
    def num_steps_ended(self, steps: int) -> None:
        self._steps_ended = steps

    def push(self, tensor: int, data: int, **how: Any) -> int:
        """Starts one exchange, as push_all; the ticket."""
        tickets, error = self.push_all([Push(tensor, data, **how)])
        if error is not None:
            raise error
        return tickets[0]

    def push_all(self, pushes: Sequence[Push]) -> tuple[list[int], errors.BandoneonError | None]:
        """Starts exchanges, in order: the tickets of those that are in flight, and the error of the next
        one, at which it stopped, or None."""
        self._collect_dropped()
        count = len(pushes)
        items = (_native.Push * count)(*pushes)
        tickets = (c_uint64 * count)()
        started = c_size_t()
        with self._call() as (lib, handle):
            code = lib.bdn_push_pull_all(handle, items, count, tickets, byref(started))
            error = _native.last_error(code) if code else None
            begun = tickets[: started.value]
            self._in_flight.update(zip(begun, [push.keep for push in pushes]))
        return begun, error

    def push_rows(
        self,
        rows: Sequence[Rows],
        weight: float = 1.0,
        loss_scale: float = 1.0,
        learning_rate: float = 0.0,
        program_steps: int = 0,
    ) -> int:
        """Starts a step of tables, as bdn_push_rows of bandoneon.h; the ticket, for wait()."""
        step = _native.RowsStep(
            sizeof(_native.RowsStep), weight, loss_scale, learning_rate, program_steps, 0, 0
        )
        return self._start_rows(
            rows,
            lambda lib, handle, items, ticket: lib.bdn_push_rows(handle, byref(step), items, len(rows), ticket),
        )

    def fetch_rows(self, rows: Sequence[Rows]) -> int:
        """Asks for the wanted rows as they are now; the ticket."""
        return self._start_rows(
            rows, lambda lib, handle, items, ticket: lib.bdn_fetch_rows(handle, items, len(rows), ticket)
        )

    def set_rows(self, rows: Rows) -> int:
        """Sets rows to what stands as their gradients; the ticket. For one rank, between steps."""
        return self._start_rows(
            [rows], lambda lib, handle, items, ticket: lib.bdn_set_rows(handle, items, ticket)
        )

    def summed_rows(self, table: int, room: int, ids: int, rows: int) -> int:
        """Copies the means of the last step of a table whose rule is "mean", where there is room for so many rows; how
        many there are. NotFound: nobody has pushed anything of it."""
        count = c_uint64()
        with self._call() as (lib, handle):
            _native.check(lib.bdn_summed_rows(handle, table, room, ids, rows, byref(count)))
        return count.value

    def table_layout(self, table: int) -> TableLayout:
        """How the records of a table look, and in how many buckets they are."""
        layout = _native.TableLayout(sizeof(_native.TableLayout))
        with self._call() as (lib, handle):
            _native.check(lib.bdn_get_table_layout(handle, table, byref(layout)))
        return TableLayout(layout.width, layout.moments, layout.buckets, bool(layout.is_limited))

    def scan_rows(self, scan: RowScan) -> int:
        """Asks for the next piece of a scan; the ticket."""
        ticket = c_uint64()
        self._collect_dropped()
        with self._call() as (lib, handle):
            _native.check(lib.bdn_scan_rows(handle, byref(scan), byref(ticket)))
            self._in_flight[ticket.value] = scan
        return ticket.value

    def set_row_records(
        self,
        table: int,
        updates: int,
        ids: int,
        num_ids: int,
        records: int,
        replaces: bool = False,
        rows: int = LIST_ROWS,
    ) -> int:
        """Sets records, which are read before this returns, as bdn_set_row_records of bandoneon.h; the ticket."""
        given = _native.RowRecords(
            sizeof(_native.RowRecords), table, int(replaces), updates, ids, num_ids, records, rows, 0
        )
        ticket = c_uint64()
        self._collect_dropped()
        with self._call() as (lib, handle):
            _native.check(lib.bdn_set_row_records(handle, byref(given), byref(ticket)))
            self._in_flight[ticket.value] = None
        return ticket.value

    def _start_rows(
        self, rows: Sequence[Rows], start: Callable[[ctypes.CDLL, c_void_p, Any, Any], int]
    ) -> int:
        self._collect_dropped()
        items = (_native.Rows * len(rows))(*rows)
        ticket = c_uint64()
        with self._call() as (lib, handle):
            _native.check(start(lib, handle, items, byref(ticket)))
            self._in_flight[ticket.value] = [one.keep for one in rows]
        return ticket.value

    def push_notified(
        self, pushes: Sequence[Push], callback: Callback, timeout: float | None = None
    ) -> None:
        """As push_all; `callback(error)` runs on the completion thread when all of them have ended, or one
        was refused or ended in an error, or none has for `timeout` seconds since it was their turn."""
        with self._idle:
            if self._completions is None:
                self._completions = Completions(self)
        try:
            tickets, error = self.push_all(pushes)
        except errors.BandoneonError as closed:
            callback(closed)
            return
        self._completions.expect(tickets, callback, error, timeout)

    def wait(self, ticket: int, timeout: float | None = None, stream: int | None = None) -> Result:
        """The Result of an exchange. DeadlineExceeded leaves the ticket valid. stream: as wait_all's."""
        results, error = self.wait_all([ticket], timeout, None if stream is None else [stream])
        if error is not None:
            raise error
        return results[0]

    def wait_all(
        self,
        tickets: Sequence[int],
        timeout: float | None = None,
        streams: Sequence[int | None] | None = None,
    ) -> tuple[list[Result], errors.BandoneonError | None]:
        """The Results of exchanges, in order, up to the first that ends in an error or not at all; and
        that error, or None. DeadlineExceeded, where none has ended for `timeout` seconds, leaves its
        ticket valid, as are those behind it. streams: of GPUs, as CUstreams, one a ticket; what is put into
        them from now on finds the results, which may be on their way to their GPU yet."""
        recorder = self.recorder
        if recorder is None or not tickets:
            return self._await(tickets, timeout, streams)
        begun = recorder.begin_wait()
        try:
            return self._await(tickets, timeout, streams, recorder)
        finally:
            recorder.end_wait(begun)

    def wait_unrecorded(
        self, tickets: Sequence[int], timeout: float | None = None
    ) -> tuple[list[Result], errors.BandoneonError | None]:
        """wait_all() of a thread that is not the program's, whose waits hold nothing up."""
        return self._await(tickets, timeout)

    def _await(
        self,
        tickets: Sequence[int],
        timeout: float | None = None,
        streams: Sequence[int | None] | None = None,
        recorder: Recorder | None = None,
    ) -> tuple[list[Result], errors.BandoneonError | None]:
        results: list[Result] = []
        deadline = time.monotonic() + _seconds(timeout)
        report = time.monotonic() + _REPORT_SECONDS
        while True:
            left = deadline - time.monotonic()
            ended, error = self._wait_slice(
                tickets[len(results) :],
                min(max(left, 0.0), SLICE_SECONDS),
                None if streams is None else streams[len(results) :],
            )
            results += ended
            if not isinstance(error, errors.DeadlineExceeded):
                return results, error
            if recorder is not None:
                recorder.hand_over()  # For a dump, should this wait never end.
                recorder = None
            if ended:
                deadline = time.monotonic() + _seconds(timeout)
            elif left <= SLICE_SECONDS:
                return results, error
            if time.monotonic() > report:
                _log.warning("still waiting: %s%s", error, _why_it_goes_on(error))
                report += _REPORT_SECONDS

    def is_done(self, ticket: int) -> Result | None:
        """The Result of an exchange if it has ended, else None."""
        results, error = self._wait_slice([ticket], 0.0)
        if error is not None and not isinstance(error, errors.DeadlineExceeded):
            raise error
        return results[0] if results else None

    def drop(self, ticket: int) -> None:
        """Nobody will wait for the ticket; what it keeps alive lives until it has ended."""
        if os.getpid() == self._pid and not self._closing:
            self._dropped.append(ticket)

    def broadcast(
        self, name: str, data: int, num_bytes: int, root: int, timeout: float | None = None
    ) -> None:
        """Overwrites memory with root's. Collective, in the same order everywhere. Each name and size is
        declared at its first use, and costs the same however often it is used."""
        with lent(data, num_bytes, is_read=True, is_written=True) as copy:
            self._blocking(
                lambda lib, handle: lib.bdn_broadcast(
                    handle, _native.c_text("broadcast", name), copy, num_bytes, root, _seconds(timeout)
                )
            )

    def broadcast_parts(
        self,
        name: str,
        parts: Sequence[tuple[int, int]],
        root: int,
        holding: Holding = Holding.UNKNOWN,
        keep: Any = None,
        timeout: float | None = None,
    ) -> None:
        """As broadcast, of one value that lies in several places, as (address, number of bytes): each worker may cut it in its
        own way. After Ctrl-C the places may still be written to: `keep` is what must outlive that."""
        count = len(parts)
        held = (_native.Bytes * count)(*[_native.Bytes(*part) for part in parts]), keep

        def call(lib: ctypes.CDLL, handle: c_void_p) -> int:
            code: int = lib.bdn_broadcast_parts(
                handle, _native.c_text("broadcast", name), held[0], count, root, holding, _seconds(timeout)
            )
            return code

        self._blocking(call)

    def barrier(self, name: str = "barrier", timeout: float | None = None) -> None:
        """Waits for all workers."""
        self._blocking(
            lambda lib, handle: lib.bdn_barrier(handle, _native.c_text("barrier", name), _seconds(timeout))
        )

    def present(self, timeout: float | None = None, name: str = "present") -> list[int]:
        """Waits for all workers, as barrier() does, and returns the ranks of those that are present, rising: the
        same list in all. Once a worker was lost its rank is vacant, and the others keep theirs. `name` is the
        barrier's."""
        met = _native.c_text("barrier", name)
        ranks = (c_int32 * self.size)()
        count = c_size_t()
        self._blocking(
            lambda lib, handle: lib.bdn_meet(handle, met, _seconds(timeout), ranks, self.size, byref(count))
        )
        return list(ranks)[: count.value]

    def report(self, name: str, value: float, step: int | None = None) -> None:
        """Says a value of this program, its loss, for the scheduler's status page: it goes with the next heartbeat, and
        this never waits. `name` is up to 64 printable ASCII characters without quotes, backslashes and spaces; a job
        has at most 64 names. Without `step` it is one more than that of the name's value before, from 0. What workers
        say of one step is shown as their mean; a value that is not finite, as a gap.
        """
        with self._idle:  # Any thread may report.
            at = self._next_steps.get(name, 0) if step is None else operator.index(step)
        if not 0 <= at < 1 << 64:
            raise errors.InvalidArgument(f"report {name!r}: step {at} is not one of 0 to 2**64 - 1")
        with self._call() as (lib, handle):
            _native.check(lib.bdn_report(handle, _native.c_text("report", name), at, float(value)))
        with self._idle:
            self._next_steps[name] = at + 1

    # ---- State and statistics ----

    def get_state(self, tensor: int, what: str, out: int, elements: int) -> None:
        """Writes the "residual", "momentum", "replica" or "learning_rate" (one number) of a tensor to the
        float32[elements] at address `out`."""
        with self._call() as (lib, handle):
            pointer = ctypes.cast(out, POINTER(c_float))
            _native.check(lib.bdn_get_state(handle, tensor, _native.c_text("state", what), pointer, elements))

    def set_state(self, tensor: int, what: str, data: int, elements: int) -> None:
        """Overwrites what get_state writes, from the float32[elements] at address `data`."""
        with self._call() as (lib, handle):
            pointer = ctypes.cast(data, POINTER(c_float))
            _native.check(lib.bdn_set_state(handle, tensor, _native.c_text("state", what), pointer, elements))

    def get_step(self, tensor: int) -> int:
        """How many exchanges of a tensor there were, those before a checkpoint included."""
        step = c_uint64()
        with self._call() as (lib, handle):
            _native.check(lib.bdn_get_step(handle, tensor, byref(step)))
        return step.value

    def set_step(self, tensor: int, step: int) -> None:
        """Goes on where a checkpoint stopped; the servers' step is set with their state."""
        with self._call() as (lib, handle):
            _native.check(lib.bdn_set_step(handle, tensor, step))

    # ---- What servers hold ----

    def fetch_weights(self, tensor: int, out: int, elements: int, timeout: float | None = None) -> None:
        """Writes the weights, as every worker holds them, to the float32[elements] at address `out`."""
        with lent(out, elements * sizeof(c_float), is_written=True) as copy:
            self._blocking(
                lambda lib, handle: lib.bdn_fetch_weights(
                    handle, tensor, copy, elements, _seconds(timeout)
                )
            )

    def sync_weights(self, tensor: int, data: int, elements: int, timeout: float | None = None) -> None:
        """fetch_weights() where `data` holds what they may be: what is equal by its hash is not sent, and stays."""
        with lent(data, elements * sizeof(c_float), is_read=True, is_written=True) as copy:
            self._blocking(
                lambda lib, handle: lib.bdn_sync_weights(
                    handle, tensor, copy, elements, _seconds(timeout)
                )
            )

    def get_server_state(
        self, tensor: int, what: str, out: int, elements: int, timeout: float | None = None
    ) -> None:
        """Writes a part of what the servers hold, by its name in bandoneon.h, to the address `out`."""
        with lent(out, elements * sizeof(c_float), is_written=True) as copy:
            self._blocking(
                lambda lib, handle: lib.bdn_get_server_state(
                    handle, tensor, _native.c_text("state", what), copy, elements, _seconds(timeout)
                )
            )

    def set_server_state(
        self, tensor: int, what: str, data: int, elements: int, step: int = 0, timeout: float | None = None
    ) -> None:
        """For one rank, between steps. Also sets the step that the servers stand at."""
        with lent(data, elements * sizeof(c_float), is_read=True) as copy:
            self._blocking(
                lambda lib, handle: lib.bdn_set_server_state(
                    handle, tensor, _native.c_text("state", what), copy, elements, step, _seconds(timeout)
                )
            )

    def get_server_counters(self, tensor: int, timeout: float | None = None) -> tuple[int, float]:
        """(updates, learning rate that left the residual)"""
        updates, rate = c_uint64(), c_float()
        self._blocking(
            lambda lib, handle: lib.bdn_get_server_counters(
                handle, tensor, byref(updates), byref(rate), _seconds(timeout)
            )
        )
        return updates.value, rate.value

    def set_server_counters(
        self, tensor: int, updates: int, learning_rate: float, step: int, timeout: float | None = None
    ) -> None:
        """Sets what get_server_counters gives, and the step. For one rank, between steps."""
        self._blocking(
            lambda lib, handle: lib.bdn_set_server_counters(
                handle, tensor, updates, learning_rate, step, _seconds(timeout)
            )
        )

    def set_server_rule(self, tensors: Sequence[int], rule: str, timeout: float | None = None) -> None:
        """The update rule of these tensors from the next step on, of the kind that they were declared with. For
        the rank that sets state, between steps."""
        numbers = (c_uint32 * len(tensors))(*tensors)
        self._blocking(
            lambda lib, handle: lib.bdn_set_server_rule(
                handle, numbers, len(tensors), rule.encode(), _seconds(timeout)
            )
        )

    def record_marks(self, marks: ctypes.Array[_native.Mark]) -> None:
        """Records what the program has done, as marks.pack() gives it. Does nothing where nothing is recorded."""
        with self._call() as (lib, handle):
            _native.check(lib.bdn_marks(handle, marks, len(marks)))

    def write_recording(self, directory: str | os.PathLike[str]) -> str:
        """Writes what this process has recorded to a new file of the directory, and returns the file's path.

        FailedPrecondition: nothing is recorded. Unavailable: the directory cannot be written.
        """
        path = ctypes.create_string_buffer(4096)
        with self._call() as (lib, handle):
            text = _native.c_text("directory", os.fspath(directory))
            _native.check(lib.bdn_write_recording(handle, text, path, len(path)))
        return os.fsdecode(path.value)

    @property
    def marked_step(self) -> int:
        """The step that the program is in, as marks have it; 0 where nothing counts steps."""
        return 0 if self.recorder is None else self.recorder.step

    def _close_recorder(self) -> None:
        recorder, self.recorder = self.recorder, None
        if recorder is not None:
            recorder.close()

    def stats(self) -> dict[str, Any]:
        """Counters of this worker: bytes_pushed, bytes_pulled and others.

        `stages` has for each stage that a key passes through (docs/thread_model.md) its `items`, their `bytes`,
        and the nanoseconds that they took: `wall_ns`, and with the setting stage-times = cpu `cpu_ns`. It is not
        there with stage-times = off.

        `quality` has what the pushes with ef(...) leave out, as docs/metrics.md explains it: of each tensor in
        `tensors` and of runs of them in `groups` the `residual_ratio`, `decoded_cosine` and `owed_steps` of their last
        sample (None where one overflowed), its `step`, how many `encodings` there were and their `nonfinite_share`.
        It is not there with quality-every = 0, nor before the first such push.
        """
        with self._call() as (lib, handle):
            text = _native.read_text(lambda buffer, capacity: lib.bdn_stats_json(handle, buffer, capacity))
        facts: dict[str, Any] = json.loads(text)
        return facts

    # ---- Calls ----

    @contextlib.contextmanager
    def _call(self) -> Iterator[tuple[ctypes.CDLL, c_void_p]]:
        if os.getpid() != self._pid:
            raise errors.FailedPrecondition(
                "this worker belongs to the process that this one was forked from; use bandoneon in "
                "the parent only"
            )
        with self._idle:
            if self._closing:
                raise errors.FailedPrecondition("the worker is closed")
            self._calls += 1
        try:
            yield self._lib, self._handle
        finally:
            with self._idle:
                self._calls -= 1
                if self._calls == 0:
                    self._idle.notify_all()

    def _blocking(self, function: Callable[[ctypes.CDLL, c_void_p], int]) -> None:
        """A call that may wait long in C, on a thread of its own where Ctrl-C must get through."""

        def run() -> None:
            with self._call() as (lib, handle):
                _native.check(function(lib, handle))

        run_interruptibly(run)

    def _wait_slice(
        self, tickets: Sequence[int], seconds: float, streams: Sequence[int | None] | None = None
    ) -> tuple[list[Result], errors.BandoneonError | None]:
        """As wait_all, without a look at signals in between."""
        count = len(tickets)
        results = (_native.Result * count).from_buffer_copy(_EMPTY_RESULT * count)
        ended = c_size_t()
        with self._call() as (lib, handle):
            items = (c_uint64 * count)(*tickets)
            if streams is None:
                code = lib.bdn_wait_all(handle, items, count, seconds, results, byref(ended))
            else:
                of_items = (c_void_p * count)(*streams)
                code = lib.bdn_wait_stream_all(
                    handle, items, of_items, count, seconds, results, byref(ended)
                )
            error = _native.last_error(code) if code else None
        over = ended.value + (
            error is not None and not isinstance(error, errors.DeadlineExceeded)
        )
        for ticket in tickets[:over]:
            self._in_flight.pop(ticket, None)
        facts = _RESULT.iter_unpack(bytes(results)[: ended.value * _RESULT.size])
        return [
            Result(step, bool(flags & _native.RESULT_ABSENT), bool(flags & _native.RESULT_NONFINITE), guessed)
            for _, step, flags, guessed in facts
        ], error

    def _collect_dropped(self) -> None:
        for _ in range(len(self._dropped)):
            try:
                ticket = self._dropped.popleft()
            except IndexError:
                return  # Another thread collects, too.
            if isinstance(self._wait_slice([ticket], 0.0)[1], errors.DeadlineExceeded):
                self._dropped.append(ticket)

    def _check_owner(self, name: str, owner: Owner | None, may_be_known: bool = False) -> None:
        """InvalidArgument where the name is another's. Frees that of an owner that was collected, or would be."""
        holder = self._owners.get(name)
        if holder is None:
            if owner is not None and name in self._declared and not may_be_known:
                raise errors.InvalidArgument(
                    f"tensor {name!r} is exchanged by push_pull() under that name already; give that another "
                    "name=, or the optimizer a prefix=",
                    tensor=name,
                )
            return
        if holder is owner:
            return
        if holder() is not None:
            gc.collect()  # Nobody may have it any more but its own cycles, as after `del optimizer`.
        if holder() is not None:
            raise errors.InvalidArgument(
                f"tensor {name!r} is already exchanged by another optimizer or hook of this worker; "
                "close() that one first (in a notebook, in the cell that makes it, before it makes another), or "
                "give one of them a prefix=",
                tensor=name,
            )
        self.disown(holder)


def _listed(facts: dict[str, Any], names: list[str]) -> str:
    return ", ".join(f"{name}={facts[name]!r}" for name in names)


def _give_back(lib: ctypes.CDLL, block: c_void_p, pid: int) -> None:
    if os.getpid() == pid:
        lib.bdn_free_memory(block)


def _is_of_whole_job(error: BaseException) -> bool:
    return isinstance(error, errors.JobFailed) and _ONE_LEAVES not in str(error)


def _why_it_goes_on(error: errors.BandoneonError) -> str:
    """As WhyTheWaitGoesOn of the library: of a wait for workers, what the log says besides."""
    if not (error.waiting_for or "").startswith(("worker ", "host ")):
        return ""
    return (
        ", which the job holds for alive: the wait goes on, for setting wait-timeout is for answers that a server"
        " owes. Where one rank works alone for long, as to evaluate, let all ranks call barrier() behind that"
    )


def _encoded(reason: str) -> bytes:
    """For C, where a text ends with NUL."""
    return reason.replace("\0", "\\0").encode(errors="replace")


def _seconds(timeout: float | None) -> float:
    return FOREVER_SECONDS if timeout is None else float(timeout)
