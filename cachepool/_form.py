"""Picks the form of the engine: the compiled twin where it is built, else the sources.

Everything outside the twinned modules takes their classes from here.  The environment
variable CACHEPOOL_FORM says ``auto`` (default), ``pure`` or ``compiled``.  A wish that cannot
be granted is a `FAULT` that every pool raises: importing goes on, so that `doctor` can say so.
"""

from __future__ import annotations

import functools
import importlib
import os
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

WISH = os.environ.get("CACHEPOOL_FORM", "auto")
FAULT: str | None = None
if WISH not in ("auto", "pure", "compiled"):
    FAULT = f"CACHEPOOL_FORM must be auto, pure or compiled, got {WISH!r}"


def load(form: str, module: str) -> ModuleType:
    """Return a twinned module in its "pure" or its "compiled" form."""
    prefix = "cachepool." if form == "pure" else "cachepool._compiled."
    return importlib.import_module(prefix + module)


def choose(module: str, wish: str) -> ModuleType:
    """Return a twinned module as wished; the source, with a warning, if the twin refuses."""
    if wish == "pure":
        return load("pure", module)
    try:
        return load("compiled", module)
    except Exception as error:  # ValueError: another struct size; AttributeError: no field
        if wish == "compiled":
            raise
        if getattr(error, "name", None) != f"cachepool._compiled.{module}":  # there, but refused
            warnings.warn(
                f"cachepool: compiled {module} refused, uncompiled one used: {error}",
                RuntimeWarning,
                stacklevel=3,
            )
    return load("pure", module)


try:
    _heap = choose("engine.heap", WISH)
except Exception as error:
    FAULT = f"CACHEPOOL_FORM=compiled, but the compiled engine cannot be loaded: {error}"
    _heap = load("pure", "engine.heap")
COMPILED = _heap.__name__.startswith("cachepool._compiled.")


@functools.cache
def handle() -> ModuleType:
    """Return the module of CuPy's handles, in the engine's form if CuPy's structs permit.

    A handle of the uncompiled form works over a compiled heap as well.
    """
    return choose("handle", WISH if COMPILED else "pure")


if TYPE_CHECKING:
    from cachepool.engine.allocation import Allocation as Allocation
    from cachepool.engine.allocation import lease as lease
    from cachepool.engine.heap import Heap as Heap
else:
    Heap = _heap.Heap
    _allocation = load("compiled" if COMPILED else "pure", "engine.allocation")
    Allocation = _allocation.Allocation
    lease = _allocation.lease
