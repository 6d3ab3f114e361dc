"""Weights that come from servers, and a program that writes to them."""

import warnings

import pytest
import torch

import bandoneon
import bandoneon.torch as bdn
from cluster_helpers import linked, make_model, run_job


def server_sgd(worker, model, **options):
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    return bdn.ServerOptimizer(inner, model.named_parameters(), worker=worker, **linked(**options))


def step(model, optimizer):
    optimizer.zero_grad()
    sum(param.sum() for param in model.parameters()).backward()  # Gradients of ones.
    optimizer.step()


def others(model):
    return make_model(seed=7).state_dict()


# What programs do to weights, by how many parameters it changes at all workers.
WRITES = {
    "load_state_dict": lambda model, worker: model.load_state_dict(others(model)),
    "broadcast_parameters": lambda model, worker: (
        model[0].weight.data.fill_(1 + worker.rank),
        bdn.broadcast_parameters(model, root=1, worker=worker),
    ),
    "clamp_": lambda model, worker: [param.data.clamp_(-0.01, 0.01) for param in model.parameters()],
    "reset_parameters": lambda model, worker: model[0].reset_parameters(),
    "init": lambda model, worker: torch.nn.init.ones_(model[0].weight),
    "one number": lambda model, worker: model[0].weight.data[0, 0].add_(1e-6),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("after_steps", [0, 2])
def test_what_servers_would_undo_is_refused_by_name(write, after_steps):
    def job(worker):
        model = make_model()
        optimizer = server_sgd(worker, model)
        for _ in range(after_steps):
            step(model, optimizer)
        WRITES[write](model, worker)
        written = [param.detach().clone() for param in model.parameters()]
        with pytest.raises(bandoneon.FailedPrecondition, match="written to '0.weight'.*resume_at"):
            step(model, optimizer)
        assert all(map(torch.equal, written, model.parameters()))

    run_job(job)


@pytest.mark.parametrize("pull", ["none", "fp16", "delta(int8)"])
def test_after_resume_at_the_servers_step_from_what_was_written(pull):
    def job(worker):
        model = make_model()
        optimizer = server_sgd(worker, model, pull=pull)
        for _ in range(2):
            step(model, optimizer)
        model.load_state_dict(others(model))
        optimizer.resume_at(3)  # One step later, so that replies build on these weights.
        step(model, optimizer)
        for param, start in zip(model.parameters(), make_model(seed=7).parameters()):
            torch.testing.assert_close(param, start - 1.0, rtol=1e-2, atol=1e-2)

    run_job(job)


@pytest.mark.parametrize("pull", ["none", "fp16", "delta(int8)"])
def test_weights_that_were_swapped_and_put_back_and_loads_of_the_same_are_no_write(pull):
    def job(worker):
        model = make_model()
        optimizer = server_sgd(worker, model, pull=pull)
        for _ in range(3):
            own = {name: value.clone() for name, value in model.state_dict().items()}
            model.load_state_dict(others(model))
            model.load_state_dict(own)
            bdn.broadcast_parameters(model, worker=worker)
            step(model, optimizer)
        state = optimizer.comm_state_dict()
        model.load_state_dict(others(model))
        optimizer.load_comm_state_dict(state)
        step(model, optimizer)
        return model[0].bias.detach()

    first, second = run_job(job)
    torch.testing.assert_close(first, make_model()[0].bias - 4.0, rtol=2e-2, atol=2e-2)
    assert torch.equal(first, second)


@pytest.mark.parametrize("outer", [bdn.algorithms.Nesterov(), bdn.algorithms.Average()])
def test_local_steps_say_what_becomes_of_what_was_written_after_a_meeting(outer):
    def job(worker):
        model = make_model()
        inner = torch.optim.SGD(model.parameters(), lr=1.0)
        optimizer = bdn.LocalSteps(inner, model.named_parameters(), tau=2, outer=outer, worker=worker)
        model.load_state_dict(others(model))
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            for _ in range(4):
                step(model, optimizer)
                with optimizer.common_weights():
                    pass
        return [str(one.message) for one in seen], model[0].bias.detach()

    for messages, bias in run_job(job, workers=1):
        if isinstance(outer, bdn.algorithms.Average):  # Which takes the written weights up.
            assert not messages
            torch.testing.assert_close(bias, make_model(seed=7)[0].bias - 4.0)
        else:
            (message,) = messages
            assert "written to '0.weight' and 5 others since the last meeting" in message
