"""Every invariant, broken by hand in a healthy pool: `check` must name it.

The pool is built uncompiled, because a compiled block cannot be broken from outside; the
checker is the same for both.  One corruption a test, each naming what it touches.
"""

import functools
import sys

import pytest

from cachepool import SimDevice
from cachepool.engine import check
from cachepool.engine.check import audit, device_books
from cachepool.engine.counters import FIGURES, LARGE
from cachepool.engine.heap import Heap
from cachepool.errors import PoolCorruptionError
from cachepool.growth import slabs
from cachepool.heaps import out_of_memory
from cachepool.pool import CachePool
from cachepool.upstream import DeviceUpstream

MIB = 2**20
KEY, OTHER = 0, 7


class PurePool(CachePool):
    """A pool whose heap is uncompiled, whatever form is in force."""

    def _make_heap(self, device, limit):
        error = functools.partial(out_of_memory, self.device)
        heap = Heap(device, DeviceUpstream(self.device, device), slabs, error, limit)
        self._heaps[device] = heap
        return heap


class Bench:
    """A healthy pool with a bit of everything, and names for its parts.

    Slab of stream KEY:   live a | free hole | live b | kept c | live d | free rest
    Large of stream KEY:  two wholly free segments of one bin, a third one half used
    Slab of stream OTHER: live e | free rest
    """

    def __init__(self):
        self.sim = SimDevice(256 * MIB, on_race="record")
        self.pool = PurePool(self.sim)
        self.pool._alone = True  # as when the pool has made its device
        self.heap = heap = self.pool.heap(0)
        a, hole, b, c, d = (heap.allocate(n, KEY) for n in (512, 2048, 1024, 4096, 512))
        self.a, self.b, self.c, self.d = a, b, c, d
        self.e = heap.allocate(100, OTHER)
        large = [heap.allocate(n, KEY) for n in (4 * MIB, 4 * MIB, 2 * MIB + 1)]
        self.half = large[2]
        heap.release(hole)
        heap.trim(None, None)  # merges what was kept: the hole lies in a bin now
        self.hole = a.next
        heap.release(c)
        heap.release(large[0])
        heap.release(large[1])
        self.rest = d.next
        self.low, self.high = large[:2]
        self.cache, self.other = heap.caches
        self.slab = a.segment
        self.small, self.large = self.cache.small, self.cache.large

    def breaches(self):
        """Return what `check` lists; it lists all, and raises the pool's own error."""
        found = audit(self.heap).breaches + device_books(self.heap, self.sim.outstanding(0), True)
        if not found and not self.sim.races:
            self.pool.check()
            return []
        with pytest.raises(PoolCorruptionError) as caught:
            self.pool.check()
        listed = caught.value.breaches
        for breach in audit(self.heap).breaches:
            assert f"device 0: {breach}" in listed
        assert all(breach in str(caught.value) for breach in listed)
        return [breach.removeprefix("device 0: ") for breach in listed]

    def expect(self, invariant, *words):
        """A breach with that number is listed, which says all the words."""
        found = self.breaches()
        assert any(
            breach.startswith(invariant) and all(word in breach for word in words)
            for breach in found
        ), found


@pytest.fixture
def bench():
    """Return a healthy bench; a check that does not end is cut off."""
    bench = Bench()
    assert bench.breaches() == []
    return bench


@pytest.fixture
def bounded():
    """Let a checker that walks in circles fail instead of filling the memory."""
    looks = 0

    def trace(frame, event, arg):
        nonlocal looks
        if frame.f_code.co_filename != check.__file__:
            return None
        looks += 1
        if looks > 2_000_000:  # a healthy bench takes a twentieth of that
            pytest.fail("check does not end")
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    yield
    sys.settrace(before)


def test_bench_has_what_the_corruptions_break(bench):
    order = []
    block = bench.a
    while block is not None:
        order.append(block)
        block = block.next
    assert order == [bench.a, bench.hole, bench.b, bench.c, bench.d, bench.rest]
    assert bench.hole.bin >= 0
    assert bench.small.kept[8] is bench.c
    assert {bench.low.bin, bench.high.bin} == {bench.low.bin}
    assert bench.half.next.bin >= 0
    assert bench.pool.check().free_blocks == 7


# ---- I1: tiles ------------------------------------------------------------------------------


def test_gap_between_tiles(bench):
    bench.b.ptr += 512
    bench.expect("I1", f"{bench.b.ptr:#x}", "should lie at")


def test_tile_longer_than_it_is(bench):
    bench.a.n += 1
    bench.expect("I1", "should lie at")


def test_last_tile_short_of_the_segments_end(bench):
    bench.e.next.n -= 1
    bench.expect("I1", "blocks end at")


def test_empty_tile(bench):
    bench.d.n = 0
    bench.expect("I1", f"{bench.d.ptr:#x}", "empty")


def test_neighbour_below_lost(bench):
    bench.b.prev = None
    bench.expect("I1", f"{bench.b.ptr:#x}", "neighbour below")


def test_neighbour_below_is_another(bench):
    bench.b.prev = bench.a
    bench.expect("I1", "neighbour below")


def test_neighbour_above_lost(bench):
    bench.b.next = None
    bench.expect("I1", "blocks end at")


def test_tile_says_another_segment(bench):
    bench.b.segment = bench.e.segment
    bench.expect("I1", f"{bench.b.ptr:#x}", "another segment")


def test_segment_longer_than_its_tiles(bench):
    bench.slab.n += 1
    bench.expect("I1", "blocks end at")


def test_segment_at_another_address(bench):
    bench.slab.ptr += 512
    bench.expect("I1", "should lie at")


def test_free_neighbours_left_unmerged(bench):
    rest = bench.rest
    bench.small.unlink(rest)
    tail = rest.split(100)
    bench.slab.tiles += 1
    bench.heap.counters.cur[FIGURES.index("inactive_split")] += 1
    bench.small.push(rest)
    bench.small.push(tail)
    bench.expect("I1", "not merged", f"{tail.ptr:#x}")


def test_small_block_in_a_large_segment(bench):
    bench.slab.small = False
    bench.expect("I1", "other pool")


def test_live_block_of_another_cache_than_its_segment(bench):
    bench.b.cache = bench.other.number  # its release would go to another stream
    bench.expect("I", f"{bench.b.ptr:#x}", "cache")


def test_ring_of_neighbours(bench, bounded):
    bench.rest.next = bench.a
    bench.expect("I1")


# ---- I2: indexes ----------------------------------------------------------------------------


def test_bit_of_a_full_bin_cleared(bench):
    bench.small.words[bench.hole.bin >> 5] ^= 1 << (bench.hole.bin & 31)
    bench.expect("I2", "small")


def test_bit_of_an_empty_bin_set(bench):
    bench.large.words[3] |= 2
    bench.large.top |= 8
    bench.expect("I2", "large")


def test_bit_beyond_the_last_bin_set(bench):
    bench.small.words[20] |= 1
    bench.small.top |= 1 << 20
    bench.expect("I2", "small")


def test_top_bit_cleared(bench):
    bench.small.top &= bench.small.top - 1
    bench.expect("I2", "top")


def test_top_bit_set(bench):
    bench.large.top |= 1
    bench.expect("I2", "top bit 0")


def test_free_block_in_no_index(bench):
    bench.small.heads[bench.hole.bin] = None
    bench.expect("I2", f"{bench.hole.ptr:#x}", "'none'")


def test_block_in_a_wrong_bin(bench):
    number = bench.hole.bin
    bench.small.unlink(bench.hole)
    bench.small.heads[number + 1] = bench.hole
    bench.small.mark(number + 1)
    bench.small.n_free += 1
    bench.hole.bin = number + 1
    bench.expect("I2", f"{bench.hole.ptr:#x}", f"in bin {number + 1}")


def test_block_says_a_wrong_bin(bench):
    bench.hole.bin += 1
    bench.expect("I2", f"says {bench.hole.bin}")


def test_block_in_the_index_of_another_cache(bench):
    bench.small.unlink(bench.hole)
    bench.other.small.push(bench.hole)
    bench.expect("I2", f"{bench.hole.ptr:#x}", f"of cache {bench.other.number}")


def test_block_says_another_cache(bench):
    bench.hole.cache = bench.other.number
    bench.expect("I2", f"{bench.hole.ptr:#x}")


@pytest.mark.parametrize("order", ["lower", "higher"])
def test_block_in_the_indexes_of_two_caches(bench, order):
    owner, second = (bench.cache, bench.other) if order == "higher" else (bench.other, bench.cache)
    block = bench.hole if owner is bench.cache else bench.e.next
    second.small.heads[block.bin] = block
    second.small.mark(block.bin)
    second.small.n_free += 1
    bench.expect("I2", f"{block.ptr:#x}")


def test_live_block_in_an_index(bench):
    bench.small.push(bench.b)
    bench.b.bin = -1
    bench.expect("I2", "lies in no segment")


def test_live_block_says_it_is_kept(bench):
    bench.b.bin = -2
    bench.expect("I2", f"{bench.b.ptr:#x}")


def test_free_block_says_it_is_live(bench):
    bench.hole.bin = -1
    bench.expect("I2", f"{bench.hole.ptr:#x}")


def test_link_back_in_a_bins_list_lost(bench):
    blocks = _two_in_one_bin(bench)
    blocks[1].left = None
    bench.expect("I2", f"{blocks[1].ptr:#x}", "linked wrongly")


def test_link_forward_in_a_bins_list_lost(bench):
    blocks = _two_in_one_bin(bench)
    blocks[0].right = None
    bench.expect("I2", "n_free")


def test_ring_in_a_bins_list(bench, bounded):
    bench.hole.right = bench.hole
    bench.expect("I2")


def _two_in_one_bin(bench):
    bench.heap.release(bench.b)
    bench.heap.release(bench.d)
    bench.heap.trim(None, None)
    kept = [bench.heap.allocate(n, OTHER) for n in (512, 512, 512, 512)]
    for block in (kept[0], kept[2]):
        bench.heap.release(block)
    bench.heap.trim(None, None)
    first = bench.other.small.heads[1]
    assert first.right is not None
    assert bench.breaches() == []
    return first, first.right


def test_n_free_of_the_small_index(bench):
    bench.small.n_free += 1
    bench.expect("I2", "small", "n_free")


def test_n_free_of_the_large_index(bench):
    bench.large.n_free -= 1
    bench.expect("I2", "large", "n_free")


def test_kept_block_lost_from_its_list(bench):
    bench.small.kept[8] = None
    bench.expect("I2", f"{bench.c.ptr:#x}", "'kept'")


def test_kept_block_in_the_list_of_another_size(bench):
    bench.small.kept[8], bench.small.kept[9] = None, bench.c
    bench.small.sizes[0] |= 1 << 9
    bench.expect("I2", f"{bench.c.ptr:#x}", "list 9")


def test_kept_list_without_its_bit(bench):
    bench.small.sizes[0] &= ~(1 << 8)
    bench.expect("I2", "kept list 8")


def test_bit_beyond_the_last_kept_list(bench):
    bench.small.sizes[64] |= 2  # length 2049: `flush` would look outside the lists
    bench.expect("I2", "kept")


def test_length_of_a_kept_list(bench):
    bench.c.rank += 1
    bench.expect("I2", f"{bench.c.ptr:#x}", "rank")


def test_ring_of_kept_blocks(bench, bounded):
    bench.c.right = bench.c
    bench.expect("I2", f"{bench.c.ptr:#x}")


def _tree(bench):
    """Return the root and a child of the tree that `low` and `high` are in."""
    root = bench.large.heads[bench.low.bin]
    child = root.left or root.right
    assert {root, child} == {bench.low, bench.high}
    return root, child


def test_tree_out_of_order(bench):
    root, _ = _tree(bench)
    root.left, root.right = root.right, root.left
    bench.expect("I2", "out of order")


def test_tree_child_with_a_wrong_parent(bench):
    _, child = _tree(bench)
    child.over = None
    bench.expect("I2", f"{child.ptr:#x}", "parent")


def test_tree_root_with_a_parent(bench):
    root, child = _tree(bench)
    root.over = child
    bench.expect("I2", f"{root.ptr:#x}", "parent")


def test_tree_child_over_its_rank(bench):
    root, child = _tree(bench)
    child.rank = root.rank + 1
    bench.expect("I2", f"{child.ptr:#x}", "rank")


def test_tree_child_lost(bench):
    root, child = _tree(bench)
    root.left = root.right = None
    bench.expect("I2", f"{child.ptr:#x}")


# ---- I3: sums -------------------------------------------------------------------------------


@pytest.mark.parametrize("figure", FIGURES)
@pytest.mark.parametrize("pool", ["small", "large"])
@pytest.mark.parametrize("by", [1, -1])
def test_current_of_a_figure(bench, figure, pool, by):
    at = FIGURES.index(figure) + (LARGE if pool == "large" else 0)
    bench.heap.counters.cur[at] += by
    bench.expect("I3", f"{figure}.{pool}_pool is")


@pytest.mark.parametrize("figure", FIGURES)
def test_peak_below_the_current_value(bench, figure):
    at = FIGURES.index(figure)
    assert bench.heap.counters.read(at, 0)[0] > 0
    bench.heap.counters.peak[at] = 0
    bench.expect("I3", f"{figure}.small_pool", "peak")


@pytest.mark.parametrize("figure", FIGURES)
def test_peak_of_the_sum_below_the_current_value(bench, figure):
    bench.heap.counters.top[FIGURES.index(figure)] = 0
    bench.expect("I3", f"{figure}.all", "peak")


def test_sum_of_all_allocations_below_the_current_value(bench):
    bench.heap.counters.ever[FIGURES.index("allocated_bytes")] = 0
    bench.expect("I3", "allocated_bytes.small_pool", "in all")


def test_live_blocks_of_a_segment(bench):
    bench.slab.live += 1
    bench.expect("I3", f"{bench.slab.ptr:#x}", "live")


def test_tiles_of_a_segment(bench):
    bench.slab.tiles -= 1
    bench.expect("I3", f"{bench.slab.ptr:#x}", "tiles")


def test_live_block_with_nothing_requested(bench):
    bench.b.requested = 0
    bench.expect("I3", f"{bench.b.ptr:#x}", "requested")


def test_live_block_with_more_requested_than_it_has(bench):
    bench.b.requested = 1025
    bench.expect("I3", f"{bench.b.ptr:#x}", "requested")


def test_free_block_with_bytes_requested(bench):
    bench.hole.requested = 5
    bench.expect("I3", f"{bench.hole.ptr:#x}", "requested")


@pytest.mark.parametrize("name", ["count", "nbytes", "reserved"])
def test_figures_of_a_cache(bench, name):
    setattr(bench.cache, name, getattr(bench.cache, name) + 1)
    bench.expect("I3", f"cache {bench.cache.number} says")


@pytest.mark.parametrize("name", ["peak_count", "peak_bytes", "peak_reserved"])
def test_peaks_of_a_cache(bench, name):
    setattr(bench.cache, name, 0)
    bench.expect("I3", f"cache {bench.cache.number}:")


@pytest.mark.parametrize("name", ["ever_count", "ever_bytes", "ever_reserved"])
def test_sums_of_a_cache(bench, name):
    setattr(bench.cache, name, 0)
    bench.expect("I3", f"cache {bench.cache.number}:")


def test_segment_of_another_cache(bench):
    bench.slab.cache = bench.other.number
    bench.expect("I3", "cache")


def test_segment_lost(bench):
    del bench.heap.segments[bench.slab.ptr]
    bench.expect("I3", "reserved_bytes.small_pool")
    bench.expect("I2", "lies in no segment")
    bench.expect("I4", "does not know")


# ---- I4: the device's books -----------------------------------------------------------------


def test_device_took_a_segment_back(bench):
    bench.sim.release(bench.low.ptr, 4 * MIB, 0)
    bench.expect("I4", f"{bench.low.ptr:#x}", "None")


def test_device_has_another_size_of_a_segment(bench):
    bench.sim._machine.cards[0].space.sizes[bench.low.ptr] -= 512
    bench.expect("I4", f"{bench.low.ptr:#x}")


def test_device_has_memory_out_that_the_pool_does_not_know(bench):
    ptr = bench.sim.reserve(512, 0)
    bench.expect("I4", f"{ptr:#x}", "does not know")


def test_others_memory_is_no_breach_where_the_device_is_shared(bench):
    bench.pool._alone = False
    bench.sim.reserve(512, 0)
    bench.pool.check()


# ---- I5: races ------------------------------------------------------------------------------


def test_race_on_the_device(bench):
    first, second = bench.sim.stream(), bench.sim.stream()
    block = (bench.b.ptr, 1024)
    first.launch(1.0, writes=block)
    bench.sim.handed_out(*block, 0, second.handle)
    bench.expect("I5", f"{bench.b.ptr:x}")


# ---- all at once ----------------------------------------------------------------------------


def test_every_breach_is_listed_not_the_first_alone(bench):
    bench.b.requested = 0
    bench.small.top = 0
    bench.e.next.n -= 1
    bench.sim.reserve(512, 0)
    found = bench.breaches()
    assert {breach[:2] for breach in found} == {"I1", "I2", "I3", "I4"}
    assert len(found) >= 4


def test_quick_check_sees_figures_out_of_order(bench):
    bench.heap.counters.cur[FIGURES.index("requested_bytes")] = 2**40
    with pytest.raises(PoolCorruptionError, match="I3 not requested <= allocated <= reserved"):
        bench.pool.check(quick=True)


def test_check_changes_nothing(bench):
    before = bench.pool.memory_snapshot(), bench.sim.calls, bench.heap.free_space()
    bench.pool.check()
    assert (bench.pool.memory_snapshot(), bench.sim.calls, bench.heap.free_space()) == before
