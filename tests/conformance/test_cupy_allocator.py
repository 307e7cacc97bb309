"""CuPy's TestAllocator and TestAllocatorDisabled: the hook, its scopes, threads, streams.

No kernel runs without a driver: ``cupy.empty`` stands where CuPy's tests fill an array.
"""

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest
from conformity import MIB, UNIT, Rising, cupy, in_a_thread, memory

from cachepool import CachePool, OutOfMemoryError, SimDevice

ADDRESS_SPACE = 2**47


@pytest.fixture
def other():
    """Return a second pool, on a machine of its own."""
    return CachePool("sim")


@pytest.fixture
def third():
    return CachePool("sim")


class TestInstalling:
    def test_an_array_comes_from_the_pool_that_was_set(self, installed):
        assert installed.used_bytes() == 0
        arr = cupy.empty(128, dtype=cupy.int64)
        assert (arr.data.mem.size, installed.used_bytes()) == (1024, 1024)
        del arr

    def test_the_allocator_that_cupy_returns_equals_the_pools(self, installed):
        assert memory.get_allocator() == installed.malloc

    def test_the_allocators_of_two_pools_differ(self, exact, other):
        assert exact.malloc != other.malloc

    def test_using_allocator_restores(self, installed, other):
        with cupy.cuda.using_allocator(other.malloc):
            assert memory.get_allocator() == other.malloc
        assert memory.get_allocator() == installed.malloc

    def test_using_allocator_nests(self, installed, other, third):
        with cupy.cuda.using_allocator(other.malloc):
            with cupy.cuda.using_allocator(third.malloc):
                assert memory.get_allocator() == third.malloc
            assert memory.get_allocator() == other.malloc
        assert memory.get_allocator() == installed.malloc

    def test_arrays_in_nested_contexts_come_from_the_innermost(self, installed, other):
        with cupy.cuda.using_allocator(other.malloc):
            inner = cupy.empty(100, "u1")
        outer = cupy.empty(1000, "u1")
        assert (other.used_bytes(), installed.used_bytes()) == (512, 1024)
        del inner, outer

    def test_set_allocator_inside_using_allocator_is_a_value_error(self, installed, other, third):
        with (
            cupy.cuda.using_allocator(other.malloc),
            pytest.raises(ValueError, match="context manager"),
        ):
            memory.set_allocator(third.malloc)
        assert memory.get_allocator() == installed.malloc

    @pytest.mark.parametrize("nothing", [(), (None,)], ids=["no argument", "None"])
    def test_after_set_allocator_none_the_pool_is_not_asked(self, installed, nothing):
        memory.set_allocator(*nothing)
        with suppress(cupy.cuda.runtime.CUDARuntimeError):  # without a driver, no cudaMalloc
            arr = cupy.empty(128, dtype=cupy.int64)
            del arr
        assert installed.used_bytes() == installed.total_bytes() == 0

    def test_an_array_outlives_the_context_that_it_came_from(self, pool):
        with cupy.cuda.using_allocator(pool.malloc):
            arr = cupy.empty(128, dtype=cupy.int64)
        assert pool.used_bytes() == arr.data.mem.size == 1024
        del arr
        assert pool.used_bytes() == 0

    def test_an_array_keeps_its_dropped_pools_memory_till_it_dies(self, sim):
        with cupy.cuda.using_allocator(CachePool(sim).malloc):
            arr = cupy.empty(3 * MIB, "u1")
            del arr
            arr = cupy.empty(100, "u1")
        held = sim.outstanding()
        assert any(start <= arr.data.ptr < start + size for start, size in held.items())
        del arr
        gc.collect()
        assert sim.reserved() == 0


class TestThreads:
    def test_a_threads_own_allocator_and_the_global_one_work_at_a_time(self, installed, other):
        barrier = threading.Barrier(2, timeout=60)
        seen = {}

        def body():
            with cupy.cuda.using_allocator(other.malloc):
                seen["own"] = memory.get_allocator() == other.malloc
                barrier.wait()
                arr = cupy.empty(128, dtype=cupy.int64)
                barrier.wait()
                seen["used"] = other.used_bytes() == arr.data.mem.size
                barrier.wait()
            seen["after"] = memory.get_allocator() == installed.malloc

        with ThreadPoolExecutor(1) as executor:
            done = executor.submit(body)
            barrier.wait()
            assert memory.get_allocator() == installed.malloc
            arr = cupy.empty(256, dtype=cupy.int64)
            barrier.wait()
            assert installed.used_bytes() == arr.data.mem.size == 2048
            barrier.wait()
            done.result(timeout=60)
        assert seen == {"own": True, "used": True, "after": True}
        del arr

    def test_a_new_thread_starts_with_the_global_allocator(self, installed, other):
        with cupy.cuda.using_allocator(other.malloc):
            assert in_a_thread(memory.get_allocator) == installed.malloc

    def test_the_thread_whose_last_reference_it_is_releases(self, installed):
        bag = [cupy.empty(100, "u1")]
        in_a_thread(bag.clear)
        assert installed.used_bytes() == 0


class TestReuseBetweenThreads:
    def use(self, pool, stream):
        """Allocate and release on a stream; return the address."""
        with cupy.cuda.using_allocator(pool.malloc), stream:
            return cupy.empty(16, dtype=cupy.int64).data.ptr

    def test_on_the_default_stream_another_thread_gets_what_this_one_released(self, pool, sim):
        stream = sim.default_stream()
        ptr = self.use(pool, stream)
        assert in_a_thread(self.use, pool, stream) == ptr

    def test_on_one_stream_another_thread_gets_what_this_one_released(self, pool, sim):
        stream = sim.stream()
        ptr = self.use(pool, stream)
        assert in_a_thread(self.use, pool, stream) == ptr

    def test_on_another_stream_another_thread_gets_other_memory(self, pool, sim):
        # As CuPy, whose streams never exchange memory.
        one, two = sim.stream(), sim.stream()
        ptr = self.use(pool, one)
        assert in_a_thread(self.use, pool, two) != ptr

    def test_on_their_per_thread_default_streams_threads_get_other_memory(self, pool, sim):
        ptr = self.use(pool, sim.per_thread_stream)
        assert in_a_thread(lambda: self.use(pool, sim.per_thread_stream)) != ptr

    def test_a_thread_on_its_own_stream_gets_no_dead_threads_memory(self, pool, sim):
        # CuPy names a thread's stream by the id of an object, which may recur.
        ptrs = {in_a_thread(lambda: self.use(pool, sim.per_thread_stream)) for _ in range(20)}
        assert len(ptrs) == 20


class TestWhatCupyPassesOn:
    @pytest.mark.parametrize("size", [np.int64(7), np.uint8(7), np.int32(7), 7])
    def test_an_integer_of_numpy_is_a_size(self, installed, size):
        p = cupy.cuda.alloc(size)
        assert (p.mem.size, installed.used_bytes()) == (UNIT, UNIT)
        del p

    @pytest.mark.parametrize("size", [-1, -512, np.int64(-1), -(2**70)])
    def test_a_negative_size_is_a_value_error(self, installed, size):
        with pytest.raises(ValueError, match="negative"):
            cupy.cuda.alloc(size)
        assert installed.total_bytes() == 0

    @pytest.mark.parametrize("size", [1.0, True, False, "7", None, np.float64(7), np.bool_(True)])
    def test_what_is_no_integer_is_a_type_error(self, installed, size):
        with pytest.raises(TypeError, match="whole number of bytes"):
            cupy.cuda.alloc(size)
        assert installed.total_bytes() == 0

    @pytest.mark.parametrize("size", [2**46, ADDRESS_SPACE, 2**62, 2**63, 2**64, 2**70])
    def test_more_than_there_can_be_is_out_of_memory(self, installed, sim, size):
        with pytest.raises(memory.OutOfMemoryError):
            cupy.cuda.alloc(size)
        assert (installed.total_bytes(), sim.reserved()) == (0, 0)

    def test_a_shape_of_2_to_the_62_bytes_is_out_of_memory(self, installed):
        with pytest.raises(OutOfMemoryError):
            cupy.empty(2**62, "i1")
        assert installed.total_bytes() == 0

    def test_a_shape_whose_bytes_wrap_to_0_gets_the_null_pointer_that_cupy_asks_for(
        self, installed
    ):
        arr = cupy.empty((2**31, 2**31), "f8")
        assert (arr.data.ptr, installed.used_bytes()) == (0, 0)

    def test_a_shape_whose_bytes_wrap_gets_the_bytes_that_cupy_asks_for(self, installed):
        arr = cupy.empty((2**55 + 1, 512), "i1")  # 2**64 + 512
        assert (arr.data.mem.size, installed.used_bytes()) == (512, 512)
        del arr

    def test_a_negative_dimension_is_cupys_own_error(self, installed):
        with pytest.raises(ValueError, match=r"[Nn]egative"):
            cupy.empty(-1)
        assert installed.total_bytes() == 0


class TestErrorsPropagate:
    def test_an_error_of_the_device_comes_out_of_empty_as_it_is(self, installed, sim):
        error = RuntimeError("the driver has had enough")
        sim.fail("reserve", error=error)
        with pytest.raises(RuntimeError) as caught:
            cupy.empty(100)
        assert caught.value is error
        assert installed.total_bytes() == 0

    def test_after_an_error_the_next_request_is_served(self, installed, sim):
        sim.fail("reserve", error=RuntimeError)
        with pytest.raises(RuntimeError):
            cupy.empty(100)
        arr = cupy.empty(100, "u1")
        assert installed.used_bytes() == 512
        del arr

    def test_a_failed_array_leaves_no_trace_under_a_limit(self, installed, sim):
        installed.set_limit(size=UNIT)
        sim.fail("reserve", error=RuntimeError)
        with pytest.raises(RuntimeError):
            cupy.empty(1)
        arr = cupy.empty(1, "u1")
        assert installed.total_bytes() == UNIT
        del arr

    def test_out_of_memory_comes_out_of_empty(self, installed):
        with pytest.raises(memory.OutOfMemoryError) as caught:
            cupy.empty(2**30 + 1, "u1")
        assert caught.type is OutOfMemoryError


class TestABackingOfOnesOwn:
    def test_memory_that_the_simulated_device_does_not_know_serves(self):
        """A callable's memory is its own affair: CuPy's mock hands out invented addresses."""
        pool = CachePool(
            SimDevice(),
            backing=lambda n: memory.MemoryPointer(
                memory.UnownedMemory(1 << 40, n, None, device_id=0), 0
            ),
        )
        p = pool.malloc(100)
        assert (p.ptr, p.mem.size) == (1 << 40, 512)
        del p
        pool.check()

    def backing(self, sim, room, status):
        """Return an upstream that raises CuPy's runtime error when `room` bytes are taken."""
        rising = Rising(sim)

        def take(nbytes):
            if rising.live + nbytes > room:
                raise cupy.cuda.runtime.CUDARuntimeError(status)
            return rising(nbytes)

        return take

    def test_its_runtime_error_of_status_2_makes_the_pool_give_back_and_retry(self, sim):
        pool = CachePool(sim, backing=self.backing(sim, 8 * UNIT, 2))
        pool.malloc(6 * UNIT)
        p = pool.malloc(8 * UNIT)
        assert pool.used_bytes() == pool.total_bytes() == 8 * UNIT
        del p

    def test_its_runtime_error_of_status_2_ends_as_out_of_memory(self, sim):
        pool = CachePool(sim, backing=self.backing(sim, 8 * UNIT, 2))
        with pytest.raises(memory.OutOfMemoryError):
            pool.malloc(9 * UNIT)
        assert pool.total_bytes() == 0

    def test_its_runtime_error_of_another_status_propagates_and_nothing_is_given_back(self, sim):
        pool = CachePool(sim, backing=self.backing(sim, 8 * UNIT, 4))
        pool.malloc(6 * UNIT)
        with pytest.raises(cupy.cuda.runtime.CUDARuntimeError) as caught:
            pool.malloc(8 * UNIT)
        assert (caught.value.status, pool.total_bytes()) == (4, 6 * UNIT)
