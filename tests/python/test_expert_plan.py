"""ExpertPlan: the cost of copies, the greedy choice, and steps that come out the same with copies and without."""

import itertools
import math
import random

import pytest
import torch

import bandoneon
import bandoneon.torch as bdn
from cluster_helpers import run_job

ExpertPlan = bdn.algorithms.ExpertPlan
COSTS = dict(token_bytes=1.0, expert_bytes=30.0, rate=1.0, bandwidth=2.0)


def drawn(seed, devices=4, experts=4, tokens=60):
    draw = random.Random(seed)
    shares = [draw.gammavariate(0.4, 1) + 1e-9 for _ in range(experts)]
    rows = [draw.choices(range(experts), shares, k=tokens) for _ in range(devices)]
    return [[row.count(e) for e in range(experts)] for row in rows]


def test_the_cost_is_that_of_the_formula():
    plan = ExpertPlan([[5, 1], [7, 3]], **COSTS)
    assert plan.owners == (0, 1)
    assert plan.loads(((), ())) == [12, 4] and plan.received(((), ())) == [7, 1]
    assert plan.cost(((), ())) == 4 * 7 / 2 + 3 * 12
    assert plan.loads(((1,), ())) == [5, 11] and plan.received(((1,), ())) == [0, 1]
    assert plan.cost(((1,), ())) == 4 * 1 / 2 + 3 * 11 + 2 * 30 / (2 * 2)
    assert ExpertPlan([[5, 1], [7, 3]], owners=[1, 1], **COSTS).loads(((), ())) == [0, 16]
    assert plan.loads(((1,), ()), counts=[[0, 0], [2, 0]]) == [0, 2]


@pytest.mark.parametrize("seed", range(20))
def test_a_plan_is_never_dearer_than_no_copies(seed):
    for expert_bytes in (0.0, 30.0, 3000.0):
        plan = ExpertPlan(drawn(seed), **{**COSTS, "expert_bytes": expert_bytes}, alpha=0.0)
        step = plan.next()
        assert step.cost <= step.unplanned_cost == plan.cost(((),) * 4)
        assert step.cost == plan.cost(step.copies) and sum(plan.loads(step.copies)) == 240
        assert all(owner not in places for owner, places in zip(plan.owners, step.copies))


def test_it_comes_near_the_best_of_all_choices():
    gains, best_gains = [], []
    for seed in range(6):
        plan = ExpertPlan(drawn(seed, devices=3, experts=3), **COSTS, alpha=0.0)
        step = plan.next()
        places = [[c for n in range(3) for c in itertools.combinations([d for d in range(3) if d != owner], n)]
                  for owner in plan.owners]
        best = min(plan.cost(copies) for copies in itertools.product(*places))
        gains.append(step.unplanned_cost / step.cost)
        best_gains.append(step.unplanned_cost / best)
        assert step.cost >= best
    assert sum(gains) > 1.2 * len(gains) and sum(gains) > 0.8 * sum(best_gains)


def test_a_hot_expert_is_copied_and_alpha_stops_the_search():
    counts = [[90, 5, 5, 0]] * 4
    step = ExpertPlan(counts, **COSTS).next()
    assert step.copies == ((1, 2, 3), (), (), ())
    assert ExpertPlan(counts, **COSTS, alpha=4.0).next().copies == ((),) * 4
    assert ExpertPlan(counts, **{**COSTS, "expert_bytes": 1e6}).next().copies == ((),) * 4
    # Who has fewest tokens for it gets none, where that is cheaper.
    uneven = ExpertPlan([[90, 0], [80, 0], [1, 0]], **{**COSTS, "expert_bytes": 150.0}).next()
    assert uneven.copies == ((1,), ())


def test_update_brings_the_counts_of_the_next_step():
    plan = ExpertPlan([[90, 5, 5, 0]] * 4, **COSTS)
    plan.update([[0, 5, 5, 90]] * 4)
    assert plan.next().copies == ((), (), (), (0, 1, 2))
    with pytest.raises(bandoneon.InvalidArgument, match="counts are of 3 devices and 4 experts, and were of 4 and 4"):
        plan.update([[1, 1, 1, 1]] * 3)


@pytest.mark.parametrize("counts, options, message", [
    ([[1, 2], [3]], {}, r"rows of \[2, 1\] experts"),
    ([], {}, r"rows of \[\] experts"),
    ([[]], {}, r"rows of \[0\] experts"),
    (3, {}, "counts=3 are not numbers of tokens"),
    ([[1, -2]], {}, "counts have -2 among them"),
    ([[1.5]], {}, "counts has what is no whole number"),
    ([[1, 2]], dict(owners=[0]), r"owners=\[0\] are not 2 devices"),
    ([[1, 2]], dict(owners=[0, 1]), "of 0 to 0"),
    ([[1, 2]], dict(rate=0.0), "rate=0.0 is not a finite number above 0"),
    ([[1, 2]], dict(bandwidth=math.inf), "bandwidth=inf"),
    ([[1, 2]], dict(token_bytes=-1), "token_bytes=-1 is not a finite number 0 or more"),
    ([[1, 2]], dict(expert_bytes="large"), "expert_bytes='large'"),
    ([[1, 2]], dict(alpha=math.nan), "alpha=nan"),
])
def test_what_is_out_of_range_is_named(counts, options, message):
    with pytest.raises(bandoneon.InvalidArgument, match=message):
        ExpertPlan(counts, **options)


# ---- A job of four devices, whose tokens go to eight experts

DEVICES, EXPERTS, WIDTH = 4, 8, 3


def tokens_of(step, device):
    """(rows, their experts), uneven."""
    generator = torch.Generator().manual_seed(100 * step + device)
    rows = torch.randn(20, WIDTH, generator=generator, dtype=torch.float64)
    shares = torch.tensor([0.5, 0.2, 0.1, 0.1, 0.05, 0.05, 0.0, 0.0])
    return rows, torch.multinomial(shares, 20, True, generator=generator)


def trained(worker, is_planned, forgets_gradients=False):
    """The experts' weights, as their owners have them. Owners alone have an optimizer; what has a copy is sent the weights, and
    returns its gradient. All know all tokens, which stand for those that an all-to-all would bring."""
    weights = [torch.full((WIDTH, WIDTH), 0.1 * (e + 1), dtype=torch.float64).requires_grad_() for e in range(EXPERTS)]
    plan = ExpertPlan([[0] * EXPERTS] * DEVICES, token_bytes=8.0, expert_bytes=8.0, rate=1.0, bandwidth=8.0, alpha=0.0)
    mine = [e for e, owner in enumerate(plan.owners) if owner == worker.rank]
    sgd = torch.optim.SGD([weights[e] for e in mine], lr=0.05, momentum=0.9)
    copied = 0
    for step in range(5):
        copies = plan.next().copies if is_planned else ((),) * EXPERTS
        copied += sum(map(len, copies))
        tokens = [tokens_of(step, device) for device in range(DEVICES)]
        for e, (owner, places) in enumerate(zip(plan.owners, copies)):
            if places:
                worker.broadcast(f"expert {e}", weights[e].data_ptr(), weights[e].nbytes, owner)
            computed = [
                rows[chosen == e] for device, (rows, chosen) in enumerate(tokens)
                if worker.rank == (device if device in (owner, *places) else owner)
            ]
            weights[e].grad = None
            if computed:
                (torch.cat(computed) @ weights[e] - 1).square().sum().backward()
            grad = torch.zeros_like(weights[e]) if weights[e].grad is None else weights[e].grad
            if places and not forgets_gradients:
                grad = DEVICES * bdn.push_pull(grad, f"gradient {e}", push="none", pull="none", worker=worker).wait()
            weights[e].grad = grad / 80
        sgd.step()
        plan.update([[int((chosen == e).sum()) for e in range(EXPERTS)] for _, chosen in tokens])
    return copied, {e: weights[e].detach().clone() for e in mine}


def test_weights_are_those_of_a_run_without_copies():
    without = run_job(lambda worker: trained(worker, False), workers=DEVICES)
    planned = run_job(lambda worker: trained(worker, True), workers=DEVICES)
    assert without[0][0] == 0 < planned[0][0]
    for (_, one), (_, other) in zip(without, planned):
        for e in one:
            torch.testing.assert_close(other[e], one[e], rtol=1e-6, atol=1e-6)
    wrong = run_job(lambda worker: trained(worker, True, forgets_gradients=True), workers=DEVICES)
    assert (wrong[0][1][0] - without[0][1][0]).abs().max() > 1e-3


class Mixture(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(3))
        with torch.no_grad():
            for i, param in enumerate(self.parameters()):
                param.copy_(torch.randn(param.shape, generator=torch.Generator().manual_seed(i)))

    def forward(self, x, chosen):
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            if (chosen == e).any():
                out = out.index_add(0, (chosen == e).nonzero()[:, 0], expert(x[chosen == e]))
        return out


def test_an_expert_without_tokens_is_absent_from_the_exchange():
    """Of one worker, and of both: an expert that nobody used keeps its weights under momentum and decay."""
    chosen = [torch.tensor([0, 0, 1, 1]), torch.tensor([0, 0, 0, 0])]
    batch = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(9))

    def job(worker):
        model = Mixture()
        sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
        optimizer = bdn.DistributedOptimizer(sgd, model, worker=worker)
        model(batch, chosen[worker.rank]).square().sum().backward()
        grads = [expert.weight.grad for expert in model.experts]
        optimizer.step()
        return [None if grad is None else grad.clone() for grad in grads], model.experts[2].weight.detach().clone()

    plain = [Mixture() for _ in range(2)]
    for model, own in zip(plain, chosen):
        model(batch, own).square().sum().backward()
    for grads, unused in run_job(job):
        expected = (plain[0].experts[0].weight.grad + plain[1].experts[0].weight.grad) / 2
        torch.testing.assert_close(grads[0], expected)
        torch.testing.assert_close(grads[1], plain[0].experts[1].weight.grad / 2)
        assert grads[2] is None and torch.equal(unused, plain[0].experts[2].weight)
