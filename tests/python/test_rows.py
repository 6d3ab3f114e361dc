"""Tables that servers hold, beside torch's sparse gradients of one process with the merged batch."""

import copy
import io
import re

import pytest
import torch
import torch.utils.checkpoint

import bandoneon
import bandoneon.torch as bdn
from bandoneon.torch import rows
from bandoneon.torch.handover import hand_over
from cluster_helpers import fill, run_job

ROWS, WIDTH, WORKERS = 50, 6, 2


class Net(torch.nn.Module):
    """A table, a table of bags, and a rest that is the same everywhere and is not trained."""

    def __init__(self, sparse=True, seed=0):
        super().__init__()
        self.item = torch.nn.Embedding(ROWS, WIDTH, sparse=sparse)
        self.words = torch.nn.EmbeddingBag(ROWS, WIDTH, mode="sum", sparse=sparse)
        self.rest = torch.nn.Linear(2 * WIDTH, 3)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for param in self.parameters():
                param.copy_(torch.randn(param.shape, generator=generator) * 0.3)
        for param in self.rest.parameters():
            param.requires_grad_(False)

    def forward(self, batch):
        ids, bags, _ = batch
        return self.rest(torch.cat([self.item(ids), self.words(bags)], dim=1)).tanh()


def batch_of(rank, step):
    """(ids, bags of ids, targets): few of the rows, some of them often."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    ids = (torch.rand(8, generator=generator) ** 3 * ROWS).long()
    bags = torch.randint(0, ROWS, (8, 3), generator=generator)
    return ids, bags, torch.randn(8, 3, generator=generator)


def loss_of(model, batch):
    return (model(batch) - batch[2]).square().mean()


def tables_of(model, optimizer):
    ids = torch.arange(ROWS)
    return {"item": optimizer.rows_of(model.item, ids), "words": optimizer.rows_of(model.words, ids)}


def train(worker, steps, wanted=False, make=lambda: Net(), rule="sgd", lr=0.1, **how):
    model = make()
    rows.serve_tables(model)
    optimizer = rows.RowOptimizer(model, rule=rule, lr=lr, worker=worker, **how)
    batches = (batch_of(worker.rank, step) for step in range(steps))
    for batch, following in rows.look_ahead(batches):
        loss_of(model, batch).backward()
        ids = None if following is None or not wanted else {"item": following[0], model.words: following[1]}
        optimizer.step(wanted=ids)
        optimizer.zero_grad()
    worker.barrier("trained")
    return tables_of(model, optimizer)


def by_torch(make_optimizer, steps):
    model = Net()
    optimizer = make_optimizer([model.item.weight, model.words.weight])
    for step in range(steps):
        optimizer.zero_grad()
        losses = [loss_of(model, batch_of(rank, step)) for rank in range(WORKERS)]
        (sum(losses) / WORKERS).backward()
        optimizer.step()
    return {"item": model.item.weight.detach(), "words": model.words.weight.detach()}


TORCHS = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1),
    "adagrad": lambda params: torch.optim.Adagrad(params, lr=0.1),
    "adamw": lambda params: torch.optim.SparseAdam(params, lr=0.1),
}


@pytest.mark.parametrize("rule", TORCHS)
def test_served_tables_are_torchs_of_the_merged_batch(rule):
    steps = 200
    expected = by_torch(TORCHS[rule], steps)
    for served in run_job(lambda w: train(w, steps, rule=rule, wanted=True), WORKERS, servers=2):
        for name, value in expected.items():
            scale = value.abs().max()
            error = (served[name] - value).abs().max() / scale
            assert error < 2e-6, (rule, name, float(error))


def test_a_compiled_model_gets_its_rows_between_graphs():
    def job(worker, compiled):
        model = Net()
        rows.serve_tables(model)
        optimizer = rows.RowOptimizer(model, rule="sgd", lr=0.1, worker=worker)
        called = torch.compile(model, backend="eager") if compiled else model
        for step in range(3):
            batch = batch_of(worker.rank, step)
            (called(batch) - batch[2]).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return tables_of(model, optimizer)

    plain, compiled = (run_job(lambda worker: job(worker, how), workers=1)[0] for how in (False, True))
    assert all(torch.equal(plain[name], compiled[name]) for name in plain)


def test_no_size_of_the_job_changes_a_bit():
    how = dict(rule="adagrad", push="int8", pull="int8")
    first = run_job(lambda w: train(w, 10, wanted=True, **how), 3, servers=1, row_buckets=1, seed=1)
    other = run_job(lambda w: train(w, 10, wanted=False, **how), 3, servers=3, row_buckets=32, shards=2, seed=1)
    for name in ("item", "words"):
        assert all(torch.equal(first[0][name], served[name]) for served in first + other)


def test_served_sgd_has_the_bits_of_a_dense_tensor_on_the_servers():
    def run(worker):
        dense = torch.nn.Sequential(torch.nn.Embedding(ROWS, WIDTH))
        fill(dense)
        served = copy.deepcopy(dense)
        rows.serve_tables(served)
        tables = rows.RowOptimizer(served, rule="sgd", lr=0.1, worker=worker)
        sgd = torch.optim.SGD(dense.parameters(), lr=0.1)
        whole = bdn.ServerOptimizer(sgd, dense.named_parameters(), push="none", pull="none", worker=worker)
        for step in range(10):
            ids = torch.randperm(ROWS, generator=torch.Generator().manual_seed(100 * step + worker.rank))[:12]
            for model, optimizer in ((served, tables), (dense, whole)):
                optimizer.zero_grad()
                model(ids).tanh().square().mean().backward()
                optimizer.step()
        tables.settle()
        worker.barrier("trained")
        return torch.equal(tables.rows_of(served[0], torch.arange(ROWS)), dense[0].weight.detach())

    assert run_job(run, 3, servers=2) == [True] * 3


def test_a_module_may_run_twice_or_not_at_all_or_on_nothing():
    def run(worker):
        model = Net()
        before = {"item": model.item.weight.detach().clone(), "words": model.words.weight.detach().clone()}
        rows.serve_tables(model)
        optimizer = rows.RowOptimizer(model, lr=1.0, worker=worker)
        (model.item(torch.tensor([3])).sum() + model.item(torch.tensor([[3, 4]])).sum()).backward()
        assert model.item(torch.empty(0, dtype=torch.int64)).shape == (0, WIDTH)
        assert model.item(torch.empty((2, 0), dtype=torch.int64)).shape == (2, 0, WIDTH)
        empty = model.words(torch.empty(0, dtype=torch.int64), torch.tensor([0, 0]))
        assert torch.equal(empty, torch.zeros(2, WIDTH))
        optimizer.step()
        optimizer.step()  # Of no pass.
        after = tables_of(model, optimizer)
        before["item"][3] -= 2
        before["item"][4] -= 1
        return [torch.equal(before[name], after[name]) for name in before]

    assert run_job(run) == [[True, True]] * 2


IDS = torch.tensor([1, 2, 2])


def zeroed_between_the_passes(table, optimizer):
    for _ in range(2):
        loss = table(IDS).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def a_backward_pass_after_a_step(table, optimizer):
    first, second = table(IDS).square().sum(), table(IDS + 1).sum()
    first.backward()
    optimizer.step()
    optimizer.zero_grad()
    second.backward()
    optimizer.step()


def a_graph_that_is_kept(table, optimizer):
    loss = table(IDS).square().sum()
    loss.backward(retain_graph=True)
    optimizer.zero_grad()
    (2 * loss).backward(retain_graph=True)
    optimizer.step()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def accumulated_and_dropped(table, optimizer):
    table(IDS).sum().backward()
    optimizer.zero_grad(set_to_none=False)
    table(IDS).sum().backward()
    table(IDS + 1).square().sum().backward()
    optimizer.step()


def looked_at_with_gradients_on(table, optimizer):
    table(IDS + 2)
    with torch.inference_mode():
        table(IDS + 3)
    table(IDS).sum().backward()
    optimizer.step()


def frozen_and_thawed(table, optimizer):
    table.requires_grad_(False)
    assert not table(IDS).requires_grad
    optimizer.step()
    table.requires_grad_(True)
    table(IDS).sum().backward()
    optimizer.step()


def by_a_closure(table, optimizer):
    def closure():
        loss = table(IDS).square().sum()
        optimizer.zero_grad()
        loss.backward()
        return loss

    optimizer.step(closure)
    optimizer.step(closure)


def computed_anew(table, optimizer):
    scale = torch.ones(1, requires_grad=True)
    for reentrant in (False, True):
        again = torch.utils.checkpoint.checkpoint(
            lambda ids, by: (table(ids) * by).square().sum(), IDS, scale, use_reentrant=reentrant
        )
        optimizer.zero_grad()
        again.backward()
        optimizer.step()


@pytest.mark.parametrize(
    "use",
    [
        zeroed_between_the_passes,
        a_backward_pass_after_a_step,
        a_graph_that_is_kept,
        accumulated_and_dropped,
        looked_at_with_gradients_on,
        frozen_and_thawed,
        by_a_closure,
        computed_anew,
    ],
)
def test_a_loop_in_any_order_is_torchs(use):
    values = torch.arange(ROWS * 2.0).reshape(ROWS, 2) / ROWS
    plain = torch.nn.Embedding.from_pretrained(values.clone(), freeze=False)
    use(plain, torch.optim.SGD(plain.parameters(), lr=0.1))

    def run(worker):
        table = rows.Embedding.from_pretrained(values, freeze=False)
        optimizer = rows.RowOptimizer(table, rule="sgd", lr=0.1, worker=worker)
        use(table, optimizer)
        worker.barrier("trained")
        assert not table._table.pending, "of passes that are over nothing is left"
        return optimizer.rows_of(table, torch.arange(ROWS))

    for served in run_job(run):
        torch.testing.assert_close(served, plain.weight.detach())


def test_frozen_weights_stay_frozen():
    """torch's from_pretrained() freezes, and weights that were frozen are not trained because they are served."""

    def run(worker):
        model = torch.nn.ModuleDict({
            "frozen": torch.nn.Embedding.from_pretrained(torch.ones(ROWS, WIDTH)),
            "trained": torch.nn.Embedding.from_pretrained(torch.ones(ROWS, WIDTH), freeze=False),
        })
        rows.serve_tables(model)
        model["own"] = rows.Embedding.from_pretrained(torch.ones(ROWS, WIDTH))
        optimizer = rows.RowOptimizer(model, lr=1.0, worker=worker)
        sum(table(IDS).sum() for table in model.values()).backward()
        optimizer.step()
        worker.barrier("stepped")
        assert "frozen" in repr(model["own"]) and "frozen" not in repr(model["trained"])
        return [float(optimizer.rows_of(table, [1])[0, 0]) for table in model.values()]

    assert run_job(run) == [[1.0, 0.0, 1.0]] * 2


def test_a_copy_of_a_model_has_the_same_rows():
    """Averages of weights and copies for evaluation are made like this, before the rows change."""

    def run(worker):
        model = Net()
        rows.serve_tables(model)
        optimizer = rows.RowOptimizer(model, lr=1.0, worker=worker)
        model.item(IDS)
        copies = [copy.deepcopy(model), torch.optim.swa_utils.AveragedModel(model).module]
        for _ in range(2):
            model.item(IDS).sum().backward()
            optimizer.step()
        with torch.no_grad():
            assert all(torch.equal(one.item(IDS), model.item(IDS)) for one in copies)
        before = optimizer.rows_of(model.item, [4])
        copies[0].item(torch.tensor([4])).sum().backward()
        optimizer.step()
        worker.barrier("stepped")
        return float((before - optimizer.rows_of(copies[0].item, [4])).sum())

    assert run_job(run) == [pytest.approx(WIDTH)] * 2


def test_a_newcomer_takes_the_counts_over():
    """TrainingState does it like this; the rows themselves are the servers'."""

    def run(worker):
        model = Net()
        rows.serve_tables(model)
        optimizer = rows.RowOptimizer(model, rule="adagrad", lr=0.1, worker=worker)

        def step(number):
            loss_of(model, batch_of(worker.rank, number)).backward()
            optimizer.step()

        for number in range(3):
            step(number)
        optimizer.param_groups[0]["lr"] = 0.05
        worker.settle()
        mine = {"tables": optimizer.handover()}
        if worker.rank == 2:  # It forgets all, as if it came now.
            optimizer.param_groups[0]["lr"] = 0.1
            optimizer._step_count.ended = 0
        received = hand_over(worker, None if worker.rank == 2 else mine, 0)
        assert received.differs is None
        if worker.rank == 2:
            optimizer.take_over(received.state["tables"])
        step(3)
        worker.barrier("stepped")
        return optimizer.param_groups[0]["lr"], tables_of(model, optimizer)["item"]

    rates, tables = zip(*run_job(run, workers=3))
    assert rates == (0.05,) * 3
    assert torch.equal(tables[0], tables[1]) and torch.equal(tables[0], tables[2])


def test_a_training_state_without_the_tables_takes_nobody_in():
    def run(worker):
        model = Net()
        rows.serve_tables(model)
        optimizer = rows.RowOptimizer(model, worker=worker)
        with_tables = bdn.TrainingState({"model": model, "tables": optimizer}, worker=worker)
        list(with_tables.steps(1))
        without = bdn.TrainingState({"model": model}, worker=worker)
        list(without.steps(1))
        return with_tables._refusal, without._refusal

    for with_tables, without in run_job(run):
        assert with_tables is None
        assert "'item' is exchanged by an optimizer or hook that is not in the TrainingState" in without


def test_padding_is_neither_pushed_nor_touched():
    def run(worker):
        table = rows.Embedding(ROWS, WIDTH, padding_idx=-1, init="constant", init_value=0.5)
        optimizer = rows.RowOptimizer(table, rule="adagrad(decay=0.1)", lr=1.0, worker=worker)
        out = table(torch.tensor([ROWS - 1, ROWS - 1]))
        assert not out.any()
        out.sum().backward()  # A batch of padding alone.
        optimizer.step()
        out = table(torch.tensor([ROWS - 1, 3]))
        assert torch.equal(out, torch.tensor([[0.0] * WIDTH, [0.5] * WIDTH]))
        return torch.equal(optimizer.rows_of(table, [ROWS - 1]), torch.full((1, WIDTH), 0.5))

    assert run_job(run) == [True, True]


def test_any_id_is_a_row():
    def run(worker):
        table = rows.Embedding(None, WIDTH, init_value=0.1)
        optimizer = rows.RowOptimizer(table, lr=1.0, worker=worker)
        ids = torch.tensor([-1, 7, 2**63 - 1, -(2**63)])
        first = table(ids)
        first.sum().backward()
        optimizer.step(wanted=ids)
        return torch.allclose(table(ids), first - 1.0) and len(torch.unique(first)) == 4 * WIDTH

    assert run_job(run) == [True, True]


def test_a_gradient_that_is_not_finite_leaves_the_step_out_everywhere():
    def run(worker):
        table = rows.Embedding(ROWS, WIDTH)
        optimizer = rows.RowOptimizer(table, lr=1.0, worker=worker)
        before = optimizer.rows_of(table, range(ROWS))
        factor = float("inf") if worker.rank == 1 else 1.0
        (table(torch.tensor([3])) * factor).sum().backward()
        optimizer.step(wanted=torch.tensor([3]))
        assert optimizer.skipped_steps == 1
        assert torch.equal(table(torch.tensor([3])), before[3:4])
        return torch.equal(optimizer.rows_of(table, range(ROWS)), before)

    assert run_job(run) == [True, True]


def test_groups_and_schedules_have_rates_of_their_own():
    def run(worker):
        slow, fast = rows.Embedding(9, 2, init="zeros"), rows.Embedding(9, 2, init="zeros")
        optimizer = rows.RowOptimizer(
            [{"modules": slow, "lr": 0.5}, {"modules": [fast], "rule": "sgd(decay=0.1)"}], lr=1.0, worker=worker
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
        for _ in range(2):
            optimizer.zero_grad()
            (slow(torch.tensor([1])).sum() + fast(torch.tensor([1])).sum()).backward()
            optimizer.step()
            schedule.step()
        return optimizer.rows_of(slow, [1])[0, 0].item(), optimizer.rows_of(fast, [1])[0, 0].item()

    assert run_job(run) == [(-0.75, pytest.approx(-1.0 - 0.5 * 0.9))] * 2


def test_weights_count_in_the_mean():
    def run(worker):
        table = rows.Embedding(9, 2, init="zeros")
        optimizer = rows.RowOptimizer(table, lr=1.0, weight=lambda: 3.0 if worker.rank else 1.0, worker=worker)
        table(torch.tensor([worker.rank])).sum().backward()
        optimizer.step()
        worker.barrier("stepped")
        return optimizer.rows_of(table, [0, 1])[:, 0].tolist()

    assert run_job(run, servers=1) == [[-0.25, -0.75]] * 2


def test_a_served_module_has_no_parameters_and_follows_its_model():
    def run(worker):
        model = Net()
        assert rows.serve_tables(model, "i*") == ["item"]
        model.to(torch.bfloat16)
        optimizer = rows.RowOptimizer(model, worker=worker)
        assert [name for name, _ in model.named_parameters()] == ["words.weight", "rest.weight", "rest.bias"]
        assert "item" not in " ".join(model.state_dict())
        out = model.item(torch.tensor([1]))
        out.sum().backward()
        optimizer.step()
        return str(out.dtype)

    assert run_job(run) == ["torch.bfloat16"] * 2


def refused(make, **how):
    with bandoneon.LocalCluster(workers=1, servers=1) as cluster:
        with pytest.raises(bandoneon.errors.BandoneonError) as caught:
            cluster.run(lambda worker: make(worker))
    return str(caught.value)


def test_what_cannot_be_is_refused_by_name():
    def with_ids(ids, number=ROWS):
        def run(worker):
            table = rows.Embedding(number, WIDTH)
            optimizer = rows.RowOptimizer(torch.nn.ModuleDict({"item": table}), worker=worker)
            table(ids)
            optimizer.close()

        return run

    assert "table 'item': id 50, at position 0" in refused(with_ids(torch.tensor([ROWS])))
    assert "table 'item': id -1" in refused(with_ids(torch.tensor([-1])))
    assert "ids of torch.float32" in refused(with_ids(torch.ones(1)))
    assert "ids of torch.bool" in refused(with_ids(torch.ones(1, dtype=torch.bool)))

    def optimizer(**how):
        return lambda worker: rows.RowOptimizer(rows.Embedding(ROWS, WIDTH), worker=worker, **how)

    assert "each row is encoded alone" in refused(optimizer(push="topk(ratio=0.1)"))
    assert "a residual would be kept" in refused(optimizer(push="ef(int8)"))
    assert "momentum moves rows" in refused(optimizer(rule="sgd(momentum=0.9)"))
    assert "embedding_dim=1025" in refused(lambda w: rows.Embedding(ROWS, 1025))
    assert "embedding_dim=0" in refused(lambda w: rows.Embedding(ROWS, 0))
    assert "num_embeddings=None takes any id" in refused(
        lambda w: rows.Embedding.from_pretrained(torch.ones(3, 2), rows=None)
    )
    assert "make the RowOptimizer" in refused(lambda w: rows.Embedding(3, 2)(torch.tensor([1])))
    assert "no nn.Embedding" in refused(lambda w: rows.serve_tables(torch.nn.Linear(1, 1)))
    assert "max_norm=1.0 cannot be served" in refused(
        lambda w: rows.serve_tables(torch.nn.Sequential(torch.nn.Embedding(3, 2, max_norm=1.0)))
    )

    def used(use):
        def run(worker):
            model = torch.nn.Sequential(torch.nn.Embedding(3, 2))
            rows.serve_tables(model)
            use(model, rows.RowOptimizer(model, worker=worker))

        return run

    ids = torch.tensor([1])
    assert "those of a module of torch.float64 would be rounded" in refused(used(lambda m, o: m.double()(ids)))
    assert "rows export" in refused(used(lambda m, o: torch.jit.trace(m, ids, check_trace=False)))
    assert "cannot be pickled: save model.state_dict()" in refused(used(lambda m, o: torch.save(m, io.BytesIO())))
    assert "steps no such module as Linear" in refused(used(lambda m, o: o.rows_of(torch.nn.Linear(1, 1), [0])))


class Scaled(torch.nn.Embedding):
    """A module of a kind that libraries of models have."""

    def forward(self, input):
        return 3 * super().forward(input)


def tied(**modules):
    model = torch.nn.ModuleDict({"table": torch.nn.Embedding(3, 2), **modules})
    model["other"].weight = model["table"].weight
    return model


def hooked():
    model = torch.nn.Sequential(torch.nn.Embedding(3, 2))
    model[0].register_forward_hook(lambda module, given, out: 2 * out)
    return model


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: torch.nn.Sequential(Scaled(3, 2)), "'0' is a Scaled, whose forward() is not that of torch's module"),
        (lambda: tied(other=torch.nn.Linear(2, 3)), "'table': its weight is 'other.weight', too"),
        (lambda: tied(other=torch.nn.Embedding(3, 2)), "'table': its weight is 'other.weight', too"),
        (hooked, "'0' has hooks"),
        (
            lambda: torch.nn.Sequential(torch.nn.utils.parametrizations.weight_norm(torch.nn.Embedding(3, 2))),
            "'0' has a parametrization",
        ),
    ],
)
def test_a_module_that_does_more_than_look_up_is_not_replaced(make, text):
    model = make()
    before = list(model.modules())
    with pytest.raises(bandoneon.errors.InvalidArgument, match=re.escape(text)):
        rows.serve_tables(model)
    assert list(model.modules()) == before


def test_a_module_at_two_places_is_one_table():
    model = torch.nn.ModuleDict({"first": torch.nn.Embedding(3, 2), "second": torch.nn.Linear(1, 1)})
    model["second"] = model["first"]
    assert rows.serve_tables(model, "first") == ["first", "second"]
    assert model["first"] is model["second"] and isinstance(model["first"], rows.Embedding)


def test_workers_that_declare_differently_are_both_named():
    def run(worker):
        rows.RowOptimizer(rows.Embedding(ROWS, WIDTH + worker.rank), worker=worker)

    with pytest.raises(bandoneon.errors.InvalidArgument, match="worker 0 says elements=6, worker 1 says elements=7"):
        run_job(run)


def test_close_frees_the_names_and_the_rows():
    def run(worker):
        for _ in range(2):
            table = rows.Embedding(ROWS, WIDTH, init="zeros")
            optimizer = rows.RowOptimizer(table, lr=1.0, worker=worker)
            assert not optimizer.rows_of(table, [3]).any()
            table(torch.tensor([3])).sum().backward()
            optimizer.step()
            optimizer.close()
            with pytest.raises(bandoneon.errors.FailedPrecondition, match="closed or collected"):
                table(torch.tensor([4]))
            worker.barrier("closed")
        return True

    assert run_job(run) == [True, True]


def test_look_ahead_pairs_each_batch_with_the_next():
    assert list(rows.look_ahead([])) == []
    assert list(rows.look_ahead("abc")) == [("a", "b"), ("b", "c"), ("c", None)]


BAGS = [
    (mode, last, padding, shape)
    for mode in ("sum", "mean", "max")
    for last in (False, True)
    for padding in (None, 3)
    for shape in ("flat", "matrix")
    if not (last and shape == "matrix")
]


def test_bags_of_all_kinds_are_torchs_with_empty_ones_among_them():
    def run(worker):
        for number, (mode, last, padding, shape) in enumerate(BAGS):
            generator = torch.Generator().manual_seed(number)
            how = dict(mode=mode, include_last_offset=last, padding_idx=padding)
            plain = torch.nn.EmbeddingBag(20, 4, _weight=torch.randn(20, 4, generator=generator), **how)
            served = rows.EmbeddingBag(20, 4, _weight=plain.weight.detach().clone(), **how)
            optimizer = rows.RowOptimizer(served, lr=1.0, worker=worker, prefix=f"{number}.")
            ids = torch.randint(0, 20, (9,) if shape == "flat" else (3, 4), generator=generator)
            offsets = torch.tensor([0, 2, 2, 5, 9] if last else [0, 2, 2, 5]) if shape == "flat" else None
            scales = [torch.randn(ids.shape, generator=generator).requires_grad_() if mode == "sum" else None] * 2
            if mode == "sum":
                scales[1] = scales[0].detach().clone().requires_grad_()
            expected, out = plain(ids, offsets, scales[0]), served(ids, offsets, scales[1])
            torch.testing.assert_close(out, expected)
            expected.square().sum().backward()
            out.square().sum().backward()
            torch.optim.SGD(plain.parameters(), lr=1.0).step()
            optimizer.step()
            torch.testing.assert_close(optimizer.rows_of(served, torch.arange(20)), plain.weight.detach())
            if mode == "sum":
                torch.testing.assert_close(scales[1].grad, scales[0].grad)
            optimizer.close()
        return True

    assert run_job(run, workers=1) == [True]


def test_a_worker_whose_batch_is_empty_keeps_nobody_waiting():
    def run(worker):
        table = rows.Embedding(None, WIDTH, init="constant", init_value=1.0)
        optimizer = rows.RowOptimizer(table, lr=1.0, worker=worker)
        for _ in range(3):
            ids = torch.arange(4) if worker.rank else torch.empty(0, dtype=torch.int64)
            out = table(ids)
            if out.requires_grad:
                out.sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return optimizer.rows_of(table, [0])[0, 0].item()

    assert run_job(run) == [-0.5] * 2
