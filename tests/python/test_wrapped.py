"""What LocalSteps, CSER, EF21 and ServerOptimizer share with the optimizer that they are put around."""

import pytest
import torch
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

import bandoneon.torch as bdn
from cluster_helpers import linked, make_model, run_job, train
from reference_helpers import assert_same_bits

WRAPPERS = {
    "server": lambda *given, **options: bdn.ServerOptimizer(*given, **linked(**options)),
    "local": lambda *given, **options: bdn.LocalSteps(
        *given, tau=1, outer=bdn.algorithms.SlowMo(), **linked(**options)
    ),
    "cser": lambda *given, **options: bdn.algorithms.CSER(*given, gradient="none", reset="none", **linked(**options)),
    "ef21": lambda *given, **options: bdn.algorithms.EF21(*given, **linked(push="none", pull="none", **options)),
}


def make(name, worker, lr=0.1):
    model = make_model()
    inner = torch.optim.SGD(model.parameters(), lr, momentum=0.9)
    return model, inner, WRAPPERS[name](inner, model.named_parameters(), worker=worker)


@pytest.mark.parametrize("name", WRAPPERS)
@pytest.mark.parametrize("which", ["inner", "wrapper"])
def test_a_state_may_be_loaded_by_either_and_schedules_go_on(name, which):
    def job(worker, loads):
        model, inner, optimizer = make(name, worker)
        train(worker, model, optimizer, steps=1)
        if loads:
            loading = inner if which == "inner" else optimizer
            loading.load_state_dict(optimizer.state_dict())
        assert optimizer.param_groups is inner.param_groups
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        for _ in range(2):
            train(worker, model, optimizer, steps=1)
            schedule.step()
        assert inner.param_groups[0]["lr"] == pytest.approx(0.025)
        return [p.detach().numpy() for p in model.parameters()]

    def run(loads):
        return run_job(lambda worker: job(worker, loads))

    for plain, loaded in zip(run(False), run(True)):
        assert_same_bits([plain, loaded])


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("name", WRAPPERS)
def test_torchs_optimizer_state_dicts_step_nothing_of_ours(name):
    def job(worker, plain):
        model, inner, optimizer = make(name, worker)
        # LocalSteps, CSER and EF21 count what they would be asked to step.
        asked = optimizer if name == "server" else inner
        for _ in range(3):
            if not plain:
                state = get_optimizer_state_dict(model, asked)
                set_optimizer_state_dict(model, asked, state)
            train(worker, model, optimizer, steps=1)
            optimizer.zero_grad()
        return [p.detach().numpy() for p in model.parameters()]

    def run(plain):
        return run_job(lambda worker: job(worker, plain))

    for plain, saving in zip(run(True), run(False)):
        assert_same_bits([plain, saving])
