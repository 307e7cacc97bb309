"""CuPy's TestMemoryPool: a program written for ``cupy.cuda.MemoryPool`` runs unchanged."""

import pytest
from conformity import MIB, SLAB, UNIT, memory

FIGURES = ("used_bytes", "free_bytes", "total_bytes", "n_free_blocks")


class TestAnUnusedPool:
    @pytest.mark.parametrize("figure", FIGURES)
    def test_every_figure_is_0(self, pool, figure):
        assert getattr(pool, figure)() == 0

    def test_flushing_it_is_fine(self, pool):
        pool.free_all_blocks()
        assert pool.n_free_blocks() == 0

    def test_flushing_it_by_the_old_name_is_fine(self, pool):
        with pytest.warns(DeprecationWarning, match="free_all_blocks"):
            pool.free_all_free()
        assert pool.n_free_blocks() == 0

    def test_asking_or_flushing_takes_nothing_from_the_device(self, pool, sim):
        for figure in FIGURES:
            getattr(pool, figure)()
        pool.free_all_blocks()
        assert sim.calls["reserve"] == 0

    def test_what_it_says_of_the_devices_memory_is_two_positive_ints(self, pool):
        free, total = pool.mem_get_info()
        assert 0 < free <= total
        assert (type(free), type(total)) == (int, int)


class TestFreeBlocks:
    def test_a_block_is_a_free_block_from_its_release_to_the_flush(self, exact):
        mem = exact.malloc(1).mem
        assert isinstance(mem, memory.BaseMemory)
        assert exact.n_free_blocks() == 0
        mem.free()
        assert exact.n_free_blocks() == 1
        exact.free_all_blocks()
        assert exact.n_free_blocks() == 0

    def test_the_old_name_flushes_too(self, exact):
        exact.malloc(1).mem.free()
        assert exact.n_free_blocks() == 1
        with pytest.warns(DeprecationWarning, match="free_all_blocks"):
            exact.free_all_free()
        assert exact.n_free_blocks() == 0

    def test_the_rest_of_a_slab_is_a_free_block(self, slabs):
        # CuPy: 0, then 1.  Neighbours that are free count as one, as in CuPy.
        mem = slabs.malloc(1).mem
        assert slabs.n_free_blocks() == 1
        mem.free()
        assert slabs.n_free_blocks() == 1

    def test_free_blocks_of_all_streams_count(self, exact, sim):
        exact.malloc(1)
        with sim.stream():
            exact.malloc(1)
        assert exact.n_free_blocks() == 2


class TestFreeingByHand:
    def test_freeing_twice_is_harmless(self, pool):
        mem = pool.malloc(1).mem
        mem.free()
        mem.free()
        assert (pool.used_bytes(), mem.ptr) == (0, 0)

    def test_the_pointers_death_after_it_frees_nothing_more(self, pool):
        p = pool.malloc(1)
        ptr = p.ptr
        p.mem.free()
        heir = pool.malloc(1)
        assert heir.ptr == ptr
        del p
        assert pool.used_bytes() == UNIT
        assert pool.malloc(1).ptr != ptr

    def test_freeing_a_null_pointer_is_harmless(self, pool):
        mem = pool.malloc(0).mem
        mem.free()
        mem.free()
        assert pool.used_bytes() == 0


class TestSizeZero:
    def test_it_is_a_null_pointer_that_costs_nothing(self, pool, sim):
        # CuPy: the mem is a Memory, not a PooledMemory.
        p = pool.malloc(0)
        assert (p.ptr, p.mem.ptr, p.mem.size) == (0, 0, 0)
        assert isinstance(p.mem, memory.BaseMemory)
        assert (sim.calls["reserve"], pool.used_bytes(), pool.n_free_blocks()) == (0, 0, 0)

    def test_it_has_the_current_device(self, pool, sim):
        with sim.use(1):
            p = pool.malloc(0)
        assert (p.device_id, p.mem.device_id) == (1, 1)


class TestDevices:
    def test_every_figure_is_of_the_current_device(self, exact, sim):
        p = exact.malloc(4 * UNIT)
        exact.malloc(2 * UNIT)
        with sim.use(1):
            assert [getattr(exact, figure)() for figure in FIGURES] == [0, 0, 0, 0]
        figures = [getattr(exact, figure)() for figure in FIGURES]
        assert figures == [4 * UNIT, 2 * UNIT, 6 * UNIT, 1]
        del p

    def test_memory_is_of_the_device_that_was_current_at_the_request(self, pool, sim):
        with sim.use(1):
            p = pool.malloc(UNIT)
        assert (p.device_id, p.mem.device_id) == (1, 1)

    def test_memory_released_while_another_device_is_current_goes_home(self, pool, sim):
        with sim.use(1):
            p = pool.malloc(UNIT)
            ptr = p.ptr
        del p
        assert pool.malloc(UNIT).ptr != ptr
        with sim.use(1):
            assert pool.used_bytes() == 0
            assert pool.malloc(UNIT).ptr == ptr

    def test_a_flush_is_of_the_current_device(self, pool, sim):
        pool.malloc(UNIT)
        with sim.use(1):
            pool.malloc(UNIT)
            pool.free_all_blocks()
            assert pool.total_bytes() == 0
        assert pool.total_bytes() > 0


class TestLargeRequests:
    # CuPy: a segment of exactly the request; 2 MiB is what cudaMalloc hands out at least.
    def test_their_segments_are_whole_steps_of_2_mib(self, slabs):
        p = slabs.malloc(3 * MIB)
        assert (slabs.used_bytes(), slabs.total_bytes()) == (3 * MIB, 2 * SLAB)
        del p

    def test_where_the_device_has_no_room_for_that_the_segment_is_exact(self, slabs, sim):
        room = sim.occupy(2**30 - 3 * MIB)
        p = slabs.malloc(3 * MIB)
        assert slabs.total_bytes() == 3 * MIB
        del p
        slabs.free_all_blocks()
        room.release()
