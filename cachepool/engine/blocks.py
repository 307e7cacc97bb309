"""Segments, the blocks that tile them, and cutting and joining blocks.

    Segment  |---- Block ----|-- Block --|-------- Block --------|
             first    <- prev        next ->     in address order

Lengths are counted in units of 512 bytes.  ``bin`` says where a block is: the number of
its bin in a free index, or LIVE (handed out), or KEPT (free, unmerged, for exact re-use).
``left``, ``right`` and ``over`` link it there: in a list, its neighbours; in a tree, its
children and its parent.

A block's address never changes, and joining keeps the lower block, so a segment's first
block is the same from the segment's birth to its end.  Blocks are outside the cycle
collector (a hit must not start a collection), so whoever drops one clears its links.
"""

from __future__ import annotations

from typing import Any

try:
    import cython
except ImportError:
    from cachepool import _cyshim as cython

if not cython.compiled:  # an enum in the .pxd
    UNIT_BITS = 9
    SMALL_UNITS = 2048  # requests up to 1 MiB are the small pool, as in torch
    LIVE, KEPT = -1, -2


@cython.final
@cython.no_gc
@cython.freelist(256)
@cython.cclass
class Block:
    """One tile of a segment; ``cache`` is the number of the cache it belongs to."""

    ptr: int
    n: int
    requested: int
    bin: int
    cache: int
    rank: int
    prev: Block | None
    next: Block | None
    left: Block | None
    right: Block | None
    over: Block | None
    segment: Segment

    if not cython.compiled:
        __slots__ = (
            "bin",
            "cache",
            "left",
            "n",
            "next",
            "over",
            "prev",
            "ptr",
            "rank",
            "requested",
            "right",
            "segment",
        )

    def split(self, n: int) -> Block:
        """Keep the low n units and return the rest as a new block."""
        rest = new_block()
        rest.ptr = self.ptr + (n << UNIT_BITS)
        rest.n = self.n - n
        rest.cache = self.cache
        rest.segment = self.segment
        rest.prev = self
        after = self.next
        rest.next = after
        if after is not None:
            after.prev = rest
        self.next = rest
        self.n = n
        return rest

    def absorb(self, q: Block) -> None:
        """Swallow the next block, which lies in no index, and clear its links."""
        self.n += q.n
        after = q.next
        self.next = after
        if after is not None:
            after.prev = self
        q.prev = q.next = None


def new_block() -> Block:
    """Make a block that lies nowhere; not Block(), which is a slow call when compiled."""
    b = Block.__new__(Block)
    b.bin = LIVE
    if not cython.compiled:
        b.prev = b.next = b.left = b.right = b.over = None
        b.requested = b.rank = 0
    return b


@cython.final
@cython.no_gc
@cython.cclass
class Segment:
    """One range taken from the device.

    ``live`` counts its live blocks, ``tiles`` all its blocks.
    ``held`` is what upstream returned and gets back.
    """

    ptr: int
    n: int
    cache: int
    small: bool
    tiles: int
    live: int
    first: Block
    held: Any

    if not cython.compiled:
        __slots__ = ("cache", "first", "held", "live", "n", "ptr", "small", "tiles")

    def __init__(self, ptr: int, n: int, cache: int, small: bool, held: Any) -> None:
        self.ptr = ptr
        self.n = n
        self.cache = cache
        self.small = small
        self.held = held
        self.live = 0
        self.tiles = 1
        b = new_block()
        b.ptr = ptr
        b.n = n
        b.cache = cache
        b.segment = self
        self.first = b

    def dissolve(self) -> None:
        """Clear the links of blocks that lie in no index: nothing else would free them."""
        b: Block | None = self.first
        while b is not None:
            after = b.next
            b.prev = b.next = None
            b.segment = None  # type: ignore[assignment]
            b = after
        self.first = None  # type: ignore[assignment]
