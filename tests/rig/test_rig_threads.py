"""Threads: per-thread streams, streams of one's own, releases in another thread."""

import queue
import random
import threading

import pytest
from rigging import MIB, peek

cupy = pytest.importorskip("cupy")

from cupy.cuda import Stream  # noqa: E402

SIZE = 4096


def run_all(*functions):
    """Run functions in threads of their own; return their results, raise their errors."""
    results = [None] * len(functions)

    def call(i, function):
        try:
            results[i] = function()
        except BaseException as error:
            results[i] = error

    threads = [threading.Thread(target=call, args=item) for item in enumerate(functions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


class TestPerThreadStream:
    def test_live_threads_never_get_each_others_memory(self, pool):
        together = threading.Barrier(3)

        def one():
            with Stream.ptds:
                first = cupy.empty(SIZE, "u1").data.ptr
                together.wait()
                second = cupy.empty(SIZE, "u1").data.ptr
                together.wait()
            return first, second

        found = run_all(one, one, one)
        assert len({first for first, _ in found}) == 3
        assert all(first == second for first, second in found)

    def test_a_new_thread_does_not_inherit_from_one_that_has_died(self, pool, rig):
        def late():
            with Stream.ptds:
                x = cupy.empty(SIZE, "u1")
                rig.write_late(Stream.ptds, x.data, 1, SIZE)
                return x.data.ptr

        def next_one():
            with Stream.ptds:
                return cupy.empty(SIZE, "u1").data.ptr

        (dead,) = run_all(late)
        assert [dead] not in [run_all(next_one) for _ in range(10)]

    def test_memory_of_dead_threads_is_given_back_by_empty_cache(self, pool, rig):
        used = rig.used()

        def one():
            with Stream.ptds:
                cupy.empty(3 * MIB, "u1")

        run_all(one, one)
        assert rig.used() == used + 8 * MIB
        assert pool.empty_cache() == 8 * MIB


class TestTogether:
    @pytest.mark.parametrize("seed", range(2))
    def test_every_thread_finds_what_it_wrote(self, pool, rig, seed):
        def work(number):
            rng = random.Random(f"{seed}/{number}")
            streams = [Stream(non_blocking=True) for _ in range(2)]
            live = []
            for step in range(200):
                stream, size = rng.choice(streams), int(512 * 2 ** rng.uniform(0, 13))
                with stream:
                    x = cupy.empty(size, "u1")
                    x.data.memset_async(step % 251, size)
                live.append((stream, x, step % 251))
                if len(live) > 5:
                    owner, x, value = live.pop(rng.randrange(5))
                    owner.synchronize()
                    ends = {*peek(x.data.ptr, 64), *peek(x.data.ptr + x.size - 1)}
                    assert ends == {value}, f"seed {seed}, thread {number}, step {step}"

        run_all(*[lambda n=number: work(n) for number in range(4)])
        pool.check()

    def test_arrays_released_in_another_thread_go_home(self, pool):
        inbox = queue.SimpleQueue()

        def give():
            with Stream(non_blocking=True) as stream:
                pointers = set()
                for _ in range(100):
                    x = cupy.empty(3 * MIB, "u1")
                    pointers.add(x.data.ptr)
                    inbox.put(x)
                    del x
                    if len(pointers) > 90:
                        break
                inbox.put(None)
                return stream, pointers

        def drop():
            while (x := inbox.get()) is not None:
                del x

        (stream, pointers), _ = run_all(give, drop)
        assert pool.memory_allocated() == 0
        snapshot = pool.memory_snapshot()
        assert {segment["stream"] for segment in snapshot} == {stream.ptr}
        assert {segment["address"] for segment in snapshot} == pointers

    def test_emptying_the_cache_beside_working_threads_harms_nobody(self, pool, rig):
        done = threading.Event()

        def work():
            stream = Stream(non_blocking=True)
            for step in range(150):
                with stream:
                    x = cupy.empty(3 * MIB if step % 3 else SIZE, "u1")
                    x.data.memset_async(step % 251, x.size)
                stream.synchronize()
                assert peek(x.data.ptr + x.size - 1) == bytes([step % 251])
                del x
            done.set()

        def empty():
            while not done.is_set():
                pool.empty_cache()

        run_all(work, empty)
        pool.check()
