"""Byte ranges of whatever a kernel is said to read or write.

Known by their attributes, never by their class, so that CuPy need not be imported: arrays,
memory pointers, allocations, plain pairs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cachepool.devices.sim.arguments import is_integer

ByteRange = tuple[int, int]
"""Start and end of a range, in bytes; the end is the first byte after it."""

ALLOWED = (
    "a device array (.data.ptr, .nbytes), a memory pointer (.ptr, .mem), an allocation "
    "(.ptr, .size), a pair (ptr, nbytes), or an iterable of these"
)


def byte_ranges(touched: object, what: str) -> list[ByteRange]:
    """Return the ranges that an object, or each of an iterable of objects, occupies.

    Empty ranges are left out.  A strided view counts from its lowest to its highest byte:
    more than it touches, never less.
    """
    one = _range_of(touched, what)
    if one is not None:
        ranges = [one]
    else:
        ranges = [_element_range(element, what) for element in _elements(touched, what)]
    return [(start, end) for start, end in ranges if start < end]


def _elements(touched: object, what: str) -> Iterable[object]:
    if isinstance(touched, str | bytes) or not isinstance(touched, Iterable):
        raise TypeError(f"{what} must be {ALLOWED}; got {touched!r}")
    return touched


def _element_range(element: object, what: str) -> ByteRange:
    found = _range_of(element, what)
    if found is None:
        raise TypeError(f"each of {what} must be {ALLOWED}; got {element!r}")
    return found


def _range_of(touched: Any, what: str) -> ByteRange | None:
    """Return the range of one object, None if it is not of a known kind."""
    if isinstance(touched, tuple):
        return _pair_range(touched, what)
    pointer: Any = getattr(touched, "data", None)
    if hasattr(pointer, "ptr") and hasattr(touched, "nbytes"):
        return _array_range(touched, int(pointer.ptr))
    if not hasattr(touched, "ptr"):
        return None
    start = int(touched.ptr)
    if hasattr(touched, "mem"):
        return start, int(touched.mem.ptr) + int(touched.mem.size)
    if hasattr(touched, "size"):
        return start, start + int(touched.size)
    return None


def _pair_range(pair: tuple[Any, ...], what: str) -> ByteRange | None:
    if len(pair) != 2 or not (is_integer(pair[0]) and is_integer(pair[1])):
        return None
    start, nbytes = int(pair[0]), int(pair[1])
    if start < 0 or nbytes < 0:
        raise ValueError(f"(ptr, nbytes) in {what} must not be negative, got {pair!r}")
    return start, start + nbytes


def _array_range(array: Any, start: int) -> ByteRange:
    """Return the extent of an array; negative strides reach below its first element."""
    nbytes = int(array.nbytes)
    strides = getattr(array, "strides", None)
    if nbytes == 0 or not strides:
        return start, start + nbytes
    spans = [(n - 1) * stride for n, stride in zip(array.shape, strides, strict=True)]
    below = sum(span for span in spans if span < 0)
    above = sum(span for span in spans if span > 0)
    return start + below, start + above + int(array.itemsize)
