"""KFAC: one process on the whole batch is what any number of workers make, and what travels when."""

import copy
import math
import threading
import warnings

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import algorithms
import bandoneon
import bandoneon.torch as bdn
from bandoneon.torch.algorithms import kronecker as module
from bandoneon.torch.handover import hand_over
from cluster_helpers import linked, model_hash, recorded_pushes, run_job

KFAC = bdn.algorithms.KFAC
SIZES = [(5, 7), (7, 3)]
BATCH = 24


def draw(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make_model(dtype=torch.float64):
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3)).to(dtype)
    with torch.no_grad():
        for i, param in enumerate(model.parameters()):
            param.copy_(0.5 * draw(*param.shape, seed=20 + i))
    return model


def batch_of(step, rank, parts):
    """This worker's rows of the whole batch."""
    x, y = draw(BATCH, 5, seed=100 + step), draw(BATCH, 3, seed=200 + step)
    begin = sum(parts[:rank])
    return x[begin : begin + parts[rank]], y[begin : begin + parts[rank]]


def loss_of(model, x, y):
    return (model(x) - y).square().sum(1).mean() / 2


def of_batch(mean):
    """The first batch's part of a running mean, which began as I."""
    return (mean - 0.95 * torch.eye(len(mean), dtype=mean.dtype)) / 0.05


def trained(parts, steps=13, dtype=torch.float64, look=None, lr=0.3, **options):
    """The matrices, bias last, that each worker has in the end, or look(optimizer, model)."""
    options = {"factors": "none", "every": 2, "inverses": 4, "clip": 0.5, **options}

    def job(worker):
        model = make_model(dtype)
        rows = parts[worker.rank]
        how = {} if len(set(parts)) == 1 else dict(weight=lambda: rows)
        sgd = torch.optim.SGD(model.parameters(), lr=lr)
        optimizer = KFAC(model, sgd, worker=worker, **linked(**options, **how))
        for step in range(steps):
            optimizer.zero_grad()
            x, y = batch_of(step, worker.rank, parts)
            loss_of(model, x.to(dtype), y.to(dtype)).backward()
            optimizer.step()
        return matrices(model) if look is None else look(optimizer, model)

    return run_job(job, workers=len(parts))


def matrices(model):
    return [torch.cat([m.weight, m.bias[:, None]], 1).detach().numpy() for m in model if isinstance(m, torch.nn.Linear)]


def whole_batch(t, model):
    """Of the reference: the forward and backward pass by hand."""
    x, y = (part.numpy() for part in batch_of(t - 1, 0, [BATCH]))
    ones = np.ones((BATCH, 1))
    first = np.hstack([x, ones])
    hidden = np.tanh(first @ model[0].T)
    second = np.hstack([hidden, ones])
    outer = second @ model[1].T - y
    inner = (outer @ model[1][:, :-1]) * (1 - hidden**2)
    return [(first, inner), (second, outer)]


def reference(steps=13, every=2, inverses=4, damping=1e-3, clip=0.5, lr=0.3):
    return algorithms.kfac(matrices(make_model()), whole_batch, steps, lr, every, inverses, damping, clip)


@pytest.fixture
def everything_travels(monkeypatch):
    """As of large layers: each factor alone, and each inverse from one worker to all."""
    monkeypatch.setattr(module, "_EVERYWHERE", 0)
    monkeypatch.setattr(module, "_FUSED_BYTES", 0)


# ---- One process on the whole batch


@pytest.mark.parametrize("parts", [[24], [12, 12], [6, 6, 6, 6], [3, 9, 5, 7]], ids=str)
def test_workers_equal_one_process_on_the_whole_batch(parts):
    for found in trained(parts):
        for own, expected in zip(found, reference()):
            np.testing.assert_allclose(own, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("parts", [[12, 12], [3, 9, 5, 7]], ids=str)
def test_factors_and_inverses_that_travel_alone_equal_it_too(parts, everything_travels):
    for found in trained(parts):
        for own, expected in zip(found, reference()):
            np.testing.assert_allclose(own, expected, rtol=1e-5, atol=1e-5)


def test_inverses_in_every_step_are_of_the_step_before():
    for own, expected in zip(trained([12, 12], every=1, inverses=1)[0], reference(every=1, inverses=1)):
        np.testing.assert_allclose(own, expected, rtol=1e-5, atol=1e-5)


def test_unweighted_unequal_batches_are_another_step():
    def job(worker):
        model = make_model()
        optimizer = KFAC(model, torch.optim.SGD(model.parameters(), lr=0.3), "none", 2, 4, worker=worker)
        loss_of(model, *batch_of(0, worker.rank, [4, 20])).backward()
        optimizer.step()
        return matrices(model)

    assert abs(run_job(job)[0][0] - reference(steps=1, clip=1e-3)[0]).max() > 1e-3


def test_g_is_the_mean_over_samples_of_their_own_gradients():
    """And not of the parts that a mean loss hands over, which are as many times smaller as the batch is large."""
    model, (x, y) = make_model(), batch_of(0, 0, [BATCH])
    own = []
    for row, label in zip(x, y):
        out = model(row[None])
        (grad,) = torch.autograd.grad((out - label).square().sum() / 2, out)
        own.append(grad[0])
    expected = sum(torch.outer(g, g) for g in own) / BATCH
    found = of_batch(trained([12, 12], steps=1, look=lambda optimizer, model: optimizer._layers[1].outputs.mean)[0])
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)
    wrong = expected / 12**2
    assert (found.double() - wrong).abs().max() > 0.5 * expected.abs().max()


def test_a_float32_model_comes_near_it():
    for own, expected in zip(trained([12, 12], dtype=torch.float32, damping=0.1)[0], reference(damping=0.1)):
        np.testing.assert_allclose(own, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("factors, damping, limit", [("fp16", 1e-2, 0.01), ("int8", 0.1, 0.2)])
def test_factors_of_few_bits_are_near_those_of_float32(factors, damping, limit):
    def moved(codec):
        def job(worker):
            model = make_model()
            sgd = torch.optim.SGD(model.parameters(), lr=0.3)
            optimizer = KFAC(model, sgd, codec, 1, 1, damping, clip=10.0, worker=worker)
            for step in range(3):
                optimizer.zero_grad()
                loss_of(model, *batch_of(step, worker.rank, [12, 12])).backward()
                optimizer.step()
            return np.concatenate([(a - b).ravel() for a, b in zip(matrices(model), matrices(make_model()))])

        return run_job(job, min_compress_bytes=1)[0]

    plain, few = moved("none"), moved(factors)
    difference = np.linalg.norm(few - plain) / np.linalg.norm(plain)
    assert 1e-7 < difference < limit


# ---- Layers


def factors_after_a_step(model, loss):
    """{name: A or G} of the batch of one worker."""

    def job(worker):
        optimizer = KFAC(model, torch.optim.SGD(model.parameters(), lr=0.0), "none", 1, 1, worker=worker)
        loss(model).backward()
        optimizer.step()
        optimizer.settle()
        found = {f.name: None if f.mean is None else of_batch(f.mean) for f in optimizer._factors}
        optimizer.close()
        return found

    return run_job(job, workers=1)[0]


@pytest.mark.parametrize("how", [
    dict(kernel_size=3), dict(kernel_size=(2, 3), stride=2, padding=1), dict(kernel_size=3, dilation=2, bias=False),
    dict(kernel_size=3, padding="same"), dict(kernel_size=3, padding=1, padding_mode="circular"),
], ids=str)
def test_factors_of_a_convolution_are_those_of_its_patches(how):
    conv = torch.nn.Conv2d(2, 4, **how).double()
    x, t = draw(3, 2, 7, 8), draw(3, 4, 7, 8, seed=5)
    with torch.no_grad():
        conv.weight.copy_(draw(*conv.weight.shape, seed=3))
    out = conv(x)
    target = t[:, :, : out.shape[2], : out.shape[3]]
    found = factors_after_a_step(torch.nn.Sequential(conv), lambda m: (m(x) - target).square().sum((1, 2, 3)).mean() / 2)
    # A patch as convolutions see it: the gradient of an output by the weights is its patch.
    patches, gradients = [], []
    for n in range(3):
        for i in range(out.shape[2]):
            for j in range(out.shape[3]):
                (patch,) = torch.autograd.grad(conv(x[n : n + 1])[0, 0, i, j], conv.weight)
                patches.append(patch[0].reshape(-1))
                gradients.append((out - target)[n, :, i, j].detach())
    a = torch.stack(patches)
    a = torch.cat([a, torch.ones(len(a), 1).double()], 1) if conv.bias is not None else a
    g = torch.stack(gradients)
    torch.testing.assert_close(found["A of 0"].double(), a.T @ a / len(a), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found["G of 0"].double(), g.T @ g / 3, rtol=1e-5, atol=1e-5)


class Twice(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 3).double()
        self.same = self.layer

    def forward(self, x):
        return self.layer(torch.tanh(self.same(x)))


def test_a_layer_that_is_called_twice_is_one_with_the_rows_of_both_calls():
    model, x = Twice(), draw(6, 3)
    found = factors_after_a_step(model, lambda m: m(x).square().sum(1).mean() / 2)
    assert sorted(found) == ["A of layer", "G of layer"]
    first = model.layer(x)
    hidden = torch.tanh(first)
    out = model.layer(hidden)
    g1, g2 = torch.autograd.grad(out.square().sum() / 2, (first, out))
    a = torch.cat([torch.cat([x, hidden]), torch.ones(12, 1).double()], 1).detach()
    torch.testing.assert_close(found["A of layer"].double(), a.T @ a / 12, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found["G of layer"].double(), (g1.T @ g1 + g2.T @ g2) / 6, rtol=1e-5, atol=1e-5)


def test_positions_of_a_sequence_are_samples():
    model, x = make_model(), draw(2, 4, 5)
    found = factors_after_a_step(model, lambda m: m(x).square().sum(2).mean() / 2)
    flat = factors_after_a_step(make_model(), lambda m: m(x.reshape(8, 5)).square().sum(1).mean() / 2)
    for name in flat:
        torch.testing.assert_close(found[name], flat[name])


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_what_is_computed_once_more_for_its_gradients_counts_once(use_reentrant):
    from torch.utils.checkpoint import checkpoint

    x = draw(6, 5).requires_grad_(True)

    def loss(model):
        hidden = checkpoint(lambda x: torch.tanh(model[0](x)), x, use_reentrant=use_reentrant)
        return model[2](hidden).square().sum(1).mean() / 2

    found = factors_after_a_step(make_model(), loss)
    plain = factors_after_a_step(make_model(), lambda m: m(x).square().sum(1).mean() / 2)
    torch.testing.assert_close(found["A of 2"], plain["A of 2"])
    if use_reentrant:  # Its first pass keeps nothing.
        assert found["A of 0"] is None
    else:
        torch.testing.assert_close(found["A of 0"], plain["A of 0"])
        torch.testing.assert_close(found["G of 0"], plain["G of 0"])


class Mixed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(9, 4)
        self.norm = torch.nn.LayerNorm(4)
        self.inner = torch.nn.Linear(4, 4)
        self.grouped = torch.nn.Conv2d(2, 2, 1, groups=2)
        self.computed = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 4))
        self.head = torch.nn.Linear(4, 9)
        self.head.weight = self.embed.weight

    def forward(self, x):
        x = self.norm(self.inner(self.embed(x)))
        return self.head(self.computed(self.grouped(x.reshape(-1, 2, 2, 1)).reshape(-1, 4)))


def test_what_it_cannot_take_is_named_once_and_stepped_plainly():
    def job(worker):
        model = Mixed()
        for i, param in enumerate(model.parameters()):
            param.data = draw(*param.shape, seed=i).float()
        before = copy.deepcopy(model)
        optimizer = KFAC(model, torch.optim.SGD(model.parameters(), lr=0.01), "none", 1, 1, worker=worker)
        tokens = torch.arange(6)
        for _ in range(2):
            old = model.norm.weight.detach().clone()
            optimizer.zero_grad()
            F.cross_entropy(model(tokens), tokens).backward()
            plain = old - 0.01 * model.norm.weight.grad
            optimizer.step()
            torch.testing.assert_close(model.norm.weight.detach(), plain)
        assert [layer.module for layer in optimizer._layers] == [model.inner]
        names = "; ".join(optimizer.plain_layers)
        for part in ("embed (Embedding)", "norm (LayerNorm)", "grouped (Conv2d of 2 groups)", "head (Linear that shares"):
            assert part in names
        assert not torch.equal(model.inner.weight, before.inner.weight)
        return model_hash(model)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert len(set(run_job(job))) == 1
    said = [str(w.message) for w in caught if "KFAC takes" in str(w.message)]
    assert len(said) == 1 and "embed (Embedding), norm (LayerNorm)" in said[0] and "to SGD as they are" in said[0]


def test_a_layer_that_a_worker_does_not_call_is_the_others():
    def job(worker):
        model = make_model()
        extra = torch.nn.Linear(3, 3).double()
        with torch.no_grad():
            extra.weight.copy_(draw(3, 3, seed=8)), extra.bias.zero_()
        model = torch.nn.Sequential(*model, extra)
        optimizer = KFAC(model, torch.optim.SGD(model.parameters(), lr=0.1), "none", 1, 2, worker=worker)
        for step in range(4):
            optimizer.zero_grad()
            x, y = batch_of(step, worker.rank, [12, 12])
            loss_of(model if worker.rank == 0 else model[:3], x, y).backward()
            optimizer.step()
        assert optimizer._layers[2].inputs.mean is not None
        return model_hash(model)

    assert len(set(run_job(job))) == 1


# ---- What travels


@pytest.mark.parametrize("size", range(1, 12))
def test_a_triangle_holds_the_matrix_in_half_its_elements(size):
    matrix = draw(size, size)
    matrix = matrix + matrix.T
    triangle = module.packed(matrix)
    assert triangle.shape == (size * (size + 1) // 2,)
    assert torch.equal(module.unpacked(triangle, size), matrix)
    assert size < 50 or len(triangle) <= 0.51 * size**2


def test_inverses_are_placed_by_their_cubes():
    owners = module._placed([10, 100, 60, 90, 61], [0, 2, 3])
    assert owners == [3, 0, 3, 2, 3]
    assert module._placed([5, 5, 5], [1]) == [1, 1, 1]


def test_a_leaves_in_the_forward_pass_and_all_factors_behind_the_gradients(everything_travels):
    def job(worker):
        model = make_model()
        optimizer = KFAC(model, torch.optim.SGD(model.parameters(), lr=0.1), "none", 1, 4, worker=worker)
        of = {key.tensor: key.name for key in optimizer._keys}
        seen = []
        for step in range(2):
            optimizer.zero_grad()
            with recorded_pushes(worker, lambda push: (push.tensor, push.priority)) as batches:
                loss = loss_of(model, *batch_of(step, worker.rank, [12, 12]))
                in_forward = [push for batch in batches for push in batch]
                loss.backward()
                all_of = [push for batch in batches for push in batch]
                optimizer.step()
            seen.append(([of.get(tensor) for tensor, _ in in_forward], all_of))
        assert seen[0][0] == [], "how often each layer is called is not known yet"
        assert seen[1][0] == ["A of 0", "A of 2"]
        priorities = {of.get(tensor, "gradient"): priority for tensor, priority in seen[1][1]}
        gradients = [p for t, p in seen[1][1] if t not in of]
        assert {"G of 0", "G of 2"} <= set(priorities), "they leave in the backward pass"
        assert max(p for t, p in seen[1][1] if t in of) < min(gradients)

    run_job(job)


def test_the_factors_of_a_small_layer_are_one_tensor():
    found = trained([12, 12], steps=1, look=lambda optimizer, model: [key.name for key in optimizer._keys])
    assert found[0] == ["A of 0 and G of 0", "A of 2 and G of 2"]


def test_each_worker_inverts_its_share_and_a_lost_ones_is_made_up_for(everything_travels, monkeypatch):
    shares = {}
    invert = module._inverted

    def inverted(mean, damping):
        shares.setdefault(len(mean), []).append(threading.current_thread())
        return invert(mean, damping)

    monkeypatch.setattr(module, "_inverted", inverted)
    trained([12, 12], steps=1)
    assert {size: len(threads) for size, threads in shares.items()} == {6: 1, 7: 1, 8: 1, 3: 1}
    assert shares[8] != shares[7], "the two largest are not one worker's"
    shares.clear()
    place = module._placed
    # As of a worker that was lost behind the placement: nobody sends the first one.
    monkeypatch.setattr(module, "_placed", lambda sizes, ranks: [9, *place(sizes[1:], ranks)])
    for own, expected in zip(trained([12, 12])[0], reference()):
        np.testing.assert_allclose(own, expected, rtol=1e-5, atol=1e-5)
    assert len(shares[6]) >= 6 > len(shares[7]), "all workers but for the last inverses, which are not used"


# ---- What is not finite


def test_what_is_not_finite_is_left_out_by_all_and_counted():
    def job(worker):
        model = make_model()
        optimizer = KFAC(model, torch.optim.SGD(model.parameters(), lr=0.1), "fp16", 1, 2, worker=worker)
        for step in range(5):
            x, y = batch_of(step, worker.rank, [12, 12])
            if step == 2 and worker.rank == 1:
                x = x * math.nan
            optimizer.zero_grad()
            before = model_hash(model)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                loss_of(model, x, y).backward()
            optimizer.step()
            assert (model_hash(model) == before) == (step == 2)
        optimizer.settle()
        assert all(factor.mean.isfinite().all() for factor in optimizer._factors)
        return model_hash(model), optimizer.skipped_steps, optimizer.skipped_factors

    first, second = run_job(job, min_compress_bytes=1)
    assert first == second and first[1:] == (1, 4)


def test_factors_alone_that_are_not_finite_keep_the_old_ones():
    """Of gradients that are finite and whose squares are not."""

    def job(worker):
        model = make_model(torch.float32)
        optimizer = KFAC(model, torch.optim.SGD(model.parameters(), lr=0.0), "none", 1, 1, worker=worker)
        for step in range(2):
            optimizer.zero_grad()
            x, y = batch_of(step, worker.rank, [12, 12])
            loss = loss_of(model, x.float(), y.float())
            (loss * (1e22 if step == 1 and worker.rank == 0 else 1)).backward()
            optimizer.step()
        optimizer.settle()
        return optimizer.skipped_factors, optimizer.skipped_steps, [f.mean.isfinite().all().item() for f in optimizer._factors]

    first, second = run_job(job)
    assert first == second == (4, 0, [True] * 4)  # Of small layers A and G are one tensor.


# ---- Checkpoints and newcomers


def resumable(worker, steps, model=None, state=None, inner=None, stop=None):
    """(model, optimizer) after steps of which those before `stop` are another job's."""
    model = model or make_model(torch.float32)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = KFAC(model, sgd, "fp16", 2, 4, worker=worker, **linked(push="ef(onebit)", pull="ef(onebit)"))
    if state is not None:
        optimizer.load_state_dict(inner)
        optimizer.load_comm_state_dict(state)
    for step in range(*steps):
        optimizer.zero_grad()
        x, y = batch_of(step, worker.rank, [6, 6, 6, 6])
        loss_of(model, x.float(), y.float()).backward()
        optimizer.step()
    return model, optimizer


# After 5 steps inverses of step 4 are under way; after 8, factors of step 6 came, and inverses are in use.
@pytest.mark.parametrize("at", [5, 8])
def test_a_checkpoint_goes_on_bit_for_bit(at, everything_travels):
    def whole(worker):
        return model_hash(resumable(worker, (0, 12))[0])

    def before(worker):
        model, optimizer = resumable(worker, (0, at))
        return copy.deepcopy((model.state_dict(), optimizer.state_dict(), optimizer.comm_state_dict()))

    expected = run_job(whole, min_compress_bytes=1)
    saved = run_job(before, min_compress_bytes=1)

    def after(worker):
        model = make_model(torch.float32)
        values, inner, comm = copy.deepcopy(saved[worker.rank])
        model.load_state_dict(values)
        return model_hash(resumable(worker, (at, 12), model, comm, inner)[0])

    assert run_job(after, min_compress_bytes=1) == expected

    def without_factors(worker):
        model = make_model(torch.float32)
        values, inner, comm = copy.deepcopy(saved[worker.rank])
        model.load_state_dict(values)
        for entry in comm["KFAC"]["tensors"].values():
            entry["known"] = [False] * 3
        return model_hash(resumable(worker, (at, 12), model, comm, inner)[0])

    assert run_job(without_factors, min_compress_bytes=1) != expected

    def of_more_workers(worker):
        model = make_model(torch.float32)
        model.load_state_dict(saved[0][0])
        resumed = resumable(worker, (at, 12), model, [comm for _, _, comm in saved], copy.deepcopy(saved[0][1]))
        return model_hash(resumed[0])

    assert len(set(run_job(of_more_workers, workers=3, min_compress_bytes=1))) == 1


def test_a_newcomer_takes_factors_and_inverses_over():
    """As TrainingState does it, beside inverses that are under way."""

    def job(worker):
        steps = (0, 5) if worker.rank != 2 else (0, 0)
        model, optimizer = make_model(torch.float32), None
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = KFAC(model, sgd, "fp16", 2, 4, worker=worker)
        for step in range(5):
            optimizer.zero_grad()
            x, y = batch_of(step, worker.rank, [8, 8, 8])
            loss_of(model, x.float(), y.float()).backward()
            optimizer.step()
        worker.settle()
        mine = {"optimizer": optimizer.handover()}
        if worker.rank == 2:  # It forgets all, as if it came now.
            for factor in optimizer._factors:
                factor.mean = factor.inverse = factor.next = None
            optimizer._steps, optimizer._due = 0, None
        received = hand_over(worker, None if worker.rank == 2 else mine, 0)
        assert received.differs is None
        if worker.rank == 2:
            optimizer.take_over(received.state["optimizer"])
        for step in range(5, 10):
            optimizer.zero_grad()
            x, y = batch_of(step, worker.rank, [8, 8, 8])
            loss_of(model, x.float(), y.float()).backward()
            optimizer.step()
        return model_hash(model)

    assert len(set(run_job(job, workers=3))) == 1


def test_it_trains_in_a_training_state(tmp_path):
    def job(worker):
        model = make_model(torch.float32)
        optimizer = KFAC(model, torch.optim.SGD(model.parameters(), lr=0.1), "fp16", 2, 4, worker=worker)
        state = bdn.TrainingState({"model": model, "optimizer": optimizer}, checkpoint=tmp_path, every=3, worker=worker)
        for step in state.steps(7):
            optimizer.zero_grad()
            state.count(23)
            x, y = batch_of(step, worker.rank, [12, 11])
            loss_of(model, x.float(), y.float()).backward()
            optimizer.step()
        return model_hash(model), optimizer._steps

    def again(worker):
        model = make_model(torch.float32)
        optimizer = KFAC(model, torch.optim.SGD(model.parameters(), lr=0.1), "fp16", 2, 4, worker=worker)
        state = bdn.TrainingState({"model": model, "optimizer": optimizer}, checkpoint=tmp_path, worker=worker)
        list(state.steps(7))
        return model_hash(model), optimizer._steps

    first = run_job(job)
    assert first[0] == first[1] and first[0][1] == 7
    assert run_job(again) == first


# ---- Refusals


@pytest.mark.parametrize("options, message", [
    (dict(factors="int4"), "factors='int4' is none of 'none', 'fp16', 'int8'"),
    (dict(factors="int8"), r"factors='int8' with damping=0.001: its rounding.* below a damping of 0.1"),
    (dict(every=0), "every=0 is not a number of steps"),
    (dict(every=2.5), "every=2.5 is not a number of steps"),
    (dict(inverses="many"), "inverses='many' is not a number of steps"),
    (dict(every=10, inverses=25), "inverses=25 is no multiple of every=10"),
    (dict(damping=0.0), "damping=0.0 is not a finite number above 0"),
    (dict(damping=math.nan), "damping=nan"),
    (dict(damping="much"), "damping='much'"),
    (dict(clip=-1.0), "clip=-1.0"),
    (dict(clip=math.inf), "clip=inf"),
])
def test_options_out_of_range_are_named(options, message):
    model = make_model()
    with pytest.raises(bandoneon.InvalidArgument, match=message):
        KFAC(model, torch.optim.SGD(model.parameters(), lr=0.1), **options)


def test_models_and_optimizers_of_another_kind_are_named_and_nothing_is_changed():
    model = make_model()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(bandoneon.InvalidArgument, match="the model first, .* got a SGD"):
        KFAC(sgd, model)
    with pytest.raises(bandoneon.InvalidArgument, match="an optimizer of torch.optim behind the model, and got a list"):
        KFAC(model, [sgd])
    norm = torch.nn.LayerNorm(3)
    with pytest.raises(bandoneon.InvalidArgument, match=r"has none .*; it has the model \(LayerNorm\)"):
        KFAC(norm, torch.optim.SGD(norm.parameters(), lr=0.1))
    with pytest.raises(bandoneon.InvalidArgument, match="has none .*it has no modules"):
        KFAC(norm, sgd)
    assert not hasattr(sgd, "is_inside") and not hasattr(sgd, "_bandoneon")


def test_options_that_differ_are_named_with_both_ranks():
    def job(worker):
        model = make_model()
        with pytest.raises(bandoneon.InvalidArgument, match="worker 1 has every=20, and worker 0 every=10"):
            KFAC(model, torch.optim.SGD(model.parameters(), lr=0.1), every=10 * (1 + worker.rank), worker=worker)

    run_job(job)


def test_a_state_of_other_factors_is_refused():
    def job(worker):
        model, optimizer = resumable(worker, (0, 1))
        state = optimizer.comm_state_dict()
        with pytest.raises(bandoneon.InvalidArgument, match="no factor 'A of 0' of 6 rows"):
            optimizer.load_comm_state_dict({**state, "KFAC": {"tensors": {}}})
        with pytest.raises(bandoneon.InvalidArgument, match="every=3, and here it is every=2"):
            optimizer.load_comm_state_dict({**state, "settings": {**state["settings"], "every": 3}})
        optimizer.load_comm_state_dict(state)

    run_job(job, workers=1)


def test_close_takes_the_hooks_away_and_frees_the_names():
    def job(worker):
        model = make_model()
        for _ in range(2):
            optimizer = KFAC(model, torch.optim.SGD(model.parameters(), lr=0.1), "none", 1, 1, worker=worker)
            loss_of(model, *batch_of(0, worker.rank, [12, 12])).backward()
            optimizer.step()
            optimizer.close()
            assert not any(m._forward_hooks for m in model)

    run_job(job)


def test_a_copy_of_the_model_tells_it_nothing():
    def job(worker):
        model = make_model()
        optimizer = KFAC(model, torch.optim.SGD(model.parameters(), lr=0.1), "none", 1, 1, worker=worker)
        other = copy.deepcopy(model)
        other(draw(4, 5)).sum().backward()
        assert [layer.calls for layer in optimizer._layers] == [0, 0]

    run_job(job, workers=1)
