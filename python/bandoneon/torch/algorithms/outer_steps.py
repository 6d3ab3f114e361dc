"""The outer steps of LocalSteps: what servers do with the mean of what the workers moved."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from ..hyperparameters import check_decays, check_not_negative, rule_text


def _rule_options(outer):
    """What the servers are told once: not the rate, which comes with each push."""
    return {name: value for name, value in asdict(outer).items() if name != "rate"}


@dataclass(frozen=True)
class SignMomentum:
    """The outer step of distributed sign momentum (DSM, arXiv 2411.17866). With D the mean of what the
    workers moved, lr their learning rate at the time, and d = D / lr:

        u = beta1 m + (1 - beta1) d;   m <- beta2 m + (1 - beta2) d
        x <- (1 - decay eta lr) x - eta lr sign(u)

    A pull is one bit a parameter and loses nothing: whoever holds x needs only the signs. The defaults
    are the authors' for tau=12 and thousands of rounds.

    rate: what lr is in place of the workers' learning rate; with Pace(...) it must be given.
    """

    beta1: float = 0.95
    beta2: float = 0.98
    eta: float = 1.0
    decay: float = 0.1
    rate: float | None = None

    def __post_init__(self):
        check_decays(beta1=self.beta1, beta2=self.beta2)
        check_not_negative(eta=self.eta, decay=self.decay, rate=self.rate or 0.0)

    @property
    def rule(self) -> str:
        """The servers' update rule, as they read it."""
        return rule_text("sign_momentum", **_rule_options(self))

    pull = "sign"


@dataclass(frozen=True)
class Nesterov:
    """DiLoCo's outer step (arXiv 2311.08105): m <- momentum m + D;  x <- x - lr (D + momentum m)."""

    lr: float = 0.7
    momentum: float = 0.9

    def __post_init__(self):
        check_decays(momentum=self.momentum)
        check_not_negative(lr=self.lr)

    @property
    def rule(self) -> str:
        """The servers' update rule, as they read it."""
        return rule_text("nesterov", **asdict(self))

    pull = "none"


@dataclass(frozen=True)
class SlowMo:
    """SlowMo (arXiv 1910.00643): m <- beta m + D / lr;  x <- x - alpha lr m, lr the workers' own.

    rate: what lr is in place of the workers' learning rate; with Pace(...) it must be given.
    """

    beta: float = 0.5
    alpha: float = 1.0
    rate: float | None = None

    def __post_init__(self):
        check_decays(beta=self.beta)
        check_not_negative(alpha=self.alpha, rate=self.rate or 0.0)

    @property
    def rule(self) -> str:
        """The servers' update rule, as they read it."""
        return rule_text("slowmo", **_rule_options(self))

    pull = "none"


@dataclass(frozen=True)
class Average:
    """The mean of the workers' weights: local SGD (arXiv 1805.09767), x <- x - D. With a lossy push
    under ef(...) it is QSparse-local-SGD (1906.02367)."""

    rule = "average"
    pull = "none"
