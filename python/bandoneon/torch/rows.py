"""Embedding tables that servers hold.

    import bandoneon.torch as bdn
    from bandoneon.torch import rows

    rows.serve_tables(model, "*")
    tables = rows.RowOptimizer(model, rule="adagrad", lr=0.02, push="int8", pull="int8")
    for batch, following in rows.look_ahead(loader):
        loss_of(model, batch).backward()
        dense.step()
        tables.step(wanted=ids_of(following))
        dense.zero_grad()

docs/rows.md explains it.
"""

from __future__ import annotations

import fnmatch
import weakref
from typing import Any, Iterable, Iterator, Mapping, Sequence

import torch
from torch import nn
from torch.nn.utils import parametrize

from ..calls import Rows, Table
from ..errors import FailedPrecondition, InvalidArgument
from ..session import default_worker
from ..worker import Worker
from .handover import Handover
from .hints import Closure
from .loss_scale import RefusesGradScaler
from .served_rows import Embedding, EmbeddingBag, ServedModule
from .step_count import StepCount
from .step_recorder import recorder_of
from .tensors import host_empty, host_values, host_zeros
from .torch_internals import end_graphs_at_calls
from .weight import Weight
from .wrapped import evaluate

__all__ = ["Embedding", "EmbeddingBag", "RowOptimizer", "look_ahead", "serve_tables"]


def look_ahead(loader: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """Each batch with the one that follows it; None behind the last."""
    batches = iter(loader)
    try:
        batch = next(batches)
    except StopIteration:
        return
    for following in batches:
        yield batch, following
        batch = following
    yield batch, None


def serve_tables(
    model: nn.Module, pattern: str = "*", rows: str | None = "all", expect_rows: int = 0
) -> list[str]:
    """Replaces the nn.Embedding and nn.EmbeddingBag modules of a model whose names match `pattern`, in place, by served
    ones, before their RowOptimizer is made; the names. Their first values are rank 0's weights, and one whose weights
    are frozen is. rows=None: ids are any int64, and the first values are those of a new Embedding. InvalidArgument
    names a module that cannot be served."""
    found: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
            found.setdefault(module, []).append(name)
    # A module that the model has at several places is replaced at all of them.
    found = {
        module: names
        for module, names in found.items()
        if any(fnmatch.fnmatchcase(name, pattern) for name in names)
    }
    if not found:
        raise InvalidArgument(f"no nn.Embedding and no nn.EmbeddingBag of the model has a name like {pattern!r}")
    for module, names in found.items():
        _check_servable(model, module, names)
    for module, names in found.items():
        served = _served(module, rows, expect_rows)
        for name in names:
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, served)
    return [name for names in found.values() for name in names]


def _check_servable(model: nn.Module, module: Any, names: Sequence[str]) -> None:
    """InvalidArgument names a module whose served one would do something else."""
    name = names[0]
    if "" in names:
        raise InvalidArgument("the model is a table itself: make a bandoneon.torch.rows.Embedding instead")
    for option in ("max_norm", "scale_grad_by_freq"):
        if getattr(module, option, None):
            raise InvalidArgument(f"{name!r}: {option}={getattr(module, option)!r} cannot be served; leave it out")
    if type(module).forward not in (nn.Embedding.forward, nn.EmbeddingBag.forward):
        raise InvalidArgument(
            f"{name!r} is a {type(module).__name__}, whose forward() is not that of torch's module, and would be gone: "
            "give a pattern that leaves it out, or put a bandoneon.torch.rows.Embedding into it"
        )
    if parametrize.is_parametrized(module):
        raise InvalidArgument(f"{name!r} has a parametrization, which rows at servers cannot have; leave it out")
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    if any(hooks):
        raise InvalidArgument(
            f"{name!r} has hooks, which the served module would not have: register them behind serve_tables()"
        )
    own = {f"{name}.weight" for name in names}
    ties = [
        other
        for other, param in model.named_parameters(remove_duplicate=False)
        if param is module.weight and other not in own
    ]
    if ties:
        raise InvalidArgument(
            f"{name!r}: its weight is {ties[0]!r}, too, and would be tied no longer: give each a weight of its own, or "
            "leave it out"
        )


def _served(module: Any, rows: str | None, expect_rows: int) -> ServedModule:
    weight = module.weight.detach()
    how: dict[str, Any] = dict(
        padding_idx=module.padding_idx, device=weight.device, dtype=weight.dtype, expect_rows=expect_rows
    )
    number = None if rows is None else module.num_embeddings
    if rows is not None:
        how["_weight"] = weight
    served: ServedModule
    if isinstance(module, nn.EmbeddingBag):
        served = EmbeddingBag(
            number,
            module.embedding_dim,
            mode=module.mode,
            include_last_offset=module.include_last_offset,
            **how,
        )
    else:
        served = Embedding(number, module.embedding_dim, **how)
    return served.train(module.training).requires_grad_(module.weight.requires_grad)


class _Table:
    """A table as its module and its optimizer share it."""

    def __init__(self, name: str, module: ServedModule, optimizer: RowOptimizer) -> None:
        self.name = name
        self.width = module.embedding_dim
        self.number = 0  # of the worker
        # The passes that have a gradient which no step has pushed, by their numbers, each with its ids, its rows, and
        # the index of the padding among them.
        self.pending: dict[int, tuple[torch.Tensor, torch.Tensor, int | None]] = {}
        self._passes = 0
        # The rows that are here, which no round changes before the next step: by ids, rising.
        self.ids = host_empty(0, torch.int64)
        self.rows = host_empty((0, self.width))
        self._optimizer = weakref.ref(optimizer)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Table:
        """A copy of a model looks up the same rows, which are at the servers alone."""
        return self

    def __reduce__(self) -> Any:
        raise InvalidArgument(
            f"table {self.name!r} is at the servers, so that a model with it cannot be pickled: save "
            "model.state_dict(), which has the rest, and the rows by bandoneon.torch.save() with their RowOptimizer"
        )

    def follow(self, ids: torch.Tensor, rows: torch.Tensor, padding: int | None) -> None:
        """The rows of a pass belong to the step that comes after their gradient, whatever was zeroed or stepped since
        the pass. A pass without a backward pass, as one that evaluates a model, leaves nothing behind."""
        self._passes += 1
        number = self._passes  # The order of passes decides the bits of sums, not the one of backward passes.

        def has_gradient(rows: torch.Tensor) -> None:
            self.pending[number] = (ids, rows, padding)

        rows.requires_grad_().register_post_accumulate_grad_hook(has_gradient)

    def zero_grad(self) -> None:
        """Forgets the gradients that no step has pushed."""
        for _, rows, _ in self.pending.values():
            rows.grad = None
        self.pending.clear()

    def rows_for(self, unique: torch.Tensor) -> torch.Tensor:
        """A fresh tensor with the rows of these ids, which rise."""
        optimizer = self._optimizer()
        if optimizer is None or optimizer.is_closed:
            raise FailedPrecondition(f"table {self.name!r}: the RowOptimizer that stepped it was closed or collected")
        optimizer.settle()
        index, is_here = self._find(unique)
        if not bool(is_here.all()):
            missing = unique[~is_here]
            self._keep(missing, optimizer.fetch(self, missing))
            index, _ = self._find(unique)
        return self.rows[index]

    def _find(self, unique: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        index = torch.searchsorted(self.ids, unique)
        if not len(self.ids):
            return index, host_zeros(len(unique), torch.bool)
        index.clamp_(max=len(self.ids) - 1)
        return index, self.ids[index] == unique

    def _keep(self, ids: torch.Tensor, rows: torch.Tensor) -> None:
        order = torch.argsort(torch.cat([self.ids, ids]))
        self.ids = torch.cat([self.ids, ids])[order]
        self.rows = torch.cat([self.rows, rows])[order]

    def forget(self) -> None:
        """The servers have other rows now."""
        self.zero_grad()
        self.take(self.ids[:0], self.rows[:0])

    def take(self, ids: torch.Tensor, rows: torch.Tensor) -> None:
        """The rows that came with a step's answer take the place of those before."""
        self.ids, self.rows = ids, rows

    def gradients(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(ids, their gradients), of all passes in order, which are then taken; ids may be there more than once."""
        ids, grads = [], []
        for _, (unique, rows, padding) in sorted(self.pending.items()):
            if rows.grad is None:  # The program took it away.
                continue
            grad = rows.grad.detach().to("cpu", torch.float32)
            if padding is not None:  # Which has no gradient, and is not touched.
                kept = torch.arange(len(unique), dtype=torch.int64, device="cpu") != padding
                unique, grad = unique[kept], grad[kept]
            ids.append(unique)
            grads.append(grad)
        self.zero_grad()  # A graph that is kept may bring more.
        if not ids:
            return host_empty(0, torch.int64), host_empty((0, self.width))
        return torch.cat(ids).contiguous(), torch.cat(grads).contiguous()


class RowOptimizer(RefusesGradScaler, torch.optim.Optimizer):
    """Steps the served tables of a model, on the servers. Collective: all workers construct the same.

    model: a module with Embedding and EmbeddingBag of this module (or what serve_tables made) in it, or a list of
        groups, dicts with "modules" (a module or several) and options of their own: lr, rule, push, pull.
    rule: what the servers do with the mean of the workers' gradients of a row: "sgd", "adagrad", "rowwise_adagrad",
        "adamw" or "ftrl", with options as docs/rows.md has them. A row that nobody touches in a step stays as it is.
    push, pull: codecs of gradient rows, and of rows.
    admit: a row is stored, and steps, once so many steps, the last included, had a gradient of it, whoever pushed it;
        the gradients of the steps before are dropped, and its value is the initial one.
    max_rows: of each table, how many rows are held at once. evict: which rows make room in a table that is full, "lru",
        those that were updated longest ago, or "lfu", those that were updated least often; by "none" the step fails.
    ttl: a row that no step has updated in so many steps of its table is removed. A removed row has its initial value.
    weight: as of Links: what this worker's part counts for in the mean.

    A module that was not run, is frozen, or had no gradient, takes part without rows. A gradient that is not finite
    leaves the step of all tables of its group out in all workers: `skipped_steps` counts those. step() does not wait:
    the next pass does, if the answer is not there by then, and has an error of the step.
    """

    def __init__(
        self,
        model: nn.Module | Sequence[Mapping[str, Any]],
        rule: str = "sgd",
        lr: float = 0.01,
        *,
        push: str = "none",
        pull: str = "none",
        admit: int = 1,
        max_rows: int | None = None,
        evict: str = "none",
        ttl: int | None = None,
        weight: Any = None,
        prefix: str = "",
        timeout: float | None = None,
        worker: Worker | None = None,
    ) -> None:
        self.is_closed = False
        self.rows_are_of: str | None = None  # the checkpoint from which, or as which, they came
        self._worker = worker or default_worker()
        self._timeout = timeout
        self._weight = Weight(weight)
        self._skipped_steps = 0
        # (ticket, [(table, ids, rows)]) of each group, while a step is on its way.
        self._in_flight: list[tuple[int, list[tuple[_Table, torch.Tensor, torch.Tensor]]]] = []
        self._tables: list[list[_Table]] = []  # by group
        is_whole = isinstance(model, nn.Module)
        groups = [{"modules": model}] if is_whole else [dict(group) for group in model]
        modules: list[list[tuple[str, ServedModule]]] = []
        for number, group in enumerate(groups):
            found = _modules_in(group.pop("modules", ()), "" if is_whole else f"{number}.")
            if not found:
                raise InvalidArgument(f"group {number} has no table: serve_tables() makes them, or rows.Embedding")
            modules.append(found)
            # torch's optimizers have parameters; the rows are none here, so one stands for each table.
            group["params"] = [host_empty(0).requires_grad_() for _ in found]
        declared = dict(rule=rule, push=push, pull=pull, admit=admit, max_rows=max_rows, evict=evict, ttl=ttl)
        super().__init__(groups, dict(lr=lr, **declared))
        for number, (group, found) in enumerate(zip(self.param_groups, modules)):
            _check_limits(number, group, found)
        end_graphs_at_calls()  # Of the modules that it steps.
        self._declared = [{option: group[option] for option in declared} for group in self.param_groups]
        self._declare(modules, prefix)
        self._step_count = StepCount(self._worker)
        self._step_count.follow(self)
        self._recorder = recorder_of(self._worker)
        if self._recorder is not None:
            self._recorder.watch(self, model if is_whole else None)
            self.register_step_pre_hook(lambda own, *_: own._recorder.begin_optimizer())
            self.register_step_post_hook(
                lambda own, *_: own._recorder.end_optimizer(own, lambda: own._step_count.ended)
            )
        self._worker.settle_before_leaving(self)

    def _declare(self, modules: list[list[tuple[str, ServedModule]]], prefix: str) -> None:
        self._owner = weakref.ref(self)
        declared, fresh, seen = [], [], set()
        for number, (group, found) in enumerate(zip(self.param_groups, modules)):
            self._tables.append([])
            for name, module in found:
                if module._table is not None and module._table._optimizer() not in (None, self):
                    raise InvalidArgument(f"table {name!r} is stepped by another RowOptimizer: close() that one first")
                if module in seen:
                    raise InvalidArgument(f"table {name!r} is in two groups, or twice in one")
                table = _Table(prefix + name, module, self)
                seen.add(module)
                self._tables[-1].append(table)
                fresh.append((table, module))
                declared.append(
                    Table(
                        name=table.name,
                        width=table.width,
                        rows=module.num_embeddings or 0,
                        rule=group["rule"],
                        push=group["push"],
                        pull=group["pull"],
                        init="zeros" if module._weight is not None else module.init,
                        init_value=0.0 if module._weight is not None else module.init_value,
                        group=number,
                        expect_rows=module.expect_rows,
                        admit=group["admit"],
                        max_rows=group["max_rows"] or 0,
                        evict=group["evict"],
                        ttl=group["ttl"] or 0,
                    )
                )
        numbers = self._worker.declare_tables(declared, self._timeout, owner=self._owner)
        is_first = self._worker.rank_in_charge() == self._worker.rank
        has_values = any(module._weight is not None for _, module in fresh)
        for (table, module), number in zip(fresh, numbers):
            table.number = number
            if module._weight is not None and is_first:
                self._set(table, module._weight)
        # All have declared their modules alike, so that they meet here or nobody does.
        if has_values:
            self._worker.barrier(f"first rows of {declared[0].name}", self._timeout)
        for table, module in fresh:
            module._weight = None
            module._table = table

    def _set(self, table: _Table, weight: torch.Tensor) -> None:
        values = weight.detach().to("cpu", torch.float32).contiguous()
        ids = torch.arange(len(values), dtype=torch.int64, device="cpu")
        # In pieces, so that what waits to be sent is not as long as the table.
        most = max(1, (64 << 20) // (4 * table.width))
        for first in range(0, len(values), most):
            part, numbers = values[first : first + most].contiguous(), ids[first : first + most].contiguous()
            rows = Rows(table.number, numbers.data_ptr(), len(numbers), part.data_ptr(), keep=(numbers, part))
            self._worker.wait(self._worker.set_rows(rows), self._timeout)

    @torch.no_grad()
    def step(self, closure: Closure | None = None, wanted: Any = None) -> Any:
        """Pushes the gradients of the passes since the last step, and asks for the rows of the ids of the next batch:
        a dict of ids by module or name, a list in the order of the tables, or a tensor where there is one table."""
        loss = evaluate(closure)
        self.settle()
        self._check_rules()
        asked = self._wanted(wanted)
        weight = self._weight.now()
        started = []
        for group, tables in zip(self.param_groups, self._tables):
            calls, comes = [], []
            for table in tables:
                ids, grads = table.gradients()
                if not weight:
                    ids, grads = ids[:0], grads[:0]
                want = asked.get(table.name, ids[:0])
                out = host_empty((len(want), table.width))
                comes.append((table, want, out))
                if len(ids) or len(want):
                    calls.append(
                        Rows(
                            table.number,
                            ids.data_ptr(),
                            len(ids),
                            grads.data_ptr(),
                            want.data_ptr(),
                            len(want),
                            out.data_ptr(),
                            keep=(ids, grads, want, out),
                        )
                    )
            # Every worker takes part in every group's step; a table without ids stands for those that have none.
            if not calls:
                calls.append(Rows(tables[0].number))
            ticket = self._worker.push_rows(
                calls,
                weight=weight,
                learning_rate=float(group["lr"]),
                program_steps=self._step_count.program_steps,
            )
            started.append((ticket, comes))
        self._in_flight = started
        return loss

    def settle(self) -> None:
        """Waits for the step that is on its way, if there is one, and has its error."""
        started, self._in_flight = self._in_flight, []
        was_skipped = False
        failure: BaseException | None = None
        for ticket, comes in started:
            try:
                result = self._worker.wait(ticket, self._timeout)
                was_skipped = was_skipped or result.nonfinite
                for table, ids, out in comes:
                    table.take(ids, out)
            except Exception as error:
                failure = failure or error
                for table, ids, out in comes:  # What is here is of before the step.
                    table.take(ids[:0], out[:0])
        self._skipped_steps += was_skipped
        if failure is not None:
            self._worker.note_failed_round(self, failure)
            raise failure
        if started:
            self._worker.note_good_round(self)

    @property
    def skipped_steps(self) -> int:
        """How many steps all workers have left out, because a gradient was not finite."""
        self.settle()
        return self._skipped_steps

    def fetch(self, table: _Table, ids: torch.Tensor) -> torch.Tensor:
        """The rows of these ids, as they are now."""
        ids = ids.contiguous()
        out = host_empty((len(ids), table.width))
        rows = Rows(table.number, None, 0, None, ids.data_ptr(), len(ids), out.data_ptr(), keep=(ids, out))
        self._worker.wait(self._worker.fetch_rows([rows]), self._timeout)
        return out

    def rows_of(self, module: ServedModule, ids: Any) -> torch.Tensor:
        """float32[len(ids), embedding_dim]: rows of a table, as a look at them for a program."""
        self.settle()
        table = self._table_of(module)
        if table is None:
            raise InvalidArgument(f"rows_of(): this RowOptimizer steps no such module as {module!r}")
        return self.fetch(table, _as_ids(table, ids))

    def _table_of(self, module: nn.Module) -> _Table | None:
        """The table of a module, or of a copy of it, that this optimizer steps."""
        table = getattr(module, "_table", None)
        return table if any(table is one for tables in self._tables for one in tables) else None

    def saved_tables(self) -> list[tuple[str, int, str, Worker]]:
        """(name, number of the worker, rule, worker) of each table, for save() and load(): between steps."""
        self.settle()
        return [
            (table.name, table.number, declared["rule"], self._worker)
            for tables, declared in zip(self._tables, self._declared)
            for table in tables
        ]

    def take_loaded_rows(self, saved: str) -> None:
        """load() has set the servers' rows to those of this checkpoint."""
        self.rows_are_of = saved
        for tables in self._tables:
            for table in tables:
                table.forget()

    # A newcomer's steps would be counted from 0, and fail those of all.
    needs_handover = True

    def handover(self) -> Handover:
        """For TrainingState: rows and moments are the servers'."""
        self.settle()
        counts = {"steps": self._step_count.ended, "skipped_steps": self._skipped_steps}
        return Handover({"groups": self.state_dict(), **counts})

    def take_over(self, given: Handover) -> None:
        """Takes what handover() of another worker has given."""
        self.load_state_dict(given.common["groups"])
        self._step_count.ended = given.common["steps"]
        self._skipped_steps = given.common["skipped_steps"]
        for tables in self._tables:
            for table in tables:
                table.forget()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes lr and whatever else a schedule keeps in the groups; what was declared stays, as rule and codecs."""
        super().load_state_dict(state_dict)
        for group, declared in zip(self.param_groups, self._declared):
            group.update(declared)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets the gradients since the last step, as torch's; step() forgets those that it pushed by itself."""
        for tables in self._tables:
            for table in tables:
                table.zero_grad()

    def close(self) -> None:
        """Frees the tables' names, and has the servers forget the rows once all workers have come so far."""
        self.settle()
        self.is_closed = True
        if self._recorder is not None:
            self._recorder.unwatch(self)
        self._worker.disown(self._owner)

    def _check_rules(self) -> None:
        for number, (group, known) in enumerate(zip(self.param_groups, self._declared)):
            for option, value in known.items():
                if group[option] != value:
                    raise InvalidArgument(
                        f"group {number} was declared with {option}={value!r}, and now has {group[option]!r}: a "
                        "schedule may change lr alone"
                    )
            if not float(group["lr"]) >= 0:
                raise InvalidArgument(f"group {number} has lr={group['lr']!r}, which is not 0 or more")

    def _wanted(self, wanted: Any) -> dict[str, torch.Tensor]:
        tables = [table for group in self._tables for table in group]
        if wanted is None:
            return {}
        if isinstance(wanted, torch.Tensor):
            wanted = [wanted]
        if not isinstance(wanted, Mapping):
            if len(wanted) != len(tables):
                raise InvalidArgument(f"wanted= has ids for {len(wanted)} tables, and there are {len(tables)}")
            return {table.name: _unique(table, ids) for table, ids in zip(tables, wanted) if ids is not None}
        names = {table.name: table for table in tables}
        asked = {}
        for key, ids in wanted.items():
            table = self._table_of(key) if isinstance(key, nn.Module) else names.get(key)
            if table is None:
                raise InvalidArgument(f"wanted= has {key!r}, which is no table: there are {', '.join(sorted(names))}")
            asked[table.name] = _unique(table, ids)
        return asked


# (option, least, most) of what may be removed.
_LIMITS = (("admit", 1, 1 << 20), ("max_rows", 1, 1 << 40), ("ttl", 1, 1 << 31))


def _check_limits(number: int, group: Mapping[str, Any], found: Sequence[tuple[str, ServedModule]]) -> None:
    """InvalidArgument names an option of a group that is wrong, or a module that cannot have it."""
    for option, least, most in _LIMITS:
        value = group[option]
        is_whole = isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
        if not is_whole and (value is not None or option == "admit"):
            raise InvalidArgument(f"group {number}: {option}={value!r} is not a whole number from {least} to {most}")
    if group["evict"] not in ("none", "lru", "lfu"):
        raise InvalidArgument(f"group {number}: evict={group['evict']!r} is none of none, lru and lfu")
    if group["evict"] != "none" and group["max_rows"] is None:
        raise InvalidArgument(f"group {number}: evict={group['evict']!r} makes room for max_rows=, which is not given")
    if group["admit"] == 1 and group["max_rows"] is None and group["ttl"] is None:
        return
    for name, module in found:
        if module._weight is not None:
            raise InvalidArgument(
                f"table {name!r} begins with rank 0's weights, and a row that is not admitted or was removed has the "
                "value that init= of its module says: admit=, max_rows= and ttl= are for rows.Embedding, and for what "
                "serve_tables(rows=None) makes"
            )


def _as_ids(table: _Table, ids: Any) -> torch.Tensor:
    ids = ids if isinstance(ids, torch.Tensor) else host_values(ids, None)
    if ids.dtype not in (torch.int64, torch.int32):
        raise InvalidArgument(f"table {table.name!r}: ids of {ids.dtype}: they are int64 or int32")
    return ids.detach().reshape(-1).to("cpu", torch.int64).contiguous()


def _unique(table: _Table, ids: Any) -> torch.Tensor:
    return torch.unique(_as_ids(table, ids))


def _modules_in(given: Any, prefix: str) -> list[tuple[str, ServedModule]]:
    """The served modules in a module, by name, or in several; one that is shared counts once."""
    found: dict[int, tuple[str, ServedModule]] = {}
    for number, module in enumerate([given] if isinstance(given, nn.Module) else list(given)):
        base = prefix if isinstance(given, nn.Module) else f"{prefix}{number}."
        for name, part in module.named_modules():
            if isinstance(part, ServedModule):
                found.setdefault(id(part), ((base + name).rstrip(".") or "rows", part))
    return list(found.values())
