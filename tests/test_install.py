"""enable() and disable(): a stack over CuPy's allocator, and what each restores."""

from __future__ import annotations

import threading

import cupy
import pytest

import cachepool
from cachepool import CachePool, SimDevice


@pytest.fixture
def before():
    """CuPy's allocator and default pool before the test, and that they are back after it."""
    found = (cupy.cuda.get_allocator(), cupy.get_default_memory_pool())
    yield found
    assert (cupy.cuda.get_allocator(), cupy.get_default_memory_pool()) == found


class TestEnable:
    def test_it_returns_a_pool_that_serves_every_array(self, before):
        with cachepool.enable(device="sim") as pool:
            array = cupy.empty(1000, "f8")
            assert isinstance(pool, CachePool)
            assert array.data.mem.size == 8192 == pool.memory_allocated()

    def test_it_serves_threads_started_before_and_after(self, before):
        go, seen = threading.Event(), []

        def work():
            go.wait()
            array = cupy.empty(512, "u1")
            seen.append(array.data.ptr)
            del array

        early = threading.Thread(target=work)
        early.start()
        with cachepool.enable(device="sim") as pool:
            late = threading.Thread(target=work)
            late.start()
            go.set()
            early.join()
            late.join()
            assert len(seen) == 2
            assert pool.memory_stats()["allocation.all.allocated"] == 2

    def test_cupys_default_pool_is_the_pool_meanwhile(self, before):
        with cachepool.enable(device="sim") as pool:
            array = cupy.empty(3 << 20, "u1")
            default = cupy.get_default_memory_pool()
            assert default is pool
            assert default.used_bytes() == 3 << 20
            del array
            default.free_all_blocks()
            assert pool.memory_reserved() == 0

    def test_a_pool_made_before_is_put_in_place(self, before):
        pool = CachePool("sim")
        assert cachepool.enable(pool) is pool
        assert cachepool.get_pool() is pool
        cachepool.disable()

    def test_a_pool_and_options_together_are_refused_and_nothing_changes(self, before):
        with pytest.raises(TypeError, match="not both"):
            cachepool.enable(CachePool("sim"), limit="1GiB")
        with pytest.raises(TypeError, match="CachePool"):
            cachepool.enable(5)
        assert cachepool.get_pool() is None

    def test_a_wrong_option_leaves_cupy_as_it_was(self, before):
        with pytest.raises(cachepool.OptionError):
            cachepool.enable(device="sim", limt="1GiB")
        assert cachepool.get_pool() is None

    def test_inside_using_allocator_it_is_cupys_own_value_error(self, before):
        with (
            cupy.cuda.using_allocator(CachePool("sim").malloc),
            pytest.raises(ValueError, match="allocator"),
        ):
            cachepool.enable(device="sim")
        assert cachepool.get_pool() is None

    def test_auto_takes_the_simulated_device_without_a_driver_and_says_so_once(
        self, before, caplog, monkeypatch
    ):
        from cachepool.devices import cuda, find

        monkeypatch.setattr(cuda, "probe", lambda: "no driver for this test")
        monkeypatch.setattr(find, "_said", set())
        with cachepool.enable() as first, cachepool.enable() as second:
            assert (first.device.name, second.device.name) == ("sim", "sim")
        assert [r.message for r in caplog.records if r.name == "cachepool"] == [
            "no CUDA device (no driver for this test): using a simulated one"
        ]


class TestDisable:
    def test_without_enable_it_does_nothing(self, before):
        cachepool.disable()

    def test_it_restores_what_its_enable_found(self, before):
        other = CachePool("sim")
        cupy.cuda.set_allocator(other.malloc)
        try:
            cachepool.enable(device="sim")
            cachepool.disable()
            assert cupy.cuda.get_allocator() == other.malloc
        finally:
            cupy.cuda.set_allocator(before[0])

    def test_calls_nest_and_each_restores_its_own(self, before):
        outer = cachepool.enable(device="sim")
        inner = cachepool.enable(device="sim")
        assert cachepool.get_pool() is inner
        cachepool.disable()
        assert cachepool.get_pool() is outer
        assert cupy.cuda.get_allocator() == outer.malloc
        assert cupy.get_default_memory_pool() is outer
        cachepool.disable()
        assert cachepool.get_pool() is None

    def test_arrays_outlive_it_and_go_home(self, before):
        pool = cachepool.enable(device="sim")
        array = cupy.empty(100, "u1")
        cachepool.disable()
        assert pool.memory_allocated() == 512
        del array
        assert pool.memory_allocated() == 0

    def test_inside_using_allocator_it_is_cupys_value_error_and_the_pool_stays(self, before):
        pool = cachepool.enable(device="sim")
        with (
            cupy.cuda.using_allocator(pool.malloc),
            pytest.raises(ValueError, match="allocator"),
        ):
            cachepool.disable()
        assert cachepool.get_pool() is pool
        cachepool.disable()


class TestWith:
    def test_blocks_left_out_of_order_are_an_error_and_nothing_changes(self, before):
        outer = cachepool.enable(device="sim")
        inner = cachepool.enable(device="sim")
        with pytest.raises(RuntimeError, match="out of order"):
            outer.__exit__(None, None, None)
        assert cachepool.get_pool() is inner
        inner.__exit__(None, None, None)
        outer.__exit__(None, None, None)

    def test_disabled_inside_the_block_leaving_it_does_nothing(self, before):
        with cachepool.enable(device="sim"):
            cachepool.disable()
            assert cachepool.get_pool() is None

    def test_the_same_pool_may_be_enabled_twice(self, before):
        with cachepool.enable(device="sim") as pool:
            with cachepool.enable(pool):
                assert cachepool.get_pool() is pool
            assert cachepool.get_pool() is pool

    def test_a_pool_that_is_not_enabled_cannot_lead_a_block(self, before):
        with pytest.raises(RuntimeError, match="enable"):
            CachePool("sim").__enter__()

    def test_an_exception_inside_disables_too(self, before):
        with pytest.raises(ZeroDivisionError), cachepool.enable(device="sim"):
            _ = 1 / 0


class TestByHand:
    def test_set_allocator_with_the_bound_method_works_as_well(self, before):
        pool = CachePool("sim")
        cupy.cuda.set_allocator(pool.malloc)
        try:
            array = cupy.empty(5, "u1")
            assert cupy.cuda.get_allocator() == pool.malloc
            assert pool.memory_allocated() == 512
            del array
        finally:
            cupy.cuda.set_allocator(before[0])

    def test_using_allocator_serves_this_thread_only(self, before):
        pool, other = CachePool("sim"), CachePool(SimDevice())
        with cachepool.enable(other), cupy.cuda.using_allocator(pool.malloc):
            mine = cupy.empty(5, "u1")
            theirs = []
            thread = threading.Thread(target=lambda: theirs.append(cupy.empty(5, "u1")))
            thread.start()
            thread.join()
            assert (pool.used_bytes(), other.used_bytes()) == (512, 512)
            assert mine.data.mem is not theirs[0].data.mem


class TestWithoutAPool:
    @pytest.mark.parametrize("name", ["memory_allocated", "memory_stats", "empty_cache"])
    def test_the_functions_say_that_none_is_enabled(self, name):
        with pytest.raises(RuntimeError, match=r"cachepool\.enable\(\)"):
            getattr(cachepool, name)()
