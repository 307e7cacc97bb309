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

    ``kept`` has a list for each exact size, whose first block's ``rank`` is its length;
    a list that is not empty has its bit in ``sizes``, an empty one may have it.
    """

    sizes: list[int]
    kept: list[Block | None]

    if not cython.compiled:
        __slots__ = ("kept", "sizes")

    def __init__(self, counters: Counters) -> None:
        BinIndex.__init__(self, SMALL_BINS, counters)
        self.kept = [None] * SIZES
        if not cython.compiled:
            self.sizes = [0] * 65

    def get(self, n: int) -> Block | None:
        """Take a block of exactly n units: the newest kept one, else cut a good fit."""
        c = self.kept[n]
        if c is None:
            return self.take(n)
        self.kept[n] = c.right
        c.right = None
        c.bin = LIVE
        return c

    def put(self, c: Block) -> None:
        """Keep a released block for exact re-use while there is room, else merge it."""
        n = c.n
        head = self.kept[n]
        if head is not None and head.rank >= KEEP:
            self.give(c)
        else:
            if head is None:
                one = 1
                self.sizes[n >> 5] |= one << (n & 31)
                c.rank = 1
            else:
                c.rank = head.rank + 1
            c.right = head
            self.kept[n] = c
            c.bin = KEPT

    def flush(self) -> bool:
        """Merge every block kept for exact re-use, smallest first; say if there was one."""
        found = False
        for i in range(65):
            m = self.sizes[i]
            self.sizes[i] = 0
            while m:
                n = (i << 5) | ctz(m)
                m &= m - 1
                c = self.kept[n]
                while c is not None:
                    self.kept[n] = c.right
                    c.right = None
                    self.give(c)
                    c = self.kept[n]
                    found = True
        return found

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
