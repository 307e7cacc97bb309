"""CuPy's TestMemoryPointer and TestUnownedMemory, and what CuPy reads of a ``mem``."""

import gc
from itertools import pairwise

import pytest
from conformity import MIB, UNIT, cupy, in_a_thread, memory

from cachepool import CachePool, SimDevice


class TestArithmetic:
    def test_an_int_of_it_is_its_address(self, pool):
        p = pool.malloc(1)
        assert int(p) == p.ptr == p.mem.ptr == int(p.mem)
        del p

    def test_an_offset_is_added_from_either_side(self, pool):
        p = pool.malloc(8)
        ptr = p.ptr
        for q in (p + 4, 4 + p):
            assert type(q) is memory.MemoryPointer
            assert int(q) == ptr + 4
        p += 4
        assert int(p) == ptr + 4
        del p, q

    def test_an_offset_is_subtracted(self, pool):
        p = pool.malloc(8)
        ptr = p.ptr
        p += 4
        q = p - 4
        assert type(q) is memory.MemoryPointer
        assert int(q) == ptr
        p -= 4
        assert int(p) == ptr
        del p, q

    def test_a_pointer_with_an_offset_holds_the_whole_block(self, pool):
        p = pool.malloc(1024)
        q = p + 512
        assert q.mem is p.mem
        del p
        assert pool.used_bytes() == 1024
        del q
        assert pool.used_bytes() == 0


class TestTheMem:
    @pytest.mark.parametrize("nbytes", [1, 512, 513, MIB, MIB + 1, 3 * MIB])
    def test_its_address_is_the_arrays_own_and_its_size_the_rounded_one(self, installed, nbytes):
        first = cupy.empty(nbytes, "u1")
        second = cupy.empty(nbytes, "u1")
        for arr in (first, second):
            assert arr.data.ptr == arr.data.mem.ptr
            assert arr.data.mem.size == -(-nbytes // UNIT) * UNIT
        del first, second, arr

    def test_cupys_types_are_what_cupy_checks_for(self, pool):
        p = pool.malloc(1)
        assert type(p) is memory.MemoryPointer
        assert isinstance(p.mem, memory.BaseMemory)
        del p

    def test_its_device_is_an_object_of_cupys(self, pool, sim):
        with sim.use(1):
            p = pool.malloc(1)
        assert p.mem.device == cupy.cuda.Device(1)
        del p

    def test_views_share_it(self, installed):
        base = cupy.empty((10, 30), "f8")
        views = [
            base[3:, ::2].T,
            base.ravel(),
            base.view("u1"),
            base.reshape(30, 10)[4],
            cupy.broadcast_to(base, (2, 10, 30)),
            *cupy.split(base, 2),
        ]
        assert all(view.data.mem is base.data.mem for view in views)
        del views

    def test_a_view_keeps_the_block_in_use_and_its_death_releases_it(self, installed):
        base = cupy.empty((100, 30), "f8")
        ptr = base.data.ptr
        view = base[3:, ::2].T
        del base
        assert view.data.ptr == ptr + 3 * 30 * 8
        assert installed.used_bytes() == 24064
        del view
        assert installed.used_bytes() == 0

    def test_cupy_sees_which_arrays_may_share_memory(self, installed):
        a, b = cupy.empty(100, "u1"), cupy.empty(100, "u1")
        assert cupy.may_share_memory(a[:60], a[50:])
        assert not cupy.may_share_memory(a[:50], a[50:])
        assert not cupy.may_share_memory(a, b)
        del a, b

    def test_live_addresses_never_coincide(self, installed):
        arrays = [cupy.empty(n, "u1") for n in range(1, 2000, 97)]
        spans = sorted((a.data.ptr, a.data.mem.size) for a in arrays)
        assert all(p + n <= q for (p, n), (q, _) in pairwise(spans))
        del arrays

    def test_its_fields_do_not_change_while_it_lives(self, installed):
        arr = cupy.empty(1000, "u1")
        mem = arr.data.mem
        fields = (mem.ptr, mem.size, mem.device_id)
        for n in (1, 600, 1000, 3 * MIB):
            cupy.empty(n, "u1")
        installed.free_all_blocks()
        gc.collect()
        assert (mem.ptr, mem.size, mem.device_id) == fields
        del arr, mem

    def test_the_collector_never_sees_it(self, pool):
        p = pool.malloc(1)
        assert not gc.is_tracked(p.mem)
        del p


class TestIdentity:
    def test_plain_memory_is_called_memory(self, slabs):
        p = slabs.malloc(1)
        assert p.mem.identity == "Memory"
        del p

    def test_a_null_pointer_has_one_too(self, pool):
        assert pool.malloc(0).mem.identity == "Memory"

    @pytest.mark.parametrize("name", ["ManagedMemory", "SystemMemory"])
    def test_memory_of_another_kind_keeps_its_name(self, sim, name):
        below = type(name, (memory.BaseMemory,), {})

        def backing(nbytes):
            mem = below()
            mem.ptr, mem.size, mem.device_id = sim.reserve(nbytes, 0), nbytes, 0
            return memory.MemoryPointer(mem, 0)

        p = CachePool(sim, backing=backing).malloc(1)
        assert p.mem.identity == name


class TestEmptyArrays:
    def test_they_have_address_0_and_cost_nothing(self, installed, sim):
        arrays = [cupy.empty(0), cupy.empty((0, 5)), cupy.empty((3, 0, 2))]
        assert [a.data.ptr for a in arrays] == [0, 0, 0]
        assert [a.data.mem.size for a in arrays] == [0, 0, 0]
        assert (installed.used_bytes(), sim.calls["reserve"]) == (0, 0)

    def test_their_views_work(self, installed):
        a = cupy.empty((0, 5))
        assert a.T.shape == (5, 0)
        assert a[:, 1:3].shape == (0, 2)
        assert a.reshape(5, 0).data.ptr == 0

    def test_an_empty_slice_keeps_its_base_in_use(self, installed):
        base = cupy.empty(100, "u1")
        nothing = base[50:50]
        del base
        assert installed.used_bytes() == 512
        del nothing
        assert installed.used_bytes() == 0


class TestUnownedMemory:
    @pytest.mark.parametrize("device", [0, 1])
    def test_an_array_over_it_keeps_the_block_in_use(self, pool, sim, device):
        with sim.use(device):
            source = pool.malloc(24)
        ptr = source.ptr
        unowned = memory.UnownedMemory(ptr, 24, source, device_id=device)
        assert (unowned.size, unowned.ptr, unowned.device_id) == (24, ptr, device)
        arr = cupy.ndarray((2, 3), cupy.float32, memory.MemoryPointer(unowned, 0))
        del source, unowned
        with sim.use(device):
            other = pool.malloc(24)
            assert (other.ptr != ptr, pool.used_bytes()) == (True, 1024)
            del arr
            assert pool.used_bytes() == 512
            del other

    def test_an_array_over_a_pointer_of_ours_keeps_the_block_in_use(self, pool):
        arr = cupy.ndarray((2, 3), cupy.float32, pool.malloc(24))
        assert pool.used_bytes() == 512
        del arr
        assert pool.used_bytes() == 0


class TestStreamsOfKernels:
    def test_memory_reused_on_its_stream_races_with_nothing(self):
        sim = SimDevice(on_race="record")
        pool = CachePool(sim)
        stream = sim.stream()
        with cupy.cuda.using_allocator(pool.malloc), stream:
            for _ in range(3):
                arr = cupy.empty(1000)
                stream.launch(1.0, writes=arr)
                del arr
        assert (sim.races, sim.calls["reserve"]) == ([], 1)

    def test_memory_used_by_two_threads_on_one_stream_races_with_nothing(self, pool, sim):
        stream = sim.stream()

        def use():
            with cupy.cuda.using_allocator(pool.malloc), stream:
                arr = cupy.empty(1000)
                stream.launch(1.0, reads=arr, writes=arr)
                return arr.data.ptr

        assert use() == in_a_thread(use)
        stream.synchronize()
        assert sim.races == []
