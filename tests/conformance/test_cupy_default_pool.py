"""``cupy.get_default_memory_pool()`` and the allocator under enable and disable, nested."""

import threading

import pytest
from conformity import MIB, UNIT, cupy, in_a_thread

import cachepool
from cachepool import CachePool


def found():
    """Return what CuPy would use now: its allocator and its default pool."""
    return cupy.cuda.get_allocator(), cupy.get_default_memory_pool()


@pytest.fixture
def pools():
    return [CachePool("sim") for _ in range(3)]


class TestOneLevel:
    def test_enable_makes_the_pool_cupys_default_pool(self, pools):
        with cachepool.enable(pools[0]) as pool:
            assert pool is pools[0]
            assert found() == (pool.malloc, pool)
            assert cachepool.get_pool() is pool

    def test_disable_restores_the_very_objects_that_were_there(self, pools):
        before = found()
        cachepool.enable(pools[0])
        cachepool.disable()
        after = found()
        assert after == before
        assert after[1] is before[1]
        assert cachepool.get_pool() is None

    def test_an_allocator_set_by_hand_is_restored(self, pools):
        original = cupy.cuda.get_allocator()
        cupy.cuda.set_allocator(pools[1].malloc)
        try:
            with cachepool.enable(pools[0]):
                pass
            assert cupy.cuda.get_allocator() == pools[1].malloc
        finally:
            cupy.cuda.set_allocator(original)

    def test_an_allocator_set_by_hand_inside_does_not_outlast_disable(self, pools):
        before = found()
        with cachepool.enable(pools[0]):
            cupy.cuda.set_allocator(pools[1].malloc)
        assert found() == before

    def test_the_end_of_with_restores_after_an_exception(self, pools):
        before = found()
        with pytest.raises(ArithmeticError), cachepool.enable(pools[0]):
            raise ArithmeticError
        assert found() == before

    def test_code_written_for_the_default_pool_reaches_the_enabled_one(self, pools):
        with cachepool.enable(pools[0]):
            array = cupy.empty(100, "u1")
            cupy.empty(3 * MIB, "u1")
            pool = cupy.get_default_memory_pool()
            assert pool.used_bytes() == UNIT
            assert pool.free_bytes() == pool.total_bytes() - UNIT
            pool.set_limit(size=MIB * 64)
            assert pool.get_limit() == MIB * 64
            del array
            pool.free_all_blocks()
            assert (pool.total_bytes(), pool.n_free_blocks()) == (0, 0)

    def test_every_method_of_cupys_pool_is_there(self, pools):
        public = {name for name in dir(cupy.cuda.MemoryPool) if not name.startswith("_")}
        assert public <= set(dir(pools[0]))

    def test_arrays_outlive_disable_and_go_home(self, pools):
        with cachepool.enable(pools[0]):
            array = cupy.empty(100, "u1")
        assert pools[0].used_bytes() == UNIT
        del array
        assert pools[0].used_bytes() == 0

    def test_every_thread_allocates_from_it(self, pools):
        with cachepool.enable(pools[0]):
            array = in_a_thread(cupy.empty, 100, "u1")
        assert pools[0].used_bytes() == UNIT
        del array

    def test_disable_without_enable_does_nothing(self):
        before = found()
        cachepool.disable()
        assert found() == before


class TestNesting:
    def test_each_disable_restores_what_its_enable_found(self, pools):
        seen = [found()]
        for pool in pools:
            cachepool.enable(pool)
            seen.append(found())
        for pool in reversed(pools):
            assert cachepool.get_pool() is pool
            assert found() == seen.pop()
            cachepool.disable()
        assert found() == seen.pop()

    def test_a_pool_may_be_enabled_twice(self, pools):
        before = found()
        with cachepool.enable(pools[0]):
            with cachepool.enable(pools[0]):
                pass
            assert found() == (pools[0].malloc, pools[0])
        assert found() == before

    def test_leaving_with_blocks_out_of_order_is_an_error_that_changes_nothing(self, pools):
        outer, inner = cachepool.enable(pools[0]), cachepool.enable(pools[1])
        before = found()
        with pytest.raises(RuntimeError, match="order"):
            outer.__exit__(None, None, None)
        assert found() == before
        assert cachepool.get_pool() is inner
        cachepool.disable()
        cachepool.disable()

    def test_disable_inside_a_with_block_is_all_that_its_end_would_do(self, pools):
        before = found()
        with cachepool.enable(pools[0]):
            cachepool.disable()
            assert found() == before
        assert found() == before

    def test_a_pool_that_is_not_enabled_leads_no_with_block(self, pools):
        with pytest.raises(RuntimeError, match="enable"), pools[0]:
            pass


class TestInsideUsingAllocator:
    def test_enable_is_cupys_value_error_and_changes_nothing(self, pools):
        with cupy.cuda.using_allocator(pools[1].malloc):
            before = found()
            with pytest.raises(ValueError, match="context manager"):
                cachepool.enable(pools[0])
            assert found() == before
            assert cachepool.get_pool() is None

    def test_disable_is_cupys_value_error_and_changes_nothing(self, pools):
        cachepool.enable(pools[0])
        with cupy.cuda.using_allocator(pools[1].malloc):
            before = found()
            with pytest.raises(ValueError, match="context manager"):
                cachepool.disable()
            assert found() == before
        assert cachepool.get_pool() is pools[0]
        cachepool.disable()

    def test_the_end_of_with_is_cupys_value_error_and_changes_nothing(self, pools):
        pool = cachepool.enable(pools[0])
        with (
            cupy.cuda.using_allocator(pools[1].malloc),
            pytest.raises(ValueError, match="context manager"),
        ):
            pool.__exit__(None, None, None)
        assert found() == (pool.malloc, pool)
        cachepool.disable()

    def test_another_threads_using_allocator_is_no_hindrance(self, pools):
        inside, done = threading.Event(), threading.Event()

        def use():
            with cupy.cuda.using_allocator(pools[1].malloc):
                inside.set()
                done.wait(60)
                return cupy.empty(100, "u1")

        arrays = []
        thread = threading.Thread(target=lambda: arrays.append(use()))
        thread.start()
        inside.wait(60)
        with cachepool.enable(pools[0]):
            done.set()
            thread.join(60)
        assert (pools[0].used_bytes(), pools[1].used_bytes()) == (0, UNIT)
        arrays.clear()

    def test_using_allocator_inside_enable_beats_it_for_its_thread(self, pools):
        with cachepool.enable(pools[0]), cupy.cuda.using_allocator(pools[1].malloc):
            array = cupy.empty(100, "u1")
            other = in_a_thread(cupy.empty, 1000, "u1")
        assert (pools[0].used_bytes(), pools[1].used_bytes()) == (1024, 512)
        del array, other
