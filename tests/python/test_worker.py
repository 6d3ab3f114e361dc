"""What belongs to the worker itself: errors, waiting, forks, other people's floating-point modes."""

import ctypes
import ctypes
import gc
import logging
import os
import pathlib
import pickle
import re
import signal
import threading

import pytest
import torch

import bandoneon
import bandoneon.torch as bdn
from bandoneon import _native, errors
from bandoneon.calls import Declaration
from bandoneon.interrupts import run_interruptibly
from bandoneon.json_log import LOGGER
from bandoneon.worker import Worker
from cluster_helpers import ONEBIT, grads, loss_of, make_batch, make_model, mean_grads, run_job, sgd


# ---- Errors ----


def test_every_code_has_its_class_and_is_what_python_calls_it():
    assert issubclass(bandoneon.InvalidArgument, ValueError)
    assert issubclass(bandoneon.DeadlineExceeded, TimeoutError)
    assert issubclass(bandoneon.Unavailable, ConnectionError)
    assert issubclass(bandoneon.OutcomeUnknown, TimeoutError)
    for code in range(1, 16):
        error = errors.error_for_code(code, "what happened")
        assert type(error) is not bandoneon.BandoneonError and error.code == code
    assert errors.error_for_code(99, "?").code == 99


def test_errors_survive_pickling():
    error = errors.error_for_code(
        4, "late", tensor="w", step=3, stage="exchange", waiting_for="worker 1"
    )
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is bandoneon.DeadlineExceeded and str(again) == "late"
    assert (again.tensor, again.step, again.stage, again.waiting_for) == (
        "w",
        3,
        "exchange",
        "worker 1",
    )


def test_a_library_that_is_not_there_is_an_error_that_says_what_to_do(monkeypatch):
    monkeypatch.setattr(_native, "_library", None)
    monkeypatch.setenv("BANDONEON_LIBRARY", "/nowhere/libbandoneon.so")
    with pytest.raises(bandoneon.NotFound, match=r"/nowhere/libbandoneon\.so.*BANDONEON_LIBRARY"):
        _native.library()


def test_the_library_may_be_chosen(monkeypatch):
    path = next(path for path in _native.library_paths() if path.exists())
    monkeypatch.setattr(_native, "_library", None)
    monkeypatch.setenv("BANDONEON_LIBRARY", str(path))
    assert run_job(lambda worker: worker.size) == [2, 2]


def test_codecs_are_checked_without_a_job():
    assert bandoneon.check_codec("ef(onebit(block=256))") == "ef(onebit(block=256))"
    with pytest.raises(bandoneon.InvalidArgument, match="onebitt"):
        bandoneon.check_codec("ef(onebitt)")


def test_codecs_have_traits():
    traits = bandoneon.CodecTraits
    blocks = traits.CARRIES_SUMS | traits.ADDS_ENCODED | traits.SHARES_DRAW
    assert bandoneon.codec_traits("none") == traits.LOSSLESS | traits.CARRIES_SUMS | traits.ADDS_ENCODED
    assert bandoneon.codec_traits("blocks(ratio=0.5)") == blocks
    assert bandoneon.codec_traits("sketch(columns=0.1)") == traits.ADDS_ENCODED | traits.SHARES_DRAW
    assert bandoneon.codec_traits("ef(blocks(ratio=0.5))") == (
        traits.ADDS_ENCODED | traits.SHARES_DRAW | traits.ERROR_FEEDBACK
    )
    assert bandoneon.codec_traits("delta(int4)") == traits.DELTA
    assert bandoneon.codec_traits("none for 9; ef(onebit,correction=lr)") == (
        traits.SCHEDULE | traits.ERROR_FEEDBACK | traits.LEARNING_RATE_CORRECTION
    )
    with pytest.raises(bandoneon.InvalidArgument, match="onebitt"):
        bandoneon.codec_traits("ef(onebitt)")


def test_the_traits_are_those_of_the_c_interface():
    header = pathlib.Path(__file__).parents[2] / "worker" / "c_api" / "bandoneon.h"
    in_c = re.findall(r"BDN_CODEC_(\w+) = (\d+)", header.read_text())
    assert {name: int(value) for name, value in in_c} == dict(bandoneon.CodecTraits.__members__)


def test_text_with_a_nul_is_refused_and_not_cut_there():
    for call in (
        lambda: bandoneon.check_codec("none\0x"),
        lambda: bandoneon.codec_traits("none\0x"),
        lambda: bandoneon.LocalCluster(workers=1, transport="auto\0x"),
    ):
        with pytest.raises(bandoneon.InvalidArgument, match="NUL"):
            call()

    def work(worker):
        memory = worker.alloc(8)
        address = ctypes.addressof(memory)
        for call in (
            lambda: worker.declare([Declaration("a\0b", 1)]),
            lambda: worker.declare([Declaration("a", 1, push="none\0x")]),
            lambda: worker.declare([Declaration("a", 1, pull="none\0x")]),
            lambda: worker.declare([Declaration("a", 1, rule="mean\0x")]),
            lambda: worker.broadcast("a\0b", address, 8, 0),
            lambda: worker.barrier("a\0b"),
            lambda: worker.report("a\0b", 1.0),
            lambda: worker.get_state(0, "residual\0x", address, 1),
        ):
            with pytest.raises(bandoneon.InvalidArgument, match="NUL"):
                call()
        worker.declare([Declaration("a", 1)])

    run_job(work, workers=1)


def test_more_memory_than_there_is_is_refused():
    def work(worker):
        for num_bytes in (1 << 62, (1 << 64) - 1):
            with pytest.raises(bandoneon.ResourceExhausted):
                worker.alloc(num_bytes)
        for num_bytes in (0, -1, 1 << 64):
            with pytest.raises(bandoneon.InvalidArgument, match="bytes"):
                worker.alloc(num_bytes)

    run_job(work, workers=1)


def test_an_unknown_setting_is_named():
    with pytest.raises(bandoneon.InvalidArgument, match="serverz"):
        bandoneon.LocalCluster(workers=1, serverz=2)
    assert "probe-interval" in bandoneon.settings_help()


def test_before_init_everything_says_so():
    for call in (bdn.rank, bdn.size, bdn.barrier, lambda: bdn.push_pull(torch.zeros(1), "t")):
        with pytest.raises(bandoneon.FailedPrecondition, match=r"init\(\)"):
            call()
    bdn.shutdown()  # Harmless.


def test_a_closed_worker_says_so():
    with bandoneon.LocalCluster(workers=1) as cluster:
        with cluster.worker() as worker:
            assert (worker.rank, worker.size) == (0, 1)
        with pytest.raises(bandoneon.FailedPrecondition, match="closed"):
            worker.barrier()
        worker.close()


def test_a_worker_that_fails_ends_the_wait_of_the_others_and_says_why():
    seen = []

    def job(worker):
        bdn.push_pull(torch.zeros(3), "t", worker=worker).wait()
        worker.barrier()  # Both have their results.
        if worker.rank == 1:
            raise RuntimeError("the disk is full")
        try:
            bdn.push_pull(torch.zeros(3), "t", worker=worker).wait()
        except bandoneon.BandoneonError as error:
            seen.append(error)
            raise

    with pytest.raises((RuntimeError, bandoneon.BandoneonError), match="the disk is full"):
        run_job(job)
    assert "worker 1" in str(seen[0]) and "the disk is full" in str(seen[0])


def test_a_local_cluster_raises_what_failed_first(monkeypatch):
    threads = {}
    abort = Worker.abort_job

    def abort_and_let_the_other_end(worker, reason):
        abort(worker, reason)
        if worker.rank == 1:
            threads[0].join()

    def job(worker):
        threads[worker.rank] = threading.current_thread()
        worker.barrier()
        if worker.rank == 1:
            raise ValueError("the cause")
        worker.barrier()

    monkeypatch.setattr(Worker, "abort_job", abort_and_let_the_other_end)
    with pytest.raises(ValueError, match="the cause"):
        run_job(job)


def test_stats_count_bytes():
    def job(worker):
        before = worker.stats()
        bdn.push_pull(torch.zeros(1000), "t", worker=worker).wait()
        after = worker.stats()
        assert 4000 < after["bytes_pushed"] - before["bytes_pushed"] < 5000
        assert 4000 < after["bytes_pulled"] - before["bytes_pulled"] < 5000

    run_job(job)


def test_who_wants_no_result_is_sent_headers_alone():
    def job(worker):
        tensor = torch.full((20_000,), 3.0)
        number = worker.declare([Declaration("t", tensor.numel())])[0]
        steps = 5
        before = worker.stats()
        for _ in range(steps):
            if worker.rank == 0:
                worker.wait(worker.push(number, tensor.data_ptr(), keep=tensor))
            else:
                ticket = worker.push(number, None, flags=_native.ABSENT, weight=0.0)
                result = worker.wait(ticket)
                assert not result.absent and not result.nonfinite
        after = worker.stats()
        moved = [after[name] - before[name] for name in ("bytes_pushed", "bytes_pulled")]
        frames = [after[name] - before[name] for name in ("frames_sent", "frames_received")]
        if worker.rank == 0:
            assert tensor.unique().tolist() == [3.0]  # The other counts for nothing.
            assert min(moved) >= steps * tensor.nbytes
        else:
            assert moved[0] == 96 * frames[0]
            assert moved[1] <= 96 * frames[1] + 8 * frames[1], "but for the ranks of a waiting frame"
            assert min(frames) >= steps

    run_job(job, partition_bytes=32768)


def test_stats_count_what_passes_through_each_stage():
    def job(worker):
        for _ in range(3):
            bdn.push_pull(torch.zeros(1000), "t", worker=worker).wait()
        stages = worker.stats()["stages"]
        assert list(stages) == ["queue", "encode", "send", "wait", "decode_queue", "decode", "deliver"]
        for name, stage in stages.items():
            assert set(stage) == {"items", "bytes", "wall_ns", "cpu_ns"}
            # The last is delivered before it is counted.
            assert stage["items"] in ((2, 3) if name == "deliver" else (3,)), name
            assert stage["bytes"] == stage["items"] * 4000, name
            assert stage["cpu_ns"] == 0, "by default"
        assert stages["encode"]["wall_ns"] > 0

    run_job(job)


# ---- A worker that is slow, and alive ----


def test_a_wait_for_a_worker_that_is_alive_goes_on_past_wait_timeout_and_says_why(monkeypatch):
    """As while rank 0 evaluates for longer than that: others wait, and then have the right means."""
    monkeypatch.setattr("bandoneon.worker._REPORT_SECONDS", 1.5)
    said = []
    has_said = threading.Event()

    class Listener(logging.Handler):
        def emit(self, record):
            said.append(record.getMessage())
            has_said.set()

    listener = Listener()
    LOGGER.addHandler(listener)

    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model)
        if worker.rank == 0:
            assert has_said.wait(60)
        loss_of(model, make_batch(worker.rank)).backward()
        optimizer.step()
        return grads(model)

    try:
        with bandoneon.LocalCluster(workers=2) as cluster:
            got = cluster.run(job, wait_timeout="1s", probe_interval="100ms")
    finally:
        LOGGER.removeHandler(listener)
    want = mean_grads(make_model())
    for of_rank in got:
        for name, grad in want.items():
            assert torch.allclose(of_rank[name], grad, rtol=1e-6, atol=1e-7), name
    for fact in ("waiting for worker 0, which the job holds for alive", "setting wait-timeout", "barrier()"):
        assert fact in said[-1], said


# ---- Memory ----


class _Mallinfo2(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    ]


def live_bytes():
    """What is allocated: not what the allocator keeps besides, which grows by chance (docs/troubleshooting.md)."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _Mallinfo2
    info = mallinfo2()
    return info.uordblks + info.hblkhd


def test_what_workers_and_servers_hold_does_not_grow_with_their_steps():
    def job(worker):
        model = make_model(width=600)
        optimizer = sgd(worker, model, **ONEBIT)
        held = []
        for step in range(400):
            optimizer.zero_grad()
            loss_of(model, make_batch(worker.rank, step, width=600)).backward()
            optimizer.step()
            if step >= 100 and step % 10 == 0:
                worker.barrier("measure")
                if worker.rank == 0:
                    gc.collect()
                    held.append(live_bytes())
                worker.barrier("measured")
        return held

    held = run_job(job)[0]
    assert min(held[20:]) - min(held[:10]) < 100_000, held


# ---- Ctrl-C ----


@pytest.mark.parametrize("wait", ["push_pull", "barrier", "backward"])
def test_ctrl_c_ends_a_wait_on_the_main_thread(wait):
    with bandoneon.LocalCluster(workers=2) as cluster:
        workers = [None, None]
        ready, finish = threading.Event(), threading.Event()

        def other():
            with cluster.worker(1) as worker:
                bdn.push_pull(torch.zeros(3), "t", worker=worker).wait()
                if wait == "backward":
                    sgd(worker, make_model())
                ready.set()
                finish.wait()
                worker._left = True  # The job has been ended by the other one.

        def interrupt():
            ready.wait()
            threading.Event().wait(0.3)  # Until the main thread waits; later is as good.
            os.kill(os.getpid(), signal.SIGINT)

        threads = [threading.Thread(target=silently(other)), threading.Thread(target=interrupt)]
        for thread in threads:
            thread.start()
        workers[0] = worker = cluster.worker(0)
        bdn.push_pull(torch.zeros(3), "t", worker=worker).wait()
        try:
            with pytest.raises(KeyboardInterrupt):
                if wait == "push_pull":
                    bdn.push_pull(torch.zeros(3), "t", worker=worker).wait()
                elif wait == "barrier":
                    bdn.barrier(worker=worker)
                else:
                    model = make_model()
                    optimizer = sgd(worker, model)
                    loss_of(model, make_batch(0)).backward()
                    optimizer.step()
        finally:
            finish.set()
            worker.close()
            for thread in threads:
                thread.join()


def interrupt(call):
    """Ctrl-C while the main thread waits in `call`."""

    def strike():
        threading.Event().wait(0.3)  # Until the main thread waits; later is as good.
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=strike)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        call()
    thread.join()


def join_calls():
    """Waits for the calls that interrupts have left behind."""
    for thread in threading.enumerate():
        if thread.name == "bandoneon-call":
            thread.join()


def test_a_worker_that_comes_after_ctrl_c_is_given_back():
    with bandoneon.LocalCluster(workers=2) as cluster:
        interrupt(lambda: cluster.worker(0))
        heard = []

        def other():
            try:  # It hears of it while it joins, or while it waits.
                with cluster.worker(1) as worker:
                    worker.barrier(timeout=20)
            except bandoneon.BandoneonError as error:
                heard.append(str(error))
                raise

        thread = threading.Thread(target=silently(other))
        thread.start()
        thread.join()
        join_calls()
        assert "worker 0" in heard[0] and "closed before it left" in heard[0]


def test_a_call_that_ends_as_ctrl_c_strikes_is_undone():
    undone = []
    for _ in range(20):
        with pytest.raises(KeyboardInterrupt):
            # On the helper thread, so that the main thread hears of it when the call has ended.
            run_interruptibly(lambda: signal.raise_signal(signal.SIGINT), lambda: undone.append(1))
        join_calls()
        assert undone
        undone.clear()


def test_after_ctrl_c_a_call_leaves_the_callers_memory_alone():
    with bandoneon.LocalCluster(workers=2) as cluster:
        interrupted = threading.Event()

        def other():
            with cluster.worker(1) as worker:
                interrupted.wait()
                sent = torch.ones(1000)
                worker.broadcast("t", sent.data_ptr(), 4000, root=1)
                worker._left = True  # The job is ended by the other one.

        thread = threading.Thread(target=silently(other))
        thread.start()
        with cluster.worker(0) as worker:
            mine = torch.zeros(1000)
            interrupt(lambda: worker.broadcast("t", mine.data_ptr(), 4000, root=1))
            interrupted.set()
            join_calls()
            assert not mine.any()
            worker._left = True
        thread.join()


def silently(function):
    def run():
        try:
            function()
        except bandoneon.BandoneonError:
            pass

    return run


def test_threads_may_collect_dropped_tickets_at_once():
    def job(worker):
        class Raced(type(worker._dropped)):
            """Another thread takes one as soon as the length is known."""

            def __len__(self):
                return super().__len__() + 1

        worker._dropped = Raced(worker._dropped)
        bdn.push_pull(torch.zeros(3), "t", worker=worker).wait()

    run_job(job)


# ---- Forks ----


def outcome_in_child(function):
    """What `function` returns in a forked child."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write_end, function().encode())
        finally:
            os._exit(0)
    os.close(write_end)
    os.waitpid(child, 0)
    with os.fdopen(read_end) as pipe:
        return pipe.read()


def what_it_raises(call):
    try:
        call()
    except bandoneon.FailedPrecondition as error:
        return f"FailedPrecondition: {error}"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def test_ctrl_c_ends_the_workers_of_a_local_cluster_before_it_goes():
    def job(worker):
        if worker.rank == 0:
            os.kill(os.getpid(), signal.SIGINT)
        while True:
            bdn.push_pull(torch.ones(8), "t", worker=worker).wait()

    # Often: where in its wait the main thread is struck is chance.
    for _ in range(20):
        with bandoneon.LocalCluster(workers=2) as cluster:
            with pytest.raises(KeyboardInterrupt):
                cluster.run(job)
        assert not [t for t in threading.enumerate() if t.name.startswith("bandoneon-rank")]


def test_a_cluster_closed_before_its_worker_lasts_as_long_as_that():
    cluster = bandoneon.LocalCluster(workers=1)
    with cluster.worker() as worker:
        cluster.close()
        assert torch.equal(bdn.push_pull(torch.ones(3), "t", worker=worker).wait(), torch.ones(3))


def test_a_thread_that_cannot_start_fails_the_job(monkeypatch):
    start = threading.Thread.start

    def start_all_but_ranks(thread):
        if thread.name.startswith("bandoneon-rank"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_all_but_ranks)
    with bandoneon.LocalCluster(workers=2) as cluster:
        with pytest.raises(RuntimeError, match="can't start"):
            cluster.run(lambda worker: None)


def test_in_a_forked_child_every_call_raises_and_destructors_do_nothing():
    with bandoneon.LocalCluster(workers=1) as cluster, cluster.worker() as worker:
        handle = bdn.push_pull(torch.ones(3), "t", worker=worker)
        calls = [
            handle.wait,
            worker.barrier,
            worker.stats,
            lambda: worker.abort_job("no"),
            lambda: bdn.push_pull(torch.zeros(3), "t", worker=worker),
            lambda: bandoneon.LocalCluster(workers=1),
            lambda: bandoneon.init(scheduler="127.0.0.1:1"),
        ]
        for call in calls:
            assert outcome_in_child(lambda call=call: what_it_raises(call)).startswith(
                "FailedPrecondition"
            )

        def destroy():
            worker.close()
            worker.__del__()
            cluster.close()
            handle.__del__()
            return "alive"

        assert outcome_in_child(destroy) == "alive"
        assert torch.equal(handle.wait(), torch.ones(3))


class Forked(torch.utils.data.Dataset):
    def __init__(self, worker):
        self.worker = worker

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return make_batch(0, index)[0], "FailedPrecondition" in what_it_raises(self.worker.stats)


def test_training_goes_on_beside_forked_data_loaders():
    with bandoneon.LocalCluster(workers=1) as cluster, cluster.worker() as worker:
        model = make_model()
        optimizer = sgd(worker, model)
        loader = torch.utils.data.DataLoader(
            Forked(worker), batch_size=4, num_workers=2, multiprocessing_context="fork"
        )
        for _ in range(2):
            for batch, refused in loader:
                assert refused.all()
                optimizer.zero_grad()
                loss_of(model, batch).backward()
                optimizer.step()


# ---- Other people's floating-point modes ----


@pytest.mark.parametrize("spec", ["none", "fp16", "ef(onebit(block=256))", "ef(topk(ratio=0.01))"])
def test_flush_to_zero_in_one_worker_changes_no_bit(spec):
    def job(worker, flush):
        generator = torch.Generator().manual_seed(worker.rank)
        tensors = [
            torch.randn(1 << 16, generator=generator) * scale for scale in (1e-39, 1e-38, 1e-7, 1.0)
        ]
        torch.set_flush_denormal(flush and worker.rank == 1)
        try:
            for step in range(2):
                for i, tensor in enumerate(tensors):
                    bdn.push_pull(tensor, f"t{i}", push=spec, pull=spec, worker=worker).wait()
        finally:
            torch.set_flush_denormal(False)
        return [tensor.view(torch.int32) for tensor in tensors]

    plain = run_job(lambda worker: job(worker, False))
    flushed = run_job(lambda worker: job(worker, True))
    for values in zip(*plain, *flushed):
        assert all(torch.equal(values[0], other) for other in values[1:])
