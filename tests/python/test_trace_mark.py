"""bandoneon.trace.mark(): names for what a program does."""

import time

import pytest

import bandoneon
from bandoneon import _native, marks, trace
from cluster_helpers import run_job


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


@pytest.mark.parametrize(
    "text, message",
    [("", "needs a text"), (None, "needs a text"), (7, "needs a text"), ("a\0b", "contains NUL"), ("ä" * 129, "has 258 bytes")],
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
