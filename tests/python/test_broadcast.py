import ctypes

import pytest
import torch

import bandoneon
import bandoneon.torch as bdn
from bandoneon.torch.broadcast import broadcast_bytes
from cluster_helpers import assert_same, fill, make_batch, make_model, model_hash, run_job


class Everything(torch.nn.Module):
    """Buffers of all types, a scalar, an empty tensor, a transposed one and tied weights."""

    def __init__(self, seed):
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.tied = torch.nn.Linear(4, 4)
        fill(self, seed)
        self.tied.weight = self.first.weight
        self.sixteen = torch.nn.Parameter(torch.full((5,), float(seed), dtype=torch.float16))
        self.transposed = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3).t() + seed)
        self.register_buffer("count", torch.tensor(seed))
        self.register_buffer("mask", torch.tensor([seed % 2 == 0, True, False]))
        self.register_buffer("octets", torch.full((3,), seed, dtype=torch.uint8))
        self.register_buffer("small", torch.full((3,), -seed, dtype=torch.int16))
        self.register_buffer("brain", torch.full((3,), float(seed), dtype=torch.bfloat16))
        self.register_buffer("sixtyfour", torch.full((3,), seed + 0.1, dtype=torch.float64))
        self.register_buffer("empty", torch.zeros(0))


@pytest.mark.parametrize("root", [0, 1])
def test_parameters_and_buffers_of_every_type(root):
    def job(worker):
        module = Everything(seed=worker.rank + 1)
        bdn.broadcast_parameters(module, root=root, worker=worker)
        return module.state_dict()

    for state in run_job(job, workers=3):
        assert_same(dict(state), dict(Everything(seed=root + 1).state_dict()))


def test_state_dict_and_named_parameters_do_as_well():
    def job(worker):
        one, two = make_model(worker.rank), make_model(worker.rank + 10)
        bdn.broadcast_parameters(one.state_dict(), worker=worker)
        bdn.broadcast_parameters(two.named_parameters(), worker=worker)
        return model_hash(one), model_hash(two)

    assert run_job(job) == [(model_hash(make_model(0)), model_hash(make_model(10)))] * 2


def test_a_tensor_that_differs_is_named_before_anything_is_overwritten():
    def job(worker):
        model = make_model(worker.rank, width=6 + worker.rank)
        before = model_hash(model)
        with pytest.raises(bandoneon.InvalidArgument, match=r"worker 1 has '0\.weight'.*\[8, 7\].*\[8, 6\]"):
            bdn.broadcast_parameters(model, worker=worker)
        assert model_hash(model) == before

    run_job(job)


def test_the_optimizers_state_goes_on_from_roots():
    def step(model, optimizer, number):
        optimizer.zero_grad()
        model(make_batch(0, number)).square().mean().backward()
        optimizer.step()

    def job(worker):
        model = make_model(0)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1 * (worker.rank + 1))
        if worker.rank == 0:
            step(model, optimizer, 0)
        bdn.broadcast_parameters(model, worker=worker)
        bdn.broadcast_optimizer_state(optimizer, worker=worker)
        step(model, optimizer, 1)
        assert optimizer.param_groups[0]["lr"] == 0.1
        return model_hash(model)

    first, second = run_job(job)
    assert first == second


def test_a_broadcast_costs_the_same_the_two_thousandth_time():
    def job(worker):
        number = ctypes.c_uint64()
        declared = set()
        for i in range(2000):
            number.value = i if worker.rank == i % 2 else 0
            worker.broadcast("number", ctypes.addressof(number), 8, root=i % 2)
            assert number.value == i
            declared.add(worker.stats()["tensors"])
        return declared

    assert run_job(job) == [{1}, {1}]


def test_bytes_of_any_length_take_few_declarations():
    def job(worker):
        for length in range(1000, 2000, 7):
            payload = bytes([length % 256]) * length
            assert broadcast_bytes(worker, "some", payload if worker.rank == 0 else b"", 0) == payload
        return worker.stats()["tensors"]

    assert run_job(job) == [10, 10]


class Unpicklable:
    def __reduce__(self):
        raise TypeError("a lock is inside")


def test_an_object_is_that_of_the_root_at_every_worker():
    given = [{"lr": 0.1, "text": "x" * 1000}, None, [torch.arange(3)]]

    def job(worker):
        mine = given[worker.rank]
        return [bdn.broadcast_object(mine, root, worker=worker) for root in (0, 2, 1, 0)]

    for first, second, third, again in run_job(job, workers=3):
        assert first == again == given[0] and third is None
        assert torch.equal(second[0], torch.arange(3))


def test_objects_of_all_workers_come_in_the_order_of_ranks():
    def job(worker):
        for size in (1, 1000, 3):
            found = bdn.allgather_object(("of", worker.rank, "y" * size * worker.rank), worker=worker)
            assert found == [("of", rank, "y" * size * rank) for rank in range(3)]
        return True

    assert run_job(job, workers=3) == [True] * 3


def test_what_cannot_be_pickled_fails_everywhere_and_names_the_worker():
    def job(worker):
        mine = Unpicklable() if worker.rank == 1 else "fine"
        message = "Unpicklable cannot be pickled: a lock" if worker.rank == 1 else "worker 1's object"
        with pytest.raises(bandoneon.InvalidArgument, match=message):
            bdn.broadcast_object(mine, 1, worker=worker)
        with pytest.raises(bandoneon.InvalidArgument, match=message):
            bdn.allgather_object(mine, worker=worker)
        return bdn.broadcast_object(mine, 0, worker=worker)  # The job goes on.

    assert run_job(job) == ["fine", "fine"]


def test_a_root_that_is_no_worker_is_refused():
    def job(worker):
        with pytest.raises(bandoneon.InvalidArgument, match="root"):
            bdn.broadcast_object("x", 2, worker=worker)

    run_job(job)


@pytest.mark.parametrize("who", ["broadcast_parameters", "DistributedOptimizer"])
def test_tensors_in_another_order_are_told_so(who):
    def job(worker):
        names = ["a", "b"] if worker.rank == 0 else ["b", "a"]
        model = torch.nn.ModuleDict({name: torch.nn.Linear(2, 2, bias=False) for name in names})
        with pytest.raises(bandoneon.InvalidArgument) as caught:
            if who == "broadcast_parameters":
                bdn.broadcast_parameters(model, worker=worker)
            else:
                bdn.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, worker=worker)
        return str(caught.value)

    for text in run_job(job):
        assert "worker 1 has the same tensors as worker 0 in another order: 'b.weight' where that one has 'a.weight'" in text
        assert "sorted()" in text


def test_names_that_were_read_before_are_told_from_wrong_ones():
    def job(worker):
        model = make_model()
        names = model.named_parameters()
        bdn.broadcast_parameters(names, worker=worker)
        with pytest.raises(bandoneon.InvalidArgument, match="nothing to broadcast.*can be read once.*anew"):
            bdn.broadcast_parameters(names, worker=worker)
        with pytest.raises(bandoneon.InvalidArgument, match="named_parameters is empty.*can be read once.*anew"):
            bdn.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), names, worker=worker)
        bdn.broadcast_parameters({}, worker=worker)

    run_job(job)
