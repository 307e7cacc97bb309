"""The options of a pool: one frozen record, from arguments and CACHEPOOL_CONF."""

from __future__ import annotations

import difflib
import operator
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from cachepool.errors import OptionError
from cachepool.sizes import parse_size

CONF = "CACHEPOOL_CONF"
CUPY_LIMIT = "CUPY_GPU_MEMORY_LIMIT"


@dataclass(frozen=True, slots=True)
class Options:
    """What a pool was asked to do.

    Attributes
    ----------
    backing : "malloc" or callable
        Where segments come from: the device's plain allocation, or
        ``f(nbytes) -> cupy.cuda.MemoryPointer`` (managed memory, another pool, …), which is
        asked for exactly the request rounded up to 512 bytes.
    limit : int or float
        Of reserved memory, per device: bytes, or a fraction of the device's memory (float,
        0 to 1).  0 is none, the default unless CUPY_GPU_MEMORY_LIMIT is set.
    origins : dict
        Where each value came from: ``"default"``, ``"argument"``, or the name of the
        environment variable.
    """

    backing: str | Callable[[int], Any] = "malloc"
    limit: int | float = 0
    origins: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def collect(cls, explicit: Mapping[str, object]) -> Options:
        """Return the options in force: arguments, then CACHEPOOL_CONF, then defaults.

        Raises
        ------
        OptionError
            For an unknown name (with the nearest known one) or a value that is not allowed.
        """
        given: dict[str, tuple[object, str]] = {}
        if CUPY_LIMIT in os.environ:
            given["limit"] = (os.environ[CUPY_LIMIT], CUPY_LIMIT)
        given |= {name: (value, CONF) for name, value in _from_conf(os.environ.get(CONF, ""))}
        given |= {name: (value, "argument") for name, value in explicit.items()}
        origins = dict.fromkeys(option_names(), "default")
        values: dict[str, Any] = {}
        for name, (value, origin) in given.items():
            if name not in origins:
                raise OptionError(f"unknown option {name!r}{nearest(name, origins)}")
            values[name] = _VALID[name](value, origin)
            origins[name] = origin
        return cls(**values, origins=origins)


def option_names() -> list[str]:
    """Return the names that may be given."""
    return [f.name for f in fields(Options) if f.name != "origins"]


def nearest(name: str, known: Iterable[str]) -> str:
    """Return advice for a name that is not known, to put at the end of a message."""
    known = list(known)
    close = difflib.get_close_matches(name, known, 1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"{hint} (known: {', '.join(known)})"


def _from_conf(text: str) -> Iterable[tuple[str, str]]:
    for item in text.split(","):
        if item.strip():
            name, colon, value = item.partition(":")
            if not colon:
                raise OptionError(f"{CONF} must be name:value,name:value, got {text!r}")
            yield name.strip(), value.strip()


def _backing(value: object, origin: str) -> object:
    if value == "malloc" or (callable(value) and origin == "argument"):
        return value
    raise OptionError(
        f'backing must be "malloc" or a callable f(nbytes) -> MemoryPointer, got {value!r}'
    )


def _limit(value: object, origin: str) -> int | float:
    allowed = f'limit ({origin}) must be bytes, text such as "8GiB", a float from 0 to 1 or "50%"'
    try:
        if value is None:
            return 0
        if isinstance(value, str) and value.strip().endswith("%"):
            return _fraction(float(value.strip()[:-1]) / 100)
        if isinstance(value, str) and re.fullmatch(r"\s*\d*\.\d*\s*", value):
            return _fraction(float(value))
        if isinstance(value, float):
            return _fraction(value)
        return parse_size(value, "limit")
    except (TypeError, ValueError) as error:
        raise OptionError(f"{allowed}, got {value!r}") from error


def _fraction(value: float) -> float:
    if not 0 <= value <= 1:
        raise ValueError(f"a fraction must be from 0 to 1, got {value}")
    return value


_VALID: dict[str, Callable[[object, str], Any]] = {"backing": _backing, "limit": _limit}


def check_size(size: object) -> int:
    """Return a request as a number of bytes, 0 or more.

    Raises
    ------
    TypeError
        If `size` is not an integer; numpy's integers are, a bool is not.
    ValueError
        If it is negative.
    """
    if isinstance(size, bool):
        raise TypeError(f"a size must be a whole number of bytes, got {size!r}")
    try:
        nbytes = operator.index(size)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"a size must be a whole number of bytes, got {size!r}") from None
    if nbytes < 0:
        raise ValueError(f"a size must not be negative, got {nbytes}")
    return nbytes
