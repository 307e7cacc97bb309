"""Counters with torch's meaning: each figure's current value, peak and ever-growing sum.

Kept for the small and the large pool, and the peak of their sum; what a reader can derive
(the sums, and what was freed = ever − current) is derived on reading.  A block that is
free in a segment with live ones cannot go back to the device: torch's *inactive split*.
A segment notes what it last counted for there, so that `settle` adds the difference.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from cachepool import _cyshim as cython

from .blocks import Block, Segment

if not cython.compiled:  # enums in the .pxd
    from .blocks import SMALL_UNITS, UNIT_BITS

    COUNT, ALLOCATED, REQUESTED, INACTIVE, INACTIVE_BYTES, SEGMENTS, RESERVED = range(7)
    LARGE = 7  # where the large pool's row of figures begins

FIGURES = (
    "allocation",
    "allocated_bytes",
    "requested_bytes",
    "inactive_split",
    "inactive_split_bytes",
    "segment",
    "reserved_bytes",
)
POOLS = ("small_pool", "large_pool", "all")


@cython.final
@cython.no_gc
@cython.cclass
class Counters:
    """Seven figures of the small pool (0-6) and of the large pool (7-13)."""

    cur: list[int]
    peak: list[int]
    ever: list[int]
    top: list[int]

    if not cython.compiled:
        __slots__ = ("cur", "ever", "peak", "top")

    def __init__(self) -> None:
        self.cur = [0] * 14
        self.peak = [0] * 14
        self.ever = [0] * 14
        self.top = [0] * 7

    def add(self, row: int, figure: int, v: int) -> None:
        """Change a figure of a pool; a rise also counts for its sum and its peaks."""
        i = row + figure
        c = self.cur[i] + v
        self.cur[i] = c
        if v > 0:
            self.ever[i] += v
            if c > self.peak[i]:
                self.peak[i] = c
            c += self.cur[LARGE - row + figure]
            if c > self.top[figure]:
                self.top[figure] = c

    def taken(self, b: Block) -> None:
        """Count a block that was handed out."""
        row = 0 if b.n <= SMALL_UNITS else LARGE
        self.add(row, COUNT, 1)
        self.add(row, ALLOCATED, b.n << UNIT_BITS)
        self.add(row, REQUESTED, b.requested)
        s = b.segment
        s.live += 1
        s.used += b.n
        self.settle(s)

    def given(self, b: Block) -> None:
        """Count a block that came back; `settle` its segment once it is merged."""
        row = 0 if b.n <= SMALL_UNITS else LARGE
        self.cur[row + COUNT] -= 1
        self.cur[row + ALLOCATED] -= b.n << UNIT_BITS
        self.cur[row + REQUESTED] -= b.requested
        s = b.segment
        s.live -= 1
        s.used -= b.n

    def settle(self, s: Segment) -> None:
        """Count a segment's free blocks as inactive if it has live ones."""
        if s.live:
            count = s.tiles - s.live
            units = s.n - s.used
        else:
            count = 0
            units = 0
        row = 0 if s.small else LARGE
        self.add(row, INACTIVE, count - s.split_count)
        self.add(row, INACTIVE_BYTES, (units - s.split_units) << UNIT_BITS)
        s.split_count = count
        s.split_units = units

    def grown(self, s: Segment, sign: int) -> None:
        """Count a segment taken from the device (sign 1) or given back (-1)."""
        row = 0 if s.small else LARGE
        self.add(row, SEGMENTS, sign)
        self.add(row, RESERVED, (s.n << UNIT_BITS) * sign)

    def total(self, figure: int) -> int:
        """Return the current value of a figure over both pools."""
        return self.cur[figure] + self.cur[LARGE + figure]

    def read(self, figure: int, pool: int) -> tuple[int, int, int]:
        """Return (current, peak, ever) of a figure; pool as in POOLS."""
        a = figure
        b = LARGE + figure
        if pool == 0:
            return (self.cur[a], self.peak[a], self.ever[a])
        if pool == 1:
            return (self.cur[b], self.peak[b], self.ever[b])
        return (self.cur[a] + self.cur[b], self.top[figure], self.ever[a] + self.ever[b])

    def reset_peaks(self) -> None:
        """Let every peak be the current value."""
        for i in range(14):
            self.peak[i] = self.cur[i]
        for i in range(7):
            self.top[i] = self.cur[i] + self.cur[LARGE + i]
