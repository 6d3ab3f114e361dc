"""Faults of a worker in Python: places of TrainingState at which it is killed, stopped past its lease, or has its connections cut, as
tests/system/faulty/faults.cc does it at those of C++.

TEST_STATE_FAULTS has the text of BANDONEON_FAULT, with POINTS as points, and of its fields point, rank, at, do, once-file and after.
"""

import os
import signal
import subprocess
import threading

from bandoneon.torch import handover, training_state

POINTS = [
    "state.candidate",  # a newcomer has joined, and declared nothing
    "state.ready",  # a newcomer waits at the boundary, or is about to
    "state.taken-in",  # a newcomer was taken in, and has no state
    "state.piece",  # a giver, or a newcomer, has had some of the state
    "state.compared",  # all have had the state, and do not know it of each other
    "state.change",  # one who stays goes to the boundary
    "state.step",  # a step begins beside which a ballot is cast
]
CUT_SIGNAL = signal.SIGRTMIN + 5  # as faults.cc


class Fault:
    def __init__(self, text):
        fields = dict(part.split("=", 1) for part in text.split(",") if "=" in part)
        self.point, self.what = fields["point"], fields.get("do", "kill")
        self.rank = int(fields["rank"]) if "rank" in fields else None
        self.at = int(fields.get("at", "1"))
        self.once_file, self.after = fields["once-file"], fields.get("after")
        self.passed = 0

    def pass_point(self, rank):
        if self.rank not in (None, rank) or (self.after and not os.path.exists(self.after)):
            return
        self.passed += 1
        if self.passed == self.at and self._is_first():
            self._do()

    def _is_first(self):
        try:
            file = os.open(self.once_file, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            return False
        os.write(file, f"{os.getpid()}\n".encode())
        os.close(file)
        return True

    def _do(self):
        what, _, seconds = self.what.partition(":")
        if what == "stop":
            subprocess.Popen(["sh", "-c", f"sleep {seconds}; kill -CONT {os.getpid()}"], env={})
            os.kill(os.getpid(), signal.SIGSTOP)
        else:
            os.kill(os.getpid(), signal.SIGKILL if what == "kill" else CUT_SIGNAL)


def install(worker):
    """Has this worker's TrainingState pass the points."""
    faults = [Fault(text) for text in os.environ.get("TEST_STATE_FAULTS", "").split(";") if text]
    lock = threading.Lock()

    def reach(point):
        with lock:
            for fault in faults:
                if fault.point == point:
                    fault.pass_point(worker.rank)

    def before(owner, name, point):
        original = getattr(owner, name)

        def call(*arguments, **named):
            reach(point(*arguments))
            return original(*arguments, **named)

        setattr(owner, name, call)

    boundary = worker.boundary

    def reach_boundary(*arguments, **named):
        is_candidate = worker.is_candidate()
        reach("state.ready" if is_candidate else "state.change")
        newcomers = boundary(*arguments, **named)
        if is_candidate:
            reach("state.taken-in")
        return newcomers

    worker.boundary = reach_boundary
    handover._PIECE_BYTES = 2 << 20  # Several, of a small model.
    before(handover.Lane, "send", lambda lane, *_: "state.piece" if lane.has_bytes() else "")
    before(training_state.Ballot, "cast", lambda *_: "state.step")
    before(training_state.Ballot, "agree", lambda *_: "state.compared")
    if worker.is_candidate():
        reach("state.candidate")
