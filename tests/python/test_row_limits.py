"""Tables that admit rows, bound them or remove old ones: on any size of a job, and on the way through checkpoints."""

from ctypes import addressof, c_char, c_uint64

import pytest
import torch

import bandoneon
import bandoneon.torch as bdn
from bandoneon.calls import LIST_CANDIDATES, LIST_REMOVED, LIST_ROWS, RowScan
from bandoneon.torch import rows
from bandoneon.torch.app_state import AppState
from bandoneon.torch.row_checkpoint import removed_since, tables_of
from cluster_helpers import run_job
from test_row_checkpoint import files_of

WIDTH, RANKS, IDS = 4, 4, 500

LIMITS = [
    dict(admit=3),
    dict(ttl=3),
    dict(max_rows=256, evict="lru"),
    dict(admit=2, max_rows=256, evict="lfu", ttl=4),
]


def ids_of(rank, step):
    """Of a step of a rank: some often, most of them seldom, and what is often changes."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return ((torch.rand(60, generator=generator) ** 2 * IDS).long() + 5 * step) % IDS


def make(worker, **limits):
    table = rows.Embedding(None, WIDTH, init="normal", init_value=0.5)
    return table, rows.RowOptimizer(table, rule="adagrad", lr=0.1, worker=worker, **limits)


def train(worker, table, optimizer, begin, end):
    """Steps of all ranks' batches, the same for every number of workers."""
    for step in range(begin, end):
        mine = range(worker.rank, RANKS, worker.size)
        (sum(table(ids_of(rank, step)).square().sum() for rank in mine) / len(mine)).backward()
        optimizer.step(wanted=ids_of(worker.rank, step + 1))
        optimizer.zero_grad()
    optimizer.settle()
    worker.barrier(f"trained to {end}")


def scanned(worker, optimizer, which):
    """{id: record} of a list of the only table."""
    _, number, _, _ = optimizer.saved_tables()[0]
    layout = worker.table_layout(number)
    assert layout.is_limited
    found = {}
    for bucket in range(layout.buckets):
        ids, records = (c_uint64 * 9)(), (c_char * (9 * layout.record_bytes))()
        scan = RowScan(number, bucket, 0, 9, addressof(ids), addressof(records), (ids, records), which)
        while True:
            worker.wait(worker.scan_rows(scan))
            length = layout.record_bytes if which == LIST_ROWS else 8
            for i in range(scan.count):
                assert ids[i] not in found
                found[ids[i]] = records[i * length : (i + 1) * length]
            if not scan.cursor:
                break
    return found


def outcome(worker, table, optimizer):
    lists = [scanned(worker, optimizer, which) for which in (LIST_ROWS, LIST_CANDIDATES)]
    return (*lists, optimizer.rows_of(table, torch.arange(IDS)).tolist())


def run(limits, begin, end, directory=None, workers=2, servers=1, buckets=4, each=None):
    """The outcome, from the checkpoint of `begin` on where that is not 0; leaves checkpoints where there is a
    directory, one a step where `each` says how many of them a chain has."""

    def job(worker):
        table, optimizer = make(worker, **limits)
        if begin:
            loaded = bdn.load(directory, {"tables": optimizer, "step": 0}, worker=worker)
            assert loaded["step"] == begin
        for step in range(begin, end):
            train(worker, table, optimizer, step, step + 1)
            if each and step + 1 < end:
                bdn.save(directory, {"tables": optimizer, "step": step + 1}, worker=worker, rows_every=each)
        if directory is not None and not begin:
            bdn.save(directory, {"tables": optimizer, "step": end}, worker=worker, rows_every=each or 1)
        worker.barrier("saved")
        return outcome(worker, table, optimizer)

    results = run_job(job, workers=workers, servers=servers, row_buckets=buckets, seed=5)
    for result in results[1:]:
        assert result == results[0]
    return results[0]


@pytest.mark.parametrize("limits", LIMITS)
def test_no_size_of_the_job_changes_what_is_held(limits):
    first = run(limits, 0, 10)
    assert run(limits, 0, 10, servers=3, buckets=2) == first
    # Other sums of gradients round otherwise, but the same rows are held.
    other = run(limits, 0, 10, workers=4)
    assert [set(part) for part in other[:2]] == [set(part) for part in first[:2]]
    assert 0 < len(first[0]) and bool(first[1]) == ("admit" in limits)
    unlimited = len(run(dict(admit=1, ttl=1000), 0, 10)[0])
    assert len(first[0]) < unlimited
    assert len(first[0]) <= limits.get("max_rows", unlimited)


@pytest.mark.parametrize("limits", LIMITS)
def test_a_job_that_was_loaded_half_way_ends_with_the_same_bits(tmp_path, limits):
    whole = run(limits, 0, 12)
    half = run(limits, 0, 6, tmp_path, servers=2, buckets=2)
    assert half != whole
    assert run(limits, 6, 12, tmp_path, servers=1, buckets=4) == whole
    other = run(limits, 6, 12, tmp_path, workers=4, buckets=1)
    assert [set(part) for part in other[:2]] == [set(part) for part in whole[:2]]


@pytest.mark.parametrize("limits", LIMITS)
def test_a_chain_of_saves_of_what_changed_has_what_is_no_more(tmp_path, limits):
    whole = run(limits, 0, 12)
    run(limits, 0, 6, tmp_path, buckets=2, each=6)
    assert len(files_of(tmp_path)) == 6 * 2
    assert run(limits, 6, 12, tmp_path, servers=3, buckets=4) == whole


def test_a_job_goes_on_with_a_chain_that_it_has_loaded(tmp_path):
    limits = LIMITS[3]
    run(limits, 0, 3, tmp_path, each=10)

    def job(worker):
        table, optimizer = make(worker, **limits)
        bdn.load(tmp_path, {"tables": optimizer, "step": 0}, worker=worker)
        train(worker, table, optimizer, 3, 6)
        bdn.save(tmp_path, {"tables": optimizer, "step": 6}, worker=worker, rows_every=10)
        return True

    run_job(job, workers=2, servers=2, row_buckets=2, seed=5)
    assert len(files_of(tmp_path)) == 4 * 2
    assert run(limits, 6, 12, tmp_path) == run(limits, 0, 12)


def test_a_save_is_of_all_rows_where_servers_have_forgotten_what_was_removed(tmp_path):
    def job(worker):
        table, optimizer = make(worker, ttl=1)
        saves = []
        for step in range(12):
            # More ids are removed between two saves than a server keeps.
            ids = torch.arange(4000) + 4000 * (step if step > 3 else 0)
            table(ids).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            optimizer.settle()
            worker.barrier(f"stepped {step}")
            if step in (2, 3, 11):
                bdn.save(tmp_path, {"tables": optimizer}, worker=worker, rows_every=5)
                saves.append(len(files_of(tmp_path)))
        (saved,) = tables_of({"tables": optimizer})
        return saves, removed_since(saved, 0, 1), len(scanned(worker, optimizer, LIST_REMOVED))

    saves, since, kept = run_job(job, workers=1)[0]
    assert saves == [1, 2, 1]
    assert since > 4 and 0 < kept <= 4 * 2048

    def loads(worker):
        table, optimizer = make(worker, ttl=1)
        bdn.load(tmp_path, {"tables": optimizer}, worker=worker)
        return sorted(scanned(worker, optimizer, LIST_ROWS))

    assert run_job(loads, workers=1) == [list(range(44000, 48000))]


def test_an_app_state_of_torchs_checkpoints_has_the_candidates():
    limits = LIMITS[3]
    stored = {}

    def saves(worker):
        table, optimizer = make(worker, **limits)
        state = AppState(table, optimizer, worker=worker)
        train(worker, table, optimizer, 0, 6)
        stored[worker.rank] = state.state_dict()
        worker.barrier("saved")
        train(worker, table, optimizer, 6, 10)
        return outcome(worker, table, optimizer)

    def loads(worker):
        table, optimizer = make(worker, **limits)
        AppState(table, optimizer, worker=worker).load_state_dict(stored[worker.rank])
        train(worker, table, optimizer, 6, 10)
        return outcome(worker, table, optimizer)

    whole = run_job(saves, workers=2, servers=2, row_buckets=2, seed=5)
    assert run_job(loads, workers=2, servers=1, row_buckets=4, seed=5) == whole


def test_a_row_is_the_initial_one_until_it_is_admitted_and_after_it_was_removed():
    def job(worker):
        table, optimizer = make(worker, admit=2, ttl=2)
        first = optimizer.rows_of(table, [7])
        seen = []
        for ids in ([7], [7], [7], [8], [8], [8], [7]):
            table(torch.tensor(ids)).sum().backward()
            optimizer.step(wanted=torch.tensor([7]))
            optimizer.zero_grad()
            # The row that came with the answer is the one that a fetch has.
            came = table(torch.tensor([7])).detach()
            optimizer.zero_grad()
            worker.barrier("read")
            assert torch.equal(came, optimizer.rows_of(table, [7]))
            seen.append(bool(torch.equal(came, first)))
            worker.barrier("compared")
        return seen

    assert run_job(job, workers=2, seed=5) == [[True, False, False, False, False, True, True]] * 2


@pytest.mark.parametrize(
    "limits, text",
    [
        (dict(admit=0), r"group 0: admit=0 is not a whole number from 1 to 1048576"),
        (dict(admit=None), r"group 0: admit=None is not a whole number from 1"),
        (dict(admit=2.5), r"admit=2.5 is not a whole number"),
        (dict(max_rows=0), r"max_rows=0 is not a whole number from 1 to"),
        (dict(max_rows=True), r"max_rows=True is not a whole number"),
        (dict(ttl=0), r"ttl=0 is not a whole number from 1 to 2147483648"),
        (dict(ttl=2**31 + 1), r"ttl=2147483649 is not"),
        (dict(evict="fifo"), r"evict='fifo' is none of none, lru and lfu"),
        (dict(evict="lru"), r"evict='lru' makes room for max_rows=, which is not given"),
        (dict(max_rows=255), r"table 'rows': max_rows=255 must be at least 256, which is 64 for each of the job's 4"),
    ],
)
def test_limits_that_cannot_be_are_refused_by_name(limits, text):
    def job(worker):
        with pytest.raises(bandoneon.InvalidArgument, match=text):
            make(worker, **limits)
        return True

    assert run_job(job, workers=1) == [True]


def test_workers_whose_limits_differ_are_both_named():
    def job(worker):
        make(worker, admit=2 + worker.rank)

    text = r"table 'rows'|tensor 'rows': worker 0 says table\(.*admit=2\), worker 1 says table\(.*admit=3\)"
    with pytest.raises(bandoneon.InvalidArgument, match=text):
        run_job(job, workers=2)


def test_tables_with_first_values_of_their_own_take_no_limits():
    def job(worker):
        model = torch.nn.ModuleDict({"item": torch.nn.Embedding(9, WIDTH)})
        rows.serve_tables(model)
        text = r"table 'item' begins with rank 0's weights.*serve_tables\(rows=None\)"
        with pytest.raises(bandoneon.InvalidArgument, match=text):
            rows.RowOptimizer(model, ttl=5, worker=worker)
        model = torch.nn.ModuleDict({"item": torch.nn.Embedding(9, WIDTH)})
        rows.serve_tables(model, rows=None)
        rows.RowOptimizer(model, ttl=5, worker=worker)
        return True

    assert run_job(job, workers=1) == [True]


def test_limits_are_of_a_group_and_no_schedule_changes_them():
    def job(worker):
        one, other = rows.Embedding(None, WIDTH), rows.Embedding(None, WIDTH)
        groups = [{"modules": one, "admit": 2}, {"modules": other}]
        optimizer = rows.RowOptimizer(groups, lr=1.0, worker=worker)
        for table in (one, other):
            table(torch.tensor([3])).sum().backward()
        optimizer.step()
        worker.barrier("stepped")
        before = [optimizer.rows_of(table, [4]).shape for table in (one, other)]
        counts = [worker.table_layout(table[1]).is_limited for table in optimizer.saved_tables()]
        saved = optimizer.state_dict()
        saved["param_groups"][0]["admit"] = 9
        optimizer.load_state_dict(saved)  # What was declared stays.
        optimizer.step()
        optimizer.param_groups[0]["ttl"] = 4
        with pytest.raises(bandoneon.InvalidArgument, match="group 0 was declared with ttl=None, and now has 4"):
            optimizer.step()
        return before, counts

    assert run_job(job, workers=1) == [([(1, WIDTH)] * 2, [True, False])]


def test_a_full_table_that_evicts_none_says_what_to_set():
    def job(worker):
        table, optimizer = make(worker, max_rows=64)
        table(torch.arange(64)).sum().backward()
        optimizer.step()
        optimizer.settle()
        worker.barrier("full")
        table(torch.arange(60, 70)).sum().backward()
        optimizer.step()
        text = "table 'rows' step 2: 6 new rows do not fit beside the 64"
        with pytest.raises(bandoneon.ResourceExhausted, match=text):
            optimizer.settle()
        return True

    assert run_job(job, workers=2, row_buckets=1) == [True] * 2
