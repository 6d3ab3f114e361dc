"""The plain reader of recordings, and what it makes of the golden one."""

import dataclasses
import json
import pathlib

import trace_reference

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden"


def test_the_golden_recording_is_as_its_listing_says():
    listing = json.loads((GOLDEN / "recording.json").read_text(encoding="utf-8"))
    recording = trace_reference.read_file(GOLDEN / "recording.bdntrace")
    assert recording.facts == listing["facts"]
    assert [list(thread) for thread in recording.threads] == listing["threads"]
    assert {str(key): name for key, name in recording.names.items()} == listing["names"]
    assert len(recording.clocks) == 64
    assert [list(recording.clocks[0]), list(recording.clocks[-1])] == listing["clocks"]
    assert [list(dataclasses.astuple(record)) for record in recording.records] == listing["records"]
    assert [recording.names_lost, recording.records_lost, recording.end] == \
        [listing["names_lost"], listing["records_lost"], listing["end"]]
