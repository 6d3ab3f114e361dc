"""The area under the ROC curve as a loss, for classes of which one is rare."""

from __future__ import annotations

import math
from typing import Any

import torch

from ...errors import InvalidArgument
from ...session import default_worker, is_initialized
from ...worker import Worker
from ..broadcast import allgather_object
from ..hyperparameters import check_not_negative


class AUCLoss(torch.nn.Module):
    """Maximizes the area under the ROC curve (AUC) by a saddle point, as CODA does (arXiv 2005.02426), so that workers
    may step by themselves and meet rarely: a pair of a positive and a negative need not be in one worker. Collective,
    where the process is in a job: all workers make one, with the same options.

        auc = bdn.algorithms.AUCLoss(positives=labels, model=model, pull=0.002)     # Parameters a, b and alpha.
        named = [*model.named_parameters(), *auc.named_parameters("auc")]
        sgd = torch.optim.SGD([p for _, p in named], lr=0.1)
        optimizer = bdn.LocalSteps(sgd, named, tau=50, outer=bdn.algorithms.Average())
        auc(model(x), y).backward()
        optimizer.step()
        ...
        auc.stage(optimizer)                        # After every 1,000 steps or so.

    For scores h, labels y and the share p of positives, the mean over the batch of

        (1 - p) (h - a)^2 [y = 1] + p (h - b)^2 [y = 0]
        + 2 (1 + alpha) (p h [y = 0] - (1 - p) h [y = 1]) - p (1 - p) alpha^2

    is to be least in the model, a and b, and greatest in alpha. There it is p (1 - p) (mean over pairs of (1 - h + h')^2
    - 1), h being a positive's score and h' a negative's. alpha's gradient is negated, so that an optimizer that descends
    ascends in it: give it to torch.optim.SGD without momentum and weight decay. Scores need no sigmoid.

    positives: the share p of positives among all workers' samples, the same in all of them; or this worker's labels, of
        which the share is counted over all workers.
    model: the one to pull; None pulls a and b alone.
    pull: lambda: adds lambda / 2 of the square of how far model, a and b have come since the last stage() began. 0.
    worker: of the one exchange, by which all learn of the share and find that their options are the same;
        InvalidArgument names two ranks where they are not. Without a job there is none.
    """

    def __init__(
        self,
        positives: float | torch.Tensor,
        *,
        model: torch.nn.Module | None = None,
        pull: float = 0.0,
        worker: Worker | None = None,
    ) -> None:
        super().__init__()
        if model is not None and not isinstance(model, torch.nn.Module):
            raise InvalidArgument(f"model={model!r} is not a torch.nn.Module")
        check_not_negative(pull=pull)
        if not pull < math.inf:
            raise InvalidArgument(f"pull={pull} is not finite")
        self.pull = float(pull)
        self.positives = _share(positives, self.pull, worker)
        # A tuple hides the parameters from Module: they are the model's, and its optimizer has them.
        self._pulled = (tuple(model.parameters()) if model is not None else (),)
        self.a = torch.nn.Parameter(torch.zeros((), dtype=torch.float32, device="cpu"))
        self.b = torch.nn.Parameter(torch.zeros((), dtype=torch.float32, device="cpu"))
        self.alpha = torch.nn.Parameter(torch.zeros((), dtype=torch.float32, device="cpu"))
        self._begin_stage()

    def forward(self, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The loss of a batch. Labels are 0 or 1; scores have their shape, but for dimensions of size 1."""
        if not (isinstance(scores, torch.Tensor) and scores.is_floating_point() and scores.numel()):
            raise InvalidArgument(f"scores={scores!r} are not floating point numbers, one or more")
        positive = _positive(labels).to(scores.device)
        if positive.squeeze().shape != scores.squeeze().shape:
            raise InvalidArgument(
                f"scores are of shape {list(scores.shape)}, and labels of shape {list(positive.shape)}"
            )
        scores, positive = scores.reshape(-1), positive.reshape(-1)
        p, alpha = self.positives, _Ascended.apply(self.alpha)
        of_positive = (1 - p) * ((scores - self.a).square() - 2 * (1 + alpha) * scores)
        of_negative = p * ((scores - self.b).square() + 2 * (1 + alpha) * scores)
        loss = torch.where(positive, of_positive, of_negative).mean() - p * (1 - p) * alpha.square()
        if self.pull:
            moved = self._place() - self.stage_began
            loss = loss + self.pull / 2 * moved.dot(moved)
        return loss

    def stage(self, optimizer: torch.optim.Optimizer) -> None:
        """Ends a stage: the pull is to where the model is now, and every learning rate becomes a third. Collective,
        with LocalSteps, which meets for it unless it just has."""
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise InvalidArgument(f"stage() takes the optimizer, whose learning rates fall, and got {optimizer!r}")
        if not getattr(optimizer, "has_local_models", False):
            getattr(optimizer, "synchronize", lambda: None)()
        elif optimizer._steps_since_meeting():
            optimizer.synchronize()
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] / 3
        self._begin_stage()

    def extra_repr(self) -> str:
        return f"positives={self.positives:g}, pull={self.pull:g}"

    def _place(self):
        """Where the model, a and b are, as one vector."""
        return torch.cat([param.reshape(-1) for param in (*self._pulled[0], self.a, self.b)])

    @torch.no_grad()
    def _begin_stage(self):
        # A buffer, which state_dict() saves and broadcast_parameters() sends.
        if self.pull:
            self.register_buffer("stage_began", self._place().clone())


class _Ascended(torch.autograd.Function):
    """The identity, whose gradient is negated: a step down becomes one up."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return -grad


def _positive(labels):
    if not isinstance(labels, torch.Tensor):
        raise InvalidArgument(f"labels={labels!r} are not a tensor of 0 and 1")
    positive = labels == 1
    if not (positive | (labels == 0)).all():
        wrong = labels[~(positive | (labels == 0))].reshape(-1)[0].item()
        raise InvalidArgument(f"labels have {wrong!r} among them, and are to be 0 or 1")
    return positive


def _share(positives, pull, worker):
    """The share of positives, the same in all workers."""
    if isinstance(positives, torch.Tensor) and positives.dim():
        positive = _positive(positives)
        given = [int(positive.sum()), positive.numel()]
    else:
        try:
            given = float(positives)
        except (TypeError, ValueError):
            raise InvalidArgument(f"positives={positives!r} is neither a share nor a tensor of labels") from None
    if worker is None and is_initialized():
        worker = default_worker()
    alone = worker is None
    everyone = [(given, pull)] if alone else allgather_object((given, pull), worker=worker)
    ranks = [0] if alone else worker.present()
    first, first_pull = everyone[0]
    for rank, (other, other_pull) in zip(ranks, everyone):
        if other_pull != first_pull:
            raise InvalidArgument(f"worker {rank} has pull={other_pull}, and worker {ranks[0]} pull={first_pull}")
        both_labels = isinstance(other, list) and isinstance(first, list)
        if not both_labels and other != first:
            said = ["its labels" if isinstance(one, list) else one for one in (other, first)]
            raise InvalidArgument(f"worker {rank} has positives={said[0]}, and worker {ranks[0]} positives={said[1]}")
    share = given
    if isinstance(given, list):
        counts = [count for count, _ in everyone]
        share = sum(count for count, _ in counts) / max(sum(total for _, total in counts), 1)
    if not 0 < share < 1:
        raise InvalidArgument(f"positives={share} is not a share between 0 and 1: both classes have to be there")
    return share
