"""Whose memory is whose: no stream gets what another may still write to."""

import gc
import random
import weakref
from collections import defaultdict

import pytest
from rigging import MIB, peek

import cachepool

cupy = pytest.importorskip("cupy")

from cupy.cuda import Device, Stream, runtime  # noqa: E402

SIZE = 4096


class Careless:
    """Hands released memory to whoever asks next: what a pool must not do."""

    def __init__(self):
        self.free = defaultdict(list)
        self.sizes = {}
        self.malloc = cupy.cuda.PythonFunctionAllocator(self.take, self.give).malloc

    def take(self, size, device):
        if self.free[size]:
            return self.free[size].pop()
        ptr = runtime.malloc(size)
        self.sizes[ptr] = size
        return ptr

    def give(self, ptr, device):
        self.free[self.sizes[ptr]].append(ptr)

    def close(self):
        for ptr in self.sizes:
            runtime.free(ptr)


def spoiled_by_late_writes(rig, seed):
    """Run a random program on four streams; return the arrays that lost what was written."""
    rng = random.Random(seed)
    streams = [Stream(non_blocking=True) for _ in range(4)]
    live, spoiled = [], []
    for step in range(400):
        stream, size = rng.choice(streams), rng.choice((512, 4096, 2 * MIB))
        with stream:
            array = cupy.empty(size, "u1")
            if rng.random() < 0.3:
                rig.work(stream, rng.randrange(200_000))
            array.data.memset_async(step % 251, size)
        live.append((stream, array, step % 251))
        if len(live) > 6:
            owner, array, value = live.pop(rng.randrange(len(live)))
            if rng.random() < 0.5:  # else it is released with its write still to come
                owner.synchronize()
                ends = peek(array.data.ptr, 512) + peek(array.data.ptr + array.size - 512, 512)
                if set(ends) != {value}:
                    spoiled.append(f"step {step} of seed {seed}: {array.size} bytes")
    runtime.deviceSynchronize()
    return spoiled


def on_a_recycled_handle(rig, prepare=lambda stream: None):
    """Write late on a stream that dies, then write on a new one, if possible of its handle.

    Returns whether the driver gave the handle out again, and what the new stream finds.
    """
    old = Stream(non_blocking=True)
    handle = old.ptr
    prepare(old)
    with old:
        first = cupy.empty(SIZE, "u1")
    rig.write_late(old, first.data, 1, SIZE)
    del first
    fillers = [Stream(non_blocking=True) for _ in range(20)]
    del fillers  # the C library keeps what is freed first; what comes next, calloc gets
    del old
    streams = [Stream(non_blocking=True)]
    while streams[-1].ptr != handle and len(streams) < 50:
        streams.append(Stream(non_blocking=True))
    new = streams[-1]
    with new:
        second = cupy.empty(SIZE, "u1")
        second.data.memset_async(2, SIZE)
    new.synchronize()
    rig.advance(2 * 10**9)
    return new.ptr == handle, peek(second.data.ptr)


class TestControl:
    """What the rig must be able to show, or the tests below prove nothing."""

    def test_memory_given_to_another_stream_too_early_is_overwritten(self, rig):
        a, b = Stream(non_blocking=True), Stream(non_blocking=True)
        ptr = runtime.malloc(SIZE)
        rig.work(a, 10**9)
        runtime.memsetAsync(ptr, 1, SIZE, a.ptr)
        runtime.memsetAsync(ptr, 2, SIZE, b.ptr)
        b.synchronize()
        early = peek(ptr)
        a.synchronize()
        assert (early, peek(ptr)) == (b"\2", b"\1")
        runtime.free(ptr)

    def test_the_random_program_catches_an_allocator_that_ignores_streams(self, rig):
        careless = Careless()
        with cupy.cuda.using_allocator(careless.malloc):
            assert spoiled_by_late_writes(rig, seed=1)
        careless.close()

    def test_cupys_own_pool_is_caught_by_a_recycled_handle(self, rig):
        peer = cupy.cuda.MemoryPool()
        with cupy.cuda.using_allocator(peer.malloc):
            recycled, found = on_a_recycled_handle(rig)
        peer.free_all_blocks()
        if not recycled:
            pytest.skip("the C library did not give the handle out again: nothing to see")
        assert found == b"\1"


class TestIsolation:
    @pytest.mark.parametrize("seed", range(4))
    def test_no_array_loses_its_content_to_a_late_write(self, pool, rig, seed):
        assert spoiled_by_late_writes(rig, seed) == []

    @pytest.mark.parametrize("size", [512, MIB, 3 * MIB])
    def test_a_released_block_goes_to_its_own_stream_and_to_no_other(self, pool, size):
        streams = [
            Stream.null,
            Stream.ptds,
            Stream(),
            Stream(non_blocking=True),
            Stream(non_blocking=True, priority=-1),
        ]
        released = []
        for stream in streams:
            with stream:
                released.append(cupy.empty(size, "u1").data.ptr)
        again = []
        for stream in streams:
            with stream:
                again.append(cupy.empty(size, "u1").data.ptr)
        assert again == released
        assert len(set(released)) == len(streams)

    def test_a_block_released_under_another_stream_returns_to_the_one_it_was_made_for(self, pool):
        a, b = Stream(non_blocking=True), Stream(non_blocking=True)
        with a:
            x = cupy.empty(SIZE, "u1")
        ptr = x.data.ptr
        with b:
            del x
            y = cupy.empty(SIZE, "u1")
        with a:
            z = cupy.empty(SIZE, "u1")
        assert z.data.ptr == ptr != y.data.ptr

    def test_the_legacy_handle_is_the_null_stream(self, pool):
        assert pool.allocate(SIZE, stream=1).stream == pool.allocate(SIZE, stream=0).stream

    def test_a_stream_named_explicitly_shares_its_cache_with_the_current_one(self, pool):
        stream = Stream(non_blocking=True)
        with stream:
            ptr = cupy.empty(SIZE, "u1").data.ptr
        assert pool.allocate(SIZE, stream=stream).ptr == ptr
        assert pool.allocate(SIZE, stream=Stream.null).ptr != ptr


class TestLifeOfStreams:
    """A driver gives the handle of a dead stream to the next one."""

    def test_a_stream_lives_while_memory_is_cached_for_it(self, pool, rig):
        assert on_a_recycled_handle(rig) == (False, b"\2")

    def test_a_stream_lives_while_it_is_current_though_nobody_holds_it(self, pool):
        Stream(non_blocking=True).use()
        current = cupy.cuda.get_current_stream()
        x = cupy.empty(SIZE, "u1")
        assert current.ptr in pool.memory_snapshot()[0].values()
        Stream.null.use()
        del x

    def test_dead_streams_are_let_go_with_the_last_memory_cached_for_them(self, pool, rig):
        before = rig.live_streams()
        dead = []
        for _ in range(5):
            stream = Stream(non_blocking=True)
            with stream:
                cupy.empty(SIZE, "u1")
            dead.append(weakref.ref(stream))
        del stream
        cupy.empty(SIZE, "u1")
        assert rig.live_streams() == before + 5
        pool.empty_cache()
        assert [ref() for ref in dead] == [None] * 5
        assert rig.live_streams() == before

    def test_the_stream_used_last_is_let_go_as_well(self, pool, rig):
        before = rig.live_streams()
        stream = Stream(non_blocking=True)
        with stream:
            cupy.empty(SIZE, "u1")
        del stream
        pool.empty_cache()
        assert rig.live_streams() == before

    def test_a_stream_first_named_by_its_handle_lives_while_it_has_a_cache(self, pool, rig):
        def by_handle(stream):
            pool.allocate(SIZE, stream=stream.ptr).release()

        assert on_a_recycled_handle(rig, by_handle) == (False, b"\2")

    def test_a_stream_first_met_from_another_device_lives_while_it_has_a_cache(self, pool, rig):
        def from_device_0(stream):
            with stream, Device(0):
                pool.allocate(SIZE, device=1).release()

        with Device(1):
            assert on_a_recycled_handle(rig, from_device_0) == (False, b"\2")

    def test_a_stream_known_from_outside_lives_while_it_has_a_cache(self, pool, rig):
        def from_outside(stream):
            with Stream.from_external(stream):
                cupy.empty(SIZE, "u1")

        assert on_a_recycled_handle(rig, from_outside) == (False, b"\2")

    def test_a_pool_that_is_closed_lets_all_streams_go(self, rig):
        before = rig.live_streams()
        with cachepool.enable() as pool:
            with Stream(non_blocking=True):
                cupy.empty(SIZE, "u1")
            pool.close()
        del pool
        gc.collect()
        assert rig.live_streams() == before
