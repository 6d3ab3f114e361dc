"""Marks in a recording on disk."""

from collections import Counter

import bandoneon
import trace_reference
from cluster_helpers import loss_of, make_batch, make_model, sgd

STEPS = 3
ONE_EACH = dict(step=1, forward=1, backward=1, optimizer=1)


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
        of_model, _ = cluster.run(job, trace=str(tmp_path))
    files = sorted(tmp_path.glob("worker-*.bdntrace"))
    assert len(files) == 2
    for rank, file in enumerate(files):
        recording = trace_reference.read_file(file)
        assert (recording.facts["role"], recording.facts["rank"]) == ("worker", rank)
        for step in range(1, STEPS + 1):
            of_step = [one for one in recording.records if one.step == step]
            counts = Counter(one.kind for one in of_step)
            assert {kind: counts[kind] for kind in ONE_EACH} == ONE_EACH
            ready = [recording.names[one.key] for one in of_step if one.kind == "ready"]
            assert set(ready) == of_model and len(ready) == len(of_model)
            (whole,) = [one for one in of_step if one.kind == "step"]
            assert 0 < whole.cpu * 16 <= whole.duration + 1_000_000
        users = [one for one in recording.records if one.kind == "user"]
        assert [recording.names[one.key] for one in users] == ["a whole step"] * STEPS
        assert all(one.duration > 0 for one in users)
