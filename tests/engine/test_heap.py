"""The life of a block: who gets which, the ladder of a miss, limits, streams, the end.

Runs on the form in force.  Upstream is memory at rising addresses that never comes twice.
"""

import gc
import random
from itertools import pairwise

import pytest
from upstreams import MIB, Bench, NoMemoryError, S, T

from cachepool import _form
from cachepool.growth import exact

SLAB = 2 * MIB


# ---- which block ----------------------------------------------------------------------------


def test_block_is_the_request_rounded_up_to_512(bench):
    for nbytes, units in ((1, 1), (512, 1), (513, 2), (MIB + 1, 2049)):
        block = bench.get(nbytes)
        assert (block.n, block.requested, block.ptr % 512) == (units, nbytes, 0)


def test_released_block_is_given_again_to_the_same_size(bench):
    block = bench.get(5000)
    ptr = block.ptr
    bench.heap.release(block)
    assert bench.get(4900).ptr == ptr
    assert bench.upstream.calls["reserve"] == 1


def test_block_of_one_stream_is_not_given_to_another(bench):
    block = bench.get(5000, S)
    ptr = block.ptr
    bench.heap.release(block)
    assert bench.get(5000, T).ptr != ptr
    assert bench.upstream.calls["reserve"] == 2


def test_small_and_large_requests_do_not_share_segments(bench):
    bench.heap.release(bench.get(4 * MIB))
    small = bench.get(MIB)
    large = bench.get(3 * MIB)
    assert small.segment is not large.segment
    assert bench.upstream.log == [("reserve", 4 * MIB), ("reserve", SLAB)]


def test_remainder_is_split_off_and_merged_back(bench):
    first, second = bench.get(MIB), bench.get(MIB // 2)
    segment = first.segment
    assert (second.ptr, segment.tiles, segment.live) == (first.ptr + MIB, 3, 2)
    bench.heap.release(first)
    bench.heap.release(second)
    bench.heap.trim(None, None)
    assert bench.upstream.outstanding == {}


def test_large_neighbours_merge_as_they_come_back(bench):
    bench.heap.release(bench.get(8 * MIB))
    blocks = [bench.get(2 * MIB) for _ in range(4)]
    for i in (1, 3, 0, 2):
        bench.heap.release(blocks[i])
    (segment,) = bench.heap.segments.values()
    assert (segment.tiles, segment.first.n * 512) == (1, 8 * MIB)
    assert bench.get(8 * MIB).ptr == segment.ptr


def test_kept_blocks_are_merged_before_the_device_is_asked(bench):
    blocks = [bench.get(128 * 1024) for _ in range(16)]  # a slab, full
    for block in blocks:
        bench.heap.release(block)
    assert bench.get(MIB).segment.ptr == blocks[0].segment.ptr
    assert bench.upstream.calls["reserve"] == 1


def test_random_life_leaves_sound_books():
    bench, rng, live = Bench(capacity=80 * MIB), random.Random(7), []
    for step in range(3000):
        if live and rng.random() < 0.5:
            bench.heap.release(live.pop(rng.randrange(len(live))))
        else:
            nbytes = rng.choice([1, 4096, 70_000, MIB, 3 * MIB, rng.randint(1, 6 * MIB)])
            try:
                live.append(bench.get(nbytes, rng.choice([S, T])))
            except NoMemoryError:
                bench.heap.release(live.pop(0))
        if step % 25 == 0:
            found = bench.sound()
            assert found.blocks - found.free_blocks == len(live)
            spans = sorted((b.ptr, b.ptr + b.n * 512) for b in live)
            assert all(a[1] <= b[0] for a, b in pairwise(spans))
    bench.finish(live)


# ---- the ladder -----------------------------------------------------------------------------


def test_miss_grows_before_it_trims(bench):
    bench.heap.release(bench.get(4 * MIB))
    bench.get(6 * MIB)
    assert bench.upstream.log == [("reserve", 4 * MIB), ("reserve", 6 * MIB)]
    assert bench.heap.retries == 0


def test_full_device_gets_just_the_request_before_anything_is_trimmed():
    bench = Bench(capacity=5 * MIB)
    bench.heap.release(bench.get(2 * MIB))
    bench.get(2 * MIB + 512, T)
    assert bench.upstream.log == [
        ("reserve", 2 * MIB),
        ("reserve", 4 * MIB),
        ("reserve", 2 * MIB + 512),
    ]


def test_full_device_is_trimmed_after_a_synchronisation_and_asked_again():
    bench = Bench(capacity=6 * MIB)
    bench.heap.release(bench.get(4 * MIB, S))
    block = bench.get(6 * MIB, T)
    assert [call for call, _ in bench.upstream.log] == [
        "reserve", "reserve", "synchronize", "release", "reserve",
    ]  # fmt: skip
    assert (bench.heap.retries, bench.heap.ooms, bench.heap.syncs) == (1, 0, 1)
    bench.finish([block])


def test_garbage_is_collected_before_giving_up():
    bench = Bench(capacity=4 * MIB)

    class Holder:
        pass

    holder = Holder()
    holder.me, holder.lease = holder, _form.lease(bench.heap, 4 * MIB, S)
    del holder
    gc.disable()
    try:
        block = bench.get(4 * MIB, S)
    finally:
        gc.enable()
    assert bench.upstream.calls["release"] == 0  # served from what the collection gave back
    assert (len(bench.upstream.outstanding), bench.heap.ooms) == (1, 0)
    bench.finish([block])


def test_garbage_of_another_stream_is_trimmed_after_the_collection():
    bench = Bench(capacity=4 * MIB)

    class Holder:
        pass

    holder = Holder()
    holder.me, holder.lease = holder, _form.lease(bench.heap, 4 * MIB, S)
    del holder
    gc.disable()
    try:
        block = bench.get(3 * MIB, T)
    finally:
        gc.enable()
    assert bench.upstream.calls["release"] == 1
    bench.finish([block])


def test_giving_up_leaves_live_blocks_and_their_figures_as_they_were():
    bench = Bench(capacity=8 * MIB)
    live = [bench.get(3 * MIB), bench.get(100, T)]
    before = [bench.read(n) for n in ("allocation", "allocated_bytes", "requested_bytes")]
    with pytest.raises(NoMemoryError):
        bench.get(7 * MIB)
    assert [bench.read(n) for n in ("allocation", "allocated_bytes", "requested_bytes")] == before
    assert (bench.heap.retries, bench.heap.ooms, bench.heap.rejections) == (1, 1, 0)
    bench.sound()
    bench.heap.release(live.pop(0))
    live.append(bench.get(5 * MIB))
    bench.finish(live)


def test_error_that_is_not_a_full_device_comes_out_at_once(bench):
    def broken():
        raise OSError("the driver is gone")

    bench.upstream.before["reserve"] = broken
    with pytest.raises(OSError, match="the driver is gone"):
        bench.get(512)
    assert (bench.upstream.calls["reserve"], bench.heap.ooms, bench.heap.retries) == (1, 0, 0)
    del bench.upstream.before["reserve"]
    bench.finish([bench.get(512)])


def test_error_of_the_wait_leaves_every_segment(bench):
    bench.heap.release(bench.get(4 * MIB))

    def broken():
        raise OSError("lost")

    bench.upstream.before["synchronize"] = broken
    with pytest.raises(OSError, match="lost"):
        bench.heap.trim(None, None)
    bench.sound()
    assert bench.read("reserved_bytes") == 4 * MIB
    assert bench.get(4 * MIB).ptr in bench.upstream.outstanding


def test_refused_release_is_booked_again_and_named(bench):
    blocks = [bench.get(4 * MIB, key) for key in (S, T)]
    for block in blocks:
        bench.heap.release(block)
    refusals = [OSError("busy")]

    def once():
        if refusals:
            raise refusals.pop()

    bench.upstream.before["release"] = once
    faults = []
    assert bench.heap.trim(None, faults) == 4 * MIB
    assert len(faults) == 1
    assert "busy" in faults[0]
    assert bench.read("reserved_bytes") == 4 * MIB
    bench.finish([])


def test_trim_gives_every_free_segment_back_and_says_how_much(bench):
    live = bench.get(512)
    for block in [bench.get(nbytes, key) for nbytes in (3 * MIB, 5 * MIB) for key in (S, T)]:
        bench.heap.release(block)
    assert bench.heap.trim(None, None) == (4 + 4 + 6 + 6) * MIB
    assert list(bench.upstream.outstanding) == [live.segment.ptr]
    bench.finish([live])


def test_trim_of_one_stream_leaves_the_others():
    bench = Bench()
    for key in (S, T):
        bench.heap.release(bench.get(100, key))
    assert bench.heap.trim(bench.heap.by_key[S], None) == SLAB
    assert bench.read("reserved_bytes") == SLAB
    bench.get(100, T)
    assert bench.upstream.calls["reserve"] == 2


# ---- limit ----------------------------------------------------------------------------------


def test_request_above_the_limit_is_rejected_without_a_device_call():
    bench = Bench(limit=4 * MIB)
    cached = bench.get(512)
    bench.heap.release(cached)
    with pytest.raises(NoMemoryError):
        bench.get(4 * MIB + 1)
    assert (bench.heap.rejections, bench.heap.ooms, bench.heap.retries) == (1, 1, 0)
    assert bench.upstream.log == [("reserve", SLAB)]


def test_reserved_memory_never_passes_the_limit():
    bench = Bench(limit=5 * MIB + 512)
    live = [bench.get(2 * MIB), bench.get(3 * MIB + 512)]
    assert bench.read("reserved_bytes") == 5 * MIB + 512
    with pytest.raises(NoMemoryError):
        bench.get(1)
    bench.finish(live)


def test_limit_leaves_room_for_just_the_request():
    bench = Bench(limit=SLAB - 512)
    block = bench.get(512)
    assert bench.upstream.log == [("reserve", 512)]
    bench.finish([block])


def test_limit_makes_another_streams_cache_go():
    bench = Bench(limit=4 * MIB)
    bench.heap.release(bench.get(3 * MIB, S))
    block = bench.get(3 * MIB, T)
    assert bench.upstream.calls["release"] == 1
    bench.finish([block])


def test_lowered_limit_keeps_what_is_held_and_serves_from_it():
    bench = Bench()
    block = bench.get(8 * MIB)
    bench.heap.limit = 4 * MIB
    bench.heap.release(block)
    assert bench.read("reserved_bytes") == 8 * MIB
    assert bench.get(4 * MIB).ptr == block.ptr


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt, MemoryError])
def test_failed_growth_takes_its_promise_back(error):
    bench = Bench(limit=4 * MIB)

    def broken():
        raise error("no")

    bench.upstream.before["reserve"] = broken
    for _ in range(3):  # three promises would fill the limit
        with pytest.raises(error):
            bench.get(2 * MIB)
        assert bench.heap.promised == 0
    del bench.upstream.before["reserve"]
    bench.finish([bench.get(2 * MIB), bench.get(2 * MIB)])


def test_full_device_takes_the_promises_back():
    bench = Bench(capacity=MIB, limit=64 * MIB)
    with pytest.raises(NoMemoryError):
        bench.get(2 * MIB)
    assert bench.heap.promised == 0
    bench.finish([bench.get(512)])


def test_request_in_the_middle_of_growth_cannot_take_what_is_promised():
    bench = Bench(limit=4 * MIB)
    inner = []

    def middle():
        bench.upstream.before.clear()
        try:
            inner.append(bench.get(3 * MIB, T))
        except NoMemoryError:
            inner.append(None)

    bench.upstream.before["reserve"] = middle
    block = bench.get(3 * MIB, S)
    assert inner == [None]
    assert bench.read("reserved_bytes") <= 4 * MIB
    bench.finish([block])


# ---- streams --------------------------------------------------------------------------------


class Owner:
    pass


def test_cache_keeps_its_streams_object_alive_while_it_holds_memory(bench):
    bench.upstream.owners[S] = Owner()
    block = bench.get(512, S)
    owner = bench.heap.by_key[S].owner
    assert owner is bench.upstream.owners.pop(S)
    del owner
    bench.heap.release(block)
    bench.get(512, T)
    assert S in bench.heap.by_key
    bench.heap.trim(None, None)
    assert S not in bench.heap.by_key


def test_stream_that_others_hold_is_not_forgotten(bench):
    owner = bench.upstream.owners[S] = Owner()
    bench.heap.release(bench.get(512, S))
    bench.heap.release(bench.get(512, T))
    bench.heap.trim(None, None)
    assert bench.heap.by_key[S].owner is owner


def test_stream_forgotten_while_it_grows_is_known_again(bench):
    def middle():
        bench.upstream.before.clear()
        bench.heap.release(bench.get(512, T))
        bench.heap.trim(None, None)

    bench.upstream.before["reserve"] = middle
    block = bench.get(3 * MIB, S)
    bench.sound()
    assert bench.heap.by_key[S].read()[1][0] == block.n * 512
    bench.finish([block])


# ---- the end --------------------------------------------------------------------------------


def test_heap_that_nobody_holds_gives_everything_back():
    bench = Bench()
    upstream = bench.upstream
    block = bench.get(512)
    bench.heap.release(block)
    bench.heap.release(bench.get(3 * MIB, T))
    del bench, block
    gc.collect()
    assert upstream.outstanding == {}


def test_exact_growth_takes_just_the_request():
    bench = Bench(growth=exact)
    blocks = [bench.get(n) for n in (1, 513, MIB + 1)]
    assert bench.upstream.log == [("reserve", 512), ("reserve", 1024), ("reserve", MIB + 512)]
    bench.finish(blocks)
