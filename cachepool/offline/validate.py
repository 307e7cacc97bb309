"""What makes a trace valid, checked on whole arrays: milliseconds for tens of thousands of events.

Each check names the first event that breaks its rule, and the value found there.  Later
checks rely on earlier ones, so the order in `check_events` matters.

1. operations are known, sizes and streams not negative, sizes add up within 2**62 bytes;
2. blocks are numbered 0, 1, 2, … in order of allocation;
3. a free follows the allocation of its block, once, and repeats its size and stream;
4. the first `n_init` events are allocations, one for each entry of ``init_block``;
5. the counts in the metadata are those of the arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALLOCATE = 0
FREE = 1

FORMAT = 1
"""The latest format version that can be read, and the one that is written."""

EVENT_TYPES: dict[str, np.dtype[Any]] = {
    "op": np.dtype(np.uint8),
    "id": np.dtype(np.int32),
    "size": np.dtype(np.int64),
    "stream": np.dtype(np.int16),
    "addr": np.dtype(np.int64),
}
SEGMENT_TYPES: dict[str, np.dtype[Any]] = {
    "seg_kind": np.dtype(np.uint8),
    "seg_pos": np.dtype(np.int32),
    "seg_addr": np.dtype(np.int64),
    "seg_size": np.dtype(np.int64),
    "seg_stream": np.dtype(np.int16),
}
INIT_TYPES: dict[str, np.dtype[Any]] = {"init_block": np.dtype(np.int64)}
SEGMENT_KINDS = 5
MAX_TOTAL = 2**62

Ints = NDArray[np.integer[Any]]


class TraceError(ValueError):
    """A trace that cannot be read, or that contradicts itself."""


def _first(broken: NDArray[np.bool_]) -> int | None:
    """Return the index of the first true entry, None if there is none."""
    index = int(broken.argmax()) if broken.size else 0
    return index if broken.size and broken[index] else None


def as_column(name: str, values: object, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return values as a read-only column of the type that the format asks for.

    Parameters
    ----------
    name : str
        Name of the array, for the error text.
    values : array_like of int
        One-dimensional.
    dtype : dtype
        Integer type; values that do not fit in it are refused, never wrapped.

    Returns
    -------
    ndarray of `dtype`, shape (len(values),)
        A copy that cannot be written to.

    Raises
    ------
    TraceError
        If the values are not integers, not one-dimensional or too large.
    """
    given = np.asarray(values)
    if given.ndim != 1:
        raise TraceError(f"array {name!r} must be one-dimensional, got shape {given.shape}")
    if given.size and given.dtype.kind not in "iu":
        raise TraceError(f"array {name!r} must hold integers ({dtype}), got {given.dtype}")
    limits = np.iinfo(dtype)
    index = _first((given < limits.min) | (given > limits.max))
    if index is not None:
        raise TraceError(f"{name}[{index}] is {given[index]}, which does not fit in {dtype}")
    column = given.astype(dtype)
    column.flags.writeable = False
    return column


def check_lengths(columns: Mapping[str, Ints]) -> None:
    """Raise `TraceError` unless all arrays have as many entries as the first."""
    first = next(iter(columns))
    expected = len(columns[first])
    for name, column in columns.items():
        if len(column) != expected:
            raise TraceError(
                f"array {name!r} has {len(column)} entries, but {first!r} has {expected}"
            )


def check_events(op: Ints, block: Ints, size: Ints, stream: Ints) -> None:
    """Raise `TraceError` for the first event that breaks a rule on events.

    Parameters
    ----------
    op, block, size, stream : ndarray of int, shape (n_events,)
        The columns ``op``, ``id``, ``size`` (bytes) and ``stream``.
    """
    index = _first(op > FREE)
    if index is not None:
        raise TraceError(
            f"event {index}: unknown op {op[index]}; "
            f"version {FORMAT} has {ALLOCATE} (allocate) and {FREE} (free)"
        )
    for name, column in (("size", size), ("stream", stream)):
        index = _first(column < 0)
        if index is not None:
            raise TraceError(f"event {index}: {name} must not be negative, got {column[index]}")
    allocations = np.flatnonzero(op == ALLOCATE)
    _check_total(size, allocations)
    _check_numbering(block, allocations)
    _check_frees(block, allocations, np.flatnonzero(op == FREE))
    _check_repeats(op, block, {"size": size, "stream": stream}, allocations)


def _check_total(size: Ints, allocations: NDArray[np.intp]) -> None:
    """Refuse totals that 64-bit sums and addresses could not hold; floats do not overflow."""
    total = np.cumsum(size[allocations], dtype=np.float64)
    place = _first(total > MAX_TOTAL)
    if place is not None:
        event = allocations[place]
        raise TraceError(
            f"event {event}: sizes add up to more than 2**62 bytes with the {size[event]} here"
        )


def _check_numbering(block: Ints, allocations: NDArray[np.intp]) -> None:
    expected = np.arange(len(allocations))
    found = block[allocations]
    place = _first(found != expected)
    if place is None:
        return
    event, number = allocations[place], int(found[place])
    if 0 <= number < place:
        raise TraceError(
            f"event {event}: block {number} is allocated twice, first at event "
            f"{allocations[number]}"
        )
    raise TraceError(
        f"event {event}: blocks are numbered in order of allocation; "
        f"expected block {place}, got {number}"
    )


def _check_frees(block: Ints, allocations: NDArray[np.intp], frees: NDArray[np.intp]) -> None:
    freed = block[frees]
    known = (freed >= 0) & (freed < len(allocations))
    # Blocks out of range are looked up as the first one; `known` masks the answer.
    known &= _allocated_at(allocations, np.where(known, freed, 0)) < frees
    place = _first(~known)
    if place is not None:
        raise TraceError(
            f"event {frees[place]}: free of block {freed[place]}, which is not allocated yet"
        )
    first = np.full(len(allocations), -1)
    # Assigned from the last to the first, so that the earliest free of a block stays.
    first[freed[::-1]] = frees[::-1]
    place = _first(first[freed] != frees)
    if place is not None:
        raise TraceError(
            f"event {frees[place]}: block {freed[place]} is freed twice, "
            f"first at event {first[freed[place]]}"
        )


def _allocated_at(allocations: NDArray[np.intp], block: Ints) -> NDArray[np.intp]:
    """Return the event that allocated each block, beyond all events if there is none."""
    if not len(allocations):
        return np.full(len(block), np.iinfo(np.intp).max)
    return allocations[block]


def _check_repeats(
    op: Ints, block: Ints, columns: Mapping[str, Ints], allocations: NDArray[np.intp]
) -> None:
    """Check that each free carries the size and the stream of its block."""
    for name, column in columns.items():
        expected = column[allocations][block]
        event = _first((op == FREE) & (column != expected))
        if event is not None:
            raise TraceError(
                f"event {event}: free of block {block[event]} with {name} {column[event]}, "
                f"but it was allocated with {name} {expected[event]}"
            )


def check_initial(op: Ints, init_block: Ints, n_init: int) -> None:
    """Raise `TraceError` unless the first `n_init` events are the initial allocations."""
    if not 0 <= n_init <= len(op):
        raise TraceError(f"n_init must be in [0, {len(op)}] (the events), got {n_init}")
    if len(init_block) != n_init:
        raise TraceError(f"n_init is {n_init}, but 'init_block' has {len(init_block)} entries")
    event = _first(op[:n_init] != ALLOCATE)
    if event is not None:
        raise TraceError(
            f"event {event}: n_init is {n_init}, so this must be an allocation, got op {op[event]}"
        )


def check_segments(segments: Mapping[str, Ints], n_events: int) -> None:
    """Raise `TraceError` for the first segment event that breaks a rule."""
    check_lengths(segments)
    limits = {"seg_kind": SEGMENT_KINDS - 1, "seg_pos": n_events}
    for name, column in segments.items():
        index = _first((column < 0) | (column > limits.get(name, MAX_TOTAL)))
        if index is not None:
            allowed = f"in [0, {limits[name]}]" if name in limits else "not negative"
            raise TraceError(f"{name}[{index}] must be {allowed}, got {column[index]}")


def check_format(meta: Mapping[str, Any]) -> None:
    """Raise `TraceError` for a format version that is not known."""
    version = meta.get("format", FORMAT)
    if not _is_count(version) or not 1 <= version <= FORMAT:
        raise TraceError(f"format version {version!r}; this cachepool reads version {FORMAT}")


def check_counts(meta: Mapping[str, Any], counts: Mapping[str, int]) -> None:
    """Raise `TraceError` where a count in the metadata is not that of the arrays."""
    for name, found in counts.items():
        if name in meta and (not _is_count(meta[name]) or meta[name] != found):
            raise TraceError(f"metadata say {name} is {meta[name]!r}, the arrays have {found}")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
