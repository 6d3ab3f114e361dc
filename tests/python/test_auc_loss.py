"""AUCLoss: its gradients and its saddle point, and workers that meet rarely."""

import copy
import math

import pytest
import torch

import bandoneon
import bandoneon.torch as bdn
from cluster_helpers import run_job

AUCLoss = bdn.algorithms.AUCLoss


def draw(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make_model(seed=0):
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1)).double()
    with torch.no_grad():
        for i, param in enumerate(model.parameters()):
            param.copy_(draw(*param.shape, seed=seed + i))
    return model


def labels_of(count=40, positives=8):
    return (torch.arange(count) < positives).double()


@pytest.mark.parametrize("pull", [0.0, 0.3])
def test_gradients_are_those_by_differences_and_alphas_is_negated(pull):
    model = make_model()
    auc = AUCLoss(0.2, model=model, pull=pull).double()
    with torch.no_grad():
        for i, param in enumerate((auc.a, auc.b, auc.alpha, *model.parameters())):
            param.add_(0.1 * (i + 1))  # Away from where the stage began.
    x, y = draw(40, 4), labels_of()

    def value():
        return auc(model(x), y)

    value().backward()
    for name, param in [*auc.named_parameters(), *model.named_parameters()]:
        sign = -1 if name == "alpha" else 1
        flat = param.data.view(-1)
        for i in range(flat.numel()):
            at = flat[i].item()
            values = []
            for step in (1e-5, -1e-5):
                flat[i] = at + step
                values.append(value().item())
            flat[i] = at
            by_differences = sign * (values[0] - values[1]) / 2e-5
            assert param.grad.view(-1)[i].item() == pytest.approx(by_differences, abs=1e-6), name


def test_the_value_is_that_of_the_formula():
    p, h, y = 0.3, draw(50), labels_of(50, 9)
    auc = AUCLoss(p).double()
    with torch.no_grad():
        auc.a.fill_(0.7), auc.b.fill_(-0.2), auc.alpha.fill_(0.4)
    a, b, alpha = 0.7, -0.2, 0.4
    terms = []
    for score, label in zip(h.tolist(), y.tolist()):
        square = (1 - p) * (score - a) ** 2 if label else p * (score - b) ** 2
        linear = -(1 - p) * score if label else p * score
        terms.append(square + 2 * (1 + alpha) * linear - p * (1 - p) * alpha**2)
    assert auc(h, y).item() == pytest.approx(sum(terms) / 50, abs=1e-12)


def test_the_saddle_is_the_mean_over_pairs():
    h, y = draw(60), labels_of(60, 13)
    p = 13 / 60
    auc = AUCLoss(y).double()
    assert auc.positives == p
    with torch.no_grad():
        auc.a.copy_(h[y == 1].mean())
        auc.b.copy_(h[y == 0].mean())
        auc.alpha.copy_(auc.b - auc.a)
    pairs = (1 - h[y == 1][:, None] + h[y == 0][None, :]).square().mean().item() - 1
    loss = auc(h, y)
    assert loss.item() == pytest.approx(p * (1 - p) * pairs, abs=1e-9)
    loss.backward()
    assert max(abs(param.grad.item()) for param in (auc.a, auc.b, auc.alpha)) < 1e-9


def test_descent_ends_at_the_saddle():
    h, y = draw(60), labels_of(60, 13)
    auc = AUCLoss(y).double()
    sgd = torch.optim.SGD(auc.parameters(), lr=0.5)
    for _ in range(2000):
        sgd.zero_grad()
        auc(h, y).backward()
        sgd.step()
    assert auc.alpha.item() == pytest.approx((h[y == 0].mean() - h[y == 1].mean()).item(), abs=1e-6)


def test_a_stage_pulls_to_where_it_began_and_lowers_the_rate():
    model = make_model()
    auc = AUCLoss(0.2, model=model, pull=2.0).double()
    sgd = torch.optim.SGD([*model.parameters(), *auc.parameters()], lr=0.3)
    plain, x, y = AUCLoss(0.2).double(), draw(40, 4), labels_of()
    assert auc(model(x), y).item() == pytest.approx(plain(model(x), y).item(), abs=1e-12)
    with torch.no_grad():
        model[0].weight[0, 0] += 0.5
        auc.a += 0.25
        plain.a += 0.25
    moved = 0.5**2 + 0.25**2
    assert auc(model(x), y).item() == pytest.approx(plain(model(x), y).item() + moved, abs=1e-6)
    saved = copy.deepcopy(auc.state_dict())
    auc.stage(sgd)
    assert auc(model(x), y).item() == pytest.approx(plain(model(x), y).item(), abs=1e-12)
    assert sgd.param_groups[0]["lr"] == pytest.approx(0.1)
    auc.load_state_dict(saved)  # With where the stage before began.
    assert auc(model(x), y).item() == pytest.approx(plain(model(x), y).item() + moved, abs=1e-6)
    assert not [name for name, _ in auc.named_parameters() if name not in ("a", "b", "alpha")]


def test_the_share_is_counted_over_all_workers():
    def job(worker):
        labels = torch.zeros(10 * (worker.rank + 1))
        labels[: 4 * worker.rank] = 1  # Worker 0 has no positive.
        return AUCLoss(labels, worker=worker).positives

    assert run_job(job, workers=3) == [12 / 60] * 3


@pytest.mark.parametrize("options, message", [
    (lambda rank: dict(positives=0.1 + rank / 10), r"worker 1 has positives=0.2, and worker 0 positives=0.1"),
    (lambda rank: dict(positives=0.1 if rank else torch.tensor([0, 1])), "worker 1 has positives=0.1, and worker 0 positives=its labels"),
    (lambda rank: dict(positives=0.1, pull=float(rank)), "worker 1 has pull=1.0, and worker 0 pull=0.0"),
])
def test_options_that_differ_are_named_with_both_ranks(options, message):
    def job(worker):
        with pytest.raises(bandoneon.InvalidArgument, match=message):
            AUCLoss(**options(worker.rank), worker=worker)

    run_job(job)


@pytest.mark.parametrize("positives", [0, 1, 1.5, math.nan, "many", None, torch.zeros(4), torch.ones(4)], ids=repr)
def test_a_share_of_no_two_classes_is_refused(positives):
    with pytest.raises(bandoneon.InvalidArgument, match="positives="):
        AUCLoss(positives)


@pytest.mark.parametrize("scores, labels, message", [
    (torch.zeros(3), torch.tensor([0, 1, 2]), "labels have 2 among them"),
    (torch.zeros(3), torch.zeros(4), r"scores are of shape \[3\], and labels of shape \[4\]"),
    (torch.zeros(3, dtype=torch.int64), torch.zeros(3), "are not floating point"),
    (torch.zeros(0), torch.zeros(0), "one or more"),
    ([0.5], torch.zeros(1), "are not floating point"),
    (torch.zeros(1), [0], "are not a tensor of 0 and 1"),
])
def test_a_wrong_batch_is_named(scores, labels, message):
    with pytest.raises(bandoneon.InvalidArgument, match=message):
        AUCLoss(0.5)(scores, labels)


@pytest.mark.parametrize("make, message", [
    (lambda: AUCLoss(0.5, pull=-1.0), "pull=-1.0 is negative"),
    (lambda: AUCLoss(0.5, pull=math.inf), "pull=inf"),
    (lambda: AUCLoss(0.5, model=[1]), "is not a torch.nn.Module"),
    (lambda: AUCLoss(0.5).stage(0.1), "takes the optimizer"),
])
def test_wrong_options_are_named(make, message):
    with pytest.raises(bandoneon.InvalidArgument, match=message):
        make()


def trained(worker, steps, tau, spoil=()):
    """What LocalSteps makes of it, in each worker: parameters by name, the rate, meetings and skipped rounds."""
    model = make_model().float()
    auc = AUCLoss(0.25, model=model, pull=0.1, worker=worker)
    named = [*model.named_parameters(), *auc.named_parameters("auc")]
    sgd = torch.optim.SGD([param for _, param in named], lr=0.3)
    optimizer = bdn.LocalSteps(sgd, named, tau=tau, outer=bdn.algorithms.Average(), worker=worker)
    for step in range(steps):
        x = draw(16, 4, seed=100 * step + worker.rank).float()
        y = labels_of(16, 4)
        if (worker.rank, step) in spoil:
            x = x * math.nan
        optimizer.zero_grad()
        auc(model(x), y).backward()
        optimizer.step()
        if step == steps // 2:
            auc.stage(optimizer)
    optimizer.synchronize()
    values = {name: param.detach().clone() for name, param in named}
    stages = [buffer.clone() for buffer in auc.buffers()]
    return values, stages, optimizer.param_groups[0]["lr"], optimizer.meetings, optimizer.skipped_rounds


def test_workers_agree_on_all_of_it_and_meet_for_a_stage():
    first, second = run_job(lambda worker: trained(worker, steps=12, tau=5))
    for a, b in zip([*first[0].values(), *first[1]], [*second[0].values(), *second[1]]):
        assert torch.equal(a, b)
    assert len(first[1]) == 1 and first[2] == pytest.approx(0.1)
    assert first[3] == 4, "after 5, 7 for the stage, 10 and 12"


def test_meetings_after_every_step_are_one_process_on_all_batches():
    both = run_job(lambda worker: trained(worker, steps=6, tau=1))
    model = make_model().float()
    auc = AUCLoss(0.25, model=model, pull=0.1)
    named = [*model.named_parameters(), *auc.named_parameters("auc")]
    sgd = torch.optim.SGD([param for _, param in named], lr=0.3)
    for step in range(6):
        x = torch.cat([draw(16, 4, seed=100 * step + rank).float() for rank in range(2)])
        sgd.zero_grad()
        auc(model(x), labels_of(16, 4).repeat(2)).backward()
        sgd.step()
        if step == 3:
            auc.stage(sgd)
    for name, param in named:
        torch.testing.assert_close(both[0][0][name], param.detach(), rtol=1e-5, atol=1e-6)


def test_scores_that_are_not_finite_are_left_out_by_all_and_counted():
    results = run_job(lambda worker: trained(worker, steps=12, tau=3, spoil=[(1, 7)]))
    for values, stages, _, _, skipped in results:
        assert skipped == 1
        assert all(value.isfinite().all() for value in [*values.values(), *stages])
    assert all(torch.equal(results[0][0][name], results[1][0][name]) for name in results[0][0])
