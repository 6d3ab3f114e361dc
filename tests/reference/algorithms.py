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


def zero(p):
    """Nothing is sent."""
    return np.zeros_like(p)


def onebit(p):
    """Signs, and one mean magnitude (1901.09847); 0 counts as positive."""
    return np.where(p < 0, -1.0, 1.0) * np.abs(p).mean()


def twobit(p):
    """Levels of -3, -1, 1 and 3 times 0.624 of the mean magnitude, which is rounded to bfloat16."""
    bits = int(np.float32(0.624 * np.abs(p).mean()).view(np.uint32))
    scale = np.uint32((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32).astype(p.dtype)
    return np.where(p < 0, -1.0, 1.0) * np.where(np.abs(p) > 2 * scale, 3.0, 1.0) * scale


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

    The first `warmup` steps go by the same equations with C = C' = none. With `rate`, a function of
    the step, both residuals are brought from the last step's learning rate to this one's: they count
    rho = rate(t - 1) / rate(t), or 1 where either is 0.
    """

    def __init__(self, workers, push=none, pull=none, mu=0.0, warmup=0, rate=None):
        self.push, self.pull, self.mu, self.warmup = push, pull, mu, warmup
        self.rate = rate
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
            p = g + self.mu * self.momenta[i] + self._rho() * self.residuals[i]
            sent.append(push(p))
            self.residuals[i] = p - sent[i]
        p = sum(sent) / len(sent) + self._rho() * self.server_residual
        reply = pull(p)
        self.server_residual = p - reply
        return reply

    def _rho(self):
        if self.rate is None or self.steps == 1:
            return 1.0
        before, now = self.rate(self.steps - 1), self.rate(self.steps)
        return before / now if before > 0 and now > 0 else 1.0


# ---- Update rules ----


class SGD:
    """torch.optim.SGD's."""

    def __init__(self, lr, mu=0.0, nesterov=False, wd=0.0):
        self.lr, self.mu, self.nesterov, self.wd = lr, mu, nesterov, wd
        self.m = 0.0

    def step(self, x, g):
        g = g + self.wd * x
        self.m = self.mu * self.m + g
        return x - self.lr * (g + self.mu * self.m if self.nesterov else self.m)


class DecayMomentumSGD:
    """w = mu (w + wd x);  x = x - lr (g + w + wd x)."""

    def __init__(self, lr, wd, mu):
        self.lr, self.wd, self.mu = lr, wd, mu
        self.w = 0.0

    def step(self, x, g):
        self.w = self.mu * (self.w + self.wd * x)
        return x - self.lr * (g + self.w + self.wd * x)


class AdamW:
    """Of 1711.05101; with `freeze_after`, FrozenAdamW: the second moment stays as it is after that many steps. No
    step where it is 0, decay aside."""

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
        step = np.where(v > 0, m / (np.sqrt(v) + self.eps), 0.0)
        return x - self.lr * (step + self.wd * x)


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


class Muon:
    """Keller Jordan et al. 2024, of a matrix, or of [first dimension, all others]; as long as AdamW's steps
    (2502.16982)."""

    def __init__(self, lr, mu=0.95, wd=0.01):
        self.lr, self.mu, self.wd = lr, mu, wd
        self.b = 0.0

    def step(self, x, g):
        self.b = self.mu * self.b + g
        u = (g + self.mu * self.b).reshape(len(x), -1)
        direction = self._orthogonal(u) if u.shape[0] <= u.shape[1] else self._orthogonal(u.T).T
        length = 0.2 * math.sqrt(max(u.shape))
        return x - self.lr * (length * direction.reshape(x.shape) + self.wd * x)

    @staticmethod
    def _orthogonal(u):
        x = u / (np.linalg.norm(u) + 1e-7)
        for _ in range(5):
            gram = x @ x.T
            x = 3.4445 * x - 4.7750 * gram @ x + 2.0315 * gram @ gram @ x
        return x


# ---- Outer rules: from common weights x, the mean D of what local steps moved, and their rate ----


class Average:
    def step(self, x, d, lr):
        return x - d


class Nesterov:
    """DiLoCo's (2311.08105)."""

    def __init__(self, lr=0.7, momentum=0.9):
        self.lr, self.momentum = lr, momentum
        self.m = 0.0

    def step(self, x, d, lr):
        self.m = self.momentum * self.m + d
        return x - self.lr * (d + self.momentum * self.m)


class Prox:
    """Of 1809.03655, by a search of the least value: first of a fine grid, then of finer ones around the best point."""

    def __init__(self, penalty, lam, theta, pull):
        self.penalty, self.lam, self.theta, self.pull = penalty, lam, theta, pull

    def value(self, v, u):
        return penalty(self.penalty, v, self.lam, self.theta) + self.pull / 2 * (v - u) ** 2

    def one(self, u):
        low, high = 0.0, abs(u) + self.theta * max(self.lam, 1)
        for _ in range(6):
            grid = np.linspace(low, high, 4001)
            best = int(np.argmin(self.value(grid, abs(u))))  # The first of equal ones.
            low, high = grid[max(best - 2, 0)], grid[min(best + 2, 4000)]
        return math.copysign(grid[best], u)

    def step(self, x, d, lr):
        return np.vectorize(self.one)(x - d)


def penalty(name, v, lam, theta):
    """Of v >= 0."""
    if name == "l1":
        return lam * v
    if name == "capped":
        return lam * np.minimum(v, theta)
    if name == "mcp":
        return np.where(v <= theta * lam, lam * v - v**2 / (2 * theta), theta * lam**2 / 2)
    bent = (2 * theta * lam * v - v**2 - lam**2) / (2 * (theta - 1))
    return np.where(v <= lam, lam * v, np.where(v <= theta * lam, bent, lam**2 * (theta + 1) / 2))


class SlowMo:
    """Of 1910.00643."""

    def __init__(self, beta=0.5, alpha=1.0):
        self.beta, self.alpha = beta, alpha
        self.u = 0.0

    def step(self, x, d, lr):
        self.u = self.beta * self.u + d / lr
        return x - self.alpha * lr * self.u


class SignMomentum:
    """DSM (2411.17866); sign(0) is 0."""

    def __init__(self, b1=0.95, b2=0.98, eta=1.0, decay=0.1):
        self.b1, self.b2, self.eta, self.decay = b1, b2, eta, decay
        self.m = 0.0

    def step(self, x, d, lr):
        u = self.b1 * self.m + (1 - self.b1) * d / lr
        self.m = self.b2 * self.m + (1 - self.b2) * d / lr
        return (1 - self.decay * self.eta * lr) * x - self.eta * lr * np.sign(u)


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


def sdp4bit(model, gradient, steps, rules, links, codec):
    """SDP4Bit's qWD (2410.15526): the rules step on weights w that nobody sees; what everybody holds is
    the replica y, which follows by y = y + C(w - y). One worker's gradients are at y."""
    weights = [x.astype(np.float64) for x in model]
    replica = list(weights)
    for t in range(1, steps + 1):
        local = [gradient(i, t, replica) for i in range(len(links[0].residuals))]
        for b, (rule, link) in enumerate(zip(rules, links)):
            weights[b] = rule.step(weights[b], link.exchange([g[b] for g in local]))
            replica[b] = replica[b] + codec(weights[b] - replica[b])
    return replica


def local_steps(model, gradient, steps, tau, lr, outers, links):
    """tau steps of SGD in each worker, then an outer step on the mean of what they moved. lr(t) is the
    rate of step t; links and outers: one a parameter. A number of steps that tau divides."""
    workers = range(len(links[0].residuals))
    common = [x.astype(np.float64) for x in model]
    own = [list(common) for _ in workers]
    for t in range(1, steps + 1):
        for i in workers:
            own[i] = [x - lr(t) * g for x, g in zip(own[i], gradient(i, t, own[i]))]
        if t % tau == 0:
            for b, (outer, link) in enumerate(zip(outers, links)):
                moved = link.exchange([common[b] - own[i][b] for i in workers])
                common[b] = outer.step(common[b], moved, lr(t))
            own = [list(common) for _ in workers]
    return common


def streaming(model, gradient, steps, tau, fragments, delay, merge, lr, outers, links, skipped=()):
    """Streaming DiLoCo (2501.18512) with SGD in each worker: (common weights, each worker's own), after each step.

    Fragment p, a list of numbers of parameters, meets after steps tau p / P + m tau: its outer step is taken on the
    mean of what the workers have moved of it, x - x_i. delay steps later that x' is merged into each worker's weights:
    x_i = x' + (x_i - x_i at the meeting) by merge "shift", and x_i = (1 - a) x' + a x_i by a number a. Without a delay
    x_i = x'. skipped: steps after which a fragment meets whose outer step is not taken; when it would come, all weights
    of all workers become the common ones."""
    workers = range(len(links[0].residuals))
    common = [x.astype(np.float64) for x in model]
    own = [list(common) for _ in workers]
    travels, seen = [], []  # (step in which it comes, fragment, x', weights at the meeting)
    for t in range(1, steps + 1):
        for i in workers:
            own[i] = [x - lr(t) * g for x, g in zip(own[i], gradient(i, t, own[i]))]
        for comes, fragment, new, met in list(travels):
            if comes == t:
                travels.remove((comes, fragment, new, met))
                if new is None:
                    own = [list(common) for _ in workers]
                    continue
                for b in fragment:
                    common[b] = new[b]
                    for i in workers:
                        if merge == "shift":
                            own[i][b] = new[b] + (own[i][b] - met[i][b])
                        else:
                            own[i][b] = (1 - merge) * new[b] + merge * own[i][b]
        for p, fragment in enumerate(fragments):
            if (t - tau * p // len(fragments)) % tau != 0:
                continue
            met = [list(x) for x in own]
            if t in skipped:
                new = None
            else:
                new = {
                    b: outers[b].step(common[b], links[b].exchange([common[b] - own[i][b] for i in workers]), lr(t))
                    for b in fragment
                }
            if delay:
                travels.append((t + delay, fragment, new, met))
            else:
                for b in fragment:
                    common[b] = new[b]
                    for i in workers:
                        own[i][b] = new[b]
        seen.append((list(common), [list(x) for x in own]))
    return seen


def qsparse(model, gradient, steps, tau, lr, workers, codec):
    """QSparse-local-SGD (1906.02367): p_i = e_i + (x - x_i); c_i = C(p_i); e_i = p_i - c_i;
    x = x - mean of c_i."""
    common = [x.astype(np.float64) for x in model]
    own = [list(common) for _ in range(workers)]
    errors = [[0.0] * len(model) for _ in range(workers)]
    for t in range(1, steps + 1):
        own = [[x - lr * g for x, g in zip(own[i], gradient(i, t, own[i]))] for i in range(workers)]
        if t % tau == 0:
            for b in range(len(model)):
                owed = [errors[i][b] + common[b] - own[i][b] for i in range(workers)]
                sent = [codec(p) for p in owed]
                for i in range(workers):
                    errors[i][b] = owed[i] - sent[i]
                common[b] = common[b] - sum(sent) / workers
            own = [list(common) for _ in range(workers)]
    return common


def local_steps_keeping(model, gradient, steps, tau, lr, workers, push, pull):
    """Averaged local steps of SGD, where what a push leaves out stays in the worker's weights: p_i = y - x_i;
    c_i = C(p_i); x = x - mean of c_i; y = y + C'(x - y); x_i = y - (p_i - c_i). (y, x_i)."""
    weights = [x.astype(np.float64) for x in model]
    common = list(weights)
    own = [list(common) for _ in range(workers)]
    for t in range(1, steps + 1):
        own = [[x - lr(t) * g for x, g in zip(own[i], gradient(i, t, own[i]))] for i in range(workers)]
        if t % tau == 0:
            for b in range(len(model)):
                owed = [common[b] - own[i][b] for i in range(workers)]
                sent = [push(p) for p in owed]
                weights[b] = weights[b] - sum(sent) / workers
                common[b] = common[b] + pull(weights[b] - common[b])
                for i in range(workers):
                    own[i][b] = common[b] - (owed[i] - sent[i])
    return common, own


def sparse_loco(model, gradient, steps, meets_after, lr, decay, workers, push, pull):
    """SparseLoCo (2508.15706) with an outer step of 1 and the workers' common weights y as the servers' replies
    leave them: p_i = decay e_i + (y - x_i); c_i = C(p_i); e_i = p_i - c_i; x = x - mean of c_i;
    y = y + C'(x - y). meets_after(t): whether the workers meet after step t."""
    weights = [x.astype(np.float64) for x in model]
    common = list(weights)
    own = [list(common) for _ in range(workers)]
    errors = [[0.0] * len(model) for _ in range(workers)]
    for t in range(1, steps + 1):
        own = [[x - lr(t) * g for x, g in zip(own[i], gradient(i, t, own[i]))] for i in range(workers)]
        if meets_after(t):
            for b in range(len(model)):
                owed = [decay * errors[i][b] + common[b] - own[i][b] for i in range(workers)]
                sent = [push(p) for p in owed]
                for i in range(workers):
                    errors[i][b] = owed[i] - sent[i]
                weights[b] = weights[b] - sum(sent) / workers
                common[b] = common[b] + pull(weights[b] - common[b])
            own = [list(common) for _ in range(workers)]
    return common


def ef_sgd(model, gradient, steps, lr, mu, workers, codec):
    """EF-SGDM (1905.10936), with the rate before the feedback: m_i = mu m_i + g_i;
    p_i = lr (g_i + mu m_i) + e_i; c_i = C(p_i); e_i = p_i - c_i; x = x - mean of c_i."""
    model = [x.astype(np.float64) for x in model]
    momenta = [[0.0] * len(model) for _ in range(workers)]
    errors = [[0.0] * len(model) for _ in range(workers)]
    for t in range(1, steps + 1):
        local = [gradient(i, t, model) for i in range(workers)]
        for b in range(len(model)):
            sent = []
            for i in range(workers):
                momenta[i][b] = mu * momenta[i][b] + local[i][b]
                p = lr * (local[i][b] + mu * momenta[i][b]) + errors[i][b]
                sent.append(codec(p))
                errors[i][b] = p - sent[i]
            model[b] = model[b] - sum(sent) / workers
    return model


def ef21(model, gradient, steps, rules, mu, nesterov, workers, push, pull):
    """EF21 with momentum (2305.15155), from its definition: m_i = mu m_i + (1 - mu) g_i; c_i = Q(t_i - h_i);
    h_i = h_i + c_i; h = h + mean of c_i; H = H + Q'(h - H); the rules, one a parameter, step by H."""
    model = [x.astype(np.float64) for x in model]
    momenta, sent = ([[0.0 * x for x in model] for _ in range(workers)] for _ in range(2))
    sums, estimates = ([0.0 * x for x in model] for _ in range(2))
    for t in range(1, steps + 1):
        local = [gradient(i, t, model) for i in range(workers)]
        for b, rule in enumerate(rules):
            for i in range(workers):
                momenta[i][b] = mu * momenta[i][b] + (1 - mu) * local[i][b]
                target = mu * momenta[i][b] + (1 - mu) * local[i][b] if nesterov else momenta[i][b]
                change = push(target - sent[i][b])
                sent[i][b] = sent[i][b] + change
                sums[b] = sums[b] + change / workers
            estimates[b] = estimates[b] + pull(sums[b] - estimates[b])
            model[b] = rule.step(model[b], estimates[b])
    return model


def kfac(model, samples, steps, lr, every, inverses, damping, clip):
    """KFAC (1503.05671, 2107.06533) of one process on the whole batch, in front of SGD. A model is a matrix a layer, the
    bias its last column. samples(t, model) has for each layer the inputs a, a 1 appended, and the gradients g of each
    sample's own loss by the outputs, one sample a row. Factors begin as I. New inverses are used `every` steps later, the first at once."""
    model = [x.astype(np.float64) for x in model]
    factors = in_use = None
    coming = {}
    for t in range(1, steps + 1):
        rows = samples(t, model)
        if (t - 1) % every == 0:
            new = [(a.T @ a / len(a), g.T @ g / len(g)) for a, g in rows]
            old = factors or [tuple(np.eye(len(f)) for f in pair) for pair in new]
            factors = [tuple(0.95 * o + 0.05 * n for o, n in zip(*pair)) for pair in zip(old, new)]
        in_use = coming.pop(t, in_use)
        if (t - 1) % inverses == 0:
            inverted = [tuple(np.linalg.inv(f + damping * np.eye(len(f))) for f in pair) for pair in factors]
            in_use = in_use or inverted
            coming[t + every] = inverted
        grads = [g.T @ a / len(a) for a, g in rows]
        directions = [right @ grad @ left for grad, (left, right) in zip(grads, in_use)]
        total = sum((v * grad).sum() * lr**2 for v, grad in zip(directions, grads))
        scale = min(1.0, math.sqrt(clip / total))
        model = [x - lr * scale * v for x, v in zip(model, directions)]
    return model


def lion(model, gradient, steps, lr, b1, b2, wd, workers, vote, reply):
    """Distributed Lion (2404.00438): u_i = vote(b1 m_i + (1 - b1) g_i), m_i = b2 m_i + (1 - b2) g_i;
    x = (1 - lr wd) x - lr reply(mean of u_i). Lion (2302.06675) where vote is none and reply is np.sign."""
    model = [x.astype(np.float64) for x in model]
    momenta = [[0.0] * len(model) for _ in range(workers)]
    for t in range(1, steps + 1):
        local = [gradient(i, t, model) for i in range(workers)]
        for b in range(len(model)):
            votes = [vote(b1 * momenta[i][b] + (1 - b1) * local[i][b]) for i in range(workers)]
            for i in range(workers):
                momenta[i][b] = b2 * momenta[i][b] + (1 - b2) * local[i][b]
            model[b] = (1 - lr * wd) * model[b] - lr * reply(sum(votes) / workers)
    return model


def dct(n):
    """The orthonormal DCT-II's matrix, by its definition; where the cosine is 0 it is 0."""
    angles = [[math.pi * (2 * i + 1) * k / (2 * n) for i in range(n)] for k in range(n)]
    scales = [math.sqrt((2 if k else 1) / n) for k in range(n)]
    matrix = np.array([[scale * math.cos(a) for a in row] for scale, row in zip(scales, angles)])
    return np.where(np.abs(matrix) < 1e-12, 0.0, matrix)


def dct_of_tiles(x, chunk, inverse=False):
    """Of a matrix, or of one row; tiles' sides are the largest divisors of the matrix's up to `chunk`."""
    matrix = x.reshape(len(x), -1) if x.ndim > 1 else x.reshape(1, -1)
    height, width = (max(d for d in range(1, chunk + 1) if n % d == 0) for n in matrix.shape)
    out = np.zeros_like(matrix)
    for row in range(0, matrix.shape[0], height):
        for column in range(0, matrix.shape[1], width):
            tile = np.s_[row : row + height, column : column + width]
            left, right = dct(height), dct(width).T
            out[tile] = left.T @ matrix[tile] @ right.T if inverse else left @ matrix[tile] @ right
    return out.reshape(x.shape)


def demo(model, gradient, steps, lr, decay, wd, chunk, codec, links):
    """DeMo (2411.19870), with d itself and not its transform: d_i = decay d_i + lr g_i; q_i = codec(DCT(d_i));
    d_i = d_i - DCT^-1(q_i); x = (1 - lr wd) x - lr sign(DCT^-1(what the links make of q_i))."""
    model = [x.astype(np.float64) for x in model]
    momenta = [[np.zeros(x.shape) for x in model] for _ in links[0].residuals]
    for t in range(1, steps + 1):
        local = [gradient(i, t, model) for i in range(len(momenta))]
        for b, link in enumerate(links):
            sent = []
            for d, gradients in zip(momenta, local):
                d[b] = decay * d[b] + lr * gradients[b]
                sent.append(codec(dct_of_tiles(d[b], chunk)))
                d[b] = d[b] - dct_of_tiles(sent[-1], chunk, inverse=True)
            step = np.sign(dct_of_tiles(link.exchange(sent), chunk, inverse=True))
            model[b] = (1 - lr * wd) * model[b] - lr * step
    return model


def psync(vectors, codec):
    """Partial synchronisation (2007.13221): (every worker's v' = mean of C(v) + r_i, every r_i), with
    r_i = v_i - C(v_i)."""
    sent = [codec(v) for v in vectors]
    rests = [v - c for v, c in zip(vectors, sent)]
    mean = sum(sent) / len(sent)
    return [mean + r for r in rests], rests


def cser(model, gradient, steps, lr, mu, workers, gradient_codec, reset_codec, period):
    """M-CSER (2007.13221); CSER where mu is 0. gradient_codec(t, b) and reset_codec(t, b) are the codecs
    of step t and parameter b. Every worker's (model, errors) after each step."""
    own = [[x.astype(np.float64) for x in model] for _ in range(workers)]
    errors = [[np.zeros(x.shape) for x in model] for _ in range(workers)]
    momenta = [[0.0] * len(model) for _ in range(workers)]
    history = []
    for t in range(1, steps + 1):
        local = [gradient(i, t, own[i]) for i in range(workers)]
        for b in range(len(model)):
            steps_of = []
            for i in range(workers):
                momenta[i][b] = mu * momenta[i][b] + local[i][b]
                steps_of.append(lr * (local[i][b] + mu * momenta[i][b]))
            moved, rests = psync(steps_of, gradient_codec(t, b))
            for i in range(workers):
                own[i][b] = own[i][b] - moved[i]
                errors[i][b] = errors[i][b] - rests[i]
            if t % period == 0:
                reset, rests = psync([errors[i][b] for i in range(workers)], reset_codec(t, b))
                for i in range(workers):
                    own[i][b] = own[i][b] - errors[i][b] + reset[i]
                    errors[i][b] = rests[i]
        history.append([(list(own[i]), list(errors[i])) for i in range(workers)])
    return history
