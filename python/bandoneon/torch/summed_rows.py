"""Sparse gradients row by row, of weights that every worker holds whole: Links(sparse="rows")."""

from __future__ import annotations

import weakref

import torch

from ..calls import Rows, Table
from ..errors import DeadlineExceeded, FailedPrecondition, InvalidArgument, NotFound
from .tensors import host_empty, host_zeros

# So many rows of a table are thought to be in a step, for placing its keys.
_EXPECTED_ROWS = 1 << 16
_WIDEST = 1024


def sparse_weights(model):
    """{id(weight): its module} of the modules of a model whose gradients are sparse."""
    kinds = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    return {id(module.weight): module for module in model.modules() if isinstance(module, kinds) and module.sparse}


def split_sparse(named, model, how):
    """(name, parameter) pairs as (those exchanged as tensors, those exchanged by rows)."""
    if how != "rows":
        return list(named), []
    if model is None:
        raise InvalidArgument(
            "Links(sparse='rows') finds the weights of nn.Embedding(sparse=True) in the model: give "
            "DistributedOptimizer the model in place of named_parameters"
        )
    sparse = sparse_weights(model)
    dense, rows = [], []
    for name, param in named:
        module = sparse.get(id(param))
        if module is not None and module.max_norm is not None:
            raise InvalidArgument(
                f"Links(sparse='rows') with {name!r}, whose module has max_norm={module.max_norm}: a forward pass "
                "changes the rows that this worker looks up, and the workers' tables would come apart; leave max_norm out",
                tensor=name,
            )
        (dense if module is None else rows).append((name, param))
    return dense, rows


class SummedRows:
    """The weights of one DistributedOptimizer whose gradients travel by rows. A part of its Synchronizer's rounds:
    what it sends leaves when the round's last tensors do, and means are in `grad` when the round has ended."""

    def __init__(self, parameters, named, timeout):
        self._parameters = parameters
        self._worker = parameters.worker
        self._timeout = timeout
        self._entries = []
        self._ticket = None
        self._round = None
        self._sharing = {}  # (width, specs) -> the entries that share keys
        for name, param in named:
            options = parameters.links.options_of(name)
            _check(name, param, options)
            entry = _Entry(name, param)
            self._entries.append(entry)
            self._sharing.setdefault((param.shape[1], options.push, options.pull), []).append(entry)
        tables = [
            Table(
                name=parameters.prefix + entry.name,
                width=entry.param.shape[1],
                rows=entry.param.shape[0],
                rule="mean",
                push=parameters.links.options_of(entry.name).push,
                pull=parameters.links.options_of(entry.name).pull,
                expect_rows=min(entry.param.shape[0], _EXPECTED_ROWS),
            )
            for entry in self._entries
        ]
        numbers = self._worker.declare_tables(tables, timeout, owner=parameters.reference)
        for entry, number in zip(self._entries, numbers):
            entry.number = number

    def hook(self, enters_round):
        """Hooks the weights that have no hooks yet: a frozen one cannot be hooked. enters_round(): a backward pass of
        a round has come to one of them."""
        for entry in self._entries:
            if not entry.hooks and entry.param.requires_grad:
                entry.hooks = [
                    entry.param.register_hook(entry.note_before),
                    entry.param.register_post_accumulate_grad_hook(_when_added(entry, enters_round)),
                ]

    def remove_hooks(self):
        for hook in [hook for entry in self._entries for hook in entry.hooks]:
            hook.remove()

    @property
    def params(self):
        return [entry.param for entry in self._entries]

    @torch.no_grad()
    def send(self, round):
        """Starts the exchange of the rows of all weights; once in a round."""
        if self._ticket is not None:
            return
        calls = []
        for entry in self._entries:
            sent = entry.rows_to_send(round.is_given_up or not round.weight)
            if sent is not None:
                ids, rows = sent
                calls.append(Rows(entry.number, ids.data_ptr(), entry.count, rows.data_ptr(), keep=sent))
        # Those of one width and specs share keys, each of which must hear of every worker.
        for entries in self._sharing.values():
            if not any(entry.is_there for entry in entries):
                calls.append(Rows(entries[0].number))
        self._round = round
        self._ticket = self._worker.push_rows(
            calls,
            weight=round.weight,
            loss_scale=round.scale,
            program_steps=self._parameters.step_count.program_steps,
        )

    @torch.no_grad()
    def collect(self, is_wanted=True):
        """Waits for the means, and puts them into `grad`."""
        if self._ticket is None:
            return
        try:
            result = self._worker.wait(self._ticket, self._timeout)
        except DeadlineExceeded:  # After which it can be waited for again.
            raise
        except BaseException:
            self._ticket = None
            raise
        self._ticket = None
        if not is_wanted:
            return
        for entry in self._entries:
            entry.leave(self._mean_of(entry, result.nonfinite))

    def _mean_of(self, entry, nonfinite):
        """None: no worker has a gradient."""
        count, width = entry.param.shape
        if nonfinite:  # As of a dense gradient: a scaler finds it, and leaves the step out.
            ids, rows = host_zeros(1, torch.int64), host_empty((1, width)).fill_(float("nan"))
        else:
            found = self._take(entry, width)
            if found is None:
                return None
            ids, rows = found
            if self._round.scale != 1.0:
                rows.mul_(self._round.scale)
        device = entry.param.device
        return torch.sparse_coo_tensor(
            ids.to(device)[None], rows.to(device), (count, width), is_coalesced=True, check_invariants=False
        )

    def _take(self, entry, width):
        """(ids, rows) of the round's means; None where nobody has a gradient."""
        room = entry.room
        while True:
            ids, rows = host_empty(room, torch.int64), host_empty((room, width))
            try:
                count = self._worker.summed_rows(entry.number, room, ids.data_ptr(), rows.data_ptr())
            except NotFound:
                return None
            if count <= room:
                # What the next step has is about as much, and what is not used is given back.
                entry.room = count + count // 4
                return (ids, rows) if count == room else (ids[:count].clone(), rows[:count].clone())
            room = count


class _Entry:
    """One weight. Its `grad` after a round is a mean, to which no later pass may add."""

    def __init__(self, name, param):
        self.name = name
        self.param = param
        self.number = 0  # of its table
        self.room = 0  # for so many rows of means
        self.is_there = False  # in the push that is on its way
        self.count = 0  # of rows there
        self.hooks = []
        self._mean = None  # weak reference to what the last round left in `grad`
        self._held_mean = False  # when the backward pass came
        self._is_added_to = False  # since the last round; torch may have added in place

    def note_before(self, _):
        # One that zero_grad(set_to_none=False) has emptied is none any more.
        self._held_mean = self._holds_mean() and self.param.grad._nnz() > 0

    def _holds_mean(self):
        is_left = self._mean is not None and self.param.grad is not None and self._mean() is self.param.grad
        return is_left and not self._is_added_to

    def check_after(self):
        """FailedPrecondition where the pass has added to a mean, which would be exchanged again."""
        self._is_added_to = True
        if self._held_mean:
            raise FailedPrecondition(
                f"the gradient of {self.name!r} was the mean of the step before when this backward pass came, and "
                "rows cannot be told apart in it: call zero_grad() before each step's first backward()",
                tensor=self.name,
            )

    def rows_to_send(self, is_given_up):
        """(ids, rows); None: there is no gradient of this worker."""
        grad = None if is_given_up else self.param.grad
        self.is_there = grad is not None and not self._holds_mean()
        if not self.is_there:
            return None
        if grad.layout is torch.strided:
            raise InvalidArgument(
                f"the gradient of {self.name!r} is dense, and its module has sparse=True: another use of the weight, "
                "as in a tied output layer, gives it all rows; build the module with sparse=False, or give "
                "Links(sparse='dense')",
                tensor=self.name,
            )
        ids = grad._indices()[0].to("cpu", torch.int64).contiguous()
        rows = grad._values().to("cpu", torch.float32).contiguous()
        self.count = len(ids)
        if not self.count:  # An address, so that it counts as a gradient, of no rows.
            return host_zeros(1, torch.int64), host_empty((1, self.param.shape[1]))
        return ids, rows

    def leave(self, mean):
        self.param.grad = mean
        self._mean = None if mean is None else weakref.ref(mean)
        self._is_added_to = False


def _when_added(entry, enters_round):
    def hook(_):
        enters_round()
        entry.check_after()

    return hook


def _check(name, param, options):
    if param.dim() != 2 or not 1 <= param.shape[1] <= _WIDEST:
        raise InvalidArgument(
            f"Links(sparse='rows') with {name!r} of shape {tuple(param.shape)}: a row has 1 to {_WIDEST} elements; "
            "give sparse='dense'",
            tensor=name,
        )
    if param.dtype != torch.float32:
        raise InvalidArgument(
            f"Links(sparse='rows') with {name!r} of {param.dtype}: rows are exchanged as float32; give "
            "sparse='dense'",
            tensor=name,
        )
    if options.momentum or options.warmup:
        raise InvalidArgument(
            f"momentum={options.momentum} and warmup={options.warmup} are not for {name!r}, whose rows travel by "
            "themselves, and keep nothing between steps: give overrides= for it, or sparse='dense'",
            tensor=name,
        )

