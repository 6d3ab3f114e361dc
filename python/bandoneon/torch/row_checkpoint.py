"""The rows of tables in a checkpoint: their files, what the manifest says of them, their way from and to servers."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from ..calls import LIST_REMOVED, RowScan
from ..errors import DataLoss, InvalidArgument
from ..row_files import RecordShape, RowFileWriter, read_row_file
from ..worker import Worker

# The manifest's entry of a table has no more saves than that, whatever rows_every= says.
MOST_SAVES = 1000
# No record changed after so many updates.
_NEVER = 1 << 62


@dataclass(frozen=True)
class SavedTable:
    """A table of a RowOptimizer that is in a checkpoint's state."""

    item: str
    name: str
    number: int  # of the worker
    rule: str
    worker: Worker

    def shape(self) -> RecordShape:
        layout = self.worker.table_layout(self.number)
        return RecordShape(self.name, layout.width, layout.moments)


def tables_of(state: dict[str, Any]) -> list[SavedTable]:
    """Those of all items. What is on its way is settled first; its error comes here."""
    found = []
    for item, held in sorted(state.items()):
        if hasattr(held, "saved_tables"):
            found += [SavedTable(item, *table) for table in held.saved_tables()]
    names = [table.name for table in found]
    for name in names:
        if names.count(name) > 1:
            raise InvalidArgument(f"table {name!r} is in two objects of the state: give each RowOptimizer once")
    return found


def owners_of(state: dict[str, Any]) -> list[Any]:
    return [held for _, held in sorted(state.items()) if hasattr(held, "saved_tables")]


def part_of(index: int, rank: int) -> str:
    """What the file of a table is called that a worker writes, behind the checkpoint's id."""
    return f"table{index}.rank{rank}"


# ---- What the manifest says: {"item", "table", "width", "moments", "rule", "saves": [...]} of each table. Of its
# saves, {"id", "index", "ranks", "updates"}, the first is of all rows, and each of the others of those that changed
# since the one before.


def chain_to_go_on(state: dict[str, Any], manifest: dict[str, Any] | None, rows_every: int) -> dict[str, list[Any]]:
    """The saves that a new one may build on, by table; none where it is to be of all rows: where the tables do not
    come from the checkpoint that is there."""
    owners = owners_of(state)
    if manifest is None or rows_every == 1 or not owners:
        return {}
    if any(owner.rows_are_of != manifest.get("id") for owner in owners):
        return {}
    chains = {table["table"]: table["saves"] for table in checked_tables(manifest, "the checkpoint")}
    names = {table.name for table in tables_of(state)}
    if names != chains.keys() or any(len(saves) >= min(rows_every, MOST_SAVES) for saves in chains.values()):
        return {}
    return chains


def entry_of(table: SavedTable, index: int, token: str, ranks: int, updates: int, chain: list[Any]) -> dict[str, Any]:
    shape = table.shape()
    save = {"id": token, "index": index, "ranks": ranks, "updates": updates}
    return {
        "item": table.item,
        "table": table.name,
        "width": shape.width,
        "moments": shape.moments,
        "rule": table.rule,
        "saves": [*chain, save],
    }


def checked_tables(manifest: dict[str, Any], path: str) -> list[dict[str, Any]]:
    """The tables of a manifest. DataLoss: it is not what entry_of() gives."""
    tables = manifest.get("rows", [])
    try:
        for table in tables:
            indices = (number for save in table["saves"] for number in (save["index"] + 1, save["ranks"]))
            numbers = [table["width"], *indices]
            counts = [table["moments"], *(save["updates"] for save in table["saves"])]
            texts = [table["item"], table["table"], table["rule"], *(save["id"] for save in table["saves"])]
            is_good = (
                all(type(number) is int and 1 <= number <= 1 << 20 for number in numbers)
                and all(type(count) is int and 0 <= count <= 1 << 62 for count in counts)
                and all(isinstance(text, str) for text in texts)
                and 1 <= len(table["saves"]) <= MOST_SAVES
            )
            if not is_good:
                raise ValueError("a number, or a text, is none that can be")
    except (TypeError, KeyError, ValueError) as error:
        raise DataLoss(f"{path} does not say of its tables what bandoneon.torch.save writes: {error!r}") from None
    return list(tables)


def ids_in_chains(manifest: dict[str, Any]) -> set[str]:
    """The ids of all saves that a checkpoint's tables are made of."""
    found = set()
    for table in manifest.get("rows", []) if isinstance(manifest.get("rows"), list) else []:
        for save in table.get("saves", []) if isinstance(table, dict) else []:
            if isinstance(save, dict) and isinstance(save.get("id"), str):
                found.add(save["id"])
    return found


# ---- To and from the servers


def write_table(file: Any, table: SavedTable, place: int, places: int, since: int) -> int:
    """Writes the records of this worker's part of the buckets, of `places` parts, that changed after `since` updates;
    the table's updates."""
    layout = table.worker.table_layout(table.number)
    shape = RecordShape(table.name, layout.width, layout.moments)
    room = shape.most_records
    ids = (ctypes.c_uint64 * room)()
    records = (ctypes.c_char * (room * shape.record_bytes))()
    writer = RowFileWriter(file, shape, removed_since(table, place, places) if layout.is_limited else None)
    updates = 0
    for which in writer.lists:
        for bucket in range(place, layout.buckets, places):
            memory = (ctypes.addressof(ids), ctypes.addressof(records))
            scan = RowScan(table.number, bucket, since, room, *memory, keep=(ids, records), rows=which)
            while True:
                table.worker.wait(table.worker.scan_rows(scan))
                found = memoryview(records)[: scan.count * shape.listed_bytes(which)]
                writer.write(memoryview(ids)[: scan.count].cast("B"), found)
                updates = max(updates, scan.updates)
                if not scan.cursor:
                    break
        writer.end()
    return updates


def removed_since(table: SavedTable, place: int, places: int) -> int:
    """The updates of the table since which its servers have forgotten no removed id of this worker's part."""
    layout = table.worker.table_layout(table.number)
    if not layout.is_limited:
        return 0
    number, record = ctypes.c_uint64(), (ctypes.c_char * 8)()
    since = 0
    for bucket in range(place, layout.buckets, places):
        scan = RowScan(
            table.number,
            bucket,
            _NEVER,
            1,
            ctypes.addressof(number),
            ctypes.addressof(record),
            keep=(number, record),
            rows=LIST_REMOVED,
        )
        table.worker.wait(table.worker.scan_rows(scan))
        since = max(since, scan.complete_since)
    return since


def check_fits(table: SavedTable, saved: dict[str, Any], path: str) -> None:
    """InvalidArgument where the table of a checkpoint is another one."""
    shape = table.shape()
    here, there = table.rule.partition("(")[0], saved["rule"].partition("(")[0]
    if (shape.width, shape.moments, here) != (saved["width"], saved["moments"], there):
        raise InvalidArgument(
            f"{path} has table {table.name!r} with rows of {saved['width']} elements and {saved['moments']} moments "
            f"of {saved['rule']}; here they are of {shape.width} and {shape.moments} of {table.rule}",
            tensor=table.name,
        )


def clear_table(table: SavedTable, updates: int) -> None:
    """Has the servers forget all rows of a table."""
    worker = table.worker
    worker.wait(worker.set_row_records(table.number, updates, 0, 0, 0, replaces=True))


def read_table(file: Any, path: str, table: SavedTable, updates: int) -> None:
    """Sets the records of a file, piece by piece."""
    worker = table.worker
    for which, ids, records in read_row_file(file, path, table.shape()):
        count = len(ids) // 8
        c_ids = ctypes.create_string_buffer(ids, len(ids))
        c_records = ctypes.create_string_buffer(records, len(records))
        worker.wait(
            worker.set_row_records(
                table.number, updates, ctypes.addressof(c_ids), count, ctypes.addressof(c_records), rows=which
            )
        )
