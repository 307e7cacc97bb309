"""Full devices, failing drivers, work that is pending: the books stay exact."""

import pytest
from rigging import MIB

import cachepool

cupy = pytest.importorskip("cupy")

from cupy.cuda import Stream, runtime  # noqa: E402

SECOND = 10**9
CAPTURE_GLOBAL = 0


class TestOutOfMemory:
    def test_the_error_says_the_right_figures_and_the_pool_recovers(self, pool, rig):
        rig.leave_room(8 * MIB)
        total = runtime.memGetInfo()[1]
        x = cupy.empty(6 * MIB, "u1")
        with pytest.raises(cupy.cuda.memory.OutOfMemoryError) as caught:
            cupy.empty(4 * MIB, "u1")
        assert caught.value.report == cachepool.MemoryReport(
            asked=4 * MIB,
            device=0,
            allocated=6 * MIB,
            reserved=6 * MIB,
            limit=0,
            largest_free_block=0,
            device_free=2 * MIB,
            device_total=total,
        )
        for figure in ("4,194,304", "6,291,456", "2,097,152", f"{total:,}"):
            assert figure in str(caught.value)
        assert pool.memory_stats()["num_ooms"] == 1
        assert pool.memory_allocated() == 6 * MIB
        y = cupy.empty(2 * MIB, "u1")
        del x, y
        assert cupy.empty(8 * MIB, "u1").data.ptr

    def test_what_another_stream_has_cached_is_given_back_before_giving_up(self, pool, rig):
        rig.leave_room(8 * MIB)
        stream = Stream(non_blocking=True)
        with stream:
            x = cupy.empty(6 * MIB, "u1")
        rig.write_late(stream, x.data, 1, 6 * MIB)
        del x
        start = rig.now()
        y = cupy.empty(4 * MIB, "u1")
        assert rig.now() - start >= SECOND
        assert pool.memory_reserved() == 4 * MIB
        assert pool.memory_stats()["num_alloc_retries"] == 1
        assert pool.memory_stats()["num_ooms"] == 0
        del y

    def test_garbage_in_a_cycle_is_collected_before_giving_up(self, pool, rig):
        rig.leave_room(8 * MIB)
        ring = [cupy.empty(6 * MIB, "u1")]
        ring.append(ring)
        del ring
        y = cupy.empty(8 * MIB, "u1")
        assert pool.memory_allocated() == pool.memory_reserved() == 8 * MIB
        del y

    def test_a_pinned_segment_stays_and_the_rest_of_it_is_still_served(self, pool, rig):
        rig.leave_room(2 * MIB)
        pin = cupy.empty(512, "u1")
        with pytest.raises(cachepool.OutOfMemoryError) as caught:
            cupy.empty(2 * MIB, "u1")
        assert caught.value.report.largest_free_block == 2 * MIB - 512
        x = cupy.empty(MIB, "u1")
        assert pool.memory_reserved() == 2 * MIB
        del pin, x

    def test_a_failed_request_leaves_no_memory_taken_and_no_stream_held(self, pool, rig):
        rig.leave_room(MIB)
        used = rig.used()
        with pytest.raises(cachepool.OutOfMemoryError), Stream(non_blocking=True):
            cupy.empty(3 * MIB, "u1")
        assert (rig.used(), pool.memory_reserved()) == (used, 0)


class TestInjectedFailures:
    SIZES = (3 * MIB, 4096, 5 * MIB, 2 * MIB, 513, 9 * MIB)

    @pytest.mark.parametrize("nth", range(5))
    def test_one_failure_of_the_driver_is_survived(self, pool, rig, nth):
        rig.fail_malloc(nth)
        calls = rig.calls("hipMalloc")
        arrays = [cupy.empty(size, "u1") for size in self.SIZES]
        assert rig.calls("hipMalloc") - calls >= 5 + 1  # five segments and the failure
        assert pool.memory_allocated() == sum(-(-size // 512) * 512 for size in self.SIZES)
        pool.check()
        del arrays
        assert pool.memory_allocated() == 0
        pool.empty_cache()
        assert pool.memory_reserved() == 0
        again = [cupy.empty(size, "u1") for size in self.SIZES]
        assert [array.size for array in again] == list(self.SIZES)
        assert pool.memory_reserved() == 24 * MIB
        pool.check()

    def test_a_failure_with_no_smaller_size_to_try_is_retried(self, pool, rig):
        rig.fail_malloc(0)
        x = cupy.empty(4 * MIB, "u1")
        assert pool.memory_stats()["num_alloc_retries"] == 1
        assert pool.memory_reserved() == 4 * MIB
        del x

    def test_what_the_driver_did_not_give_does_not_use_up_the_limit(self, pool, rig):
        pool.set_limit(size=8 * MIB)
        rig.fail_malloc(0)
        small = cupy.empty(3 * MIB, "u1")
        assert pool.memory_reserved() == 3 * MIB
        rest = cupy.empty(5 * MIB, "u1")
        assert pool.memory_reserved() == 8 * MIB
        del small, rest

    def test_a_call_that_the_driver_refuses_is_the_callers_error(self, pool, rig):
        x = cupy.empty(3 * MIB, "u1")
        del x
        stream = Stream(non_blocking=True)
        runtime.streamBeginCapture(stream.ptr, CAPTURE_GLOBAL)
        with pytest.raises(runtime.CUDARuntimeError, match="capturing"):
            cupy.empty(30 * MIB, "u1")
        with pytest.raises(runtime.CUDARuntimeError):
            runtime.streamEndCapture(stream.ptr)
        pool.check()
        assert (pool.memory_allocated(), pool.memory_reserved()) == (0, 4 * MIB)
        assert cupy.empty(30 * MIB, "u1").data.ptr

    def test_a_cache_that_cannot_be_emptied_now_stays_whole(self, pool, rig):
        x = cupy.empty(3 * MIB, "u1")
        ptr = x.data.ptr
        del x
        stream = Stream(non_blocking=True)
        runtime.streamBeginCapture(stream.ptr, CAPTURE_GLOBAL)
        with pytest.raises(runtime.CUDARuntimeError, match="capturing"):
            pool.empty_cache()
        with pytest.raises(runtime.CUDARuntimeError):
            runtime.streamEndCapture(stream.ptr)
        pool.check()
        assert cupy.empty(3 * MIB, "u1").data.ptr == ptr
        assert pool.empty_cache() == 4 * MIB


class TestPendingWork:
    def test_nothing_goes_back_while_work_on_its_device_is_pending(self, rig):
        pending = []

        def give(ptr, device):
            pending.append(rig.pending())
            runtime.free(ptr)

        backing = cupy.cuda.PythonFunctionAllocator(lambda n, device: runtime.malloc(n), give)
        with cachepool.enable(backing=backing.malloc) as pool:
            stream = Stream(non_blocking=True)
            with stream:
                x = cupy.empty(3 * MIB, "u1")
            rig.write_late(stream, x.data, 1, 3 * MIB)
            del x
            assert (rig.pending() > 0, pending) == (True, [])
            assert pool.empty_cache() == 3 * MIB
        assert pending == [0]

    def test_emptying_waits_for_the_work_of_every_stream(self, pool, rig):
        start = rig.now()
        for _ in range(3):
            stream = Stream(non_blocking=True)
            with stream:
                x = cupy.empty(3 * MIB, "u1")
            rig.write_late(stream, x.data, 1, 3 * MIB)
            del x
        assert rig.now() - start < SECOND
        assert pool.empty_cache() == 12 * MIB
        assert rig.now() - start >= SECOND

    def test_requests_and_releases_never_wait(self, pool, rig):
        stream = Stream(non_blocking=True)
        start = rig.now()
        for _ in range(20):
            with stream:
                x = cupy.empty(3 * MIB, "u1")
            rig.write_late(stream, x.data, 1, 3 * MIB)
            del x
        assert rig.now() - start < SECOND
        assert pool.memory_reserved() == 4 * MIB

    def test_emptying_one_streams_cache_leaves_the_others(self, pool):
        a, b = Stream(non_blocking=True), Stream(non_blocking=True)
        for stream in (a, b):
            with stream:
                cupy.empty(3 * MIB, "u1")
        assert pool.empty_cache(stream=a) == 4 * MIB
        pool.free_all_blocks(stream=a)
        assert pool.memory_reserved() == 4 * MIB
        pool.free_all_blocks(stream=b)
        assert pool.memory_reserved() == 0
