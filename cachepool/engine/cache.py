"""One stream's cache: its two free indexes and its own figures."""

from __future__ import annotations

try:
    import cython
except ImportError:
    from cachepool import _cyshim as cython

from .blocks import Block
from .counters import Counters
from .large import LargeIndex
from .small import SmallIndex


@cython.final
@cython.no_gc
@cython.cclass
class Cache:
    """Free blocks of one stream, by pool; ``number`` is its place in the heap's list.

    ``key`` names the stream and ``owner`` keeps it alive: a driver gives the handle of a
    dead stream to the next one.  ``count`` and ``nbytes`` are of live blocks.
    """

    key: int
    number: int
    owner: object
    small: SmallIndex
    large: LargeIndex
    count: int
    peak_count: int
    ever_count: int
    nbytes: int
    peak_bytes: int
    ever_bytes: int
    reserved: int
    peak_reserved: int
    ever_reserved: int

    if not cython.compiled:
        __slots__ = (
            "count",
            "ever_bytes",
            "ever_count",
            "ever_reserved",
            "key",
            "large",
            "nbytes",
            "number",
            "owner",
            "peak_bytes",
            "peak_count",
            "peak_reserved",
            "reserved",
            "small",
        )

    def __init__(self, key: int, owner: object, counters: Counters) -> None:
        self.key = key
        self.owner = owner
        self.number = -1
        self.small = SmallIndex(counters)
        self.large = LargeIndex(counters)
        self.count = self.peak_count = self.ever_count = 0
        self.nbytes = self.peak_bytes = self.ever_bytes = 0
        self.reserved = self.peak_reserved = self.ever_reserved = 0

    def link(self, b: Block) -> None:
        """Put a free block into its index."""
        if b.segment.small:
            self.small.push(b)
        else:
            self.large.push(b)

    def unlink(self, b: Block) -> None:
        """Take a block out of its index."""
        if b.segment.small:
            self.small.unlink(b)
        else:
            self.large.unlink(b)

    def taken(self, nbytes: int) -> None:
        """Count a block of that many bytes that was handed out."""
        self.ever_count += 1
        self.ever_bytes += nbytes
        c = self.count + 1
        self.count = c
        if c > self.peak_count:
            self.peak_count = c
        c = self.nbytes + nbytes
        self.nbytes = c
        if c > self.peak_bytes:
            self.peak_bytes = c

    def grown(self, nbytes: int) -> None:
        """Count memory taken from the device, or given back (negative)."""
        self.reserved += nbytes
        if nbytes > 0:
            self.ever_reserved += nbytes
            if self.reserved > self.peak_reserved:
                self.peak_reserved = self.reserved

    def read(self) -> tuple[tuple[int, int, int], ...]:
        """Return (current, peak, ever) of allocation, allocated_bytes and reserved_bytes."""
        return (
            (self.count, self.peak_count, self.ever_count),
            (self.nbytes, self.peak_bytes, self.ever_bytes),
            (self.reserved, self.peak_reserved, self.ever_reserved),
        )

    def reset_peaks(self) -> None:
        """Let every peak be the current value."""
        self.peak_count = self.count
        self.peak_bytes = self.nbytes
        self.peak_reserved = self.reserved
