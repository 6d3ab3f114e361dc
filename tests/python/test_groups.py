"""Groups: exchange among some of the ranks."""

import copy

import pytest
import torch

import bandoneon
import bandoneon.torch as bdn
from bandoneon import session
from bandoneon.torch import algorithms, rows, sharded
from cluster_helpers import ONEBIT, loss_of, make_batch, make_model, run_job


def group_of(worker):
    """Ranks 0 and 2, or ranks 1 and 3."""
    return sharded.new_group([worker.rank % 2 + 2, worker.rank % 2], worker=worker)


def test_push_pull_gives_the_mean_of_the_group():
    def job(worker):
        group = group_of(worker)
        for step in range(3):
            # One name in both groups, and once more in the whole job.
            tensor = torch.full((5,), float(worker.rank + step))
            bdn.push_pull(tensor, "loss", worker=group).wait()
            assert torch.equal(tensor, torch.full((5,), worker.rank % 2 + 1.0 + step))
            tensor = torch.full((5,), float(worker.rank))
            bdn.push_pull(tensor, "loss", worker=worker).wait()
            assert torch.equal(tensor, torch.full((5,), 1.5))

    run_job(job, workers=4, servers=2)


def test_average_before_divides_by_the_number_of_the_group():
    def job(worker):
        tensor = torch.full((5,), 3e38)
        bdn.push_pull(tensor, "large", average="before", worker=group_of(worker)).wait()
        assert torch.equal(tensor, torch.full((5,), 3e38))

    run_job(job, workers=4)


def test_broadcasts_and_meetings_are_of_the_group():
    def job(worker):
        group = group_of(worker)
        root = worker.rank % 2 + 2
        model = make_model(seed=worker.rank)
        bdn.broadcast_parameters(model, root=root, worker=group)
        for param, expected in zip(model.parameters(), make_model(seed=root).parameters()):
            assert torch.equal(param, expected)
        assert bdn.broadcast_object(f"of {worker.rank}", root=root, worker=group) == f"of {root}"
        assert bdn.allgather_object(worker.rank, worker=group) == list(group.ranks)
        bdn.barrier("epoch", worker=group)
        assert group.present() == list(group.ranks)
        assert (group.count_present(), group.first_rank()) == (2, group.ranks[0])
        with pytest.raises(bandoneon.InvalidArgument, match="root . is none of these ranks"):
            bdn.broadcast_object("x", root=1 - worker.rank % 2, worker=group)

    run_job(job, workers=4)


def test_a_worker_outside_pays_nothing():
    def job(worker):
        bdn.barrier(worker=worker)
        before = worker.stats()
        if worker.rank < 2:
            group = sharded.new_group([0, 1], worker=worker)
            for _ in range(3):
                bdn.push_pull(torch.ones(100_000), "w", worker=group).wait()
        bdn.barrier(worker=worker)
        if worker.rank == 2:
            after = worker.stats()
            assert after["tensors"] == before["tensors"] == 0
            assert after["bytes_pushed"] == before["bytes_pushed"] and after["bytes_pulled"] == before["bytes_pulled"]

    run_job(job, workers=3)


def trained(make_optimizer, ranks, worker, steps=8):
    """The parameters of a model that the group trains: from the same weights, each on its own batches."""
    model = make_model()
    optimizer = make_optimizer(model, worker)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, make_batch(ranks.index(worker.rank), step)).backward()
        optimizer.step()
    optimizer.close()
    return [param.detach().clone() for param in model.parameters()]


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def of_links(**options):
    return lambda model, worker: bdn.DistributedOptimizer(sgd(model), model, links=bdn.Links(**options), worker=worker)


OPTIMIZERS = {
    "DistributedOptimizer": of_links(),
    "onebit": of_links(**ONEBIT),
    "forward": lambda model, worker: bdn.DistributedOptimizer(sgd(model), model, overlap="forward", worker=worker),
    "LocalSteps": lambda model, worker: bdn.LocalSteps(
        sgd(model), model, tau=2, outer=algorithms.Average(), worker=worker
    ),
    "ServerOptimizer": lambda model, worker: bdn.ServerOptimizer(
        torch.optim.AdamW(model.parameters(), lr=0.01), model, worker=worker
    ),
    "EF21": lambda model, worker: algorithms.EF21(sgd(model), model, worker=worker),
    "KFAC": lambda model, worker: algorithms.KFAC(model, sgd(model), factors="none", every=2, inverses=2, worker=worker),
    "Lion": lambda model, worker: algorithms.Lion(model.named_parameters(), worker=worker),
    "DeMo": lambda model, worker: algorithms.DeMo(model.named_parameters(), worker=worker),
    "OneBitAdam": lambda model, worker: algorithms.OneBitAdam(
        model.named_parameters(), links=bdn.Links(warmup=2), worker=worker
    ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_group_trains_as_a_job_of_its_own(name):
    """Two groups of two beside each other have the bits of a job of two workers."""

    def in_group(worker):
        group = group_of(worker)
        return trained(OPTIMIZERS[name], group.ranks, group)

    def alone(worker):
        return trained(OPTIMIZERS[name], (0, 1), worker)

    expected = run_job(alone, min_compress_bytes=1)
    for params in run_job(in_group, workers=4, servers=2, min_compress_bytes=1):
        for param, other in zip(params, expected[0]):
            assert torch.equal(param, other), name


def test_cser_meets_in_its_group():
    def job(worker):
        group = group_of(worker)

        def make(model, group):
            return algorithms.CSER(sgd(model), model, gradient=2, reset=1, period=2, worker=group)

        return trained(make, group.ranks, group)

    found = run_job(job, workers=4, min_compress_bytes=1)
    for one, other, of_others in zip(found[0], found[2], found[1]):
        assert torch.allclose(one, other, atol=1e-6)  # reset=1 sends all that the replicas differ by.
        assert one.isfinite().all() and not torch.allclose(one, of_others, atol=1e-6)


@pytest.mark.parametrize("push", ["randomk(ratio=0.3)", "int8", "sketch(columns=64, rows=1)"])
def test_codecs_that_draw_draw_alike_in_a_group(push):
    def job(worker):
        tensor = make_batch(worker.rank, rows=200)
        bdn.push_pull(tensor, "w", push=push, worker=group_of(worker)).wait()
        return tensor

    found = run_job(job, workers=4, min_compress_bytes=1)
    assert torch.equal(found[0], found[2]) and torch.equal(found[1], found[3])
    assert not torch.equal(found[0], found[1])


def test_a_state_of_a_group_is_taken_up_in_it():
    def job(worker):
        group = group_of(worker)

        def make(model):
            return bdn.DistributedOptimizer(sgd(model), model, links=bdn.Links(**ONEBIT), worker=group)

        def run(model, optimizer, steps):
            for step in steps:
                optimizer.zero_grad()
                loss_of(model, make_batch(worker.rank, step)).backward()
                optimizer.step()

        model = make_model()
        optimizer = make(model)
        run(model, optimizer, range(4))
        saved, weights = copy.deepcopy(optimizer.comm_state_dict()), copy.deepcopy(model.state_dict())
        assert (saved["rank"], saved["size"]) == (worker.rank // 2, 2)
        run(model, optimizer, range(4, 8))
        expected = copy.deepcopy(model.state_dict())
        optimizer.close()

        model.load_state_dict(weights)
        optimizer = make(model)
        optimizer.load_comm_state_dict(saved)
        run(model, optimizer, range(4, 8))
        for key, value in model.state_dict().items():
            assert torch.equal(value, expected[key]), key
        optimizer.close()

    run_job(job, workers=4)


def test_a_parameter_is_of_one_group_only():
    def job(worker):
        model = make_model()
        first = bdn.DistributedOptimizer(sgd(model), model, worker=group_of(worker))
        with pytest.raises(bandoneon.InvalidArgument, match="already exchanged by another optimizer"):
            bdn.DistributedOptimizer(sgd(model), model, worker=worker)
        first.close()

    run_job(job, workers=4)


def test_overlapping_groups_exchange_apart():
    def job(worker):
        groups = [sharded.new_group(r, worker=worker) for r in ([0, 1], [1, 2], [0, 2]) if worker.rank in r]
        handles = [bdn.push_pull(torch.full((3,), float(worker.rank)), "x", worker=group) for group in groups]
        for group, handle in zip(groups, handles):
            assert torch.equal(handle.wait(), torch.full((3,), sum(group.ranks) / 2))

    run_job(job, workers=3)


@pytest.mark.parametrize("name", ["DistributedOptimizer", "LocalSteps", "Lion"])
def test_a_training_state_takes_nobody_into_a_group(name):
    def job(worker):
        optimizer = OPTIMIZERS[name](make_model(), group_of(worker))
        state = bdn.TrainingState({"optimizer": optimizer}, worker=worker)
        optimizer.close()
        return state._refusal

    for why in run_job(job, workers=4):
        assert why.startswith("'optimizer' takes nobody in, because it exchanges among a group of ranks, each with a state of its own: ")


def test_tables_of_rows_are_not_of_a_group():
    def job(worker):
        model = torch.nn.Sequential(torch.nn.Embedding(10, 4))
        rows.serve_tables(model, "*")
        with pytest.raises(bandoneon.Unimplemented, match="not by a group of ranks"):
            rows.RowOptimizer(model, rule="sgd", lr=0.1, worker=group_of(worker))

    run_job(job, workers=4)


def test_a_group_is_not_closed_and_does_not_leave():
    def job(worker):
        group = group_of(worker)
        group.close()
        with pytest.raises(bandoneon.FailedPrecondition, match="a group does not leave the job"):
            group.leave()
        del group
        assert not worker.is_closed()
        inner = sharded.new_group([worker.rank], worker=sharded.new_group(range(4), worker=worker))
        assert inner.whole is worker
        assert bdn.push_pull(torch.ones(3), "mine", worker=inner).wait().sum() == 3

    run_job(job, workers=4)


def test_groups_that_cannot_be_are_refused():
    def job(worker):
        def refused(ranks, match):
            with pytest.raises(bandoneon.InvalidArgument, match=match):
                sharded.new_group(ranks, worker=worker)

        other = 1 - worker.rank
        refused([], "at least one rank")
        refused([other], f"without this worker, which is rank {worker.rank}")
        refused([worker.rank, 2], "rank 2 of a group is not one of 2 workers, 0 to 1")
        refused([worker.rank, -1], "rank -1 of a group is not one of 2 workers")
        refused([worker.rank, worker.rank], "lists rank . twice")
        refused(7, r"new_group\(7\): give a list of ranks")
        refused(["a"], "give a list of ranks")

    run_job(job, workers=2)


def test_ranks_that_name_other_groups_are_told():
    def job(worker):
        if worker.rank == 2:
            return bdn.barrier(worker=worker)
        group = sharded.new_group([0, 1] if worker.rank == 0 else [0, 1, 2], worker=worker)
        with pytest.raises(bandoneon.InvalidArgument, match="ranks 0, 1 wait for worker 1") as told:
            bdn.push_pull(torch.ones(3), "w", worker=group)
        bdn.barrier(worker=worker)
        return str(told.value)

    first, second, _ = run_job(job, workers=3)
    assert "ranks 0-2 wait for worker 0" in first and "ranks 0-2 wait for worker 0" in second


def test_a_late_rank_of_the_group_is_named():
    def job(worker):
        if worker.rank == 1:
            bdn.barrier("late", worker=worker)
            return
        if worker.rank == 0:
            group = sharded.new_group([0, 2], worker=worker)
            handle = bdn.push_pull(torch.ones(3), "w", worker=group)
            with pytest.raises(bandoneon.DeadlineExceeded) as late:
                handle.wait(timeout=3)
            assert late.value.waiting_for == "worker 2"
            bdn.barrier("late", worker=worker)
            handle.wait()
        else:
            group = sharded.new_group([0, 2], worker=worker)
            worker.declare_once(group._of_group(bandoneon.calls.Declaration("w", 3)))
            bdn.barrier("late", worker=worker)
            bdn.push_pull(torch.ones(3), "w", worker=group).wait()

    run_job(job, workers=3)


@pytest.mark.parametrize(
    "variables, rank",
    [
        ({"BANDONEON_ISLAND": "2", "RANK": "1", "WORLD_SIZE": "4"}, 9),
        ({"RANK": "1", "WORLD_SIZE": "4"}, 1),
        ({"BANDONEON_ISLAND": "-1", "RANK": "1", "WORLD_SIZE": "4"}, "BANDONEON_ISLAND='-1' is no number of an island"),
        ({"BANDONEON_ISLAND": "1"}, "torchrun has not started this process"),
        ({"BANDONEON_ISLAND": "1", "RANK": "0"}, "needs torchrun's WORLD_SIZE"),
    ],
)
def test_ranks_count_on_from_one_island_to_the_next(monkeypatch, variables, rank):
    for name in ("BANDONEON_ISLAND", "BANDONEON_RANK", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if isinstance(rank, int):
        assert session._rank(None) == rank
    else:
        with pytest.raises(bandoneon.InvalidArgument, match=rank):
            session._rank(None)
