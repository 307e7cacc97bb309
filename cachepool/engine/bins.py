"""What both free indexes share: bins by size, and a bitmap of those that are not empty.

A bin holds sizes of one width: below 32 units one size each, above that 32 bins to a
power of two, so that bins are exact up to 64 units (32 KiB) and 3 % wide after that.  A
bit in ``words`` says that a bin is not empty, a bit in ``top`` that a word is not zero:
two counts of trailing zeros find the next bin that has a block.  How a bin keeps its
blocks is the subclass's affair (`small`: lists, `large`: trees).
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from cachepool import _cyshim as cython

from .blocks import Block
from .counters import Counters

if not cython.compiled:

    def ctz(x: int) -> int:
        """Count the trailing zeros of a number that is not zero."""
        return (x & -x).bit_length() - 1

    def bitlen(x: int) -> int:
        """Return the position of the highest bit, counted from 1."""
        return x.bit_length()


@cython.no_gc
@cython.cclass
class BinIndex:
    """Free blocks of one stream and one pool; ``heads`` holds each bin's first block.

    Says to ``counters`` when it cuts or joins blocks.
    """

    counters: Counters
    top: int
    words: list[int]
    heads: list[Block | None]
    n_free: int

    if not cython.compiled:
        __slots__ = ("counters", "heads", "n_free", "top", "words")

    def __init__(self, bins: int, counters: Counters) -> None:
        self.counters = counters
        self.top = 0
        self.words = [0] * 64
        self.heads = [None] * bins
        self.n_free = 0

    def take(self, n: int) -> Block | None:
        """Unlink a free block and cut it to n units; None if none is long enough."""
        b = self.bin_of(n)
        c = self.fit(b, n)
        if c is None:
            b = self.after(b)
            c = None if b < 0 else self.fit(b, n)
            if c is None:
                return None
        self.unlink(c)
        if c.n > n:
            self.push(c.split(n))
            self.counters.tiled(c.segment, 1)
        return c

    def give(self, c: Block) -> None:
        """Merge a block with its free neighbours and link the result."""
        q = c.next
        if q is not None and q.bin >= 0 and q.cache == c.cache:
            self.unlink(q)
            c.absorb(q)
            self.counters.tiled(c.segment, -1)
        p = c.prev
        if p is not None and p.bin >= 0 and p.cache == c.cache:
            self.unlink(p)
            p.absorb(c)
            self.counters.tiled(p.segment, -1)
            c = p
        self.push(c)

    def fit(self, b: int, n: int) -> Block | None:
        """Return the block of bin b to cut n units from, or None."""
        raise NotImplementedError

    def push(self, c: Block) -> None:
        """Link a block into its bin."""
        raise NotImplementedError

    def unlink(self, c: Block) -> None:
        """Take a block out of its bin."""
        raise NotImplementedError

    def bin_of(self, n: int) -> int:
        """Return the bin of a length in units."""
        if n < 32:
            return n
        s = bitlen(n) - 6
        return ((s + 1) << 5) | ((n >> s) ^ 32)

    def mark(self, b: int) -> None:
        """Say that bin b is not empty."""
        one = 1
        self.words[b >> 5] |= one << (b & 31)
        self.top |= one << (b >> 5)

    def clear(self, b: int) -> None:
        """Say that bin b, which was not empty, is."""
        one = 1
        self.words[b >> 5] ^= one << (b & 31)
        if self.words[b >> 5] == 0:
            self.top ^= one << (b >> 5)

    def after(self, b: int) -> int:
        """Return the lowest bin above b that is not empty, or -1."""
        b += 1
        i = b >> 5
        m = (self.words[i] >> (b & 31)) << (b & 31)
        if m == 0:
            f = (self.top >> (i + 1)) << (i + 1)
            if f == 0:
                return -1
            i = ctz(f)
            m = self.words[i]
        return (i << 5) | ctz(m)
