import gc
import threading

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import bandoneon
import bandoneon.torch as bdn
from bandoneon.torch import loss_scale
from bandoneon.torch.link_options import LinkOptions, LinkTable
from cluster_helpers import (
    assert_same,
    grads,
    linked,
    make_batch,
    make_model,
    mean_grads,
    model_hash,
    recorded_pushes,
    run_job,
    sgd,
)

building = threading.Lock()
EF = dict(push="ef(onebit(block=256))", pull="ef(onebit(block=256))")


def make_scaler(**options):
    return torch.amp.GradScaler("cpu", **{"init_scale": 2.0**10, "growth_interval": 2, **options})


def amp_loop(worker, model, optimizer, scaler, steps, poison=None):
    for step in range(steps):
        optimizer.zero_grad()
        batch = make_batch(worker.rank, step, width=model[0].in_features)
        if step == poison and worker.rank == 1:
            batch[0, 0] = float("inf")
        scaler.scale(model(batch).square().mean()).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


@pytest.mark.parametrize("fused", [False, True])
def test_a_loop_written_for_plain_torch_skips_the_bad_step_on_every_worker(fused):
    def job(worker):
        model = make_model()
        inner = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)
        optimizer = bdn.DistributedOptimizer(inner, model.named_parameters(), worker=worker)
        scaler = make_scaler()
        amp_loop(worker, model, optimizer, scaler, steps=5, poison=2)
        return (
            scaler.get_scale(),
            model_hash(model),
            all(p.isfinite().all() for p in model.parameters()),
        )

    first, second = run_job(job)
    assert first == second
    assert first[0] == 2.0**11 and first[2]  # Grew twice, halved once.


def test_residuals_are_in_unscaled_units_while_the_scale_changes():
    def job(worker, scaled):
        model = make_model(width=4096)
        scaler = make_scaler(enabled=scaled)
        optimizer = sgd(worker, model, lr=0.05, scaler=scaler, momentum=0.9, **EF)
        scales = []
        for step in range(6):
            optimizer.zero_grad()
            loss = model(make_batch(worker.rank, step, width=4096)).square().mean()
            scales.append(scaler.get_scale())
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        assert not scaled or len(set(scales)) == 3
        state = optimizer.comm_state_dict()["tensors"]["0.weight"]
        return model_hash(model), state["residual"], state["momentum"]

    plain = run_job(lambda worker: job(worker, False))
    scaled = run_job(lambda worker: job(worker, True))
    for one, two in zip(plain, scaled):
        # A scale is a power of two, so that even the bits must agree.
        assert one[0] == two[0]
        assert torch.equal(one[1], two[1]) and torch.equal(one[2], two[2])


def test_the_scale_is_passed_only_where_something_is_remembered():
    def scales(worker, **options):
        model = make_model()
        scaler = make_scaler()
        optimizer = sgd(worker, model, scaler=scaler, prefix=str(options), **options)
        with recorded_pushes(worker, lambda push: push.loss_scale) as seen:
            scaler.scale(model(make_batch(worker.rank)).square().mean()).backward()
            optimizer.set_loss_scale(8.0)
            model(make_batch(worker.rank)).square().mean().backward()
        return sum(seen, [])

    def job(worker):
        return scales(worker, push="fp16", pull="fp16"), scales(worker, **EF)

    for half, remembered in run_job(job):
        assert set(half[:6]) == {1.0} and set(half[6:]) == {8.0}
        assert set(remembered[:6]) == {1024.0} and set(remembered[6:]) == {8.0}


def test_the_only_scaler_alive_is_found():
    gc.collect()
    scaler = make_scaler()
    disabled = make_scaler(enabled=False)

    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model, scaler="auto", **EF)  # noqa: F841
        with recorded_pushes(worker, lambda push: push.loss_scale) as seen:
            model(make_batch(worker.rank)).square().mean().backward()
        return sum(seen, [])

    for seen in run_job(job):
        assert set(seen) == {1024.0}
    assert not disabled.is_enabled()
    second = make_scaler()

    def ambiguous(worker):
        model = make_model()
        optimizer = sgd(worker, model, scaler="auto", **EF)  # noqa: F841
        with pytest.raises(bandoneon.FailedPrecondition, match="scaler="):
            model(make_batch(worker.rank)).square().mean().backward()

    run_job(ambiguous)
    assert scaler.is_enabled() and second.is_enabled()


def test_gradients_come_back_scaled_as_they_went():
    def job(worker):
        model = make_model()
        scaler = make_scaler()
        optimizer = sgd(worker, model, scaler=scaler, warmup=10, **EF)
        scaler.scale(model(make_batch(worker.rank)).square().mean()).backward()
        scaler.unscale_(optimizer)
        return grads(model)

    for result in run_job(job):
        assert_same(result, mean_grads(make_model()), rtol=1e-6, atol=1e-8)


def test_a_scale_that_is_none_is_refused():
    def job(worker):
        optimizer = sgd(worker, make_model())
        for scale in (0.0, -1.0, float("inf"), float("nan")):
            with pytest.raises(bandoneon.InvalidArgument, match="loss scale"):
                optimizer.set_loss_scale(scale)

    run_job(job)


class ScaleOnGpu:
    """As much of a tensor on a GPU as its reader touches."""

    is_cuda = True

    def __init__(self, value):
        self._value = torch.tensor(value)

    @property
    def _version(self):
        return self._value._version

    def detach(self):
        return self._value

    def write(self, value):
        self._value.fill_(value)


class ScalerOnGpu(torch.amp.GradScaler):
    """Counts how often somebody waits for the GPU to read the scale."""

    def __init__(self, scale):
        super().__init__("cpu")
        self._scale = scale
        self.waits = 0

    def get_scale(self):
        self.waits += 1
        return self._scale.detach().item()


def test_a_scale_on_a_gpu_is_copied_ahead_and_not_waited_for(monkeypatch):
    told = []

    class Event:
        def __init__(self, blocking=False):
            assert blocking, "who waits for it would keep a processor busy"

        def record(self):
            told.append("copied")

        def synchronize(self):
            pass

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(loss_scale, "_pinned_number", lambda: torch.empty(1, dtype=torch.float32, device="cpu"))
    scale = ScaleOnGpu(1024.0)
    scaler = ScalerOnGpu(scale)
    reader = loss_scale.LossScale(scaler, LinkTable(LinkOptions.of(**EF)))
    assert (reader.current(), scaler.waits) == (1024.0, 1), "nothing was copied yet"
    scale.write(512.0)
    reader.copy_ahead()
    assert (reader.current(), reader.current(), scaler.waits) == (512.0, 512.0, 1)
    scale.write(256.0)  # After the copy, so that it is read where it is.
    assert (reader.current(), scaler.waits) == (256.0, 2)
    scaler._scale = ScaleOnGpu(128.0)  # As load_state_dict() does.
    assert (reader.current(), scaler.waits) == (128.0, 3)
    assert told == ["copied"]


# ---- Scaled gradients that a link of halves would clip ----


class Zero(torch.nn.Module):
    """Whose loss has a gradient of 2 in all of 20,000 weights: larger than what goes uncompressed."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(20000))

    def forward(self):
        return 2 * self.weight.sum()


def plain_loop(model, optimizer, scaler, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        scaler.scale(model()).backward()
        scaler.step(optimizer)
        scaler.update()
    return model.weight.detach().clone(), scaler.get_scale()


def of_optimizer(worker, model, specs):
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    return model, bdn.DistributedOptimizer(inner, model.named_parameters(), worker=worker, **linked(**specs))


def of_forward_overlap(worker, model, specs):
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    return model, bdn.DistributedOptimizer(inner, model, overlap="forward", worker=worker, **linked(**specs))


def of_ddp_hook(worker, model, specs):
    with building:
        wrapped = DistributedDataParallel(model)
    wrapped.weight = model.weight
    wrapped.register_comm_hook(bdn.DDPState(model.named_parameters(), worker=worker, **linked(**specs)), bdn.ddp_hook)
    return wrapped, torch.optim.SGD(model.parameters(), lr=1.0)


LOSSY = [dict(push="fp16", pull="fp16"), dict(push="none", pull="fp16"), dict(push="topk(ratio=0.9,values=fp16)")]


@pytest.fixture
def group_of_one(tmp_path):
    """Each thread's DDP believes to be alone."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("specs", LOSSY)
@pytest.mark.parametrize("make", [of_optimizer, of_forward_overlap, of_ddp_hook])
@pytest.mark.parametrize("given", [True, False])
def test_a_scale_that_halves_do_not_carry_is_an_overflow_that_the_scaler_finds(make, specs, given, group_of_one):
    def job(worker):
        scaler = torch.amp.GradScaler("cpu")  # Of 65536: scaled gradients are 131072.
        model, optimizer = make(worker, Zero(), {**specs, **({"scaler": scaler} if given else {})})
        return plain_loop(model, optimizer, scaler, steps=4)

    # What torch does: two steps are left out, each of which halves the scale, and two are exact.
    for weight, scale in run_job(job, workers=2 if given else 1):
        expected = torch.full_like(weight, -4.0)
        if "topk" in specs.get("push", ""):
            expected[weight == 0] = 0.0
            assert (weight == 0).sum() <= 2000
        assert torch.equal(weight, expected) and scale == 2.0**14


def test_where_nothing_clips_no_step_is_left_out():
    def job(worker):
        scaler = torch.amp.GradScaler("cpu")
        specs = dict(push="bf16", pull="bf16", scaler=scaler)
        return plain_loop(*of_optimizer(worker, Zero(), specs), scaler, steps=3)

    for weight, scale in run_job(job):
        assert torch.equal(weight, torch.full_like(weight, -6.0)) and scale == 2.0**16


def test_without_a_scaler_a_link_of_halves_clips_as_its_codec_says():
    def job(worker):
        model, optimizer = of_optimizer(worker, Zero(), dict(push="fp16", pull="fp16", scaler=None))
        (2.0**16 * model()).backward()
        return model.weight.grad

    for grad in run_job(job):
        assert torch.equal(grad, torch.full_like(grad, 65504.0))
