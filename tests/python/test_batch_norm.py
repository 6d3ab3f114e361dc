"""BatchNorm: statistics stay local in training and are averaged to evaluate; all of it trains."""

import torch

import bandoneon.torch as bdn
from bandoneon.torch.batch_norm import average_batch_norm
from cluster_helpers import linked, model_hash, run_job


def make_net():
    generator = torch.Generator().manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32), torch.nn.ReLU(), torch.nn.Linear(32, 4)
    )
    with torch.no_grad():
        for name, param in net.named_parameters():
            if param.dim() == 2:
                param.copy_(torch.randn(param.shape, generator=generator) * 0.3)
            elif name.endswith("bias"):
                param.zero_()
    return net


def make_digits(rank, count=64):
    """Four noisy prototypes and their numbers."""
    prototypes = torch.randn(4, 16, generator=torch.Generator().manual_seed(7))
    generator = torch.Generator().manual_seed(100 + rank)
    labels = torch.randint(4, (count,), generator=generator)
    return prototypes[labels] + 0.3 * torch.randn(count, 16, generator=generator), labels


def test_statistics_become_the_mean_and_counts_those_of_rank_0():
    def job(worker):
        net = make_net()
        norm = net[1]
        norm.running_mean.fill_(float(worker.rank))
        norm.running_var.fill_(1.0 + worker.rank)
        norm.num_batches_tracked.fill_(5 + worker.rank)
        average_batch_norm(net, worker=worker)
        average_batch_norm(net, worker=worker)  # Again: the mean of equals.
        return norm.running_mean, norm.running_var, norm.num_batches_tracked

    for mean, var, count in run_job(job, workers=4):
        assert torch.equal(mean, torch.full((32,), 1.5))
        assert torch.equal(var, torch.full((32,), 2.5))
        assert count == 5


def test_a_model_without_batch_norm_is_left_alone():
    def job(worker):
        net = torch.nn.Linear(3, 3)
        before = [param.detach().clone() for param in net.parameters()]
        average_batch_norm(net, worker=worker)
        return all(map(torch.equal, before, net.parameters()))

    assert run_job(job) == [True, True]


def train_with(make_optimizer, worker, steps=60):
    net = make_net()
    optimizer = make_optimizer(net, worker)
    inputs, labels = make_digits(worker.rank)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(inputs), labels).backward()
        optimizer.step()
    local = net[1].running_mean.clone()
    average_batch_norm(net, worker=worker)
    net.eval()
    inputs, labels = make_digits(rank=50)
    return (net(inputs).argmax(1) == labels).float().mean().item(), local, model_hash(net)


def test_training_through_lossy_links_learns_and_ends_in_one_model():
    def distributed(net, worker):
        spec = "ef(onebit(block=32))"
        sgd = torch.optim.SGD(net.parameters(), lr=0.1)
        links = dict(push=spec, pull=spec, momentum=0.9, scaler=None, worker=worker)
        return bdn.DistributedOptimizer(sgd, net.named_parameters(), **linked(**links))

    def on_server(net, worker):
        adamw = torch.optim.AdamW(net.parameters(), lr=1e-2)
        links = dict(push="int4(hadamard=32)", pull="delta(int4)", worker=worker)
        return bdn.ServerOptimizer(adamw, net.named_parameters(), **linked(**links))

    for make_optimizer in (distributed, on_server):
        results = run_job(
            lambda worker: train_with(make_optimizer, worker), workers=2, min_compress_bytes=0
        )
        accuracies, statistics, hashes = zip(*results)
        assert min(accuracies) > 0.9, accuracies
        assert not torch.equal(*statistics)  # They were each worker's own.
        assert len(set(hashes)) == 1
