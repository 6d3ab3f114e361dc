"""Islands of a job, whose ranks come and go together: which rank is of which, and what is no layout of islands. Islands that are lost
and come back are in tests/system/returning_islands_test.py."""

import pickle
import warnings

import pytest
import torch
from torch.distributed.fsdp import fully_shard

import bandoneon
import bandoneon.torch as bdn
from bandoneon.torch import handover, sharded
from bandoneon.torch.islands import Islands, is_failure_inside, warn_of_old_addresses
from bandoneon.torch.shards import joined_to, layout_of, local_of
from cluster_helpers import loss_of, make_batch, make_model, run_job


class Group:
    """As much of a worker as Islands asks for."""

    def __init__(self, ranks, size):
        self.ranks, self.size, self.whole = ranks, size, self

    def host_ranks(self, rank):
        return range(rank, rank + 1)


@pytest.mark.parametrize("restarts,keeps,rank,is_said", [("9", "True", "0", True), ("0", "True", "0", False), ("9", "False", "0", False), ("9", "True", "1", False)])
def test_a_torchrun_that_keeps_its_store_from_start_to_start_is_warned_of(monkeypatch, restarts, keeps, rank, is_said):
    for name, value in (("TORCHELASTIC_MAX_RESTARTS", restarts), ("TORCHELASTIC_USE_AGENT_STORE", keeps), ("RANK", rank)):
        monkeypatch.setenv(name, value)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        warn_of_old_addresses()
    assert ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in str(one.message) for one in said] == [True] * is_said


@pytest.mark.parametrize("ranks,total,size", [
    (range(5), 5, 1), ([0, 2], 4, 2), ([1, 3], 4, 2), ([1, 3, 5], 6, 2), ([2, 5], 6, 3), ([0], 4, 4), ([3], 4, 4), ([0], 1, 1)])
def test_a_group_across_islands_tells_their_size(ranks, total, size):
    assert Islands.of(Group(ranks, total)).size == size


@pytest.mark.parametrize("ranks,total", [([0, 1], 4), ([2, 3], 4), ([0, 3], 4), ([0, 2], 5), ([0, 1, 2], 6), ([0, 2, 5], 6), ([0, 2], 6)])
def test_another_group_is_refused(ranks, total):
    with pytest.raises(bandoneon.InvalidArgument, match="does not come and go by islands"):
        Islands.of(Group(ranks, total))


def test_who_is_of_an_island():
    islands = Islands(2)
    assert [islands.of_rank(rank) for rank in range(6)] == [0, 0, 1, 1, 2, 2]
    assert islands.of_ranks([5, 1, 4]) == {0, 2}
    assert islands.whole([3, 0, 2, 5]) == [2, 3]
    assert islands.whole([]) == []
    assert islands.mates_among([5], range(6)) == [4, 5]
    assert islands.mates_among([5], [0, 1, 5]) == [5]
    assert islands.mates_among([], range(6)) == []
    assert islands.peers_among(3, [0, 1, 4, 5]) == [1, 5]


def test_where_replicas_are_whole_each_rank_is_an_island():
    islands = Islands(1)
    assert islands.whole([4, 2]) == [2, 4]
    assert islands.mates_among([2], [0, 2, 4]) == [2]
    assert islands.peers_among(3, [4, 1]) == [1, 4]


def test_hosts_are_islands_of_whole_replicas_of_whatever_size():
    islands = Islands(1, firsts=[0, 0, 0, 3, 4, 4])
    assert not islands.is_sharded and islands.noun == "host"
    assert islands.of_ranks([2, 5]) == {0, 4}
    assert islands.whole([0, 1, 3, 5, 4]) == [3, 4, 5]
    assert islands.mates_among([1], range(6)) == [0, 1, 2]
    assert islands.mates_among([5, 3], [0, 3, 4, 5]) == [3, 4, 5]
    assert islands.peers_among(4, [5, 0, 3]) == [0, 3, 5], "each has the whole"


def test_a_training_state_takes_others_into_its_own_group_alone():
    def job(worker):
        island = sharded.new_group([worker.rank % 2, worker.rank % 2 + 2], worker=worker)
        pair = sharded.new_group([worker.rank // 2 * 2, worker.rank // 2 * 2 + 1], worker=worker)
        refusals = []
        for exchanges, comes in ((island, island), (worker, island), (island, worker), (pair, island)):
            model = make_model()
            optimizer = bdn.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model, worker=exchanges)
            refusals.append(bdn.TrainingState({"optimizer": optimizer}, worker=comes)._refusal)
            optimizer.close()
        with pytest.raises(bandoneon.InvalidArgument, match="does not come and go by islands"):
            bdn.TrainingState({"optimizer": make_model()}, worker=pair)
        with pytest.raises(bandoneon.InvalidArgument, match="torch.distributed.checkpoint"):
            bdn.TrainingState({"optimizer": make_model()}, checkpoint="run", worker=island)
        return refusals

    for own, whole, without, other in run_job(job, workers=4):
        assert own is None and whole is None
        assert without == other
        assert "'optimizer' takes nobody in, because it exchanges among a group of ranks" in without


def test_all_steps_are_taken_with_a_group():
    def job(worker):
        island = sharded.new_group([worker.rank % 2, worker.rank % 2 + 2], worker=worker)
        model = make_model()
        optimizer = bdn.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model, worker=island)
        state = bdn.TrainingState({"model": model, "optimizer": optimizer}, worker=island)
        shards, counted = [], []
        optimizer.count_samples = counted.append
        for step in state.steps(5):
            shards.append(state.shard)
            # Parts of 4, 4, 3 and 3 samples: of the islands 8 and 6, by which both halves of the model count.
            assert state.count(14) == (4 if worker.rank < 2 else 3)
            optimizer.zero_grad()
            loss_of(model, make_batch(worker.rank, step)).backward()
            optimizer.step()
        optimizer.close()
        assert counted == [8 if worker.rank < 2 else 6] * 5
        return shards, [param.detach().flatten()[0].item() for param in model.parameters()]

    results = run_job(job, workers=4)
    for rank, (shards, _) in enumerate(results):
        assert shards == [(rank, 4)] * 5
    assert results[0][1] == results[2][1] and results[1][1] == results[3][1] and results[0][1] != results[1][1]


def failure(call):
    try:
        call()
    except Exception as error:
        return error


def in_torch_distributed(file, error):
    """The error as code of torch in that file would raise it."""
    names = {"error": error}
    exec(compile("def fail():\n    raise error", file, "exec"), names)
    return failure(names["fail"])


def test_what_ends_an_island_is_known_from_what_ends_a_program():
    yes = [
        in_torch_distributed("/v/site-packages/torch/distributed/distributed_c10d.py", RuntimeError("Connection closed by peer")),
        in_torch_distributed("/v/site-packages/torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py", RuntimeError("timed out")),
        RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer"),
        RuntimeError("NCCL communicator was aborted on rank 1"),
        torch.distributed.DistNetworkError("the store has gone"),
    ]
    no = [
        failure(lambda: torch.ones(2) + torch.ones(3)),
        failure(lambda: torch.ones(2, requires_grad=True).backward()),
        in_torch_distributed("/v/site-packages/torch/distributed/distributed_c10d.py", ValueError("an invalid rank")),
        in_torch_distributed("/home/anna/train.py", RuntimeError("the loss is NaN")),
        in_torch_distributed("/v/site-packages/torch/distributed/x.py", bandoneon.JobFailed("worker 1 failed")),
        AssertionError("gloo"),
    ]
    assert [is_failure_inside(error) for error in yes] == [True] * len(yes)
    assert [is_failure_inside(error) for error in no] == [False] * len(no)


@pytest.fixture
def island_of_one():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def given_to_another(tree):
    """What a newcomer gets of a tree: the tree without tensors, pickled, and the bytes of each."""
    parts = iter([local_of(leaf).detach().clone() for _, leaf in handover._leaves(tree) if isinstance(leaf, torch.Tensor)])
    slots = pickle.loads(pickle.dumps(handover._map(tree, handover._slot_of)))
    return handover._map(slots, lambda leaf: leaf.filled(next(parts)) if isinstance(leaf, handover._Slot) else leaf)


@pytest.mark.parametrize("make", [
    lambda params: torch.optim.AdamW(params, lr=0.1),
    lambda params: torch.optim.AdamW(params, lr=0.1, fused=True),
    lambda params: torch.optim.Adam(params, lr=0.1, amsgrad=True, foreach=True),
    lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    lambda params: torch.optim.RMSprop(params, lr=0.1, momentum=0.9),
    lambda params: torch.optim.NAdam(params, lr=0.1),
], ids=["AdamW", "fused", "amsgrad", "SGD", "RMSprop", "NAdam"])
def test_parts_of_models_and_optimizers_become_dtensors_of_the_newcomers_mesh(island_of_one, make):
    trainings = []
    for seed in range(2):
        torch.manual_seed(seed)
        model = fully_shard(torch.nn.Linear(5, 3))
        trainings.append((model, make(model.parameters())))
    (model, optimizer), (other, others) = trainings
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 5)).square().sum().backward()
        optimizer.step()
    given = given_to_another(model.state_dict())
    own = other.state_dict()
    other.load_state_dict({name: joined_to(value, own[name]) for name, value in given.items()})
    handover.load_exactly(others, given_to_another(optimizer.state_dict()))
    for param, theirs in zip(model.parameters(), other.parameters()):
        assert torch.equal(local_of(param), local_of(theirs))
        for name, value in optimizer.state[param].items():
            got = others.state[theirs][name]
            assert type(got) is type(value), name
            assert torch.equal(local_of(got), local_of(value)) and layout_of(got) == layout_of(value), name
    # Both take the same step from there.
    inputs = torch.randn(4, 5)
    for step in ((model, optimizer), (other, others)):
        step[1].zero_grad()
        step[0](inputs).square().sum().backward()
        step[1].step()
    assert all(torch.equal(local_of(a), local_of(b)) for a, b in zip(model.parameters(), other.parameters()))
