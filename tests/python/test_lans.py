import pytest
import torch

import algorithms
import bandoneon
import bandoneon.torch as bdn
from cluster_helpers import make_model, mean_grads, model_hash, run_job, train
from reference_helpers import (
    CODECS,
    CONVERGING,
    SHAPES,
    STEPS,
    Quadratic,
    assert_close,
    assert_reaches_the_optimum,
    distance,
    distributed,
    links,
    run_library,
)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    "settings", [{}, dict(weight_decay=0.0), dict(normalize_grad=True)], ids=str
)
def test_clan_equals_its_reference(codec, settings):
    spec, function = CODECS[codec]
    problem = Quadratic()
    result = run_library(
        problem, distributed(lambda p: bdn.algorithms.LANS(p, lr=0.02, **settings), push=spec, pull=spec)
    )
    plain = {"wd" if key == "weight_decay" else key: value for key, value in settings.items()}
    rules = [algorithms.LANS(0.02, **plain) for _ in SHAPES]
    expected = algorithms.every_step(
        problem.start, problem.gradient, STEPS, rules, links(function, function)
    )
    assert distance(expected, problem.start) > 0.1
    assert_close(result, expected)


def test_a_norm_of_zero_gives_a_ratio_of_one():
    param = torch.nn.Parameter(torch.zeros(3))
    optimizer = bdn.algorithms.LANS([param], lr=0.1, weight_decay=0.0)
    param.grad = torch.tensor([1.0, -1.0, 0.0])
    optimizer.step()  # |x| is 0: Adam's step.
    torch.testing.assert_close(param.detach(), torch.tensor([-0.1, 0.1, 0.0]))
    param = torch.nn.Parameter(torch.ones(3))
    optimizer = bdn.algorithms.LANS([param], lr=0.1, weight_decay=0.0)
    param.grad = torch.zeros(3)
    optimizer.step()  # |r| is 0: no step, and no NaN.
    assert torch.equal(param.detach(), torch.ones(3))


def test_the_length_of_a_step_is_that_of_the_weights_without_decay_too():
    param = torch.nn.Parameter(torch.full((4,), 3.0))
    optimizer = bdn.algorithms.LANS([param], lr=0.1, weight_decay=0.0)
    param.grad = torch.tensor([5.0, 0.1, -2.0, 1e-3])
    before = param.detach().clone()
    optimizer.step()  # Both directions are the same at the first step.
    step = torch.linalg.vector_norm(param.detach() - before)
    torch.testing.assert_close(step, 0.1 * torch.linalg.vector_norm(before), rtol=1e-3, atol=0)


@pytest.mark.parametrize(
    "settings",
    [
        dict(),
        dict(servers=3),
        dict(servers=2, partition_bytes="4KiB", fusion_bytes="1KiB"),
        dict(servers=3, fusion_bytes=0),
    ],
    ids=str,
)
def test_clan_without_compression_equals_lans_on_the_mean_gradient_bit_for_bit(settings):
    def job(worker):
        model = make_model(width=512)
        optimizer = bdn.DistributedOptimizer(
            bdn.algorithms.LANS(model.parameters(), lr=0.01), model.named_parameters(), worker=worker
        )
        return model_hash(train(worker, model, optimizer, steps=4, loss=wide_loss))

    reference = make_model(width=512)
    optimizer = bdn.algorithms.LANS(reference.parameters(), lr=0.01)
    for step in range(4):
        means = mean_grads(reference, workers=4, step=step, loss=wide_loss)
        for param, grad in zip(reference.parameters(), means.values()):
            param.grad = grad
        optimizer.step()
    assert run_job(job, workers=4, **settings) == [model_hash(reference)] * 4


def wide_loss(model, batch):
    """The batches of cluster_helpers, repeated to the width of the model."""
    return model(batch.repeat(1, 86)[:, :512]).square().mean()


@pytest.mark.parametrize("spec", CONVERGING)
def test_clan_reaches_the_optimum(spec):
    assert_reaches_the_optimum(
        distributed(lambda p: bdn.algorithms.LANS(p, lr=0.0, weight_decay=0.0), push=spec, pull=spec), lr=0.03
    )


def test_its_state_is_saved_and_loaded():
    def step(optimizer, param, value):
        param.grad = torch.full_like(param, value)
        optimizer.step()

    first = torch.nn.Parameter(torch.ones(5))
    optimizer = bdn.algorithms.LANS([first], lr=0.1)
    step(optimizer, first, 0.5)
    second = torch.nn.Parameter(first.detach().clone())
    resumed = bdn.algorithms.LANS([second], lr=0.3)
    resumed.load_state_dict(optimizer.state_dict())
    step(optimizer, first, -0.7)
    step(resumed, second, -0.7)
    assert torch.equal(first, second)


@pytest.mark.parametrize(
    "bad", [dict(lr=-1.0), dict(lr=0.1, betas=(1.0, 0.9)), dict(lr=0.1, eps=float("nan"))], ids=str
)
def test_bad_settings_are_named(bad):
    with pytest.raises(bandoneon.InvalidArgument, match="lr=-1.0|beta1=1.0|eps=nan"):
        bdn.algorithms.LANS([torch.nn.Parameter(torch.zeros(1))], **bad)
