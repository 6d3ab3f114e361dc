"""DeMo: workers send the largest frequencies of their momentum."""

from __future__ import annotations

from typing import Any

import torch

from ...errors import InvalidArgument
from ...worker import Worker
from ..hyperparameters import check_decays, check_not_negative, check_steps
from ..links import Links, link_table, takes_links
from .chunked_dct import ChunkedDCT
from .step_exchange import StepExchangeOptimizer, step_by


class DeMo(StepExchangeOptimizer):
    """Decoupled momentum (DeMo, arXiv 2411.19870): each worker's momentum is its own, and loses what it has
    sent. Distributed by itself: no DistributedOptimizer goes around it. Collective: all workers construct
    the same and step together.

    With worker i's gradient g_i, d_i from 0, and DCT the cosine transform of tiles of chunk x chunk:

        d_i <- decay d_i + lr g_i
        q_i = what a codec sends of DCT(d_i)                 d_i <- d_i - inverse DCT(q_i)
        x <- (1 - lr wd) x - lr sign(inverse DCT(mean of q_i))

    The transform is orthonormal, so d_i is kept as DCT(d_i). The paper sends the largest coefficients of each
    tile; push="topk(ratio=)" those of the tensor, or of each partition of a large one.

        optimizer = bdn.algorithms.DeMo(model.named_parameters(), lr=1e-3)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    params: model.named_parameters(), the model, or groups whose "params" are either; or without names, as torch's.
    lr: every element that is stepped moves as far. weight_decay: 0, wd.
    decay: 0.999.
    chunk: 64, the longest side of a tile; sides divide those of the parameter, of which a convolution's is
        a matrix of [channels out, all else] and a vector one row.
    links, or push and pull alone: Links has what they mean. push: a codec of coefficients, without ef(...), for what it
        leaves out is d_i's; "topk(ratio=0.03125)". pull: of their mean. The workers choose by themselves, so that it has
        up to as many coefficients as all send together: pull="none" loses nothing, "ef(topk(ratio=0.03125))", which it
        is unless given, sends the rest later. After DeadlineExceeded out of step() every further step is refused.

    The exchange is in step(), none of it beside the backward pass: backward() leaves local gradients, several
    of which add up. A parameter without one counts as one of zeros; leave frozen ones out. What is not finite in
    one worker leaves that parameter and its d_i as they are in all. A GradScaler is refused: it skips step() in the
    worker that overflowed, and the others wait; use bfloat16. d_i is float32 in the memory of the host, where the
    transforms are computed, and saved by comm_state_dict() of every rank. All workers compute the same signs of
    the same reply: give them machines of one kind, and equally many threads.
    """

    asks_for_left_out = True

    @takes_links("overrides", "prefix", "timeout", "check")
    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        decay: float = 0.999,
        weight_decay: float = 0.0,
        chunk: int = 64,
        *,
        push: str | None = None,
        pull: str | None = None,
        links: Links = Links(),
        worker: Worker | None = None,
    ) -> None:
        check_not_negative(lr=lr, weight_decay=weight_decay)
        check_decays(decay=decay)
        check_steps(chunk=chunk)
        table = link_table(links, push="topk(ratio=0.03125)", pull="ef(topk(ratio=0.03125))")
        table.check_without("DeMo", "momentum", "warmup", instead="DeMo has a decay= of its own")
        table.check_without_correction("DeMo")
        for options in table.rows:
            if options.feeds_back:
                raise InvalidArgument(
                    f"push={options.push!r} keeps what it leaves out, which is DeMo's to keep; write the codec "
                    "without ef(...)"
                )
        defaults = dict(lr=lr, decay=decay, weight_decay=weight_decay)
        settings = {"algorithm": "DeMo", "chunk": int(chunk)}
        super().__init__(params, defaults, settings, table, links, worker, memories=["momentum"], as_float32=True)
        self._transforms = {id(m.param): ChunkedDCT(m.shape, int(chunk)) for m in self._links.members}

    lends_memory = False  # What another worker owes is sent by that one.

    def _message(self, part):
        """DCT(decay d + lr g)."""
        advanced = part.memory["momentum"] * part.group["decay"]
        if part.param.grad is not None:
            transform = self._transforms[id(part.param)]
            advanced.add_(transform.forward(part.gradient), alpha=float(part.group["lr"]))
        return advanced

    def _apply(self, part, mean):
        part.memory["momentum"].copy_(part.left_out)
        direction = self._transforms[id(part.param)].inverse(mean).sign_()
        step_by(part.param, direction, float(part.group["lr"]), part.group["weight_decay"])
