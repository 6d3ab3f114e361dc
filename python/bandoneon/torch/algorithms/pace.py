"""Meetings of LocalSteps by time, for workers that are not equally fast."""

from __future__ import annotations

import collections
import json
import os
import statistics
from typing import Any, IO

from ...errors import FailedPrecondition, InvalidArgument
from ..hyperparameters import check_positive, check_steps

_REMEMBERED = 20  # durations of steps, of which the median counts


class Pace:
    """For LocalSteps(tau=): meetings come about `seconds` apart, and each worker makes as many steps until the next one
    as it has time for. So a slow worker makes fewer steps, and the fast ones do not wait for it.

        optimizer = bdn.LocalSteps(inner, model, tau=bdn.algorithms.Pace(seconds=30), outer=bdn.algorithms.Nesterov())
        while optimizer.meetings < 500:    # The workers' numbers of steps differ: count meetings.
            ...

    At the beginning of a round each worker decides by itself how many steps it will make in it:

        tau = seconds / median of its last 20 steps' durations, rounded, but at least `least` and at most `most`

    and its first round has `least`. A step's duration is the time from the end of one step() to the end of the next,
    without the meeting: so it has the data's part in it.

    seconds: the time between two meetings, to aim at. A meeting is where all have come: how much longer it takes is
        what the slowest has misjudged.
    least, most: bounds of tau.
    log: a path; the worker writes the steps of each of its rounds into PATH.RANK.
    replay: such a path: each round has as many steps as the log says, and the weights are those of the run that
        wrote it, bit for bit. InvalidArgument where it lacks a round.

    Each worker counts as one in the mean, however many steps it has made; LocalSteps(weight="steps") counts steps,
    which suits workers whose data are alike. One object is for one LocalSteps.
    """

    def __init__(
        self,
        seconds: float,
        *,
        least: int = 1,
        most: int = 1000,
        log: str | os.PathLike[str] | None = None,
        replay: str | os.PathLike[str] | None = None,
    ) -> None:
        check_positive(seconds=seconds)
        check_steps(least=least, most=most)
        if most < least:
            raise InvalidArgument(f"most={most} is less than least={least}")
        self.seconds, self.least, self.most = float(seconds), int(least), int(most)
        self._log, self._replay = log, replay
        self._durations: collections.deque[float] = collections.deque(maxlen=_REMEMBERED)
        self._rank: int | None = None
        self._file: IO[str] | None = None
        self._said: dict[int, int] = {}  # round: steps, of the log to replay

    def __repr__(self) -> str:
        return f"Pace(seconds={self.seconds:g}, least={self.least}, most={self.most})"

    def _begin(self, rank):
        """LocalSteps calls it once."""
        if self._rank is not None:
            raise FailedPrecondition("this Pace measures the steps of another LocalSteps: make one for each")
        self._rank = rank
        if self._replay is not None:
            self._said = _read(f"{os.fspath(self._replay)}.{rank}")

    def _note_step(self, duration):
        self._durations.append(duration)

    def _steps(self, meeting):
        """Of the round that ends in this meeting, counted from 0."""
        if self._replay is None:
            steps = self.least
            if self._durations:
                # A median of 0 is of a clock that is too coarse for such steps.
                fit = self.seconds / max(statistics.median(self._durations), 1e-9)
                # Rounded and not cut off: 1.9 steps that became 1 would leave nearly half of the time unused.
                steps = round(min(max(fit, self.least), self.most))
        else:
            path = f"{os.fspath(self._replay)}.{self._rank}"
            if meeting not in self._said:
                raise InvalidArgument(f"replay: {path} lacks round {meeting}: the run that wrote it ended before")
            steps = self._said[meeting]
        self._write(meeting, steps)
        return steps

    def _write(self, meeting, steps):
        if self._log is None:
            return
        if self._file is None:
            # A run that goes on from a checkpoint goes on with its log, too.
            self._file = open(f"{os.fspath(self._log)}.{self._rank}", "a" if meeting else "w", buffering=1)
        print(json.dumps({"round": meeting, "steps": steps}), file=self._file)

    def _state(self) -> list[float]:
        return list(self._durations)

    def _load(self, durations: Any):
        is_list = isinstance(durations, list) and all(isinstance(d, float) and d >= 0 for d in durations)
        if not is_list:
            raise InvalidArgument(f"the state's durations of steps are {durations!r}, and not a list of seconds")
        self._durations.clear()
        self._durations.extend(durations)


def _read(path):
    said = {}
    with open(path) as lines:
        for number, line in enumerate(lines, 1):
            try:
                entry = json.loads(line)
                meeting, steps = entry["round"], entry["steps"]
            except (ValueError, TypeError, KeyError):
                meeting = steps = None
            if not isinstance(meeting, int) or not isinstance(steps, int) or steps < 1:
                raise InvalidArgument(f'replay: line {number} of {path} is not {{"round": N, "steps": N}}')
            said[meeting] = steps
    return said
