"""No-op stand-in for ``import cython`` where Cython is not installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

compiled = False
T = TypeVar("T")


def _same(x: T) -> T:
    return x


final = cclass = no_gc = _same


def freelist(n: int) -> Callable[[T], T]:
    """Return a decorator that leaves its class as it is."""
    return _same
