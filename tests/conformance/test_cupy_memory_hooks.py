"""CuPy's tests of memory hooks: the same calls, keywords and order as from CuPy's own pool."""

import io
import json
import re

import pytest
from conformity import SLAB, UNIT, Recorder, cupy, in_a_thread, memory

from cachepool.errors import DeviceFullError

DebugPrintHook = cupy.cuda.memory_hooks.DebugPrintHook
LineProfileHook = cupy.cuda.memory_hooks.LineProfileHook

MISS = ["malloc_preprocess", "alloc_preprocess", "alloc_postprocess", "malloc_postprocess"]
HIT = ["malloc_preprocess", "malloc_postprocess"]
FREE = ["free_preprocess", "free_postprocess"]


class TestAMissAndAHit:
    def test_they_call_what_cupys_pool_calls(self, exact):
        hook = Recorder()
        with hook:
            p = exact.malloc(1)
            ptr1, id1 = p.ptr, id(p.mem)
            del p
            p = exact.malloc(1)
            ptr2, id2 = p.ptr, id(p.mem)
            del p
        common = {"device_id": 0, "mem_size": UNIT}
        freed1 = {**common, "mem_ptr": ptr1, "pmem_id": id1}
        freed2 = {**common, "mem_ptr": ptr2, "pmem_id": id2}
        assert hook.calls == [
            ("malloc_preprocess", {**common, "size": 1}),
            ("alloc_preprocess", common),
            ("alloc_postprocess", {**common, "mem_ptr": ptr1}),
            ("malloc_postprocess", {**freed1, "size": 1}),
            ("free_preprocess", freed1),
            ("free_postprocess", freed1),
            ("malloc_preprocess", {**common, "size": 1}),
            ("malloc_postprocess", {**freed2, "size": 1}),
            ("free_preprocess", freed2),
            ("free_postprocess", freed2),
        ]

    def test_with_slabs_a_miss_tells_the_slab_that_was_taken(self, slabs):
        # CuPy: 512 bytes, at the address of the block.
        hook = Recorder()
        with hook:
            p = slabs.malloc(1)
        assert hook.names() == MISS
        (taken,) = hook.of("alloc_postprocess")
        assert taken["mem_size"] == SLAB
        assert taken["mem_ptr"] <= p.ptr < taken["mem_ptr"] + SLAB
        del p

    def test_arrays_call_them_too(self, installed):
        hook = Recorder()
        with hook:
            arr = cupy.empty(100, "f8")
            mem = arr.data.mem
            fields = mem.device_id, mem.size, mem.ptr, id(mem)
            del arr, mem
        assert hook.names() == MISS + FREE
        (freed,) = hook.of("free_postprocess")
        assert tuple(freed[k] for k in ("device_id", "mem_size", "mem_ptr", "pmem_id")) == fields

    def test_freeing_by_hand_calls_them_once(self, pool):
        p = pool.malloc(1)
        ptr = p.ptr
        hook = Recorder()
        with hook:
            p.mem.free()
            p.mem.free()
            del p
        assert hook.names() == FREE
        assert {keywords["mem_ptr"] for _, keywords in hook.calls} == {ptr}

    def test_without_a_hook_nobody_is_called(self, pool):
        hook = Recorder()
        with hook:
            pass
        pool.malloc(1)
        assert hook.calls == []

    def test_size_0_is_a_request_but_no_release(self, pool):
        hook = Recorder()
        with hook:
            p = pool.malloc(0)
            pmem_id = id(p.mem)
            del p
        asked = {"device_id": 0, "size": 0, "mem_size": 0}
        assert hook.calls == [
            ("malloc_preprocess", asked),
            ("malloc_postprocess", {**asked, "mem_ptr": 0, "pmem_id": pmem_id}),
        ]

    def test_the_device_is_the_one_of_the_memory(self, pool, sim):
        # CuPy 14: the device that was current when the pool was first used.
        pool.malloc(1)
        hook = Recorder()
        with hook:
            with sim.use(1):
                p = pool.malloc(1)
            del p
        assert hook.names() == MISS + FREE
        assert {keywords["device_id"] for _, keywords in hook.calls} == {1}


class TestFailures:
    def test_a_request_that_fails_ends_with_zeros(self, exact):
        exact.set_limit(size=UNIT)
        hook = Recorder()
        with hook, pytest.raises(memory.OutOfMemoryError):
            exact.malloc(1000)
        asked = {"device_id": 0, "size": 1000, "mem_size": 1024}
        assert hook.calls == [
            ("malloc_preprocess", asked),
            ("malloc_postprocess", {**asked, "mem_ptr": 0, "pmem_id": 0}),
        ]

    def test_each_retry_asks_upstream_between_its_own_calls(self, exact, sim):
        sim.fail("reserve", error=DeviceFullError)
        hook = Recorder()
        with hook:
            p = exact.malloc(1)
        assert hook.names() == [
            "malloc_preprocess",
            *["alloc_preprocess", "alloc_postprocess"] * 2,
            "malloc_postprocess",
        ]
        assert [keywords["mem_ptr"] for keywords in hook.of("alloc_postprocess")] == [0, p.ptr]
        del p

    def test_an_error_of_upstream_ends_both_pairs_with_zeros(self, pool, sim):
        sim.fail("reserve", error=RuntimeError)
        hook = Recorder()
        with hook, pytest.raises(RuntimeError):
            pool.malloc(1)
        assert hook.names() == MISS
        assert [keywords["mem_ptr"] for _, keywords in hook.calls[2:]] == [0, 0]

    @pytest.mark.parametrize("size", [-1, 1.5, 2**62])
    def test_a_size_that_is_none_calls_nobody(self, pool, size):
        # CuPy calls them for 2**62, which is a request to its pool.
        hook = Recorder()
        with hook, pytest.raises((TypeError, ValueError, MemoryError)):
            pool.malloc(size)
        assert hook.calls == []


class TestSeveralHooks:
    def named(self, name, calls):
        class Named(Recorder):
            pass

        Named.name = name
        return Named(_Tagged(name, calls))

    def test_in_each_phase_they_run_in_order_of_registration(self, exact):
        calls = []
        with self.named("b", calls), self.named("a", calls):
            exact.malloc(1)
        assert calls == [(method, name) for method in MISS + FREE for name in "ba"]

    def test_a_second_one_of_a_name_is_cupys_key_error(self, pool):
        with Recorder(), pytest.raises(KeyError), Recorder():
            pass
        pool.malloc(1)

    def test_one_that_has_left_is_not_called(self, pool):
        calls = []
        with self.named("stays", calls):
            with self.named("leaves", calls):
                pass
            pool.malloc(0)
        assert {name for _, name in calls} == {"stays"}


class _Tagged:
    """A list of calls that several hooks share, each under its name."""

    def __init__(self, name, calls):
        self.name = name
        self.calls = calls

    def append(self, call):
        self.calls.append((call[0], self.name))


class TestThreads:
    def test_a_request_in_another_thread_calls_no_hook_of_this_one(self, pool):
        hook = Recorder()
        with hook:
            p = in_a_thread(pool.malloc, 1)
        assert hook.calls == []
        del p

    def test_a_release_in_another_thread_calls_no_hook_of_this_one(self, pool):
        hook = Recorder()
        with hook:
            bag = [pool.malloc(1)]
            in_a_thread(bag.clear)
        assert hook.names() == MISS
        assert pool.used_bytes() == 0

    def test_a_release_calls_the_hooks_of_the_thread_that_releases(self, pool):
        bag = [pool.malloc(1)]
        ptr = bag[0].ptr

        def release():
            hook = Recorder()
            with hook:
                bag.clear()
            return hook.calls

        calls = in_a_thread(release)
        assert [name for name, _ in calls] == FREE
        assert {keywords["mem_ptr"] for _, keywords in calls} == {ptr}

    def test_a_hook_entered_in_a_thread_sees_requests_of_a_pool_used_before(self, pool):
        pool.malloc(1)

        def request():
            hook = Recorder()
            with hook:
                pool.malloc(1)
            return hook.names()

        assert in_a_thread(request) == HIT + FREE


class TestHooksThatAllocate:
    @pytest.mark.parametrize("method", [*MISS, *FREE])
    def test_a_hook_may_allocate_and_release(self, pool, method):
        hook = _Allocating(pool, method)
        with hook:
            p = pool.malloc(1)
            del p
        assert hook.inner == [True]
        assert pool.used_bytes() == 0
        pool.check()

    @pytest.mark.parametrize("method", [*MISS, *FREE])
    def test_what_a_hook_keeps_is_not_handed_out_again(self, pool, method):
        hook = _Allocating(pool, method, keep=True)
        with hook:
            p = pool.malloc(1)
            others = [pool.malloc(1) for _ in range(3)]
            del p
            others.append(pool.malloc(1))
        ptrs = {q.ptr for q in (*others, *hook.kept)}
        assert len(ptrs) == 5
        assert pool.used_bytes() == 5 * UNIT
        del others
        hook.kept.clear()

    def test_a_hook_may_flush(self, pool, sim):
        class Flushing(cupy.cuda.MemoryHook):
            name = "Flushing"

            def malloc_preprocess(self, **keywords):
                pool.free_all_blocks()

        pool.malloc(1)
        with Flushing():
            p = pool.malloc(1)
        assert sim.calls["reserve"] == 2
        del p


class _Allocating(cupy.cuda.MemoryHook):
    """Allocates at the first call of one of its methods."""

    name = "Allocating"

    def __init__(self, pool, method, keep=False):
        self.inner = []
        self.kept = []

        def allocate(**keywords):
            if not self.inner:
                self.inner.append(True)
                p = pool.malloc(1)
                if keep:
                    self.kept.append(p)

        setattr(self, method, allocate)


class TestDebugPrintHook:
    def test_it_prints_what_it_prints_for_cupys_pool(self, exact):
        out = io.StringIO()
        with DebugPrintHook(file=out):
            p = exact.malloc(1)
            ptr1, id1 = p.ptr, hex(id(p.mem))
            del p
            p = exact.malloc(1)
            ptr2, id2 = p.ptr, hex(id(p.mem))
            del p
        common = {"device_id": 0, "mem_size": UNIT}
        first = {**common, "mem_ptr": ptr1}
        second = {**common, "mem_ptr": ptr2, "pmem_id": id2}
        assert [json.loads(line) for line in out.getvalue().splitlines()] == [
            {"hook": "alloc", **first},
            {"hook": "malloc", "size": 1, **first, "pmem_id": id1},
            {"hook": "free", **first, "pmem_id": id1},
            {"hook": "malloc", "size": 1, **second},
            {"hook": "free", **second},
        ]


class TestLineProfileHook:
    def report(self, hook):
        out = io.StringIO()
        hook.print_report(file=out)
        return out.getvalue()

    def test_it_reports_used_and_acquired_bytes_by_line(self, exact):
        hook = LineProfileHook()
        exact.malloc(1000)
        with hook:
            p1 = exact.malloc(1000)
            p2 = exact.malloc(2000)
        del p1, p2
        report = self.report(hook)
        name = "test_it_reports_used_and_acquired_bytes_by_line"
        assert re.search(r"\A_root \(3\.00KB, 2\.00KB\)", report)
        assert re.search(rf".*\.py:[0-9]+:{name} \(1\.00KB, 0\.00B\)", report)
        assert re.search(rf".*\.py:[0-9]+:{name} \(2\.00KB, 2\.00KB\)", report)

    def test_with_slabs_it_reports_the_slab_as_acquired(self, slabs):
        # CuPy: 1.00KB, its segment being exact.
        hook = LineProfileHook()
        with hook:
            p = slabs.malloc(1000)
        del p
        assert re.search(r"\A_root \(1\.00KB, 2\.00MB\)", self.report(hook))

    @pytest.mark.parametrize(("max_depth", "lines"), [(1, 1), (2, 2)])
    def test_max_depth_bounds_the_lines(self, pool, max_depth, lines):
        hook = LineProfileHook(max_depth=max_depth)
        with hook:
            p = pool.malloc(1000)
        del p
        assert len(self.report(hook).splitlines()) == lines
