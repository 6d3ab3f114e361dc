import numpy as np
import pytest
import torch

import algorithms
import bandoneon
import bandoneon.torch as bdn
from bandoneon.calls import Declaration
from cluster_helpers import linked, run_job
from reference_helpers import (
    SHAPES,
    STEPS,
    WORKERS,
    Quadratic,
    assert_close,
    assert_reaches_the_optimum,
    assert_same_bits,
    links,
    run_library,
    run_ranks,
    values,
)

SDP4BIT = dict(push="int4(hadamard=32)", pull="delta(int4(group=2048))")


def server(make_inner, **options):
    """For run_library: ServerOptimizer around make_inner(list of parameters)."""
    return lambda worker, params: bdn.ServerOptimizer(
        make_inner(list(params.values())), params.items(), worker=worker, **linked(**options)
    )


def adamw(params):
    return torch.optim.AdamW(params, lr=0.02, weight_decay=0.1)


INNER = {
    "sgd": lambda p: torch.optim.SGD(p, 0.02, weight_decay=0.1),
    "momentum": lambda p: torch.optim.SGD(p, 0.02, momentum=0.9),
    "nesterov": lambda p: torch.optim.SGD(p, 0.02, momentum=0.9, nesterov=True, weight_decay=0.1),
    "adamw": adamw,
    "adam": lambda p: torch.optim.Adam(p, lr=0.02, betas=(0.8, 0.9), eps=1e-6),
}


def trained_by_torch(problem, make_inner):
    """By plain torch on the workers' mean gradient."""
    params = list(problem.parameters().values())
    optimizer = make_inner(params)
    for t in range(1, STEPS + 1):
        model = [p.detach().numpy() for p in params]
        local = [problem.gradient(rank, t, model) for rank in range(WORKERS)]
        for b, param in enumerate(params):
            param.grad = torch.from_numpy(sum(g[b] for g in local) / np.float32(WORKERS))
        optimizer.step()
    return [p.detach().numpy() for p in params]


@pytest.mark.parametrize("name", INNER)
def test_uncompressed_it_is_torchs_optimizer_on_the_mean_gradient(name):
    problem = Quadratic()
    result = run_library(problem, server(INNER[name]))
    assert_close(result, trained_by_torch(problem, INNER[name]))


@pytest.mark.parametrize("push", ["none", "ef(topk(ratio=0.1))"])
def test_sdp4bit_equals_its_reference(push):
    # Codecs that need no draw, in the place of int4.
    problem, half = Quadratic(), algorithms.topk(0.5)
    result = run_library(problem, server(adamw, push=push, pull="delta(topk(ratio=0.5))"))
    rules = [algorithms.AdamW(0.02, wd=0.1) for _ in SHAPES]
    ways = links(algorithms.none if push == "none" else algorithms.topk(0.1))
    expected = algorithms.sdp4bit(problem.start, problem.gradient, STEPS, rules, ways, half)
    assert_close(result, expected)


@pytest.mark.parametrize("options", [{}, SDP4BIT, dict(SDP4BIT, warmup=5)])
def test_the_replicas_are_equal_after_every_step_and_no_worker_keeps_moments(options):
    def look(optimizer, params):
        assert not optimizer.inner.state and not any(optimizer.state.values())
        return values(params)

    for models in zip(*run_ranks(Quadratic(), server(adamw, **options), 12, look=look)):
        assert_same_bits(models)


def test_the_replica_is_the_servers():
    def look(optimizer, params):
        fetched = [w.numpy() for w in optimizer._links.fetch_weights()]
        assert_same_bits([fetched, values(params)])
        return len(fetched)

    run_ranks(Quadratic(), server(adamw, **SDP4BIT), 5, look=look)


def test_it_starts_from_rank_0():
    def job(worker):
        param = torch.nn.Parameter(torch.full((5,), 1.0 + worker.rank))
        bdn.ServerOptimizer(torch.optim.SGD([param], 0.1), [("p", param)], worker=worker)
        return param.tolist()

    assert run_job(job) == [[1.0] * 5] * 2


@pytest.mark.parametrize(
    "options",
    [
        dict(push="ef(topk(ratio=0.25))", pull="delta(topk(ratio=0.25))"),
        dict(push="int4(group=32,hadamard=32)", pull="delta(int4(group=32))"),
    ],
    ids=["topk", "int4"],
)
def test_it_reaches_the_optimum(options):
    assert_reaches_the_optimum(server(lambda p: torch.optim.SGD(p, 0.0), **options), 0.1, 150)


def test_a_parameter_without_a_gradient_in_all_workers_stays_and_one_in_some_moves():
    def job(worker):
        params = [torch.nn.Parameter(torch.ones(4)) for _ in range(2)]
        named = list(zip(["never", "sometimes"], params))
        inner = torch.optim.AdamW(params, 0.1, weight_decay=0.5)
        optimizer = bdn.ServerOptimizer(inner, named, pull="delta(int8)", worker=worker)
        if worker.rank == 0:
            params[1].sum().backward()
        optimizer.step()
        assert params[0].tolist() == [1.0] * 4
        return params[1].tolist()

    first, second = run_job(job)
    assert first == second and first[0] < 1


def test_a_gradient_that_is_not_finite_in_one_worker_skips_the_step_on_all_servers():
    # Weights, moments and counts stay: as if the step had not been.
    def train(poisoned):
        def job(worker):
            params = {name: torch.nn.Parameter(torch.ones(300)) for name in ("a", "b", "c")}
            optimizer = server(adamw, **SDP4BIT)(worker, params)
            for step in range(4):
                optimizer.zero_grad()
                sum((p * (i + step)).sum() for i, p in enumerate(params.values(), 1)).backward()
                if step == 2 and worker.rank == 1:
                    params["b"].grad[7] = float("nan") if poisoned else 0.0
                before = state_of(optimizer)
                if step != 2 or poisoned:
                    optimizer.step()
                if step == 2 and poisoned:
                    assert state_of(optimizer) == before
            assert optimizer.skipped_steps == int(poisoned)
            return [p.detach().numpy() for p in params.values()]

        return run_job(job, servers=3, seed=4, min_compress_bytes=1)

    # Draws count by steps that were pushed, and the skipped one was not.
    for poisoned, clean in zip(train(True), train(False)):
        assert_same_bits([poisoned, clean])


def state_of(optimizer):
    """What is known of it, comparable."""
    tensors = optimizer.comm_state_dict()["tensors"]
    return repr([(name, plain(entry)) for name, entry in tensors.items()])


def plain(entry):
    if isinstance(entry, torch.Tensor):
        return entry.tolist()
    return {key: plain(value) for key, value in entry.items()} if isinstance(entry, dict) else entry


def test_clipping_is_of_each_workers_own_gradient():
    def job(worker):
        params = [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]
        inner = torch.optim.SGD(params, 1.0)
        optimizer = bdn.ServerOptimizer(inner, zip("ab", params), max_norm=1.0, worker=worker)
        scale = [10.0, 0.5][worker.rank]  # Gradients of norm 20 and 1.
        sum((scale * p).sum() for p in params).backward()
        optimizer.step()
        return torch.cat([p.detach() for p in params])

    for result in run_job(job):
        torch.testing.assert_close(result, torch.full((4,), -0.5))


def test_a_worker_that_never_fetched_its_replica_gets_it_with_its_first_reply():
    def job(worker):
        (tensor,) = worker.declare([Declaration("x", 100, rule="sgd", pull="delta(int8)")])
        data = torch.full((100,), 3.0)
        if worker.rank == 0:
            worker.set_server_state(tensor, "weights", data.data_ptr(), 100)
        worker.barrier("set")
        data.fill_(1.0)
        worker.wait(worker.push(tensor, data.data_ptr(), keep=data, learning_rate=0.5), 10)
        return data.tolist()

    for result in run_job(job, min_compress_bytes=1):
        assert result == pytest.approx([2.5] * 100, abs=0.01)


@pytest.mark.parametrize(
    "make, options, message",
    [
        (lambda p: torch.optim.Adagrad(p), {}, "steps of Adagrad.*DistributedOptimizer"),
        (lambda p: torch.optim.AdamW(p, amsgrad=True), {}, "AdamW.*amsgrad=True"),
        (lambda p: torch.optim.Adam(p, weight_decay=0.1), {}, "Adam.*weight_decay=0.1"),
        (lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, dampening=0.5), {}, "dampening=0.5"),
        (adamw, dict(push="delta(int4)"), r"'p': delta\(int4\) is for pulling weights"),
        (adamw, dict(pull="ef(onebit)"), r"ef\(onebit\) is for pulling gradients; weights take"),
        (adamw, dict(pull="sign"), "only the rule sign_momentum can be pulled as sign"),
        (adamw, dict(max_norm=-1), "max_norm=-1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_contradicts_itself_is_refused_at_construction(make, options, message):
    def job(worker):
        param = torch.nn.Parameter(torch.ones(100))
        with pytest.raises(bandoneon.InvalidArgument, match=message):
            bdn.ServerOptimizer(make([param]), [("p", param)], worker=worker, **linked(**options))

    run_job(job)


def test_a_second_one_is_refused_until_the_first_is_closed_and_may_have_other_settings():
    def job(worker):
        param = torch.nn.Parameter(torch.ones(100))
        first = bdn.ServerOptimizer(adamw([param]), [("p", param)], worker=worker)
        sgd = torch.optim.SGD([param], 0.1)
        with pytest.raises(bandoneon.InvalidArgument, match="'p' is already exchanged by another"):
            bdn.ServerOptimizer(sgd, [("p", param)], worker=worker)
        first.close()
        second = bdn.ServerOptimizer(sgd, [("p", param)], worker=worker)  # The name is a new tensor's.
        param.grad = torch.full((100,), 10.0 * (worker.rank + 1))
        second.step()
        torch.testing.assert_close(param.detach(), torch.full((100,), 1 - 0.1 * 15.0))
        with pytest.raises(bandoneon.InvalidArgument, match="ServerOptimizer exchanges by itself"):
            bdn.ServerOptimizer(first, [("p", param)], worker=worker)

    run_job(job)


def test_other_settings_in_one_worker_are_refused_naming_both():
    both = "(?=.*worker 0 says rule=sgd)(?=.*worker 1 says rule=adamw)"

    def job(worker):
        param = torch.nn.Parameter(torch.ones(100))
        inner = adamw([param]) if worker.rank else torch.optim.SGD([param], 0.1)
        with pytest.raises(bandoneon.InvalidArgument, match=both):
            bdn.ServerOptimizer(inner, [("p", param)], worker=worker)

    run_job(job)


def test_what_it_does_not_do_is_refused():
    def job(worker):
        param = torch.nn.Parameter(torch.ones(3))
        optimizer = bdn.ServerOptimizer(adamw([param]), [("p", param)], worker=worker)
        with pytest.raises(bandoneon.Unimplemented, match="when it is made"):
            optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})

    run_job(job)
