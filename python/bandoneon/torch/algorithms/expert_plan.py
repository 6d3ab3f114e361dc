"""Copies of the experts that most tokens go to, so that no device computes far more than the others."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Iterable, Sequence

from ...errors import InvalidArgument

Counts = Sequence[Sequence[int]]


@dataclass(frozen=True)
class PlannedStep:
    """Where the tokens of a step are computed."""

    copies: tuple[tuple[int, ...], ...]  # of each expert: the devices beside its owner that compute their own tokens
    cost: float  # in seconds, by the counts that it was planned for
    unplanned_cost: float  # the same without copies


class ExpertPlan:
    """Plans which experts of a mixture (MoE) are copied to which devices in the next step, as Pro-Prophet does (arXiv
    2411.10003). Pure arithmetic: needs no job, and gives the same plan everywhere for the same counts.

        plan = bdn.algorithms.ExpertPlan(counts, token_bytes=4096, expert_bytes=33e6, rate=2e5, bandwidth=1e9)
        for step in range(steps):
            step_plan = plan.next()             # Of the counts of the step before.
            ...                                 # Compute as step_plan.copies says; count tokens by device and expert.
            plan.update(counts)

    A device computes the tokens of its own experts, its own tokens of the experts that it has a copy of, and sends all
    others to their experts' owners. With R the bytes that a device receives and H the tokens that it computes, of D:

        cost = 4 max R / bandwidth + 3 max H / rate + copies x 2 expert_bytes / (D bandwidth)

    for tokens travel to their experts and back in both passes, a backward pass computes twice as much as a forward pass, and a
    copy's parameters come and its gradients go. The plan is greedy: the expert with most tokens on the device with
    most to compute is copied to all but the n devices that have fewest tokens for it, and so on, and of these the first
    ones whose cost is least are kept, over every n. So it is never dearer than no copies, by these counts.

    counts: tokens by device and expert, counts[device][expert], the same in all workers.
    owners: the device of each expert; e modulo D by default.
    token_bytes, expert_bytes: of a token's activations, and of the parameters of an expert.
    rate: tokens that a device computes in a second in the forward pass. bandwidth: bytes that a device receives in a second.
    alpha: the search ends when the most and the least loaded devices differ by less than alpha x tokens / experts.
    """

    def __init__(
        self,
        counts: Counts,
        *,
        owners: Iterable[int] | None = None,
        token_bytes: float = 4096.0,
        expert_bytes: float = 33e6,
        rate: float = 2e5,
        bandwidth: float = 1e9,
        alpha: float = 0.3,
    ) -> None:
        self._counts = _checked_counts(counts)
        devices, experts = len(self._counts), len(self._counts[0])
        self.owners = _integers("owners", (e % devices for e in range(experts)) if owners is None else owners)
        if len(self.owners) != experts or not all(0 <= owner < devices for owner in self.owners):
            raise InvalidArgument(f"owners={list(self.owners)} are not {experts} devices, one an expert, of 0 to {devices - 1}")
        for name, value in dict(token_bytes=token_bytes, expert_bytes=expert_bytes, alpha=alpha).items():
            _check_number(name, value, is_zero_allowed=True)
        for name, value in dict(rate=rate, bandwidth=bandwidth).items():
            _check_number(name, value, is_zero_allowed=False)
        self._token_bytes, self._expert_bytes = float(token_bytes), float(expert_bytes)
        self._rate, self._bandwidth, self._alpha = float(rate), float(bandwidth), float(alpha)

    def update(self, counts: Counts) -> None:
        """The counts of a step that has ended, for the plan of the next one."""
        counts = _checked_counts(counts)
        shape, before = ((len(c), len(c[0])) for c in (counts, self._counts))
        if shape != before:
            raise InvalidArgument(f"counts are of {shape[0]} devices and {shape[1]} experts, and were of {before[0]} and {before[1]}")
        self._counts = counts

    def next(self) -> PlannedStep:
        """The plan by the last counts."""
        none = ((),) * len(self.owners)
        unplanned = self.cost(none)
        best, least = none, unplanned
        for n in range(len(self._counts) - 1):
            for copies in self._prefixes(n):
                cost = self.cost(copies)
                if cost < least:
                    best, least = copies, cost
        return PlannedStep(best, least, unplanned)

    def loads(self, copies: Sequence[Sequence[int]], counts: Counts | None = None) -> list[int]:
        """The tokens that each device computes, by these counts or the last ones."""
        return self._computed_and_received(copies, counts)[0]

    def received(self, copies: Sequence[Sequence[int]], counts: Counts | None = None) -> list[int]:
        """The tokens that each device receives of others, by these counts or the last ones."""
        return self._computed_and_received(copies, counts)[1]

    def cost(self, copies: Sequence[Sequence[int]], counts: Counts | None = None) -> float:
        """Seconds by the formula above, by these counts or the last ones."""
        computed, received = self._computed_and_received(copies, counts)
        number = sum(map(len, copies))
        return (
            4 * max(received) * self._token_bytes / self._bandwidth
            + 3 * max(computed) / self._rate
            + number * 2 * self._expert_bytes / (len(computed) * self._bandwidth)
        )

    def _computed_and_received(self, copies, counts):
        counts = self._counts if counts is None else _checked_counts(counts)
        computed, received = [0] * len(counts), [0] * len(counts)
        for expert, (owner, places) in enumerate(zip(self.owners, copies)):
            for device, row in enumerate(counts):
                is_here = device == owner or device in places
                computed[device if is_here else owner] += row[expert]
                received[owner] += 0 if is_here else row[expert]
        return computed, received

    def _prefixes(self, n):
        """The choices of copies that a greedy search comes through, where n devices get no copy."""
        copies = [()] * len(self.owners)
        seen = set()
        enough = self._alpha * sum(map(sum, self._counts)) / len(self.owners)
        while True:
            loads = self.loads(copies)
            heaviest = max(range(len(loads)), key=lambda device: (loads[device], -device))
            mine = [e for e, owner in enumerate(self.owners) if owner == heaviest and not copies[e]]
            if max(loads) - min(loads) < enough or heaviest in seen or not mine:
                return
            seen.add(heaviest)
            expert = max(mine, key=lambda e: (sum(row[e] for row in self._counts), -e))
            others = [d for d in range(len(loads)) if d != heaviest]
            others.sort(key=lambda d: (-self._counts[d][expert], d))
            copies[expert] = tuple(sorted(others[: len(others) - n]))
            yield tuple(copies)


def _checked_counts(counts):
    try:
        rows = [_integers("counts", row) for row in list(counts)]
    except TypeError:
        raise InvalidArgument(f"counts={counts!r} are not numbers of tokens by device and expert, counts[device][expert]") from None
    if len(rows) < 1 or not rows[0] or any(len(row) != len(rows[0]) for row in rows):
        raise InvalidArgument(f"counts have rows of {[len(row) for row in rows]} experts; give as many to each device, one or more")
    if any(count < 0 for row in rows for count in row):
        raise InvalidArgument(f"counts have {min(map(min, rows))} among them; numbers of tokens are 0 or more")
    return rows


def _integers(name, values):
    try:
        return tuple(operator.index(value) for value in values)
    except TypeError as error:
        raise InvalidArgument(f"{name} has what is no whole number: {error}") from None


def _check_number(name, value, is_zero_allowed):
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value < 0 or (value == 0 and not is_zero_allowed):
        least = "0 or more" if is_zero_allowed else "above 0"
        raise InvalidArgument(f"{name}={value!r} is not a finite number {least}")
