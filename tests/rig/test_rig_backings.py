"""Pools over pools, other kinds of memory, allocators set by hand, CuPy's hooks."""

import io

import pytest
from rigging import MIB, peek

import cachepool

cupy = pytest.importorskip("cupy")

from cupy.cuda import Stream, memory, memory_hooks, runtime  # noqa: E402


class Recorder(cupy.cuda.MemoryHook):
    """Writes the calls down: the name of the method and its keywords."""

    name = "Recorder"

    def __init__(self):
        self.calls = []

    def alloc_preprocess(self, **facts):
        self.calls.append(("alloc", facts))

    def alloc_postprocess(self, **facts):
        self.calls.append(("alloc done", facts))

    def malloc_preprocess(self, **facts):
        self.calls.append(("malloc", facts))

    def malloc_postprocess(self, **facts):
        self.calls.append(("malloc done", facts))

    def free_preprocess(self, **facts):
        self.calls.append(("free", facts))

    def free_postprocess(self, **facts):
        self.calls.append(("free done", facts))


class TestByHand:
    def test_set_allocator_serves_every_thread_and_array(self, rig):
        pool = cachepool.CachePool("cuda")
        before = cupy.cuda.get_allocator()
        cupy.cuda.set_allocator(pool.malloc)
        try:
            x = cupy.arange(128, dtype="i8")
            assert cupy.cuda.get_allocator() == pool.malloc
            assert x.data.mem.size == pool.used_bytes() == 1024
            assert int(x.sum()) == 8128
        finally:
            cupy.cuda.set_allocator(before)

    def test_using_allocator_serves_a_with_block_of_this_thread(self, rig):
        inner, outer = cachepool.CachePool("cuda"), cachepool.CachePool("cuda")
        with cupy.cuda.using_allocator(outer.malloc):
            x = cupy.empty(1024, "u1")
            with cupy.cuda.using_allocator(inner.malloc):
                y = cupy.empty(2048, "u1")
            z = cupy.empty(4096, "u1")
        assert (outer.memory_allocated(), inner.memory_allocated()) == (5120, 2048)
        del x, y, z
        assert (outer.memory_allocated(), inner.memory_allocated()) == (0, 0)

    def test_enabling_inside_using_allocator_is_cupys_error_and_changes_nothing(self, rig):
        pool = cachepool.CachePool("cuda")
        default = cupy.get_default_memory_pool()
        with cupy.cuda.using_allocator(pool.malloc), pytest.raises(ValueError, match="allocator"):
            cachepool.enable(pool)
        assert cachepool.get_pool() is None
        assert cupy.get_default_memory_pool() is default


class TestBackings:
    @pytest.mark.parametrize(
        ("function", "identity"),
        [("_malloc", "Memory"), ("malloc_managed", "ManagedMemory")],
    )
    def test_cupys_own_allocators_serve_as_backing(self, rig, function, identity):
        used, managed = rig.used(), rig.live_managed()
        pool = cachepool.CachePool("cuda", backing=getattr(memory, function))
        with cupy.cuda.using_allocator(pool.malloc):
            x = cupy.arange(1000, dtype="f8")
            assert x.data.mem.identity == identity
            assert float(x.sum()) == 499500.0
        assert pool.memory_reserved() >= pool.memory_allocated() == 8192
        assert rig.used() + rig.live_managed() > used + managed
        del x
        pool.check()
        pool.empty_cache()
        assert (pool.memory_reserved(), rig.used(), rig.live_managed()) == (0, used, managed)

    def test_a_segment_over_a_callable_is_exactly_the_request(self, rig):
        sizes = []

        def backing(nbytes):
            sizes.append(nbytes)
            return memory._malloc(nbytes)

        pool = cachepool.CachePool("cuda", backing=backing)
        for nbytes in (1, 5000, MIB + 1):
            pool.malloc(nbytes)
        assert sizes == [512, 5120, MIB + 512]

    def test_a_backing_that_is_out_of_memory_makes_the_pool_give_back_and_retry(self, rig):
        pool = cachepool.CachePool("cuda", backing=memory._malloc)
        rig.leave_room(8 * MIB)
        with cupy.cuda.using_allocator(pool.malloc):
            cupy.empty(6 * MIB, "u1")
            x = cupy.empty(8 * MIB, "u1")
            with pytest.raises(cachepool.OutOfMemoryError):
                cupy.empty(512, "u1")
        assert pool.memory_reserved() == 8 * MIB
        del x


class TestPoolsOverPools:
    def test_over_cupys_pool_its_books_are_those_of_our_segments(self, rig):
        base = cupy.cuda.MemoryPool()
        pool = cachepool.CachePool("cuda", backing=base.malloc)
        with cupy.cuda.using_allocator(pool.malloc):
            x = cupy.arange(1000, dtype="f8")
            assert float(x.sum()) == 499500.0
        assert base.used_bytes() == pool.memory_reserved()
        del x
        assert pool.empty_cache() == base.free_bytes() == base.total_bytes()
        base.free_all_blocks()

    def test_under_cupys_pool_our_books_are_those_of_its_segments(self, rig):
        pool = cachepool.CachePool("cuda")
        above = cupy.cuda.MemoryPool(pool.malloc)
        with cupy.cuda.using_allocator(above.malloc):
            x = cupy.arange(1000, dtype="f8")
            assert float(x.sum()) == 499500.0
        assert pool.memory_allocated() == above.total_bytes()
        del x
        above.free_all_blocks()
        assert pool.memory_allocated() == 0

    def test_under_cupys_pool_our_error_makes_it_flush_and_retry(self, rig):
        pool = cachepool.CachePool("cuda")
        above = cupy.cuda.MemoryPool(pool.malloc)
        rig.leave_room(8 * MIB)
        x = above.malloc(6 * MIB)
        del x
        y = above.malloc(8 * MIB)
        assert above.total_bytes() == pool.memory_allocated() == 8 * MIB
        with pytest.raises(memory.OutOfMemoryError):
            above.malloc(512)
        del y
        above.free_all_blocks()

    def test_over_cupys_pool_a_stream_named_explicitly_gets_no_other_streams_memory(self, rig):
        base = cupy.cuda.MemoryPool()
        pool = cachepool.CachePool("cuda", backing=base.malloc)
        a, b = Stream(non_blocking=True), Stream(non_blocking=True)
        with a:
            cached = base.malloc(4 * MIB)
            rig.write_late(a, cached, 1, 4 * MIB)
            del cached
            mine = pool.allocate(4 * MIB, stream=b)
        runtime.memsetAsync(mine.ptr, 2, 4 * MIB, b.ptr)
        b.synchronize()
        rig.advance(2 * 10**9)
        found = peek(mine.ptr)
        mine.release()
        pool.empty_cache()
        base.free_all_blocks()
        assert found == b"\2"


class TestHooks:
    def test_a_miss_and_a_hit_call_what_cupys_pool_calls(self, pool):
        with Recorder() as hook:
            x = cupy.empty(3 * MIB - 7, "u1")
            mem, ptr = id(x.data.mem), x.data.ptr
            del x
            cupy.empty(3 * MIB, "u1")
        names = [name for name, _ in hook.calls]
        miss = ["malloc", "alloc", "alloc done", "malloc done", "free", "free done"]
        hit = ["malloc", "malloc done", "free", "free done"]
        assert names == miss + hit
        assert hook.calls[0][1] == {"device_id": 0, "size": 3 * MIB - 7, "mem_size": 3 * MIB}
        assert hook.calls[2][1] == {"device_id": 0, "mem_size": 4 * MIB, "mem_ptr": ptr}
        assert hook.calls[3][1] == hook.calls[0][1] | {"mem_ptr": ptr, "pmem_id": mem}
        assert hook.calls[4][1] == {
            "device_id": 0,
            "mem_size": 3 * MIB,
            "mem_ptr": ptr,
            "pmem_id": mem,
        }

    def test_a_failed_request_reports_no_address(self, pool, rig):
        rig.leave_room(MIB)
        with Recorder() as hook, pytest.raises(cachepool.OutOfMemoryError):
            cupy.empty(4 * MIB, "u1")
        ends = [facts["mem_ptr"] for name, facts in hook.calls if name.endswith("done")]
        assert set(ends) == {0}
        assert hook.calls[-1][0] == "malloc done"
        assert hook.calls[-1][1]["pmem_id"] == 0

    def test_the_device_in_a_hooks_facts_is_the_blocks_own(self, pool):
        with Recorder() as hook:
            with cupy.cuda.Device(1):
                x = cupy.empty(512, "u1")
            del x
        assert {facts["device_id"] for _, facts in hook.calls} == {1}

    def test_cupys_print_hook_prints_for_our_pool(self, pool):
        printed = io.StringIO()
        with memory_hooks.DebugPrintHook(file=printed):
            cupy.empty(512, "u1")
        kinds = [line.partition(",")[0] for line in printed.getvalue().splitlines()]
        assert kinds == ['{"hook":"alloc"', '{"hook":"malloc"', '{"hook":"free"']

    def test_cupys_line_profile_counts_used_and_acquired_bytes(self, pool):
        hook, report = memory_hooks.LineProfileHook(), io.StringIO()
        with hook:
            cupy.empty(3 * MIB, "u1")
            cupy.empty(3 * MIB, "u1")
        hook.print_report(file=report)
        assert report.getvalue().startswith("_root (6.00MB, 4.00MB)\n")
