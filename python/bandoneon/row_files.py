"""Files of the records of tables, as checkpoints have them (docs/checkpoints.md has the bytes)."""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass
from typing import IO, Any, Iterator

from .calls import LIST_CANDIDATES, LIST_REMOVED, LIST_ROWS
from .errors import DataLoss, InvalidArgument

MAGIC = b"BDNROWS\n"
# A file of the first format has rows alone; one of the second also the ids that were removed, and the candidates.
_OF_ROWS, _OF_LISTS = 1, 2
_LISTS = {_OF_ROWS: (LIST_ROWS,), _OF_LISTS: (LIST_ROWS, LIST_REMOVED, LIST_CANDIDATES)}
# A piece, in the file and in memory, is at most so long.
MOST_PIECE_BYTES = 16 << 20
_MOST_HEADER_BYTES = 1 << 16
_ID_BYTES = 8


@dataclass(frozen=True)
class RecordShape:
    """What the records of a file are of."""

    table: str
    width: int
    moments: int

    @property
    def record_bytes(self) -> int:
        return 4 * (self.width + self.moments + 2)

    def listed_bytes(self, which: int) -> int:
        """Of a record of one of the lists."""
        return self.record_bytes if which == LIST_ROWS else 8

    @property
    def most_records(self) -> int:
        """In a piece."""
        return max(1, MOST_PIECE_BYTES // 2 // (_ID_BYTES + self.record_bytes))


class RowFileWriter:
    """Writes a file's head, and of each of its lists pieces and their end, which tells a whole list from one that was
    cut off. `removed_since`: of a table with other lists than its rows, the updates since which none is forgotten."""

    def __init__(self, file: IO[bytes], shape: RecordShape, removed_since: int | None = None) -> None:
        self._file = file
        self._records = 0
        number = _OF_ROWS if removed_since is None else _OF_LISTS
        self.lists = _LISTS[number]
        facts = {"format": number, "table": shape.table, "width": shape.width, "moments": shape.moments}
        if removed_since is not None:
            facts["removed_since"] = removed_since
        head = json.dumps(facts).encode()
        file.write(MAGIC + struct.pack("<I", len(head)) + head)

    def write(self, ids: memoryview, records: memoryview) -> None:
        """The ids of a piece and their records, as many as there are ids."""
        count = ids.nbytes // _ID_BYTES
        if not count:
            return
        self._records += count
        self._file.write(struct.pack("<II", count, zlib.crc32(records, zlib.crc32(ids))))
        self._file.write(ids)
        self._file.write(records)

    def end(self) -> None:
        """Of a list."""
        total = struct.pack("<Q", self._records)
        self._file.write(struct.pack("<II", 0, zlib.crc32(total)) + total)
        self._records = 0


def read_row_file(file: IO[bytes], path: str, shape: RecordShape) -> Iterator[tuple[int, bytes, bytes]]:
    """(list, ids, records) of each piece. DataLoss and InvalidArgument name the file and the table."""
    what = f"{path}, of table {shape.table!r},"
    if _take(file, len(MAGIC), what) != MAGIC:
        raise DataLoss(f"{what} is no file of rows that bandoneon.torch.save wrote")
    (length,) = struct.unpack("<I", _take(file, 4, what))
    if length > _MOST_HEADER_BYTES:
        raise DataLoss(f"{what} has a head of {length} bytes")
    head = _head_of(_take(file, length, what), what)
    lists = _LISTS.get(head["format"]) if type(head.get("format")) is int else None
    if lists is None:
        known = " and ".join(map(str, _LISTS))
        raise InvalidArgument(f"{what} is of format {head.get('format')!r}; this build reads formats {known}")
    saved = (head.get("table"), head.get("width"), head.get("moments"))
    if saved != (shape.table, shape.width, shape.moments):
        raise InvalidArgument(
            f"{what} has rows of table {saved[0]!r}, of {saved[1]} elements and {saved[2]} moments; wanted are "
            f"{shape.width} and {shape.moments}"
        )
    for which in lists:
        for ids, records in _read_list(file, what, shape.listed_bytes(which)):
            yield which, ids, records


def _read_list(file: IO[bytes], what: str, record_bytes: int) -> Iterator[tuple[bytes, bytes]]:
    read = 0
    while True:
        count, checksum = struct.unpack("<II", _take(file, 8, what))
        if count * (_ID_BYTES + record_bytes) > MOST_PIECE_BYTES:
            raise DataLoss(f"{what} has a piece of {count} records, behind {read}")
        if not count:
            total = _take(file, 8, what)
            if zlib.crc32(total) != checksum or struct.unpack("<Q", total)[0] != read:
                raise DataLoss(f"{what} ends after {read} records, and says otherwise")
            return
        ids = _take(file, count * _ID_BYTES, what)
        records = _take(file, count * record_bytes, what)
        if zlib.crc32(records, zlib.crc32(ids)) != checksum:
            raise DataLoss(f"{what} is damaged in the {count} records behind {read}")
        read += count
        yield ids, records


def _head_of(text: bytes, what: str) -> dict[str, Any]:
    try:
        head = json.loads(text)
    except ValueError as error:
        raise DataLoss(f"{what} has a head that cannot be read: {error}") from None
    if not isinstance(head, dict):
        raise DataLoss(f"{what} has a head that is no object")
    return head


def _take(file: IO[bytes], count: int, what: str) -> bytes:
    data = file.read(count)
    if len(data) != count:
        raise DataLoss(f"{what} is cut off: {len(data)} bytes where {count} were to come")
    return data
