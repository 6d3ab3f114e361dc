"""prune_experts: what is set to zero, by which score, and what keeps it so."""

import copy
import math

import pytest
import torch
from torch import nn

import bandoneon
import bandoneon.torch as bdn
from cluster_helpers import linked, model_hash, run_job

masked, prune_experts = bdn.algorithms.masked, bdn.algorithms.prune_experts


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.expand, self.shrink = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x):
        return self.shrink(torch.relu(self.expand(x)))


class Mixture(nn.Module):
    """Each row goes to the expert that its last number says, with a gate of its own."""

    def __init__(self, experts=2):
        super().__init__()
        self.experts = nn.ModuleList(Expert() for _ in range(experts))
        self.head = nn.Linear(4, 2)
        with torch.no_grad():
            for i, param in enumerate(self.parameters()):
                param.copy_(torch.randn(param.shape, generator=torch.Generator().manual_seed(i)))

    def forward(self, x):
        out = torch.zeros(len(x), 4)
        for e, expert in enumerate(self.experts):
            at = (x[:, 4] == e).nonzero()[:, 0]
            if len(at):
                expert.gate = x[at, 5]
                out = out.index_add(0, at, expert(x[at, :4]) * expert.gate[:, None])
        return self.head(out)


def batch_of(seed=1, rows=40, experts=2):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 6, generator=generator)
    x[:, :4] *= torch.tensor([1.0, 5.0, 0.2, 2.0])
    x[:, 4] = torch.arange(rows) % experts
    x[:, 5] = torch.rand(rows, generator=generator)
    return x


def gate_of(name, expert):
    return expert.gate


def scores_of(model, batches, kind):
    """By the definition, of the first layer of each expert."""
    x = torch.cat(batches)
    found = {}
    for e, expert in enumerate(model.experts):
        rows = x[x[:, 4] == e]
        inputs = rows[:, :4] * rows[:, 5:] if kind == "gate" else rows[:, :4]
        norms = inputs.norm(dim=0) if kind != "magnitude" else torch.ones(4)
        found[f"experts.{e}.expand.weight"] = expert.expand.weight.detach().abs() * norms
    return found


@pytest.mark.parametrize("kind", ["gate", "inputs", "magnitude"])
def test_the_lowest_of_each_row_become_zero(kind):
    model, batches = Mixture(), [batch_of(1), batch_of(2)]
    before = copy.deepcopy(model)
    masks = prune_experts(model, batches, 0.5, gate=gate_of, score=kind)
    assert sorted(masks) == [f"experts.{e}.{layer}.weight" for e in (0, 1) for layer in ("expand", "shrink")]
    for name, scores in scores_of(before, batches, kind).items():
        for row, kept in zip(scores, masks[name]):
            assert kept.sum() == 2 and row[kept].min() > row[~kept].max()
    for name, param in model.named_parameters():
        old = before.get_parameter(name)
        assert torch.equal(param, old * masks[name] if name in masks else old)
    assert not any(m._forward_pre_hooks for m in model.modules())


def test_the_scores_choose_otherwise():
    chosen = {}
    for kind in ("gate", "inputs", "magnitude"):
        x = batch_of()
        x[x[:, 1].abs() > 3, 5] = 0.0  # The rows that are large in the second input count for nothing.
        chosen[kind] = prune_experts(Mixture(), [x], 0.5, gate=gate_of, score=kind)["experts.0.expand.weight"]
    assert not torch.equal(chosen["gate"], chosen["inputs"]) and not torch.equal(chosen["inputs"], chosen["magnitude"])
    no_gate = prune_experts(Mixture(), [batch_of()], 0.5)
    wanda = prune_experts(Mixture(), [batch_of()], 0.5, score="inputs")
    assert all(torch.equal(no_gate[name], wanda[name]) for name in wanda)


def test_inputs_count_for_the_error_of_the_outputs():
    x = batch_of(rows=400)
    rows = x[x[:, 4] == 0]

    def error(kind):
        model = Mixture()
        expected = model.experts[0].expand(rows[:, :4])
        gate = lambda name, layer: model.experts[int(name.split(".")[1])].gate  # noqa: E731
        prune_experts(model, [x], 0.5, experts=["experts.0.expand", "experts.1.expand"], gate=gate, score=kind)
        return ((model.experts[0].expand(rows[:, :4]) - expected) * rows[:, 5:]).square().mean().item()

    assert error("gate") < 0.7 * error("magnitude")


def test_two_of_four_and_none_and_names_of_experts():
    masks = prune_experts(Mixture(), [batch_of()], "2:4", gate=gate_of)
    for mask in masks.values():
        assert (mask.view(len(mask), -1, 4).sum(2) == 2).all()
    assert all(mask.all() for mask in prune_experts(Mixture(), [batch_of()], 0.0).values())
    only = prune_experts(Mixture(), [batch_of()], 0.5, experts=["experts.1"])
    assert sorted(only) == ["experts.1.expand.weight", "experts.1.shrink.weight"]
    head = prune_experts(Mixture(), [(batch_of(),)], 0.25, experts=["head"])
    assert (head["head.weight"].sum(1) == 3).all()


@pytest.mark.parametrize("make", [
    lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=0.1),
    lambda params: torch.optim.AdamW(params, lr=0.1),
], ids=["SGD", "AdamW"])
def test_masks_stay_through_steps_and_nothing_is_pushed_there(make):
    def job(worker):
        model = Mixture()
        masks = prune_experts(model, [batch_of()], 0.5, gate=gate_of)
        masks["experts.0.shrink.weight"][2] = False  # A whole row.
        with torch.no_grad():
            model.head.weight[0, 0] = 0.0
        optimizer = bdn.DistributedOptimizer(make(model.parameters()), model, worker=worker)
        assert masked(optimizer, model, masks) is optimizer
        before = copy.deepcopy(model)
        for step in range(4):
            optimizer.zero_grad()
            model(batch_of(10 * step + worker.rank)).square().mean().backward()
            for name, mask in masks.items():
                grad = model.get_parameter(name).grad
                assert not grad[~mask].any() and grad[mask].any()
            optimizer.step()
            for name, mask in masks.items():
                assert not model.get_parameter(name)[~mask].any(), name
        assert model.head.weight[0, 0] != 0, "of what has no mask"
        assert not torch.equal(model.experts[0].expand.weight, before.experts[0].expand.weight)
        return model_hash(model)

    assert len(set(run_job(job))) == 1


def test_the_masks_keep_what_the_program_has_put_there_in_zero_too():
    model = Mixture()
    masks = prune_experts(model, [batch_of()], 0.5)
    with torch.no_grad():
        model.experts[0].expand.weight.fill_(1.0)
    sgd = masked(torch.optim.SGD(model.parameters(), lr=0.1), model, masks)
    assert torch.equal(model.experts[0].expand.weight, masks["experts.0.expand.weight"].float())
    del sgd


@pytest.mark.parametrize("change, message", [
    (dict(sparsity=1.0), "sparsity=1.0 is neither a share"),
    (dict(sparsity=-0.1), "sparsity=-0.1"),
    (dict(sparsity=math.nan), "sparsity=nan"),
    (dict(sparsity="1:4"), "sparsity='1:4'"),
    (dict(score="luck"), "score='luck' is none of 'gate', 'inputs', 'magnitude'"),
    (dict(experts=["experts.7"]), "no module 'experts.7'"),
    (dict(experts=[]), "no experts with Linear layers"),
    (dict(batches=[]), "no token of the batches has come to 'experts.0.expand'"),
    (dict(batches=[batch_of(experts=1)]), "no token of the batches has come to 'experts.1.expand'"),
    (dict(batches=[batch_of() * torch.tensor([math.nan, 1, 1, 1, 1, 1])]), "inputs of 'experts.0.expand', or its gates, are not finite"),
    (dict(gate=lambda name, expert: torch.full((20,), math.inf)), "'experts.0.expand', or its gates, are not finite"),
    (dict(gate=lambda name, expert: torch.ones(3)), "gate returned 3 gates of 'experts.0', whose input has 20 rows"),
])
def test_what_cannot_be_is_named_and_nothing_is_changed(change, message):
    model = Mixture()
    before = model_hash(model)
    given = {"batches": [batch_of()], "gate": gate_of, **change}
    with pytest.raises(bandoneon.InvalidArgument, match=message):
        prune_experts(model, given.pop("batches"), given.pop("sparsity", 0.5), **given)
    assert model_hash(model) == before and not any(m._forward_pre_hooks for m in model.modules())


def test_weights_that_are_not_finite_and_other_models_are_named():
    model = Mixture()
    with torch.no_grad():
        model.experts[1].shrink.weight[0, 0] = math.nan
    with pytest.raises(bandoneon.InvalidArgument, match="scores of 'experts.1.shrink' are not finite"):
        prune_experts(model, [batch_of()], score="magnitude")
    with pytest.raises(bandoneon.InvalidArgument, match="there is no ModuleList called 'experts'"):
        prune_experts(nn.Linear(2, 2), [])
    with pytest.raises(bandoneon.InvalidArgument, match="takes the model first"):
        prune_experts([batch_of()], Mixture())
    odd = nn.ModuleDict({"experts": nn.ModuleList([nn.Linear(6, 2)])})
    with pytest.raises(bandoneon.InvalidArgument, match="takes rows of a multiple of 4 inputs, and 'experts.0' has 6"):
        prune_experts(odd, [], "2:4", score="magnitude")


def test_masks_of_other_parameters_are_refused():
    model = Mixture()
    masks = prune_experts(model, [batch_of()], 0.5)
    sgd = torch.optim.SGD(model.head.parameters(), lr=0.1)
    with pytest.raises(bandoneon.InvalidArgument, match="'experts.0.expand.weight' is in no group of this SGD"):
        masked(sgd, model, masks)
    with pytest.raises(bandoneon.InvalidArgument, match="no parameter 'x'"):
        masked(sgd, model, {"x": torch.ones(1, dtype=torch.bool)})
    with pytest.raises(bandoneon.InvalidArgument, match=r"mask of 'head.weight' is \[2\] of torch.float32"):
        masked(sgd, model, {"head.weight": torch.ones(2)})
    with pytest.raises(bandoneon.InvalidArgument, match="takes the optimizer first"):
        masked(model, sgd, masks)
