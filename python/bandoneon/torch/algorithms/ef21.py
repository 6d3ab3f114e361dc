"""EF21: what is compressed is by how much a worker's momentum has changed."""

from __future__ import annotations

from typing import Any

import torch

from ...errors import InvalidArgument
from ...session import default_worker
from ...worker import Worker
from ..broadcast import broadcast_parameters, check_same_weights
from ..comm_state import ResumeCheck, fitting_state, saved_by, step_to_resume_at
from ..exchange import push_pull
from ..handover import Handover, load_exactly
from ..hints import Closure, NamedParameters, SavedState
from ..hyperparameters import check_decays
from ..links import Links, link_table, takes_links
from ..local_memory import LocalMemory
from ..names import Names
from ..parameters import ParameterSet, terms_by_group
from ..step_recorder import model_of
from ..tensors import host_values, host_zeros
from ..vote import Vote
from ..wrapped import WrappedOptimizer, evaluate


class EF21(WrappedOptimizer):
    """Error feedback 21 with momentum (EF21-SGDM, arXiv 2305.15155), around any optimizer; around Muon it is
    EF21-Muon (2510.00643). A worker sends by how much its momentum differs from what it has sent of it, so
    that what a codec leaves out falls as the momentum settles. Collective: all workers construct the same and
    step together.

    With worker i's gradient g_i, what it has sent h_i, their mean h on the servers, and H, h as every worker
    holds it; all begin at 0:

        m_i <- mu m_i + (1 - mu) g_i          t_i = m_i, or nesterov: mu m_i + (1 - mu) g_i
        c_i = Q(t_i - h_i)                    h_i <- h_i + c_i                     push
        h <- h + mean of c_i                  H <- H + Q'(h - H)                   pull
        x <- a step of the optimizer with H for the gradient

    That is what error feedback does with differences: push="ef(Q)" sends those of t_i from step to step, and
    pull="delta(Q')" those of what the servers add up.

        inner = bdn.algorithms.Muon(bdn.algorithms.muon_groups(model), lr=0.016, momentum=0.0, betas=(0.0, 0.95))
        optimizer = bdn.algorithms.EF21(inner, model.named_parameters(), nesterov=True)
        loss.backward()
        optimizer.step()

    optimizer: any, without a momentum of its own, for H is one. Under AdamW, betas=(0, 0.95), a learning rate
        is worth up to sqrt((1 + mu) / (1 - mu)), 6 times for 0.95, of what it is to AdamW with beta1=mu: the
        second moment is that of a mean, not of gradients.
    momentum: mu.
    links, or push and pull alone: Links has what they mean. push: ef(codec), or "none"; "ef(onebit(block=64))". pull:
        delta(codec), or another codec of H; "delta(onebit(block=64))".

    Momenta, and what is exchanged, are float32 whatever the parameters are, which stay what they are.
    The parameters start as rank 0's, and every worker steps alike: give all the same machine's arithmetic, as
    under DistributedOptimizer. After step() the gradients are H. The exchange is in step(), none of it beside
    the backward pass. A parameter without a gradient counts as one of zeros; a frozen one is not stepped. A
    step in which any worker's momentum is not finite is left out by all, and `skipped_steps` counts it.
    A GradScaler is refused: it skips step() in the worker that overflowed, and the others wait; use bfloat16.
    A worker that is lost (min-workers), or comes, leaves h a mean over others than those that take part. So the next
    step() first makes it the mean of the h_i of those that are present, by one exchange of full precision.
    """

    @takes_links("overrides", "prefix", "timeout")
    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: NamedParameters | None = None,
        *,
        momentum: float = 0.95,
        nesterov: bool = False,
        push: str | None = None,
        pull: str | None = None,
        links: Links = Links(),
        worker: Worker | None = None,
    ) -> None:
        check_decays(momentum=momentum)
        super().__init__(optimizer)
        table = link_table(links, push="ef(onebit(block=64))", pull="delta(onebit(block=64))")
        _check_links(table)
        worker = worker or default_worker()
        model = model_of(named_parameters)
        named = Names(named_parameters).in_forward_order(self.param_groups)
        self._links = ParameterSet(worker, table, links.prefix, as_float32=True)
        self._links.check_owner(named)
        broadcast_parameters(named, worker=worker)
        self._settings = dict(algorithm="EF21", momentum=float(momentum), nesterov=bool(nesterov))
        self._timeout = links.timeout
        self._named = named
        self._resume_check = ResumeCheck("; without it, call resume_at() in every worker")
        self.skipped_steps = 0
        # What the servers hold is no weights here but h, which begins at 0.
        sums = [(name, host_zeros(param.shape)) for name, param in named]
        groups = [{"params": [tensor for _, tensor in sums]}]
        self._links.add(sums, terms_by_group(groups, lambda group: "average"))
        self._links.own(named)
        self._memory = LocalMemory(self._links.members, "momentum", "tracked")
        name = f"{links.prefix}vote on steps"
        self._vote = Vote(worker, name, self._links.reference, self._links.step_count, links.timeout)
        self._links.share_weights(links.timeout)
        self._links.step_count.follow(self)
        # The workers whose mean h is; none where this one has yet to be taken into the job.
        self._sharers = [] if worker.is_candidate() else worker.present(links.timeout)
        pairs = [(param, member.tensor) for (_, param), member in zip(named, self._links.members)]
        self._record(self._links, lambda own: own._links.steps, model, pairs)

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:
        loss = evaluate(closure)
        self._resume_check.before_step(self.inner, lambda: self._links.steps)
        momenta, targets = self._targets()
        frozen = [name for name, param in self._named if not param.requires_grad]
        has_others = self._links.worker.count_present() != len(self._sharers)
        verdict = self._vote.take(targets, alike=("frozen parameters", frozen, _SAME_FROZEN), asks=has_others)
        if verdict.is_asked:
            self._share_anew()
        if not verdict.all_finite:
            self.skipped_steps += 1
            return loss
        # The servers subtract what is pushed.
        sums = torch._foreach_sub(self._memory["tracked"], targets)
        self._links.update_weights(sums, self._timeout)
        for name, values in (("momentum", momenta), ("tracked", targets)):
            torch._foreach_copy_(self._memory[name], values)
        for (_, param), values in zip(self._named, sums):
            if param.requires_grad:
                _set_gradient(param, values)
        self.inner.step()
        return loss

    def _targets(self):
        """Every parameter's new m_i and t_i, of which nothing is kept yet."""
        mu = self._settings["momentum"]
        gradients = [
            self._links.dense_on_host(member, param.grad)
            for member, (_, param) in zip(self._links.members, self._named)
        ]
        momenta = torch._foreach_mul(self._memory["momentum"], mu)
        torch._foreach_add_(momenta, gradients, alpha=1 - mu)
        if not self._settings["nesterov"]:
            return momenta, momenta
        targets = torch._foreach_mul(momenta, mu)
        torch._foreach_add_(targets, gradients, alpha=1 - mu)
        return momenta, targets

    def _share_anew(self):
        """Makes h, and every worker's replica H of it, the mean of what the workers that are present have sent. Collective.
        A worker that is lost meanwhile may be in some of the means and not in others, so all begin again then."""
        worker = self._links.worker
        members = self._links.members
        names = [f"{self._links.prefix}what was sent of {member.name}" for member in members]
        counted = f"{self._links.prefix}steps of who was there"
        while True:
            present = worker.present(self._timeout)
            sent = [self._sent_of(index) for index in range(len(members))]
            handles = [
                push_pull(tensor, name, push="none", pull="none", worker=worker) for tensor, name in zip(sent, names)
            ]
            # The links of a newcomer have counted none, and those of all others as many.
            steps = host_values([self._links.steps, self._links.steps > 0], dtype=torch.float64)
            push_pull(steps, counted, push="none", pull="none", worker=worker).wait(self._timeout)
            for member, handle in zip(members, handles):
                member.param.copy_(handle.wait(self._timeout))
            self._sharers = worker.present(self._timeout)
            if self._sharers == present:
                break
        worker.retire([*names, counted])
        total, counting = steps.tolist()
        last = round(total / counting) if counting else 0
        self._links.share_weights_again(last + 1, self._timeout)

    def _sent_of(self, index):
        """h_i of one member: what was to be sent, and what the codec has not left out of it."""
        member = self._links.members[index]
        sent = self._memory["tracked"][index].clone()
        if "residual" in member.memories:
            residual = host_zeros(member.shape)
            self._links.worker.get_state(member.tensor, "residual", residual.data_ptr(), residual.numel())
            sent.add_(residual)
        return sent

    def handover(self) -> Handover:
        """What a newcomer takes over: it has sent nothing, and H comes with the next step."""
        counts = {"skipped_steps": self.skipped_steps, "steps": self._links.step_count.ended}
        return Handover({"optimizer": self.state_dict(), **counts})

    def take_over(self, given: Handover) -> None:
        """Goes on from another worker's handover(), once the model has its weights."""
        load_exactly(self.inner, given.common["optimizer"])
        self.skipped_steps = given.common["skipped_steps"]
        self._links.step_count.ended = given.common["steps"]
        self._sharers = []  # All meet again in the next step.
        self._resume_check.is_settled = True

    def comm_state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs beside model and state_dict(): this rank's momentum, residuals and steps; of
        rank 0, what the servers hold, too."""
        header = saved_by(self._links.worker, dict(self._settings))
        return {**header, "local": self._memory.state_dict(), **self._links.state_dict(self._timeout)}

    def load_comm_state_dict(self, state: SavedState) -> None:
        """Takes up this rank's comm_state_dict(), or of the list of all ranks' what falls to this one, where
        there were more or fewer workers; the next step is the one after it. Collective: all workers load
        before any of them steps."""
        state = fitting_state(state, self._settings, self._links.worker)
        self._memory.check(state["local"])
        self._links.load_state_dict(state, self._timeout)
        self._links.fetch_weights(self._timeout)  # Into the replicas.
        self._memory.load_state_dict(state["local"])
        self._resume_check.is_settled = True

    def resume_at(self, step: int | None = None) -> None:
        """For a checkpoint without comm_state_dict(), once the same model is loaded in all workers: codec
        schedules go on after `step`, by default the most that rank 0's optimizer state counts. Momentum and
        what was sent of it begin at 0, as in a new one. Collective, before any worker steps."""
        check_same_weights(self._links.worker, self._named)
        self._memory.clear()
        for member in self._links.members:
            member.param.zero_()
        self._links.resume_weights_at(step_to_resume_at(self.inner, step), self._timeout)
        self._sharers = self._links.worker.present(self._timeout)
        self._resume_check.is_settled = True

    def close(self) -> None:
        """Frees the parameters' names for another optimizer, which begins anew, and gives back what both ends
        remember."""
        self._links.release()


_SAME_FROZEN = "Freeze and thaw parameters (requires_grad) in all workers alike, for each steps those that it trains"


def _set_gradient(param, values):
    if param.grad is None:
        param.grad = values.to(param.device, param.dtype)
    else:
        param.grad.copy_(values)


def _check_links(table):
    table.check_without("EF21", "momentum", "warmup", instead="EF21 takes a momentum= of its own")
    table.check_without_correction("EF21")
    for options in table.rows:
        if options.push != "none" and (not options.feeds_back or "decay=" in options.push):
            raise InvalidArgument(
                f"push={options.push!r} loses some of what it leaves out, and the servers add up what comes: "
                "they would drift from the workers for good; write push='ef(...)', without decay"
            )
