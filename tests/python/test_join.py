"""Data of which the workers have unequally much."""

import copy

import pytest
import torch

import bandoneon
from cluster_helpers import (
    ONEBIT,
    assert_same,
    grads,
    loss_of,
    make_batch,
    make_model,
    model_hash,
    run_job,
    sgd,
)
from test_processes import run_processes


def loop(worker, model, optimizer, batches, before_step=lambda step: None):
    """The steps of a worker with that many batches."""
    for step in range(batches):
        optimizer.zero_grad()
        loss_of(model, make_batch(worker.rank, step)).backward()
        before_step(step)
        optimizer.step()


def plainly(counts, lr=0.1, momentum=0.0):
    """The model that the means over all workers give, where who has no batch adds nothing."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    for step in range(max(counts)):
        present = [rank for rank, count in enumerate(counts) if step < count]
        per_rank = []
        for rank in present:
            own = copy.deepcopy(model)
            own.zero_grad()
            loss_of(own, make_batch(rank, step)).backward()
            per_rank.append(grads(own))
        for name, param in model.named_parameters():
            param.grad = sum(g[name] for g in per_rank) / len(counts)
        optimizer.step()
    return dict(model.named_parameters())


@pytest.mark.parametrize("counts", [(3, 5), (5, 3), (4, 4), (0, 2), (0, 0), (2, 7, 4)])
def test_who_runs_out_takes_the_others_steps(counts):
    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model, inner_momentum=0.9)
        with optimizer.join():
            loop(worker, model, optimizer, counts[worker.rank])
        with optimizer.join():  # The next epoch.
            loop(worker, model, optimizer, 0)
        return model_hash(model), dict(model.named_parameters())

    found = run_job(job, workers=len(counts))
    assert len({digest for digest, _ in found}) == 1
    assert_same(found[0][1], plainly(counts, momentum=0.9), rtol=1e-5, atol=1e-6)


def test_two_workers_get_the_bits_of_the_means():
    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model)
        with optimizer.join():
            loop(worker, model, optimizer, 2 + 3 * worker.rank)
        return dict(model.named_parameters())

    for found in run_job(job):
        assert_same(found, plainly((2, 5)))


@pytest.mark.parametrize("how", [dict(), dict(backward_passes_per_step=2), dict(overlap=False)])
def test_compressed_links_stay_the_same_in_all_workers(how):
    def job(worker):
        model = make_model(width=600)
        optimizer = sgd(worker, model, **ONEBIT, **how)
        with optimizer.join():
            for step in range(4 + 3 * worker.rank):
                loss_of(model, make_batch(worker.rank, step, width=600)).backward()
                if how.get("backward_passes_per_step") and step % 2 == 0:
                    continue
                optimizer.step()
                optimizer.zero_grad()
        return model_hash(model)

    first, second = run_job(job, min_compress_bytes="1KiB")
    assert first == second


def test_what_the_loop_does_after_the_step_is_done_for_who_has_run_out():
    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

        def step():
            optimizer.step()
            scheduler.step()

        with optimizer.join(step):
            for number in range(2 + worker.rank):
                optimizer.zero_grad()
                loss_of(model, make_batch(worker.rank, number)).backward()
                step()
        return model_hash(model), scheduler.get_last_lr()

    first, second = run_job(job)
    assert first == second and first[1] == [pytest.approx(0.1 / 8)]


def test_a_scaler_skips_its_step_everywhere():
    def job(worker):
        model = make_model(width=600)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)
        optimizer = sgd(worker, model, scaler=scaler, **ONEBIT)

        def step():
            scaler.step(optimizer)
            scaler.update()

        with optimizer.join(step):
            for number in range(2 + 3 * worker.rank):
                optimizer.zero_grad()
                batch = make_batch(worker.rank, number, width=600)
                if number == 3:
                    batch[0, 0] = float("inf")
                scaler.scale(loss_of(model, batch)).backward()
                step()
        return model_hash(model), scaler.get_scale(), all(p.isfinite().all() for p in model.parameters())

    first, second = run_job(job)
    assert first == second and first[2]
    assert first[1] == 4.0  # Doubled after two steps, halved at the fourth.


def test_replicas_that_came_apart_are_an_error_that_says_why():
    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model)
        # In worker 0 it is worker 1's that differ.
        message = r"join\(step=\)" if worker.rank == 0 else r"'0.weight' is not the same.*join\(step=\)"
        with pytest.raises(bandoneon.FailedPrecondition, match=message):
            with optimizer.join():
                for number in range(2 + 2 * worker.rank):
                    loop(worker, model, optimizer, 1)
                    with torch.no_grad():
                        model[0].weight.clamp_(-0.1, 0.1)  # Which worker 0 does only twice.

    run_job(job)


def test_a_learning_rate_that_only_some_workers_change_is_refused():
    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        with pytest.raises(bandoneon.InvalidArgument, match=r"learning rate.*scheduler, too, give join\(step=\)"):
            with optimizer.join():
                for number in range(2 + 2 * worker.rank):
                    loop(worker, model, optimizer, 1)
                    scheduler.step()

    run_job(job)


def test_a_scheduler_in_the_loop_that_step_has_too_is_stepped_by_all():
    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

        def step():
            optimizer.step()
            scheduler.step()

        with optimizer.join(step=step):
            for number in range(2 + 2 * worker.rank):
                optimizer.zero_grad()
                loss_of(model, make_batch(worker.rank, number)).backward()
                step()
        return model_hash(model), scheduler.get_last_lr()

    first, second = run_job(job)
    assert first == second and first[1] == [0.1 * 0.5**4]


def test_a_join_inside_a_join_is_refused():
    def job(worker):
        first = sgd(worker, make_model())
        second = sgd(worker, make_model(), prefix="second/")
        with first.join():
            with pytest.raises(bandoneon.Unimplemented, match="one optimizer all parameters"):
                with second.join():
                    pass
        with second.join():
            pass

    run_job(job)


def test_an_error_in_the_loop_comes_out_as_it_is():
    def job(worker):
        optimizer = sgd(worker, make_model())
        with pytest.raises(ValueError, match="of the loop"):
            with optimizer.join():
                raise ValueError("of the loop")
        with optimizer.join():
            pass

    run_job(job)


@pytest.mark.parametrize("counts", ["3,6", "5,2"])
def test_over_processes_the_optimizer_and_the_hook_are_ddps_join_over_gloo(tmp_path, counts):
    first, second = run_processes(tmp_path, "joins", counts)
    assert first == second and len(set(first.values())) == 1 and len(first) == 3
