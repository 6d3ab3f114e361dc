import gc
import io
import logging
import pickle
import threading
import warnings
import weakref

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.nn.parallel import DistributedDataParallel

import bandoneon
import bandoneon.torch as bdn
from bandoneon.torch.app_state import AppState
from cluster_helpers import (
    assert_same,
    grads,
    linked,
    make_batch,
    make_model,
    mean_grads,
    model_hash,
    run_job,
    sgd,
    train,
)

ONEBIT = "ef(onebit(block=256))"
building = threading.Lock()


@pytest.fixture(autouse=True)
def no_module_left_active(monkeypatch):
    """DDP notes the module in forward in one variable of the process and puts back what was there before:
    two ranks on threads of one process can leave each other's module there, which torch.compile would
    take for its own in a later test."""
    monkeypatch.setattr(DistributedDataParallel, "_active_ddp_module", None)


@pytest.fixture(autouse=True)
def group_of_one(tmp_path):
    """Each thread's DDP believes to be alone, so that all that is exchanged goes through the hook."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def wrap(worker, model, **options):
    with building:
        wrapped = DistributedDataParallel(model, bucket_cap_mb=0.0001)
    state = bdn.DDPState(model.named_parameters(), worker=worker, **linked(**{"scaler": None, **options}))
    wrapped.register_comm_hook(state, bdn.ddp_hook)
    return wrapped, state


def train_ddp(worker, wrapped, steps, width=6):
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.05)
    for step in steps:
        optimizer.zero_grad()
        wrapped(make_batch(worker.rank, step, width=width)).square().mean().backward()
        optimizer.step()


def test_backward_returns_with_the_mean_gradients_though_buckets_are_rebuilt():
    def job(worker):
        model = make_model()
        wrapped, _ = wrap(worker, model)
        for step in range(4):
            wrapped.zero_grad()
            wrapped(make_batch(worker.rank, step)).square().mean().backward()
            assert_same(grads(model), mean_grads(model, step=step))

    run_job(job)


@pytest.mark.parametrize(
    "options", [dict(push="none", pull="none"), dict(push=ONEBIT, pull=ONEBIT, momentum=0.9)]
)
def test_equals_the_distributed_optimizer(options):
    def by_hook(worker):
        model = make_model(width=4096)
        wrapped, _ = wrap(worker, model, **options)
        train_ddp(worker, wrapped, range(5), width=4096)
        return model_hash(model)

    def by_optimizer(worker):
        model = make_model(width=4096)
        optimizer = sgd(worker, model, lr=0.05, **options)
        for step in range(5):
            optimizer.zero_grad()
            model(make_batch(worker.rank, step, width=4096)).square().mean().backward()
            optimizer.step()
        return model_hash(model)

    assert len(set(run_job(by_hook) + run_job(by_optimizer))) == 1


def test_muon_steps_on_its_means():
    def train_by(optimizer, worker, model):
        for step in range(5):
            optimizer.zero_grad()
            model(make_batch(worker.rank, step)).square().mean().backward()
            optimizer.step()

    def by_hook(worker):
        model = make_model()
        wrapped, _ = wrap(worker, model)
        train_by(bdn.algorithms.Muon(wrapped.parameters(), lr=0.05), worker, wrapped)
        return model_hash(model)

    def by_optimizer(worker):
        model = make_model()
        inner = bdn.algorithms.Muon(model.parameters(), lr=0.05)
        options = dict(worker=worker, links=bdn.Links(scaler=None))
        train_by(bdn.DistributedOptimizer(inner, model.named_parameters(), **options), worker, model)
        return model_hash(model)

    digests = set(run_job(by_hook) + run_job(by_optimizer))
    assert len(digests) == 1 and digests != {model_hash(make_model())}


def test_no_sync_is_ddps():
    def job(worker):
        model = make_model()
        wrapped, state = wrap(worker, model)
        with wrapped.no_sync():
            wrapped(make_batch(worker.rank, 0)).square().mean().backward()
        assert state.comm_state_dict()["tensors"]["0.weight"]["step"] == 0
        wrapped(make_batch(worker.rank, 1)).square().mean().backward()
        return grads(model)

    first, second = run_job(job)
    assert_same(first, second)


def test_errors_come_out_of_backward_as_our_exceptions():
    def job(worker):
        model = make_model()
        wrapped, _ = wrap(worker, model)
        train_ddp(worker, wrapped, range(2))
        worker.barrier("trained")
        if worker.rank == 1:
            worker.abort_job("gave up")
            return None
        with pytest.raises(bandoneon.BandoneonError, match="gave up") as raised:
            train_ddp(worker, wrapped, range(2))
        assert raised.value.code
        return "raised"

    results = []

    def wrapped_job(worker):
        results.append(job(worker))

    with pytest.raises(bandoneon.BandoneonError):
        run_job(wrapped_job)
    assert "raised" in results


def test_a_parameter_it_was_not_given_is_an_error():
    def job(worker):
        model = make_model()
        with building:
            wrapped = DistributedDataParallel(model)
        names = [(n, p) for n, p in model.named_parameters() if n != "2.bias"]
        wrapped.register_comm_hook(bdn.DDPState(names, worker=worker), bdn.ddp_hook)
        with pytest.raises(bandoneon.InvalidArgument, match=r"shape \[8\]"):
            wrapped(make_batch(worker.rank)).square().mean().backward()

    run_job(job)


def test_a_sparse_gradient_is_named_in_place_of_a_wait_for_ever():
    def job(worker):
        model = torch.nn.Sequential(torch.nn.Embedding(10, 3, sparse=True), torch.nn.Linear(3, 2))
        for param in model.parameters():
            torch.nn.init.ones_(param)
        wrapped, _ = wrap(worker, model)
        with pytest.raises(bandoneon.InvalidArgument, match="the gradient of '0.weight' is sparse.*sparse=False"):
            wrapped(torch.tensor([1, 2])).sum().backward()

    run_job(job)


def test_a_model_whose_backward_has_failed_is_freed():
    def job(worker):
        model = make_model()
        with building:
            wrapped = DistributedDataParallel(model)
        state = bdn.DDPState(list(model.named_parameters())[:-1], worker=worker, links=bdn.Links(scaler=None))
        wrapped.register_comm_hook(state, bdn.ddp_hook)
        with pytest.raises(bandoneon.InvalidArgument, match=r"shape \[3\]"):
            wrapped(make_batch(worker.rank)).square().mean().backward()
        return weakref.ref(model[0].weight), weakref.ref(state)

    references = run_job(job)
    DistributedDataParallel._active_ddp_module = None  # See no_module_left_active.
    gc.collect()
    assert all(reference() is None for pair in references for reference in pair)


@pytest.mark.parametrize("options", [dict(push=ONEBIT, pull=ONEBIT, momentum=0.9), dict(push="onebit", warmup=2)])
def test_identical_folds_come_to_what_the_first_comes_to(options):
    def fold(worker):
        model = make_model()
        wrapped, state = wrap(worker, model, **options)
        train_ddp(worker, wrapped, range(5))
        state.close()
        return model_hash(model)

    folds = run_job(lambda worker: [fold(worker) for _ in range(3)])
    assert {*folds[0], *folds[1], *run_job(fold)} == {folds[0][0]}


def test_a_hook_registered_without_its_state_is_an_error():
    with building:
        wrapped = DistributedDataParallel(make_model())
    wrapped.register_comm_hook(None, bdn.ddp_hook)
    with pytest.raises(bandoneon.InvalidArgument, match="None in place of a DDPState"):
        wrapped(make_batch(0)).square().mean().backward()


@pytest.mark.parametrize("registers", [True, False])
def test_a_state_whose_hook_never_ran_is_warned_of_once(registers):
    def job(worker):
        model = make_model()
        state = bdn.DDPState(model.named_parameters(), worker=worker, links=bdn.Links(scaler=None))
        with building:
            wrapped = DistributedDataParallel(model)
        if registers:
            wrapped.register_comm_hook(state, bdn.ddp_hook)
        with wrapped.no_sync():
            wrapped(make_batch(0)).square().mean().backward()
        for _ in range(3):
            wrapped(make_batch(0)).square().mean().backward()
            wrapped.zero_grad()
        return state

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run_job(job, workers=1)
    found = [w for w in caught if "hook has never run" in str(w.message)]
    assert len(found) == (0 if registers else 1)


def test_an_optimizer_that_exchanges_besides_ddp_is_warned_of():
    def job(worker):
        model = make_model()
        with building:
            wrapped = DistributedDataParallel(model)
        optimizer = sgd(worker, model)
        wrapped(make_batch(worker.rank)).square().mean().backward()
        with pytest.warns(RuntimeWarning, match="exchanged twice"):
            optimizer.step()
        optimizer.close()

    run_job(job, workers=1)


def outer(cls, **options):
    return lambda model, worker: cls(
        torch.optim.SGD(model.parameters(), lr=0.1), list(model.named_parameters()), worker=worker, **linked(**options)
    )


def alone(cls, **options):
    return lambda model, worker: cls(model.named_parameters(), worker=worker, **linked(**options))


BESIDES = {
    "DistributedOptimizer": outer(bdn.DistributedOptimizer, scaler=None),
    "ServerOptimizer": outer(bdn.ServerOptimizer),
    "EF21": outer(bdn.algorithms.EF21),
    "KFAC": lambda model, worker: bdn.algorithms.KFAC(
        model, torch.optim.SGD(model.parameters(), lr=0.1), worker=worker),
    "Lion": alone(bdn.algorithms.Lion),
    "OneBitAdam": alone(bdn.algorithms.OneBitAdam, warmup=2),
    "DeMo": alone(bdn.algorithms.DeMo),
    "LocalSteps": outer(bdn.LocalSteps, tau=2, outer=bdn.algorithms.Average()),
    "CSER": outer(bdn.algorithms.CSER, gradient=2, reset=2),
    "recipe": lambda model, worker: bdn.recipe("updates-100x")(model, lr=0.1, worker=worker),
}


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("name", BESIDES)
def test_ddp_around_an_optimizer_that_exchanges_is_an_error_where_it_steps_locally_else_warned_of(name, keeps):
    def job(worker):
        model = make_model()
        with building:
            wrapped = DistributedDataParallel(model)
        if keeps:
            bdn.keep_gradients_local(wrapped)
        optimizer = BESIDES[name](model, worker)
        if keeps:
            with warnings.catch_warnings():
                warnings.filterwarnings("error", message=".*DistributedDataParallel.*")
                step(wrapped, optimizer)
        elif getattr(optimizer, "has_local_models", False):
            for _ in range(2):
                before = [param.detach().clone() for param in model.parameters()]
                with pytest.raises(bandoneon.FailedPrecondition, match="keep_gradients_local") as said:
                    step(wrapped, optimizer)
                assert type(optimizer).__name__ in str(said.value)
                assert all(map(torch.equal, before, model.parameters()))
        else:
            with pytest.warns(RuntimeWarning, match=f"this {name}'s gradients.*exchanged twice") as found:
                step(wrapped, optimizer)
            assert found[0].filename == __file__
            with warnings.catch_warnings():
                warnings.filterwarnings("error", message=".*DistributedDataParallel.*")
                step(wrapped, optimizer)
        optimizer.close()

    def step(wrapped, optimizer):
        optimizer.zero_grad()
        wrapped(make_batch(0)).square().mean().backward()
        optimizer.step()

    run_job(job, workers=1)


def test_ddp_that_keeps_gradients_local_leaves_those_of_plain_torch():
    model, plain = make_model(), make_model()
    with building:
        wrapped = DistributedDataParallel(model)
    bdn.keep_gradients_local(wrapped)
    for forward in (wrapped, plain):
        forward(make_batch(0)).square().mean().backward()
    assert_same(grads(model), grads(plain))


@pytest.mark.parametrize(
    "options",
    [
        dict(push="ef(onebit, correction = lr)"),
        dict(pull="ef(onebit,correction=lr)"),
        dict(overrides={"*": dict(push="ef(onebit,correction=lr)")}),
    ],
)
def test_a_correction_by_learning_rates_that_it_does_not_know_is_refused(options):
    def job(worker):
        with pytest.raises(bandoneon.InvalidArgument, match="correction=lr.*DDPState does not know"):
            bdn.DDPState(make_model().named_parameters(), worker=worker, **linked(**options))

    run_job(job)


def test_nan_of_one_worker_is_everybodys():
    def job(worker):
        model = make_model()
        wrapped, _ = wrap(worker, model)
        batch = make_batch(worker.rank)
        if worker.rank == 0:
            batch[0, 0] = float("nan")
        wrapped(batch).square().mean().backward()
        poisoned = grads(model)
        wrapped.zero_grad()
        wrapped(make_batch(worker.rank)).square().mean().backward()
        assert_same(grads(model), mean_grads(model))
        return all(grad.isnan().all() for grad in poisoned.values())

    assert run_job(job) == [True, True]


def test_the_state_is_pickled_with_what_it_owes():
    options = dict(push=ONEBIT, pull="none", momentum=0.9)

    def first_half(worker):
        model = make_model(width=4096)
        wrapped, state = wrap(worker, model, **options)
        train_ddp(worker, wrapped, range(3), width=4096)
        return model.state_dict(), pickle.dumps(state)

    saved = run_job(first_half)

    def second_half(worker):
        model = make_model(width=4096)
        weights, pickled = saved[worker.rank]
        model.load_state_dict(weights)
        with building:
            wrapped = DistributedDataParallel(model, bucket_cap_mb=0.0001)
        state = pickle.loads(pickled)
        with pytest.raises(bandoneon.FailedPrecondition, match="attach"):
            bdn.ddp_hook(state, None)
        state.attach(model.named_parameters(), worker=worker, scaler=None)
        wrapped.register_comm_hook(state, bdn.ddp_hook)
        train_ddp(worker, wrapped, range(3, 6), width=4096)
        return model_hash(model)

    def whole(worker):
        model = make_model(width=4096)
        wrapped, _ = wrap(worker, model, **options)
        train_ddp(worker, wrapped, range(6), width=4096)
        return model_hash(model)

    assert run_job(second_half) == run_job(whole)


@pytest.mark.parametrize("sizes", [(2, 3), (3, 2), (2, 1)], ids=str)
def test_its_state_goes_to_another_number_of_workers(sizes, tmp_path):
    options = dict(push=ONEBIT, pull=ONEBIT, momentum=0.9)

    def items(model, wrapped, state):
        return {"model": wrapped, "optimizer": torch.optim.SGD(model.parameters(), 0.05), "hook": state}

    def saving(worker):
        model = make_model(width=4096)
        wrapped, state = wrap(worker, model, **options)
        train_ddp(worker, wrapped, range(5), width=4096)
        bdn.save(tmp_path, items(model, wrapped, state), worker=worker)
        return state.comm_state_dict()["tensors"]["0.weight"], model_hash(model)

    def loading(worker):
        model = make_model(width=4096)
        wrapped, state = wrap(worker, model, **options)
        bdn.load(tmp_path, items(model, wrapped, state), worker=worker)
        loaded = state.comm_state_dict()["tensors"]["0.weight"], model_hash(model)
        train_ddp(worker, wrapped, range(5, 7), width=4096)
        return *loaded, model_hash(model)

    saved = run_job(saving, workers=sizes[0])
    loaded = run_job(loading, workers=sizes[1], servers=2)
    for what in ("residual", "momentum"):
        before = sum(entry[what] for entry, _ in saved) / sizes[0]
        after = sum(entry[what] for entry, _, _ in loaded) / sizes[1]
        assert before.any()
        torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-7)
    server, server_before = loaded[0][0]["server"], saved[0][0]["server"]
    assert torch.equal(server["residual"], server_before["residual"])
    assert {begun for _, begun, _ in loaded} == {digest for _, digest in saved}
    assert len({ended for _, _, ended in loaded}) == 1


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_it_goes_into_a_distributed_checkpoint_beside_model_and_optimizer(tmp_path):
    def job(worker, loads):
        model = make_model()
        wrapped, state = wrap(worker, model, push=ONEBIT, pull=ONEBIT, momentum=0.9)
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        app = {"app": AppState(wrapped, optimizer, state, worker=worker)}
        path = tmp_path / str(worker.rank)  # Every rank is alone here.
        if loads:
            dcp.load(app, checkpoint_id=path, no_dist=True)
        else:
            train_ddp(worker, wrapped, range(5))
            dcp.save(app, checkpoint_id=path, no_dist=True)
        train_ddp(worker, wrapped, range(5, 8))
        return model_hash(model)

    whole, resumed = (
        run_job(lambda worker: job(worker, loads), min_compress_bytes=1) for loads in (False, True)
    )
    assert whole == resumed


def test_its_schedules_go_on_at_a_step():
    def job(worker):
        wrapped, state = wrap(worker, make_model(), push=ONEBIT, warmup=5)
        state.resume_at(7)
        train_ddp(worker, wrapped, range(1))
        assert state.comm_state_dict()["tensors"]["0.weight"]["step"] == 8
        return state.comm_state_dict()["tensors"]["0.weight"]["residual"].any()

    assert all(run_job(job, min_compress_bytes=1))


def test_backward_gives_up_after_the_timeout_and_says_whom_it_waited_for():
    gave_up = threading.Event()

    def job(worker):
        model = make_model()
        wrapped, state = wrap(worker, model, timeout=1)
        loss = wrapped(make_batch(worker.rank, 0)).square().mean()
        if worker.rank == 1:
            assert gave_up.wait(60)
            loss.backward()
            return
        try:
            with pytest.raises(bandoneon.DeadlineExceeded, match="waiting for worker 1") as late:
                loss.backward()
            assert late.value.tensor in dict(model.named_parameters())
        finally:
            gave_up.set()
        # The other takes the step, which this one has not seen the end of.
        # (DDP itself does not go on after an error: another model of it would call the hook.)
        with pytest.raises(bandoneon.FailedPrecondition, match="left before its end"):
            bdn.ddp_hook(state, None)
        with pytest.raises(bandoneon.FailedPrecondition, match="left before its end"):
            state.comm_state_dict()

    with bandoneon.LocalCluster(workers=2) as cluster:
        cluster.run(job, probe_interval="10ms")  # What servers wait for is known by then.


def test_a_hook_that_waits_long_says_for_whom(monkeypatch):
    monkeypatch.setattr("bandoneon.worker._REPORT_SECONDS", 0.3)
    said = threading.Event()

    class Sees(logging.Handler):
        def emit(self, record):
            if "waiting for worker 1" in record.getMessage():
                lines.append(record.getMessage())
                said.set()

    lines = []
    log = logging.getLogger("bandoneon")
    sees = Sees()
    log.addHandler(sees)

    def job(worker):
        model = make_model()
        wrapped, _ = wrap(worker, model)
        loss = wrapped(make_batch(worker.rank, 0)).square().mean()
        if worker.rank == 1:
            assert said.wait(60)
        loss.backward()
        assert_same(grads(model), mean_grads(model))

    try:
        with bandoneon.LocalCluster(workers=2) as cluster:
            cluster.run(job, probe_interval="10ms")
    finally:
        log.removeHandler(sees)
    assert "step 1" in lines[0]
