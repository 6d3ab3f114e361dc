"""Saving in the middle: a new job goes on with the bits of the undisturbed one."""

import copy
import io
from functools import partial

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp

import bandoneon
import bandoneon.torch as bdn
from bandoneon.torch.comm_state import CommState
from cluster_helpers import linked, run_job
from reference_helpers import WORKERS, Quadratic, assert_same_bits, values

SETTINGS = dict(workers=WORKERS, servers=2, seed=5, min_compress_bytes=1)
SAVED, STEPS = 7, 15
EF = "ef(onebit(block=32))"
STREAMING = bdn.algorithms.Streaming(9, fragments=3, delay=2)  # When it is saved, what met after step 6 travels.


def distributed(worker, params, inner=lambda p: torch.optim.SGD(p, 0.02), **options):
    return bdn.DistributedOptimizer(
        inner(list(params.values())), params.items(), worker=worker, **linked(scaler=None, **options)
    )


def server(worker, params, **options):
    inner = torch.optim.AdamW(params.values(), 0.02)
    return bdn.ServerOptimizer(inner, params.items(), worker=worker, **linked(**options))


def local(worker, params, tau=4, outer=bdn.algorithms.SignMomentum(), push="ef(topk(ratio=0.1))", **options):
    inner = torch.optim.AdamW(params.values(), 0.02)
    return bdn.LocalSteps(
        inner, params.items(), tau=tau, outer=outer, worker=worker, **linked(push=push, **options)
    )


def cser(worker, params, period=5, gradient=4, reset=2, momentum=0.9, **options):
    inner = torch.optim.SGD(params.values(), 0.02, momentum=momentum, nesterov=True)
    options = dict(period=period, gradient=gradient, reset=reset, block=8, **options)
    return bdn.algorithms.CSER(inner, params.items(), worker=worker, **linked(**options))


def onebit_adam(worker, params, warmup=10, **options):
    named = params.items()
    return bdn.algorithms.OneBitAdam(
        named, worker=worker, **linked(warmup=warmup, **options)
    )


def ef21(worker, params, inner=lambda p: torch.optim.AdamW(p, 0.02, betas=(0.0, 0.95)), momentum=0.95, **options):
    links = linked(**{"push": EF, "pull": "delta(onebit(block=32))", **options})
    return bdn.algorithms.EF21(inner(list(params.values())), params.items(), momentum=momentum, worker=worker, **links)


def lion(worker, params, **options):
    return bdn.algorithms.Lion(params.items(), worker=worker, **linked(**options))


def demo(worker, params, chunk=6, pull="ef(topk(ratio=0.1))", **options):
    named = params.items()
    return bdn.algorithms.DeMo(
        named, chunk=chunk, worker=worker, **linked(push="topk(ratio=0.1)", pull=pull, **options)
    )


OPTIMIZERS = {
    "distributed, ef": partial(distributed, push=EF, pull=EF),
    "distributed, spaces": partial(distributed, push="ef (onebit( block = 32 ))", pull=EF),
    "distributed, momentum": partial(distributed, push=EF, pull=EF, momentum=0.9),
    "distributed, warm-up": partial(
        distributed, push="ef(topk(ratio=0.1))", pull="dither", warmup=10
    ),
    "distributed, correction": partial(
        distributed, push="ef(onebit,correction=lr)", pull="ef(onebit,correction=lr)"
    ),
    "distributed, LANS": partial(
        distributed, inner=lambda p: bdn.algorithms.LANS(p, 0.02), push=EF, pull="int8"
    ),
    "server": partial(server, push="int4(hadamard=32)", pull="delta(int4(group=2048))"),
    "server, warm-up": partial(server, push=EF, pull="delta(int4)", warmup=10),
    "server, plain": server,
    "local, signs": local,
    "local, delta": partial(local, outer=bdn.algorithms.Nesterov(), pull="delta(int4)"),
    "local, growing": partial(local, tau=bdn.algorithms.QSR(alpha=0.03, least=2, most=6), outer=bdn.algorithms.Average()),
    "local, streaming": partial(
        local, tau=STREAMING, outer=bdn.algorithms.Nesterov(), push=EF, pull="delta(onebit(block=32))"
    ),
    "local, streaming signs": partial(local, tau=bdn.algorithms.Streaming(9, 3, 2, merge=0.25)),
    "local, streaming, residual": partial(
        local, tau=STREAMING, outer=bdn.algorithms.Average(), local_residual=True, push="topk(ratio=0.1)"
    ),
    "local, fragments": partial(local, tau=bdn.algorithms.Streaming(9, 3)),
    "local, residual": partial(
        local, outer=bdn.algorithms.Average(), local_residual=True, push="topk(ratio=0.1)", pull="delta(onebit(block=32))"
    ),
    "local, slowmo": partial(local, outer=bdn.algorithms.SlowMo(), push="int8"),
    "cser": cser,
    "cser, topk": partial(cser, gradient="topk(ratio=0.1)", reset="topk(ratio=0.5)"),
    "cser, model": partial(cser, implementation="model"),
    "cser, resets only": partial(cser, gradient=None),
    "one bit": onebit_adam,
    "ef21": ef21,
    "demo": demo,
    "lion": lion,
    "lion, mean": partial(lion, vote="mean", pull="int8"),
    "ef21, nesterov": partial(ef21, nesterov=True, push="ef(topk(ratio=0.1))", pull="none"),
}


def rate(t):
    return 0.03 * 0.9**t


def train(problem, worker, params, optimizer, steps):
    """However many workers: the problem's are shared out in turns."""
    for t in steps:
        for group in optimizer.param_groups:
            group["lr"] = rate(t)
        optimizer.zero_grad()
        model = [p.detach().numpy() for p in params.values()]
        grads = map(torch.from_numpy, problem.gradient(worker.rank % WORKERS, t, model))
        sum((p * g).sum() for p, g in zip(params.values(), grads)).backward()
        optimizer.step()


def saved(params, optimizer):
    """A rank's checkpoint, as bytes."""
    buffer = io.BytesIO()
    weights = {name: p.detach() for name, p in params.items()}
    torch.save((weights, optimizer.state_dict(), optimizer.comm_state_dict()), buffer)
    return buffer.getvalue()


def load(checkpoint, params, optimizer):
    weights, state, comm = torch.load(io.BytesIO(checkpoint), weights_only=True)
    with torch.no_grad():
        for name, p in params.items():
            p.copy_(weights[name])
    optimizer.load_state_dict(state)
    optimizer.load_comm_state_dict(comm)


def result_of(params, optimizer):
    if not hasattr(optimizer, "common_weights"):
        return values(params)
    with optimizer.common_weights():
        return values(params)


def both_ways(make, keep, take_up):
    """Trains through, with keep(worker, params, optimizer) after some steps; then in a new job goes on
    from take_up(worker, params, optimizer, what was kept). Both results of each rank."""
    problem = Quadratic()

    def whole(worker):
        params = problem.parameters()
        optimizer = make(worker, params)
        train(problem, worker, params, optimizer, range(1, SAVED + 1))
        kept = keep(worker, params, optimizer)
        worker.barrier("kept")
        train(problem, worker, params, optimizer, range(SAVED + 1, STEPS + 1))
        return kept, values(params), result_of(params, optimizer)

    def resumed(worker):
        params = problem.parameters()
        optimizer = make(worker, params)
        take_up(worker, params, optimizer, undisturbed[worker.rank][0])
        train(problem, worker, params, optimizer, range(SAVED + 1, STEPS + 1))
        return None, values(params), result_of(params, optimizer)

    undisturbed = run_job(whole, **SETTINGS)
    return zip(undisturbed, run_job(resumed, **SETTINGS))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_new_job_goes_on_with_the_same_bits(name):
    ranks = both_ways(
        OPTIMIZERS[name],
        lambda worker, params, optimizer: saved(params, optimizer),
        lambda worker, params, optimizer, kept: load(kept, params, optimizer),
    )
    for (_, own, common), (_, own_resumed, common_resumed) in ranks:
        assert_same_bits([own, own_resumed])
        assert_same_bits([common, common_resumed])


CODECS = [
    *("fp16", "bf16", "int8", "int4", "int4(hadamard=32)", "int2", "dither", "onebit(block=32)", "twobit(block=32)"),
    "onebit(block=32,scale=bf16)",
    *("topk(ratio=0.1)", "randomk(ratio=0.1)", "blocks(ratio=0.5,size=8)"),
    *("sketch(columns=0.5)", "exactsketch(cells=0.5)"),
]
PULLS = {**{codec: codec for codec in CODECS}, **{f"delta({codec})": codec for codec in CODECS}}


@pytest.mark.parametrize("pull", PULLS)
@pytest.mark.parametrize("make", [server, partial(local, outer=bdn.algorithms.Nesterov(lr=0.1))])
def test_weights_are_taken_up_as_the_workers_held_them(make, pull):
    ranks = both_ways(
        partial(make, push=f"ef({PULLS[pull]})", pull=pull),
        lambda worker, params, optimizer: saved(params, optimizer),
        lambda worker, params, optimizer, kept: load(kept, params, optimizer),
    )
    for (_, own, common), (_, own_resumed, common_resumed) in ranks:
        assert_same_bits([own, own_resumed])
        assert_same_bits([common, common_resumed])


def test_without_its_comm_state_it_would_not():
    def load_partly(worker, params, optimizer, kept):
        weights, state, _ = torch.load(io.BytesIO(kept), weights_only=True)
        with torch.no_grad():
            for name, p in params.items():
                p.copy_(weights[name])
        optimizer.load_state_dict(state)

    make = OPTIMIZERS["distributed, ef"]
    ranks = both_ways(make, lambda worker, params, optimizer: saved(params, optimizer), load_partly)
    for (_, own, _), (_, own_resumed, _) in ranks:
        assert not np.array_equal(own[0], own_resumed[0])


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("name", ["distributed, momentum", "server", "cser", "local, signs", "local, streaming", "local, fragments"])
def test_it_goes_through_distributed_checkpoints(name, tmp_path):
    def parts(worker, params, optimizer):
        model = torch.nn.ParameterDict(params)
        return {"model": model, "comm": CommState(optimizer, worker=worker)}

    def keep(worker, params, optimizer):
        path = tmp_path / str(worker.rank)  # Every rank is alone here, without a process group.
        dcp.save(parts(worker, params, optimizer), checkpoint_id=path, no_dist=True)
        return path, copy.deepcopy(optimizer.state_dict())

    def take_up(worker, params, optimizer, kept):
        path, state = kept
        optimizer.load_state_dict(state)
        dcp.load(parts(worker, params, optimizer), checkpoint_id=path, no_dist=True)

    for (_, own, _), (_, own_resumed, _) in both_ways(OPTIMIZERS[name], keep, take_up):
        assert_same_bits([own, own_resumed])


def test_another_ranks_state_is_refused():
    def job(worker):
        optimizer = distributed(worker, Quadratic().parameters(), push=EF)
        comm = CommState(optimizer, worker=worker)
        state = comm.state_dict()
        assert list(state) == [f"rank{worker.rank}"]
        other = {"rank7": state[f"rank{worker.rank}"]}
        with pytest.raises(bandoneon.InvalidArgument, match="of rank7, and this is rank"):
            comm.load_state_dict(other)
        entry = dict(state[f"rank{worker.rank}"], rank=7)
        with pytest.raises(bandoneon.InvalidArgument, match="of worker 7 of 3"):
            optimizer.load_comm_state_dict(entry)

    run_job(job, **SETTINGS)


MISFITS = {
    "algorithm": (distributed, server, "algorithm='DistributedOptimizer', and here .*'ServerOptim"),
    "algorithms around": (local, cser, "algorithm='LocalSteps', and here .*'CSER'"),
    "one bit": (distributed, onebit_adam, "algorithm='DistributedOptimizer'.*'OneBitAdam'"),
    "codec": (
        partial(distributed, push=EF),
        partial(distributed, push="ef(onebit)"),
        r"'first' was saved under push='ef\(onebit\(block=32\)\)', and here it has push='ef\(onebit",
    ),
    "pull": (
        partial(server, pull="delta(int4)"),
        server,
        r"saved under pull='delta\(int4\)', and here it has pull='none'",
    ),
    "momentum": (
        partial(distributed, push=EF, momentum=0.9),
        partial(distributed, push=EF, momentum=0.8),
        "momentum=0.9, and here it has momentum=0.8",
    ),
    "outer step": (
        local,
        partial(local, outer=bdn.algorithms.SignMomentum(decay=0.2)),
        "rule='sign_momentum.*decay=0.1.*rule='sign_momentum.*decay=0.2",
    ),
    "tau": (local, partial(local, tau=5), "tau=4, and here it is tau=5"),
    "growing tau": (
        local, partial(local, tau=bdn.algorithms.QSR(alpha=0.03, least=2, most=6)), "tau=4, and here it is tau='QSR"
    ),
    "streaming": (
        partial(local, tau=STREAMING),
        partial(local, tau=bdn.algorithms.Streaming(9, 3, 2, merge=0.5)),
        "tau=.Streaming.*shift.*, and here it is tau=.Streaming.*merge=0.5",
    ),
    "period": (cser, partial(cser, period=6), "period=5, and here it is period=6"),
    "ratio": (cser, partial(cser, reset=4), "reset='blocks.*0.5.*reset='blocks.*0.25"),
    "implementation": (
        cser,
        partial(cser, implementation="model"),
        "implementation='residual', and here it is implementation='model'",
    ),
    "chunk": (demo, partial(demo, chunk=4), "chunk=6, and here it is chunk=4"),
    "vote": (lion, partial(lion, vote="mean", pull="none"), "vote='majority', and here it is vote='mean'"),
    "tracked momentum": (ef21, partial(ef21, momentum=0.9), "momentum=0.95, and here it is momentum=0.9"),
    "frozen after": (onebit_adam, partial(onebit_adam, warmup=11), "warmup=10, .* warmup=11"),
}


@pytest.mark.parametrize("case", MISFITS)
def test_a_state_of_something_else_is_refused_saying_what_differs(case):
    saving, loading, message = MISFITS[case]

    def job(worker):
        problem = Quadratic()
        params = problem.parameters()
        optimizer = saving(worker, params, prefix="saved/")
        train(problem, worker, params, optimizer, [1])
        state = optimizer.comm_state_dict()
        optimizer.close()
        other = loading(worker, problem.parameters(), prefix="loading/")
        with pytest.raises(bandoneon.InvalidArgument, match=message):
            other.load_comm_state_dict(state)

    run_job(job, **SETTINGS)


def test_a_spec_spelled_otherwise_is_the_same():
    def job(worker):
        params = Quadratic().parameters()
        optimizer = distributed(worker, params, push="ef (onebit( block = 32 ))")
        state = optimizer.comm_state_dict()
        optimizer.close()
        distributed(worker, params, push=EF).load_comm_state_dict(state)

    run_job(job, **SETTINGS)


def test_a_state_of_another_model_is_refused_saying_what_differs():
    def job(worker):
        def make(prefix, **shapes):
            params = {name: torch.nn.Parameter(torch.ones(n)) for name, n in shapes.items()}
            return distributed(worker, params, push=EF, prefix=prefix)

        state = make("saved/", a=3, b=4).comm_state_dict()
        for other, message in [
            (dict(a=3), "has 'b', which is not a parameter here"),
            (dict(a=3, b=4, c=5), "has no 'c'"),
            (dict(a=3, b=5), "residual of 'b' has 4 elements, the parameter 5"),
        ]:
            with pytest.raises(bandoneon.InvalidArgument, match=message):
                make(f"{len(other)}{other.get('b')}/", **other).load_comm_state_dict(state)

    run_job(job, **SETTINGS)
