"""Micro-batches of sequences of unequal length: which to pad together, and which worker computes them."""

from __future__ import annotations

import bisect
import heapq
import itertools
import math
import operator
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Iterator, Sequence, SupportsIndex, Union

from .errors import InvalidArgument

__all__ = ["MicroBatches", "TimeModel", "micro_batches"]

_FEW = 16  # lengths up to which all bounds of a batch's time are tried
_RATIO = 2**0.5  # of bounds that are tried one after the other
_BLOCK = 64  # sizes of a batch that are looked at together

Memory = Union[int, Callable[[int, int], bool]]


@dataclass(frozen=True)
class TimeModel:
    """The seconds that a batch of `count` sequences takes which are padded to `longest`:

        base + linear x count x longest + quadratic x count x longest^2

    where the last term is attention's. Fit it to a few batches that were measured:

        seconds = bandoneon.TimeModel.fit([((1, 128), 0.011), ((8, 128), 0.052), ((8, 512), 0.31), ((2, 1024), 0.22)])
        seconds(4, 256)

    base, linear, quadratic: not negative, and not all 0.
    """

    base: float
    linear: float
    quadratic: float

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not _is_number(value) or value < 0:
                raise InvalidArgument(f"{name}={value!r} is not a finite number, 0 or more")
        if self.base == self.linear == self.quadratic == 0:
            raise InvalidArgument("base, linear and quadratic are all 0: batches would take no time")

    def __call__(self, count: int, longest: int) -> float:
        """The seconds of a batch."""
        return self.base + count * longest * (self.linear + self.quadratic * longest)

    @staticmethod
    def fit(pairs: Iterable[tuple[tuple[int, int], float]]) -> TimeModel:
        """The model whose relative errors have the least sum of squares. `pairs`: ((count, longest), seconds) of each
        batch that was measured. Three or more of different counts and lengths determine all terms; of fewer, terms
        that nothing tells apart are 0."""
        rows: list[tuple[float, float, float]] = []
        for pair in pairs:
            count, longest, seconds = _checked_pair(pair)
            # Divided by the seconds: an error of a tenth counts alike in small batches and large ones.
            rows.append((1 / seconds, count * longest / seconds, count * longest**2 / seconds))
        if not rows:
            raise InvalidArgument("pairs is empty: give ((count, longest), seconds) of a few measured batches")
        best, least = (0.0, 0.0, 0.0), math.inf
        # The solution without negative terms is the best one of those that use some terms and no others. Few terms
        # come first, and the linear one before the others, so that more are used only where they make it better.
        for chosen in ((1,), (0,), (2,), (0, 1), (1, 2), (0, 2), (0, 1, 2)):
            terms = _least_squares(rows, chosen)
            if terms is None or min(terms) < 0:
                continue
            error = sum((1 - sum(map(operator.mul, row, terms))) ** 2 for row in rows)
            if error < least - 1e-12:
                best, least = terms, error
        return TimeModel(*best)


@dataclass(frozen=True)
class MicroBatches:
    """A plan that micro_batches() made. Each of its fields has an entry for every worker, by rank.

    batches: the worker's micro-batches, those of the longest sequences first; each is a tuple of indices of `lengths`.
    tokens: the sum of its lengths, without padding: for weight=, so that the mean is one over all tokens.
    seconds: the time that its micro-batches take, by `seconds`.
    slowest: the time of the micro-batch that takes longest, of all workers.
    step_seconds: the time of a step: (stages - 1) x slowest + the largest of `seconds`.
    """

    batches: tuple[tuple[tuple[int, ...], ...], ...]
    tokens: tuple[int, ...]
    seconds: tuple[float, ...]
    slowest: float
    step_seconds: float


def micro_batches(
    lengths: Iterable[SupportsIndex],
    *,
    seconds: Callable[[int, int], float],
    memory: Memory | None = None,
    stages: int = 1,
    workers: int = 1,
) -> MicroBatches:
    """Cuts the sequences of one step into micro-batches of little padding, and deals them to workers (DynaPipe, arXiv
    2311.10418). The result is the same wherever it is computed from the same lengths.

        seconds = bandoneon.TimeModel.fit(measured)
        plan = bandoneon.micro_batches(lengths, seconds=seconds, workers=bdn.size())
        for batch in plan.batches[bdn.rank()]:
            ...                                     # Pad the sequences of these indices to the longest of them.
        weight = plan.tokens[bdn.rank()]            # What this worker's mean counts for, as Links(weight=) has it.

    The sequences are sorted. For each of some bounds of a batch's time a dynamic program finds the cuts with the least
    sum of times, best[j] = min over i of best[i] + seconds(j - i, longest), and the largest differencing method of
    Karmarkar and Karp deals the batches. The plan is the one whose step takes least, (stages - 1) x slowest batch +
    most loaded worker. No other batches take less where there are one worker and one stage, or one worker and at most
    16 sequences.

    lengths: those of the sequences, each 1 or more.
    seconds: a function of how many sequences a batch has and the longest of them: its time, which must not fall as
        either grows. A TimeModel, or any other.
    memory: what fits: the largest count x longest of a batch, or a function of count and longest that says whether
        they fit, which must not become true again as either grows. None: everything fits.
    stages: of a pipeline through which a worker's micro-batches go.
    workers: among how many the batches are dealt; one that gets none has 0 tokens.
    """
    sizes = _checked_lengths(lengths)
    stages, workers = _checked_number(stages=stages), _checked_number(workers=workers)
    if not callable(seconds):
        raise InvalidArgument(f"seconds={seconds!r} is not a function of a batch's count and longest sequence")
    order = sorted(range(len(sizes)), key=sizes.__getitem__)
    cutter = _Cutter([sizes[i] for i in order], seconds, _memory_function(memory))

    best: _Deal | None = None
    for batches in cutter.plans(stages, workers):
        # No dealing is better than an even one.
        if best is None or _step_at_best(batches, stages, workers) < best.step_seconds:
            deal = _dealt(batches, stages, workers)
            if best is None or deal.step_seconds < best.step_seconds:
                best = deal
    assert best is not None
    return MicroBatches(
        tuple(
            tuple(tuple(order[b.begin : b.end]) for b in sorted(own, key=lambda b: -b.begin)) for own in best.batches
        ),
        tuple(sum(sizes[order[i]] for b in own for i in range(b.begin, b.end)) for own in best.batches),
        tuple(math.fsum(b.seconds for b in own) for own in best.batches),
        best.slowest,
        best.step_seconds,
    )


@dataclass(frozen=True)
class _Batch:
    """The sequences from `begin` to `end`, without it, of those that are sorted."""

    begin: int
    end: int
    seconds: float


@dataclass(frozen=True)
class _Deal:
    batches: list[list[_Batch]]  # by worker
    slowest: float
    step_seconds: float


def _step_at_best(batches: list[_Batch], stages: int, workers: int) -> float:
    """The time of a step if the batches could be dealt evenly."""
    slowest = max(batch.seconds for batch in batches)
    return (stages - 1) * slowest + max(slowest, math.fsum(batch.seconds for batch in batches) / workers)


def _dealt(batches: list[_Batch], stages: int, workers: int) -> _Deal:
    shares = karmarkar_karp([batch.seconds for batch in batches], workers)
    own = [[batches[i] for i in share] for share in shares]
    slowest = max(batch.seconds for batch in batches)
    most = max(math.fsum(batch.seconds for batch in share) for share in own)
    return _Deal(own, slowest, (stages - 1) * slowest + most)


def karmarkar_karp(values: Sequence[float], parts: int) -> list[list[int]]:
    """The indices of the values, dealt into so many parts of nearly equal sums by largest differencing."""
    # Each entry is a dealing of some values whose sums are sorted; the one with the largest difference comes first.
    # The number in it makes the order, and so the result, the same everywhere.
    heap: list[tuple[float, int, list[tuple[float, list[int]]]]] = []
    for index, value in enumerate(values):
        sums: list[tuple[float, list[int]]] = [(value, [index])] + [(0.0, []) for _ in range(parts - 1)]
        heap.append((-value if parts > 1 else 0.0, index, sums))
    heapq.heapify(heap)
    numbers = itertools.count(len(values))
    while len(heap) > 1:
        _, _, first = heapq.heappop(heap)
        _, _, second = heapq.heappop(heap)
        # The largest sum of one goes with the smallest of the other, so that they cancel out.
        merged = [(a + b, own + others) for (a, own), (b, others) in zip(first, reversed(second))]
        merged.sort(key=lambda part: -part[0])
        heapq.heappush(heap, (merged[-1][0] - merged[0][0], next(numbers), merged))
    return [sorted(indices) for _, indices in heap[0][2]]


class _Row:
    """The times of batches whose longest sequence has one length, by their number of sequences; each is asked for once,
    and most of large batches never. Block k has those of 64 k + 1 sequences and more."""

    def __init__(
        self, longest: int, most: int, seconds: Callable[[int, int], float], fits: Callable[[int, int], bool]
    ) -> None:
        self._longest = longest
        self._seconds = seconds
        if not fits(1, longest):
            raise InvalidArgument(f"memory: one sequence of length {longest} alone does not fit: cut it, or leave it out")
        low, high = 1, most
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if fits(middle, longest) else (low, middle - 1)
        self.largest = low
        self.firsts = self._ask(range(1, low + 1, _BLOCK))
        self._blocks: dict[int, list[float]] = {}

    def block(self, number: int) -> list[float]:
        found = self._blocks.get(number)
        if found is None:
            begin = number * _BLOCK + 1
            # The first of the next block, too, so that no fall between two blocks is missed.
            found = self._ask(range(begin, min(begin + _BLOCK, self.largest) + 1))
            del found[_BLOCK:]
            self._blocks[number] = found
        return found

    def time(self, count: int) -> float:
        return self.block((count - 1) // _BLOCK)[(count - 1) % _BLOCK]

    def most_within(self, bound: float) -> int:
        """The most sequences of which a batch takes no longer than this."""
        if bound == math.inf:
            return self.largest
        number = bisect.bisect_right(self.firsts, bound) - 1
        return number * _BLOCK + bisect.bisect_right(self.block(number), bound)

    def _ask(self, counts: range) -> list[float]:
        longest = self._longest
        values = [self._seconds(count, longest) for count in counts]
        for count, value in zip(counts, values):
            if not _is_number(value) or value <= 0:
                raise InvalidArgument(f"seconds({count}, {longest}) is {value!r}, and not a finite number above 0")
        for count, less, more in zip(counts, values, values[1:]):
            if more < less:
                raise InvalidArgument(
                    f"seconds({count + counts.step}, {longest})={more!r} is less than seconds({count}, {longest})={less!r}"
                    ": a batch of more sequences takes as long or longer"
                )
        return list(map(float, values))


class _Cutter:
    """The dynamic program over sorted sequences."""

    def __init__(
        self, lengths: list[int], seconds: Callable[[int, int], float], fits: Callable[[int, int], bool]
    ) -> None:
        rows = {longest: _Row(longest, len(lengths), seconds, fits) for longest in dict.fromkeys(lengths)}
        for (shorter, less), (longer, more) in zip(rows.items(), list(rows.items())[1:]):
            if more.firsts[0] < less.firsts[0]:
                raise InvalidArgument(
                    f"seconds(1, {longer})={more.firsts[0]!r} is less than seconds(1, {shorter})={less.firsts[0]!r}: a "
                    "longer sequence takes as long or longer"
                )
        self._rows = [rows[longest] for longest in lengths]

    def plans(self, stages: int, workers: int) -> Iterator[list[_Batch]]:
        """Cuts for several bounds of a batch's time, of which one is to be chosen."""
        if stages == workers == 1:
            yield self.cut(math.inf)
            return
        least = self._rows[-1].time(1)  # No plan has a slowest batch that takes less.
        if len(self._rows) <= _FEW:
            times = {row.time(n) for j, row in enumerate(self._rows, 1) for n in range(1, min(j, row.largest) + 1)}
            yield from map(self.cut, sorted(time for time in times if time >= least))
            return
        # Larger and larger bounds, until two in turn bring nothing, and then both sides of the best one.
        bound, best_bound, best_step, misses = least, least, math.inf, 0
        while misses < 2:
            batches = self.cut(bound)
            yield batches
            step = _step_at_best(batches, stages, workers)
            misses = 0 if step < best_step else misses + 1
            if step < best_step:
                best_bound, best_step = bound, step
            bound *= _RATIO
        for nearer in (_RATIO**-0.5, _RATIO**0.5):
            if best_bound * nearer > least:
                yield self.cut(best_bound * nearer)

    def cut(self, bound: float) -> list[_Batch]:
        """The batches of at most this time each, of which the sum of times is least."""
        best, begins = [0.0], [0]
        row, within = None, 0
        for j, row_of_j in enumerate(self._rows, 1):
            if row_of_j is not row:
                row, within = row_of_j, row_of_j.most_within(bound)
            least, begin = _last_batch(best, j, max(0, j - within), row_of_j)
            best.append(least)
            begins.append(begin)
        batches, end = [], len(self._rows)
        while end:
            batches.append(_Batch(begins[end], end, self._rows[end - 1].time(end - begins[end])))
            end = begins[end]
        return batches


def _last_batch(best: list[float], j: int, lowest: int, row: _Row) -> tuple[float, int]:
    """The least sum of times of the first j sequences, and where the last batch begins, which is `lowest` or later."""
    if j - lowest <= _BLOCK:
        return _least_in_block(best, j, lowest, row.block(0))
    # Neither best[] nor the time of a batch falls as they grow: a block has no sum that is less than that of best[]
    # where it ends and its smallest batch. The block with the least of these bounds comes first, and few others need a look.
    bottoms = range(j - _BLOCK, lowest, -_BLOCK)
    floors = list(map(operator.add, best[j - _BLOCK : lowest : -_BLOCK], row.firsts))
    floors.append(best[lowest] + row.firsts[len(bottoms)])
    number = floors.index(min(floors))
    least, begin = math.inf, lowest
    for block in itertools.chain((number,), range(len(floors))):
        if floors[block] < least:
            bottom = bottoms[block] if block < len(bottoms) else lowest
            found, place = _least_in_block(best, j - block * _BLOCK, bottom, row.block(block))
            if found < least:
                least, begin = found, place
    return least, begin


def _least_in_block(best: list[float], top: int, bottom: int, times: list[float]) -> tuple[float, int]:
    """The least of best[top - 1] + times[0] to best[bottom] + ..., and its place in best."""
    before = best[bottom:top]
    before.reverse()
    sums = list(map(operator.add, before, times))
    least = min(sums)
    return least, top - 1 - sums.index(least)


# ---- Checks ----


def _is_number(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except (TypeError, OverflowError):
        return False


def _index(value: Any) -> int | None:
    """The whole number that it is, if it is one."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except (TypeError, ValueError, RuntimeError):
        return None


def _checked_number(**named: object) -> int:
    ((name, value),) = named.items()
    number = _index(value)
    if number is None or number < 1:
        raise InvalidArgument(f"{name}={value!r} is not a whole number, 1 or more")
    return number


def _checked_lengths(lengths: Iterable[SupportsIndex]) -> list[int]:
    try:
        given = list(lengths)
    except TypeError:
        raise InvalidArgument(f"lengths={lengths!r} is not a list of the sequences' lengths") from None
    if not given:
        raise InvalidArgument("lengths is empty: there are no sequences to cut into batches")
    checked = []
    for place, length in enumerate(given):
        number = _index(length)
        if number is None or number < 1:
            raise InvalidArgument(f"lengths[{place}]={length!r} is not a whole number, 1 or more")
        checked.append(number)
    return checked


def _checked_pair(pair: Any) -> tuple[int, int, float]:
    try:
        (count, longest), seconds = pair
    except (TypeError, ValueError):
        raise InvalidArgument(f"pairs: {pair!r} is not ((count, longest), seconds)") from None
    if not _is_number(seconds) or seconds <= 0:
        raise InvalidArgument(f"pairs: the seconds of {pair!r} are not a finite number above 0")
    return _checked_number(count=count), _checked_number(longest=longest), float(seconds)


def _memory_function(memory: Memory | None) -> Callable[[int, int], bool]:
    if memory is None:
        return lambda count, longest: True
    if callable(memory):
        return memory
    most = _index(memory)
    if most is None or most < 1:
        raise InvalidArgument(
            f"memory={memory!r} is neither a whole number, the largest count x longest of a batch, nor a function of "
            "both"
        )
    return lambda count, longest: count * longest <= most


def _least_squares(
    rows: list[tuple[float, float, float]], chosen: tuple[int, ...]
) -> tuple[float, float, float] | None:
    """The terms, those that are not chosen being 0, by which the rows come nearest to 1; None where they are not
    determined. By normal equations of columns of one norm, and Gauss's elimination."""
    norms = [math.sqrt(sum(row[c] ** 2 for row in rows)) for c in chosen]
    table = [
        [sum(row[a] * row[b] for row in rows) / (m * n) for b, n in zip(chosen, norms)]
        + [sum(row[a] for row in rows) / m]
        for a, m in zip(chosen, norms)
    ]
    for k in range(len(chosen)):
        pivot = max(range(k, len(chosen)), key=lambda r: abs(table[r][k]))
        table[k], table[pivot] = table[pivot], table[k]
        if abs(table[k][k]) < 1e-10:
            return None
        for r in range(len(chosen)):
            if r != k:
                factor = table[r][k] / table[k][k]
                table[r] = [x - factor * y for x, y in zip(table[r], table[k])]
    terms = [0.0, 0.0, 0.0]
    for k, c in enumerate(chosen):
        terms[c] = table[k][-1] / table[k][k] / norms[k]
    return terms[0], terms[1], terms[2]
