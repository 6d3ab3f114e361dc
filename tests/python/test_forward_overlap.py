"""overlap="forward": the models of overlap="backward", bit for bit, and nothing awaited before the next forward."""

import copy
import gc
import io
import pickle
import warnings
import weakref

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import bandoneon
import bandoneon.torch as bdn
from bandoneon.torch import forward_overlap, synchronizer
from cluster_helpers import (
    ONEBIT,
    BreaksOff,
    fill,
    loss_of,
    make_batch,
    make_model,
    model_hash,
    run_job,
    train,
)

AWAITED_AT_ONCE = "overlap='forward' awaits gradients in the next forward pass"


def distributed(worker, model, overlap, make=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), **options):
    return bdn.DistributedOptimizer(
        make(model.parameters()), model, worker=worker, overlap=overlap, **{"scaler": None, **options}
    )


def assert_same_models(job, warns=None, workers=2, **settings):
    """job(worker, overlap), what it found of a training, is the same for both. `warns`: what a warning of
    the second says; no other may come."""
    expected = run_job(lambda worker: job(worker, "backward"), workers=workers, **settings)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RuntimeWarning)
        found = run_job(lambda worker: job(worker, "forward"), workers=workers, **settings)
    assert found == expected
    said = [str(w.message) for w in caught if issubclass(w.category, RuntimeWarning)]
    assert bool(said) == bool(warns), said
    assert all(AWAITED_AT_ONCE in message and warns in message for message in said)
    return found


class Branches(torch.nn.Module):
    """Uses the branches it is told to."""

    def __init__(self):
        super().__init__()
        self.branches = torch.nn.ModuleList(torch.nn.Linear(6, 3) for _ in range(4))
        fill(self)

    def forward(self, batch, used):
        return sum(self.branches[i](batch).square().mean() for i in used)


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
            (bdn.LANS, dict(lr=0.01)),
            (bdn.FrozenAdamW, dict(lr=0.01, freeze_after=2)),
            (bdn.DecayMomentumSGD, dict(lr=0.1, weight_decay=0.01)),
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


class Tied(torch.nn.Module):
    def __init__(self, functional):
        super().__init__()
        self.embed = torch.nn.Linear(6, 6, bias=False)
        self.block = torch.nn.Linear(6, 6)
        self.head = torch.nn.Linear(6, 6, bias=False)
        self.functional = functional
        if not functional:
            self.head.weight = self.embed.weight
        fill(self)

    def forward(self, batch):
        x = torch.tanh(self.block(torch.tanh(self.embed(batch))))
        x = torch.tanh(self.block(x))
        return torch.nn.functional.linear(x, self.embed.weight) + 0 * self.head(x) if self.functional else self.head(x)


class Attends(torch.nn.Module):
    """Of which out_proj's weights are read, and out_proj is not called."""

    def __init__(self):
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(6, 2, batch_first=True)
        self.scale = torch.nn.Parameter(torch.ones(6))
        self.shifts = torch.nn.ParameterList([torch.zeros(6), torch.zeros(6)])
        fill(self)

    def forward(self, batch):
        x = batch.unsqueeze(0)
        return self.attention(x, x, x)[0] * self.scale + self.shifts[0]


def old_weight_norm():
    model = make_model()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.nn.utils.weight_norm(model[0])
    return model


def new_weight_norm():
    model = make_model()
    torch.nn.utils.parametrizations.weight_norm(model[0])
    return model


def shared_module():
    torch.manual_seed(0)
    shared = torch.nn.Linear(6, 6)
    model = torch.nn.Sequential(shared, torch.nn.Tanh(), torch.nn.Sequential(shared, torch.nn.Linear(6, 3)))
    fill(model)
    return model


@pytest.mark.parametrize(
    "make",
    [
        lambda: Tied(functional=False),
        lambda: Tied(functional=True),
        Attends,
        old_weight_norm,
        new_weight_norm,
        shared_module,
        lambda: torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(6, 3)),
    ],
    ids="tied,tied by function,attention,old weight norm,weight norm,shared module,spectral norm".split(","),
)
def test_parameters_that_several_modules_or_others_read(make):
    state = make().state_dict()

    def job(worker, overlap):
        model = make()
        model.load_state_dict(state)
        optimizer = distributed(worker, model, overlap, lambda p: torch.optim.Adam(p, 0.02))
        train(worker, model, optimizer, steps=5)
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
                scaler=None,
                prefix=f"{lr}/",
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


# ---- What reads before the next forward ----


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


def test_a_model_with_hooks_can_be_copied_and_pickled():
    def job(worker):
        model = make_model()
        optimizer = distributed(worker, model, "forward")
        train(worker, model, optimizer, steps=2)
        optimizer.synchronize()
        others = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
        buffer = io.BytesIO()
        torch.save(model, buffer)
        buffer.seek(0)
        others.append(torch.load(buffer, weights_only=False))
        train(worker, model, optimizer, steps=1)
        before = [p.tolist() for p in model.parameters()]
        for other in others:
            assert loss_of(other, make_batch(0)).item() and model_hash(other)
        assert [p.tolist() for p in model.parameters()] == before  # Theirs do nothing.
        return model_hash(model) != model_hash(others[0])

    assert run_job(job) == [True, True]


# ---- Compiled models ----


def compiled_and_given(model):
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    return compiled, compiled


def compiled_not_given(model):
    return model, torch.compile(model, backend="eager")


def compiled_in_place(model):
    model.compile(backend="eager")
    return model, model


def inner_in_place(model):
    model[2].compile(backend="eager")
    return model, model


def inner_wrapped(model):
    model[2] = torch.compile(model[2], backend="eager", fullgraph=True)
    return model, model


def compiled_function(model):
    return model, torch.compile(lambda batch: model(batch) * 1.0, backend="eager")


@pytest.mark.parametrize(
    "compile",
    [compiled_and_given, compiled_not_given, compiled_in_place, inner_in_place, inner_wrapped, compiled_function],
)
def test_compiled_models(compile):
    def job(worker, overlap):
        torch._dynamo.reset()  # What was compiled without hooks is taken for the same model with them.
        model = make_model()
        given, called = compile(model)
        optimizer = distributed(worker, given, overlap, lambda p: torch.optim.Adam(p, 0.01))
        train(worker, called, optimizer, steps=4)
        return model_hash(given)

    assert_same_models(job, workers=1)


# ---- What is refused ----


def test_a_forward_pass_that_reads_what_is_still_to_be_stepped_is_an_error():
    def read_around(model, batch):
        return model[2:](torch.nn.functional.linear(batch, model[0].weight)).square().mean()

    def job(worker):
        model = make_model()
        optimizer = distributed(worker, model, "forward")
        train(worker, model, optimizer, steps=2)
        optimizer.zero_grad()
        loss = read_around(model, make_batch(worker.rank))
        with pytest.raises(bandoneon.FailedPrecondition, match="'0.weight' got a gradient.*synchronize"):
            loss.backward()
        with pytest.raises(bandoneon.FailedPrecondition, match="'0.weight' got a gradient"):
            torch.autograd.grad(read_around(model, make_batch(worker.rank)), [model[0].weight])
        optimizer.synchronize()
        loss = read_around(model, make_batch(worker.rank))
        loss.backward()  # After which it may be read so.
        optimizer.step()
        return model_hash(model)

    first, second = run_job(job)
    assert first == second


class GroupNormalized(torch.optim.SGD):
    """Its steps depend on all gradients together."""


@pytest.mark.parametrize("make", [GroupNormalized, torch.optim.LBFGS])
def test_an_optimizer_that_may_not_step_one_by_one_is_refused(make):
    def job(worker):
        model = make_model()
        with pytest.raises(bandoneon.InvalidArgument, match=f"{make.__name__}.*overlap='backward'"):
            distributed(worker, model, "forward", lambda p: make(p, lr=0.1))
        train(worker, model, distributed(worker, model, "backward"), steps=1)  # Nothing was declared.

    run_job(job)


def test_it_needs_the_model():
    def job(worker):
        model = make_model()
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        for named in (None, model.named_parameters()):
            with pytest.raises(bandoneon.InvalidArgument, match="give DistributedOptimizer the model"):
                bdn.DistributedOptimizer(inner, named, worker=worker, overlap="forward")
        with pytest.raises(bandoneon.InvalidArgument, match="overlap='sideways'"):
            bdn.DistributedOptimizer(inner, model, worker=worker, overlap="sideways")
        optimizer = distributed(worker, model, "forward")
        other = torch.nn.Parameter(torch.zeros(3))
        with pytest.raises(bandoneon.InvalidArgument, match="'other'.*no module"):
            optimizer.add_param_group({"params": [other]}, [("other", other)])
        assert len(optimizer.param_groups) == 1

    run_job(job)


def test_where_every_gradient_leaves_by_itself(monkeypatch):
    monkeypatch.setattr(synchronizer, "_BATCH_BYTES", 1)

    def job(worker, overlap):
        model = make_model()
        optimizer = distributed(worker, model, overlap)
        return model_hash(train(worker, model, optimizer, steps=4))

    assert_same_models(job, fusion_bytes=1)


def test_nothing_of_a_model_stays_that_is_gone():
    def job(worker):
        model = make_model()
        optimizer = distributed(worker, model, "forward")
        train(worker, model, optimizer, steps=2)
        gone = weakref.ref(model[0].weight)
        del model, optimizer
        gc.collect()
        found = gone() is None
        model = make_model()
        optimizer = distributed(worker, model, "forward")  # Takes the names up.
        train(worker, model, optimizer, steps=1)
        return found

    assert run_job(job, workers=1) == [True]  # A gc.collect() beside another thread's does nothing.


def test_parameters_that_one_module_holds_several_times():
    class Twice(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.one = self.other = torch.nn.Parameter(torch.zeros(6, 6))
            held = torch.nn.ParameterList([torch.zeros(6)])  # Which both read, and nobody calls.
            self.parts = torch.nn.ModuleList([Shift(held), Shift(held)])
            fill(self)

        def forward(self, batch):
            return self.parts[1](self.parts[0](batch @ self.one) @ self.other)

    class Shift(torch.nn.Module):
        def __init__(self, held):
            super().__init__()
            self.held = held

        def forward(self, batch):
            return torch.tanh(batch + self.held[0])

    def job(worker, overlap):
        model = Twice()
        optimizer = distributed(worker, model, overlap)
        return model_hash(train(worker, model, optimizer, steps=4))

    assert_same_models(job)
