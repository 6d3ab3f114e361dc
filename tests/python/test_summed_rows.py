"""Links(sparse="rows"): sparse gradients row by row, beside torch in one process with the merged batch."""

import pytest
import torch

import bandoneon
import bandoneon.torch as bdn
from cluster_helpers import run_job
from test_rows import ROWS, WIDTH, Net, batch_of, loss_of

WORKERS = 2
OPTIMIZERS = {
    "SGD": lambda params: torch.optim.SGD(params, lr=0.1),
    "Adagrad": lambda params: torch.optim.Adagrad(params, lr=0.1),
    "SparseAdam": lambda params: torch.optim.SparseAdam(params, lr=0.05),
}


def sparse_params(model):
    return [model.item.weight, model.words.weight]


def train(worker, make, steps, servers=None, each=lambda model, step: None, **how):
    model = Net()
    optimizer = bdn.DistributedOptimizer(
        make(sparse_params(model)), model, worker=worker, links=bdn.Links(sparse="rows", **how)
    )
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, batch_of(worker.rank, step)).backward()
        each(model, step)
        optimizer.step()
    return [param.detach().clone() for param in sparse_params(model)]


def by_torch(make, steps):
    model = Net()
    optimizer = make(sparse_params(model))
    for step in range(steps):
        optimizer.zero_grad()
        (sum(loss_of(model, batch_of(rank, step)) for rank in range(WORKERS)) / WORKERS).backward()
        optimizer.step()
    return [param.detach() for param in sparse_params(model)]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_is_torchs_of_the_merged_batch(name):
    steps = 200
    expected = by_torch(OPTIMIZERS[name], steps)
    results = run_job(lambda worker: train(worker, OPTIMIZERS[name], steps), WORKERS, servers=2)
    for params in results:
        for mine, theirs, of_first in zip(params, expected, results[0]):
            assert torch.equal(mine, of_first)
            error = (mine - theirs).abs().max() / theirs.abs().max()
            assert error < 2e-6, (name, float(error))


def test_the_gradient_is_a_coalesced_sparse_tensor_of_all_rows_that_any_has():
    def each(model, step):
        for name, ids_of in (("item", lambda batch: batch[0]), ("words", lambda batch: batch[1])):
            grad = getattr(model, name).weight.grad
            assert grad.is_sparse and grad.is_coalesced() and grad.shape == (ROWS, WIDTH)
            touched = torch.unique(torch.cat([ids_of(batch_of(rank, step)).reshape(-1) for rank in range(WORKERS)]))
            assert torch.equal(grad.indices()[0], touched)

    run_job(lambda worker: train(worker, OPTIMIZERS["SGD"], 3, each=each), WORKERS)


def test_no_size_of_the_job_changes_a_bit_and_codecs_make_it_shorter():
    how = dict(push="int8", pull="int8")
    first = run_job(lambda w: train(w, OPTIMIZERS["Adagrad"], 10, **how), 3, servers=1, row_buckets=1, seed=1)
    other = run_job(lambda w: train(w, OPTIMIZERS["Adagrad"], 10, **how), 3, servers=3, row_buckets=32, shards=2, seed=1)
    for params in first + other:
        assert all(torch.equal(mine, of_first) for mine, of_first in zip(params, first[0]))


def test_a_rest_that_is_dense_may_be_clipped_and_is_exchanged_as_ever():
    def job(worker):
        model = Net()
        model.rest.requires_grad_(True)
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = bdn.DistributedOptimizer(inner, model, worker=worker, links=bdn.Links(sparse="rows"))
        for step in range(4):
            optimizer.zero_grad()
            loss_of(model, batch_of(worker.rank, step)).backward()
            torch.nn.utils.clip_grad_norm_(model.rest.parameters(), 0.01)
            optimizer.step()
        return [param.detach().clone() for param in model.parameters()]

    model = Net()
    model.rest.requires_grad_(True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        (sum(loss_of(model, batch_of(rank, step)) for rank in range(WORKERS)) / WORKERS).backward()
        torch.nn.utils.clip_grad_norm_(model.rest.parameters(), 0.01)
        optimizer.step()
    for params in run_job(job, WORKERS):
        for mine, theirs in zip(params, model.parameters()):
            torch.testing.assert_close(mine, theirs.detach(), rtol=1e-5, atol=1e-6)


def table_alone(worker, padding_idx=None, **links):
    """(table, optimizer) of one table of ones."""
    model = torch.nn.Embedding(ROWS, WIDTH, sparse=True, padding_idx=padding_idx)
    torch.nn.init.ones_(model.weight)
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    return model, bdn.DistributedOptimizer(inner, model, worker=worker, links=bdn.Links(sparse="rows", **links))


def test_passes_may_be_several_or_of_one_worker_or_of_nobody():
    def job(worker):
        model, optimizer = table_alone(worker)
        if worker.rank == 0:
            (model(torch.tensor([3, 3])).sum() + model(torch.tensor([4])).sum()).backward()
        optimizer.step()
        assert (model.weight[3, 0], model.weight[4, 0]) == (0.0, 0.5)
        optimizer.zero_grad()
        optimizer.step()  # Of no pass of anybody.
        assert model.weight.grad is None
        with optimizer.no_sync():
            model(torch.tensor([worker.rank])).sum().backward()
        model(torch.tensor([9])).sum().backward()
        assert model.weight.grad.indices()[0].tolist() == [0, 1, 9]
        optimizer.step()
        assert model.weight[[0, 1, 9], 0].tolist() == [0.5, 0.5, 0.0]
        return True

    assert run_job(job) == [True] * 2


def test_a_batch_of_padding_alone_is_a_gradient_of_no_rows():
    def job(worker):
        model, optimizer = table_alone(worker, padding_idx=0)
        ids = [0, 0] if worker.rank == 0 else [0, 5]
        model(torch.tensor(ids)).sum().backward()
        assert model.weight.grad.coalesce().values().count_nonzero() == WIDTH
        optimizer.step()
        optimizer.zero_grad()
        model(torch.tensor([0])).sum().backward()
        assert model.weight.grad.is_sparse and not model.weight.grad.values().any()
        optimizer.step()
        return model.weight[5, 0].item()

    assert run_job(job) == [0.5] * 2


@pytest.mark.parametrize("how", ["optimizer", "module"])
def test_gradients_may_be_emptied_in_place(how):
    def job(worker):
        model, optimizer = table_alone(worker)
        for _ in range(3):
            (optimizer if how == "optimizer" else model).zero_grad(set_to_none=False)
            model(torch.tensor([worker.rank, 7])).sum().backward()
            assert model.weight.grad.to_dense()[[0, 1, 7], 0].tolist() == [0.5, 0.5, 1.0]
        return True

    assert run_job(job) == [True] * 2


def test_a_weight_that_no_worker_uses_has_no_gradient_and_one_that_one_uses_has():
    def job(worker):
        model = torch.nn.ModuleList(torch.nn.Embedding(ROWS, WIDTH, sparse=True) for _ in range(3))
        inner = torch.optim.SparseAdam(list(model.parameters()), lr=1.0)
        optimizer = bdn.DistributedOptimizer(
            inner, model, worker=worker, links=bdn.Links(sparse="rows", check=False)
        )
        model[0](torch.tensor([1])).sum().backward(retain_graph=False)
        optimizer.zero_grad()
        (model[0](torch.tensor([1])).sum() + (model[1](torch.tensor([2])).sum() if worker.rank else 0)).backward()
        assert model[1].weight.grad.indices()[0].tolist() == [2]
        assert model[2].weight.grad is None
        optimizer.step()
        return True

    assert run_job(job) == [True] * 2


def test_the_weight_of_a_worker_counts():
    def job(worker):
        model, optimizer = table_alone(worker, weight=[3.0, 1.0][worker.rank])
        model(torch.tensor([worker.rank])).sum().backward()
        return model.weight.grad.to_dense()[:2, 0].tolist()

    assert run_job(job) == [[0.75, 0.25]] * 2


def test_a_gradient_that_is_not_finite_is_so_in_all_workers():
    def job(worker):
        model, optimizer = table_alone(worker)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        factor = float("inf") if worker.rank == 1 else 1.0
        scaler.scale(model(torch.tensor([worker.rank])).sum() * factor).backward()
        assert not torch.isfinite(model.weight.grad.values()).all()
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == 2.0 and model.weight.eq(1).all()
        optimizer.zero_grad()
        scaler.scale(model(torch.tensor([worker.rank])).sum()).backward()
        assert model.weight.grad.values()[0, 0] == 1.0
        scaler.step(optimizer)
        return model.weight[:2, 0].tolist()

    assert run_job(job) == [[0.5, 0.5]] * 2


def test_adding_to_a_mean_is_refused():
    def job(worker):
        model, optimizer = table_alone(worker)
        model(torch.tensor([1])).sum().backward()
        with pytest.raises(bandoneon.FailedPrecondition, match="'weight'.*call zero_grad"):
            model(torch.tensor([2])).sum().backward()
        return True

    assert run_job(job, workers=1) == [True]


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda m, w: made(m, w, dict(sparse="rows"), named=m.named_parameters()), "the model in place of"),
        (lambda m, w: made(m, w, dict(sparse="rows"), overlap="forward"), "overlap='forward'"),
        (lambda m, w: made(m, w, dict(sparse="row")), "none of 'refuse', 'dense', 'rows' and 'sketch'"),
        (lambda m, w: made(m, w, dict(sparse="rows", sparse_as_dense=True)), "contradict"),
        (lambda m, w: made(m, w, dict(sparse="rows", push="ef(int8)")), "a residual would be kept"),
        (lambda m, w: made(m, w, dict(sparse="rows", warmup=3)), "warmup=3"),
        (lambda m, w: made(m.double(), w, dict(sparse="rows")), "torch.float64"),
        (lambda m, w: made(normed(m), w, dict(sparse="rows")), "max_norm=1.0"),
        (lambda m, w: bdn.ServerOptimizer(sgd(m), m, worker=w, links=bdn.Links(sparse="rows")), "would do nothing in ServerOptimizer"),
    ],
)
def test_what_cannot_be_is_refused_with_its_reason(make, text):
    def job(worker):
        with pytest.raises((bandoneon.InvalidArgument, bandoneon.Unimplemented), match=text):
            make(torch.nn.Embedding(ROWS, WIDTH, sparse=True), worker)
        return True

    assert run_job(job, workers=1) == [True]


def made(model, worker, links, named=None, **how):
    named = model if named is None else named
    return bdn.DistributedOptimizer(sgd(model), named, worker=worker, links=bdn.Links(**links), **how)


def normed(model):
    model.max_norm = 1.0
    return model


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def test_a_weight_may_be_frozen_at_first():
    def job(worker):
        model = torch.nn.Sequential(torch.nn.Embedding(ROWS, WIDTH, sparse=True), torch.nn.Linear(WIDTH, 1))
        for param in model.parameters():
            torch.nn.init.ones_(param)
        model[0].weight.requires_grad_(False)
        optimizer = bdn.DistributedOptimizer(sgd(model), model, worker=worker, links=bdn.Links(sparse="rows"))
        for is_frozen in (True, False):
            model[0].weight.requires_grad_(not is_frozen)
            optimizer.zero_grad()
            model(torch.tensor([worker.rank])).sum().backward()
            optimizer.step()
        return model[0].weight.grad.indices()[0].tolist(), model[0].weight.grad.values().max().item()

    assert run_job(job) == [([0, 1], pytest.approx(0.45))] * 2


def test_a_tied_weight_with_a_dense_gradient_is_named():
    def job(worker):
        model = torch.nn.Embedding(ROWS, WIDTH, sparse=True)
        optimizer = bdn.DistributedOptimizer(sgd(model), model, worker=worker, links=bdn.Links(sparse="rows"))
        with pytest.raises(bandoneon.InvalidArgument, match="'weight' is dense.*tied output layer"):
            model.weight.square().sum().backward()
        optimizer.close()
        return True

    assert run_job(job, workers=1) == [True]


def test_who_has_no_batches_left_takes_part_until_the_others_have_none():
    def job(worker):
        model, optimizer = table_alone(worker)
        with optimizer.join():
            for _ in range(1 + 2 * worker.rank):
                optimizer.zero_grad()
                model(torch.tensor([worker.rank])).sum().backward()
                optimizer.step()
        return model.weight[:2, 0].tolist()

    assert run_job(job) == [[0.5, -0.5]] * 2
