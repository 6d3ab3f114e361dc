import pytest
import torch

import algorithms
import bandoneon
import bandoneon.torch as bdn
from cluster_helpers import grads, linked, loss_of, make_batch, make_model, mean_grads, run_job, sgd
from reference_helpers import (
    WORKERS,
    Quadratic,
    assert_close,
    distributed,
    run_library,
)

EF = "ef(onebit)"
COMMON = dict(push=EF, pull=EF, momentum=0.9)
DENSE = dict(push="none", pull="none")
SMALL = dict(min_compress_bytes=1)


def test_each_parameter_goes_its_own_way():
    problem = Quadratic()
    sgd_of = distributed(
        lambda p: torch.optim.SGD(p, 0.01),
        **COMMON,
        overrides={
            "th*": dict(push="ef(topk(ratio=0.1))", pull="none", momentum=0.0, warmup=7),
            "sec?nd": DENSE,
            "*": dict(warmup=3),
        },
    )
    link, topk = algorithms.TwoWayErrorFeedback, algorithms.topk(0.1)
    onebit = algorithms.onebit
    ways = [
        link(WORKERS, onebit, onebit, mu=0.9, warmup=3),
        link(WORKERS, mu=0.9),
        link(WORKERS, topk, mu=0.0, warmup=7),
    ]
    rules = [algorithms.SGD(0.01) for _ in ways]
    expected = algorithms.every_step(problem.start, problem.gradient, 20, rules, ways)
    assert_close(run_library(problem, sgd_of, steps=20), expected)


def memories(state):
    """What each parameter's link keeps, by name, of a comm_state_dict()."""
    always = {"step", "learning_rate", "facts", "server"}
    return {name: set(entry) - always for name, entry in state["tensors"].items()}


def test_each_member_holds_its_own_memories():
    def job(worker):
        model = make_model()
        overrides = {
            "*.bias": DENSE,
            "0.*": dict(push="int8", momentum=0),
            "4.*": dict(momentum=0.0),
        }
        loss_of(model, make_batch(worker.rank)).backward()
        local = grads(model)
        model.zero_grad()
        optimizer = sgd(worker, model, **COMMON, overrides=overrides)
        loss_of(model, make_batch(worker.rank)).backward()
        state = optimizer.comm_state_dict()
        kept = memories(state)
        assert kept.pop("0.weight") == set()
        assert kept.pop("2.weight") == {"residual", "momentum"}
        assert kept.pop("4.weight") == {"residual"}
        assert kept == {name: {"momentum"} for name in ("0.bias", "2.bias", "4.bias")}
        assert state["tensors"]["4.weight"]["residual"].abs().sum() > 0
        for name in ("2.weight", "4.bias"):
            assert torch.equal(state["tensors"][name]["momentum"], local[name])
        optimizer.load_comm_state_dict(state)

    run_job(job, **SMALL)


def test_a_state_of_other_options_is_refused_saying_what_differs():
    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model, **COMMON)
        loss_of(model, make_batch(worker.rank)).backward()
        state = optimizer.comm_state_dict()
        optimizer.close()
        other = sgd(worker, model, **COMMON, overrides={"2.weight": DENSE}, prefix="other/")
        with pytest.raises(
            bandoneon.InvalidArgument, match="'2.weight' was saved under push='ef.onebit.'.*push='none'"
        ):
            other.load_comm_state_dict(state)
        state = other.comm_state_dict()
        third = sgd(worker, make_model(), **COMMON, prefix="third/")
        with pytest.raises(
            bandoneon.InvalidArgument, match="'2.weight' was saved under push='none'.*push='ef.onebit.'"
        ):
            third.load_comm_state_dict(state)

    run_job(job)


@pytest.mark.parametrize(
    "overrides, message",
    [
        ({"*.bais": DENSE}, r"'\*\.bais' of overrides fits no parameter.*'0\.weight'"),
        ({"*": DENSE, "*.bias": DENSE}, r"'\*\.bias' .*never applies: '0\.bias' fits '\*'"),
        ({"*.bias": dict(psuh="none")}, r"overrides\['\*\.bias'\] has 'psuh'; it takes push, pull"),
        ({"*.bias": dict(momentum=2)}, r"overrides\['\*\.bias'\]: momentum=2"),
        ({"*.bias": dict(push="fp16")}, r"overrides\['\*\.bias'\]: .*error feedback.*'fp16'"),
        ({"*.bias": dict(push="ef(threebit)")}, r"'0\.bias'.*threebit"),
    ],
    ids=["fits none", "shadowed", "unknown key", "bad momentum", "lossy momentum", "bad codec"],
)
def test_wrong_overrides_are_named(overrides, message):
    def job(worker):
        with pytest.raises(bandoneon.InvalidArgument, match=message):
            sgd(worker, make_model(), **COMMON, overrides=overrides)

    run_job(job)


def test_patterns_are_checked_only_against_the_parameters_of_the_construction():
    def job(worker):
        model, late = make_model(), torch.nn.Parameter(torch.zeros(3))
        optimizer = sgd(worker, model, **COMMON, overrides={"*.bias": DENSE})
        optimizer.add_param_group({"params": [late]}, named_parameters=[("late.bias", late)])
        (late * (worker.rank + 1)).sum().backward()
        return memories(optimizer.comm_state_dict())["late.bias"]

    assert run_job(job) == [{"momentum"}] * 2


def test_a_parameter_without_momentum_in_front_may_get_the_optimizers():
    def job(worker):
        model = make_model()
        weights = [p for name, p in model.named_parameters() if name.endswith("weight")]
        biases = [p for name, p in model.named_parameters() if name.endswith("bias")]
        groups = [
            {"params": weights, "momentum": 0.0},
            {"params": biases, "momentum": 0.8},
        ]
        inner = torch.optim.SGD(groups, lr=0.1)
        with pytest.raises(bandoneon.InvalidArgument, match="0.9.*0.8.*group 1 .*'0.bias'"):
            bdn.DistributedOptimizer(inner, model.named_parameters(), worker=worker, **linked(**COMMON))
        overrides = {"*.bias": dict(DENSE, momentum=0.0)}
        bdn.DistributedOptimizer(
            inner, model.named_parameters(), worker=worker, **linked(overrides=overrides, **COMMON)
        )

    run_job(job)


def test_the_hook_takes_them_too():
    def job(worker):
        model = make_model()
        state = bdn.DDPState(
            model.named_parameters(), worker=worker, **linked(overrides={"*.bias": DENSE}, **COMMON)
        )
        return memories(state.comm_state_dict())

    for kept in run_job(job):
        assert kept["0.bias"] == {"momentum"}
        assert kept["0.weight"] == {"momentum", "residual"}


def test_dense_parameters_among_compressed_ones_get_the_mean():
    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model, push=EF, pull=EF, overrides={"*.bias": DENSE})  # noqa: F841
        loss_of(model, make_batch(worker.rank)).backward()
        return grads(model)

    expected = mean_grads(make_model())
    for result in run_job(job, **SMALL):
        for name, value in expected.items():
            assert torch.equal(result[name], value) == name.endswith("bias"), name
