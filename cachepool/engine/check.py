"""The invariants of a heap, verified from scratch (numbers as in docs/design.md).

I1 blocks tile each segment exactly, in address order; no two indexed free neighbours.
I2 every free block is in exactly one index, in the right bin; bits say what bins hold.
I3 counters equal what a walk over the blocks counts.
I4 the device's own books hold every segment (for a device that has books).

Reads a heap of either form through its attributes and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .blocks import KEPT, LIVE, SMALL_UNITS, UNIT_BITS
from .counters import FIGURES, POOLS

if TYPE_CHECKING:
    from .blocks import Block, Segment
    from .cache import Cache
    from .heap import Heap


@dataclass
class Audit:
    """What a walk over a heap found: breaches, and sums to compare the counters with."""

    breaches: list[str] = field(default_factory=list)
    sums: dict[tuple[str, int], int] = field(default_factory=dict)
    segments: int = 0
    blocks: int = 0
    free_blocks: int = 0

    def expect(self, ok: object, breach: str) -> None:
        """Note a breach unless ok."""
        if not ok:
            self.breaches.append(breach)

    def add(self, figure: str, row: int, value: int) -> None:
        """Add to a figure's sum; row 0 is the small pool, 1 the large one."""
        self.sums[figure, row] = self.sums.get((figure, row), 0) + value


def audit(heap: Heap) -> Audit:
    """Verify I1 to I3 of a heap and return what was found."""
    found = Audit()
    heap.reading(lambda: _audit(heap, found))
    return found


def _audit(heap: Heap, found: Audit) -> None:
    indexed: dict[int, tuple[int, str]] = {}
    for cache in _caches(heap):
        for b, kind in _indexed(cache, found):
            place = indexed.setdefault(id(b), (cache.number, kind))
            found.expect(
                place == (cache.number, kind),
                f"I2 block {b.ptr:#x} is in index {place[1]!r} of cache {place[0]} and in "
                f"{kind!r} of cache {cache.number}",
            )
    free: set[int] = set()
    for segment in heap.segments.values():
        free |= _walk(heap, segment, indexed, found)
    found.expect(not indexed.keys() - free, "I2 an index holds a block that lies in no segment")
    for segment in heap.limbo.values():
        found.add("segment", not segment.small, 1)
        found.add("reserved_bytes", not segment.small, segment.n << UNIT_BITS)
    _counters(heap, found)


def _caches(heap: Heap) -> list[Cache]:
    return [c for c in heap.caches if c is not None]


# ---- I2: the indexes, from their own side ---------------------------------------------------


def _indexed(cache: Cache, found: Audit) -> Iterator[tuple[Block, str]]:
    """Yield every block that the indexes of a cache hold, checking their structure."""
    small, large = cache.small, cache.large
    for kind, index in (("small", small), ("large", large)):
        where = f"I2 cache {cache.number} {kind} index"
        seen = 0
        _bits(index, where, found)
        for number, head in _used(index.heads):
            blocks = _list(head, where, found) if kind == "small" else _tree(head, where, found)
            for b in blocks:
                seen += 1
                found.expect(
                    b.bin == number == bin_of(b.n),
                    f"{where}: block {b.ptr:#x} of {b.n} units is in bin {number}, says {b.bin}",
                )
                yield b, kind
        found.expect(seen == index.n_free, f"{where}: {seen} blocks, n_free says {index.n_free}")
    sizes = list(small.sizes)  # compiled, each read of the attribute makes a list
    beyond = sizes[-1] >> (len(small.kept) & 31)
    found.expect(not beyond, f"I2 kept lists: {beyond:#b} marks lists beyond the last")
    for n, head in _used(small.kept):
        kept = list(_along(head, "right", f"I2 kept list {n}", found))
        bit = sizes[n >> 5] >> (n & 31) & 1
        found.expect(bit, f"I2 kept list {n} is not empty, its bit is 0")
        for i, b in enumerate(kept):
            found.expect(
                b.bin == KEPT and b.n == n and b.rank == len(kept) - i,
                f"I2 kept block {b.ptr:#x} of {b.n} units is number {i} of list {n}, "
                f"its rank {b.rank} of {len(kept)}",
            )
            yield b, "kept"


def bin_of(n: int) -> int:
    """Return the bin of a length by its definition, not by the index's own code."""
    if n < 32:
        return n
    octave = n.bit_length() - 6  # 0: lengths 32 to 63
    return 32 + 32 * octave + int(n / 2**octave) - 32


def _bits(index: Any, where: str, found: Audit) -> None:
    words = list(index.words)
    wanted = [0] * len(words)
    for number, _ in _used(index.heads):
        wanted[number >> 5] |= 1 << (number & 31)
    for i, (word, want) in enumerate(zip(words, wanted, strict=True)):
        found.expect(
            word == want,
            f"{where}: bits of bins {32 * i} and up are {word:#x}, should be {want:#x}",
        )
        bit = index.top >> i & 1
        found.expect(bit == (word != 0), f"{where}: top bit {i} is {bit}")


def _used(heads: list[Block | None]) -> list[tuple[int, Block]]:
    return [(number, head) for number, head in enumerate(heads) if head is not None]


def _list(head: Block | None, where: str, found: Audit) -> Iterator[Block]:
    before: Block | None = None
    for b in _along(head, "right", where, found):
        found.expect(b.left is before, f"{where}: block {b.ptr:#x} is linked wrongly")
        yield b
        before = b


def _along(b: Block | None, link: str, where: str, found: Audit) -> Iterator[Block]:
    """Yield the blocks along a link; one that comes again is a breach, and the end."""
    seen: set[int] = set()
    while b is not None and id(b) not in seen:
        seen.add(id(b))
        yield b
        b = getattr(b, link)
    found.expect(b is None, f"{where}: block {b.ptr if b else 0:#x} comes again: a ring")


def _tree(root: Block | None, where: str, found: Audit) -> Iterator[Block]:
    """Yield the blocks of a tree in order, checking key order, ranks and parents."""
    stack: list[Block] = []
    seen: set[int] = set()
    t, last = root, (-1, -1)
    parent: Block | None = None
    while stack or t is not None:
        while t is not None:
            found.expect(id(t) not in seen, f"{where}: block {t.ptr:#x} comes again: a ring")
            if id(t) in seen:
                return
            seen.add(id(t))
            found.expect(t.over is parent, f"{where}: block {t.ptr:#x} has a wrong parent")
            found.expect(
                parent is None or parent.rank >= t.rank, f"{where}: block {t.ptr:#x} over its rank"
            )
            stack.append(t)
            parent, t = t, t.left
        t = stack.pop()
        found.expect((t.n, t.ptr) > last, f"{where}: block {t.ptr:#x} out of order")
        last = (t.n, t.ptr)
        yield t
        parent, t = t, t.right


# ---- I1: the blocks, from the segments' side ------------------------------------------------


def _walk(
    heap: Heap, segment: Segment, indexed: dict[int, tuple[int, str]], found: Audit
) -> set[int]:
    """Check the tiles of a segment and add them to the sums; return the free ones' ids."""
    where = f"I1 segment {segment.ptr:#x}"
    row = int(not segment.small)
    free: set[int] = set()
    at, live, used, tiles = segment.ptr, 0, 0, 0
    before: Block | None = None
    for b in _along(segment.first, "next", where, found):
        tiles += 1
        found.expect(b.ptr == at, f"{where}: block {b.ptr:#x} should lie at {at:#x}")
        found.expect(b.n > 0, f"{where}: block {b.ptr:#x} is empty")
        found.expect(b.prev is before, f"{where}: block {b.ptr:#x} has a wrong neighbour below")
        found.expect(b.segment is segment, f"{where}: block {b.ptr:#x} is of another segment")
        found.expect(
            b.cache == segment.cache,
            f"{where} of cache {segment.cache}: block {b.ptr:#x} is of cache {b.cache}",
        )
        if b.bin == LIVE:
            live, used = live + 1, used + b.n
            _live(b, row, where, found)
        else:
            free.add(id(b))
            _free(b, before, indexed, segment, where, found)
        at = b.ptr + (b.n << UNIT_BITS)
        before = b
    found.expect(
        at == segment.ptr + (segment.n << UNIT_BITS), f"{where}: its blocks end at {at:#x}"
    )
    found.expect(
        (live, tiles) == (segment.live, segment.tiles),
        f"I3 segment {segment.ptr:#x}: {live} live blocks, {tiles} tiles; it says "
        f"{segment.live}, {segment.tiles}",
    )
    found.segments += 1
    found.blocks += tiles
    found.free_blocks += len(free)
    found.add("segment", row, 1)
    found.add("reserved_bytes", row, segment.n << UNIT_BITS)
    if live:
        found.add("inactive_split", row, tiles - live)
        found.add("inactive_split_bytes", row, (segment.n - used) << UNIT_BITS)
    _cache_sums(segment, live, used, found)
    return free


def _live(b: Block, row: int, where: str, found: Audit) -> None:
    found.expect(
        (b.n > SMALL_UNITS) == bool(row), f"{where}: block {b.ptr:#x} is of the other pool"
    )
    found.expect(
        0 < b.requested <= b.n << UNIT_BITS,
        f"I3 block {b.ptr:#x} of {b.n} units says {b.requested} bytes were requested",
    )
    found.add("allocation", row, 1)
    found.add("allocated_bytes", row, b.n << UNIT_BITS)
    found.add("requested_bytes", row, b.requested)


def _free(
    b: Block,
    before: Block | None,
    indexed: dict[int, tuple[int, str]],
    segment: Segment,
    where: str,
    found: Audit,
) -> None:
    cache, kind = indexed.get(id(b), (-1, "none"))
    wanted = "kept" if b.bin == KEPT else "small" if segment.small else "large"
    found.expect(
        cache == b.cache and kind == wanted,
        f"I2 free block {b.ptr:#x} is in index {kind!r} of cache {cache}, "
        f"not in {wanted!r} of {b.cache}",
    )
    found.expect(
        before is None or before.bin < 0 or b.bin < 0 or before.cache != b.cache,
        f"{where}: free neighbours {b.ptr:#x} and the one below are not merged",
    )
    found.expect(b.requested == 0, f"I3 free block {b.ptr:#x} says {b.requested} were requested")


# ---- I3: the counters -----------------------------------------------------------------------


def _cache_sums(segment: Segment, live: int, used: int, found: Audit) -> None:
    key = -1 - segment.cache  # a row of its own for each cache
    found.add("cache count", key, live)
    found.add("cache bytes", key, used << UNIT_BITS)
    found.add("cache reserved", key, segment.n << UNIT_BITS)


def _counters(heap: Heap, found: Audit) -> None:
    for i, name in enumerate(FIGURES):
        for pool in range(3):
            current, peak, ever = heap.counters.read(i, pool)
            rows = (0, 1) if pool == 2 else (pool,)
            counted = sum(found.sums.get((name, row), 0) for row in rows)
            label = f"I3 {name}.{POOLS[pool]}"
            found.expect(current == counted, f"{label} is {current}, the blocks say {counted}")
            found.expect(peak >= current, f"{label} peak {peak} below current {current}")
            found.expect(ever >= current, f"{label} in all {ever}, below current {current}")
    for c in _caches(heap):
        reserved = found.sums.get(("cache reserved", -1 - c.number), 0) + sum(
            s.n << UNIT_BITS for s in heap.limbo.values() if s.cache == c.number
        )
        wanted = (
            found.sums.get(("cache count", -1 - c.number), 0),
            found.sums.get(("cache bytes", -1 - c.number), 0),
            reserved,
        )
        says = tuple(figure[0] for figure in c.read())
        found.expect(says == wanted, f"I3 cache {c.number} says {says}, its blocks {wanted}")
        for current, peak, ever in c.read():
            found.expect(
                peak >= current <= ever, f"I3 cache {c.number}: {current} > {peak}, {ever}"
            )
    figures = dict(zip(FIGURES, (heap.counters.read(i, 2)[0] for i in range(7)), strict=True))
    ordered = [figures[f] for f in ("requested_bytes", "allocated_bytes", "reserved_bytes")]
    found.expect(
        ordered == sorted(ordered), f"I3 not requested <= allocated <= reserved: {ordered}"
    )


def device_books(heap: Heap, outstanding: dict[int, int], alone: bool) -> list[str]:
    """Verify I4: the device holds every segment, and nothing else if the pool is alone."""
    mine = {s.ptr: s.n << UNIT_BITS for d in (heap.segments, heap.limbo) for s in d.values()}
    breaches = [
        f"I4 segment {ptr:#x} of {nbytes} bytes, the device says {outstanding.get(ptr)}"
        for ptr, nbytes in mine.items()
        if outstanding.get(ptr) != nbytes
    ]
    if alone:
        breaches += [
            f"I4 the device has {nbytes} bytes out at {ptr:#x} that the pool does not know"
            for ptr, nbytes in outstanding.items()
            if ptr not in mine
        ]
    return breaches
