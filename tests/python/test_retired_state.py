"""Who takes a name after another begins anew: at step 0 with empty memories at both ends. Closed and collected
owners give their memory back."""

import gc
import weakref

import pytest
import torch

import bandoneon
import bandoneon.torch as bdn
from cluster_helpers import (
    BreaksOff,
    linked,
    loss_of,
    make_batch,
    make_model,
    model_hash,
    run_job,
    sgd,
    train,
)

SETTINGS = dict(servers=2, seed=11, min_compress_bytes=1)
ONEBIT = "ef(onebit(block=32))"


def inner(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def with_error_feedback(worker, model, prefix=""):
    return sgd(worker, model, push=ONEBIT, pull=ONEBIT, prefix=prefix)


def with_momentum(worker, model, prefix=""):
    return sgd(worker, model, push=ONEBIT, momentum=0.9, prefix=prefix)


def with_warmup(worker, model, prefix=""):
    return sgd(worker, model, push="onebit(block=32)", warmup=2, prefix=prefix)


def with_schedule(worker, model, prefix=""):
    push = "none for 1; ef(topk(ratio=0.5)) for 2; ef(topk(ratio=0.1))"
    return sgd(worker, model, push=push, prefix=prefix)


def with_draws(worker, model, prefix=""):
    return sgd(worker, model, push="ef(dither(levels=4))", prefix=prefix)


def overlapping_forward(worker, model, prefix=""):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return bdn.DistributedOptimizer(
        optimizer, model, links=bdn.Links(push=ONEBIT, scaler=None, prefix=prefix), overlap="forward", worker=worker
    )


def on_servers(worker, model, prefix=""):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    options = dict(push="int8", pull="delta(int4(group=64))", prefix=prefix)
    return bdn.ServerOptimizer(optimizer, model.named_parameters(), worker=worker, **linked(**options))


def local_steps(worker, model, prefix=""):
    options = dict(tau=2, outer=bdn.algorithms.SignMomentum(), prefix=prefix)
    return bdn.LocalSteps(inner(model), model.named_parameters(), worker=worker, **linked(**options))


def cser(worker, model, prefix=""):
    options = dict(gradient=4, reset=4, period=2, prefix=prefix)
    return bdn.algorithms.CSER(inner(model), model.named_parameters(), worker=worker, **linked(**options))


def onebit_adam(worker, model, prefix=""):
    return bdn.algorithms.OneBitAdam(model, links=bdn.Links(warmup=2, prefix=prefix), worker=worker)


def lion(worker, model, prefix=""):
    return bdn.algorithms.Lion(model, links=bdn.Links(prefix=prefix), worker=worker)


def ef21(worker, model, prefix=""):
    return bdn.algorithms.EF21(inner(model), model.named_parameters(), links=bdn.Links(prefix=prefix), worker=worker)


def demo(worker, model, prefix=""):
    return bdn.algorithms.DeMo(model, links=bdn.Links(prefix=prefix), worker=worker)


KINDS = [
    with_error_feedback,
    with_momentum,
    with_warmup,
    with_schedule,
    with_draws,
    overlapping_forward,
    on_servers,
    local_steps,
    cser,
    onebit_adam,
    lion,
    ef21,
    demo,
]


def fold(worker, kind, prefix="", steps=5):
    """A training from the beginning; (the optimizer, a hash of what it came to)."""
    model = make_model()
    optimizer = kind(worker, model, prefix)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, make_batch(worker.rank, step)).backward()
        optimizer.step()
    state = model.state_dict()  # Takes a deferred step, too.
    if hasattr(optimizer, "synchronize") and kind is overlapping_forward:
        optimizer.synchronize()
    return optimizer, model_hash(model), state


@pytest.mark.parametrize("how", ["closed", "collected"])
@pytest.mark.parametrize("kind", KINDS)
def test_identical_folds_come_to_what_the_first_comes_to(kind, how):
    def job(worker):
        hashes = []
        for _ in range(3):
            optimizer, found, _ = fold(worker, kind)
            hashes.append(found)
            if how == "closed":
                optimizer.close()
            del optimizer
        return hashes

    for hashes in run_job(job, **SETTINGS):
        assert len(set(hashes)) == 1, hashes
    # And that is what it comes to in a job of its own.
    alone = run_job(lambda worker: fold(worker, kind)[1], **SETTINGS)
    assert run_job(job, **SETTINGS)[0][0] == alone[0]


def test_a_comm_state_goes_on_in_any_later_owner_of_the_names():
    def job(worker):
        def steps(model, optimizer, first, last):
            for step in range(first, last):
                optimizer.zero_grad()
                loss_of(model, make_batch(worker.rank, step)).backward()
                optimizer.step()

        whole = make_model()
        optimizer = with_error_feedback(worker, whole)
        steps(whole, optimizer, 0, 6)
        optimizer.close()

        model = make_model()
        optimizer = with_error_feedback(worker, model)
        steps(model, optimizer, 0, 3)
        saved = optimizer.comm_state_dict()
        optimizer.close()
        with_warmup(worker, make_model()).close()  # Somebody else has the names meanwhile.
        optimizer = with_error_feedback(worker, model)
        optimizer.load_comm_state_dict(saved)
        steps(model, optimizer, 3, 6)
        return model_hash(whole), model_hash(model)

    for whole, resumed in run_job(job, **SETTINGS):
        assert whole == resumed


@pytest.mark.parametrize("kind", KINDS)
def test_thirty_trials_keep_as_much_as_one(kind):
    def job(worker):
        kept = []
        for trial in range(30):
            optimizer, _, _ = fold(worker, kind, prefix=f"trial {trial}/", steps=2)
            kept.append(worker.stats()["tensors"])
            optimizer.close()
        return kept

    # Broadcasts of what is agreed on are declared once, with the first.
    for kept in run_job(job, max_tensors=40, **SETTINGS):
        assert kept[-1] == kept[1], kept


def test_an_owner_in_a_cycle_is_collected_before_its_names_are_refused():
    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model)
        optimizer.itself = optimizer
        gone = weakref.ref(optimizer)
        gc.disable()
        try:
            del optimizer
            assert gone() is not None
            optimizer = sgd(worker, model)
            assert gone() is None
        finally:
            gc.enable()
        return [worker.get_step(member.tensor) for member in optimizer._bandoneon.parameters.members]

    assert set(sum(run_job(job, workers=1), [])) == {0}


def test_a_cell_that_runs_twice_is_told_to_close_and_runs_once_it_was():
    def job(worker):
        model = make_model()

        def make():
            return sgd(worker, model)

        optimizer = make()
        loss_of(model, make_batch(worker.rank)).backward()
        optimizer.step()
        with pytest.raises(bandoneon.InvalidArgument, match=r"close\(\) that one first \(in a notebook"):
            optimizer = make()
        optimizer.close()
        optimizer = make()
        return optimizer._bandoneon.parameters.steps

    assert run_job(job) == [0, 0]


def test_one_that_is_closed_says_so():
    def job(worker):
        model = make_model()
        optimizer = local_steps(worker, model)
        optimizer.close()
        for call in (optimizer.comm_state_dict, optimizer.synchronize):
            with pytest.raises(bandoneon.FailedPrecondition, match=r"was closed.*make another one"):
                call()

    run_job(job)


def test_a_name_of_push_pull_is_not_an_optimizers():
    def job(worker):
        model = make_model()
        bdn.push_pull(torch.ones(8, 6), "0.weight", worker=worker).wait()
        with pytest.raises(bandoneon.InvalidArgument, match=r"'0.weight' is exchanged by push_pull\(\)"):
            sgd(worker, model)
        return sgd(worker, model, prefix="model/")._bandoneon.parameters.steps

    assert run_job(job) == [0, 0]


def test_what_is_collected_while_its_exchange_waits_for_others_holds_nobody_up():
    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model)
        if worker.rank == 0:  # The other's step broke off before its backward pass.
            member = optimizer._bandoneon.parameters.members[0]
            grad = torch.ones(member.shape)
            worker.push(member.tensor, grad.data_ptr(), keep=grad)
        worker.barrier()
        del optimizer
        return fold(worker, sgd_with_prefix)[1]

    alone = run_job(lambda worker: fold(worker, sgd_with_prefix)[1])
    assert run_job(job) == alone


def sgd_with_prefix(worker, model, prefix=""):
    return sgd(worker, model, prefix=prefix)


# ---- As programs do it


def test_an_optimizer_made_anew_for_each_epoch_steps_as_plain_torch_does():
    def epoch(model, number, gradients, worker=None):
        # Which nobody closes: it goes with the function.
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1 / (number + 1), momentum=0.9)
        if worker is not None:
            optimizer = bdn.DistributedOptimizer(
                optimizer, model.named_parameters(), links=bdn.Links(scaler=None), worker=worker
            )
        for step in range(3):
            optimizer.zero_grad()
            gradients(model, 3 * number + step)
            optimizer.step()

    def job(worker):
        model = make_model()
        for number in range(3):
            epoch(
                model,
                number,
                lambda model, step: loss_of(model, make_batch(worker.rank, step)).backward(),
                worker,
            )
        return model.state_dict()

    def mean_gradients(model, step):
        for rank in range(2):
            (loss_of(model, make_batch(rank, step)) / 2).backward()

    plain = make_model()
    for number in range(3):
        epoch(plain, number, mean_gradients)
    for found in run_job(job):
        for name, value in plain.state_dict().items():
            torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-7)


def test_trainings_of_one_model_one_after_the_other_come_to_the_same():
    def job(worker):
        model, hashes = make_model(), []
        for _ in range(3):
            model.load_state_dict(make_model().state_dict())
            optimizer = with_error_feedback(worker, model)
            train(worker, model, optimizer, steps=4)
            hashes.append(model_hash(model))
            optimizer.close()
        return hashes

    (alone,) = {hashes[0] for hashes in run_job(job, **SETTINGS)}
    assert run_job(job, **SETTINGS) == [[alone] * 3] * 2


@pytest.mark.parametrize("who", [0, 1])
def test_a_training_that_broke_off_in_one_worker_begins_again_in_all(who):
    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model, push=ONEBIT, pull=ONEBIT, timeout=0.2)
        loss = loss_of(model, make_batch(worker.rank))
        try:
            (BreaksOff.apply(loss) if worker.rank == who else loss).backward()
        except (RuntimeError, bandoneon.DeadlineExceeded):
            pass
        del optimizer, loss
        return fold(worker, with_error_feedback)[1]

    alone = run_job(lambda worker: fold(worker, with_error_feedback)[1], **SETTINGS)
    assert run_job(job, **SETTINGS) == alone
