"""Checks of arguments: what was given, what is allowed."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from numbers import Integral, Real


def is_integer(value: object) -> bool:
    """Return whether a value is an integer; a bool is not, nor an array with ``__index__``."""
    if type(value) is int:  # nearly always, and much faster
        return True
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_integer(value: object, what: str) -> int:
    """Return an int, or raise TypeError naming `what`."""
    if type(value) is int:
        return value
    if not is_integer(value):
        raise TypeError(f"{what} must be an int, got {value!r}")
    return operator.index(value)  # type: ignore[arg-type]


def check_at_least(value: object, least: int, what: str) -> int:
    """Return an int that is not below `least`."""
    number = check_integer(value, what)
    if number < least:
        raise ValueError(f"{what} must be at least {least}, got {number}")
    return number


def check_seconds(value: object, what: str, *, forever: bool) -> float:
    """Return seconds as a float, not negative; infinity only if `forever` allows it."""
    if type(value) is float and 0 <= value < math.inf:
        return value
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{what} must be seconds (float), got {value!r}")
    seconds = float(value)
    if not (0 <= seconds < math.inf or (forever and seconds == math.inf)):
        allowed = "[0, inf]" if forever else "[0, inf)"
        raise ValueError(f"{what} must be seconds in {allowed}, got {seconds}")
    return seconds


def check_name(value: object, allowed: Sequence[str], what: str) -> str:
    """Return `value` if it is one of the allowed names."""
    if not isinstance(value, str) or value not in allowed:
        names = ", ".join(repr(name) for name in allowed)
        raise ValueError(f"{what} must be one of {names}; got {value!r}")
    return value


def check_flag(value: object, what: str) -> bool:
    """Return a bool, or raise TypeError naming `what`."""
    if not isinstance(value, bool):
        raise TypeError(f"{what} must be True or False, got {value!r}")
    return value
