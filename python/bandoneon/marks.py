"""Marks: what a program does and when, as bdn_mark of bandoneon.h has it. Knows no torch."""

from __future__ import annotations

import array
import bisect
import ctypes
import os
import threading
import time
from typing import Iterable, Optional, Sequence

from . import _native

# The kinds: docs/trace_format.md, Marks.
STEP, FORWARD, READY, WAITING, OPTIMIZER, COLLECTION, INPUT, USER, BACKWARD = range(32, 41)

# Of a thread: (CLOCK_MONOTONIC, its CPU time, its time in the run queue, its number). The number is 0 where the clock
# alone was read. Times are in ns.
Reading = tuple[int, int, int, int]
# (begin, wall time, CPU time, time in the run queue, kind, tensor). CPU time is 0 where it was not measured.
Span = tuple[int, int, int, int, int, int]

_WORDS = 8  # of 8 bytes in a mark: size, begin, wall, CPU, queued, step, tensor and kind, text
assert ctypes.sizeof(_native.Mark) == 8 * _WORDS and _native.Mark.kind.offset == _native.Mark.tensor.offset + 4
_LOW = 2**32 - 1
_READY = READY << 32

clock = time.monotonic_ns


class _RunQueueFile:
    """The file in which the kernel counts a thread's time in the run queue. It stays open, as opening takes 20 times
    as long as reading."""

    def __init__(self) -> None:
        self._descriptor: Optional[int] = None
        try:
            self._descriptor = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            pass  # Kernels without CONFIG_SCHED_INFO have none.

    def read(self) -> int:
        """Nanoseconds in which the thread was ready to run and did not; 0 where nobody counts them."""
        if self._descriptor is None:
            return 0
        try:
            return int(os.pread(self._descriptor, 64, 0).split()[1])
        except (OSError, ValueError, IndexError):
            self._close()
            return 0

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def __del__(self) -> None:
        self._close()


class _OfThread(threading.local):
    """What each thread has of its own; dropped when the thread ends."""

    def __init__(self) -> None:
        self.run_queue = _RunQueueFile()


_of_thread = _OfThread()


def read() -> Reading:
    """Of the calling thread. Takes about 2 us."""
    return clock(), time.thread_time_ns(), _of_thread.run_queue.read(), threading.get_ident()


def glance() -> Reading:
    """The clock alone, for what happens often. Takes about 0.1 us."""
    return clock(), 0, 0, 0


def span(kind: int, begin: Reading, end: Reading, tensor: int = _native.NO_TENSOR) -> Span:
    """From one reading to another. CPU and queued time are measured where one thread has made both."""
    if begin[3] != end[3] or not end[3]:
        return begin[0], max(0, end[0] - begin[0]), 0, 0, kind, tensor
    return begin[0], max(0, end[0] - begin[0]), max(0, end[1] - begin[1]), max(0, end[2] - begin[2]), kind, tensor


def pack(
    spans: Iterable[Span], step: int, instants: Sequence[int] = (), text: Optional[bytes] = None
) -> ctypes.Array[_native.Mark]:
    """For Worker.record_marks(), in the order of their ends. instants: of gradients that are ready, each as instant()
    gives it, in their order. `text` must outlive the array."""
    begins: list[int] = []
    whats: list[int] = []  # tensor and kind, which are neighbours in a mark
    timed: list[tuple[int, Span]] = []  # spans with their places

    def add_instants(few: Sequence[int]) -> None:
        begins.extend([one >> 32 for one in few])
        whats.extend([one & _LOW | _READY for one in few])

    added = 0
    for one in sorted(spans, key=_end):
        before = bisect.bisect_left(instants, _end(one) << 32, added)
        add_instants(instants[added:before])
        added = before
        timed.append((len(begins), one))
        begins.append(one[0])
        whats.append(one[4] << 32 | one[5])
    add_instants(instants[added:])
    # Column by column, as array does that for hundreds of marks in the time that a structure takes for ten.
    count = len(begins)
    packed = array.array("Q", bytes(_WORDS * 8 * count))
    packed[0::_WORDS] = array.array("Q", [_WORDS * 8]) * count
    packed[1::_WORDS] = array.array("Q", begins)
    packed[5::_WORDS] = array.array("Q", [step]) * count
    packed[6::_WORDS] = array.array("Q", whats)
    for place, one in timed:
        first = place * _WORDS
        packed[first + 2], packed[first + 3], packed[first + 4] = one[1:4]
    if text is not None:
        address = ctypes.cast(ctypes.c_char_p(text), ctypes.c_void_p).value or 0
        packed[7::_WORDS] = array.array("Q", [address]) * count
    return (_native.Mark * count).from_buffer(packed)


def instant(tensor: int) -> int:
    """Now, as one number: its gradient is ready. Hooks of gradients compute that themselves."""
    return clock() << 32 | tensor


def _end(one: Span) -> int:
    return one[0] + one[1]
