"""A plain reader of recordings, written from docs/trace_format.md alone. It trusts what it reads, and shares nothing
with the product.

    python3 tests/reference/trace_reference.py FILE    prints what is in it as JSON
"""

import dataclasses
import json
import pathlib
import struct
import sys

KINDS = {0: "queue", 1: "hold", 2: "sum", 3: "rule", 4: "encode", 5: "send", 6: "wait", 7: "reply", 8: "decode_queue",
         9: "decode", 10: "deliver", 32: "step", 33: "forward", 34: "ready", 35: "waiting", 36: "optimizer",
         37: "collection", 38: "input", 39: "user", 40: "backward", 64: "thread", 65: "machine", 66: "link", 67: "path"}


@dataclasses.dataclass
class Record:
    begin: int
    duration: int
    key: int
    step: int
    cpu: int  # in units of 16 ns, as the file has it
    bytes: int
    peer: int
    thread: int
    kind: str
    flags: int


@dataclasses.dataclass
class Recording:
    facts: dict
    clocks: list[tuple[int, int]]  # (monotonic, real), the oldest first
    threads: list[tuple[int, str]]  # (number in the system, name)
    names: dict[int, str]
    records: list[Record]  # by their begins
    names_lost: int
    records_lost: int
    end: int


def read(data: bytes) -> Recording:
    assert data[:8] == b"BDNTRACE", "no recording"
    order, version, record_bytes, block_bytes = struct.unpack_from("<IIII", data, 8)
    assert (order, version, record_bytes) == (0x01020304, 1, 48), "another kind of recording"
    facts_at, _, clocks_at, _, threads_at, _, names_at, _, blocks_at, names_lost, records_lost, end = \
        struct.unpack_from("<12Q", data, 24)

    facts_bytes, = struct.unpack_from("<I", data, facts_at)
    facts = json.loads(data[facts_at + 4:facts_at + 4 + facts_bytes].decode("utf-8"))

    pairs, = struct.unpack_from("<Q", data, clocks_at)
    clocks = [struct.unpack_from("<qq", data, clocks_at + 16 + number % 64 * 16)
              for number in range(max(0, pairs - 64), pairs)]

    threads = []
    count, = struct.unpack_from("<I", data, threads_at)
    for place in range(count):
        number, name = struct.unpack_from("<I4x24s", data, threads_at + 16 + place * 32)
        threads.append((number, name.rstrip(b"\0").decode("utf-8")))

    names = {}
    used, = struct.unpack_from("<Q", data, names_at)
    at = names_at + 16
    while at < names_at + 16 + used:
        key, length = struct.unpack_from("<QI", data, at)
        names[key] = data[at + 12:at + 12 + length].decode("utf-8")
        at += 12 + length

    records = []
    for block in range(blocks_at, len(data), block_bytes):
        sequence, _, count = struct.unpack_from("<QII", data, block)
        for place in range(count if sequence else 0):
            fields = struct.unpack_from("<qQQQIIIHBB", data, block + 64 + place * 48)
            if fields[8] in KINDS:
                records.append(Record(*fields[:8], KINDS[fields[8]], fields[9]))
    records.sort(key=lambda record: record.begin)
    return Recording(facts, clocks, threads, names, records, names_lost, records_lost, end)


def read_file(path: pathlib.Path) -> Recording:
    return read(path.read_bytes())


if __name__ == "__main__":
    print(json.dumps(dataclasses.asdict(read_file(pathlib.Path(sys.argv[1]))), indent=1))
