"""DeMo: workers send the largest frequencies of their momentum."""

from __future__ import annotations

from typing import Any

import torch

from ...errors import InvalidArgument
from ...worker import Worker
from ..hints import Closure, NamedParameters, Overrides
from ..hyperparameters import check_decays, check_not_negative, check_steps
from ..link_options import LinkOptions, LinkTable
from ..wrapped import evaluate
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

        optimizer = bdn.DeMo(model.parameters(), lr=1e-3, named_parameters=model.named_parameters())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    lr: every element that is stepped moves as far. weight_decay: 0, wd.
    decay: 0.999.
    chunk: 64, the longest side of a tile; sides divide those of the parameter, of which a convolution's is
        a matrix of [channels out, all else] and a vector one row.
    push: a codec of coefficients, without ef(...): what it leaves out is d_i's.
    pull: of their mean. The workers choose by themselves, so that it has up to as many coefficients as all send
        together: pull="none" loses nothing, "ef(topk(ratio=0.03125))" sends the rest later.
    named_parameters, overrides, prefix, timeout, check: as DistributedOptimizer's. After DeadlineExceeded out of
        step() every further step is refused.

    The exchange is in step(), none of it beside the backward pass: backward() leaves local gradients, several
    of which add up. A parameter without one counts as one of zeros; leave frozen ones out. What is not finite in
    one worker leaves that parameter and its d_i as they are in all. A GradScaler is refused: it skips step() in the
    worker that overflowed, and the others wait; use bfloat16. d_i is float32 in the memory of the host, where the
    transforms are computed, and saved by comm_state_dict() of every rank. All workers compute the same signs of
    the same reply: give them machines of one kind, and equally many threads.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        decay: float = 0.999,
        weight_decay: float = 0.0,
        chunk: int = 64,
        *,
        push: str = "topk(ratio=0.03125)",
        pull: str = "ef(topk(ratio=0.03125))",
        named_parameters: NamedParameters | None = None,
        overrides: Overrides | None = None,
        prefix: str = "",
        timeout: float | None = None,
        check: bool = True,
        worker: Worker | None = None,
    ) -> None:
        check_not_negative(lr=lr, weight_decay=weight_decay)
        check_decays(decay=decay)
        check_steps(chunk=chunk)
        links = LinkTable(LinkOptions.of(push, pull), overrides)
        links.check_without("DeMo", "momentum", "warmup", instead="DeMo has a decay= of its own")
        links.check_without_correction("DeMo")
        for options in links.rows:
            if options.feeds_back:
                raise InvalidArgument(
                    f"push={options.push!r} keeps what it leaves out, which is DeMo's to keep; write the codec "
                    "without ef(...)"
                )
        super().__init__(
            params,
            dict(lr=lr, decay=decay, weight_decay=weight_decay),
            {"algorithm": "DeMo", "chunk": int(chunk)},
            links,
            named_parameters,
            prefix,
            timeout,
            check,
            worker,
            memories=["momentum"],
            as_float32=True,
        )
        self._transforms = [ChunkedDCT(member.shape, int(chunk)) for member in self._links.members]

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:
        loss = evaluate(closure)
        self._resume_check.before_step(self, lambda: self._links.steps)
        groups, members = self._groups(), self._links.members
        kept = self._memory["momentum"]
        coefficients = [
            self._advanced(member, transform, momentum, groups[id(member.param)])
            for member, transform, momentum in zip(members, self._transforms, kept)
        ]
        rests = [torch.empty_like(c) for c in coefficients]
        results = self._links.exchange(coefficients, self._timeout, left_out=rests)
        for i, (member, result) in enumerate(zip(members, results)):
            state, group = self.state[member.param], groups[id(member.param)]
            state["step"] = state.get("step", 0) + 1
            if result.nonfinite:
                continue
            kept[i].copy_(rests[i])
            direction = self._transforms[i].inverse(coefficients[i]).sign_()
            step_by(member.param, direction, float(group["lr"]), group["weight_decay"])
        return loss

    def _advanced(self, member, transform, momentum, group):
        """DCT(decay d + lr g), in memory of its own."""
        advanced = momentum * group["decay"]
        if member.param.grad is not None:
            grad = self._links.dense_on_host(member, member.param.grad)
            advanced.add_(transform.forward(grad), alpha=float(group["lr"]))
        return advanced
