"""`bandoneon rows`: tables of a checkpoint, as a program without Python has them."""

import json
import struct
import sys
import time
import zlib

import numpy as np
import pytest
from command_helpers import LIMIT, read_until

WIDTH = 3
ID, NEXT = "00000000000000aa", "00000000000000bb"


def record(row, updates, changed):
    return struct.pack("<3f1f2I", row, row + 0.5, -row, 9.0, updates, changed)


def list_of(records, pack, end=True):
    data = b""
    for first in range(0, len(records), 2):
        piece = records[first : first + 2]
        body = b"".join(struct.pack("<Q", row) for row, *_ in piece) + b"".join(pack(*one) for one in piece)
        data += struct.pack("<II", len(piece), zlib.crc32(body)) + body
    total = struct.pack("<Q", len(records))
    return data + (struct.pack("<II", 0, zlib.crc32(total)) + total if end else b"")


def write_file(path, records, table="item", end=True, lists=None, **head):
    """lists: (ids that were removed, candidates), each (id, count, changed), of a table that has them."""
    number = 1 if lists is None else 2
    head = json.dumps({"format": number, "table": table, "width": WIDTH, "moments": 1, **head}).encode()
    data = b"BDNROWS\n" + struct.pack("<I", len(head)) + head + list_of(records, record, end)
    for one in lists or ():
        data += list_of(one, lambda _, count, changed: struct.pack("<2I", count, changed))
    path.write_bytes(data)


@pytest.fixture
def checkpoint(tmp_path):
    """Two saves: row 7 is in both, row 2**63 + 1 in the second alone."""
    write_file(tmp_path / f"{ID}.table0.rank0.rows", [(7, 2, 2), (9, 1, 1), (4, 3, 3)])
    write_file(tmp_path / f"{ID}.table0.rank1.rows", [])
    write_file(tmp_path / f"{NEXT}.table0.rank0.rows", [(2**63 + 1, 1, 5), (7, 4, 4)])
    saves = [dict(id=ID, index=0, ranks=2, updates=3), dict(id=NEXT, index=0, ranks=1, updates=5)]
    table = dict(item="tables", table="item", width=WIDTH, moments=1, rule="rowwise_adagrad", saves=saves)
    write_manifest(tmp_path, [table])
    return tmp_path


def write_manifest(directory, tables):
    manifest = dict(format=1, id=NEXT, size=2, number=2, items=["tables"], rows=tables)
    (directory / "checkpoint.json").write_text(json.dumps(manifest))


def export(real, checkpoint, *options):
    done = real.run("rows", "export", checkpoint, "item", "--out", checkpoint / "out", *options)
    assert done.returncode == 0, done.stderr
    return np.load(checkpoint / "out" / "ids.npy"), np.load(checkpoint / "out" / "rows.npy", mmap_mode="r"), done.stdout


def test_an_export_has_each_row_once_as_the_last_save_has_it(real, checkpoint):
    ids, rows, said = export(real, checkpoint)
    assert ids.dtype == np.uint64 and ids.tolist() == [4, 7, 9, 2**63 + 1]
    assert rows.dtype == np.float32 and rows.shape == (4, WIDTH)
    assert rows[1].tolist() == [7, 7.5, -7] and rows[0].tolist() == [4, 4.5, -4]
    assert "4 rows of 3 elements, of 5 updates of table 'item'" in said
    assert sorted(path.name for path in (checkpoint / "out").iterdir()) == ["ids.npy", "rows.npy"]


def test_changes_alone_are_exported(real, checkpoint):
    ids, rows, _ = export(real, checkpoint, "--since", 3)
    assert ids.tolist() == [7, 2**63 + 1] and rows.shape == (2, WIDTH)
    ids, rows, _ = export(real, checkpoint, "--since", 99)
    assert ids.shape == (0,) and rows.shape == (0, WIDTH)


def test_stat_shows_tables_and_their_hottest_rows(real, checkpoint):
    (table,) = json.loads(real.run("rows", "stat", checkpoint, "--top", 2, "--json").stdout)
    assert table == {
        "table": "item", "rule": "rowwise_adagrad", "width": 3, "rows": 4, "bytes": 4 * 24, "updates": 5,
        "hottest": [{"id": 7, "updates": 4}, {"id": 4, "updates": 3}],
    }
    done = real.run("rows", "stat", checkpoint, "item")
    assert "item: 4 rows of 3 elements, 96 bytes" in done.stdout and "7 (4), 4 (3)" in done.stdout


@pytest.fixture
def limited(tmp_path):
    """Row 4 was removed, and is a candidate; row 9 came again; 5 and 6 were never more than candidates."""
    write_file(tmp_path / f"{ID}.table0.rank0.rows", [(7, 2, 2), (4, 3, 3)],
               lists=([(3, 1, 2), (9, 1, 2)], [(5, 1, 3)]), removed_since=1)
    write_file(tmp_path / f"{NEXT}.table0.rank0.rows", [(8, 1, 5), (9, 1, 5)],
               lists=([(4, 1, 4), (6, 0, 5)], [(4, 1, 5), (5, 2, 4)]), removed_since=3)
    saves = [dict(id=ID, index=0, ranks=1, updates=3), dict(id=NEXT, index=0, ranks=1, updates=5)]
    write_manifest(tmp_path, [dict(item="tables", table="item", width=WIDTH, moments=1, rule="sgd", saves=saves)])
    return tmp_path


def test_an_export_of_changes_tells_the_rows_that_were_removed(real, limited):
    ids, _, said = export(real, limited, "--since", 3)
    assert ids.tolist() == [8, 9] and "2 rows of 3 elements" in said and "; 1 were removed" in said
    removed = np.load(limited / "out" / "removed.npy")
    assert removed.dtype == np.uint64 and removed.tolist() == [4]
    ids, _, _ = export(real, limited, "--since", 1)
    assert ids.tolist() == [7, 8, 9] and np.load(limited / "out" / "removed.npy").tolist() == [3, 4]
    ids, _, said = export(real, limited)
    assert ids.tolist() == [7, 8, 9] and "removed" not in said
    assert sorted(path.name for path in (limited / "out").iterdir()) == ["ids.npy", "rows.npy"]


def test_changes_since_before_what_is_known_to_be_removed_are_not_exported(real, limited):
    write_file(limited / f"{ID}.table0.rank0.rows", [(7, 2, 2)], lists=([], []), removed_since=3)
    done = real.run("rows", "export", limited, "item", "--out", limited / "out", "--since", 2)
    assert done.returncode == 1 and not (limited / "out").exists()
    assert "only what was removed from table 'item' after 3 updates, not after 2: export all rows" in done.stderr
    export(real, limited, "--since", 3)


def test_stat_counts_no_row_that_was_removed(real, limited):
    (table,) = json.loads(real.run("rows", "stat", limited, "--json").stdout)
    assert (table["rows"], table["bytes"]) == (3, 3 * 24)


@pytest.mark.parametrize("lists, head, text", [
    (([], []), {}, "'removed_since' is no whole number"),
    (([],), {"removed_since": 0}, "is cut off"),
    (([(1, 1, 1)], []), {"removed_since": 0, "format": 3}, "is of format 3; this build reads formats 1 and 2"),
])
def test_lists_that_are_not_whole_are_named(real, limited, lists, head, text):
    write_file(limited / f"{ID}.table0.rank0.rows", [(7, 2, 2)], lists=lists, **head)
    done = real.run("rows", "stat", limited)
    assert done.returncode == 1 and text in done.stderr, done.stderr


def damaged(path):
    data = bytearray(path.read_bytes())
    data[-30] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    "damage, text",
    [
        (lambda at: (at / "checkpoint.json").unlink(), "checkpoint.json cannot be read"),
        (lambda at: (at / "checkpoint.json").write_text("[]"), "is not what bandoneon.torch.save writes"),
        (lambda at: (at / "checkpoint.json").write_text('{"format": 2}'), "is not of format 1"),
        (lambda at: write_manifest(at, [{"table": "item"}]), "is no"),
        (lambda at: write_manifest(at, []), "has no table 'item': it has none"),
        (lambda at: (at / f"{ID}.table0.rank1.rows").unlink(), f"{ID}.table0.rank1.rows cannot be read"),
        (lambda at: damaged(at / f"{ID}.table0.rank0.rows"), "of table 'item', is damaged in the"),
        (lambda at: write_file(at / f"{ID}.table0.rank1.rows", [(1, 1, 1)], end=False), "is cut off"),
        (lambda at: write_file(at / f"{ID}.table0.rank1.rows", [], table="b"), "has rows of another table"),
        (lambda at: (at / f"{ID}.table0.rank1.rows").write_bytes(b"x" * 99), "is no file of rows"),
    ],
)
def test_what_is_not_whole_is_named_and_nothing_is_written(real, checkpoint, damage, text):
    damage(checkpoint)
    done = real.run("rows", "export", checkpoint, "item", "--out", checkpoint / "out")
    assert done.returncode == 1 and text in done.stderr, done.stderr
    assert not (checkpoint / "out").exists()


def test_words_that_are_missing_are_asked_for(real, tmp_path):
    for words in (["export", tmp_path], ["export", tmp_path, "item"], ["stat"], ["stat", 1, 2, 3]):
        done = real.run("rows", *words)
        assert done.returncode == 2 and "say CHECKPOINT" in done.stderr
    assert real.run("rows", "stta").returncode == 2


LIVE = """
import ctypes, sys
import bandoneon
from bandoneon.calls import Rows, Table

worker = bandoneon.init()
item, seen, means = worker.declare_tables(
    [Table("item", 4, rule="adagrad"), Table("seen", 2, admit=2, group=1), Table("sums", 4, rule="mean", group=2)]
)

def push(table, width, ids, gradient):
    ids = (ctypes.c_uint64 * len(ids))(*ids)
    rows = (ctypes.c_float * (len(ids) * width))(*[gradient] * (len(ids) * width))
    address = ctypes.addressof
    worker.wait(worker.push_rows([Rows(table, address(ids), len(ids), address(rows))], learning_rate=0.1))

for ids in (range(100), range(50, 150)):
    push(item, 4, [7 * id for id in ids], 1.0)
    push(seen, 2, [1, 2, 3] if ids[0] == 0 else [2], 1.0)
    push(means, 4, [1, 2], 1.0)
print("pushed", flush=True)
sys.stdin.read()
"""


def test_stat_of_a_running_job_counts_the_rows_of_each_table_over_all_servers(real, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "live.py"
    program.write_text(LIVE)
    run = real.start("run", "-n", 2, "-s", 2, "--linger", "0s", "--set", "heartbeat-interval=50ms", "--", "sh", "-c",
                     f"mkfifo in.$RANK; exec {sys.executable} {program} 0<>in.$RANK")  # fmt: skip
    address = read_until(run.stderr, 1, "scheduler at")[-1].split()[-1]
    real.environment["BANDONEON_TOKEN_FILE"] = read_until(run.stderr, 1, "--token-file")[-1].split()[-1]
    read_until(run.stdout, 2, "pushed")
    deadline = time.monotonic() + LIMIT
    tables = []
    while [(of["rows"], of["updates"]) for of in tables] != [(150, 2), (1, 2)]:  # heartbeats tell of them
        assert time.monotonic() < deadline, tables
        done = real.run("rows", "stat", "--scheduler", address, "--json")
        assert done.returncode == 0, done.stderr
        tables = json.loads(done.stdout)
    item, seen = tables
    assert (item["table"], item["added"], item["removed"], item["not_admitted"]) == ("item", 150, 0, 0)
    assert item["bytes"] >= 150 * 4 * (4 + 4 + 2)
    assert (seen["table"], seen["added"], seen["removed"], seen["not_admitted"]) == ("seen", 1, 0, 3)
    text = real.run("rows", "stat", "--scheduler", address).stdout
    assert "item: 150 rows, " in text and ", 2 updates of the table; 150 rows came, 0 were removed" in text
    real.environment["BANDONEON_SCHEDULER"] = address
    assert real.run("rows", "stat").stdout == text
    run.terminate()
    run.communicate(timeout=LIMIT)


def test_stat_is_of_a_checkpoint_or_of_a_job(real, checkpoint):
    both = real.run("rows", "stat", checkpoint, "--scheduler", "127.0.0.1:1")
    assert both.returncode != 0 and "or --scheduler alone" in both.stderr
    nobody = real.run("rows", "stat", "--scheduler", "127.0.0.1:1", "--timeout", "1s")
    assert nobody.returncode == 1 and "127.0.0.1:1" in nobody.stderr
