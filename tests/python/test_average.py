"""average="before": each worker's part is divided before they are added up, so that the sum of large ones does not
overflow."""

import pytest
import torch

import bandoneon
import bandoneon.torch as bdn
from cluster_helpers import (
    ONEBIT,
    assert_same,
    grads,
    linked,
    loss_of,
    make_batch,
    make_model,
    mean_grads,
    model_hash,
    run_job,
)
from test_processes import run_processes

LARGE = [3e38, 2.5e38, -1e38, 3.1e38]


def large(rank, dtype):
    return torch.full((300,), LARGE[rank]).to(dtype)


def mean_of_large(dtype, workers=4):
    return sum(large(rank, dtype).float() / workers for rank in range(workers)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_push_pull_of_values_whose_sum_overflows(dtype):
    def job(worker):
        tensor = large(worker.rank, dtype)
        bdn.push_pull(tensor, "t", average="before", worker=worker).wait()
        return tensor

    for result in run_job(job, workers=4):
        assert torch.equal(result, mean_of_large(dtype))


def test_without_it_a_sum_that_overflows_is_said_once_by_name():
    def job(worker):
        model = torch.nn.Linear(300, 1, bias=False)
        inner = torch.optim.SGD(model.parameters(), lr=0.0)
        optimizer = bdn.DistributedOptimizer(inner, model, worker=worker, links=bdn.Links(scaler=None, check=False))
        for _ in range(2):
            optimizer.zero_grad()
            (model.weight * large(worker.rank, torch.float32)).sum().backward()
            assert model.weight.grad.isnan().all()
        return True

    message = "'weight' is NaN in all workers.*the sum of 4 workers overflowed.*average='before'"
    with pytest.warns(RuntimeWarning, match=message) as warned:
        assert all(run_job(job, workers=4))
    assert len([one for one in warned if "overflowed" in str(one.message)]) == 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("overlap", ["backward", "forward", False])
def test_gradients_whose_sum_overflows(dtype, overlap):
    def job(worker):
        model = torch.nn.Linear(300, 1, bias=False).to(dtype)
        inner = torch.optim.SGD(model.parameters(), lr=0.0)
        optimizer = bdn.DistributedOptimizer(
            inner, model, worker=worker, links=bdn.Links(scaler=None, average="before", check=False), overlap=overlap
        )
        for _ in range(2):
            optimizer.zero_grad()
            (model.weight * large(worker.rank, dtype)).sum().backward()
            optimizer.synchronize()
            assert torch.equal(model.weight.grad, mean_of_large(dtype).view(1, -1))
            optimizer.step()
        return True

    assert all(run_job(job, workers=4))


def test_through_daemons_the_optimizer_the_hook_and_groups_get_what_ddp_gets_over_gloo(tmp_path):
    for found in run_processes(tmp_path, "averages_large_gradients", workers=4, hosts=2):
        for kind, (value, differences) in found.items():
            assert value == pytest.approx(sum(LARGE) / 4, rel=1e-6), kind
            assert differences <= 1e-6 * value, kind


def test_of_two_workers_it_is_the_same_bits_for_it_divides_by_two():
    def job(worker, average):
        model = make_model()
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = bdn.DistributedOptimizer(inner, model, worker=worker, links=bdn.Links(scaler=None, average=average))
        loss_of(model, make_batch(worker.rank)).backward()
        optimizer.step()
        return grads(model)

    for result in run_job(lambda worker: job(worker, "before")):
        assert_same(result, mean_grads(make_model()))


def test_weights_stay_weights():
    """3 and 5 samples, say; in three workers, where a third is no float."""
    weights = [3, 5, 4]

    def job(worker):
        model = make_model()
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = bdn.DistributedOptimizer(
            inner, model, worker=worker, links=bdn.Links(scaler=None, average="before", weight=weights[worker.rank])
        )
        loss_of(model, make_batch(worker.rank)).backward()
        return grads(model), optimizer

    expected = {}
    for rank, weight in enumerate(weights):
        model = make_model()
        loss_of(model, make_batch(rank)).backward()
        for name, grad in grads(model).items():
            expected[name] = expected.get(name, 0) + weight * grad / sum(weights)
    for result, _ in run_job(job, workers=3):
        assert_same(result, expected, rtol=1e-5, atol=1e-7)


def test_a_state_is_loaded_under_the_average_that_it_was_saved_under():
    def job(worker):
        made = {}
        for average in ("before", "after"):
            model = make_model()
            inner = torch.optim.SGD(model.parameters(), lr=0.1)
            made[average] = bdn.DistributedOptimizer(
                inner, model, worker=worker, **linked(scaler=None, average=average, prefix=average, **ONEBIT)
            )
            for step in range(2):
                loss_of(model, make_batch(worker.rank, step)).backward()
                made[average].step()
                made[average].zero_grad()
        state = made["before"].comm_state_dict()
        with pytest.raises(bandoneon.InvalidArgument, match="average"):
            made["after"].load_comm_state_dict(state)
        made["before"].load_comm_state_dict(state)
        return model_hash(model)

    first, second = run_job(job, min_compress_bytes=1)
    assert first == second


@pytest.mark.parametrize("average", ["never", None, True])
def test_it_is_after_or_before(average):
    def sgd(model):
        return torch.optim.SGD(model.parameters(), 0.1)

    def job(worker):
        model = make_model()
        for make in (
            lambda: bdn.DistributedOptimizer(sgd(model), model, worker=worker, links=bdn.Links(average=average)),
            lambda: bdn.DDPState(model.named_parameters(), worker=worker, links=bdn.Links(average=average)),
            lambda: bdn.push_pull(torch.ones(1), "t", worker=worker, average=average),
        ):
            with pytest.raises(bandoneon.InvalidArgument, match="average=.*'after'.*'before'"):
                make()
        return True

    assert run_job(job, workers=1) == [True]
