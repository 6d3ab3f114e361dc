"""Checks of what an optimizer is constructed with."""

from ..errors import InvalidArgument


def check_not_negative(**values):
    for name, value in values.items():
        if not value >= 0:
            raise InvalidArgument(f"{name}={value} is negative")


def check_decays(**values):
    """Of running means: how much of the old stays."""
    for name, value in values.items():
        if not 0 <= value < 1:
            raise InvalidArgument(f"{name}={value} is not in [0, 1)")


def check_steps(**values):
    for name, value in values.items():
        if value != int(value) or value < 1:
            raise InvalidArgument(f"{name}={value} is not a number of steps, which is 1 or more")
