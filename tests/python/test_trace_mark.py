"""bandoneon.trace.mark(): names for what a program does."""

import os
import pathlib
import sys
import threading
import time

import pytest

import bandoneon
from bandoneon import _native, marks, trace
from cluster_helpers import run_job

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "reference"))
import trace_reference  # noqa: E402  # pylint: disable=wrong-import-position


def told(worker):
    """A list of (text, begin, wall, CPU time, step, tensor, kind) that fills as the worker is told them."""
    seen, record = [], worker.record_marks

    def note(array):
        seen.extend((m.text, m.begin_ns, m.wall_ns, m.cpu_ns, m.step, m.tensor, m.kind) for m in array)
        record(array)

    worker.record_marks = note
    return seen


def test_a_context_is_a_span_and_anything_else_an_instant():
    def job(worker):
        seen = told(worker)
        before = time.monotonic_ns()
        trace.mark("learning rate halved", worker=worker)
        with trace.mark("validation", worker=worker):
            sum(range(100_000))
        after = time.monotonic_ns()
        del worker.record_marks
        return before, seen, after

    ((before, seen, after),) = run_job(job, workers=1)
    instant, span = seen
    assert (instant[0], instant[2:]) == (b"learning rate halved", (0, 0, 0, _native.NO_TENSOR, marks.USER))
    assert span[0] == b"validation" and span[2] > 0 and span[3] > 0 and span[4:] == (0, _native.NO_TENSOR, marks.USER)
    assert before <= instant[1] <= span[1] <= span[1] + span[2] <= after


def test_a_span_ends_with_an_exception_which_goes_on():
    def job(worker):
        seen = told(worker)
        with pytest.raises(KeyError):
            with trace.mark("fails", worker=worker):
                raise KeyError("x")
        del worker.record_marks
        return [one[0] for one in seen]

    assert run_job(job, workers=1) == [[b"fails"]]


def test_what_was_recorded_is_written_when_asked(tmp_path):
    def job(worker):
        with trace.mark("validation", worker=worker):
            pass
        path = pathlib.Path(trace.write(tmp_path / "slow", worker=worker))
        recording = trace_reference.read(path.read_bytes())
        (mark,) = [one for one in recording.records if one.kind == "user"]
        assert path.parent == tmp_path / "slow" and recording.names[mark.key] == "validation"
        with pytest.raises(bandoneon.Unavailable, match="/dev/null/x"):
            trace.write("/dev/null/x", worker=worker)

    run_job(job, workers=1)


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "needs a text"),
        (None, "needs a text"),
        (7, "needs a text"),
        ("a\0b", "contains NUL"),
        ("ä" * 129, "has 258 bytes"),
    ],
)
def test_a_text_that_is_none_is_refused(text, message):
    with pytest.raises(bandoneon.InvalidArgument, match=message):
        trace.mark(text)


def test_without_a_worker_or_with_a_closed_one_nothing_happens():
    with trace.mark("alone"):
        trace.mark("still alone")

    def job(worker):
        worker.close_unneeded()
        with trace.mark("closed", worker=worker):
            trace.mark("closed", worker=worker)

    run_job(job, workers=1)


# ---- Readings ----


def in_a_thread(function):
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def test_cpu_and_queued_time_are_of_one_thread():
    begin = marks.read()
    while time.thread_time_ns() - begin[1] < 2_000_000:
        pass
    at, wall, cpu, queued, kind, tensor = marks.span(marks.USER, begin, marks.read())
    assert at == begin[0] and cpu >= 2_000_000 and cpu <= wall + 1_000_000 and queued >= 0
    assert (kind, tensor) == (marks.USER, _native.NO_TENSOR)
    at, wall, cpu, queued, *_ = marks.span(marks.USER, begin, in_a_thread(marks.read))
    assert wall > 0 and (cpu, queued) == (0, 0)
    assert marks.span(marks.USER, marks.glance(), marks.glance())[2:4] == (0, 0)


def test_a_thread_that_waited_for_a_processor_says_so():
    """Two threads of one processor cannot run at once."""
    processors = os.sched_getaffinity(0)
    queued = []
    go_on = threading.Barrier(2)

    def spin():
        os.sched_setaffinity(0, {min(processors)})  # of this thread alone
        begin = marks.read()
        go_on.wait(30)
        while marks.read()[1] - begin[1] < 30_000_000:
            sum(range(1000))
        queued.append(marks.span(marks.USER, begin, marks.read())[3])

    if not in_a_thread(lambda: marks.read()[2] or os.path.exists("/proc/thread-self/schedstat")):
        pytest.skip("this kernel does not count time in the run queue")
    child = os.fork()
    if child == 0:  # Another process, for threads of one wait for each other's lock of the interpreter instead.
        os.sched_setaffinity(0, {min(processors)})
        end = time.monotonic() + 60
        while time.monotonic() < end and os.getppid() != 1:
            pass
        os._exit(0)
    try:
        threads = [threading.Thread(target=spin) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert max(queued) > 1_000_000


def test_the_file_of_a_thread_is_closed_with_it():
    marks.read()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        in_a_thread(marks.read)
    assert len(os.listdir("/proc/self/fd")) == before


def test_where_nobody_counts_the_run_queue_it_is_zero(monkeypatch):
    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(os, "open", refuse)
    assert in_a_thread(marks.read)[2] == 0
    monkeypatch.undo()
    monkeypatch.setattr(os, "pread", lambda *_: b"garbage")
    assert in_a_thread(marks.read)[2] == 0


def test_marks_are_packed_in_the_order_of_their_ends():
    spans = [(10, 90, 1, 2, marks.STEP, 3), (21, 5, 0, 0, marks.WAITING, _native.NO_TENSOR)]
    packed = marks.pack(spans, 7, [20 << 32 | 5, 25 << 32 | 4, 110 << 32 | 6])
    fields = [name for name, _ in _native.Mark._fields_]
    assert [tuple(getattr(one, name) for name in fields) for one in packed] == [
        (64, 20, 0, 0, 0, 7, 5, marks.READY, None),
        (64, 25, 0, 0, 0, 7, 4, marks.READY, None),
        (64, 21, 5, 0, 0, 7, _native.NO_TENSOR, marks.WAITING, None),
        (64, 10, 90, 1, 2, 7, 3, marks.STEP, None),
        (64, 110, 0, 0, 0, 7, 6, marks.READY, None),
    ]
    assert marks.pack(spans[:1], 7, text=b"a text")[0].text == b"a text"
    before = marks.clock()
    assert before <= marks.instant(9) >> 32 <= marks.clock() and marks.instant(9) % 2**32 == 9
