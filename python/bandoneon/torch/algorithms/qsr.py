"""The quadratic synchronisation rule, by which meetings grow rarer."""

import math
from dataclasses import dataclass

from ...errors import InvalidArgument
from ..hyperparameters import check_not_negative, check_steps


@dataclass(frozen=True)
class QSR:
    """The quadratic synchronisation rule (arXiv 2310.14423) for LocalSteps(tau=): meetings grow rarer as the
    learning rate falls. A round that begins at learning rate lr, the first group's, has

        tau = floor((alpha / lr)^2), but at least `least` and at most `most`

    alpha: the rate at which the square is 1; the highest rate times sqrt(least) begins to grow at once.
    least: steps between meetings at the highest rate.
    most: a bound where the rate comes near 0. A run ends best at a meeting: call synchronize() where it does not.
    warmup: rounds that begin in so many first steps, while the rate still rises, have `least`.
    """

    alpha: float
    least: int
    most: int
    warmup: int = 0

    def __post_init__(self):
        check_steps(least=self.least, most=self.most)
        check_not_negative(alpha=self.alpha, warmup=self.warmup)
        if self.most < self.least:
            raise InvalidArgument(f"most={self.most} is less than least={self.least}")

    def steps(self, step: int, rate: float) -> int:
        """Of the round that begins after `step` steps at that learning rate."""
        if step < self.warmup:
            return int(self.least)
        # Before the square, which overflows for tiny rates.
        ratio = self.alpha / rate if rate > 0 else math.inf
        longest = self.most if ratio >= math.sqrt(self.most) else int(ratio**2)
        return int(max(self.least, longest))
