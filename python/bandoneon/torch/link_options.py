"""How gradients travel: codecs, momentum and warm-up, for all parameters or by name."""

import fnmatch
from dataclasses import asdict, dataclass, replace
from functools import cached_property

from .. import _native
from .._native import CodecTraits
from ..errors import InvalidArgument
from .exchange import default_spec


@dataclass(frozen=True)
class LinkOptions:
    """How one parameter's gradients travel; the same on every worker. Codecs in canonical form."""

    push: str = "none"
    pull: str = "none"
    momentum: float = 0.0
    warmup: int = 0

    @classmethod
    def of(cls, push=None, pull=None, momentum=0.0, warmup=0):
        push, pull = default_spec("push", push), default_spec("pull", pull)
        return cls(push, pull, float(momentum), int(warmup)).checked()

    def checked(self):
        """These in canonical form, or InvalidArgument."""
        checked = replace(self, push=_canonical(self.push), pull=_canonical(self.pull))
        checked._check()
        return checked

    def _check(self):
        if not 0.0 <= self.momentum < 1.0:
            raise InvalidArgument(f"momentum={self.momentum} is not in [0, 1)")
        if self.warmup < 0:
            raise InvalidArgument(f"warmup={self.warmup} is negative")
        push_is_right = _traits(self.push) is not None
        if self.momentum and push_is_right and not (self.feeds_back or self.push == "none"):
            raise InvalidArgument(
                f"momentum={self.momentum} goes before error feedback, but push={self.push!r} has "
                "none; write push='ef(...)', or give the momentum to the optimizer"
            )

    @property
    def feeds_back(self):
        """Whether the worker keeps what its pushes left out."""
        return _has(self.push, CodecTraits.ERROR_FEEDBACK)

    @property
    def memories(self):
        """Names of what the worker keeps between steps."""
        names = ("residual", self.feeds_back), ("momentum", bool(self.momentum))
        return [name for name, is_kept in names if is_kept]

    @property
    def remembers(self):
        """Whether either end keeps something between steps, in units of unscaled gradients."""
        return bool(self.momentum) or self.feeds_back or _has(self.pull, CodecTraits.ERROR_FEEDBACK)

    @cached_property
    def clips_as_half(self):
        """Whether values beyond LARGEST_HALF, scaled as they are, may be clipped on the way and nothing of them kept."""
        return not self.remembers and any("fp16" in spec for spec in (self.push, self.pull))

    @property
    def begins_anew(self):
        """Whether a link that begins at step 0 goes on otherwise than one that has been in use."""
        schedules = (_has(spec, CodecTraits.SCHEDULE) for spec in (self.push, self.pull))
        return self.remembers or self.warmup > 0 or any(schedules)


# The largest that the codec fp16 carries; larger ones become it.
LARGEST_HALF = 65504.0


class LinkTable:
    """Each parameter's LinkOptions: the common ones, changed by the first pattern its name fits.

    overrides: {"*.bias": {"push": "none", "pull": "none"}, ...}: fnmatch patterns, upper and lower
        case told apart; what an entry does not say is as for the others. Immutable.
    """

    def __init__(self, common, overrides=None):
        self.common = common
        self._rows = {
            pattern: _overridden(common, pattern, changes)
            for pattern, changes in (overrides or {}).items()
        }

    @property
    def remembers(self):
        return any(options.remembers for options in self.rows)

    @property
    def clips_as_half(self):
        return any(options.clips_as_half for options in self.rows)

    @property
    def begins_anew(self):
        return any(options.begins_anew for options in self.rows)

    @property
    def rows(self):
        """All options that some parameter may have."""
        return [self.common, *self._rows.values()]

    def options_of(self, name):
        return self._rows.get(self._pattern_of(name), self.common)

    def check_without(self, user, *names, instead="give a momentum to the optimizer inside"):
        """InvalidArgument where one of the named options is given, which `user` has no use for."""
        for options in self.rows:
            for name in names:
                if value := getattr(options, name):
                    raise InvalidArgument(
                        f"{name}={value} is for gradients of every step, which {user} does not push; "
                        f"leave it out, and {instead}"
                    )

    def check_without_correction(self, user):
        """InvalidArgument where error feedback goes by learning rates, which `user` does not push."""
        for options in self.rows:
            for spec in (options.push, options.pull):
                if corrects_by_rate(spec):
                    raise InvalidArgument(
                        f"{spec!r} goes by the learning rate of every step, which {user} does not know; "
                        "leave correction=lr out, or use DistributedOptimizer"
                    )

    def check_use(self, names):
        """InvalidArgument names a pattern that none of the names comes to."""
        used = {self._pattern_of(name) for name in names}
        for pattern in self._rows:
            if pattern in used:
                continue
            shadowed = [name for name in names if fnmatch.fnmatchcase(name, pattern)]
            if shadowed:
                raise InvalidArgument(
                    f"the pattern {pattern!r} of overrides never applies: {shadowed[0]!r} fits "
                    f"{self._pattern_of(shadowed[0])!r} before; put the narrower pattern first"
                )
            raise InvalidArgument(
                f"the pattern {pattern!r} of overrides fits no parameter; their names are "
                + ", ".join(map(repr, names[:4]))
                + (", ..." if len(names) > 4 else "")
            )

    def _pattern_of(self, name):
        fits = (pattern for pattern in self._rows if fnmatch.fnmatchcase(name, pattern))
        return next(fits, None)


def _canonical(spec):
    """What is wrong stays: declaring it says what, and of which tensor."""
    try:
        return _native.check_codec(spec)
    except InvalidArgument:
        return spec


def _traits(spec):
    """None of a spec that is wrong, which stays as _canonical leaves it."""
    try:
        return _native.codec_traits(spec)
    except InvalidArgument:
        return None


def _has(spec, trait):
    traits = _traits(spec)
    return traits is not None and trait in traits


def corrects_by_rate(spec):
    """Whether error feedback goes by the learning rates of steps."""
    return _has(spec, CodecTraits.LEARNING_RATE_CORRECTION)


def _overridden(common, pattern, changes):
    unknown = sorted(set(changes) - set(asdict(common)))
    if unknown:
        raise InvalidArgument(
            f"overrides[{pattern!r}] has {unknown[0]!r}; it takes " + ", ".join(asdict(common))
        )
    try:
        return replace(common, **changes).checked()
    except InvalidArgument as error:
        raise InvalidArgument(f"overrides[{pattern!r}]: {error}") from None
