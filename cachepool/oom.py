"""Out of memory: the facts, the message, and the error over CuPy's classes."""

from __future__ import annotations

import functools
import importlib.util
from dataclasses import dataclass
from typing import Any

from cachepool.sizes import exact_size


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """The facts of a request that could not be served; every size in bytes.

    Attributes
    ----------
    asked : int
        The request.
    device : int
        Ordinal.
    allocated, reserved : int
        Handed out, and taken from the device, when it failed.
    limit : int
        Of reserved memory; 0 without one.
    largest_free_block : int
        The longest run of cached memory.
    device_free, device_total : int
        Of the whole device, all processes; -1 if the device did not say.
    """

    asked: int
    device: int
    allocated: int
    reserved: int
    limit: int
    largest_free_block: int
    device_free: int
    device_total: int

    def __str__(self) -> str:
        limit = f", limit set to: {self.limit:,} bytes" if self.limit else ""
        cached = self.reserved - self.allocated
        device = (
            "unknown"
            if self.device_total < 0
            else f"{exact_size(self.device_free)} of {exact_size(self.device_total)}"
        )
        return (
            f"Out of memory allocating {self.asked:,} bytes "
            f"(allocated so far: {self.allocated:,} bytes{limit}) on device {self.device}. "
            f"Reserved: {exact_size(self.reserved)}, of which unused, cached: "
            f"{exact_size(cached)}; largest free block: {exact_size(self.largest_free_block)}. "
            f"Device free: {device}."
        )


@functools.cache
def out_of_memory_class() -> Any:
    """Return the class ``OutOfMemoryError``.

    Where CuPy is installed, over its ``OutOfMemoryError`` (what its fallbacks catch) and
    ``CUDARuntimeError`` with status 2 (what its pools retry upon); else over MemoryError.
    """
    bases: tuple[type, ...] = (MemoryError,)
    if importlib.util.find_spec("cupy") is not None:
        import cupy

        # Not "from cupy.cuda.runtime import": that module would replace cupy.cuda.runtime.
        bases = (cupy.cuda.memory.OutOfMemoryError, cupy.cuda.runtime.CUDARuntimeError)

    def __init__(self: Any, report: MemoryReport) -> None:
        MemoryError.__init__(self, str(report))
        self.report = report
        self._size, self._total, self._limit = report.asked, report.allocated, report.limit

    return type(
        "OutOfMemoryError",
        bases,
        {
            "__doc__": "A request that no memory was found for; ``report`` holds the facts.",
            "__module__": "cachepool",
            "__init__": __init__,
            "__str__": MemoryError.__str__,
            "__reduce__": lambda self: (make_error, (self.report,)),
            "status": 2,
        },
    )


def make_error(report: MemoryReport) -> MemoryError:
    """Return the error for a report."""
    error: MemoryError = out_of_memory_class()(report)
    return error
