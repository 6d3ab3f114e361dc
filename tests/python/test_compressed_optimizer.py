"""DistributedOptimizer over lossy links, and what they remember."""

import io

import pytest
import torch

import bandoneon
import bandoneon.torch as bdn
from cluster_helpers import ONEBIT, make_batch, make_model, model_hash, run_job, sgd


def big_train(worker, steps=6, seed=0, **options):
    """Large enough that its groups are compressed."""
    model = make_model(seed, width=4096)
    optimizer = sgd(worker, model, lr=0.05, **options)
    for step in range(steps):
        optimizer.zero_grad()
        model(make_batch(worker.rank, step, width=4096)).square().mean().backward()
        optimizer.step()
    return model, optimizer


@pytest.mark.parametrize(
    "options",
    [
        dict(push="fp16", pull="fp16"),
        dict(ONEBIT, momentum=0.9, warmup=2),
        dict(push="ef(topk(ratio=0.01))", pull="ef(topk(ratio=0.01))", momentum=0.9, warmup=2),
        dict(push="bf16", pull="none"),
    ],
    ids=["fp16", "onebit", "topk", "bf16 one way"],
)
def test_all_workers_models_are_equal_bit_for_bit(options):
    hashes = run_job(
        lambda worker: model_hash(big_train(worker, **options)[0]), workers=3, servers=2
    )
    assert len(set(hashes)) == 1


def test_the_same_bits_from_1_2_or_3_servers_and_1_or_2_threads():
    options = dict(ONEBIT, momentum=0.9, warmup=1)
    hashes = set()
    for servers in (1, 2, 3):
        for threads in (1, 2):
            with bandoneon.LocalCluster(workers=2, servers=servers, seed=5) as cluster:
                job = lambda worker: model_hash(big_train(worker, **options)[0])  # noqa: E731
                hashes.update(cluster.run(job, threads=threads))
    assert len(hashes) == 1


def test_warmup_steps_go_uncompressed():
    def job(worker):
        model = make_model(width=4096)
        optimizer = sgd(worker, model, warmup=1, **ONEBIT)
        results = []
        for _ in range(2):
            optimizer.zero_grad()
            model(make_batch(worker.rank, width=4096)).square().mean().backward()
            results.append(model[0].weight.grad.clone())
        return results

    def local(rank):
        model = make_model(width=4096)
        model(make_batch(rank, width=4096)).square().mean().backward()
        return model[0].weight.grad

    mean = (local(0) + local(1)) / 2
    for dense, compressed in run_job(job):
        assert torch.equal(dense, mean) and not torch.equal(compressed, mean)


def test_momentum_before_error_feedback_is_sgds_nesterov_momentum():
    # While everything goes uncompressed the two must agree, which pins down whose momentum it is.
    def job(worker, **how):
        return big_train(worker, steps=4, **how)[0].state_dict()

    before = run_job(lambda w: job(w, momentum=0.9, warmup=100, **ONEBIT))
    inside = run_job(lambda w: job(w, inner_momentum=0.9, nesterov=True))
    for name, value in inside[0].items():
        torch.testing.assert_close(before[0][name], value, rtol=1e-4, atol=1e-6)


def test_momentum_twice_is_refused_naming_both():
    def job(worker):
        with pytest.raises(bandoneon.InvalidArgument, match=r"momentum=0.9 .*momentum=0.8"):
            sgd(worker, make_model(), momentum=0.9, inner_momentum=0.8, **ONEBIT)
        with pytest.raises(bandoneon.InvalidArgument, match="error feedback"):
            sgd(worker, make_model(), momentum=0.9, push="fp16")

    run_job(job)


def test_comm_state_dict_resumes_where_it_was():
    options = dict(push="ef(onebit(block=256))", pull="none", momentum=0.9)

    def train_on(worker, model, optimizer, steps):
        for step in steps:
            optimizer.zero_grad()
            model(make_batch(worker.rank, step, width=4096)).square().mean().backward()
            optimizer.step()

    def start(worker):
        model = make_model(width=4096)
        return model, sgd(worker, model, lr=0.05, **options)

    def whole(worker):
        model, optimizer = start(worker)
        train_on(worker, model, optimizer, range(6))
        return model_hash(model)

    def first_half(worker):
        model, optimizer = start(worker)
        train_on(worker, model, optimizer, range(3))
        buffer = io.BytesIO()
        torch.save(
            (model.state_dict(), optimizer.state_dict(), optimizer.comm_state_dict()), buffer
        )
        return buffer.getvalue()

    checkpoints = run_job(first_half)

    def second_half(worker):
        model, optimizer = start(worker)
        parts = torch.load(io.BytesIO(checkpoints[worker.rank]), weights_only=True)
        model.load_state_dict(parts[0])
        optimizer.load_state_dict(parts[1])
        with pytest.raises(bandoneon.InvalidArgument, match="own"):
            optimizer.load_comm_state_dict({**parts[2], "rank": 1 - worker.rank})
        optimizer.load_comm_state_dict(parts[2])
        assert parts[2]["tensors"]["0.weight"]["step"] == 3
        assert parts[2]["tensors"]["0.weight"]["residual"].abs().sum() > 0
        train_on(worker, model, optimizer, range(3, 6))
        return model_hash(model)

    assert run_job(second_half) == run_job(whole)


def test_what_was_sent_and_what_is_owed_sum_up_to_the_gradients():
    def job(worker):
        generator = torch.Generator().manual_seed(worker.rank)
        weight = torch.nn.Parameter(torch.zeros(1 << 15))
        inner = torch.optim.SGD([weight], lr=1.0)
        optimizer = bdn.DistributedOptimizer(
            inner,
            [("w", weight)],
            worker=worker,
            links=bdn.Links(push="ef(onebit(block=256))", pull="none", scaler=None),
        )
        given, received = torch.zeros(1 << 15), torch.zeros(1 << 15)
        for step in range(8):
            grad = torch.randn(1 << 15, generator=generator)
            optimizer.zero_grad()
            poison = step == 3 and worker.rank == 1
            (weight * (grad * float("nan") if poison else grad)).sum().backward()
            if step != 3:
                given += grad
                received += weight.grad
            else:
                assert weight.grad.isnan().all()
        return given, received, optimizer.comm_state_dict()["tensors"]["w"]["residual"]

    (given0, received, owed0), (given1, same, owed1) = run_job(job)
    assert torch.equal(received, same)
    torch.testing.assert_close(
        received + (owed0 + owed1) / 2, (given0 + given1) / 2, rtol=1e-4, atol=1e-4
    )
