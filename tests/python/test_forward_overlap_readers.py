"""overlap="forward", where gradients and parameters are read before the next forward pass."""

import copy
import gc

import pytest
import torch

import bandoneon.torch as bdn
from cluster_helpers import ONEBIT, loss_of, make_batch, make_model, model_hash, run_job, train
from forward_overlap_helpers import AWAITED_AT_ONCE, assert_same_models, distributed


@pytest.mark.parametrize("clip", ["by norm", "by value", "by hand", "synchronized"])
def test_clipping_as_in_plain_torch(clip):
    def job(worker, overlap):
        model = make_model()
        optimizer = distributed(worker, model, overlap)
        norms = []
        for step in range(4):
            optimizer.zero_grad()
            loss_of(model, make_batch(worker.rank, step)).backward()
            if clip == "by norm":
                norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01).item())
            elif clip == "by value":
                torch.nn.utils.clip_grad_value_(model.parameters(), 0.01)
            elif clip == "by hand":
                for param in model.parameters():
                    param.grad.mul_(0.5)
                    norms.append(param.grad.norm().item())
            else:
                optimizer.synchronize()
                norms.append(model[0].weight.grad.tolist())
            optimizer.step()
        return norms, model_hash(model)

    warns = None if clip == "synchronized" else "they were read between backward() and step()"
    assert_same_models(job, warns)


def test_the_warning_comes_once_an_optimizer():
    def job(worker):
        model = make_model()
        optimizer = distributed(worker, model, "forward")
        for step in range(3):
            optimizer.zero_grad()
            loss_of(model, make_batch(worker.rank, step)).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            optimizer.step()

    with pytest.warns(RuntimeWarning, match=AWAITED_AT_ONCE) as caught:
        run_job(job)
    assert len([w for w in caught if AWAITED_AT_ONCE in str(w.message)]) == 2


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("unscale", [False, True])
def test_a_grad_scaler(fused, unscale):
    def job(worker, overlap):
        model = make_model(width=600)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
        optimizer = distributed(
            worker, model, overlap, lambda p: torch.optim.AdamW(p, 0.01, fused=fused), scaler=scaler, **ONEBIT
        )
        for step in range(5):
            optimizer.zero_grad()
            batch = make_batch(worker.rank, step, width=600)
            if step == 2 and worker.rank == 1:
                batch[0, 0] = float("inf")
            scaler.scale(loss_of(model, batch)).backward()
            if unscale:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        return scaler.get_scale(), model_hash(model)

    found = assert_same_models(job, "they were read between backward() and step()")
    assert found[0][0] == 2.0**11


def test_a_closure():
    def job(worker, overlap):
        model = make_model()
        optimizer = distributed(worker, model, overlap)
        losses = []
        for step in range(4):

            def closure():
                optimizer.zero_grad()
                loss = loss_of(model, make_batch(worker.rank, step))
                loss.backward()
                return loss

            losses.append(optimizer.step(closure).item())
        return losses, model_hash(model)

    assert_same_models(job, "step() was given a closure")


@pytest.mark.parametrize("which", ["pre", "post"])
def test_step_hooks(which):
    def job(worker, overlap):
        model = make_model()
        optimizer = distributed(worker, model, overlap)
        seen = []

        def hook(*_):
            seen.append(model[0].weight.grad.tolist())
            seen.append(model[0].weight.tolist())

        getattr(optimizer, f"register_step_{which}_hook")(hook)
        train(worker, model, optimizer, steps=3)
        return seen, model_hash(model)

    assert_same_models(job, "step() has hooks of the program's")


def test_a_second_backward_before_the_step_accumulates():
    def job(worker, overlap):
        model = make_model()
        optimizer = distributed(worker, model, overlap)
        for step in range(3):
            optimizer.zero_grad()
            loss_of(model, make_batch(worker.rank, 2 * step)).backward()
            loss_of(model, make_batch(worker.rank, 2 * step + 1)).backward()
            optimizer.step()
        return model_hash(model)

    assert_same_models(job, "a second backward pass came before step()")


def test_gradients_that_are_thrown_away():
    def job(worker, overlap):
        model = make_model()
        optimizer = distributed(worker, model, overlap, **ONEBIT)
        for step in range(6):
            [optimizer.zero_grad, model.zero_grad][step % 2]()
            loss_of(model, make_batch(worker.rank, step)).backward()
            if step % 3:
                optimizer.step()
        optimizer.zero_grad()
        if worker.rank == 0:
            loss_of(model, make_batch(0, 7)).backward()
        optimizer.step()
        return model_hash(model)

    assert_same_models(job, min_compress_bytes="1KiB")


def test_states_that_are_saved_and_loaded_between_steps():
    def job(worker, overlap):
        model = make_model(width=600)
        optimizer = distributed(
            worker, model, overlap, lambda p: torch.optim.Adam(p, 0.01), push="ef(onebit)"
        )
        found, saved = [], None

        def save():
            return (
                copy.deepcopy(model.state_dict()),
                copy.deepcopy(optimizer.state_dict()),
                optimizer.comm_state_dict(),
            )

        for step in range(6):
            optimizer.zero_grad()
            loss_of(model, make_batch(worker.rank, step, width=600)).backward()
            optimizer.step()
            if step == 1:
                saved = save()
            if step == 3:  # What was deferred does not come on top.
                model.load_state_dict(saved[0])
                optimizer.load_state_dict(saved[1])
            found.append(model_hash(model[0]))
        return found, model_hash(model), save()[2]["tensors"]["0.weight"]["residual"].tolist()

    found = assert_same_models(job, min_compress_bytes="1KiB")
    assert found[0][0][3] == found[0][0][1]


def test_a_whole_training_in_a_directory(tmp_path):
    def job(worker, overlap, goes_on=False):
        model = make_model()
        optimizer = distributed(worker, model, overlap, lambda p: torch.optim.Adam(p, 0.01))
        whole = {"model": model, "optimizer": optimizer}
        if goes_on:
            bdn.load(str(tmp_path / overlap), whole, worker=worker)
        else:
            train(worker, model, optimizer, steps=3)
            bdn.save(str(tmp_path / overlap), whole, worker=worker)
        train(worker, model, optimizer, steps=3)
        return model_hash(model)

    undisturbed = assert_same_models(job)
    assert assert_same_models(lambda worker, overlap: job(worker, overlap, True)) == undisturbed


def test_synchronize_before_parameters_are_read():
    def job(worker, overlap):
        model = make_model()
        optimizer = distributed(worker, model, overlap)
        average = torch.optim.swa_utils.AveragedModel(model)
        for step in range(4):
            optimizer.zero_grad()
            loss_of(model, make_batch(worker.rank, step)).backward()
            optimizer.step()
            optimizer.synchronize()
            average.update_parameters(model)
        return model_hash(average), model_hash(copy.deepcopy(model))

    assert_same_models(job)


def test_the_last_step_is_taken_when_the_worker_leaves():
    models = {}

    def job(worker):
        models[worker.rank] = make_model(), []
        model, kept = models[worker.rank]
        kept.append(distributed(worker, model, "forward"))
        train(worker, model, kept[0], steps=2)

    run_job(job)
    expected = run_job(
        lambda worker: model_hash(train(worker, (m := make_model()), distributed(worker, m, "backward"), steps=2))
    )
    assert [model_hash(model) for model, _ in models.values()] == expected


def test_the_last_step_is_taken_though_the_optimizer_is_gone():
    def job(worker, overlap):
        model = make_model()
        train(worker, model, distributed(worker, model, overlap), steps=2)
        gc.collect()
        with torch.no_grad():
            found = model(make_batch(7)).tolist()
        gc.collect()
        hooks = len(model[0]._forward_pre_hooks)
        return found, model_hash(model), hooks

    for _, _, hooks in assert_same_models(job, workers=1):
        assert hooks == 0


def test_closing_takes_the_step_and_the_hooks():
    def job(worker, overlap):
        model = make_model()
        optimizer = distributed(worker, model, overlap)
        train(worker, model, optimizer, steps=2)
        optimizer.close()
        assert not model[0]._forward_pre_hooks and not model[0]._state_dict_pre_hooks
        weights = [p.tolist() for p in model.parameters()]
        optimizer.zero_grad()
        loss_of(model, make_batch(worker.rank)).backward()
        return weights, model[0].weight.grad.tolist()

    assert_same_models(job)
