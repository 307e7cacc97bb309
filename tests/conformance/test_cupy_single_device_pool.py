"""CuPy's TestSingleDeviceMemoryPool: who gets which block, and the bytes in use and cached.

Sizes are in units of 512 bytes.  Fixture `pool` is either growth: what every pool should do;
`exact` has CuPy's own growth, segments of exactly the request; `slabs` is the usual one.
"""

from itertools import permutations

import pytest
from conformity import SLAB, UNIT


def units(pool, n):
    return pool.malloc(n * UNIT)


def tiles(pool):
    """Return (address, units, free?) of each block of the pool's only segment."""
    (segment,) = pool.memory_snapshot()
    return [(b["address"], b["size"] // UNIT, b["state"] == "inactive") for b in segment["blocks"]]


class TestWhichBlock:
    @pytest.mark.parametrize(
        ("asked", "served"), [(1, UNIT), (511, 512), (512, 512), (513, 1024), (1025, 1536)]
    )
    def test_a_request_is_rounded_up_to_512_bytes(self, pool, asked, served):
        p = pool.malloc(asked)
        assert (p.mem.size, pool.used_bytes()) == (served, served)

    def test_three_live_blocks_have_three_addresses(self, pool):
        p1, p2, p3 = units(pool, 4), units(pool, 4), units(pool, 8)
        assert len({p1.ptr, p2.ptr, p3.ptr}) == 3

    def test_a_released_block_is_the_next_of_its_size(self, pool):
        p = units(pool, 4)
        ptr = p.ptr
        del p
        assert units(pool, 4).ptr == ptr

    def test_a_released_block_does_not_serve_a_larger_request(self, pool):
        p = units(pool, 4)
        ptr = p.ptr
        del p
        assert units(pool, 8).ptr != ptr

    def test_halves_of_a_released_block_lie_in_it_front_to_back(self, exact):
        p = units(exact, 4)
        ptr = p.ptr
        del p
        head, tail = units(exact, 2), units(exact, 2)
        assert (head.ptr, tail.ptr) == (ptr, ptr + 2 * UNIT)

    def test_in_a_slab_a_released_block_waits_for_its_own_size_and_halves_lie_behind_it(
        self, slabs
    ):
        # CuPy cuts the released block; here it is kept for exact re-use while the slab lasts.
        p = units(slabs, 4)
        ptr = p.ptr
        del p
        head, tail = units(slabs, 2), units(slabs, 2)
        assert (head.ptr, tail.ptr) == (ptr + 4 * UNIT, ptr + 6 * UNIT)
        assert units(slabs, 4).ptr == ptr

    def test_cutting_tiles_the_segment_from_the_front(self, exact):
        p = units(exact, 4)
        ptr = p.ptr
        del p
        head = units(exact, 2)
        assert tiles(exact) == [(ptr, 2, False), (ptr + 2 * UNIT, 2, True)]
        third = units(exact, 1)
        assert tiles(exact) == [
            (ptr, 2, False),
            (ptr + 2 * UNIT, 1, False),
            (ptr + 3 * UNIT, 1, True),
        ]
        del head, third

    @pytest.mark.parametrize("order", [*permutations(range(4))])
    def test_quarters_released_in_any_order_join_to_the_whole(self, exact, order):
        p = units(exact, 4)
        ptr = p.ptr
        del p
        quarters = {i: units(exact, 1) for i in range(4)}
        for i in order:
            del quarters[i]
        p = units(exact, 4)
        assert tiles(exact) == [(ptr, 4, False)]
        del p

    @pytest.mark.parametrize("first_released", ["head", "tail"])
    def test_halves_released_in_either_order_come_back_as_the_whole(self, exact, first_released):
        p = units(exact, 4)
        ptr = p.ptr
        del p
        halves = {"head": units(exact, 2), "tail": units(exact, 2)}
        del halves[first_released]
        halves.clear()
        assert units(exact, 4).ptr == ptr

    @pytest.mark.parametrize("first_released", ["head", "tail"])
    def test_in_a_slab_released_halves_serve_the_whole_without_new_memory(
        self, slabs, sim, first_released
    ):
        halves = {"head": slabs.malloc(SLAB // 2), "tail": slabs.malloc(SLAB // 2)}
        ptr = halves["head"].ptr
        del halves[first_released]
        halves.clear()
        p = units(slabs, 4)
        assert (p.ptr, sim.calls["reserve"]) == (ptr, 1)


class TestStreams:
    def test_memory_released_on_one_stream_is_not_given_to_another(self, pool, sim):
        # As CuPy, which never lets streams exchange memory.  With work pending on it, as here,
        # nobody may.
        stream = sim.stream(blocking=False)
        p = units(pool, 4)
        ptr = p.ptr
        sim.default_stream().launch(1.0, writes=p)
        del p
        with stream:
            assert units(pool, 4).ptr != ptr
        sim.synchronize()

    def test_memory_goes_back_to_the_stream_that_it_was_allocated_for(self, pool, sim):
        stream = sim.stream()
        with stream:
            p = units(pool, 4)
            ptr = p.ptr
        del p  # while the default stream is current
        assert units(pool, 4).ptr != ptr
        with stream:
            assert units(pool, 4).ptr == ptr


class TestGivingBack:
    def test_after_a_flush_memory_is_new(self, pool, sim):
        units(pool, 4)
        pool.free_all_blocks()
        units(pool, 4)
        assert sim.calls["reserve"] == 2

    def test_after_a_flush_no_old_address_comes_back(self, exact):
        p = units(exact, 4)
        ptr = p.ptr
        del p
        exact.free_all_blocks()
        assert units(exact, 4).ptr != ptr

    def test_a_flush_leaves_the_free_tail_beside_a_live_head(self, exact, sim):
        units(exact, 4)
        head, tail = units(exact, 2), units(exact, 2)
        tail_ptr = tail.ptr
        del tail
        exact.free_all_blocks()
        assert units(exact, 2).ptr == tail_ptr
        del head

    def test_in_a_slab_a_flush_leaves_what_lies_beside_a_live_block(self, slabs, sim):
        # CuPy's tail is the only hole; a slab has others, of which the tightest is taken.
        head, tail = units(slabs, 2), units(slabs, 2)
        del tail
        slabs.free_all_blocks()
        units(slabs, 2)
        assert sim.calls["reserve"] == 1
        del head

    def test_flushing_the_default_stream_leaves_the_other_streams_cache(self, pool, sim):
        stream = sim.stream()
        units(pool, 4)
        with stream:
            p = units(pool, 4)
            ptr = p.ptr
            del p
        pool.free_all_blocks(stream=sim.default_stream())
        p3 = units(pool, 4)
        assert (p3.ptr != ptr, sim.calls["reserve"]) == (True, 3)
        with stream:
            assert units(pool, 4).ptr == ptr

    def test_flushing_another_stream_leaves_the_default_streams_cache(self, pool, sim):
        stream = sim.stream()
        p = units(pool, 4)
        ptr = p.ptr
        del p
        with stream:
            units(pool, 4)
        pool.free_all_blocks(stream)
        assert units(pool, 4).ptr == ptr
        with stream:
            units(pool, 4)
        assert sim.calls["reserve"] == 3

    def test_flushing_a_stream_that_was_never_used_does_nothing(self, pool, sim):
        units(pool, 4)
        pool.free_all_blocks(stream=sim.stream())
        assert pool.n_free_blocks() == 1

    def test_flushing_without_a_stream_empties_all_streams(self, pool, sim):
        stream = sim.stream()
        units(pool, 4)
        with stream:
            units(pool, 4)
        pool.free_all_blocks()
        assert pool.total_bytes() == 0
        units(pool, 4)
        with stream:
            units(pool, 4)
        assert sim.calls["reserve"] == 4

    def test_free_all_free_is_a_flush_with_a_deprecation_warning(self, pool, sim):
        units(pool, 4)
        with pytest.warns(DeprecationWarning, match="free_all_blocks"):
            pool.free_all_free()
        assert pool.total_bytes() == 0


class TestBytes:
    def test_used_bytes_follow_allocation_and_release(self, pool):
        p1 = units(pool, 2)
        assert pool.used_bytes() == 2 * UNIT
        p2 = units(pool, 4)
        assert pool.used_bytes() == 6 * UNIT
        del p2
        assert pool.used_bytes() == 2 * UNIT
        del p1
        assert pool.used_bytes() == 0
        p3 = units(pool, 1)
        assert pool.used_bytes() == UNIT
        del p3

    def test_used_bytes_are_those_live_on_all_streams(self, pool, sim):
        units(pool, 4)
        with sim.stream():
            p = units(pool, 2)
        assert pool.used_bytes() == 2 * UNIT
        del p

    def test_free_bytes_follow_allocation_and_release(self, exact):
        p1 = units(exact, 2)
        assert exact.free_bytes() == 0
        p2 = units(exact, 4)
        assert exact.free_bytes() == 0
        del p2
        assert exact.free_bytes() == 4 * UNIT
        del p1
        assert exact.free_bytes() == 6 * UNIT
        p3 = units(exact, 1)
        assert exact.free_bytes() == 5 * UNIT
        del p3

    def test_in_a_slab_free_bytes_are_the_rest_of_it(self, slabs):
        # CuPy: 0, its segments being exact.
        p = units(slabs, 2)
        assert slabs.free_bytes() == SLAB - 2 * UNIT
        del p
        assert slabs.free_bytes() == SLAB

    def test_free_bytes_are_those_cached_on_all_streams(self, exact, sim):
        units(exact, 4)
        with sim.stream():
            p = units(exact, 2)
        assert exact.free_bytes() == 4 * UNIT
        del p

    def test_total_bytes_grow_by_the_requests_that_miss(self, exact):
        p1 = units(exact, 2)
        assert exact.total_bytes() == 2 * UNIT
        p2 = units(exact, 4)
        assert exact.total_bytes() == 6 * UNIT
        del p1, p2
        assert exact.total_bytes() == 6 * UNIT
        p3 = units(exact, 1)
        assert exact.total_bytes() == 6 * UNIT
        del p3

    def test_total_bytes_grow_by_slabs(self, slabs):
        # CuPy: by each request that misses.
        p1, p2 = units(slabs, 2), units(slabs, 4)
        assert slabs.total_bytes() == SLAB
        del p1, p2

    def test_total_bytes_are_those_used_and_those_free(self, pool):
        p1, p2 = units(pool, 2), units(pool, 4)
        del p1
        p3 = units(pool, 1)
        assert pool.used_bytes() + pool.free_bytes() == pool.total_bytes()
        del p2, p3

    def test_total_bytes_are_0_after_all_is_released_and_flushed(self, pool):
        p1, p2 = units(pool, 2), units(pool, 4)
        del p1, p2
        pool.free_all_blocks()
        assert pool.total_bytes() == 0

    def test_total_bytes_are_those_of_all_streams(self, exact, sim):
        units(exact, 4)
        with sim.stream():
            p = units(exact, 2)
        assert exact.total_bytes() == 6 * UNIT
        del p
