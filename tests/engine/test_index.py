"""The free indexes against a model that knows lengths and addresses only.

Both indexes are driven by their own methods, uncompiled.  Units are 512 bytes.
"""

import random

import pytest

from cachepool.engine.blocks import KEPT, LIVE, SMALL_UNITS, Segment
from cachepool.engine.counters import Counters
from cachepool.engine.large import LARGE_BINS, LargeIndex
from cachepool.engine.small import KEEP, SCAN, SMALL_BINS, SmallIndex

SLAB = 4096
UNIT = 512
FIRST = 2**40


def tiles(segment):
    block = segment.first
    while block is not None:
        yield block
        block = block.next


def bin_width(n):
    """Return how many lengths share a bin with n: 1 below 64 units, 32 bins an octave above."""
    return max(1, 2 ** (n.bit_length() - 6))


class Field:
    """Segments of one index and the blocks handed out of it."""

    def __init__(self, index, small, sizes):
        self.index = index
        self.segments = []
        self.live = []
        at = FIRST
        for n in sizes:
            segment = Segment(at, n, 0, small, None)
            self.segments.append(segment)
            index.push(segment.first)
            at += (n + 8) * UNIT

    def free(self):
        """Return (n, ptr) of every block that lies in a bin, from the tiles."""
        return sorted((b.n, b.ptr) for s in self.segments for b in tiles(s) if b.bin >= 0)

    def kept(self):
        return [b for s in self.segments for b in tiles(s) if b.bin == KEPT]

    def check_tiling(self):
        for segment in self.segments:
            at, before = segment.ptr, None
            for b in tiles(segment):
                assert b.ptr == at
                assert b.prev is before
                assert not (before is not None and before.bin >= 0 and b.bin >= 0), "unmerged"
                at, before = at + b.n * UNIT, b
            assert at == segment.ptr + segment.n * UNIT
        assert self.index.n_free == len(self.free())


def words_say(index):
    return {
        number
        for i, word in enumerate(index.words)
        for number in range(32 * i, 32 * i + 32)
        if word >> (number % 32) & 1
    }


# ---- bins -----------------------------------------------------------------------------------


def test_bins_hold_one_length_each_below_64_units():
    index = SmallIndex(Counters())
    assert [index.bin_of(n) for n in range(1, 64)] == list(range(1, 64))


def test_bins_split_every_octave_above_into_32_equal_parts():
    index = LargeIndex(Counters())
    for octave in range(6, 38):
        first = index.bin_of(2**octave)
        width = 2**octave // 32
        assert first == index.bin_of(2**octave - 1) + 1
        assert [index.bin_of(2**octave + k * width) for k in range(32)] == list(
            range(first, first + 32)
        )
        assert [index.bin_of(2**octave + k * width - 1) for k in range(1, 33)] == list(
            range(first, first + 32)
        )


def test_longest_lengths_have_a_bin():
    assert SmallIndex(Counters()).bin_of(SLAB) < SMALL_BINS <= 64 * 32
    assert LargeIndex(Counters()).bin_of(2**47 // UNIT) < LARGE_BINS <= 64 * 32


@pytest.mark.parametrize("seed", range(4))
def test_after_finds_the_next_bin_that_is_marked(seed):
    rng = random.Random(seed)
    index = LargeIndex(Counters())
    marked = set()
    for _ in range(1000):
        number = rng.randrange(LARGE_BINS)
        if number in marked:
            index.clear(number)
            marked.remove(number)
        else:
            index.mark(number)
            marked.add(number)
        if len(marked) > rng.choice([1, 5, 500]):
            number = marked.pop()
            index.clear(number)
        start = rng.randrange(LARGE_BINS)
        assert index.after(start) == min((m for m in marked if m > start), default=-1)
        assert words_say(index) == marked


# ---- large: strict best fit -----------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_large_takes_the_shortest_block_that_fits_and_the_lowest_of_those(seed):
    rng = random.Random(seed)
    sizes = [rng.choice([4096, 8192, 8192, 12_288, 40_960]) for _ in range(12)]
    field = Field(LargeIndex(Counters()), False, sizes)
    misses = 0
    for _ in range(900):
        if field.live and rng.random() < 0.45:
            field.index.give(field.live.pop(rng.randrange(len(field.live))))
        else:
            n = rng.choice([2049, 2100, 4096, 4097, 8192, rng.randint(2049, 30_000)])
            best = min(((m, ptr) for m, ptr in field.free() if m >= n), default=None)
            block = field.index.take(n)
            if best is None:
                misses += 1
                assert block is None
                continue
            assert (block.ptr, block.n, block.bin) == (best[1], n, LIVE)
            field.live.append(block)
        field.check_tiling()
    assert misses > 0


def test_large_tree_stays_shallow_whatever_the_order():
    index = LargeIndex(Counters())
    field = Field(index, False, [4096] * 4000)  # one bin, rising addresses: the worst order

    def depth(block):
        deepest, level = 0, [block]
        while level:
            deepest += 1
            level = [c for b in level for c in (b.left, b.right) if c is not None]
        return deepest

    (root,) = [head for head in index.heads if head is not None]
    assert depth(root) < 50  # 12 levels at best; a list would have 4000
    assert len(field.free()) == 4000


# ---- small: exact re-use, then a good fit ---------------------------------------------------


def test_small_gives_the_newest_released_block_of_exactly_the_size_first():
    field = Field(SmallIndex(Counters()), True, [SLAB])
    blocks = [field.index.get(7) for _ in range(5)]
    for i in (3, 0, 4, 1):
        field.index.put(blocks[i])
    assert [field.index.get(7) for _ in range(4)] == [blocks[i] for i in (1, 4, 0, 3)]


def test_small_keeps_so_many_of_a_size_and_merges_the_rest():
    field = Field(SmallIndex(Counters()), True, [SLAB])
    blocks = [field.index.get(5) for _ in range(KEEP + 3)]
    for block in blocks:
        field.index.put(block)
    assert {b.ptr for b in field.kept()} == {b.ptr for b in blocks[:KEEP]}
    (rest,) = field.free()
    assert rest == (SLAB - 5 * KEEP, blocks[KEEP].ptr)


def test_small_does_not_give_a_kept_block_for_another_size():
    field = Field(SmallIndex(Counters()), True, [SLAB])
    block = field.index.get(9)
    field.index.put(block)
    other = field.index.get(8)
    assert other.ptr == block.ptr + 9 * UNIT


def test_flush_merges_all_that_was_kept():
    field = Field(SmallIndex(Counters()), True, [SLAB, SLAB])
    blocks = [field.index.get(n) for n in (3, 5, 3, 2048, 1, 5, 5)]
    for block in blocks:
        field.index.put(block)
    assert len(field.kept()) == len(blocks)
    assert field.index.flush()
    assert field.kept() == []
    assert [n for n, _ in field.free()] == [SLAB, SLAB]
    field.check_tiling()
    assert not field.index.flush()


@pytest.mark.parametrize("seed", range(4))
def test_small_serves_exactly_newest_first_else_within_a_bins_width_of_the_best(seed):
    rng = random.Random(100 + seed)
    field = Field(SmallIndex(Counters()), True, [SLAB] * 40)
    kept = {}  # the model: by size, blocks released and not yet handed out, newest last
    for _ in range(1500):
        roll = rng.random()
        if field.live and roll < 0.48:
            block = field.live.pop(rng.randrange(len(field.live)))
            if len(kept.setdefault(block.n, [])) < KEEP:
                kept[block.n].append(block.ptr)
            field.index.put(block)
        elif roll < 0.5:
            field.index.flush()
            kept.clear()
        else:
            n = rng.choice([1, 2, 8, 8, 8, 100, 1000, 2048, rng.randint(1, SMALL_UNITS)])
            fits = [m for m, _ in field.free() if m >= n]
            by_length = {ptr: m for m, ptr in field.free()}
            block = field.index.get(n)
            if kept.get(n):
                assert block.ptr == kept[n].pop()
            elif not fits:
                assert block is None
                continue
            else:
                check_good_fit(n, by_length[block.ptr], fits)
            assert (block.n, block.bin) == (n, LIVE)
            field.live.append(block)
        field.check_tiling()
        assert sorted(b.ptr for b in field.kept()) == sorted(p for ps in kept.values() for p in ps)


def check_good_fit(n, length, fits):
    """A cut block is of the best fit's bin; or of the next, if n's own holds over SCAN."""
    best = min(fits)
    own_bin = [m for m in fits if m // bin_width(n) == n // bin_width(n)]
    if best in own_bin and length not in own_bin:
        best = min(m for m in fits if m not in own_bin)  # the scan of its bin found none
    assert length >= best
    assert length // bin_width(best) == best // bin_width(best)
    assert length.bit_length() == best.bit_length()


def test_small_looks_at_so_many_blocks_of_its_bin_and_then_at_the_next():
    # Bin of 2048 units holds 2048 to 2111.  Lengths are pushed so that the newest come first.
    field = Field(SmallIndex(Counters()), True, [2500, 2100, *[2050] * (SCAN - 1)])
    assert field.index.take(2060).ptr == field.segments[1].ptr
    field = Field(SmallIndex(Counters()), True, [2500, 2100, *[2050] * SCAN])
    assert field.index.take(2060).ptr == field.segments[0].ptr
