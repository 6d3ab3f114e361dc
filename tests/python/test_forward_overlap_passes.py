"""overlap="forward", by passes: parts of a model, several passes a step, workers that end before the others."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import bandoneon.torch as bdn
from cluster_helpers import BreaksOff, fill, loss_of, make_batch, make_model, model_hash, train
from forward_overlap_helpers import Branches, assert_same_models, distributed


def test_unused_parameters():
    def uses(rank, step):
        return [i for i in range(3) if i == 0 or (i == 1 and rank == step % 2) or (i == 2 and step == 2)]

    def job(worker, overlap):
        model = Branches()
        optimizer = distributed(worker, model, overlap, lambda p: torch.optim.AdamW(p, lr=0.1))
        for step in range(5):
            optimizer.zero_grad()
            model(make_batch(worker.rank, step), used=uses(worker.rank, step)).backward()
            optimizer.step()
        return model_hash(model), [int(s["step"]) for s in optimizer.state_dict()["state"].values()]

    assert_same_models(job)


def test_a_worker_without_any_gradients():
    def job(worker, overlap):
        model = make_model()
        optimizer = distributed(worker, model, overlap, timeout=20)
        for step in range(5):
            optimizer.zero_grad()
            if step == 3 or worker.rank == step % 2:
                loss_of(model, make_batch(0, step)).backward()
            optimizer.step()
        return model_hash(model)

    assert_same_models(job)


@pytest.mark.parametrize("early", [False, True])
def test_backward_passes_per_step(early):
    def job(worker, overlap):
        model = make_model()
        optimizer = distributed(worker, model, overlap, backward_passes_per_step=3)
        for step in range(4):
            optimizer.zero_grad()
            for number in range(2 if early and step == 1 else 3):
                loss_of(model, make_batch(worker.rank, 3 * step + number)).backward()
            optimizer.step()
        return model_hash(model)

    assert_same_models(job)


def test_no_sync():
    def job(worker, overlap):
        model = make_model()
        optimizer = distributed(worker, model, overlap)
        for step in range(4):
            optimizer.zero_grad()
            with optimizer.no_sync():
                loss_of(model, make_batch(worker.rank, 2 * step)).backward()
            loss_of(model, make_batch(worker.rank, 2 * step + 1)).backward()
            optimizer.step()
        return model_hash(model)

    assert_same_models(job)


def test_a_local_pass_that_leaves_a_module_out_whose_step_is_deferred():
    def job(worker, overlap):
        model = Branches()
        optimizer = distributed(worker, model, overlap, backward_passes_per_step=2)
        for step in range(4):
            optimizer.zero_grad()
            for used in ([0, 1], [1, 2]) if step % 2 else ([0], [0]):
                model(make_batch(worker.rank, step), used=used).backward()
            optimizer.step()
        return model_hash(model)

    assert_same_models(job)


def test_freezing_and_unfreezing():
    def job(worker, overlap):
        model = make_model()
        optimizer = distributed(worker, model, overlap)
        for frozen in (model[0], None, model[2], model[2], None):
            for module in (model[0], model[2]):
                module.requires_grad_(module is not frozen)
            train(worker, model, optimizer, steps=1)
        return model_hash(model)

    assert_same_models(job)


def test_several_forward_passes_a_step_and_evaluation_in_between():
    def job(worker, overlap):
        model = make_model()
        optimizer = distributed(worker, model, overlap)
        found = []
        for step in range(4):
            optimizer.zero_grad()
            both = loss_of(model, make_batch(worker.rank, step)) + loss_of(model, make_batch(worker.rank, 9))
            both.backward()
            with torch.no_grad():
                found.append(loss_of(model, make_batch(5)).item())  # Not stepped yet.
            optimizer.step()
            with torch.no_grad():
                found.append(loss_of(model, make_batch(5)).item())
                found.append(model[2](torch.ones(8)).tolist())
        return found, model_hash(model)

    assert_same_models(job)


def test_a_forward_pass_without_gradients_or_in_another_precision():
    def muon(params):
        if not hasattr(torch.optim, "Muon"):
            return torch.optim.Adam(params, lr=0.01)
        return torch.optim.Muon(params, lr=0.01)  # Whose matrix products autocast would round.

    def job(worker, overlap, make):
        model = torch.nn.Sequential(torch.nn.Linear(6, 8, bias=False), torch.nn.Linear(8, 6, bias=False))
        fill(model)
        optimizer = distributed(worker, model, overlap, make)
        found = []
        for step in range(4):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_of(model, make_batch(worker.rank, step))
            loss.backward()
            optimizer.step()
            if step % 2 == 0:  # The first of all makes the optimizer's state.
                with torch.inference_mode():
                    found.append(loss_of(model, make_batch(5)).item())
        return found, model_hash(model)

    for make in (muon, lambda p: torch.optim.Adam(p, lr=0.01)):
        assert_same_models(lambda worker, overlap, make=make: job(worker, overlap, make))


def test_checkpointing():
    def job(worker, overlap, reentrant):
        model = make_model()
        optimizer = distributed(worker, model, overlap)

        def loss(model, batch):
            x = checkpoint(model[:2], batch.requires_grad_(), use_reentrant=reentrant)
            return checkpoint(model[2:], x, use_reentrant=reentrant).square().mean()

        return model_hash(train(worker, model, optimizer, steps=4, loss=loss))

    for reentrant in (True, False):
        assert_same_models(lambda worker, overlap, r=reentrant: job(worker, overlap, r))


def test_two_optimizers_of_one_model():
    def job(worker, overlap):
        model = make_model()
        optimizers = [
            bdn.DistributedOptimizer(
                torch.optim.SGD(part.parameters(), lr=lr),
                model,
                worker=worker,
                overlap=overlap,
                links=bdn.Links(scaler=None, prefix=f"{lr}/"),
            )
            for part, lr in ((model[:2], 0.1), (model[2:], 0.2))
        ]
        for step in range(4):
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss_of(model, make_batch(worker.rank, step)).backward()
            for optimizer in optimizers:
                optimizer.step()
        return model_hash(model)

    assert_same_models(job)


@pytest.mark.parametrize("counts", [(2, 5), (0, 2), (3, 3)])
@pytest.mark.parametrize("weighted", [True, False])
def test_join(counts, weighted):
    def job(worker, overlap):
        model = make_model()
        weight = 2 + worker.rank if weighted else None
        optimizer = distributed(worker, model, overlap, weight=weight)
        for _ in range(2):
            with optimizer.join():
                train(worker, model, optimizer, steps=counts[worker.rank])
        return model_hash(model)

    first, second = assert_same_models(job)
    assert first == second


@pytest.mark.parametrize("counts", [(1, 4), (3, 5)])
def test_join_where_forward_passes_leave_modules_out(counts):
    def job(worker, overlap):
        model = Branches()
        optimizer = distributed(worker, model, overlap, timeout=20)
        with optimizer.join():
            for step in range(counts[worker.rank]):
                optimizer.zero_grad()
                model(make_batch(worker.rank, step), used=[step % 2, 2]).backward()
                optimizer.step()
        return model_hash(model)

    first, second = assert_same_models(job)
    assert first == second


def test_a_pass_that_breaks_off():
    def job(worker, overlap):
        model = make_model()
        optimizer = distributed(worker, model, overlap)
        for step in range(4):
            optimizer.zero_grad()
            batch = make_batch(worker.rank, step)
            if step == 2 and worker.rank == 0:
                with pytest.raises(RuntimeError, match="broke off"):
                    model[2:](BreaksOff.apply(model[:2](batch))).square().mean().backward()
            else:
                loss_of(model, batch).backward()
            if step != 2:
                optimizer.step()
        return model_hash(model)

    assert_same_models(job)
