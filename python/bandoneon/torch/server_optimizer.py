"""ServerOptimizer: the update runs on the servers, which hold the weights."""

from __future__ import annotations

from typing import Any

import torch

from .. import _native
from ..errors import FailedPrecondition, InvalidArgument
from ..session import default_worker
from ..worker import Worker
from .comm_state import ResumeCheck, fitting_state, saved_by
from .handover import Handover
from .hints import Closure, NamedParameters, SavedState
from .hyperparameters import check_not_negative, rule_text
from .links import Links, link_table, takes_links
from .names import Names
from .parameters import check_weights_fit_float32, terms_by_group
from .sliced_parameters import parameters_of, refusal_of_newcomers, settings_of
from .step_recorder import model_of
from .tensors import host_empty, host_zeros
from .vote import Vote
from .weight import Weight
from .wrapped import WrappedOptimizer, evaluate
from .written_weights import WrittenWeights


class ServerOptimizer(WrappedOptimizer):
    """Steps of a torch optimizer, taken by the servers: they hold weights and moments in float32, and a
    worker keeps no optimizer state at all. Collective: all workers construct the same.

    A step pushes every worker's gradient and pulls the new weights. Pulled as delta(...), the servers
    send what the weights differ by from the replica that every worker holds; what a delta leaves out
    stays in that difference and is sent with the next. This is SDP4Bit (arXiv 2410.15526):

        optimizer = bdn.ServerOptimizer(
            torch.optim.AdamW(model.parameters(), lr=3e-4), model.named_parameters(),
            push="int4(hadamard=32)", pull="delta(int4(group=2048))")
        loss.backward()
        optimizer.step()

    optimizer: torch.optim.SGD (without dampening), AdamW, or Adam without weight decay. It is the
        description only, groups and learning rates included; its step() is never called. What schedulers and
        load_state_dict() change in its groups, betas and momentum too, holds from the next step on, the same in
        all workers.
    links, or push and pull alone: Links has what they mean. pull: a codec of the weights, or delta(codec). A weight
        is asked for in step().
    max_norm: clips each worker's own gradient, all parameters together, to this norm before the push.
        What the norm of the mean is, nobody knows: the parts of the sum are on different servers.

    The parameters start as rank 0's, on every worker, and are what the servers say from then on: a step after the
    program has written to them is refused by name, for the servers' weights would undo that. Load a model before this
    is made, or call resume_at(). Weights that were swapped for others, as to evaluate, and put back are no such write.
    A constraint that is laid on weights after each step (clamp_) needs DistributedOptimizer. A step in which any worker's gradient is not
    finite is left out by all, `skipped_steps` counts them. A parameter without a gradient in all workers
    stays as it is. The exchange is in step(), none of it beside the backward pass. A GradScaler is
    refused: it skips step() in the worker that overflowed, and the others wait; use bfloat16.
    """

    @takes_links("warmup", "overrides", "prefix", "timeout", "weight", "local_group")
    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: NamedParameters | None = None,
        *,
        push: str | None = None,
        pull: str | None = None,
        links: Links = Links(),
        max_norm: float | None = None,
        worker: Worker | None = None,
    ) -> None:
        if max_norm is not None:
            check_not_negative(max_norm=max_norm)
        super().__init__(optimizer)
        self._rule_of = _rule_maker(optimizer)
        self._rules = [None] * len(self.param_groups)
        self._rules = self._current_rules()  # of the groups by their numbers, as the servers step by
        worker = worker or default_worker()
        self._links = parameters_of(links, worker, link_table(links), as_float32=True)
        self._is_first = self._is_in_charge()  # It tells the servers which rule is in force.
        self._timeout = links.timeout
        self._weight = Weight(links.weight)
        self._max_norm = max_norm
        self._resume_check = ResumeCheck("; without it, call resume_at(step) in every worker")
        self.skipped_steps = 0
        model = model_of(named_parameters)
        named = Names(named_parameters).in_forward_order(self.param_groups)
        check_weights_fit_float32(named, "ServerOptimizer")
        self._links.add(named, terms_by_group(self.param_groups, self._rule_of))
        name = f"{links.prefix}vote on steps"
        self._vote = Vote(worker, name, self._links.reference, self._links.step_count, links.timeout)
        self._links.share_weights(links.timeout)
        self._written = WrittenWeights((m.name, m.param) for m in self._links.members)
        self._written.note()
        self._links.step_count.follow(self)
        pairs = [(member.param, self._links.number_of(member)) for member in self._links.members]
        self._record(self._links, lambda own: own._links.steps, model, pairs)

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:
        loss = evaluate(closure)
        rules = self._current_rules()
        self._refuse_written()
        self._resume_check.before_step(self.inner, lambda: self._links.steps)
        members = self._links.members
        weight = self._weight.now()
        absent = [member.param.grad is None or not weight for member in members]
        buffers = [self._buffer(member) for member in members]
        present = [buffer for buffer, is_absent in zip(buffers, absent) if not is_absent]
        self._set_rules(rules)
        alike = ("hyperparameters", self._rules, _SAME_RULES)
        if not self._vote.all_finite(present, weight, alike=alike):
            self.skipped_steps += 1
            return loss
        if self._max_norm is not None and present:
            _clip(present, self._max_norm)
        results = self._links.update_weights(
            buffers, self._timeout, rates=self.rates(members), absent=absent, weight=weight
        )
        for member, weights, result in zip(members, buffers, results):
            if not result.absent:
                member.param.copy_(weights)
        self._written.note()
        return loss

    def _refuse_written(self):
        names = self._written.names()
        if names:
            others = f" and {len(names) - 1} others" if len(names) > 1 else ""
            raise FailedPrecondition(
                f"the program has written to {names[0]!r}{others} since the last exchange, and the weights that the "
                "servers hold would undo that: load and initialise the model, or broadcast it, before ServerOptimizer is "
                "made, or call resume_at(step) in all workers, with which the servers take up what they have; a "
                "constraint on weights after each step needs DistributedOptimizer",
                tensor=names[0],
            )

    def _current_rules(self):
        """Of the groups as they are by now; InvalidArgument names the group and the key that servers do not take."""
        rules = []
        for number, (group, known) in enumerate(zip(self.param_groups, self._rules)):
            try:
                rule = self._rule_of(group)
                if rule != known:
                    _native.check_rule(rule)
            except InvalidArgument as error:
                given = ", ".join(f"{key}={group[key]!r}" for key in _RULE_KEYS if key in group)
                raise InvalidArgument(f"servers do not step group {number} ({given}): {error}") from error
            rules.append(rule)
        return rules

    def _set_rules(self, rules):
        """The worker in charge tells the servers. All others' next exchange is after one in which it takes part. Who comes to
        be that, because those before it were lost, tells everything: what they were to tell last may not have come."""
        is_first = self._is_in_charge()
        changed = [number for number, rule in enumerate(rules) if rule != self._rules[number]]
        if is_first and not self._is_first:
            changed = range(len(rules))
        self._is_first = is_first
        if changed and is_first:
            for number in changed:
                tensors = [m.tensor for m in self._links.declared if m.terms.group == number]
                if tensors:
                    self._links.worker.set_server_rule(tensors, rules[number], self._timeout)
        self._rules = rules

    def _is_in_charge(self):
        """Whether this worker tells the servers the rules of what it exchanges."""
        return self._links.partners.rank_in_charge() == self._links.worker.rank

    @WrappedOptimizer.state.getter
    def state(self) -> dict[torch.Tensor, Any]:
        """Nothing, of each parameter: torch.distributed.checkpoint.state_dict takes a step of an optimizer
        whose state is empty, and here the servers would take it."""
        return {param: {} for group in self.param_groups for param in group["params"]}

    def _buffer(self, member):
        """Contiguous float32 host memory with the gradient, for the weights to come back in."""
        grad, param = member.param.grad, member.param
        if grad is None:
            return host_zeros(param.shape)
        grad = self._links.dense(member, grad)
        return host_empty(param.shape).copy_(grad)

    def count_samples(self, samples: float) -> None:
        """This worker's part of the next step is the mean of so many: weight= of it."""
        self._weight.count_samples(samples)

    def refuses_newcomers(self) -> str | None:
        """Why no worker can be taken into a job of this one, or None."""
        return refusal_of_newcomers(self._links)

    def handover(self) -> Handover:
        """What a newcomer takes over: weights come with the model, and moments are the servers'."""
        counts = {"skipped_steps": self.skipped_steps, "steps": self._links.step_count.ended}
        return Handover({"optimizer": self.state_dict(), "rules": list(self._rules), **counts})

    def take_over(self, given: Handover) -> None:
        """Goes on from another worker's handover(), once the model has its weights."""
        self.load_state_dict(given.common["optimizer"])
        self._rules = list(given.common["rules"])
        self._is_first = False  # Others, who are there for longer, tell the servers.
        self.skipped_steps = given.common["skipped_steps"]
        self._links.step_count.ended = given.common["steps"]
        self._written.note()
        self._resume_check.is_settled = True

    @property
    def _settings(self):
        return {"algorithm": "ServerOptimizer", **settings_of(self._links)}

    def comm_state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs beside the model: residuals, steps and parameters of this rank; of rank
        0, weights and moments on the servers, too."""
        params = {m.name: m.param.detach().to("cpu", copy=True) for m in self._links.members}
        links = self._links.state_dict(self._timeout)
        return {**saved_by(self._links.worker, self._settings), "parameters": params, "rules": list(self._rules), **links}

    @torch.no_grad()
    def load_comm_state_dict(self, state: SavedState) -> None:
        """Takes up this rank's comm_state_dict(), parameters included, or of the list of all ranks' what
        falls to this one, where there were more or fewer workers. Collective."""
        state = fitting_state(state, self._settings, self._links.worker)
        # First, for they say which moments the servers take. The groups' own hold from the next step on.
        rules = state.get("rules", self._rules)
        if len(rules) != len(self._rules):
            raise InvalidArgument(f"the state is of {len(rules)} parameter groups, and here are {len(self._rules)}")
        self._set_rules(rules)
        self._links.load_state_dict(state, self._timeout)
        self._links.fetch_weights(self._timeout)  # Into the replicas. A reply may have rounded them.
        for member in self._links.members:
            member.param.copy_(state["parameters"][member.name])
        self._written.note()
        self._resume_check.is_settled = True

    def resume_at(self, step: int) -> None:
        """For a checkpoint without comm_state_dict(), once its model is loaded: codec schedules and warm-ups
        go on after `step`, rank 0's, and the servers take up the parameters, the same in all workers.
        Moments, which only the servers had, begin at 0 as in a new optimizer (so the first steps of AdamW
        are not the ones it would have taken), and so do residuals. Collective, before any worker steps."""
        self._links.resume_weights_at(step, self._timeout)
        self._written.note()
        self._resume_check.is_settled = True

    def close(self) -> None:
        """Frees the parameters' names for another optimizer, which begins anew, and gives back what both ends
        remember."""
        self._links.release()


_SAME_RULES = "They are by groups; let schedulers and load_state_dict() do the same in every worker"
_RULE_KEYS = ("momentum", "nesterov", "betas", "eps", "weight_decay")  # of groups, besides lr


def _clip(tensors, max_norm):
    """In place, all together to a Euclidean norm of at most `max_norm`."""
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(tensors)))
    torch._foreach_mul_(tensors, min(max_norm / max(norm.item(), 1e-12), 1.0))


def _rule_maker(optimizer):
    """The function from a group of the optimizer to its update rule."""
    rules = {torch.optim.SGD: _sgd, torch.optim.AdamW: _adamw, torch.optim.Adam: _adam}
    rule = rules.get(type(optimizer))
    if rule is None:
        raise InvalidArgument(
            f"servers cannot take the steps of {type(optimizer).__name__}, only those of torch.optim's "
            "SGD, AdamW and Adam; DistributedOptimizer takes any optimizer and steps in the workers"
        )
    return rule


def _sgd(group):
    _refuse(group, "SGD", "dampening", "maximize")
    return rule_text(
        "sgd",
        momentum=group["momentum"],
        nesterov=bool(group["nesterov"] and group["momentum"]),  # torch's is without while there is no momentum
        decay=group["weight_decay"],
    )


def _adamw(group):
    _refuse(group, "AdamW", "amsgrad", "maximize")
    beta1, beta2 = group["betas"]
    return rule_text("adamw", beta1=beta1, beta2=beta2, eps=group["eps"], decay=group["weight_decay"])


def _adam(group):
    _refuse(group, "Adam", "weight_decay")
    return _adamw(group)


def _refuse(group, name, *options):
    for option in options:
        if group.get(option):
            raise InvalidArgument(f"servers take no {name} steps with {option}={group[option]!r}")
