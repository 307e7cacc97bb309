"""CuPy's TestExceptionPicklable, and what CuPy's own code catches and retries upon."""

import copy
import pickle

import pytest
from conformity import MIB, UNIT, cupy, in_a_thread, memory

import cachepool
from cachepool import CachePool, SimDevice

CUDARuntimeError = cupy.cuda.runtime.CUDARuntimeError


@pytest.fixture
def full():
    """Return a pool of 8 MiB that has 4 MiB in use, and what holds them."""
    pool = CachePool(SimDevice("8MiB"))
    return pool, pool.malloc(4 * MIB)


def caught(pool, nbytes):
    with pytest.raises(MemoryError) as info:
        pool.malloc(nbytes)
    return info.value


class TestTheClass:
    def test_it_is_caught_as_cupys_out_of_memory_error(self, full):
        with pytest.raises(memory.OutOfMemoryError):
            full[0].malloc(5 * MIB)

    def test_it_is_caught_as_a_runtime_error_with_status_2(self, full):
        with pytest.raises(CUDARuntimeError) as info:
            full[0].malloc(5 * MIB)
        assert info.value.status == CUDARuntimeError(2).status == 2

    def test_it_is_caught_as_a_memory_error(self, full):
        # All that CuPy's sort needs to fail cleanly when its workspace cannot be had.
        with pytest.raises(MemoryError):
            full[0].malloc(5 * MIB)

    def test_it_is_the_one_that_cachepool_names(self, full):
        assert type(caught(full[0], 5 * MIB)) is cachepool.OutOfMemoryError

    @pytest.mark.parametrize("nbytes", [5 * MIB, 2**62])
    def test_every_way_to_run_out_raises_it(self, full, nbytes):
        assert type(caught(full[0], nbytes)) is cachepool.OutOfMemoryError

    def test_over_a_limit_it_is_the_same(self, full):
        full[0].set_limit(size=5 * MIB)
        assert type(caught(full[0], 2 * MIB)) is cachepool.OutOfMemoryError

    def test_a_thread_raises_it_too(self, full):
        with pytest.raises(memory.OutOfMemoryError):
            in_a_thread(full[0].malloc, 5 * MIB)


class TestTheText:
    def test_it_begins_as_cupys_own(self, full):
        cupys = str(memory.OutOfMemoryError(5 * MIB, 4 * MIB))
        assert str(caught(full[0], 5 * MIB)).startswith(cupys.rstrip("."))

    def test_it_names_the_limit_as_cupys_own(self, full):
        full[0].set_limit(size=6 * MIB)
        cupys = str(memory.OutOfMemoryError(3 * MIB, 4 * MIB, 6 * MIB))
        assert str(caught(full[0], 3 * MIB)).startswith(cupys.rstrip("."))

    def test_it_says_what_is_reserved_cached_and_free(self, full):
        pool = full[0]
        pool.malloc(100)
        text = str(caught(pool, 7 * MIB))
        assert "Reserved: 4,194,304 bytes (4.0 MiB)" in text  # the slab was given back
        assert "largest free block: 0 bytes" in text
        assert "Device free: 4,194,304 bytes (4.0 MiB) of 8,388,608 bytes (8.0 MiB)" in text

    def test_its_report_holds_the_figures(self, full):
        pool = full[0]
        small = pool.malloc(100)
        report = caught(pool, 7 * MIB).report
        assert (report.asked, report.allocated) == (7 * MIB, 4 * MIB + UNIT)
        assert (report.reserved, report.largest_free_block) == (6 * MIB, 2 * MIB - UNIT)
        assert (report.device_free, report.device_total, report.limit) == (2 * MIB, 8 * MIB, 0)
        del small


class TestCopies:
    @pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
    def test_args_and_text_survive_pickling(self, full, protocol):
        error = caught(full[0], 5 * MIB)
        again = pickle.loads(pickle.dumps(error, protocol))
        assert type(again) is type(error)
        assert (again.args, str(again)) == (error.args, str(error))

    def test_status_and_report_survive_pickling(self, full):
        error = caught(full[0], 5 * MIB)
        again = pickle.loads(pickle.dumps(error))
        assert (again.status, again.report) == (2, error.report)

    @pytest.mark.parametrize("make", [copy.copy, copy.deepcopy])
    def test_it_can_be_copied(self, full, make):
        error = caught(full[0], 5 * MIB)
        assert (str(make(error)), make(error).report) == (str(error), error.report)

    def test_cupys_own_can_be_pickled_still(self):
        error = memory.OutOfMemoryError(124, 1024, 1024)
        again = pickle.loads(pickle.dumps(error))
        assert (again.args, str(again)) == (error.args, str(error))


class TestWhatIsLeft:
    def test_a_failed_request_changes_no_figure_but_the_counts_of_trouble(self, full):
        pool = full[0]
        before = pool.memory_stats()
        caught(pool, 5 * MIB)
        after = pool.memory_stats()
        changed = {name for name in before if before[name] != after[name]}
        assert changed == {"num_ooms", "num_alloc_retries"}
        pool.check()

    def test_cupys_arrays_can_be_made_after_it(self, full):
        with cupy.cuda.using_allocator(full[0].malloc):
            with pytest.raises(memory.OutOfMemoryError):
                cupy.empty(5 * MIB, "u1")
            arr = cupy.empty(4 * MIB, "u1")
        assert full[0].used_bytes() == 8 * MIB
        del arr

    def test_cached_memory_is_given_back_before_it_is_raised(self, full):
        pool = full[0]
        pool.malloc(3 * MIB)
        p = pool.malloc(4 * MIB)
        assert pool.used_bytes() == 8 * MIB
        del p

    def test_another_streams_cached_memory_is_given_back_before_it_is_raised(self, full):
        pool = full[0]
        with pool.device.stream():
            pool.malloc(4 * MIB)
        p = pool.malloc(4 * MIB)
        assert pool.used_bytes() == 8 * MIB
        del p

    def test_it_names_no_array_that_a_handler_would_keep_alive(self, full):
        pool, held = full
        error = caught(pool, 5 * MIB).with_traceback(None)
        del held, full
        assert error.report.allocated == 4 * MIB
