"""Workers whose programs have come apart: the first round of different steps fails in all, and no worker steps on a
mean over different steps. The right values are plain torch's."""

import gc
import threading

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import bandoneon
import bandoneon.torch as bdn
from test_processes import run_processes
from cluster_helpers import linked, loss_of, make_batch, make_model, mean_grads, recorded_pushes, run_job, sgd, train

AT = 2  # The step at which one rank does what the other does not.


def plain_torch(steps):
    """The weights after so many steps on the means of both ranks' gradients."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        means = mean_grads(model, step=step)
        for name, param in model.named_parameters():
            param.grad = means[name]
        optimizer.step()
    return model.state_dict()


def assert_weights(model, steps):
    for name, value in plain_torch(steps).items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-5, atol=1e-6)


def said(error):
    """What all ranks must have heard, whoever found it."""
    return "steps of its program" in str(error) and "backward()" in str(error)


def goes_apart(worker, model, forward, optimizer, misdeed, culprit=0):
    """Trains until the error; the number of steps that this rank has ended."""
    for step in range(5):
        is_culprit = worker.rank == culprit and step == AT
        optimizer.zero_grad()
        if is_culprit and misdeed == "a backward pass more":
            loss_of(forward, make_batch(worker.rank, step)).backward()
            optimizer.zero_grad()
        try:
            loss_of(forward, make_batch(worker.rank, step)).backward()
            if is_culprit and misdeed == "a step left out":
                continue
            optimizer.step()
        except bandoneon.BandoneonError as error:
            assert said(error), error
            return step if step <= AT or worker.rank != culprit else step - 1
    raise AssertionError("the ranks went apart, and nobody said so")


MISDEEDS = ["a backward pass more", "a step left out"]


@pytest.mark.parametrize("misdeed", MISDEEDS)
@pytest.mark.parametrize("overlap", [False, "backward"])
@pytest.mark.parametrize("culprit", [0, 1])
def test_gradients_of_different_steps_are_not_averaged(misdeed, overlap, culprit):
    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model, overlap=overlap)
        steps = goes_apart(worker, model, model, optimizer, misdeed, culprit)
        assert_weights(model, steps)
        return steps

    ended = run_job(job)
    assert ended[1 - culprit] == AT + 1 and ended[culprit] == AT


def test_a_program_that_catches_the_error_and_ends_has_failed():
    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model)
        goes_apart(worker, model, model, optimizer, "a step left out")
        with pytest.raises(bandoneon.FailedPrecondition, match="the replicas may differ.*steps of its program"):
            worker.check_last_rounds()

    run_job(job)


@pytest.mark.parametrize("how", ["DistributedOptimizer", "ServerOptimizer"])
@pytest.mark.parametrize("then", ["keeps the optimizer", "drops it", "closes it"])
def test_a_program_that_catches_the_error_of_an_exchange_whose_other_worker_has_left_has_failed(how, then):
    def job(worker):
        model = make_model()
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = getattr(bdn, how)(inner, model.named_parameters(), worker=worker)
        train(worker, model, optimizer, steps=1)
        if worker.rank == 1:
            worker.check_last_rounds()
            return
        with pytest.raises(bandoneon.JobFailed, match="worker 1 is leaving the job"):
            train(worker, model, optimizer, steps=1)
        if then == "closes it":
            optimizer.close()
            worker.check_last_rounds()
            return
        if then == "drops it":
            inner = optimizer = None
            gc.collect()
        with pytest.raises(bandoneon.FailedPrecondition, match="although its last exchange.*worker 1 is leaving"):
            worker.check_last_rounds()

    run_job(job)


def test_a_step_of_another_optimizer_makes_up_for_one_that_is_gone():
    class Owner:
        pass

    def job(worker):
        owner = Owner()
        worker.note_failed_round(owner, bandoneon.FailedPrecondition("it failed"))
        worker.end_step()
        with pytest.raises(bandoneon.FailedPrecondition, match="although its last exchange.*it failed"):
            worker.check_last_rounds()  # The owner could still exchange, and has not.
        owner = None
        gc.collect()
        worker.check_last_rounds()

    run_job(job, workers=1)


def test_closing_the_optimizer_forgets_its_failed_round():
    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model)
        goes_apart(worker, model, model, optimizer, "a step left out")
        optimizer.close()
        worker.check_last_rounds()

    run_job(job)


@pytest.mark.parametrize("misdeed", MISDEEDS)
def test_nor_are_they_where_steps_are_deferred_to_the_forward_pass(misdeed):
    found = {}

    def job(worker):
        model = make_model()
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = bdn.DistributedOptimizer(inner, model, overlap="forward", worker=worker, links=bdn.Links(scaler=None))
        steps = goes_apart(worker, model, model, optimizer, misdeed)
        found[worker.rank] = steps, [p.detach().clone() for p in model.parameters()]

    with pytest.raises(bandoneon.BandoneonError) as error:  # Which leaving, too, meets.
        run_job(job)
    assert said(error.value)
    # A deferred step may not have been taken when the error came, but what was taken is right.
    for steps, params in found.values():
        new, old = (list(plain_torch(n).values()) for n in (steps, steps - 1))
        for param, *either in zip(params, new, old):
            assert any(torch.allclose(param, value, atol=1e-6) for value in either)
    assert sorted(found) == [0, 1]


@pytest.fixture
def group_of_one(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


building = threading.Lock()


def wrap(worker, model):
    with building:
        wrapped = DistributedDataParallel(model, bucket_cap_mb=0.0001)
    state = bdn.DDPState(model.named_parameters(), worker=worker, links=bdn.Links(scaler=None))
    wrapped.register_comm_hook(state, bdn.ddp_hook)
    return wrapped


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("misdeed", MISDEEDS)
def test_ddps_hook_finds_it_by_the_steps_of_torchs_optimizers(misdeed, group_of_one, monkeypatch):
    monkeypatch.setattr(DistributedDataParallel, "_active_ddp_module", None)

    def job(worker):
        model = make_model()
        wrapped = wrap(worker, model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        steps = goes_apart(worker, model, wrapped, optimizer, misdeed)
        assert_weights(model, steps)
        return steps

    assert run_job(job) == [AT, AT + 1]


def test_workers_that_meet_at_other_steps_of_theirs_do_not_meet():
    def job(worker):
        model = make_model()
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        named = model.named_parameters()
        optimizer = bdn.LocalSteps(inner, named, tau=3, outer=bdn.algorithms.Average(), worker=worker)
        with pytest.raises(bandoneon.BandoneonError) as found:
            for step in range(7):
                optimizer.zero_grad()
                loss_of(model, make_batch(worker.rank, step)).backward()
                optimizer.step()
                if worker.rank == 1 and step == 3:
                    optimizer.synchronize()  # The others do not.
        assert said(found.value) and "rank 0" in str(found.value) and "rank 1" in str(found.value)
        assert "vote on rounds" in str(found.value) and "after 4" in str(found.value) and "after 6" in str(found.value)

    run_job(job)


def test_models_are_not_averaged_that_are_of_different_steps():
    def job(worker):
        model = make_model()
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = bdn.algorithms.CSER(inner, model.named_parameters(), gradient=None, reset="none", period=9, worker=worker)
        with optimizer.averaged_weights():
            pass
        with pytest.raises(bandoneon.BandoneonError) as found:
            for step in range(3):
                loss_of(model, make_batch(worker.rank, step)).backward()
                if worker.rank == 1 and step == 1:
                    optimizer.averaged_weights()
                optimizer.step()
            optimizer.averaged_weights()
        assert said(found.value) and "after 1" in str(found.value) and "after 3" in str(found.value)

    run_job(job)


def test_a_push_pull_more_on_one_rank_is_found_by_the_steps_between():
    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model)
        handles = []
        for step in range(4):
            optimizer.zero_grad()
            loss_of(model, make_batch(worker.rank, step)).backward()
            optimizer.step()
            for _ in range(2 if worker.rank == 1 and step == AT else 1):
                handles.append((step, bdn.push_pull(torch.tensor([float(step)]), "loss", worker=worker)))
        with pytest.raises(bandoneon.BandoneonError) as found:
            for step, handle in handles:
                assert handle.wait(60).item() == step, "a mean over different steps"
        assert said(found.value) and "'loss'" in str(found.value) and "after 3" in str(found.value)
        return step

    assert run_job(job) == [AT + 1, AT]  # Of rank 1's two, the second.


# ---- Processes


@pytest.mark.parametrize(
    "kind, workers, hosts",
    [("group", 2, 0), ("group", 4, 0), ("backward", 2, 1), ("backward", 4, 2), ("LocalSteps", 2, 1)],
)
def test_the_processes_of_a_host_are_compared_before_they_are_summed(kind, workers, hosts, tmp_path):
    for found in run_processes(
        tmp_path, "goes_apart", kind, "a backward pass more", workers=workers, servers=1, hosts=hosts, code=1
    ):
        assert said(found["said"]), found
        assert f"rank {workers - 1}" in found["said"], "the culprit, or who was compared with it"


# ---- What workers may do differently, or all together


def counts_of(worker):
    return recorded_pushes(worker, lambda push: push.program_steps)


def accumulates(worker, model):
    optimizer = sgd(worker, model)
    for step in range(3):
        optimizer.zero_grad()
        for part in range(2 if step != 1 else 3):
            loss_of(model, make_batch(worker.rank, 10 * step + part)).backward()
        optimizer.step()


def accumulates_unequally_without_sync(worker, model):
    optimizer = sgd(worker, model)
    for step in range(3):
        optimizer.zero_grad()
        with optimizer.no_sync():
            for part in range(worker.rank + step):
                loss_of(model, make_batch(worker.rank, 10 * step + part)).backward()
        loss_of(model, make_batch(worker.rank, step)).backward()
        optimizer.step()


def counts_passes(worker, model):
    optimizer = sgd(worker, model, backward_passes_per_step=2)
    for step in range(6):
        loss_of(model, make_batch(worker.rank, step)).backward()
        if step % 2:
            optimizer.step()
            optimizer.zero_grad()


def has_two_optimizers(worker, model):
    other = make_model(seed=1)
    first, second = sgd(worker, model), sgd(worker, other, prefix="other/")
    for step in range(6):
        for one, optimizer in ((model, first), (other, second)):
            if optimizer is second and step % 3:
                continue
            optimizer.zero_grad()
            loss_of(one, make_batch(worker.rank, step)).backward()
            optimizer.step()


def joins(worker, model):
    optimizer = sgd(worker, model)
    for epoch in range(2):
        with optimizer.join():
            for step in range(2 + worker.rank + epoch):
                optimizer.zero_grad()
                loss_of(model, make_batch(worker.rank, step)).backward()
                optimizer.step()
    loss = bdn.push_pull(torch.ones(1), "after", worker=worker)
    assert loss.wait().item() == 1


def skips_together(worker, model):
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    optimizer = sgd(worker, model, scaler=scaler)
    for step in range(5):
        optimizer.zero_grad()
        batch = make_batch(worker.rank, step)
        if step == 2 and worker.rank == 1:
            batch[0, 0] = float("inf")
        scaler.scale(loss_of(model, batch)).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 2.0


def takes_closures_and_schedules(worker, model):
    optimizer = sgd(worker, model)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for step in range(3):

        def closure():
            optimizer.zero_grad()
            loss = loss_of(model, make_batch(worker.rank, step))
            loss.backward()
            return loss

        optimizer.step(closure)
        scheduler.step()


def steps_without_gradients(worker, model):
    optimizer = sgd(worker, model)
    for step in range(4):
        optimizer.zero_grad()
        if step % 2 == worker.rank:
            loss_of(model, make_batch(worker.rank, step)).backward()
        optimizer.step()


def goes_on_from_a_state(worker, model):
    optimizer = sgd(worker, model, push="ef(onebit)", pull="ef(onebit)")
    for step in range(2):
        loss_of(model, make_batch(worker.rank, step)).backward()
        optimizer.step()
    optimizer.load_comm_state_dict(optimizer.comm_state_dict())
    optimizer.close()
    again = sgd(worker, model, push="ef(onebit)", pull="ef(onebit)", prefix="again/")
    again.resume_at(7)
    for step in range(2):
        loss_of(model, make_batch(worker.rank, step)).backward()
        again.step()


def meets_by_qsr(worker, model):
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    tau = bdn.algorithms.QSR(alpha=0.15, least=2, most=6)
    optimizer = bdn.LocalSteps(inner, model.named_parameters(), tau=tau, outer=bdn.algorithms.Average(), worker=worker)
    for step in range(8):
        optimizer.param_groups[0]["lr"] = 0.1 if step < 4 else 0.07
        loss_of(model, make_batch(worker.rank, step)).backward()
        optimizer.step()
    optimizer.synchronize()


def pushes_from_another_thread(worker, model):
    optimizer = sgd(worker, model)
    means = []

    def measure():
        for value in range(6):
            means.append(bdn.push_pull(torch.tensor([float(value)]), "load", worker=worker).wait().item())

    thread = threading.Thread(target=measure)
    for step in range(4):
        if step == 2 * worker.rank:  # At other steps of theirs.
            thread.start()
        optimizer.zero_grad()
        loss_of(model, make_batch(worker.rank, step)).backward()
        optimizer.step()
    thread.join()
    assert means == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


LAWFUL = [
    accumulates,
    accumulates_unequally_without_sync,
    counts_passes,
    has_two_optimizers,
    joins,
    skips_together,
    takes_closures_and_schedules,
    steps_without_gradients,
    goes_on_from_a_state,
    meets_by_qsr,
    pushes_from_another_thread,
]


@pytest.mark.parametrize("train", LAWFUL)
def test_what_is_no_error(train):
    def job(worker):
        with counts_of(worker) as batches:
            train(worker, make_model())
        return sorted({count for batch in batches for count in batch})

    first, second = run_job(job)
    assert first == second and len(first) > 1, "each worker has said the same counts"


# ---- A GradScaler


def around(kind, **options):
    def make(worker, model):
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        return kind(inner, model.named_parameters(), worker=worker, **linked(**options))

    return make


def of_parameters(kind, **options):
    return lambda worker, model: kind(model.named_parameters(), worker=worker, **linked(**options))


CANNOT_SKIP = {
    "ServerOptimizer": around(bdn.ServerOptimizer),
    "LocalSteps": around(bdn.LocalSteps, tau=2, outer=bdn.algorithms.Average()),
    "CSER": around(bdn.algorithms.CSER, gradient=4, reset=2),
    "EF21": around(bdn.algorithms.EF21),
    "KFAC": lambda worker, model: bdn.algorithms.KFAC(
        model, torch.optim.SGD(model.parameters(), lr=0.1), worker=worker),
    "OneBitAdam": of_parameters(bdn.algorithms.OneBitAdam, warmup=1),
    "Lion": of_parameters(bdn.algorithms.Lion),
    "DeMo": of_parameters(bdn.algorithms.DeMo),
}


@pytest.mark.parametrize("name", CANNOT_SKIP)
def test_a_scaler_beside_what_cannot_skip_is_refused_at_the_first_step(name):
    def job(worker):
        model = make_model()
        optimizer = CANNOT_SKIP[name](worker, model)
        before = [p.detach().clone() for p in model.parameters()]
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(loss_of(model, make_batch(worker.rank))).backward()
        scaler.unscale_(optimizer)
        with pytest.raises(bandoneon.Unimplemented, match=rf"{name} cannot leave it out.*bfloat16"):
            scaler.step(optimizer)
        assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before))
        # One that does nothing is none, and others may ask what GradScaler asks.
        assert not optimizer._step_supports_amp_scaling
        torch.amp.GradScaler("cpu", enabled=False).step(optimizer)

    run_job(job)
