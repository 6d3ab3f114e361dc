"""`bandoneon bench codecs`: what it prints, and what it says of wrong options."""

import json

import pytest

FIELDS = {"codec", "elements", "threads", "data", "encoded_bytes", "encode_gb_s", "encode_ef_gb_s",
          "decode_add_gb_s", "multi_decode_gb_s", "memcpy_gb_s"}


def quick(real, *args):
    done = real.run("bench", "codecs", "--elements", 4096, *args)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_prints_one_json_line_a_codec(real):
    lines = quick(real, "--codec", "onebit", "--codec", "onebit(block = 256)", "--json").splitlines()
    plain, blocks = map(json.loads, lines)
    assert set(plain) == set(blocks) == FIELDS
    assert (plain["codec"], plain["elements"], plain["threads"]) == ("onebit", 4096, 1)
    assert (plain["encoded_bytes"], blocks["encoded_bytes"]) == (4096 // 8 + 4, 4096 // 8 + 16 * 4)
    assert blocks["codec"] == "onebit(block=256)"
    assert all(plain[field] > 0 for field in FIELDS if field.endswith("_gb_s"))


def test_threads_have_a_partition_each(real):
    (line,) = map(json.loads, quick(real, "--codec", "fp16", "--threads", 2, "--json").splitlines())
    assert (line["threads"], line["elements"], line["encoded_bytes"]) == (2, 4096, 2 * 4096)


def test_prints_a_table_for_people(real):
    head, columns, row = quick(real, "--codec", "onebit").splitlines()[:3]
    assert "4096 elements" in head
    assert columns.split()[:2] == ["codec", "bytes"]
    assert row.split()[:2] == ["onebit", "516"] and row.count("x ") == 4


def test_shows_where_a_spec_is_wrong(real):
    done = real.run("bench", "codecs", "--codec", "onebit(blok=256)")
    assert done.returncode == 2 and done.stdout == ""
    assert "did you mean block?\n  onebit(blok=256)\n         ^^^^\n" in done.stderr


@pytest.mark.parametrize("args, names", [
    (["--codecs", "onebit"], "unknown option --codecs"),
    (["--elements", "0"], "--elements is '0'"),
    (["--elements", "1e6"], "--elements is '1e6'"),
    (["--threads", "257"], "--threads is '257'"),
    (["--codec", "ef(onebit)"], "has a memory: give the codec alone"),
])
def test_names_what_is_wrong(real, args, names):
    done = real.run("bench", "codecs", *args)
    assert done.returncode == 2 and names in done.stderr
    assert "See bandoneon bench codecs --help." in done.stderr


def test_names_the_program_that_is_not_there(staged):
    done = staged.run("bench", "codecs")
    assert done.returncode == 127
    assert f"{staged.path.parent}/bandoneon-bench-codecs" in done.stderr
