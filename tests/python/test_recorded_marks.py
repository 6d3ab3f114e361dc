"""Marks in a recording on disk, read by docs/trace_format.md alone."""

import json
import struct
from collections import Counter

import bandoneon
from cluster_helpers import loss_of, make_batch, make_model, sgd

KINDS = {
    32: "step",
    33: "forward",
    34: "ready",
    35: "waiting",
    36: "optimizer",
    37: "collection",
    38: "input",
    39: "user",
    40: "backward",
}
STEPS = 3


def recorded_marks(path):
    """(facts, names by key, records that are marks as dicts) of a file."""
    data = path.read_bytes()
    assert data[:8] == b"BDNTRACE"
    order, version, record_bytes, block_bytes = struct.unpack_from("<IIII", data, 8)
    assert (order, version, record_bytes) == (0x01020304, 1, 48)
    facts_at, _, _, _, _, _, names_at, _, blocks_at = struct.unpack_from("<9Q", data, 24)
    facts = json.loads(data[facts_at + 4 : facts_at + 4 + struct.unpack_from("<I", data, facts_at)[0]])
    names, at = {}, names_at + 16
    end = at + struct.unpack_from("<Q", data, names_at)[0]
    while at < end:
        key, size = struct.unpack_from("<QI", data, at)
        names[key] = data[at + 12 : at + 12 + size].decode()
        at += 12 + size
    fields = "begin wall key step cpu queued peer thread kind flags".split()
    found = []
    for block in range(blocks_at, len(data) - block_bytes + 1, block_bytes):
        sequence, _, count = struct.unpack_from("<QII", data, block)
        for number in range(count if sequence else 0):
            record = dict(zip(fields, struct.unpack_from("<qQQQIIIHBB", data, block + 64 + 48 * number)))
            if record["kind"] in KINDS:
                found.append({**record, "kind": KINDS[record["kind"]]})
    return facts, names, found


def test_what_a_program_does_is_in_the_file_of_its_worker(tmp_path):
    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model)
        for step in range(STEPS):
            with bandoneon.trace.mark("a whole step", worker=worker):
                optimizer.zero_grad()
                loss_of(model, make_batch(worker.rank, step)).backward()
                optimizer.step()
        return {name for name, _ in model.named_parameters()}

    with bandoneon.LocalCluster(workers=2, fusion_bytes=1) as cluster:  # Each tensor has a key of its own.
        (of_model, _) = cluster.run(job, trace=str(tmp_path))
    files = sorted(tmp_path.glob("worker-*.bdntrace"))
    assert len(files) == 2
    for rank, file in enumerate(files):
        facts, names, found = recorded_marks(file)
        assert facts["role"] == "worker" and facts["rank"] == rank
        for step in range(1, STEPS + 1):
            of_step = [one for one in found if one["step"] == step]
            counts = Counter(one["kind"] for one in of_step)
            assert {kind: counts[kind] for kind in ("step", "forward", "backward", "ready", "optimizer")} == dict(
                step=1, forward=1, backward=1, ready=len(of_model), optimizer=1
            )
            assert {names[one["key"]] for one in of_step if one["kind"] == "ready"} == of_model
            (whole,) = [one for one in of_step if one["kind"] == "step"]
            assert 0 < whole["cpu"] * 16 <= whole["wall"] + 1_000_000
        named = [names[one["key"]] for one in found if one["kind"] == "user"]
        assert named == ["a whole step"] * STEPS
