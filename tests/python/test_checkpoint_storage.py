"""Where save() and load() keep files: disks that are full, a directory a host, URLs of object storage."""

import builtins
import contextlib
import errno
import json
import os
import pathlib
import re
import subprocess
import sys
import textwrap

import pytest
import torch

import bandoneon
import bandoneon.torch as bdn
from bandoneon.torch import checkpoint, checkpoint_storage
from cluster_helpers import run_job
from reference_helpers import Quadratic, assert_same_bits, values
from test_checkpoint import EF, JOB, items, local, save_job
from test_comm_state import OPTIMIZERS, result_of, train

NO_SPACE = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def value(worker, at):
    """Something that differs by save and by worker."""
    return torch.full((50,), float(10 * at + worker.rank))


def assert_holds(worker, where, at):
    assert torch.equal(bdn.load(where, {}, worker=worker)["value"], value(worker, at))


@contextlib.contextmanager
def failing(monkeypatch, what, at):
    """Yields a list that is filled once call number `at` on a file whose path has `what` fails: a write, a flush,
    what brings it to the disk, or its renaming."""
    calls, failed = 0, []

    def count(path):
        nonlocal calls
        if what in str(path):
            calls += 1
            if calls == at:
                failed.append(path)
                raise NO_SPACE

    class File:
        def __init__(self, file, path):
            self._file, self._path = file, path

        def __enter__(self):
            return self

        def __exit__(self, *error):
            self._file.close()

        def __getattr__(self, name):
            if name in ("write", "flush", "fileno"):
                def call(*args):
                    count(self._path)
                    return getattr(self._file, name)(*args)

                return call
            return getattr(self._file, name)

    def opened(path, mode):
        file = builtins.open(path, mode)
        return File(file, path) if mode == "wb" else file

    replace = os.replace

    def replaced(source, target):
        count(target)
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_storage, "open", opened, raising=False)
        patch.setattr(os, "replace", replaced)
        yield failed


@pytest.mark.parametrize("what", ["rank1.pt", "shared.pt", "checkpoint.json"])
def test_a_full_disk_at_any_write_is_named_in_all_workers_and_leaves_the_checkpoint_before(
    what, tmp_path, monkeypatch
):
    def save(worker, at):
        state = {"model": torch.nn.ParameterDict({"a": torch.nn.Parameter(torch.ones(30))})}
        bdn.save(tmp_path, {**state, "value": value(worker, at)}, worker=worker)

    def try_to(worker, at):
        try:
            save(worker, at)
        except bandoneon.ResourceExhausted as error:
            return str(error)
        return None

    run_job(lambda worker: save(worker, 1), workers=2)
    before = set(os.listdir(tmp_path))
    for at in range(1, 100):
        with failing(monkeypatch, what, at) as failed:
            errors = run_job(lambda worker: try_to(worker, 2), workers=2)
        if not failed:
            break
        for error in errors:
            assert re.search(rf"{tmp_path}/.*{what} cannot be written: No space left on device", error)
            assert re.search(r"It takes \d+ bytes, and its file system has \d+ bytes free", error)
        (own,) = [error for error in errors if not error.startswith("worker ")]
        assert any(error.endswith(f"could not save {tmp_path}: {own}") for error in errors)
        if what != "checkpoint.json":
            assert set(os.listdir(tmp_path)) == before
        run_job(lambda worker: assert_holds(worker, tmp_path, 1), workers=2)
    assert at > 4 and errors == [None, None]
    run_job(lambda worker: assert_holds(worker, tmp_path, 2), workers=2)
    assert len(os.listdir(tmp_path)) == 4


def test_the_bytes_that_are_asked_for_are_those_of_the_file(tmp_path, monkeypatch):
    def job(worker):
        bdn.save(tmp_path, {"value": value(worker, 1)}, worker=worker)

    run_job(job, workers=1)
    (file,) = tmp_path.glob("*.rank0.pt")
    with failing(monkeypatch, "rank0.pt", 3), pytest.raises(bandoneon.ResourceExhausted) as caught:
        run_job(job, workers=1)
    assert f"It takes {file.stat().st_size} bytes" in str(caught.value)


def test_a_file_system_that_cannot_bring_directories_to_the_disk_is_as_good(tmp_path, monkeypatch):
    """As CIFS, which refuses fsync() of a directory."""
    fsync = os.fsync

    def refusing(number):
        if os.path.isdir(f"/proc/self/fd/{number}"):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        fsync(number)

    monkeypatch.setattr(os, "fsync", refusing)

    def job(worker):
        bdn.save(tmp_path, {"value": value(worker, 1)}, worker=worker)
        assert_holds(worker, tmp_path, 1)

    run_job(job, workers=2)


def test_what_a_killed_save_has_left_goes_before_anything_is_written(tmp_path, monkeypatch):
    """The names that such files had before: with and without `.partial`, of more workers, and a torn marker."""
    run_job(lambda worker: bdn.save(tmp_path, {"value": value(worker, 1)}, worker=worker), workers=2)
    before = set(os.listdir(tmp_path))
    left = [f"{'0123456789abcdef'}.{part}.pt" for part in ("shared", "rank0", "rank7")]
    left += ["fedcba9876543210.rank1.pt.partial", "checkpoint.json.partial"]
    for name in left:
        (tmp_path / name).write_bytes(b"left")
    (tmp_path / "notes.pt.partial").write_text("mine")
    seen = []
    write = checkpoint_storage.Directory.write

    def watched(self, name, *args):
        if "rank0" in name:  # Worker 1 may not have looked yet.
            seen.append({n for n in os.listdir(tmp_path) if not n.startswith(name[:16])})
        write(self, name, *args)

    monkeypatch.setattr(checkpoint_storage.Directory, "write", watched)
    run_job(lambda worker: bdn.save(tmp_path, {"value": value(worker, 2)}, worker=worker), workers=2)
    assert seen == [before | {"notes.pt.partial"}]
    assert (tmp_path / "notes.pt.partial").read_text() == "mine"


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 256 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", place], capture_output=True).returncode:
        pytest.skip("this user may mount nothing")
    yield place
    subprocess.run(["umount", place], check=True)


def test_a_disk_that_was_full_takes_the_next_checkpoint_once_it_has_room(small_disk):
    """Of 80 KB one fits beside the one before, one of 160 KB does not."""

    def job(worker):
        bdn.save(small_disk, {"x": torch.full((20_000,), 1.0)}, worker=worker)
        for _ in range(3):
            with pytest.raises(bandoneon.ResourceExhausted, match=f"{small_disk}/.*rank0.pt.*: No space left on device"):
                bdn.save(small_disk, {"x": torch.zeros(60_000)}, worker=worker)
            assert bdn.load(small_disk, {}, worker=worker)["x"][0] == 1
        for at in range(2, 5):
            bdn.save(small_disk, {"x": torch.full((20_000,), float(at))}, worker=worker)
            assert bdn.load(small_disk, {}, worker=worker)["x"][0] == at

    run_job(job, workers=1)


def test_a_limit_of_the_length_of_files_is_named(tmp_path):
    program = """
        import resource, sys
        import torch
        import bandoneon, bandoneon.torch as bdn
        from cluster_helpers import run_job

        def save(worker, elements):
            bdn.save(sys.argv[1], {"x": torch.full((elements,), 1.0)}, worker=worker)

        run_job(lambda worker: save(worker, 10), workers=2)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))

        def refused(worker):
            try:
                save(worker, 10_000)
            except bandoneon.ResourceExhausted as error:
                assert bdn.load(sys.argv[1], {}, worker=worker)["x"].tolist() == [1] * 10
                return str(error)

        print(*run_job(refused, workers=2), sep="\\n")
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), tmp_path],
        env={**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).parent)}, capture_output=True, text=True,
    )
    assert run.returncode == 0, run.stderr
    assert len(re.findall(rf"{tmp_path}/.*rank\d.pt cannot be written: File too large. It takes 4\d+ bytes", run.stdout)) == 2
    assert len(os.listdir(tmp_path)) == 4


# ---- Hosts that share no file system ----


def places(tmp_path, layout, workers):
    """A directory a worker, or one for all."""
    if layout == "shared":
        return [tmp_path / "all"] * workers
    return [tmp_path / f"{layout}{rank}" for rank in range(workers)]


def save_in(make, where, layout, workers):
    problem = Quadratic()

    def job(worker):
        params = problem.parameters()
        optimizer = make(worker, params)
        train(problem, worker, params, optimizer, range(1, 8))
        bdn.save(where[worker.rank], {**items(params, optimizer), "seen": value(worker, 1)}, layout=layout, worker=worker)

    run_job(job, workers=workers, servers=1, **JOB)


def go_on_from(make, where):
    problem = Quadratic()

    def job(worker):
        params = problem.parameters()
        optimizer = make(worker, params)
        seen = bdn.load(where[worker.rank], items(params, optimizer), worker=worker)["seen"]
        train(problem, worker, params, optimizer, range(8, 12))
        return [seen.numpy(), *values(params), *result_of(params, optimizer)[0]]

    return run_job(job, workers=len(where), servers=1, **JOB)


@pytest.mark.parametrize("workers", [2, 3], ids="then{}".format)
@pytest.mark.parametrize("layout", ["hosts", "rank0"])
@pytest.mark.parametrize("name", ["distributed, ef", "local, signs"])
def test_every_layout_loads_what_a_shared_directory_does(name, layout, workers, tmp_path, monkeypatch):
    """Also where ranks have changed places, one is new, and files travel in several pieces."""
    make = OPTIMIZERS.get(name, local)
    monkeypatch.setattr(checkpoint, "_PIECE_BYTES", 1000)
    results = []
    for each in ("shared", layout):
        where = places(tmp_path, each, 2)
        save_in(make, where, each, 2)
        if each != "shared":
            where = [*where[::-1], tmp_path / "empty"]
        results.append(go_on_from(make, (where * 2)[:workers]))
    for shared, other in zip(*results):
        assert_same_bits([shared, other])


def test_each_layout_leaves_its_files_where_it_says(tmp_path):
    for layout, expected in {
        "hosts": [{"rank0.pt", "shared.pt", "checkpoint.json"}, {"rank1.pt"}],
        "rank0": [{"rank0.pt", "rank1.pt", "shared.pt", "checkpoint.json"}, None],
    }.items():
        where = places(tmp_path, layout, 2)

        def job(worker):
            for at in range(3):  # Each replaces the one before, everywhere.
                bdn.save(where[worker.rank], {"value": value(worker, at)}, layout=layout, worker=worker)
            assert_holds(worker, where[worker.rank], 2)

        run_job(job, workers=2)
        for place, names in zip(where, expected):
            found = [re.sub("^[0-9a-f]{16}[.]", "", n) for n in os.listdir(place)] if place.exists() else None
            assert found == names if names is None else sorted(found) == sorted(names)


@pytest.mark.parametrize("what, layout", [("hosts1/", "hosts"), ("rank00/", "rank0")])
def test_a_host_whose_disk_is_full_stops_all_and_all_have_the_checkpoint_before(what, layout, tmp_path, monkeypatch):
    where = places(tmp_path, layout, 2)

    def job(worker, at):
        bdn.save(where[worker.rank], {"value": value(worker, at)}, layout=layout, worker=worker)

    run_job(lambda worker: job(worker, 1), workers=2)
    before = sorted(os.walk(tmp_path))
    for at in range(1, 100):
        with failing(monkeypatch, what, at) as failed:
            if layout == "rank0" and at > 20:
                break
            try:
                run_job(lambda worker: job(worker, 2), workers=2)
            except bandoneon.ResourceExhausted as error:
                assert "No space left on device. It takes" in str(error)
        if not failed:
            break
        run_job(lambda worker: assert_holds(worker, where[worker.rank], 1), workers=2)
        if "checkpoint.json" not in str(failed[0]):
            assert sorted(os.walk(tmp_path)) == before
    assert at > 4


def test_a_lost_hosts_files_are_named(tmp_path):
    where = places(tmp_path, "hosts", 2)
    run_job(lambda worker: bdn.save(where[worker.rank], {"a": 1}, layout="hosts", worker=worker), workers=2)
    for file in where[1].iterdir():
        file.unlink()

    def job(worker):
        with pytest.raises(bandoneon.NotFound, match="lacks .*rank1.pt, which no worker sees"):
            bdn.load(where[worker.rank], {}, worker=worker)

    run_job(job, workers=2)


def test_a_newer_torn_checkpoint_of_another_host_names_the_older_one_that_is_whole(tmp_path):
    where = places(tmp_path, "hosts", 2)
    run_job(lambda worker: bdn.save(where[worker.rank], {"a": 1}, layout="hosts", worker=worker), workers=2)
    manifest = json.loads((where[0] / "checkpoint.json").read_text())
    stale = {**manifest, "number": 9, "id": "0" * 16}
    (where[1] / "checkpoint.json").write_text(json.dumps(stale))

    def job(worker):
        message = f"lacks .*{'0' * 16}.*; {manifest['id']} is an older one.*remove {where[1]}.*worker 1 runs"
        with pytest.raises(bandoneon.NotFound, match=message):
            bdn.load(where[worker.rank], {}, worker=worker)

    run_job(job, workers=2)


def test_workers_that_ask_for_other_layouts_are_told(tmp_path):
    def job(worker):
        with pytest.raises(bandoneon.InvalidArgument, match="worker 1 saves with layout='hosts', worker 0 with"):
            bdn.save(tmp_path, {}, layout="hosts" if worker.rank else "shared", worker=worker)
        with pytest.raises(bandoneon.InvalidArgument, match="layout='each' is not one of 'shared', 'hosts', 'rank0'"):
            bdn.save(tmp_path, {}, layout="each", worker=worker)

    run_job(job, workers=2)


# ---- Object storage ----


@pytest.fixture
def url(tmp_path):
    fsspec = pytest.importorskip("fsspec")
    yield f"memory://{tmp_path.name}"
    fsspec.filesystem("memory").store.clear()


def objects(url):
    import fsspec

    files, root = fsspec.core.url_to_fs(url)
    return sorted(name.rpartition("/")[2] for name in files.ls(root, detail=False))


def test_a_url_loads_what_a_directory_does(url, tmp_path):
    make = OPTIMIZERS["distributed, ef"]
    results = []
    for where in (tmp_path, url, f"file://{tmp_path}/there"):
        save_in(make, [where] * 2, "shared", 2)
        results.append(go_on_from(make, [where] * 2))
    for ranks in zip(*results):
        assert_same_bits(ranks)
    assert (tmp_path / "there" / "checkpoint.json").exists()


@pytest.mark.parametrize("what", ["rank1.pt", "shared.pt", "checkpoint.json"])
def test_a_store_keeps_the_old_checkpoint_until_the_new_ones_marker_is_there(what, url, monkeypatch):
    memory = pytest.importorskip("fsspec.implementations.memory")

    def save(worker, at):
        bdn.save(url, {"value": value(worker, at)}, worker=worker)

    run_job(lambda worker: save(worker, 1), workers=2)
    before = objects(url)
    write = memory.MemoryFile.write
    for at in range(1, 1000, 5):
        calls = 0

        def counted(self, data):
            nonlocal calls
            calls += what in self.path
            if what in self.path and calls == at:
                raise NO_SPACE
            return write(self, data)

        with monkeypatch.context() as patch:
            patch.setattr(memory.MemoryFile, "write", counted)
            try:
                run_job(lambda worker: save(worker, 2), workers=2)
                break
            except bandoneon.ResourceExhausted as error:
                assert re.search(rf"{url}/.*{what} cannot be written: No space left on device. It takes \d+", str(error))
        run_job(lambda worker: assert_holds(worker, url, 1), workers=2)
    assert 1 < at < 500
    run_job(lambda worker: assert_holds(worker, url, 2), workers=2)
    assert len(objects(url)) == len(before)


def test_a_marker_that_was_half_written_counts_for_nothing(url):
    import fsspec

    def job(worker):
        bdn.save(url, {"value": value(worker, 1)}, worker=worker)
        if worker.rank == 0:
            files, root = fsspec.core.url_to_fs(url)
            files.pipe_file(f"{root}/{'f' * 16}.checkpoint.json", b'{"items": [')
        worker.barrier("torn")
        assert_holds(worker, url, 1)
        bdn.save(url, {"value": value(worker, 2)}, worker=worker)
        assert_holds(worker, url, 2)

    run_job(job, workers=2)
    assert len(objects(url)) == 4


def test_a_url_without_what_reaches_it_says_what_to_install(monkeypatch):
    def job(worker):
        with pytest.raises(bandoneon.InvalidArgument, match="fsspec.*nowhere://.*|fsspec does not take nowhere://"):
            bdn.save("nowhere://bucket/a", {}, worker=worker)
        monkeypatch.setitem(sys.modules, "fsspec", None)
        with pytest.raises(bandoneon.InvalidArgument, match="s3://bucket/a is reached by .*fsspec.* Install it"):
            bdn.load("s3://bucket/a", {}, worker=worker)

    run_job(job, workers=1)
