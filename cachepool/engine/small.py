"""Free index of the small pool: lists by size, plus short lists kept for exact re-use.

A released block is kept unmerged, last in first out, up to KEEP of a size, for a request
of exactly that size: the commonest pair of calls then touches one list.  Kept blocks are
in no bin; `flush` merges them all, and the heap calls it before asking the device.

Bins hold their blocks in no order (the newest first).  A request looks at SCAN blocks of
its own bin and then takes the first of the next one that is not empty: a good fit, within
a bin's width of the best one.  Textbook TLSF rounds a request up one bin instead and so
misses the very block it has just released.  All steps are O(1).
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from cachepool import _cyshim as cython

from .bins import BinIndex
from .blocks import Block
from .counters import Counters

if not cython.compiled:
    from .bins import ctz
    from .blocks import KEPT, LIVE

SIZES = 2049  # exact sizes kept: up to 1 MiB in units
SMALL_BINS = 320  # blocks of a slab: up to 2 MiB
KEEP = 16
SCAN = 4


@cython.final
@cython.no_gc
@cython.cclass
class SmallIndex(BinIndex):
    """Free blocks of one stream's slabs.

    ``kept`` has a list for each exact size, ``sizes`` a bit for each list that is not empty.
    """

    sizes: list[int]
    kept: list[Block | None]
    kept_of: list[int]
    n_kept: int

    if not cython.compiled:
        __slots__ = ("kept", "kept_of", "n_kept", "sizes")

    def __init__(self) -> None:
        BinIndex.__init__(self, SMALL_BINS)
        self.kept = [None] * SIZES
        if not cython.compiled:
            self.kept_of = [0] * SIZES
            self.sizes = [0] * 65
        self.n_kept = 0

    def get(self, n: int) -> Block | None:
        """Take a block of exactly n units: the newest kept one, else cut a good fit."""
        return self.take(n) if self.kept[n] is None else self.unkeep(n)

    def put(self, c: Block) -> None:
        """Keep a released block for exact re-use while there is room, else merge it."""
        n = c.n
        if self.kept_of[n] < KEEP:
            if self.kept_of[n] == 0:
                one = 1
                self.sizes[n >> 5] |= one << (n & 31)
            self.kept_of[n] += 1
            self.n_kept += 1
            c.right = self.kept[n]
            self.kept[n] = c
            c.bin = KEPT
        else:
            self.give(c)

    def unkeep(self, n: int) -> Block:
        """Take the newest block kept of n units; there is one."""
        c = self.kept[n]
        assert c is not None
        self.kept[n] = c.right
        c.right = None
        c.bin = LIVE
        self.n_kept -= 1
        self.kept_of[n] -= 1
        if self.kept_of[n] == 0:
            one = 1
            self.sizes[n >> 5] ^= one << (n & 31)
        return c

    def flush(self, counters: Counters) -> None:
        """Merge every block kept for exact re-use, smallest first."""
        for i in range(65):
            while self.sizes[i]:
                c = self.unkeep((i << 5) | ctz(self.sizes[i]))
                s = c.segment
                self.give(c)
                counters.settle(s)

    def fit(self, b: int, n: int) -> Block | None:
        """Return one of the first SCAN blocks of bin b that has n units, or None."""
        c = self.heads[b]
        k = 1
        while c is not None and c.n < n:
            c = c.right if k < SCAN else None
            k += 1
        return c

    def push(self, c: Block) -> None:
        """Link a block as the first of its bin."""
        b = self.bin_of(c.n)
        head = self.heads[b]
        c.bin = b
        c.left = None
        c.right = head
        if head is None:
            self.mark(b)
        else:
            head.left = c
        self.heads[b] = c
        self.n_free += 1

    def unlink(self, c: Block) -> None:
        """Take a block out of its bin."""
        p = c.left
        q = c.right
        if q is not None:
            q.left = p
        if p is not None:
            p.right = q
        else:
            self.heads[c.bin] = q
            if q is None:
                self.clear(c.bin)
        c.left = c.right = None
        c.bin = LIVE
        self.n_free -= 1
