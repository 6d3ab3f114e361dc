"""Tables in checkpoints: the same records in a job of another number of workers, servers and buckets."""

import hashlib
import os
import re
from ctypes import addressof, c_char, c_uint64

import pytest
import torch
import torch.distributed.checkpoint as dcp

import bandoneon
import bandoneon.torch as bdn
from bandoneon.calls import RowScan
from bandoneon.torch import checkpoint_storage, rows
from bandoneon.torch.app_state import AppState
from cluster_helpers import run_job
from test_rows import Net, batch_of, loss_of

# By rank and step; of 4 ranks, so that any number of workers has the same batches.
RANKS = 4


def digest_of(worker, optimizer):
    """SHA-256 of the sorted records of all tables."""
    digest = hashlib.sha256()
    for _, number, _, _ in optimizer.saved_tables():
        layout = worker.table_layout(number)
        found = {}
        for bucket in range(layout.buckets):
            ids, records = (c_uint64 * 7)(), (c_char * (7 * layout.record_bytes))()
            scan = RowScan(number, bucket, 0, 7, addressof(ids), addressof(records), keep=(ids, records))
            while True:
                worker.wait(worker.scan_rows(scan))
                for i in range(scan.count):
                    assert ids[i] not in found
                    found[ids[i]] = records[i * layout.record_bytes : (i + 1) * layout.record_bytes]
                if not scan.cursor:
                    break
            assert scan.updates
        for row in sorted(found):
            digest.update(row.to_bytes(8, "little") + found[row])
    return digest.hexdigest()


def step(model, optimizer, worker, number):
    """A step of all ranks' batches, whose gradients this worker's part adds to the same mean."""
    mine = range(worker.rank, RANKS, worker.size)
    (sum(loss_of(model, batch_of(rank, number)) for rank in mine) / len(mine)).backward()
    optimizer.step()
    optimizer.zero_grad()


def run(directory, workers, servers, buckets, rule, begin, end, **save):
    """Goes on from a checkpoint where there is one, and leaves one; the digest of the rows as they were loaded and at the
    end, and of the rows that workers see."""

    def job(worker):
        model = Net()
        rows.serve_tables(model)
        optimizer = rows.RowOptimizer(model, rule=rule, lr=0.05, worker=worker)
        loaded = None
        if begin:
            values = bdn.load(directory, {"tables": optimizer, "step": 0}, worker=worker)
            assert values["step"] == begin
            loaded = digest_of(worker, optimizer)
            worker.barrier("read")
        for number in range(begin, end):
            step(model, optimizer, worker, number)
            if save.get("each"):
                bdn.save(directory, {"tables": optimizer, "step": number + 1}, worker=worker, rows_every=save["each"])
        optimizer.settle()
        worker.barrier("trained")
        if not save.get("each"):
            bdn.save(directory, {"tables": optimizer, "step": end}, worker=worker, **save)
        seen = optimizer.rows_of(model.item, torch.arange(50))
        return loaded, digest_of(worker, optimizer), seen

    results = run_job(job, workers=workers, servers=servers, seed=5, row_buckets=buckets)
    for result in results[1:]:
        assert result[:2] == results[0][:2] and torch.equal(result[2], results[0][2])
    return results[0]


@pytest.mark.parametrize("rule", ["adagrad", "adamw", "rowwise_adagrad"])
def test_the_table_is_the_same_in_a_job_of_another_size(tmp_path, rule):
    _, saved, _ = run(tmp_path / "a", 4, 3, 64, rule, 0, 6)
    for workers, servers, buckets in ((2, 1, 8), (1, 2, 4), (4, 3, 64)):
        loaded, _, _ = run(tmp_path / "a", workers, servers, buckets, rule, 6, 6)
        assert loaded == saved


@pytest.mark.parametrize("rule", ["sgd", "adamw"])
def test_a_job_that_was_loaded_half_way_ends_with_the_same_bits(tmp_path, rule):
    _, whole, rows_of_whole = run(tmp_path / "whole", 2, 1, 16, rule, 0, 8)
    run(tmp_path / "half", 2, 3, 8, rule, 0, 4)
    _, half, rows_of_half = run(tmp_path / "half", 2, 1, 4, rule, 4, 8)
    assert half == whole
    assert torch.equal(rows_of_half, rows_of_whole)


def files_of(directory):
    return sorted(name for name in os.listdir(directory) if name.endswith(".rows"))


def test_saves_of_what_changed_are_the_whole_table(tmp_path):
    _, whole, _ = run(tmp_path / "whole", 2, 1, 8, "adagrad", 0, 6)
    _, same, _ = run(tmp_path / "parts", 2, 2, 8, "adagrad", 0, 6, each=6)
    assert same == whole
    assert len(files_of(tmp_path / "parts")) == 6 * 2 * 2  # saves, tables, workers
    loaded, _, _ = run(tmp_path / "parts", 2, 3, 4, "adagrad", 6, 6)
    assert loaded == whole


def test_a_save_of_all_rows_ends_the_chain_and_removes_its_files(tmp_path):
    run(tmp_path, 2, 1, 4, "sgd", 0, 4, each=3)
    names = files_of(tmp_path)
    assert len({name.split(".")[0] for name in names}) == 1 and len(names) == 4
    sizes = {}

    def job(worker):
        model = Net()
        rows.serve_tables(model)
        optimizer = rows.RowOptimizer(model, lr=0.05, worker=worker)
        bdn.load(tmp_path, {"tables": optimizer, "step": 0}, worker=worker)
        before = set(files_of(tmp_path))
        worker.barrier("looked")
        zeros = torch.zeros((8, 3), dtype=torch.int64)
        loss_of(model, (zeros[:, 0], zeros, torch.ones(8, 3))).backward()
        optimizer.step()
        bdn.save(tmp_path, {"tables": optimizer, "step": 5}, worker=worker, rows_every=3)
        if worker.rank == 0:
            for name in files_of(tmp_path):
                sizes[name in before] = sizes.get(name in before, 0) + os.path.getsize(tmp_path / name)

    run_job(job, workers=2)
    # A job that was loaded goes on with the chain: what one row takes is written, and the rest stays.
    assert sizes[False] < sizes[True] / 2


OTHER_NAME = b'"table": "item"', b'"table": "other"'


def change(name, change_bytes):
    def act(directory):
        path = next(directory / one for one in os.listdir(directory) if re.search(name, one))
        path.write_bytes(change_bytes(path.read_bytes()))

    return act


@pytest.mark.parametrize(
    "damage, text",
    [
        (change(r"table0\.rank1\.rows", lambda data: data[:-9]), r"table0\.rank1\.rows, of table 'item', .*cut off"),
        (change(r"table0\.rank0\.rows", lambda data: data[:-30] + b"?" + data[-29:]), "is damaged in the"),
        (change(r"table1\.rank0\.rows", lambda data: b"?" + data[1:]), "is no file of rows"),
        (change(r"table0\.rank0\.rows", lambda data: data.replace(b'"format": 1', b'"format": 9')), "of format 9"),
        (change(r"checkpoint\.json", lambda data: data.replace(b'"width": 6', b'"width": 7')), "rows of 7 elements"),
        (change(r"checkpoint\.json", lambda data: data.replace(b'"width": 6', b'"width": "6"')), "not say of its tables"),
        (change(r"checkpoint\.json", lambda data: data.replace(*OTHER_NAME)), "nothing of table 'item'"),
    ],
)
def test_a_checkpoint_that_is_not_whole_names_file_and_table(tmp_path, damage, text):
    run(tmp_path, 2, 1, 4, "sgd", 0, 2)
    damage(tmp_path)
    with pytest.raises((bandoneon.DataLoss, bandoneon.InvalidArgument), match=text):
        run(tmp_path, 2, 1, 4, "sgd", 2, 2)


def test_a_missing_file_of_rows_is_named(tmp_path):
    run(tmp_path, 2, 1, 4, "sgd", 0, 2)
    missing = next(name for name in files_of(tmp_path) if "table1.rank1" in name)
    os.remove(tmp_path / missing)
    with pytest.raises(bandoneon.NotFound, match=re.escape(missing)):
        run(tmp_path, 2, 1, 4, "sgd", 2, 2)


def test_another_rule_or_table_is_refused(tmp_path):
    run(tmp_path, 1, 1, 4, "adagrad", 0, 2)
    with pytest.raises(bandoneon.InvalidArgument, match="6 moments of adagrad.*; here they are of 6 and 0 of sgd"):
        run(tmp_path, 1, 1, 4, "sgd", 2, 2)


def test_one_worker_writes_all_rows_where_its_host_alone_is_to_have_them(tmp_path):
    _, saved, _ = run(tmp_path, 2, 1, 8, "adagrad", 0, 3, layout="rank0")
    assert all(".rank0." in name for name in files_of(tmp_path))
    loaded, _, _ = run(tmp_path, 3, 1, 4, "adagrad", 3, 3)
    assert loaded == saved


def test_a_full_disk_leaves_the_checkpoint_of_before(tmp_path, monkeypatch):
    _, saved, _ = run(tmp_path, 2, 1, 8, "sgd", 0, 2)
    before = set(os.listdir(tmp_path))

    whole_write = checkpoint_storage._Watched.write

    def write(self, data):
        if not bytes(data[:7]) == b"BDNROWS":
            return whole_write(self, data)
        self.error = OSError(28, "No space left on device")
        raise self.error

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_storage._Watched, "write", write)
        with pytest.raises(bandoneon.ResourceExhausted, match=r"table0\.rank\d\.rows cannot be written: No space"):
            run(tmp_path, 2, 1, 8, "sgd", 2, 3)
    assert set(os.listdir(tmp_path)) == before
    loaded, _, _ = run(tmp_path, 2, 1, 8, "sgd", 2, 2)
    assert loaded == saved


def test_what_cannot_save_rows_says_what_can():
    def job(worker):
        table = rows.Embedding(None, 4)
        optimizer = rows.RowOptimizer(table, worker=worker)
        both = bdn.DistributedOptimizer(torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), 0.1), worker=worker)
        with pytest.raises(bandoneon.InvalidArgument, match="RowOptimizer exchanges nothing: give the RowOptimizer as rows="):
            AppState(table, optimizer, rows=both, worker=worker)
        with pytest.raises(bandoneon.InvalidArgument, match="table 'rows' is in two objects of the state"):
            bdn.save("/nowhere", {"a": optimizer, "b": optimizer}, worker=worker)
        with pytest.raises(bandoneon.InvalidArgument, match="rows_every=0 is not a number of saves"):
            bdn.save("/nowhere", {"a": optimizer}, worker=worker, rows_every=0)
        return True

    assert run_job(job, workers=1) == [True]


# ---- torch.distributed.checkpoint ----


class App:
    """A model with tables at servers and a dense rest that trains, and what a checkpoint of torch's keeps of them."""

    def __init__(self, worker, **options):
        self.worker, self.model = worker, Net()
        rows.serve_tables(self.model)
        for param in self.model.rest.parameters():
            param.requires_grad_(True)
        self.tables = rows.RowOptimizer(self.model, rule="adamw", lr=0.05, worker=worker)
        inner = torch.optim.SGD(self.model.rest.parameters(), lr=0.1, momentum=0.9)
        self.dense = bdn.DistributedOptimizer(inner, self.model.rest.named_parameters(), worker=worker)
        self.state = AppState(self.model.rest, self.dense, rows=self.tables, worker=worker, **options)

    def train(self, begin, end):
        for number in range(begin, end):
            mine = range(self.worker.rank, RANKS, self.worker.size)
            (sum(loss_of(self.model, batch_of(rank, number)) for rank in mine) / len(mine)).backward()
            self.dense.step()
            self.tables.step()
            self.dense.zero_grad()
            self.tables.zero_grad()
        self.tables.settle()
        self.worker.barrier(f"trained to {end}")

    def outcome(self):
        return digest_of(self.worker, self.tables), [param.tolist() for param in self.model.rest.parameters()]


def test_an_app_state_of_torchs_checkpoints_has_the_rows(tmp_path):
    """By dcp itself, where each worker is alone with a path of its own."""

    def job(worker, begin):
        app, path = App(worker), tmp_path / str(worker.rank)
        if begin:
            dcp.load({"app": app.state}, checkpoint_id=path, no_dist=True)
        app.train(begin, 4)
        if not begin:
            dcp.save({"app": app.state}, checkpoint_id=path, no_dist=True)
        app.train(4, 8)
        return app.outcome()

    whole = run_job(lambda worker: job(worker, 0), workers=2, servers=2, row_buckets=8, seed=5)
    assert run_job(lambda worker: job(worker, 4), workers=2, servers=1, row_buckets=4, seed=5) == whole
    assert whole[0] == whole[1]


@pytest.mark.parametrize("size", [1, 3])
def test_an_app_state_is_taken_up_by_another_number_of_workers(size):
    """As dcp does it: each key is saved once, and each worker gets those that it asks for."""
    stored = {}

    def saves(worker):
        app = App(worker)
        app.train(0, 4)
        for key, value in app.state.state_dict().items():
            if key in ("comm", "rows"):
                stored.setdefault(key, {}).update(value)
            else:
                stored[key] = value
        worker.barrier("saved")
        return app.outcome()

    def loads(worker):
        app = App(worker, saved_size=2)
        wanted = app.state.state_dict()
        got = {key: {rank: stored[key][rank] for rank in wanted[key]} for key in ("comm", "rows")}
        app.state.load_state_dict({**{key: stored.get(key) for key in wanted}, **own_of(wanted), **got})
        worker.barrier("loaded")
        return app.outcome()

    def own_of(wanted):
        return {key: stored[key] for key in wanted if key.startswith("rank")}

    saved = run_job(saves, workers=2, servers=2, row_buckets=8, seed=5)
    assert run_job(loads, workers=size, servers=1, row_buckets=2, seed=5) == [saved[0]] * size


def test_an_app_state_whose_rows_do_not_fit_is_refused_in_all_workers():
    def job(worker):
        app = App(worker)
        app.train(0, 1)
        before = app.outcome()
        worker.barrier("read")
        state = app.state.state_dict()
        refused = []
        for change in (lambda part: part["item"].update(width=8), lambda part: part.pop("words")):
            rows_of = {rank: {name: dict(table) for name, table in part.items()} for rank, part in state["rows"].items()}
            if worker.rank == 1:
                change(rows_of["rank1"])
            with pytest.raises(bandoneon.InvalidArgument) as caught:
                app.state._load_rows(rows_of)
            refused.append(str(caught.value))
        assert app.outcome() == before, "nothing was changed"
        return refused

    for width, missing in run_job(job, workers=2):
        assert "table 'item' with rows of 8 elements" in width and "worker 1 has no table 'words'" in missing


def test_a_training_that_is_saved_on_the_way_goes_on_with_its_rows(tmp_path):
    def job(total, directory):
        def train(worker):
            table = rows.Embedding(None, 4, init="normal")
            optimizer = rows.RowOptimizer(table, rule="adamw", lr=0.1, worker=worker)
            state = bdn.TrainingState({"table": table, "rows": optimizer}, checkpoint=directory, every=2, worker=worker)
            steps = []
            for number in state.steps(total):
                steps.append(number)
                optimizer.zero_grad()
                table(torch.tensor([number + worker.rank, 5])).sum().backward()
                optimizer.step()
            return steps, optimizer.rows_of(table, torch.arange(10))

        return run_job(train, workers=2)

    whole = job(6, tmp_path / "whole")[0]
    assert [steps for steps, _ in job(3, tmp_path / "parts")] == [[0, 1, 2]] * 2
    for steps, now in job(6, tmp_path / "parts"):
        assert steps == [3, 4, 5] and torch.equal(now, whole[1])


def test_a_table_of_a_lower_bound_does_not_take_rows_beyond_it(tmp_path):
    run(tmp_path, 1, 1, 4, "sgd", 0, 2)

    def job(worker):
        model = Net()
        model.item = torch.nn.Embedding(5, 6)
        rows.serve_tables(model)
        optimizer = rows.RowOptimizer(model, lr=0.05, worker=worker)
        with pytest.raises(bandoneon.InvalidArgument, match=r"table 'item': id \d+, .*is not from 0 to 4"):
            bdn.load(tmp_path, {"tables": optimizer, "step": 0}, worker=worker)
        return True

    assert run_job(job, workers=1) == [True]


def test_records_that_no_rule_leaves_are_refused():
    def job(worker):
        model = Net()
        rows.serve_tables(model)
        optimizer = rows.RowOptimizer(model, rule="adagrad", worker=worker)
        number = optimizer.saved_tables()[0][1]
        shape = worker.table_layout(number)
        ids = (c_uint64 * 1)(7)

        def set_record(floats, counters, updates=3, row=7):
            ids[0] = row
            values = torch.tensor([*floats] + [0.0] * 2, dtype=torch.float32)
            values.view(torch.int32)[-2:] = torch.tensor(counters, dtype=torch.int32)
            worker.wait(worker.set_row_records(number, updates, addressof(ids), 1, values.data_ptr()))

        good = [1.0] * (shape.width + shape.moments)
        set_record(good, (1, 2))
        for floats, counters, row, text in (
            ([float("nan"), *good[1:]], (1, 2), 7, "row 7 has.*an element that is not finite"),
            ([*good[:-1], -1.0], (1, 2), 7, "moments that the rule cannot have left"),
            (good, (4, 2), 7, "4 updates, the last at 2, in a table of 3 updates"),
            (good, (1, 5), 7, "the last at 5"),
            (good, (1, 2), 50, "id 50, at position 0 of the ids, is not from 0 to 49"),
        ):
            with pytest.raises(bandoneon.InvalidArgument, match=text):
                set_record(floats, counters, row=row)
        scan = RowScan(number, 99, 0, 1, addressof(ids), values_address := addressof((c_char * 64)()))
        with pytest.raises(bandoneon.InvalidArgument, match="a scan of bucket 99 of"):
            worker.scan_rows(scan)
        assert values_address
        return True

    assert run_job(job, workers=1) == [True]
