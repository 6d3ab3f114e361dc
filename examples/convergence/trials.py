"""Local steps with one thing changed: what the gap to dense runs is made of. Not for use: none of them pays."""

import bandoneon.torch as bdn


def _momenta(optimizer):
    """Of the matrices, in the model's order."""
    for group in optimizer.param_groups:
        for param in group["params"]:
            if "momentum_buffer" in optimizer.state[param]:
                yield optimizer.state[param]["momentum_buffer"]


class ForgottenMomentum(bdn.LocalSteps):
    """Muon's momentum begins anew at each meeting."""

    def synchronize(self):
        super().synchronize()
        for momentum in _momenta(self.inner):
            momentum.zero_()


class SharedMomentum(bdn.LocalSteps):
    """All go on from the mean of their momenta, too."""

    def __init__(self, *given, momentum_push="none", momentum_pull="none", worker=None, **options):
        super().__init__(*given, worker=worker, **options)
        self._exchange = dict(push=momentum_push, pull=momentum_pull, worker=worker)

    def synchronize(self):
        super().synchronize()
        momenta = enumerate(_momenta(self.inner))
        handles = [bdn.push_pull(momentum, f"momentum {i}", **self._exchange) for i, momentum in momenta]
        for handle in handles:
            handle.wait()


class TurnedMomentum(bdn.LocalSteps):
    """A worker's momentum turns at each meeting by what the others moved otherwise than it did, at its own length:
    what sharing it tells, without its bytes. Muon's matrices alone."""

    def __init__(self, *given, share, **options):
        super().__init__(*given, **options)
        self._share = share

    def synchronize(self):
        began = self._common
        ended = [m.param.detach().clone() for m in self._links.members]
        super().synchronize()
        for m, old, own, new in zip(self._links.members, began, ended, self._common):
            momentum = self.inner.state[m.param].get("momentum_buffer")
            if momentum is not None:
                momentum.add_(own - new, alpha=self._share * (momentum.norm() / ((old - own).norm() + 1e-12)).item())
