"""What an optimizer is constructed with: checks, and how the servers are told."""

import math

from ..errors import InvalidArgument


def rule_text(name, **options):
    """An update rule of the servers, as it is declared: "sgd(momentum=0.9,nesterov=true)"."""
    given = (f"{option}={_value_text(value)}" for option, value in options.items())
    return f"{name}({','.join(given)})"


def _value_text(value):
    if isinstance(value, str):
        return value
    return str(value).lower() if isinstance(value, bool) else repr(float(value))


def check_not_negative(**values):
    for name, value in values.items():
        if not value >= 0:
            raise InvalidArgument(f"{name}={value} is negative")


def check_positive(**values):
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise InvalidArgument(f"{name}={value} is not a finite number above 0")


def check_decays(**values):
    """Of running means: how much of the old stays."""
    for name, value in values.items():
        if not 0 <= value < 1:
            raise InvalidArgument(f"{name}={value} is not in [0, 1)")


def check_steps(**values):
    for name, value in values.items():
        if value != int(value) or value < 1:
            raise InvalidArgument(f"{name}={value} is not a number of steps, which is 1 or more")
