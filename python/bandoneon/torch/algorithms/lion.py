"""Lion, whose workers send signs."""

from __future__ import annotations

from typing import Any

import torch

from ...errors import InvalidArgument
from ...worker import Worker
from ..hyperparameters import check_decays, check_not_negative
from ..links import Links, link_table, takes_links
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

        optimizer = bdn.algorithms.Lion(model.named_parameters(), lr=3e-4)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    params: model.named_parameters(), the model, or groups whose "params" are either; or without names, as torch's.
    lr: a third to a tenth of AdamW's, for every element steps as far. weight_decay: 0.01, wd; as much larger.
    betas: (0.9, 0.99).
    vote: "majority", the sign of the mean; or "mean", which needs more of a reply than its sign: pull="none", or
        "int8", say. Of an even number of workers' signs, a tie is no step.
    links, or push and pull alone: Links has what they mean. push: "sign", what is not 0 costs a bit; or any other
        codec. pull: "sign", of the majority; ties cost a second bit an element. After DeadlineExceeded out of step()
        every further step is refused.

    The exchange is in step(), none of it beside the backward pass: backward() leaves local gradients, several
    of which add up. A parameter without one counts as one of zeros; leave frozen ones out. What is not finite in
    one worker leaves that parameter as it is in all. A GradScaler is refused: it skips step() in the worker that
    overflowed, and the others wait; use bfloat16. m_i is kept in float32 in the memory of the host, and saved by
    comm_state_dict() of every rank.
    """

    @takes_links("overrides", "prefix", "timeout", "check")
    def __init__(
        self,
        params: Any,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.01,
        *,
        vote: str = "majority",
        push: str | None = None,
        pull: str | None = None,
        links: Links = Links(),
        worker: Worker | None = None,
    ) -> None:
        check_not_negative(lr=lr, weight_decay=weight_decay)
        check_decays(beta1=betas[0], beta2=betas[1])
        if vote not in ("majority", "mean"):
            raise InvalidArgument(f"vote={vote!r} is neither majority nor mean")
        table = link_table(links, push="sign", pull="sign")
        table.check_without("Lion", "momentum", "warmup", instead="Lion has betas of its own")
        table.check_without_correction("Lion")
        if vote == "mean" and any(options.pull == "sign" for options in table.rows):
            raise InvalidArgument(
                "vote='mean' steps by the mean of the signs, and pull='sign' replies its sign alone; give it "
                "pull='none' or 'int8', or vote='majority'"
            )
        defaults = dict(lr=lr, betas=betas, weight_decay=weight_decay)
        settings = {"algorithm": "Lion", "vote": vote}
        super().__init__(params, defaults, settings, table, links, worker, memories=["momentum"], as_float32=True)

    def _message(self, part):
        direction = torch.lerp(part.gradient, part.memory["momentum"], part.group["betas"][0])
        if self._is_majority and part.member.options.push != "sign":
            return direction
        # Signs, also where the link sends what is small as it is; what is not finite stays so.
        return direction.sign() + (direction - direction)

    def _apply(self, part, mean):
        part.memory["momentum"].lerp_(part.gradient, 1 - part.group["betas"][1])
        update = mean.sign_() if self._is_majority else mean
        step_by(part.param, update, float(part.group["lr"]), part.group["weight_decay"])

    @property
    def _is_majority(self):
        return self._settings["vote"] == "majority"
