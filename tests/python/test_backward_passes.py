"""backward_passes_per_step: passes that add up here, and one exchange of their sum."""

import warnings

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import bandoneon
from cluster_helpers import (
    ONEBIT,
    BreaksOff,
    assert_same,
    grads,
    loss_of,
    make_batch,
    make_model,
    mean_grads,
    model_hash,
    run_job,
    sgd,
)


def passes(worker, model, count, first=0, loss=loss_of):
    for number in range(first, first + count):
        loss(model, make_batch(worker.rank, number)).backward()


def local_sum(model, rank, numbers):
    for number in numbers:
        loss_of(model, make_batch(rank, number)).backward()
    return grads(model)


def mean_of_sums(numbers):
    sums = [local_sum(make_model(), rank, numbers) for rank in range(2)]
    return {name: (sums[0][name] + sums[1][name]) / 2 for name in sums[0]}



@pytest.mark.parametrize("overlap", [True, False])
def test_the_nth_pass_exchanges_the_sum_and_those_before_it_nothing(overlap):
    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model, lr=0.0, backward_passes_per_step=3, overlap=overlap)
        for step in range(3):
            optimizer.zero_grad()
            before = worker.stats()["bytes_pushed"]
            numbers = range(3 * step, 3 * step + 3)
            passes(worker, model, 2, first=numbers[0])
            assert_same(grads(model), local_sum(make_model(), worker.rank, numbers[:2]))
            assert worker.stats()["bytes_pushed"] == before
            passes(worker, model, 1, first=numbers[2])
            assert_same(grads(model), mean_of_sums(numbers))
            optimizer.step()
            assert_same(grads(model), mean_of_sums(numbers))
        return True

    assert run_job(job) == [True, True]


def test_it_is_no_sync_around_all_but_the_last():
    def train(worker, by_hand):
        model = make_model(width=600)
        how = {} if by_hand else dict(backward_passes_per_step=2)
        optimizer = sgd(worker, model, **ONEBIT, **how)
        for step in range(4):
            optimizer.zero_grad()
            for last in (False, True):
                loss = loss_of(model, make_batch(worker.rank, 2 * step + last, width=600)) / 2
                if by_hand and not last:
                    with optimizer.no_sync():
                        loss.backward()
                else:
                    loss.backward()
            optimizer.step()
        return model_hash(model)

    options = {"min_compress_bytes": "1KiB"}
    by_hand = run_job(lambda worker: train(worker, True), **options)
    assert run_job(lambda worker: train(worker, False), **options) == by_hand
    assert by_hand[0] == by_hand[1]


@pytest.mark.parametrize("counts", [(1, 1), (2, 3), (1, 3)])
def test_a_step_that_comes_early_exchanges_what_there_is(counts):
    """As at the end of an epoch; the workers need not have made equally many passes."""

    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model, backward_passes_per_step=3)
        passes(worker, model, counts[worker.rank])
        optimizer.step()
        result = grads(model)
        optimizer.zero_grad()
        passes(worker, model, 3)  # Begins to count afresh.
        return result, model_hash(model), grads(model)

    first, second = run_job(job)
    sums = [local_sum(make_model(), rank, range(counts[rank])) for rank in range(2)]
    assert_same(first[0], {name: (sums[0][name] + sums[1][name]) / 2 for name in sums[0]})
    assert first[1] == second[1]
    assert_same(first[2], second[2])


def test_synchronize_ends_a_round_that_lacks_passes_before_clipping():
    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model, backward_passes_per_step=2)
        passes(worker, model, 1)
        optimizer.synchronize()
        result = grads(model)
        optimizer.synchronize()
        optimizer.step()
        assert_same(grads(model), result)  # Nothing was exchanged twice.
        return result

    for result in run_job(job):
        assert_same(result, mean_grads(make_model()))


def test_zero_grad_begins_to_count_afresh():
    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model, backward_passes_per_step=2)
        passes(worker, model, 1, first=7)
        optimizer.zero_grad()
        passes(worker, model, 2)
        return grads(model)

    for result in run_job(job):
        assert_same(result, mean_of_sums(range(2)))


def test_reentrant_checkpoints_do_not_count_as_passes():
    def job(worker):
        model = make_model()
        sgd_ = sgd(worker, model, backward_passes_per_step=2)

        def loss(model, batch):
            x = checkpoint(model[:2], batch.requires_grad_(), use_reentrant=True)
            return checkpoint(model[2:], x, use_reentrant=True).square().mean()

        passes(worker, model, 2, loss=loss)
        result = grads(model)
        sgd_.step()
        return result

    for result in run_job(job):
        assert_same(result, mean_of_sums(range(2)))


def test_a_parameter_that_only_an_earlier_pass_reached_is_exchanged():
    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model, backward_passes_per_step=2)
        loss_of(model, make_batch(worker.rank)).backward()
        expected = mean_grads(make_model())
        model[4](torch.ones(1, 8)).sum().backward()
        result = grads(model)
        optimizer.step()
        assert torch.equal(result["0.weight"], expected["0.weight"])
        assert not torch.equal(result["4.bias"], expected["4.bias"])
        return model_hash(model)

    first, second = run_job(job)
    assert first == second


def test_a_pass_that_broke_off_does_not_count():
    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model, backward_passes_per_step=2)
        batch = make_batch(worker.rank)
        with pytest.raises(RuntimeError, match="broke off"):
            model[2:](BreaksOff.apply(model[:2](batch))).square().mean().backward()
        optimizer.zero_grad()
        passes(worker, model, 2)
        return grads(model)

    for result in run_job(job):
        assert_same(result, mean_of_sums(range(2)))


def test_an_early_step_after_unscaling_is_refused():
    def job(worker):
        model = make_model(width=600)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        optimizer = sgd(worker, model, backward_passes_per_step=2, scaler=scaler, **ONEBIT)

        def early(synchronize):
            scaler.scale(loss_of(model, make_batch(worker.rank, width=600))).backward()
            if synchronize:
                optimizer.synchronize()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

        early(synchronize=True)
        with pytest.raises(bandoneon.FailedPrecondition, match="1 of 2 backward passes.*synchronize"):
            early(synchronize=False)
        return model_hash(model)

    first, second = run_job(job)
    assert first == second


@pytest.mark.parametrize("count", [0, -1, 1.5])
def test_it_must_be_a_whole_number_of_passes(count):
    def job(worker):
        with pytest.raises(bandoneon.InvalidArgument, match="backward_passes_per_step"):
            sgd(worker, make_model(), backward_passes_per_step=count)

    run_job(job)


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("how", ["clipped", "replaced", "synchronized and clipped", "left alone"])
def test_what_clips_the_sum_of_fewer_passes_before_its_exchange_is_warned_of(how, count):
    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model, backward_passes_per_step=3)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            for step in range(2):
                optimizer.zero_grad()
                passes(worker, model, count)
                if how == "synchronized and clipped":
                    optimizer.synchronize()
                if how == "replaced":
                    for param in model.parameters():
                        param.grad = param.grad.clamp(-1e-3, 1e-3)
                elif how != "left alone":
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
                optimizer.step()
        return [str(one.message) for one in seen if "backward_passes_per_step=3" in str(one.message)]

    (messages,) = run_job(job, workers=1)
    assert len(messages) == (count == 2 and how in ("clipped", "replaced"))
    assert all("gradients were changed" in message and "after 2 of" in message for message in messages)
