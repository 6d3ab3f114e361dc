import gc

import pytest
import torch

import bandoneon
import bandoneon.torch as bdn
from bandoneon.torch import exchange
from cluster_helpers import run_job


def values(rank, shape=(3, 4), dtype=torch.float32):
    return (torch.arange(torch.Size(shape).numel()).reshape(shape) * (rank + 1)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_gives_the_mean_in_place(dtype):
    def job(worker):
        tensor = values(worker.rank, dtype=dtype)
        result = bdn.push_pull(tensor, "t", worker=worker).wait()
        assert result.data_ptr() == tensor.data_ptr()
        return tensor

    for tensor in run_job(job):
        assert torch.equal(tensor, ((values(0) + values(1)) / 2).to(dtype))


def test_a_priority_is_an_int32():
    def job(worker):
        for priority in (2**31, -(2**31) - 1, 1.5, None):
            with pytest.raises(bandoneon.InvalidArgument, match="priority=.* of 't' is no int32"):
                bdn.push_pull(values(worker.rank), "t", priority=priority, worker=worker)
        for priority in (2**31 - 1, -(2**31)):
            found = bdn.push_pull(values(worker.rank), "t", priority=priority, worker=worker).wait()
            assert torch.equal(found, values(0))

    run_job(job, workers=1)


def test_three_workers_and_many_steps():
    def job(worker):
        for step in range(5):
            tensor = values(worker.rank) + step
            bdn.push_pull(tensor, "t", worker=worker).wait()
            assert torch.equal(tensor, values(1) + step)

    run_job(job, workers=3, servers=2)


@pytest.mark.parametrize("shape", [(1,), (7,), (1000, 1000), (3, 1 << 20)])
def test_all_sizes(shape):
    def job(worker):
        tensor = torch.full(shape, float(worker.rank))
        return bdn.push_pull(tensor, "t", worker=worker).wait()

    for tensor in run_job(job, servers=2):
        assert torch.equal(tensor, torch.full(shape, 0.5))


def test_several_in_flight_and_synchronize():
    def job(worker):
        tensors = [values(worker.rank) + i for i in range(10)]
        handles = [bdn.push_pull(t, f"t{i}", worker=worker) for i, t in enumerate(tensors)]
        return exchange.synchronize(handles)

    for tensors in run_job(job):
        for i, tensor in enumerate(tensors):
            assert torch.equal(tensor, (values(0) + values(1)) / 2 + i)


def test_non_contiguous_tensors_keep_their_layout():
    def job(worker):
        base = values(worker.rank, (4, 6))
        transposed, strided = base.clone().t(), base.clone()[:, ::2]
        bdn.push_pull(transposed, "transposed", worker=worker).wait()
        bdn.push_pull(strided, "strided", worker=worker).wait()
        return transposed, strided

    mean = (values(0, (4, 6)) + values(1, (4, 6))) / 2
    for transposed, strided in run_job(job):
        assert torch.equal(transposed, mean.t()) and not transposed.is_contiguous()
        assert torch.equal(strided, mean[:, ::2])


def test_a_view_writes_nothing_outside_of_it():
    def job(worker):
        base = torch.zeros(10)
        base[3:6] = float(worker.rank + 1)
        bdn.push_pull(base[3:6], "t", worker=worker).wait()
        return base

    for base in run_job(job):
        assert base.tolist() == [0, 0, 0, 1.5, 1.5, 1.5, 0, 0, 0, 0]


def test_the_handle_holds_a_tensor_that_nobody_else_does():
    def job(worker):
        handle = bdn.push_pull(values(worker.rank), "t", worker=worker)
        gc.collect()
        scratch = [torch.full((3, 4), -1.0) for _ in range(100)]  # Would reuse freed memory.
        result = handle.wait()
        assert len(scratch) == 100
        return result

    for tensor in run_job(job):
        assert torch.equal(tensor, (values(0) + values(1)) / 2)


def test_a_dropped_handle_keeps_the_memory_until_the_exchange_has_ended():
    def job(worker):
        for step in range(20):
            bdn.push_pull(torch.full((1000,), float(step)), "t", worker=worker)
        last = bdn.push_pull(torch.full((1000,), 7.0), "t", worker=worker).wait()
        assert torch.equal(last, torch.full((1000,), 7.0))

    run_job(job)


def test_one_workers_nan_or_infinity_is_everybodys_nan_and_the_next_step_is_right():
    def job(worker):
        results = []
        for bad in (float("nan"), float("inf"), None):
            tensor = values(worker.rank)
            if bad is not None and worker.rank == 1:
                tensor[1, 1] = bad
            results.append(bdn.push_pull(tensor, "t", worker=worker).wait())
        return results

    for nan, inf, good in run_job(job):
        assert nan.isnan().all() and inf.isnan().all()
        assert torch.equal(good, (values(0) + values(1)) / 2)


def test_an_integer_tensor_is_refused_by_name():
    def job(worker):
        with pytest.raises(bandoneon.InvalidArgument, match="'counts'.*int64"):
            bdn.push_pull(torch.zeros(3, dtype=torch.int64), "counts", worker=worker)

    run_job(job)


def test_one_name_for_two_shapes_is_refused():
    def job(worker):
        bdn.push_pull(torch.zeros(3), "t", worker=worker).wait()
        with pytest.raises(bandoneon.InvalidArgument, match="another name") as raised:
            bdn.push_pull(torch.zeros(4), "t", worker=worker)
        assert raised.value.tensor == "t"

    run_job(job)


def test_what_differs_of_a_name_that_is_known_is_said_alone():
    def job(worker):
        bdn.push_pull(torch.zeros(4), "t", worker=worker).wait()
        bdn.push_pull(torch.zeros(3), "t", worker=worker)

    with pytest.raises(bandoneon.InvalidArgument) as caught:
        run_job(job)
    text = str(caught.value)
    assert "'t' was declared with elements=4, and now it has elements=3: " in text and "Declaration" not in text
    assert "dtype" not in text and "use another name" in text


def test_workers_that_disagree_on_a_shape_are_both_named():
    def job(worker):
        with pytest.raises(bandoneon.InvalidArgument) as raised:
            bdn.push_pull(torch.zeros(3 + worker.rank), "bias", worker=worker)
        return str(raised.value)

    for message in run_job(job):
        assert "bias" in message and "worker 0" in message and "worker 1" in message


def test_a_typo_in_a_codec_is_shown():
    def job(worker):
        with pytest.raises(bandoneon.InvalidArgument, match="onebitt"):
            bdn.push_pull(torch.zeros(3), "t", push="onebitt(block=256)", worker=worker)

    run_job(job)


def test_a_deadline_names_the_tensor_and_who_is_missing_and_the_handle_stays_good():
    def job(worker):
        bdn.push_pull(torch.zeros(3), "t", worker=worker).wait()  # Declares it.
        tensor = values(worker.rank)
        if worker.rank == 0:
            handle = bdn.push_pull(torch.full((3,), 1.0), "t", worker=worker)
            with pytest.raises(bandoneon.DeadlineExceeded) as raised:
                handle.wait(timeout=1.5)
            assert isinstance(raised.value, TimeoutError)
            worker.barrier("late")
            return raised.value, handle.wait()
        worker.barrier("late")
        return bdn.push_pull(torch.full((3,), 3.0), "t", worker=worker).wait()

    (error, tensor), other = run_job(job)
    assert error.tensor == "t" and error.step is not None and error.stage
    assert "worker 1" in str(error) or "server 0" in str(error)
    assert error.waiting_for in str(error)
    assert torch.equal(tensor, torch.full((3,), 2.0)) and torch.equal(other, tensor)


def test_is_done_does_not_wait():
    def job(worker):
        bdn.push_pull(torch.zeros(3), "t", worker=worker).wait()
        if worker.rank == 0:
            handle = bdn.push_pull(torch.full((3,), 1.0), "t", worker=worker)
            assert not handle.is_done()
            worker.barrier("late")
            result = handle.wait()
            assert handle.is_done()
            return result
        worker.barrier("late")
        return bdn.push_pull(torch.full((3,), 3.0), "t", worker=worker).wait()

    assert torch.equal(run_job(job)[0], torch.full((3,), 2.0))


def test_a_correction_goes_by_the_learning_rates():
    def job(worker):
        """What is owed after one step, as the next step sends it at a tenth of the rate."""
        sent = []
        for step, rate in enumerate((1.0, 0.1)):
            tensor = torch.tensor([1.0, 3.0]) if step == 0 else torch.zeros(2)
            push = "ef(topk(ratio=0.5),correction=lr)"
            bdn.push_pull(tensor, "t", push=push, learning_rate=rate, worker=worker).wait()
            sent.append(tensor.tolist())
        return sent

    with bandoneon.LocalCluster(workers=1, min_compress_bytes=0) as cluster:
        assert cluster.run(job) == [[[0.0, 3.0], [10.0, 0.0]]]


def test_specs_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("BANDONEON_PUSH", "fp16")
    monkeypatch.setenv("BANDONEON_PULL", "fp16")

    def job(worker):
        tensor = torch.full(
            (1 << 16,), 1.0 + 2.0**-14
        )  # Not a half; large enough to be compressed.
        return bdn.push_pull(tensor, "t", worker=worker).wait()

    for tensor in run_job(job):
        assert torch.equal(tensor, torch.ones(1 << 16))
