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
    Quadratic,
    assert_close,
    assert_reaches_the_optimum,
    distributed,
    links,
    run_library,
)

MU = 0.9
DECAY = 0.3  # Much, so that its place is seen.


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("decay", [0.0, DECAY])
def test_dist_ef_sgdm_equals_its_reference(codec, decay):
    spec, function = CODECS[codec]
    problem = Quadratic()
    result = run_library(
        problem,
        distributed(
            lambda p: bdn.algorithms.DecayMomentumSGD(p, 0.01, decay, decay_momentum=MU),
            push=spec,
            pull=spec,
            momentum=MU,
        ),
    )
    rules = [algorithms.DecayMomentumSGD(0.01, decay, MU) for _ in SHAPES]
    ways = links(function, function, mu=MU)
    expected = algorithms.every_step(problem.start, problem.gradient, STEPS, rules, ways)
    assert_close(result, expected, atol=1e-5)


@pytest.mark.parametrize("codec", CODECS)
def test_sgd_over_error_feedback_equals_its_reference(codec):
    spec, function = CODECS[codec]
    problem = Quadratic()
    result = run_library(
        problem, distributed(lambda p: torch.optim.SGD(p, 0.02), push=spec, pull=spec, warmup=3)
    )
    rules = [algorithms.SGD(0.02) for _ in SHAPES]
    ways = links(function, function, warmup=3)
    assert_close(
        result, algorithms.every_step(problem.start, problem.gradient, STEPS, rules, ways)
    )


def test_sgd_over_two_bits_equals_its_reference():
    """The pull is whole: means of a few levels often lie between two of the next, where a rounding decides."""
    problem = Quadratic()
    result = run_library(problem, distributed(lambda p: torch.optim.SGD(p, 0.02), push="ef(twobit)"))
    rules = [algorithms.SGD(0.02) for _ in SHAPES]
    assert_close(result, algorithms.every_step(problem.start, problem.gradient, STEPS, rules, links(algorithms.twobit)))


def test_uncompressed_it_is_torchs_nesterov_sgd_with_weight_decay():
    problem = Quadratic()
    ours = distributed(
        lambda p: bdn.algorithms.DecayMomentumSGD(p, 0.02, DECAY, decay_momentum=MU), momentum=MU
    )
    torchs = distributed(
        lambda p: torch.optim.SGD(p, 0.02, momentum=MU, nesterov=True, weight_decay=DECAY)
    )
    assert_close(run_library(problem, ours), run_library(problem, torchs), atol=1e-5)


@pytest.mark.parametrize("spec", CONVERGING)
def test_it_reaches_the_optimum(spec):
    assert_reaches_the_optimum(
        distributed(lambda p: bdn.algorithms.DecayMomentumSGD(p, 0.0), push=spec, pull=spec, momentum=0.5),
        lr=0.02,
    )


def test_bad_settings_are_named():
    with pytest.raises(bandoneon.InvalidArgument, match="decay_momentum=1.0"):
        bdn.algorithms.DecayMomentumSGD([torch.nn.Parameter(torch.zeros(1))], 0.1, decay_momentum=1.0)
