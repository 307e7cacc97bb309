"""What may happen in the middle: calls from upstream, collections, other threads.

Runs on the form in force.  Upstream is memory at rising addresses that never comes twice.
"""

import gc
import random
import threading
from contextlib import contextmanager, suppress

import pytest
from upstreams import MIB, Bench, NoMemoryError, S, T

from cachepool import _form
from cachepool.engine.check import audit


@contextmanager
def automatic_collections():
    """Let the collector run at every chance while the block runs."""
    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        yield
    finally:
        gc.set_threshold(*before)


# ---- in the middle --------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["reserve", "synchronize", "release"])
@pytest.mark.parametrize("nbytes", [100, MIB, 3 * MIB])
def test_upstream_may_allocate_and_release_in_the_middle_of_a_call(call, nbytes):
    bench = Bench(capacity=16 * MIB)
    inner = []

    def middle():
        del bench.upstream.before[call]
        inner.append(bench.get(nbytes, S))
        inner.append(bench.get(nbytes, T))
        bench.heap.release(inner.pop(0))
        bench.sound()

    bench.heap.release(bench.get(4 * MIB, T))
    bench.heap.release(bench.get(4 * MIB, S))
    bench.upstream.before[call] = middle
    block = bench.get(12 * MIB, S)
    assert inner
    bench.sound()
    bench.finish([block, *inner])


@pytest.mark.parametrize("call", ["reserve", "synchronize", "release"])
def test_upstream_may_trim_in_the_middle_of_a_call(call):
    bench = Bench(capacity=16 * MIB)
    trimmed = []

    def middle():
        del bench.upstream.before[call]
        trimmed.append(bench.heap.trim(None, None))
        bench.sound()

    for key in (S, T):
        bench.heap.release(bench.get(4 * MIB, key))
    bench.upstream.before[call] = middle
    block = bench.get(12 * MIB, S)
    assert trimmed
    bench.sound()
    bench.finish([block])


@pytest.mark.parametrize("call", ["reserve", "synchronize", "release"])
def test_upstream_may_collect_in_the_middle_of_a_call(call):
    bench = Bench(capacity=16 * MIB)

    class Node:
        def __init__(self):
            self.me, self.lease = self, _form.lease(bench.heap, 70_000, S)

    for _ in range(5):
        Node()
    for key in (S, T):
        bench.heap.release(bench.get(4 * MIB, key))
    bench.upstream.before[call] = gc.collect
    block = bench.get(12 * MIB, S)
    bench.sound()
    bench.upstream.before.clear()
    gc.collect()
    bench.finish([block])


def test_collector_may_run_at_every_allocation_of_the_interpreter():
    bench, rng = Bench(capacity=64 * MIB), random.Random(3)

    class Node:
        """A cycle that owns memory; its finaliser asks for more and drops it."""

        def __init__(self, nbytes):
            self.me, self.lease = self, _form.lease(bench.heap, nbytes, S)

        def __del__(self):
            with suppress(NoMemoryError):  # what dies with it holds its memory still
                _form.lease(bench.heap, rng.choice([100, 40_000, 2 * MIB]), T)

    live = []
    with automatic_collections():
        for _ in range(400):
            Node(rng.choice([100, 5000, MIB, 3 * MIB]))
            live.append(bench.get(rng.choice([100, 5000, 2 * MIB]), S))
            if len(live) > 6:
                bench.heap.release(live.pop(rng.randrange(6)))
    gc.collect()
    bench.sound()
    bench.finish(live)


def test_what_comes_back_while_the_books_are_busy_is_booked_when_they_are_left(bench):
    blocks = [bench.get(n) for n in (512, 3 * MIB)]
    assert bench.heap.enter(True)
    for block in blocks:
        bench.heap.release(block)
    assert bench.read("allocation") == 2  # nothing changes under a reader's feet
    bench.heap.leave()
    assert bench.read("allocation") == 0
    bench.finish([])


def test_request_while_the_books_are_busy_is_served_from_the_device(bench):
    bench.heap.release(bench.get(512))
    assert bench.heap.enter(True)
    block = bench.get(512)
    assert bench.read("allocation") == 0
    bench.heap.leave()
    assert bench.read("allocation") == 1
    assert bench.upstream.calls["reserve"] == 2
    bench.finish([block])


def test_block_released_before_its_segment_is_booked_counts_once(bench):
    assert bench.heap.enter(True)
    block = bench.get(5000)
    bench.heap.release(block)
    bench.heap.leave()
    bench.sound()
    assert bench.heap.counters.read(0, 2) == (0, 1, 1)
    bench.finish([])


def test_block_released_before_anyone_has_booked_its_segment_counts_once(bench):
    taken, done = threading.Event(), threading.Event()

    def other():
        with bench.heap.lock:  # for a moment, as between two steps of another request
            taken.set()
            done.wait(60)

    thread = threading.Thread(target=other)

    def middle():
        bench.upstream.before.clear()
        thread.start()
        taken.wait(60)

    bench.upstream.before["reserve"] = middle
    block = bench.get(5000)
    done.set()
    thread.join()
    assert bench.read("segment") == 0  # the other thread has left without booking it
    bench.heap.release(block)
    bench.sound()
    assert bench.heap.counters.read(0, 2) == (0, 1, 1)
    bench.finish([])


# ---- threads --------------------------------------------------------------------------------


def test_threads_release_each_others_blocks(bench):
    barrier, rest, failures = threading.Barrier(4), [], []
    shelf, guard = [], threading.Lock()

    def work(number):
        rng, mine = random.Random(number), []
        try:
            barrier.wait()
            for _ in range(400):
                mine.append(bench.get(rng.choice([100, 5000, 70_000, 2 * MIB]), 20 + number))
                with guard:  # a block of mine for one of anybody's
                    shelf.append(mine.pop(rng.randrange(len(mine))))
                    found = shelf.pop(rng.randrange(len(shelf))) if len(shelf) > 8 else None
                if found is not None:
                    bench.heap.release(found)
                if rng.random() < 0.02:
                    bench.heap.trim(None, None)
                if rng.random() < 0.02:
                    assert audit(bench.heap).breaches == []
        except BaseException as error:
            failures.append(error)
        with guard:
            rest.extend(mine)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    found = bench.sound()
    live = rest + shelf
    assert found.blocks - found.free_blocks == len(live)
    assert len({block.ptr for block in live}) == len(live)
    bench.finish(live)


def test_release_from_another_thread_does_not_wait_for_a_reader(bench):
    block = bench.get(512)
    assert bench.heap.enter(True)
    thread = threading.Thread(target=bench.heap.release, args=(block,))
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    bench.heap.leave()
    bench.finish([])


def test_threads_do_not_pass_the_limit_together():
    bench = Bench(limit=8 * MIB)
    meet = threading.Barrier(2, timeout=60)
    got = []

    def both():
        if bench.upstream.calls["reserve"] <= 2:
            meet.wait()  # both have their promise, neither its memory

    def work(key):
        try:
            got.append(bench.get(4 * MIB, key))
        except NoMemoryError:
            got.append(None)

    bench.upstream.before["reserve"] = both
    threads = [threading.Thread(target=work, args=(key,)) for key in (S, T)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert None not in got
    with pytest.raises(NoMemoryError):
        bench.get(4 * MIB)
    bench.finish(got)
