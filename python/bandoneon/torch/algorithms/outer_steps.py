"""The outer steps of LocalSteps: what servers do with the mean of what the workers moved."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from ...errors import InvalidArgument
from ..hyperparameters import check_decays, check_not_negative, check_positive, rule_text


_PENALTIES = ("l1", "scad", "mcp", "capped")


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


@dataclass(frozen=True)
class Prox:
    """The mean of the workers' weights, shrunk by a penalty p: with m = x - D and W workers (the sum of their weights),

        x <- argmin over z of p(z) + rho W / 2 (z - m)^2

    of each element. Where each worker adds a dual variable u_i to what it has found, and minimizes its own loss
    + rho / 2 |x_i - (x - u_i)|^2 over x_i, this is consensus ADMM (arXiv 1809.03655): u_i += x_i - x after each meeting.
    Without u_i it is local SGD with sparse common weights.

    penalty: lambda times |z| ("l1"), or min(|z|, theta) ("capped"), or one that is lambda |z| near 0 and flat from
        theta lambda on ("scad", "mcp"). Those but l1 leave large weights as they are.
    lam: lambda. theta: where the penalty is flat; above 1 for "scad". rho: as in the workers' own problems.
    """

    penalty: str = "l1"
    lam: float = 0.01
    theta: float = 3.7
    rho: float = 1.0

    def __post_init__(self):
        if self.penalty not in _PENALTIES:
            raise InvalidArgument(f"penalty={self.penalty!r} is none of {', '.join(_PENALTIES)}")
        check_not_negative(lam=self.lam)
        check_positive(theta=self.theta, rho=self.rho)
        if self.penalty == "scad" and self.theta <= 1:
            raise InvalidArgument(f"theta={self.theta} is not above 1, as penalty='scad' needs it; its authors take 3.7")

    @property
    def rule(self) -> str:
        """The servers' update rule, as they read it."""
        return rule_text("prox", **{"penalty": self.penalty, "lambda": self.lam, "theta": self.theta, "rho": self.rho})

    pull = "none"
