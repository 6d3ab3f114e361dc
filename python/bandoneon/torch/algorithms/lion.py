"""Lion, whose workers send signs."""

from __future__ import annotations

from typing import Any

import torch

from ...errors import InvalidArgument
from ...worker import Worker
from ..hints import Closure, NamedParameters, Overrides
from ..hyperparameters import check_decays, check_not_negative
from ..link_options import LinkOptions, LinkTable
from ..wrapped import evaluate
from .step_exchange import StepExchangeOptimizer, step_by


class Lion(StepExchangeOptimizer):
    """Lion (arXiv 2302.06675) in its distributed form (Distributed Lion, 2404.00438; Lion Cub, 2411.16462).
    Distributed by itself: no DistributedOptimizer goes around it. Collective: all workers construct the same
    and step together.

    With worker i's gradient g_i, and m_i from 0, which is its own:

        u_i = sign(b1 m_i + (1 - b1) g_i)                    push, one bit an element
        m_i <- b2 m_i + (1 - b2) g_i
        x <- (1 - lr wd) x - lr D                            D = sign of the mean of u_i, or the mean itself

    With another push than "sign" a majority's D is the sign of the mean of b1 m_i + (1 - b1) g_i as the codec sends
    it: over push="none" and pull="none" the step is Lion's on the mean gradient.

        optimizer = bdn.Lion(model.parameters(), lr=3e-4, named_parameters=model.named_parameters())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    lr: a third to a tenth of AdamW's, for every element steps as far. weight_decay: 0.01, wd; as much larger.
    betas: (0.9, 0.99).
    vote: "majority", the sign of the mean; or "mean", which needs more of a reply than its sign: pull="none", or
        "int8", say. Of an even number of workers' signs, a tie is no step.
    push: "sign", what is not 0 costs a bit; or any other codec. pull: "sign", of the majority; ties cost a
        second bit an element.
    named_parameters, overrides, prefix, timeout, check: as DistributedOptimizer's. After DeadlineExceeded out of
        step() every further step is refused.

    The exchange is in step(), none of it beside the backward pass: backward() leaves local gradients, several
    of which add up. A parameter without one counts as one of zeros; leave frozen ones out. What is not finite in
    one worker leaves that parameter as it is in all. A GradScaler is refused: it skips step() in the worker that
    overflowed, and the others wait; use bfloat16. m_i is kept in float32 in the memory of the host, and saved by
    comm_state_dict() of every rank.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.01,
        *,
        vote: str = "majority",
        push: str = "sign",
        pull: str = "sign",
        named_parameters: NamedParameters | None = None,
        overrides: Overrides | None = None,
        prefix: str = "",
        timeout: float | None = None,
        check: bool = True,
        worker: Worker | None = None,
    ) -> None:
        check_not_negative(lr=lr, weight_decay=weight_decay)
        check_decays(beta1=betas[0], beta2=betas[1])
        if vote not in ("majority", "mean"):
            raise InvalidArgument(f"vote={vote!r} is neither majority nor mean")
        links = LinkTable(LinkOptions.of(push, pull), overrides)
        links.check_without("Lion", "momentum", "warmup", instead="Lion has betas of its own")
        links.check_without_correction("Lion")
        for options in links.rows:
            if vote == "mean" and options.pull == "sign":
                raise InvalidArgument(
                    "vote='mean' steps by the mean of the signs, and pull='sign' replies its sign alone; give it "
                    "pull='none' or 'int8', or vote='majority'"
                )
        super().__init__(
            params,
            dict(lr=lr, betas=betas, weight_decay=weight_decay),
            {"algorithm": "Lion", "vote": vote},
            links,
            named_parameters,
            prefix,
            timeout,
            check,
            worker,
            memories=["momentum"],
            as_float32=True,
        )

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:
        loss = evaluate(closure)
        self._resume_check.before_step(self, lambda: self._links.steps)
        groups, members = self._groups(), self._links.members
        gradients = [self._links.dense_on_host(m, m.param.grad) for m in members]
        kept = self._memory["momentum"]
        votes = [
            self._vote(member, torch.lerp(grad, momentum, groups[id(member.param)]["betas"][0]))
            for member, grad, momentum in zip(members, gradients, kept)
        ]
        results = self._links.exchange(votes, self._timeout)
        for member, grad, momentum, outcome, result in zip(members, gradients, kept, votes, results):
            state, group = self.state[member.param], groups[id(member.param)]
            state["step"] = state.get("step", 0) + 1
            if result.nonfinite:
                continue
            momentum.lerp_(grad, 1 - group["betas"][1])
            update = outcome.sign_() if self._settings["vote"] == "majority" else outcome
            step_by(member.param, update, float(group["lr"]), group["weight_decay"])
        return loss

    def _vote(self, member, direction):
        """Signs, also where the link sends what is small as it is; what is not finite stays so."""
        if self._settings["vote"] == "majority" and member.options.push != "sign":
            return direction
        return direction.sign() + (direction - direction)
