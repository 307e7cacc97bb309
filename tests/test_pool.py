"""What a pool does at the ends of its life, and what holds what alive."""

from __future__ import annotations

import gc
import threading
import weakref

import cupy
import pytest

from cachepool import CachePool, SimDevice

MIB = 1 << 20


@pytest.fixture
def without_collections():
    """Only reference counts free anything."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class TestDropping:
    def test_a_dropped_pool_gives_its_cache_back_at_once(self, without_collections):
        sim = SimDevice()
        pool = CachePool(sim)
        pool.malloc(3 * MIB)
        assert sim.reserved() == 4 * MIB
        del pool
        assert sim.reserved() == 0

    def test_with_live_arrays_it_waits_for_the_last_of_them(self, without_collections):
        sim = SimDevice()
        pool = CachePool(sim)
        with cupy.cuda.using_allocator(pool.malloc):
            first, second = cupy.empty(MIB, "u1"), cupy.empty(3 * MIB, "u1")
        del pool
        del first
        assert sim.reserved() == 6 * MIB
        del second
        assert sim.reserved() == 0

    def test_the_bound_method_keeps_the_pool_alive(self, without_collections):
        pool = CachePool("sim")
        alive = weakref.ref(pool)
        malloc = pool.malloc
        del pool
        assert malloc(100).mem.size == 512
        assert alive() is not None
        del malloc
        assert alive() is None

    def test_a_dropped_pool_waits_for_work_before_it_gives_back(self):
        sim = SimDevice()
        pool = CachePool(sim)
        block = pool.allocate(3 * MIB)
        sim.default_stream().launch(1.0, writes=block)
        block.release()
        del block, pool
        assert sim.reserved() == 0
        assert sim.races == []
        assert sim.now >= 1.0


class TestClosing:
    def test_it_gives_back_what_no_array_holds_and_refuses_requests(self):
        sim = SimDevice()
        pool = CachePool(sim)
        array = pool.malloc(100)
        pool.malloc(3 * MIB)
        pool.close()
        assert sim.reserved() == 2 * MIB
        for request in (lambda: pool.malloc(100), lambda: pool.allocate(100)):
            with pytest.raises(RuntimeError, match="closed"):
                request()
        assert "closed" in repr(pool)
        del array
        assert sim.reserved() == 0

    def test_twice_is_once(self):
        pool = CachePool("sim")
        pool.close()
        pool.close()


class TestRepr:
    def test_it_says_device_and_bytes(self):
        pool = CachePool("sim")
        block = pool.allocate(100)
        assert repr(pool) == "<CachePool on sim: 512 bytes allocated, 2,097,152 reserved>"
        block.release()


class TestAllocate:
    def test_an_allocation_says_what_it_is(self):
        sim = SimDevice(devices=2)
        pool, stream = CachePool(sim), sim.stream(device=1)
        block = pool.allocate(700, stream=stream, device=1)
        assert (block.size, block.requested, block.device, block.stream) == (
            1024,
            700,
            1,
            stream.handle,
        )
        assert block.ptr in sim.outstanding(1)
        block.release()
        assert block.ptr == 0
        block.release()
        assert pool.memory_allocated(1) == 0

    def test_it_dies_with_its_last_reference(self, without_collections):
        pool = CachePool("sim")
        block = pool.allocate(700)
        del block
        assert pool.memory_allocated() == 0

    def test_over_a_callable_backing_a_bare_handle_of_another_stream_is_refused(self):
        sim = SimDevice()
        pool = CachePool(sim, backing=CachePool(sim).malloc)
        stream = sim.stream()
        with pytest.raises(ValueError, match="current"):
            pool.allocate(100, stream=stream.handle)
        assert pool.allocate(100, stream=stream).stream == stream.handle


class TestCheck:
    def test_beside_a_thread_that_grows_and_trims_it_finds_nothing(self):
        pool, stop = CachePool("sim"), threading.Event()

        def work():
            while not stop.is_set():
                pool.allocate(5 * MIB).release()
                pool.empty_cache()

        thread = threading.Thread(target=work)
        thread.start()
        try:
            for _ in range(200):
                pool.check()
        finally:
            stop.set()
            thread.join()

    def test_a_race_between_the_programs_own_kernels_is_no_breach(self):
        sim = SimDevice(on_race="record")
        pool = CachePool(sim)
        block = pool.allocate(MIB)
        sim.stream(blocking=False).launch(1.0, writes=block)
        sim.stream(blocking=False).launch(1.0, writes=block)
        assert len(sim.races) == 1
        pool.check()
        sim.synchronize()
        block.release()


class TestInterrupts:
    def test_an_exception_inside_a_reading_leaves_the_books_to_others(self):
        pool = CachePool("sim")
        heap = pool.heap(0)

        def interrupted():
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            heap.reading(interrupted)
        assert not heap.busy
        pool.allocate(100).release()
        assert pool.memory_stats()["num_device_alloc"] == 1
