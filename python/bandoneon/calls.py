"""What a worker is asked and answers, as values. Addresses are of memory that the caller keeps alive."""

from __future__ import annotations

import enum
from ctypes import c_int32, sizeof
from dataclasses import dataclass
from typing import NamedTuple

from . import _native, errors


@dataclass(frozen=True)
class Declaration:
    """What all workers must agree on about one tensor; `dtype` is one of _native's."""

    name: str
    elements: int
    dtype: int = _native.FLOAT32
    push: str = "none"
    pull: str = "none"
    warmup: int = 0
    momentum: float = 0.0
    fuse: bool = False
    group: int = 0  # only tensors of one group are fused: those of one learning rate
    rule: str = "mean"
    ranks: tuple[int, ...] | None = None  # those that exchange it; None for all workers


# The lists of a table, as bandoneon.h has them.
LIST_ROWS, LIST_CANDIDATES, LIST_REMOVED = range(3)


@dataclass(frozen=True)
class Table:
    """What all workers must agree on about one table of rows that servers hold; rows = 0: of any id."""

    name: str
    width: int
    rows: int = 0
    rule: str = "sgd"
    push: str = "none"
    pull: str = "none"
    init: str = "zeros"  # or constant, uniform, normal
    init_value: float = 0.0
    group: int = 0  # of one group, width and specs share frames
    expect_rows: int = 0
    admit: int = 1  # a row is stored once so many updates, the last included, had a gradient of it
    max_rows: int = 0  # held at once; 0: any number
    evict: str = "none"  # which rows make room then: none, lru or lfu
    ttl: int = 0  # a row is removed after so many updates of the table without one of it; 0: never


class Rows(_native.Rows):
    """Of one table in a call: `num_ids` ids at address `ids` with a float32 row each at `gradients`, and ids whose rows
    are to come to `out`. `keep` keeps that memory alive."""

    def __init__(
        self,
        table: int,
        ids: int | None = None,
        num_ids: int = 0,
        gradients: int | None = None,
        wanted: int | None = None,
        num_wanted: int = 0,
        out: int | None = None,
        keep: object = None,
    ) -> None:
        super().__init__(sizeof(_native.Rows), ids, num_ids, gradients, wanted, num_wanted, out, table, 0)
        self.keep = keep


@dataclass(frozen=True)
class TableLayout:
    """What a record of a table is: float32[width], float32[moments], and uint32[2], its RowCounters."""

    width: int
    moments: int
    buckets: int
    is_limited: bool = False  # it has admit, max_rows or ttl, so that its other lists tell something

    @property
    def record_bytes(self) -> int:
        return 4 * (self.width + self.moments + 2)


class RowScan(_native.RowScan):
    """A piece of the records of one list of a bucket of a table, to come to memory for `room` of them, which `keep` keeps
    alive. Once its ticket is done, `count` came, `updates` are the table's, and `cursor` is of the next piece, 0 at the
    end; all ids that were removed after `complete_since` updates are in the list of those."""

    def __init__(
        self,
        table: int,
        bucket: int,
        since: int,
        room: int,
        ids: int,
        records: int,
        keep: object = None,
        rows: int = LIST_ROWS,
    ) -> None:
        super().__init__(sizeof(_native.RowScan), table, bucket, 0, since, room, ids, records, 0, 0, 0, rows, 0)
        self.keep = keep


class Push(_native.Push):
    """One exchange to start: of the memory at address `data`, which `keep` keeps alive, or of none where it
    is absent and its result not wanted. It is the host's, or of the GPU n where `device` is n + 1: there from
    `stream`, a CUstream, on. `left_out`: address of float32 memory for what the codec leaves out.
    `program_steps`: 1 + how many steps the program had ended, 0 where it is not known."""

    def __init__(
        self,
        tensor: int,
        data: int | None,
        keep: object = None,
        flags: int = 0,
        priority: int = 0,
        weight: float = 1.0,
        loss_scale: float = 1.0,
        learning_rate: float = 0.0,
        program_steps: int = 0,
        left_out: int | None = None,
        device: int = _native.HOST,
        stream: int | None = None,
    ) -> None:
        super().__init__(
            sizeof(_native.Push),
            data,
            tensor,
            flags,
            priority,
            device,
            stream,
            weight,
            loss_scale,
            learning_rate,
            program_steps,
            left_out,
        )
        self.keep = keep


class Result(NamedTuple):
    """How one exchange ended."""

    step: int
    absent: bool
    nonfinite: bool
    guessed: int = 0  # elements that the codec of the reply could only guess


class Holding(enum.IntEnum):
    """What a worker has of a broadcast's value before it comes."""

    UNKNOWN = 0  # what it has of it already, by hashes, is not sent
    NOTHING = 1  # so nothing is hashed
    VALUE = 2  # it takes part, is sent nothing, and its bytes stay as they are


def c_declaration(item: Declaration) -> _native.Declaration:
    return _native.Declaration(
        struct_size=sizeof(_native.Declaration),
        name=_native.c_text("tensor", item.name),
        elements=item.elements,
        dtype=item.dtype,
        flags=_native.FUSE if item.fuse else 0,
        push=_native.c_text(f"tensor {item.name!r}: codec", item.push),
        pull=_native.c_text(f"tensor {item.name!r}: codec", item.pull),
        warmup_steps=item.warmup,
        momentum=item.momentum,
        group=item.group,
        rule=_native.c_text(f"tensor {item.name!r}: rule", item.rule),
        ranks=None if item.ranks is None else (c_int32 * len(item.ranks))(*item.ranks),
        num_ranks=0 if item.ranks is None else len(item.ranks),
    )


def c_table(item: Table) -> _native.Table:
    for what, number, least, most in (
        ("rows", item.rows, 0, 1 << 63),
        ("width", item.width, 0, 1 << 31),
        ("admit", item.admit, 1, 1 << 20),
        ("max_rows", item.max_rows, 0, 1 << 40),
        ("ttl", item.ttl, 0, 1 << 31),
    ):
        if not least <= number <= most:
            raise errors.InvalidArgument(f"table {item.name!r}: {what}={number} is not one of {least} to {most}")
    return _native.Table(
        struct_size=sizeof(_native.Table),
        name=_native.c_text("table", item.name),
        rows=item.rows,
        width=item.width,
        group=item.group,
        rule=_native.c_text(f"table {item.name!r}: rule", item.rule),
        push=_native.c_text(f"table {item.name!r}: codec", item.push),
        pull=_native.c_text(f"table {item.name!r}: codec", item.pull),
        init=_native.c_text(f"table {item.name!r}: init", item.init),
        init_value=item.init_value,
        expect_rows=item.expect_rows,
        admit=item.admit,
        max_rows=item.max_rows,
        evict=_native.c_text(f"table {item.name!r}: evict", item.evict),
        ttl=item.ttl,
    )
