"""What all optimizers do alike: step(closure) evaluates its closure once, and copies are refused."""

import copy
import pickle

import pytest
import torch

import bandoneon
import bandoneon.torch as bdn
from cluster_helpers import linked, loss_of, make_batch, make_model, model_hash, run_job, sgd


def distributed(worker, model):
    return sgd(worker, model, inner_momentum=0.9)


def inner(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def server(worker, model):
    return bdn.ServerOptimizer(inner(model), model.named_parameters(), worker=worker)


def onebit_adam(worker, model):
    named = model.named_parameters()
    return bdn.algorithms.OneBitAdam(named, links=bdn.Links(warmup=2), worker=worker)


def cser(worker, model):
    options = dict(gradient=2, reset=2, period=2)
    return bdn.algorithms.CSER(inner(model), model.named_parameters(), worker=worker, **linked(**options))


def local_steps(worker, model):
    options = dict(tau=2, outer=bdn.algorithms.Average())
    return bdn.LocalSteps(inner(model), model.named_parameters(), worker=worker, **linked(**options))


def streaming(worker, model):
    options = dict(tau=bdn.algorithms.Streaming(4, 2, 1), outer=bdn.algorithms.Average())
    return bdn.LocalSteps(inner(model), model, worker=worker, **options)


def ef21(worker, model):
    return bdn.algorithms.EF21(inner(model), model.named_parameters(), worker=worker)


def kfac(worker, model):
    return bdn.algorithms.KFAC(model, inner(model), worker=worker)


def lion(worker, model):
    return bdn.algorithms.Lion(model.named_parameters(), worker=worker)


def demo(worker, model):
    return bdn.algorithms.DeMo(model.named_parameters(), worker=worker)


KINDS = [distributed, server, onebit_adam, cser, local_steps, streaming, ef21, kfac, lion, demo]


class Training:
    """A few steps, with closures or without; what the steps returned, and the model at the end."""

    def __init__(self, kind, how):
        self._kind, self._how = kind, how

    def __call__(self, worker):
        model = make_model()
        optimizer = self._kind(worker, model)
        losses, evaluations = [], []
        for step in range(4):

            def closure(step=step):
                evaluations.append(step)
                optimizer.zero_grad()
                loss = loss_of(model, make_batch(worker.rank, step))
                loss.backward()
                return loss

            if self._how == "before":
                loss = closure()
                assert optimizer.step() is None
            else:
                loss = optimizer.step(closure) if self._how == "argument" else optimizer.step(closure=closure)
            losses.append(loss.item())
        assert evaluations == [0, 1, 2, 3]
        with optimizer.common_weights() if hasattr(optimizer, "common_weights") else torch.no_grad():
            return losses, model_hash(model)


@pytest.mark.parametrize("how", ["argument", "keyword"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_closure_is_the_backward_pass_before_the_step(kind, how):
    plain = run_job(Training(kind, "before"))
    assert run_job(Training(kind, how)) == plain
    assert plain[0][1] == plain[1][1]


def test_a_closure_without_gradients_is_a_round_in_which_this_worker_has_none():
    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model)

        def closure():
            if worker.rank == 0:
                loss_of(model, make_batch(0)).backward()
            return 3.0

        assert optimizer.step(closure) == 3.0
        return model_hash(model)

    first, second = run_job(job)
    assert first == second != model_hash(make_model())


class Perturbing(torch.optim.SGD):
    """Moves the parameters before it evaluates its closure, as sharpness-aware minimisation does."""

    def step(self, closure):
        with torch.no_grad():
            for param in self.param_groups[0]["params"]:
                param.add_(1.0)
        with torch.enable_grad():
            loss = closure()
        super().step()
        return loss


def test_the_optimizer_says_when_the_closure_is_evaluated():
    def job(worker):
        param = torch.nn.Parameter(torch.zeros(2))
        optimizer = bdn.DistributedOptimizer(Perturbing([param], lr=1.0), worker=worker, links=bdn.Links(scaler=None))
        seen = []

        def closure():
            seen.append(param.detach().clone())
            ((worker.rank + 1) * param).sum().backward()

        optimizer.step(closure)
        return torch.stack(seen).tolist(), param.tolist()

    for seen, moved in run_job(job):
        assert seen == [[1.0, 1.0]] and moved == [-0.5, -0.5]


class Impatient(torch.optim.SGD):
    def step(self, closure=None):
        with torch.enable_grad():
            closure()
            closure()


class Deaf(torch.optim.SGD):
    def step(self, closure=None):
        return None


@pytest.mark.parametrize(
    "cls, message",
    [
        (torch.optim.LBFGS, "LBFGS.step.closure. evaluates its closure several times"),
        (Impatient, "Impatient.step.closure. evaluates its closure several times"),
        (Deaf, "Deaf.step took a closure and did not evaluate it"),
    ],
)
def test_what_does_not_evaluate_its_closure_once_is_refused(cls, message):
    def job(worker):
        model = make_model()
        plain = cls(model.parameters(), lr=0.1)
        optimizer = bdn.DistributedOptimizer(plain, model.named_parameters(), worker=worker, links=bdn.Links(scaler=None))

        def closure():
            loss = loss_of(model, make_batch(worker.rank))
            loss.backward()
            return loss

        for call in (lambda: optimizer.step(closure), lambda: optimizer.step(closure=closure)):
            with pytest.raises(bandoneon.Unimplemented, match=message):
                call()

    run_job(job)


@pytest.mark.parametrize("how", [pickle.dumps, copy.deepcopy])
@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_of_it_is_refused(kind, how):
    def job(worker):
        with pytest.raises(bandoneon.Unimplemented, match="save state_dict.. and comm_state_dict"):
            how(kind(worker, make_model()))

    run_job(job)
