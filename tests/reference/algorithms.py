"""The algorithms, plain: float64 NumPy, slow and obvious, written from their definitions.

A model is a list of arrays, one a parameter. All workers are simulated at once: what differs
between them is a list, by rank. Step numbers t count from 1. A codec is a function from an array to
what the other end decodes.
"""

import math

import numpy as np

# ---- Codecs ----


def none(p):
    return p


def onebit(p):
    """Signs, and one mean magnitude (1901.09847); 0 counts as positive."""
    return np.where(p < 0, -1.0, 1.0) * np.abs(p).mean()


def topk(ratio):
    """The k largest magnitudes, exactly (1809.07599); of equal ones the first."""

    def codec(p):
        kept = np.argsort(-np.abs(p), axis=None, kind="stable")[: max(1, math.ceil(ratio * p.size))]
        out = np.zeros_like(p)
        out.flat[kept] = p.flat[kept]
        return out

    return codec


# ---- Links ----


class TwoWayErrorFeedback:
    """One parameter's way to the server and back, with error feedback at both ends (2105.07829) and
    momentum in front of it where mu is not 0 (dist-EF-SGDM).

        worker i:  m_i = mu m_i + g_i;  p_i = g_i + mu m_i + e_i;  c_i = C(p_i);  e_i = p_i - c_i
        server:    p = mean of c_i + e;  c = C'(p);  e = p - c

    The first `warmup` steps go by the same equations with C = C' = none.
    """

    def __init__(self, workers, push=none, pull=none, mu=0.0, warmup=0):
        self.push, self.pull, self.mu, self.warmup = push, pull, mu, warmup
        self.momenta = [0.0] * workers
        self.residuals = [0.0] * workers
        self.server_residual = 0.0
        self.steps = 0

    def exchange(self, gradients):
        """Every worker's result."""
        self.steps += 1
        push, pull = (none, none) if self.steps <= self.warmup else (self.push, self.pull)
        sent = []
        for i, g in enumerate(gradients):
            self.momenta[i] = self.mu * self.momenta[i] + g
            p = g + self.mu * self.momenta[i] + self.residuals[i]
            sent.append(push(p))
            self.residuals[i] = p - sent[i]
        p = sum(sent) / len(sent) + self.server_residual
        reply = pull(p)
        self.server_residual = p - reply
        return reply


# ---- Update rules ----


class SGD:
    def __init__(self, lr):
        self.lr = lr

    def step(self, x, g):
        return x - self.lr * g


class DecayMomentumSGD:
    """w = mu (w + wd x);  x = x - lr (g + w + wd x)."""

    def __init__(self, lr, wd, mu):
        self.lr, self.wd, self.mu = lr, wd, mu
        self.w = 0.0

    def step(self, x, g):
        self.w = self.mu * (self.w + self.wd * x)
        return x - self.lr * (g + self.w + self.wd * x)


class AdamW:
    """Of 1711.05101; with `freeze_after` the second moment stays as it is after that many steps."""

    def __init__(self, lr, b1=0.9, b2=0.999, eps=1e-8, wd=0.0, freeze_after=math.inf):
        self.lr, self.b1, self.b2, self.eps, self.wd = lr, b1, b2, eps, wd
        self.freeze_after = freeze_after
        self.m = self.v = 0.0
        self.t = 0

    def step(self, x, g):
        self.t += 1
        self.m = self.b1 * self.m + (1 - self.b1) * g
        if self.t <= self.freeze_after:
            self.v = self.b2 * self.v + (1 - self.b2) * g**2
        return self.descend(x)

    def descend(self, x):
        m = self.m / (1 - self.b1**self.t)
        v = self.v / (1 - self.b2 ** min(self.t, self.freeze_after))
        return x - self.lr * (m / (np.sqrt(v) + self.eps) + self.wd * x)


class LANS:
    """Of 2006.13484; the block is one parameter, phi(z) = z."""

    def __init__(self, lr, b1=0.9, b2=0.999, eps=1e-6, wd=0.01, normalize_grad=False):
        self.lr, self.b1, self.b2, self.eps, self.wd = lr, b1, b2, eps, wd
        self.normalize_grad = normalize_grad
        self.m = self.v = 0.0
        self.t = 0

    def step(self, x, g):
        self.t += 1
        if self.normalize_grad:
            g = g / (np.linalg.norm(g) + self.eps)
        self.m = self.b1 * self.m + (1 - self.b1) * g
        self.v = self.b2 * self.v + (1 - self.b2) * g**2
        m = self.m / (1 - self.b1**self.t)
        v = self.v / (1 - self.b2**self.t)
        r = m / (np.sqrt(v) + self.eps) + self.wd * x
        q = g / (np.sqrt(v) + self.eps) + self.wd * x
        return x - self.lr * (
            self.b1 * self._ratio(x, r) * r + (1 - self.b1) * self._ratio(x, q) * q
        )

    @staticmethod
    def _ratio(x, direction):
        x_norm, norm = np.linalg.norm(x), np.linalg.norm(direction)
        return x_norm / norm if x_norm > 0 and norm > 0 else 1.0


# ---- Algorithms ----


def every_step(model, gradient, steps, rules, links):
    """BytePS-Compress: each step on the exchanged gradients; CLAN where the rules are LANS.

    gradient(i, t, model): worker i's, a list like the model. rules, links: one a parameter.
    """
    model = [x.astype(np.float64) for x in model]
    for t in range(1, steps + 1):
        local = [gradient(i, t, model) for i in range(len(links[0].residuals))]
        for b, (rule, link) in enumerate(zip(rules, links)):
            model[b] = rule.step(model[b], link.exchange([g[b] for g in local]))
    return model


def onebit_adam(model, gradient, steps, warmup, links, **adam):
    """1-bit Adam (2102.02888): dense Adam, then v frozen and m_i = b1 m + (1 - b1) g_i exchanged.
    The links are dense as long."""
    model = [x.astype(np.float64) for x in model]
    rules = [AdamW(freeze_after=warmup, **adam) for _ in model]
    for t in range(1, steps + 1):
        local = [gradient(i, t, model) for i in range(len(links[0].residuals))]
        for b, (rule, link) in enumerate(zip(rules, links)):
            gradients = [g[b] for g in local]
            if t <= warmup:
                model[b] = rule.step(model[b], link.exchange(gradients))
            else:
                rule.t = t
                rule.m = link.exchange([rule.b1 * rule.m + (1 - rule.b1) * g for g in gradients])
                model[b] = rule.descend(model[b])
    return model
