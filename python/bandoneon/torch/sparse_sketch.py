"""Gradients that are dense tensors of mostly zeros, as those of pruned and masked models, sent as sketches."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import torch

from ..calls import Declaration
from ..errors import InvalidArgument, Unimplemented
from .link_options import LinkOptions
from .shards import is_shard
from .tensors import host_values, host_zeros

# A sketch that finds everything again has 1.3 cells for each element that is not zero in the union, and more where
# those are few; with a bit an element besides it is shorter than the half of float32 up to a fifth of them.
MEASURED_STEPS = 20
LARGEST_SHARE = 0.1
_CELLS_AN_ELEMENT = 1.3
_CELLS_OF_FEW = 7.0
_LEAST_SHARE = 1e-3
_GUESSED_BY_CHANCE = 8

# Smaller tensors stay as they are: they are fused with others, and save little.
LEAST_ELEMENTS = 1 << 16
# A tensor is cut into partitions, each with a sketch of its own, so the fullest part counts. By default they are of a
# million elements; parts of them are never emptier than the fullest whole.
_PART_ELEMENTS = 1 << 18
_LARGEST_PARTITION = 1 << 20

_TAKES_ROWS = (
    "its gradient is whole rows, or zeros, and rows that travel by their numbers are shorter than a sketch: give "
    "sparse='rows' for embeddings, which are to be built with sparse=True then"
)
_REMEDY = (
    "sparse='sketch' is for dense gradients of mostly zeros: give sparse='rows' for embeddings, or build the module with "
    "sparse=False"
)


def cells_for(share, elements):
    """The cells of a sketch, as a share of the elements, where at most `share` of these are not zero in the union."""
    share = max(share, _LEAST_SHARE)
    found = max(share * min(elements, _LARGEST_PARTITION), 1.0)
    return math.ceil(share * (_CELLS_AN_ELEMENT + _CELLS_OF_FEW / math.sqrt(found)) * 1e4) / 1e4


def check_sketches_travel(overlap, local_group, table):
    """Raises where gradients cannot go as sketches (sparse="sketch")."""
    if overlap == "forward" or local_group is not None:
        how = "overlap='forward'" if overlap == "forward" else "local_group="
        raise Unimplemented(f"sparse='sketch' with {how}: use overlap='backward', without a local group")
    if LinkOptions() not in table.rows:
        raise InvalidArgument(
            f"sparse='sketch' has codecs of its own for gradients of mostly zeros, and push={table.common.push!r}, "
            f"pull={table.common.pull!r} is for all of them: leave push, pull, momentum and warmup out, or say them by "
            "overrides= for some parameters"
        )


@dataclass
class Measured:
    """What is known of one parameter's gradients."""

    begun: int  # the steps that had ended when it was first watched
    share: float = 0.0  # the largest in any step, of the union's elements that are not zero, in the fullest part
    row_steps: int = 0  # in which what was not zero was whole rows
    cells: float | None = None  # of its sketch; None as long as it goes uncompressed
    guessed: int = 0  # elements that a reply did not determine
    guessed_steps: int = 0  # with such elements


class SparseSketches:
    """Measures for 20 steps how much of each gradient is not zero in the union of the workers (and for further 20 where
    all of it was zero), and declares the tensor
    anew with the codec `exactsketch` both ways where that is at most a tenth. Servers then add sketches without decoding
    them, and workers find all elements of the sum again, but where there are more of them than were measured: such
    elements are counted, and a key with three such steps goes uncompressed (GuessWatch in the core).

    All workers decide alike: the shares that each has seen of the means are exchanged first."""

    def __init__(self, parameters, timeout=None):
        self._parameters = parameters
        self._worker = parameters.worker
        self._timeout = timeout
        self._found = {}  # name -> Measured
        parameters.goes_alone = self.may_take
        parameters.sparse_remedy = {"remedy": _REMEDY}

    def may_take(self, name, param):
        """Whether a parameter may get a sketch."""
        return (
            self._parameters.links.options_of(name) == LinkOptions()
            and not is_shard(param)
            and param.dtype != torch.float64
            and param.numel() >= LEAST_ELEMENTS
        )

    @property
    def found(self):
        """{name: Measured} of all parameters that may get a sketch."""
        return self._found

    def watch(self, members):
        ended = self._parameters.step_count.ended
        for member in members:
            if self.may_take(member.name, member.param):
                self._found[member.name] = Measured(ended)

    def note(self, member, mean, result):
        """The mean of a gradient is there."""
        measured = self._found.get(member.name)
        if measured is None or result.absent or result.nonfinite or mean is None:
            return
        if result.guessed:
            if not measured.guessed and result.guessed > _GUESSED_BY_CHANCE:
                _warn_of_guesses(member.name, result.guessed)
            measured.guessed += result.guessed
            measured.guessed_steps += 1
        if measured.cells is not None or self._is_over(measured):
            return
        counts = [int(part.count_nonzero()) for part in mean.detach().reshape(-1).split(_PART_ELEMENTS)]
        sizes = [min(_PART_ELEMENTS, mean.numel() - at) for at in range(0, mean.numel(), _PART_ELEMENTS)]
        measured.share = max(measured.share, *(count / size for count, size in zip(counts, sizes)))
        if mean.dim() == 2 and min(mean.shape) > 1:
            rows = int((mean != 0).any(1).sum())
            measured.row_steps += 0 < rows * mean.shape[1] * 0.9 <= sum(counts) and rows < mean.shape[0]

    def end_step(self, synchronizer):
        """Decides of the parameters whose steps of measuring are over. Collective, by the number of steps alone."""
        due = [name for name, m in self._found.items() if m.cells is None and self._ends_now(m)]
        if not due:
            return
        shares = self._agree([self._found[name].share for name in due])
        cells = {}
        for name, share in zip(due, shares):
            measured = self._found[name]
            measured.share = share
            if share == 0:  # Of what has not been used yet nothing is known: it is measured again.
                measured.begun = self._parameters.step_count.ended
            elif share <= LARGEST_SHARE:
                cells[name] = cells_for(share, self._parameters.by_name(name).elements)
        self._warn_of_rows(due)
        self._declare(cells, synchronizer)

    def resume(self, state, synchronizer):
        """Declares as in a comm_state_dict() what had, or had not, a sketch when it was saved."""
        wanted = {}
        for name in self._found:
            entry = state["tensors"].get(name)
            facts = entry["facts"] if entry is not None else {}
            pair = facts.get("push", "none"), facts.get("pull", "none")
            wanted[name] = _cells_of(pair)
        changed = {name: cells for name, cells in wanted.items() if cells != self._found[name].cells}
        self._declare(changed, synchronizer)

    def _is_over(self, measured):
        return self._parameters.step_count.ended - measured.begun >= MEASURED_STEPS

    def _ends_now(self, measured):
        return self._parameters.step_count.ended - measured.begun == MEASURED_STEPS

    def _agree(self, shares):
        """The largest of what any worker has seen, by parameter: a worker whose parameter is frozen has seen none."""
        size, width = self._worker.size, len(shares) + 1
        table = host_zeros(size * width).view(size, width)
        table[self._worker.rank] = host_values([1.0, *shares])  # 1: how many they are is not the same to all at once.
        declaration = Declaration(f"{self._parameters.prefix}shares for {len(shares)} sketches", table.numel())
        tensor = self._worker.declare_once(declaration, self._timeout, owner=self._parameters.reference)
        ticket = self._worker.push(tensor, table.data_ptr(), keep=table)
        self._worker.wait(ticket, self._timeout)
        present = table[:, 0].max()
        # Rounded up, for the sum was divided by the number of workers.
        return [math.ceil(share * 1e6 - 0.5) / 1e6 for share in (table[:, 1:].amax(0) / present).tolist()]

    def _declare(self, cells, synchronizer):
        """{name: cells, or None for no sketch}."""
        if not cells:
            return
        options = {name: _options(share) for name, share in cells.items()}
        synchronizer.replace(self._parameters.declare_anew(options, self._timeout))
        for name, share in cells.items():
            self._found[name].cells = share

    def _warn_of_rows(self, names):
        for name in names:
            measured = self._found[name]
            if 0 < measured.share <= LARGEST_SHARE and measured.row_steps >= MEASURED_STEPS // 2:
                warnings.warn(f"{name!r} goes as a sketch, but {_TAKES_ROWS}", RuntimeWarning, stacklevel=5)
                return


def _warn_of_guesses(name, guessed):
    warnings.warn(
        f"{guessed} elements of the gradient of {name!r} hold guesses in this step: more are not zero than in the first "
        f"{MEASURED_STEPS} steps, after which its sketch was made. After three such steps it goes uncompressed. Where "
        "gradients are to fill up from time to time, leave sparse='sketch' out",
        RuntimeWarning,
        stacklevel=3,
    )


def _options(cells):
    if cells is None:
        return LinkOptions()
    spec = f"exactsketch(cells={cells!r})"
    return LinkOptions(spec, spec).checked()


def _cells_of(pair):
    """The cells of saved codecs, or None."""
    push, pull = pair
    begin, end = "exactsketch(cells=", ")"
    if push != pull or not (push.startswith(begin) and push.endswith(end)):
        return None
    try:
        return float(push[len(begin) : -len(end)])
    except ValueError:
        return None
