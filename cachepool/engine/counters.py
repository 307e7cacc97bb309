"""Counters with torch's meaning: each figure's current value, peak and ever-growing sum.

Kept for the small and the large pool, and the peak of their sum; what a reader can derive
(the sums, and what was freed = ever − current) is derived on reading.

A free block beside live ones in a segment cannot go back to the device: torch's *inactive
split*.  A segment with live blocks is *pinned*; so what is inactive is the blocks and bytes
of the pinned segments less those of the live blocks, and its sum grows by every release
but for the corrections that `pin` and `given` make.  An exact re-use changes none of them.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from cachepool import _cyshim as cython

from .blocks import Block, Segment

if not cython.compiled:  # enums in the .pxd
    from .blocks import UNIT_BITS

    COUNT, ALLOCATED, REQUESTED, INACTIVE, INACTIVE_BYTES, SEGMENTS, RESERVED = range(7)
    LARGE = 8  # where the large pool's row of figures begins: i ^ LARGE is the other pool's

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
    """Seven figures of the small pool (0-6) and of the large pool (8-14).

    ``cur[INACTIVE]`` and ``cur[INACTIVE_BYTES]`` are of the pinned segments, live blocks
    included; ``ever`` of the two is the correction to what was released.
    """

    cur: list[int]
    peak: list[int]
    ever: list[int]
    top: list[int]

    if not cython.compiled:
        __slots__ = ("cur", "ever", "peak", "top")

    def __init__(self) -> None:
        self.cur = [0] * 16
        self.peak = [0] * 16
        self.ever = [0] * 16
        self.top = [0] * 8

    def taken(self, b: Block) -> None:
        """Count a block that was handed out.

        Three times `rise`, written out: uncompiled, a call costs as much as all it does.
        """
        s = b.segment
        cur = self.cur
        ever = self.ever
        peak = self.peak
        top = self.top
        i = 0 if s.small else LARGE
        c = cur[i] + 1
        cur[i] = c
        ever[i] += 1
        if c > peak[i]:
            peak[i] = c
        c += cur[i ^ LARGE]
        if c > top[COUNT]:
            top[COUNT] = c
        i += ALLOCATED
        v = b.n << UNIT_BITS
        c = cur[i] + v
        cur[i] = c
        ever[i] += v
        if c > peak[i]:
            peak[i] = c
        c += cur[i ^ LARGE]
        if c > top[ALLOCATED]:
            top[ALLOCATED] = c
        i += REQUESTED - ALLOCATED
        v = b.requested
        c = cur[i] + v
        cur[i] = c
        ever[i] += v
        if c > peak[i]:
            peak[i] = c
        c += cur[i ^ LARGE]
        if c > top[REQUESTED]:
            top[REQUESTED] = c
        s.live += 1
        if s.live == 1:
            self.pin(s, b.n)

    def given(self, s: Segment, n: int, requested: int, merged: bool) -> None:
        """Count n units of a segment that came back, once they are merged if they can be."""
        cur = self.cur
        i = 0 if s.small else LARGE
        cur[i] -= 1
        cur[i + ALLOCATED] -= n << UNIT_BITS
        cur[i + REQUESTED] -= requested
        s.live -= 1
        if s.live == 0:
            self.unpin(s, n)
        else:
            if merged:
                self.ever[i + INACTIVE] -= 1
            self.crest(i)

    def pin(self, s: Segment, n: int) -> None:
        """Count a segment whose first live block, of n units, was handed out."""
        i = 0 if s.small else LARGE
        self.cur[i + INACTIVE] += s.tiles
        self.cur[i + INACTIVE_BYTES] += s.n << UNIT_BITS
        self.ever[i + INACTIVE] += s.tiles - 1
        self.ever[i + INACTIVE_BYTES] += (s.n - n) << UNIT_BITS
        self.crest(i)

    def unpin(self, s: Segment, n: int) -> None:
        """Count a segment whose last live block, of n units, came back."""
        i = 0 if s.small else LARGE
        self.cur[i + INACTIVE] -= s.tiles
        self.cur[i + INACTIVE_BYTES] -= s.n << UNIT_BITS
        self.ever[i + INACTIVE] -= 1
        self.ever[i + INACTIVE_BYTES] -= n << UNIT_BITS

    def tiled(self, s: Segment, v: int) -> None:
        """Count a block more (v = 1) or less (-1) in a segment."""
        s.tiles += v
        if s.live:
            self.cur[INACTIVE if s.small else LARGE + INACTIVE] += v

    def crest(self, i: int) -> None:
        """Note the peaks of what is inactive, after a rise in the pool whose row begins at i."""
        cur = self.cur
        j = i ^ LARGE
        c = cur[i + INACTIVE] - cur[i]
        if c > self.peak[i + INACTIVE]:
            self.peak[i + INACTIVE] = c
        c += cur[j + INACTIVE] - cur[j]
        if c > self.top[INACTIVE]:
            self.top[INACTIVE] = c
        c = cur[i + INACTIVE_BYTES] - cur[i + ALLOCATED]
        if c > self.peak[i + INACTIVE_BYTES]:
            self.peak[i + INACTIVE_BYTES] = c
        c += cur[j + INACTIVE_BYTES] - cur[j + ALLOCATED]
        if c > self.top[INACTIVE_BYTES]:
            self.top[INACTIVE_BYTES] = c

    def rise(self, i: int, v: int) -> None:
        """Raise figure i (LARGE and up: of the large pool), its sum and its peaks."""
        cur = self.cur
        c = cur[i] + v
        cur[i] = c
        self.ever[i] += v
        if c > self.peak[i]:
            self.peak[i] = c
        c += cur[i ^ LARGE]
        i &= LARGE - 1
        if c > self.top[i]:
            self.top[i] = c

    def grown(self, s: Segment, sign: int) -> None:
        """Count a segment taken from the device (sign 1) or given back (-1)."""
        i = SEGMENTS if s.small else LARGE + SEGMENTS
        if sign > 0:
            self.rise(i, 1)
            self.rise(i + 1, s.n << UNIT_BITS)
        else:
            self.cur[i] -= 1
            self.cur[i + 1] -= s.n << UNIT_BITS

    def current(self, i: int) -> int:
        """Return the value of figure i (LARGE and up: of the large pool)."""
        c = self.cur[i]
        figure = i & (LARGE - 1)
        if figure == INACTIVE:
            c -= self.cur[i - INACTIVE]
        elif figure == INACTIVE_BYTES:
            c -= self.cur[i - INACTIVE_BYTES + ALLOCATED]
        return c

    def in_all(self, i: int) -> int:
        """Return the sum of all rises of figure i."""
        c = self.ever[i]
        figure = i & (LARGE - 1)
        if figure == INACTIVE:
            c += self.ever[i - INACTIVE] - self.cur[i - INACTIVE]
        elif figure == INACTIVE_BYTES:
            i -= INACTIVE_BYTES - ALLOCATED
            c += self.ever[i] - self.cur[i]
        return c

    def total(self, figure: int) -> int:
        """Return the current value of a figure over both pools."""
        return self.current(figure) + self.current(LARGE + figure)

    def read(self, figure: int, pool: int) -> tuple[int, int, int]:
        """Return (current, peak, ever) of a figure; pool as in POOLS."""
        a = figure
        b = LARGE + figure
        if pool == 0:
            return (self.current(a), self.peak[a], self.in_all(a))
        if pool == 1:
            return (self.current(b), self.peak[b], self.in_all(b))
        return (self.total(figure), self.top[figure], self.in_all(a) + self.in_all(b))

    def reset_peaks(self) -> None:
        """Let every peak be the current value."""
        for i in range(LARGE):
            self.peak[i] = self.current(i)
            self.peak[LARGE + i] = self.current(LARGE + i)
            self.top[i] = self.total(i)
