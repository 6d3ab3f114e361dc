import copy
import io
import itertools
import pickle
import sys
import warnings

import numpy as np
import pytest
import torch

import algorithms
import bandoneon
import bandoneon.torch as bdn
from cluster_helpers import (
    fill,
    linked,
    make_batch,
    make_model,
    mean_grads,
    model_hash,
    run_job,
    train,
)
from forward_overlap_helpers import Branches, assert_same_models
from forward_overlap_helpers import distributed as over
from reference_helpers import (
    SHAPES,
    STEPS,
    WORKERS,
    Quadratic,
    assert_close,
    assert_same_bits,
    distance,
    distributed,
    links,
    run_library,
    run_ranks,
)

LR = 0.02


def parameter(*shape, seed=0, dtype=torch.float32):
    draw = torch.Generator().manual_seed(seed)
    return torch.nn.Parameter(torch.randn(shape, generator=draw).to(dtype))


def step(optimizer, seed):
    """With gradients drawn by the seed, in the order of the groups."""
    draw = torch.Generator().manual_seed(seed)
    for group in optimizer.param_groups:
        for param in group["params"]:
            param.grad = torch.randn(param.shape, generator=draw).to(param.dtype)
    optimizer.step()


# ---- The rule ----

MATRICES = [(8, 12), (12, 8), (8, 12), (5, 5), (6, 3, 2, 2), (4, 1), (1, 4), (96, 128)]
OTHERS = [(40,), (), (1,)]
TABLES = [(10, 4), (4, 10)]  # Matrices of a group that says that they are none.


def reference_rules():
    adamw = [algorithms.AdamW(LR, b2=0.95, wd=0.01) for _ in OTHERS]
    tables = [algorithms.AdamW(3 * LR, b1=0.8, b2=0.95, wd=0.2) for _ in TABLES]
    return [algorithms.Muon(LR) for _ in MATRICES] + adamw + tables


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize(
    "dtype, rtol, atol", [(np.float64, 1e-10, 1e-11), (np.float32, 1e-5, 2e-5)], ids=["float64", "float32"]
)
def test_it_equals_its_reference(dtype, rtol, atol, batched):
    draw = np.random.default_rng(1)
    shapes = MATRICES + OTHERS + TABLES
    start, centres = ([np.asarray(draw.standard_normal(s)) for s in shapes] for _ in range(2))
    noise = [[np.asarray(draw.standard_normal(s)) for s in shapes] for _ in range(STEPS)]
    params = [torch.nn.Parameter(torch.from_numpy(x.astype(dtype))) for x in start]
    plain = len(params) - len(TABLES)
    tables = dict(params=params[plain:], matrices=False, lr=3 * LR, betas=(0.8, 0.95), weight_decay=0.2)
    optimizer = bdn.algorithms.Muon([dict(params=params[:plain]), tables], lr=LR, batched=batched)
    expected, rules = [x.astype(dtype).astype(np.float64) for x in start], reference_rules()
    for t in range(STEPS):
        for param, centre, n in zip(params, centres, noise[t]):
            param.grad = (param.detach() - torch.from_numpy(centre) + torch.from_numpy(n)).to(param.dtype)
        optimizer.step()
        gradients = [x - c + n for x, c, n in zip(expected, centres, noise[t])]
        expected = [rule.step(x, g) for rule, x, g in zip(rules, expected, gradients)]
    assert distance(expected, start) > 0.5
    for param, x in zip(params, expected):
        np.testing.assert_allclose(param.detach().numpy(), x, rtol, atol, err_msg=str(x.shape))


def test_a_step_has_singular_values_of_about_one_and_the_gradients_vectors():
    for shape in ((8, 12), (12, 8), (9, 9)):
        param, lr = parameter(*shape, dtype=torch.float64), 0.1
        optimizer = bdn.algorithms.Muon([param], lr=lr, weight_decay=0.0)
        before = param.detach().clone()
        step(optimizer, seed=1)
        moved = (before - param.detach()) / (lr * 0.2 * max(shape) ** 0.5)
        u, s, v = torch.linalg.svd(param.grad, full_matrices=False)
        along = u.T @ moved @ v.T
        torch.testing.assert_close(along, torch.diag(along.diagonal()), rtol=0, atol=1e-10)
        assert s.min() / torch.linalg.vector_norm(s) > 0.002
        assert 0.68 < along.diagonal().min() and along.diagonal().max() < 1.21


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has none of its own")
def test_it_is_torchs_muon_to_its_bfloat16():
    ours, theirs = parameter(16, 24), parameter(16, 24)
    start = ours.detach().clone()
    optimizers = [
        bdn.algorithms.Muon([ours], lr=LR, weight_decay=0.1),
        torch.optim.Muon([theirs], lr=LR, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
    ]
    for seed in range(10):
        for optimizer in optimizers:
            step(optimizer, seed)
    norm = torch.linalg.vector_norm
    assert norm(ours - theirs) < 0.03 * norm(theirs - start)


def test_everything_else_is_torchs_adamw():
    ours, theirs = parameter(7), parameter(7)
    optimizers = [
        bdn.algorithms.Muon([ours], lr=LR),
        torch.optim.AdamW([theirs], lr=LR, betas=(0.9, 0.95), weight_decay=0.01),
    ]
    for seed in range(10):
        for optimizer in optimizers:
            step(optimizer, seed)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("shape", [(3, 8, 12), (2, 3, 12, 8), (1, 5, 5), (2, 96, 128), (6, 8)], ids=str)
def test_each_matrix_of_a_stack_steps_as_it_does_alone(shape, batched):
    stack = parameter(*shape)
    alone = [torch.nn.Parameter(matrix.clone()) for matrix in stack.detach().reshape(-1, *shape[-2:])]
    together = bdn.algorithms.Muon([dict(params=[stack], matrices="stacked")], lr=LR, batched=batched)
    apart = bdn.algorithms.Muon(alone, lr=LR, batched=batched)
    for seed in range(3):
        stack.grad = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        for matrix, grad in zip(alone, stack.grad.reshape(-1, *shape[-2:])):
            matrix.grad = grad
        together.step()
        apart.step()
    torch.testing.assert_close(stack.detach().reshape(-1, *shape[-2:]), torch.stack(alone).detach(), rtol=1e-5, atol=1e-6)


def test_a_stack_of_no_matrices_is_left_alone():
    stack, other = torch.nn.Parameter(torch.empty(0, 4, 5)), parameter(4, 5)
    optimizer = bdn.algorithms.Muon([dict(params=[stack, other], matrices="stacked")], lr=LR)
    stack.grad, other.grad = torch.empty(0, 4, 5), torch.ones(4, 5)
    before = other.detach().clone()
    optimizer.step()
    assert stack.shape == (0, 4, 5) and not torch.equal(before, other)


def test_a_convolution_is_the_matrix_of_its_output_channels():
    whole, flat = parameter(6, 3, 2, 2), torch.nn.Parameter(parameter(6, 3, 2, 2).detach().flatten(1))
    grad = parameter(6, 3, 2, 2, seed=1).detach()
    for param in (whole, flat):
        param.grad = grad.reshape(param.shape)
        bdn.algorithms.Muon([param], lr=LR).step()
    assert torch.equal(whole.detach().flatten(1), flat)


@pytest.mark.parametrize(
    "shape, laid_out",
    [
        ((6, 5, 2, 2), lambda t: t.to(memory_format=torch.channels_last)),
        ((20, 30), lambda t: t.t().contiguous().t()),
    ],
    ids=["channels_last", "transposed"],
)
def test_how_gradients_and_weights_lie_in_memory_changes_no_bits(shape, laid_out):
    plain, other = parameter(*shape), torch.nn.Parameter(laid_out(parameter(*shape).detach()))
    assert not other.is_contiguous()
    optimizers = [bdn.algorithms.Muon([param], lr=LR) for param in (plain, other)]
    for seed in range(3):
        plain.grad = parameter(*shape, seed=seed).detach()
        other.grad = laid_out(plain.grad)
        for optimizer in optimizers:
            optimizer.step()
    assert torch.equal(plain, other)


def test_a_gradient_of_zero_and_a_parameter_without_elements_are_no_trouble():
    param, empty = parameter(4, 6), [parameter(0, 3), parameter(3, 0), parameter(3, 0, 2), parameter(0)]
    before = param.detach().clone()
    optimizer = bdn.algorithms.Muon([param, *empty], lr=0.1, weight_decay=0.5)
    for each in (param, *empty):
        each.grad = torch.zeros_like(each)
    optimizer.step()
    assert torch.equal(param, before * (1 - 0.1 * 0.5))


def test_a_parameter_without_a_gradient_stays_as_it_is():
    params = [parameter(4, 6), parameter(4, 6, seed=1), parameter(6)]
    before = [param.detach().clone() for param in params]
    params[1].grad = torch.ones(4, 6)
    optimizer = bdn.algorithms.Muon(params, lr=0.1)
    optimizer.step()
    assert [torch.equal(*pair) for pair in zip(params, before)] == [True, False, True]
    assert list(optimizer.state) == [params[1]]


def test_a_step_inside_of_autocast_is_not_rounded():
    inside, outside = parameter(8, 12), parameter(8, 12)
    inner, outer = bdn.algorithms.Muon([inside], lr=LR), bdn.algorithms.Muon([outside], lr=LR)
    for seed in range(3):
        with torch.autocast("cpu", torch.bfloat16):
            step(inner, seed)
        step(outer, seed)
    assert torch.equal(inside, outside)


def test_a_closure_is_evaluated_with_gradients():
    param = parameter(4, 6)
    optimizer, before = bdn.algorithms.Muon([param], lr=LR), param.detach().clone()

    def closure():
        loss = param.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == pytest.approx(before.square().sum().item())
    assert not torch.equal(param, before)


# ---- Types ----


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_are_stepped_in_float32_and_rounded_once(dtype):
    halves = [parameter(8, 12, dtype=dtype), parameter(12, 8, dtype=dtype), parameter(9, dtype=dtype)]
    floats = [torch.nn.Parameter(param.detach().float()) for param in halves]
    ours, exact = bdn.algorithms.Muon(halves, lr=LR), bdn.algorithms.Muon(floats, lr=LR)
    for seed in range(4):
        step(ours, seed)
        for half, param in zip(halves, floats):
            param.grad = half.grad.float()
        exact.step()
        with torch.no_grad():
            for half, param in zip(halves, floats):
                assert torch.equal(half, param.to(dtype))
                param.copy_(half)  # What both begin the next step with.
    for half, param in zip(halves, floats):
        for name, value in exact.state[param].items():
            kept = ours.state[half][name]
            if name != "step":
                assert kept.dtype == torch.float32 and torch.equal(kept, value)


# ---- State ----

MIXED = [
    dict(shape=(8, 12), dtype=torch.float32),
    dict(shape=(8, 12), dtype=torch.float32),
    dict(shape=(12, 8), dtype=torch.bfloat16),
    dict(shape=(5, 5), dtype=torch.float64),
    dict(shape=(40,), dtype=torch.float32),
    dict(shape=(40,), dtype=torch.float16),
    dict(shape=(10, 4), dtype=torch.bfloat16),
]


def mixed(lr):
    params = [parameter(*kind["shape"], seed=i, dtype=kind["dtype"]) for i, kind in enumerate(MIXED)]
    return params, bdn.algorithms.Muon([dict(params=params[:-1]), dict(params=params[-1:], matrices=False)], lr=lr)


def test_it_goes_on_from_its_state_bit_for_bit():
    params, optimizer = mixed(lr=LR)
    for seed in range(3):
        step(optimizer, seed)
    file = io.BytesIO()
    torch.save(([param.detach() for param in params], optimizer.state_dict()), file)
    file.seek(0)
    values, state = torch.load(file, weights_only=True)
    resumed, other = mixed(lr=7 * LR)
    with torch.no_grad():
        for param, value in zip(resumed, values):
            param.copy_(value)
    other.load_state_dict(state)
    for seed in range(3, 6):
        step(optimizer, seed)
        step(other, seed)
    assert all(map(torch.equal, params, resumed))
    kept = optimizer.state[params[2]]["momentum_buffer"]
    assert not torch.equal(kept, kept.to(torch.bfloat16))  # What a state of the parameter's type would lose.
    assert [other.state[param]["step"] for param in resumed] == [6] * len(MIXED)


def test_what_was_loaded_is_its_own():
    first, second = parameter(8, 12), parameter(8, 12)
    optimizer, other = bdn.algorithms.Muon([first], lr=LR), bdn.algorithms.Muon([second], lr=LR)
    step(optimizer, 0)
    other.load_state_dict(optimizer.state_dict())
    kept = optimizer.state[first]["momentum_buffer"].clone()
    step(other, 1)
    assert torch.equal(optimizer.state[first]["momentum_buffer"], kept)


@pytest.mark.parametrize("kind", ["distributed", "local"])
def test_a_job_goes_on_from_its_checkpoint(kind, tmp_path):
    def begin(worker):
        model = make_model()
        inner, named = bdn.algorithms.Muon(model.parameters(), lr=LR), model.named_parameters()
        spec = "ef(onebit(block=32))"
        if kind == "local":
            options = dict(tau=3, outer=bdn.algorithms.Average(), push=spec)
            return model, bdn.LocalSteps(inner, named, worker=worker, **linked(**options))
        return model, bdn.DistributedOptimizer(
            inner, named, links=bdn.Links(push=spec, pull=spec, scaler=None), worker=worker
        )

    def whole(worker):
        model, optimizer = begin(worker)
        train(worker, model, optimizer, steps=4)
        bdn.save(tmp_path, {"model": model, "optimizer": optimizer}, worker=worker)
        return model_hash(train(worker, model, optimizer, steps=5))

    def resumed(worker):
        model, optimizer = begin(worker)
        bdn.load(tmp_path, {"model": model, "optimizer": optimizer}, worker=worker)
        return model_hash(train(worker, model, optimizer, steps=5))

    assert run_job(whole, min_compress_bytes=1) == run_job(resumed, min_compress_bytes=1)


# ---- In a job ----


@pytest.mark.parametrize("batched", [True, False])
def test_on_the_mean_gradient_it_equals_its_reference(batched):
    problem = Quadratic()
    result = run_library(problem, distributed(lambda p: bdn.algorithms.Muon(p, lr=LR, batched=batched)))
    rules = [
        algorithms.Muon(LR) if len(shape) > 1 else algorithms.AdamW(LR, b2=0.95, wd=0.01)
        for shape in SHAPES.values()
    ]
    expected = algorithms.every_step(problem.start, problem.gradient, STEPS, rules, links())
    assert distance(expected, problem.start) > 0.1
    assert_close(result, expected, rtol=1e-5, atol=2e-5)


def squares(depth=5, width=8):
    """Layers of one shape."""
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(depth)))
    fill(model)
    return model


def wide_loss(model, batch):
    return model(batch.repeat(1, 2)[:, :8]).square().mean()


@pytest.mark.parametrize("batched", [True, False])
def test_without_compression_it_steps_on_the_mean_gradient_bit_for_bit(batched):
    def job(worker):
        model = squares()
        optimizer = bdn.DistributedOptimizer(
            bdn.algorithms.Muon(model.parameters(), lr=LR, batched=batched), model.named_parameters(), worker=worker
        )
        return model_hash(train(worker, model, optimizer, steps=4, loss=wide_loss))

    reference = squares()
    optimizer = bdn.algorithms.Muon(reference.parameters(), lr=LR, batched=batched)
    for t in range(4):
        means = mean_grads(reference, workers=4, step=t, loss=wide_loss)
        for param, grad in zip(reference.parameters(), means.values()):
            param.grad = grad
        optimizer.step()
    assert run_job(job, workers=4, servers=2) == [model_hash(reference)] * 4


@pytest.mark.parametrize("spec", ["ef(onebit)", "ef(topk(ratio=0.1))"])
def test_on_compressed_means_the_replicas_stay_equal(spec):
    problem = Quadratic()  # run_library compares the replicas' bits.
    result = run_library(problem, distributed(lambda p: bdn.algorithms.Muon(p, lr=LR), push=spec, pull=spec))
    plain = run_library(problem, distributed(lambda p: bdn.algorithms.Muon(p, lr=LR)))
    assert distance(result, plain) > 1e-3


TAU = 5


def local_steps(**options):
    return lambda worker, params: bdn.LocalSteps(
        bdn.algorithms.Muon(params.values(), lr=LR), params.items(), tau=TAU, outer=bdn.algorithms.Average(), worker=worker,
        **linked(**options)
    )


def test_averaged_local_steps_equal_their_reference():
    problem = Quadratic()
    common = [x.astype(np.float64) for x in problem.start]
    rules = [
        [algorithms.Muon(LR) if x.ndim > 1 else algorithms.AdamW(LR, b2=0.95, wd=0.01) for x in common]
        for _ in range(WORKERS)
    ]
    own = [common] * WORKERS
    for t in range(1, STEPS + 1):
        for i in range(WORKERS):
            gradients = problem.gradient(i, t, own[i])
            own[i] = [rule.step(x, g) for rule, x, g in zip(rules[i], own[i], gradients)]
        if t % TAU == 0:
            own = [[sum(parts) / WORKERS for parts in zip(*own)]] * WORKERS
    assert_close(run_library(problem, local_steps()), own[0], rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize(
    "codecs", [{}, dict(push="ef(onebit(block=64))", pull="delta(onebit(block=64))")], ids=str
)
def test_local_models_are_equal_after_each_meeting_and_not_before(codecs):
    ranks = run_ranks(Quadratic(), local_steps(**codecs), steps=3 * TAU)
    for t in range(1, 3 * TAU + 1):
        models = [seen[t - 1] for seen in ranks]
        if t % TAU:
            assert distance(models[0], models[1]) > 1e-3
        else:
            assert_same_bits(models)


class BranchesAndSquares(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.branches, self.squares = Branches(), squares()

    def forward(self, batch, used):
        return self.branches(batch, used) + wide_loss(self.squares, batch)


def test_overlap_forward_has_the_same_bits_one_by_one():
    def uses(rank, t):
        return [i for i in range(3) if i == 0 or (i == 1 and rank == t % 2) or (i == 2 and t == 2)]

    def job(worker, overlap):
        model = BranchesAndSquares()
        optimizer = over(worker, model, overlap, lambda p: bdn.algorithms.Muon(p, lr=LR, batched=False))
        for t in range(5):
            optimizer.zero_grad()
            model(make_batch(worker.rank, t), used=uses(worker.rank, t)).backward()
            optimizer.step()
        state = optimizer.state_dict()["state"]
        return model_hash(model), [entry["step"] for entry in state.values()]

    first, second = assert_same_models(job)
    assert first == second and len(set(first[1])) > 1  # Some parameters had no gradient now and then.


def test_overlap_forward_of_batched_matrices_is_refused():
    def job(worker):
        model = make_model()
        with pytest.raises(bandoneon.InvalidArgument, match=r"Muon.*batched=False.*overlap='backward'"):
            over(worker, model, "forward", lambda p: bdn.algorithms.Muon(p, lr=LR))
        train(worker, model, over(worker, model, "backward", lambda p: bdn.algorithms.Muon(p, lr=LR)), steps=1)

    run_job(job)


def test_what_is_not_batched_stays_so_in_a_copy_and_after_loading():
    optimizer = bdn.algorithms.Muon([parameter(4, 6)], lr=LR, batched=False)
    optimizer.load_state_dict(bdn.algorithms.Muon([parameter(4, 6)], lr=LR).state_dict())
    assert optimizer.steps_one_by_one and copy.deepcopy(optimizer).steps_one_by_one
    assert not copy.deepcopy(bdn.algorithms.Muon([parameter(4, 6)], lr=LR)).steps_one_by_one


# ---- What is refused ----


@pytest.mark.parametrize(
    "bad, message",
    [
        (dict(lr=-1.0), "lr=-1.0 is negative"),
        (dict(eps=float("nan")), "eps=nan"),
        (dict(weight_decay=-0.1), "weight_decay=-0.1"),
        (dict(momentum=1.0), "momentum=1.0 is not in"),
        (dict(betas=(0.9, 1.5)), "beta2=1.5"),
        (dict(betas=0.9), "betas=0.9 are not two numbers"),
        (dict(betas=(0.9,)), "betas=.0.9,. are not two numbers"),
        (dict(matrices="conv"), "matrices='conv' is neither True nor False.*group of their own"),
    ],
    ids=str,
)
def test_bad_settings_are_named_of_any_group(bad, message):
    with pytest.raises(bandoneon.InvalidArgument, match=message):
        bdn.algorithms.Muon([parameter(2, 2)], **{"lr": 0.1, **bad})
    optimizer = bdn.algorithms.Muon([parameter(2, 2)], lr=0.1)
    with pytest.raises(bandoneon.InvalidArgument, match=message):
        optimizer.add_param_group({"params": [parameter(2, 2)], **bad})
    assert len(optimizer.param_groups) == 1


def test_complex_parameters_are_refused_by_name():
    good, bad = parameter(2, 2), parameter(2, 3, dtype=torch.complex64)
    with pytest.raises(bandoneon.InvalidArgument, match=r"parameter 1 of group 0 \(shape \[2, 3\]\).*complex64"):
        bdn.algorithms.Muon([good, bad], lr=0.1)
    try:
        torch.optim.SGD([("good", good)], lr=0.1)
    except TypeError:
        return  # A torch whose optimizers know no names.
    with pytest.raises(bandoneon.InvalidArgument, match="'bad' is of torch.complex64"):
        bdn.algorithms.Muon([("good", good), ("bad", bad)], lr=0.1)


def test_sparse_gradients_are_refused_by_name_and_nothing_has_changed():
    dense, table = parameter(4, 6), torch.nn.Embedding(10, 4, sparse=True)
    optimizer = bdn.algorithms.Muon([dict(params=[dense]), dict(params=table.parameters(), matrices=False)], lr=0.1)
    before = dense.detach().clone()
    dense.grad = torch.ones(4, 6)
    table(torch.tensor([1, 3])).sum().backward()
    with pytest.raises(bandoneon.InvalidArgument, match=r"parameter 0 of group 1 \(shape \[10, 4\]\) is sparse"):
        optimizer.step()
    assert torch.equal(dense, before) and not optimizer.state


# ---- Products in bfloat16, and what steps cost


def moved_by(shape, seed=1, dtype=torch.float32, **options):
    """What one step moves a matrix by, in learning rates and lengths of a step."""
    param = parameter(*shape, dtype=dtype)
    before, optimizer = param.detach().clone(), bdn.algorithms.Muon([param], lr=0.1, weight_decay=0.0, **options)
    step(optimizer, seed)
    return (before - param.detach()) / (0.1 * 0.2 * max(shape) ** 0.5), param.grad, optimizer


@pytest.mark.parametrize("shape", [(96, 128), (160, 64)])
def test_products_in_bfloat16_are_those_of_float32_to_its_precision(shape):
    exact, _, _ = moved_by(shape)
    rounded, grad, optimizer = moved_by(shape, products="bfloat16")
    norm = torch.linalg.vector_norm
    assert 0 < norm(rounded - exact) < 0.03 * norm(exact)
    assert optimizer.state[optimizer.param_groups[0]["params"][0]]["momentum_buffer"].dtype == torch.float32
    assert 0.6 < torch.linalg.svdvals(rounded).min() or torch.linalg.svdvals(grad).min() < 0.002 * norm(grad)
    assert torch.linalg.svdvals(rounded).max() < 1.25


@pytest.mark.parametrize("shape, dtype", [((64, 128), torch.float32), ((96, 128), torch.float64)])
def test_products_of_small_matrices_and_of_float64_stay_as_they_are(shape, dtype):
    assert torch.equal(moved_by(shape, dtype=dtype)[0], moved_by(shape, dtype=dtype, products="bfloat16")[0])


def test_other_products_are_refused_and_a_copy_has_the_same():
    with pytest.raises(bandoneon.InvalidArgument, match="products='fp8' is neither"):
        bdn.algorithms.Muon([parameter(4, 4)], lr=0.1, products="fp8")
    optimizer = pickle.loads(pickle.dumps(bdn.algorithms.Muon([parameter(96, 128)], lr=0.1, products="bfloat16")))
    plain = bdn.algorithms.Muon([parameter(96, 128)], lr=0.1, products="bfloat16")
    for one in (optimizer, plain):
        step(one, seed=1)
    (ours,), (theirs,) = (one.param_groups[0]["params"] for one in (optimizer, plain))
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("within, between, warns", [(3.0, 2.0, 1), (2.0, 3.0, 0), (0.004, 0.002, 0)])
@pytest.mark.parametrize("products", ["float32", "bfloat16"])
def test_steps_that_take_longer_than_all_between_them_are_warned_of_once(within, between, warns, products, monkeypatch):
    times = itertools.accumulate(itertools.cycle([between, within]))
    monkeypatch.setattr(sys.modules[bdn.algorithms.Muon.__module__], "_clock", lambda: next(times))
    optimizer = bdn.algorithms.Muon([parameter(4, 4)], lr=0.1, products=products)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for seed in range(60):
            step(optimizer, seed)
    said = [str(w.message) for w in caught if "longer than all else between" in str(w.message)]
    assert len(said) == warns
    for text in said:
        assert "3000 ms each" in text and "2000 ms" in text and "docs/recipes.md" in text
        assert ("products='bfloat16'" in text) == (products == "float32")
