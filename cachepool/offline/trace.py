"""A trace: what a program asked of its allocator, in order, without an allocator."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cachepool.offline.files import REQUIRED, Arrays, read_arrays, write_arrays
from cachepool.offline.validate import (
    ALLOCATE,
    EVENT_TYPES,
    INIT_TYPES,
    SEGMENT_TYPES,
    TraceError,
    as_column,
    check_counts,
    check_events,
    check_format,
    check_initial,
    check_lengths,
    check_segments,
)
from cachepool.sizes import format_size

ALIGNMENT = 512
"""Bytes: what sizes are rounded up to by `Trace.peak_allocated` and the policies."""

EVENT = np.dtype(list(EVENT_TYPES.items()))
SEGMENT = np.dtype([(name.removeprefix("seg_"), kind) for name, kind in SEGMENT_TYPES.items()])

Events = NDArray[np.void]


class Trace:
    """Requests and releases of one program, valid by construction and never changed.

    Parameters
    ----------
    op : array_like of int, shape (n_events,)
        0 allocate, 1 free.
    id : array_like of int, shape (n_events,)
        Block; 0, 1, 2, … in order of allocation, never used again.
    size : array_like of int, shape (n_events,)
        Bytes asked for; on a free, those of its block.
    stream : array_like of int, shape (n_events,)
        Stream that the block belongs to, 0 is the default stream.
    addr : array_like of int, shape (n_events,), optional
        Recorded address of the block; 0 where not recorded, as if left out.
    n_init : int, optional
        How many blocks were alive before the recording began; the first events allocate
        them.  As in `meta` if None, else 0.
    init_block : array_like of int, shape (n_init,), optional
        Bytes that each of them occupied; the sizes rounded up to 512 if None.
    segments : ndarray with fields kind, pos, addr, size, stream, optional
        Memory taken from and handed back to the driver; none if None.
    meta : mapping, optional
        JSON values; ``name`` and what is known of the origin.

    Raises
    ------
    TraceError
        If the events contradict themselves; the text names the event and the value.

    Notes
    -----
    Cost: a few passes of numpy over the arrays, milliseconds for tens of thousands of events.

    Examples
    --------
    >>> trace = Trace(op=[0, 0, 1], id=[0, 1, 0], size=[1000, 24, 1000], stream=[0, 0, 0])
    >>> trace.peak_live, trace.peak_allocated
    (1024, 1536)
    """

    #: Read-only structured array with fields op, id, size (bytes), stream and addr.
    events: Events
    #: Read-only structured array with fields kind, pos, addr, size (bytes) and stream.
    segments: Events
    #: Bytes occupied by each block alive at the start: int64, shape (n_init,), read-only.
    init_block: NDArray[np.int64]
    #: Blocks alive before the recording began; the first events allocate them.
    n_init: int
    #: Number of streams.
    streams: int
    #: What the file says of itself.
    meta: dict[str, Any]

    def __init__(
        self,
        op: ArrayLike,
        id: ArrayLike,
        size: ArrayLike,
        stream: ArrayLike,
        *,
        addr: ArrayLike | None = None,
        n_init: int | None = None,
        init_block: ArrayLike | None = None,
        segments: Events | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        self.meta = dict(meta or {})
        check_format(self.meta)
        given = {"op": op, "id": id, "size": size, "stream": stream, "addr": addr}
        self.events = _event_table(given)
        self.n_init = self.meta.get("n_init", 0) if n_init is None else n_init
        self._set_initial(init_block)
        self.segments = _segment_table(segments, len(self.events))
        used = int(self.events["stream"].max(initial=-1)) + 1
        self.streams = max(used, self._meta_streams(used))
        check_counts(self.meta, self._counts())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Trace:
        """Read a trace file of format version 1.

        Parameters
        ----------
        path : path-like
            ``NAME.npz``.

        Returns
        -------
        Trace
            Checked in full.

        Raises
        ------
        TraceError
            If the file cannot be read or contradicts itself; the text begins with the path.
        """
        try:
            return cls._from_file(*read_arrays(path), name=Path(path).stem)
        except TraceError as error:
            raise TraceError(f"{os.fspath(path)}: {error}") from error

    @classmethod
    def _from_file(cls, arrays: Arrays, meta: dict[str, Any], name: str) -> Trace:
        segments = None
        if "seg_kind" in arrays:
            columns = {column: arrays[column] for column in SEGMENT_TYPES}
            check_lengths(columns)
            segments = _table(columns, SEGMENT)
        return cls(
            *(arrays[column] for column in REQUIRED),
            addr=arrays.get("addr"),
            # A file with blocks alive at the start must say what they occupied.
            init_block=arrays.get("init_block", np.empty(0, np.int64)),
            segments=segments,
            meta={"name": name, **meta},
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trace in format version 1.

        Parameters
        ----------
        path : path-like
            ``NAME.npz``, used as given; an existing file is replaced as a whole.

        Raises
        ------
        OSError
            If the file cannot be written.
        """
        arrays = {name: self.events[name] for name in EVENT_TYPES}
        arrays["init_block"] = self.init_block
        arrays |= {name: self.segments[name.removeprefix("seg_")] for name in SEGMENT_TYPES}
        facts = {"name": self.name, "peak_live": self.peak_live}
        write_arrays(path, arrays, self.meta | self._counts() | facts)

    @property
    def name(self) -> str:
        """What the metadata call the trace; ``"unnamed"`` without a name."""
        return str(self.meta.get("name", "unnamed"))

    @cached_property
    def peak_live(self) -> int:
        """Peak of the sum of requested bytes of live blocks."""
        return int(self.live_bytes().max(initial=0))

    @cached_property
    def peak_allocated(self) -> int:
        """Peak of the same sum in bytes, with each size rounded up to 512."""
        return int(self.live_bytes(ALIGNMENT).max(initial=0))

    def live_bytes(self, alignment: int = 1) -> NDArray[np.int64]:
        """Return the bytes of live blocks after each event.

        Parameters
        ----------
        alignment : int
            Each size is rounded up to a multiple of this many bytes.

        Returns
        -------
        ndarray of int64, shape (n_events,)
            Bytes.
        """
        rounded = -(-self.events["size"] // alignment) * alignment
        change = np.where(self.events["op"] == ALLOCATE, rounded, -rounded)
        return cast("NDArray[np.int64]", np.cumsum(change, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.events)

    def __repr__(self) -> str:
        return (
            f"<Trace {self.name}: {len(self):,} events on {self.streams} stream(s), "
            f"peak live {format_size(self.peak_live)}>"
        )

    def _set_initial(self, init_block: ArrayLike | None) -> None:
        if isinstance(self.n_init, bool) or not isinstance(self.n_init, int):
            raise TraceError(f"n_init must be a count of events, got {self.n_init!r}")
        if init_block is None:
            sizes = self.events["size"][: max(self.n_init, 0)]
            init_block = -(-sizes // ALIGNMENT) * ALIGNMENT
        self.init_block = as_column("init_block", init_block, INIT_TYPES["init_block"])
        check_initial(self.events["op"], self.init_block, self.n_init)

    def _meta_streams(self, used: int) -> int:
        """Return the number of streams that the metadata claim, which may be more than used."""
        claimed = self.meta.get("n_streams", used)
        if isinstance(claimed, bool) or not isinstance(claimed, int) or claimed < used:
            raise TraceError(f"metadata say n_streams is {claimed!r}, the events use {used}")
        return claimed

    def _counts(self) -> dict[str, int]:
        return {
            "n_events": len(self.events),
            "n_init": self.n_init,
            "n_segment_events": len(self.segments),
            "n_streams": self.streams,
        }


def _table(columns: Mapping[str, NDArray[Any]], dtype: np.dtype[Any]) -> Events:
    """Return columns of one length as one read-only structured array."""
    table = np.empty(len(next(iter(columns.values()))), dtype)
    for field, column in zip(dtype.names or (), columns.values(), strict=True):
        table[field] = column
    table.flags.writeable = False
    return table


def _event_table(given: dict[str, ArrayLike | None]) -> Events:
    """Return checked columns as one array; addresses not given are 0."""
    if given["addr"] is None:
        given["addr"] = np.zeros(np.shape(cast("ArrayLike", given["op"])), np.int64)
    columns = {name: as_column(name, given[name], kind) for name, kind in EVENT_TYPES.items()}
    check_lengths(columns)
    check_events(columns["op"], columns["id"], columns["size"], columns["stream"])
    return _table(columns, EVENT)


def _segment_table(segments: Events | None, n_events: int) -> Events:
    if segments is None:
        segments = np.empty(0, SEGMENT)
    columns = {
        name: as_column(name, segments[name.removeprefix("seg_")], kind)
        for name, kind in SEGMENT_TYPES.items()
    }
    check_segments(columns, n_events)
    return _table(columns, SEGMENT)
