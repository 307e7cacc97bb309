r"""Free index of the large pool: strict best fit, smallest first, then lowest address.

Above 1 MiB a bin's width (3 %) is too much to give away, and a bin may hold thousands of
blocks, so each bin is a search tree by (size, address):

            rank 9, (5, 0x…40)            a treap: ordered by key from left to right,
           /                \             by rank from the top down, rank being a hash
    rank 7, (4, 0x…00)   rank 3, (5, 0x…c0)     of the address

The ranks make it as deep as a random tree, about 1.4 log2 of the bin's blocks, whatever
the order of calls, and the same in every run.  Parent links (``over``) make unlinking
O(1).  Sorted lists were refused (linear in a bin), and one tree over all sizes (deeper).
Blocks merge at once; none is kept for exact re-use.
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
    from .blocks import LIVE

LARGE_BINS = 1120  # up to 2**47 bytes
WORD = 0xFFFFFFFFFFFFFFFF
MIX_A = 0xFF51AFD7ED558CCD
MIX_B = 0xC4CEB9FE1A85EC53


@cython.final
@cython.no_gc
@cython.cclass
class LargeIndex(BinIndex):
    """Free blocks of one stream's large segments; ``heads`` holds each bin's root."""

    if not cython.compiled:
        __slots__ = ()

    def __init__(self, counters: Counters) -> None:
        BinIndex.__init__(self, LARGE_BINS, counters)

    def fit(self, b: int, n: int) -> Block | None:
        """Return the first block of bin b, in order, of n units or more."""
        t = self.heads[b]
        best: Block | None = None
        while t is not None:
            if t.n >= n:
                best = t
                t = t.left
            else:
                t = t.right
        return best

    def push(self, c: Block) -> None:
        """Link a block at its place in its bin's tree."""
        b = self.bin_of(c.n)
        c.bin = b
        c.rank = rank_of(c.ptr)
        self.n_free += 1
        t = self.heads[b]
        if t is None:
            self.mark(b)
            self.heads[b] = c
        else:
            self.insert(b, t, c)

    def insert(self, b: int, t: Block | None, c: Block) -> None:
        """Put a block into the tree of bin b, whose root is t."""
        p: Block | None = None
        left = False
        while t is not None and t.rank >= c.rank:
            p = t
            left = c.n < t.n or (c.n == t.n and c.ptr < t.ptr)
            t = t.left if left else t.right
        self.hang(b, p, left, c)
        self.part(b, t, c)

    def part(self, b: int, t: Block | None, c: Block) -> None:
        """Part the tree t around c: what comes before it to its left, the rest to its right."""
        lo = hi = c
        lo_left = True
        hi_left = False
        while t is not None:
            if t.n < c.n or (t.n == c.n and t.ptr < c.ptr):
                self.hang(b, lo, lo_left, t)
                lo = t
                lo_left = False
                t = t.right
            else:
                self.hang(b, hi, hi_left, t)
                hi = t
                hi_left = True
                t = t.left
        self.hang(b, lo, lo_left, None)
        self.hang(b, hi, hi_left, None)

    def unlink(self, c: Block) -> None:
        """Take a block out of its tree; its subtrees, merged by rank, take its place."""
        b = c.bin
        c.bin = LIVE
        self.n_free -= 1
        p = c.over
        left = p is not None and p.left is c
        x = c.left
        y = c.right
        while x is not None and y is not None:
            if x.rank >= y.rank:
                self.hang(b, p, left, x)
                p = x
                left = False
                x = x.right
            else:
                self.hang(b, p, left, y)
                p = y
                left = True
                y = y.left
        self.hang(b, p, left, y if x is None else x)
        if self.heads[b] is None:
            self.clear(b)
        c.left = c.right = c.over = None

    def hang(self, b: int, p: Block | None, left: bool, t: Block | None) -> None:
        """Make t a child of p, or the root of bin b if p is None."""
        if p is None:
            self.heads[b] = t
        elif left:
            p.left = t
        else:
            p.right = t
        if t is not None:
            t.over = p


def rank_of(ptr: int) -> int:
    """Return a hash of an address (the finisher of MurmurHash3, upper half)."""
    x = ptr
    x = ((x ^ (x >> 33)) * MIX_A) & WORD
    x = ((x ^ (x >> 33)) * MIX_B) & WORD
    return x >> 32
