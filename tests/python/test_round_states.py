"""The states of a round and of a parameter in it: each event of the two tables, each that is refused, and that
trainings of all kinds take no other way."""


import pytest
import torch
from torch.utils.checkpoint import checkpoint

import bandoneon
from bandoneon.torch import round_parts
from bandoneon.torch.round_states import ROUND_EVENTS, SLOT_EVENTS, RoundState, SlotState
from cluster_helpers import BreaksOff, assert_same, grads, loss_of, make_batch, make_model, mean_grads, run_job, sgd
from forward_overlap_helpers import distributed

TABLES = {RoundState: ROUND_EVENTS, SlotState: SLOT_EVENTS}
WAYS = {
    states: {(before, after) for event in events.values() for before, after in event.items()}
    for states, events in TABLES.items()
}
CASES = [
    pytest.param(event, state, id=f"{state.value}-{name}")
    for states, events in TABLES.items()
    for name, event in events.items()
    for state in states
]


@pytest.mark.parametrize("event, state", CASES)
def test_an_event_leads_where_the_table_says_or_is_refused_by_name(event, state):
    if state in event:
        assert event[state] in type(state)
        return
    with pytest.raises(bandoneon.InternalError, match=f"{event.name!r} came to a .* in state {state.value}"):
        event[state]


@pytest.mark.parametrize("states", TABLES, ids=lambda states: states.__name__)
def test_every_state_is_reached_and_left(states):
    changes = {way for way in WAYS[states] if way[0] is not way[1]}
    assert {after for _, after in changes} == set(states) == {before for before, _ in changes}
    assert all(before in states for event in TABLES[states].values() for before in event)


def watched(cls, ways):
    """A data descriptor for `state` that notes (before, after) of each object."""

    def read(self):
        return self.__dict__["state"]

    def write(self, after):
        if "state" in self.__dict__:
            ways.append((self.__dict__["state"], after))
        self.__dict__["state"] = after

    return property(read, write)


@pytest.fixture
def ways(monkeypatch):
    """{kind of state: the ways that were taken}"""
    taken = {RoundState: [], SlotState: []}
    monkeypatch.setattr(round_parts.Round, "state", watched(round_parts.Round, taken[RoundState]), raising=False)
    monkeypatch.setattr(round_parts.Slot, "state", watched(round_parts.Slot, taken[SlotState]), raising=False)
    return taken


def step(worker, model, optimizer, number, loss=loss_of):
    optimizer.zero_grad()
    loss(model, make_batch(worker.rank, number)).backward()
    optimizer.step()


def plainly(worker):
    model = make_model()
    optimizer = sgd(worker, model)
    for number in range(3):
        step(worker, model, optimizer, number)


def with_local_passes(worker):
    model = make_model()
    optimizer = sgd(worker, model, backward_passes_per_step=2)
    for number in range(5):
        loss_of(model, make_batch(worker.rank, number)).backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
    optimizer.synchronize()
    with optimizer.no_sync():
        loss_of(model, make_batch(worker.rank, 0)).backward()
    for _ in range(2):
        loss_of(model, make_batch(worker.rank, 1)).backward()


def with_accumulation_onto_means(worker):
    model = make_model()
    optimizer = sgd(worker, model)
    for number in range(3):
        loss_of(model, make_batch(worker.rank, number)).backward()
    optimizer.step()


def with_passes_that_break_off(worker):
    def breaks_off(model, batch):
        return model[2:](BreaksOff.apply(model[:2](batch))).square().mean()

    model = make_model()
    optimizer = sgd(worker, model)
    for number in range(3):
        with pytest.raises(RuntimeError, match="broke off"):
            step(worker, model, optimizer, number, breaks_off)
        step(worker, model, optimizer, number)
    model = make_model()
    passes = sgd(worker, model, backward_passes_per_step=2, prefix="2/")
    with pytest.raises(RuntimeError, match="broke off"):
        step(worker, model, passes, 0, breaks_off)
    passes.step()


def with_reentrant_checkpoints(worker):
    def loss(model, batch):
        return model[2:](checkpoint(model[:2], batch.requires_grad_(), use_reentrant=True)).square().mean()

    model = make_model()
    optimizer = sgd(worker, model)
    for number in range(3):
        step(worker, model, optimizer, number, loss)


def with_frozen_parameters(worker):
    model = make_model()
    model[0].requires_grad_(False)
    optimizer = sgd(worker, model)
    for number in range(2):
        step(worker, model, optimizer, number)
    model[0].requires_grad_(True)
    model[2].requires_grad_(False)
    for number in range(2):
        step(worker, model, optimizer, number)


def with_a_worker_out_of_data(worker):
    model = make_model()
    optimizer = sgd(worker, model)
    with optimizer.join():
        for number in range(1 + worker.rank):
            step(worker, model, optimizer, number)


def with_overlap_forward(worker):
    model = make_model()
    optimizer = distributed(worker, model, "forward")
    for number in range(4):
        step(worker, model, optimizer, number)
    loss_of(model, make_batch(worker.rank, 9)).backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())  # Read before the step.
    optimizer.step()


def with_local_passes_under_overlap_forward(worker):
    model = make_model()
    optimizer = distributed(worker, model, "forward", backward_passes_per_step=2)
    for number in range(4):
        for part in range(2):
            loss_of(model, make_batch(worker.rank, 2 * number + part)).backward()
        optimizer.step()
        optimizer.zero_grad()
    optimizer.synchronize()


def with_exchanges_that_are_late(worker):
    model = make_model()
    optimizer = sgd(worker, model, timeout=0.5)
    if worker.rank == 0:
        with pytest.raises(bandoneon.DeadlineExceeded):
            step(worker, model, optimizer, 0)
        worker.barrier("rank 0 has given up")
        optimizer.synchronize()
    else:
        worker.barrier("rank 0 has given up")
        loss_of(model, make_batch(worker.rank)).backward()
    optimizer.step()
    assert_same(grads(model), mean_grads(make_model()))


def with_a_push_that_is_refused(worker):
    model = make_model()
    optimizer = sgd(worker, model)
    step(worker, model, optimizer, 0)
    push_all = worker.push_all
    if worker.rank == 0:
        worker.push_all = lambda pushes: ([], bandoneon.Unavailable("not now"))
        optimizer.zero_grad()
        with pytest.raises(bandoneon.Unavailable, match="not now"):
            loss_of(model, make_batch(worker.rank, 1)).backward()
        worker.push_all = push_all
        optimizer.step()
    else:
        step(worker, model, optimizer, 1)
    assert_same(grads(model), mean_grads_after(model, 1))


def mean_grads_after(model, number):
    """Of a model that was stepped by SGD at rate 0.1 on the mean of step 0, and of another on step 1."""
    plain = make_model()
    inner = torch.optim.SGD(plain.parameters(), lr=0.1)
    for name, grad in mean_grads(plain).items():
        plain.get_parameter(name).grad = grad
    inner.step()
    return mean_grads(plain, step=number)


def test_a_program_goes_on_after_an_exchange_that_failed_behind_its_pass():
    def job(worker):
        model = make_model()
        optimizer = distributed(worker, model, "forward")
        loss_of(model, make_batch(worker.rank, 0)).backward()
        wait_all = worker.wait_all

        def failing(tickets, *arguments):
            worker.wait_all = wait_all
            wait_all(tickets[:1], *arguments)
            return [], bandoneon.FailedPrecondition("refused")

        worker.wait_all = failing
        first = model[0].weight.grad
        with pytest.raises(bandoneon.FailedPrecondition, match="refused"):
            first.sum()
        with pytest.raises(bandoneon.FailedPrecondition, match="exchange of this gradient ended in an error"):
            [parameter.grad.sum() for parameter in model.parameters()]
        optimizer.zero_grad()
        loss_of(model, make_batch(worker.rank, 1)).backward()
        assert_same(grads(model), mean_grads(make_model(), step=1))

    run_job(job)


TRAININGS = [
    plainly,
    with_local_passes,
    with_accumulation_onto_means,
    with_passes_that_break_off,
    with_reentrant_checkpoints,
    with_frozen_parameters,
    with_a_worker_out_of_data,
    with_overlap_forward,
    with_local_passes_under_overlap_forward,
    with_exchanges_that_are_late,
    with_a_push_that_is_refused,
]


def test_trainings_take_every_way_of_the_tables_that_changes_a_state_and_no_other_way(ways):
    seen = {states: set() for states in TABLES}
    for training in TRAININGS:
        run_job(training)
        for states, taken in ways.items():
            assert set(taken) <= WAYS[states], (training.__name__, set(taken) - WAYS[states])
            assert set(taken) & WAYS[states], training.__name__
            seen[states].update(taken)
            taken.clear()
    for states, known in WAYS.items():
        assert {way for way in known if way[0] is not way[1]} <= seen[states], known - seen[states]
