import pytest
import torch

import algorithms
import bandoneon
import bandoneon.torch as bdn
from reference_helpers import (
    CODECS,
    CONVERGING,
    SHAPES,
    STEPS,
    PartlyUnseen,
    Quadratic,
    assert_close,
    assert_reaches_the_optimum,
    distance,
    distributed,
    links,
    run_library,
)

FREEZE = 15


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("kind", [Quadratic, PartlyUnseen])
def test_it_equals_its_reference(codec, kind):
    spec, function = CODECS[codec]
    problem = kind()
    result = run_library(
        problem,
        distributed(
            lambda p: bdn.algorithms.FrozenAdamW(p, lr=0.02, freeze_after=FREEZE),
            push=spec,
            pull=spec,
            warmup=FREEZE,
        ),
    )

    def expected(freeze_after):
        rules = [algorithms.AdamW(0.02, wd=0.01, freeze_after=freeze_after) for _ in SHAPES]
        ways = links(function, function, warmup=FREEZE)
        return algorithms.every_step(problem.start, problem.gradient, STEPS, rules, ways)

    assert_close(result, expected(FREEZE))
    assert distance(result, expected(STEPS)) > 0.01  # The freezing is seen.


@pytest.mark.parametrize("codec", CODECS)
def test_torchs_adamw_equals_the_reference_too(codec):
    spec, function = CODECS[codec]
    problem = Quadratic()
    adamw = distributed(lambda p: torch.optim.AdamW(p, lr=0.02), push=spec, pull=spec, warmup=5)
    rules = [algorithms.AdamW(0.02, wd=0.01) for _ in SHAPES]
    ways = links(function, function, warmup=5)
    assert_close(
        run_library(problem, adamw),
        algorithms.every_step(problem.start, problem.gradient, STEPS, rules, ways),
    )


def test_before_it_freezes_it_is_torchs_adamw():
    params = [torch.nn.Parameter(torch.linspace(-1, 1, 7)) for _ in range(2)]
    ours = bdn.algorithms.FrozenAdamW(params[:1], lr=0.1, freeze_after=10)
    torchs = torch.optim.AdamW(params[1:], lr=0.1)
    for step in range(10):
        for param, optimizer in zip(params, (ours, torchs)):
            param.grad = torch.sin(torch.arange(7.0) + step)
            optimizer.step()
        torch.testing.assert_close(params[0], params[1])


@pytest.mark.parametrize("spec", CONVERGING)
def test_it_reaches_the_optimum(spec):
    assert_reaches_the_optimum(
        distributed(
            lambda p: bdn.algorithms.FrozenAdamW(p, lr=0.0, weight_decay=0.0, freeze_after=130),
            push=spec,
            pull=spec,
            warmup=130,
        ),
        lr=0.1,
    )


@pytest.mark.parametrize("freeze_after", [0, 1.5])
def test_a_freeze_that_is_no_step_is_refused(freeze_after):
    with pytest.raises(bandoneon.InvalidArgument, match=f"freeze_after={freeze_after}"):
        bdn.algorithms.FrozenAdamW([torch.nn.Parameter(torch.zeros(1))], freeze_after=freeze_after)
