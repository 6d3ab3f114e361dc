"""overlap="forward": the models of overlap="backward", bit for bit, and nothing awaited before the next forward."""

import pytest
import torch

import bandoneon
import bandoneon.torch as bdn
from bandoneon.torch import forward_overlap, synchronizer
from cluster_helpers import ONEBIT, fill, loss_of, make_batch, make_model, model_hash, run_job, train
from forward_overlap_helpers import assert_same_models, distributed


# ---- When it waits ----


def test_neither_backward_nor_step_waits_for_the_others():
    def job(worker):
        model = make_model()
        optimizer = distributed(worker, model, "forward", timeout=20)
        if worker.rank == 1:
            worker.barrier("worker 0 has stepped")  # Before anything of this one's has left.
        loss_of(model, make_batch(worker.rank)).backward()
        optimizer.step()
        if worker.rank == 0:
            worker.barrier("worker 0 has stepped")
        return model_hash(model)

    first, second = run_job(job)
    assert first == second != model_hash(make_model())


def test_each_module_is_stepped_before_its_own_forward():
    def job(worker):
        model = make_model()
        optimizer = distributed(worker, model, "forward")
        train(worker, model, optimizer, steps=1)
        seen = []

        def look(*_):
            started = make_model()
            seen.append(
                [not torch.equal(model[i].weight, started[i].weight) for i in (0, 2, 4)]
            )

        for i in (0, 2, 4):
            model[i].register_forward_pre_hook(look)
        model(make_batch(worker.rank))
        return seen

    expected = [[True, False, False], [True, True, False], [True, True, True]]
    assert run_job(job) == [expected] * 2


def test_each_module_waits_once_and_for_its_own_alone():
    def job(worker):
        model = make_model()
        optimizer = distributed(worker, model, "forward")
        train(worker, model, optimizer, steps=1)
        waits, wait_all = [], worker.wait_all

        def wait(tickets, *how):
            waits.append(len(tickets))
            return wait_all(tickets, *how)

        worker.wait_all = wait
        model[4](model[:4](make_batch(worker.rank)))
        for _ in range(2):
            model(make_batch(worker.rank))
        del worker.wait_all
        return waits

    assert run_job(job) == [[2, 2, 2]] * 2


def test_the_gradients_are_the_steps_own():
    def job(worker):
        model = make_model()
        optimizer = distributed(worker, model, "forward")
        loss_of(model, make_batch(worker.rank)).backward()
        held = model[0].weight.grad
        assert isinstance(held, forward_overlap.PendingGradient)
        optimizer.step()
        assert all(param.grad is None for param in model.parameters())
        optimizer.synchronize()
        assert all(param.grad is None for param in model.parameters())
        return held.clone()

    def plainly(worker):
        model = make_model()
        optimizer = distributed(worker, model, "backward")  # noqa: F841
        loss_of(model, make_batch(worker.rank)).backward()
        return model[0].weight.grad

    assert all(map(torch.equal, run_job(job), run_job(plainly)))


def test_what_was_late_can_be_waited_for_again():
    def job(worker):
        model = make_model()
        optimizer = distributed(worker, model, "forward", timeout=1.5)
        if worker.rank == 0:
            loss_of(model, make_batch(0)).backward()
            optimizer.step()
            with pytest.raises(bandoneon.DeadlineExceeded, match="0.weight|0.bias") as raised:
                model(make_batch(0, 1))
            assert raised.value.waiting_for is not None
        worker.barrier("worker 0 has given up")
        if worker.rank == 1:
            loss_of(model, make_batch(1)).backward()
            optimizer.step()
        worker.barrier("worker 1 has pushed")
        train(worker, model, optimizer, steps=2)
        return model_hash(model)

    first, second = run_job(job)
    assert first == second

def test_pushes_that_are_lost_come_again_and_change_no_bits():
    """Of each worker one frame at a time may wait for the server's shard, which drops the others."""

    def job(worker, overlap):
        model = torch.nn.Sequential(*(torch.nn.Linear(20, 20) for _ in range(8)))
        fill(model)
        optimizer = distributed(worker, model, overlap, push="ef(onebit)", pull="ef(onebit)")
        for step in range(5):
            optimizer.zero_grad()
            (loss_of(model, make_batch(worker.rank, step, width=20)) / 1e4).backward()
            optimizer.step()
        optimizer.synchronize()
        assert all(param.isfinite().all() for param in model.parameters()), "NaN is equal to all that went wrong"
        return model_hash(model), worker.stats()["resends"]

    def run(overlap, **settings):
        settings = dict(fusion_bytes=1, min_compress_bytes=1, **settings)
        with bandoneon.LocalCluster(workers=2, **settings) as cluster:
            found = cluster.run(lambda worker: job(worker, overlap), probe_interval="5ms")
        return [model for model, _ in found], sum(resends for _, resends in found)

    undisturbed, _ = run("backward")
    resends = 0
    for _ in range(10):  # On a machine that is slow enough no frame meets another.
        found, resends = run("forward", max_bytes_queued=1)
        assert found == undisturbed
        if resends > 0:
            break
    assert resends > 0


# ---- The same models ----


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda p, make=make, how=how: make(p, **how), id=f"{make.__name__} {how}")
        for make, how in [
            (torch.optim.SGD, dict(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)),
            (torch.optim.SGD, dict(lr=0.1, momentum=0.9, fused=True)),
            (torch.optim.SGD, dict(lr=0.1, momentum=0.9, foreach=True)),
            (torch.optim.Adam, dict(lr=0.01, amsgrad=True)),
            (torch.optim.AdamW, dict(lr=0.01, fused=True)),
            (torch.optim.AdamW, dict(lr=0.01, foreach=True)),
            (torch.optim.AdamW, dict(lr=torch.tensor(0.01))),
            (torch.optim.Adadelta, dict(lr=0.1)),
            (torch.optim.Adagrad, dict(lr=0.01, lr_decay=0.1)),
            (torch.optim.Adamax, dict(lr=0.01)),
            (torch.optim.ASGD, dict(lr=0.01)),
            (torch.optim.NAdam, dict(lr=0.01)),
            (torch.optim.RAdam, dict(lr=0.01)),
            (torch.optim.RMSprop, dict(lr=0.01, momentum=0.5, centered=True)),
            (torch.optim.Rprop, dict(lr=0.01)),
            (bdn.algorithms.LANS, dict(lr=0.01)),
            (bdn.algorithms.FrozenAdamW, dict(lr=0.01, freeze_after=2)),
            (bdn.algorithms.Muon, dict(lr=0.01, batched=False)),
            (bdn.algorithms.DecayMomentumSGD, dict(lr=0.1, weight_decay=0.01)),
        ]
        + [
            (getattr(torch.optim, name), dict(lr=0.01))
            for name in ("Adafactor",)
            if hasattr(torch.optim, name)
        ]
    ],
)
def test_every_optimizer(make):
    def job(worker, overlap):
        model = make_model()
        optimizer = distributed(worker, model, overlap, make)
        train(worker, model, optimizer, steps=5)
        state = optimizer.state_dict()["state"]
        return model_hash(model), [
            sorted((k, v.tolist() if isinstance(v, torch.Tensor) else v) for k, v in entry.items())
            for entry in state.values()
        ]

    assert_same_models(job)


@pytest.mark.parametrize(
    "options",
    [
        dict(**ONEBIT, momentum=0.5),
        dict(push="ef(topk(ratio=0.1))", pull="dither", warmup=2),
        dict(push="none for 2; ef(onebit,correction=lr)", pull="int8"),
        dict(push="fp16", pull="fp16", weight=3),
    ],
    ids=lambda options: options["push"],
)
def test_compressed_links(options):
    def job(worker, overlap):
        model = make_model(width=600)
        optimizer = distributed(worker, model, overlap, lambda p: torch.optim.SGD(p, lr=0.1), **options)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        for step in range(6):
            optimizer.zero_grad()
            loss_of(model, make_batch(worker.rank, step, width=600)).backward()
            optimizer.step()
            schedule.step()
        state = optimizer.comm_state_dict()["tensors"]["0.weight"]
        return model_hash(model), state["step"], state.get("residual", torch.zeros(0)).tolist()

    assert_same_models(job, min_compress_bytes="1KiB")


def test_the_rates_of_the_groups_are_those_at_the_step():
    def job(worker, overlap):
        model = make_model()
        groups = [
            {"params": model[0].parameters(), "lr": 0.1},
            {"params": model[2:].parameters(), "lr": torch.tensor(0.05)},
        ]
        optimizer = distributed(worker, model, overlap, lambda _: torch.optim.Adam(groups))
        for step in range(4):
            optimizer.zero_grad()
            loss_of(model, make_batch(worker.rank, step)).backward()
            optimizer.step()
            optimizer.param_groups[0]["lr"] *= 0.5
            optimizer.param_groups[1]["lr"].mul_(0.25)  # In place, as schedulers do.
            optimizer.param_groups[1]["betas"] = (0.5, 0.9)
        return model_hash(model)

    assert_same_models(job)


def test_groups_that_are_added():
    def job(worker, overlap):
        model = torch.nn.ModuleList([make_model(1), make_model(2)])
        optimizer = distributed(worker, model, overlap, lambda _: torch.optim.Adam(model[0].parameters(), 0.01))
        train(worker, model[0], optimizer, steps=2)
        optimizer.add_param_group({"params": list(model[1].parameters()), "lr": 0.1})
        later = make_model(3)
        optimizer.add_param_group({"params": list(later.parameters())}, later)
        for one in (model[1], later):
            train(worker, one, optimizer, steps=2)
        return model_hash(model), model_hash(later)

    assert_same_models(job)


@pytest.mark.parametrize("zero", ["optimizer", "optimizer in place", "model", "by hand"])
def test_every_way_to_zero_gradients(zero):
    def job(worker, overlap):
        model = make_model()
        optimizer = distributed(worker, model, overlap)
        for step in range(4):
            loss_of(model, make_batch(worker.rank, step)).backward()
            optimizer.step()
            if zero == "model":
                model.zero_grad()
            elif zero == "by hand":
                for param in model.parameters():
                    param.grad = None
            else:
                optimizer.zero_grad(set_to_none=zero == "optimizer")
        return model_hash(model)

    assert_same_models(job)


def test_where_every_gradient_leaves_by_itself(monkeypatch):
    monkeypatch.setattr(synchronizer, "_BATCH_BYTES", 1)

    def job(worker, overlap):
        model = make_model()
        optimizer = distributed(worker, model, overlap)
        return model_hash(train(worker, model, optimizer, steps=4))

    assert_same_models(job, fusion_bytes=1)


@pytest.mark.parametrize("settles", [True, False])
def test_a_group_of_the_model_that_is_added_in_mid_run_is_stepped_where_it_is_read(settles):
    def job(worker, overlap):
        model = torch.nn.Sequential(make_model(), torch.nn.Linear(3, 2))
        fill(model)
        inner = torch.optim.SGD(model[0].parameters(), lr=0.1)
        optimizer = bdn.DistributedOptimizer(inner, model, overlap=overlap, worker=worker, links=bdn.Links(scaler=None))
        for step in range(5):
            optimizer.zero_grad()
            loss_of(model, make_batch(worker.rank, step)).backward()
            optimizer.step()
            if step == 1:
                if settles:
                    optimizer.synchronize()
                optimizer.add_param_group({"params": list(model[1].parameters()), "lr": 0.2})
        optimizer.synchronize()
        return model_hash(model)

    digests = {*run_job(lambda worker: job(worker, "forward")), *run_job(lambda worker: job(worker, "backward"))}
    assert len(digests) == 1


def test_a_group_that_the_model_lacks_is_to_come_with_its_module():
    def job(worker):
        model, head = make_model(), torch.nn.Linear(3, 2)
        fill(head)
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = bdn.DistributedOptimizer(inner, model, overlap="forward", worker=worker)
        with pytest.raises(bandoneon.InvalidArgument, match="give add_param_group.. the module that has it"):
            optimizer.add_param_group({"params": list(head.parameters())}, head.named_parameters())
        optimizer.add_param_group({"params": list(head.parameters())}, head)

    run_job(job, workers=1)


@pytest.mark.parametrize("change", [torch.nn.Module.double, torch.nn.Module.bfloat16])
def test_a_model_that_is_given_another_type_before_its_step_is_taken_is_refused_by_name(change):
    def job(worker):
        model = make_model()
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = bdn.DistributedOptimizer(inner, model, overlap="forward", worker=worker, links=bdn.Links(scaler=None))
        loss_of(model, make_batch(worker.rank)).backward()
        optimizer.step()
        change(model)
        with pytest.raises(bandoneon.InvalidArgument, match="'0.weight' was declared as .* torch.float32, and now"):
            model(make_batch(worker.rank).to(model[0].weight.dtype))
        model.float()  # For the step is still to be taken.
        model(make_batch(worker.rank))

    run_job(job)
