"""When CuPy's arrays die: in cycles, in collections, in other threads, at exit."""

import gc
import random
import subprocess
import sys
import threading
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest
from conformity import MIB, UNIT, cupy, in_a_thread

CHECKOUT = Path(__file__).resolve().parents[2]


class Node:
    """Anything that can lie in a cycle with an array."""


class TestCycles:
    def test_arrays_in_cycles_are_released_by_a_collection(self, installed):
        for nbytes in range(1, 3 * MIB, MIB // 8):
            node = Node()
            node.itself, node.array = node, cupy.empty(nbytes, "u1")
        del node
        gc.collect()
        assert installed.used_bytes() == 0
        installed.check()

    def test_a_cycle_that_starts_at_the_array_is_released(self, installed):
        for _ in range(20):
            array, node = cupy.empty(5000, "u1"), Node()
            node.itself, node.array = node, array
            del array, node
        gc.collect()
        assert installed.used_bytes() == 0

    def test_a_view_in_a_cycle_keeps_its_block_till_the_collection(self, installed):
        node = Node()
        node.itself, node.view = node, cupy.empty(1000, "u1")[10:20]
        assert installed.used_bytes() == 1024
        del node
        gc.collect()
        assert installed.used_bytes() == 0

    def test_memory_in_cycles_is_found_when_the_device_is_full(self, installed):
        gc.collect()
        gc.disable()
        try:
            node = Node()
            node.itself, node.array = node, cupy.empty(600 * MIB, "u1")
            del node
            installed.set_limit(size=1024 * MIB)
            array = cupy.empty(600 * MIB, "u1")
        finally:
            gc.enable()
        assert installed.used_bytes() == 600 * MIB
        del array


class TestResurrection:
    @pytest.mark.parametrize("array_first", [True, False])
    def test_a_resurrected_array_is_not_handed_out_again(self, installed, array_first):
        saved = []

        class Saving:
            def __del__(self):
                saved.append(self.array)

        if array_first:
            array, node = cupy.empty(5000, "u1"), Saving()
        else:
            node, array = Saving(), cupy.empty(5000, "u1")
        node.itself, node.array = node, array
        del array, node
        gc.collect()
        assert installed.used_bytes() == 5120
        others = [cupy.empty(5000, "u1") for _ in range(5)]
        assert saved[0].data.ptr not in [array.data.ptr for array in others]
        assert saved[0].data.mem.ptr == saved[0].data.ptr
        saved.clear()
        del others
        assert installed.used_bytes() == 0


class TestReEntry:
    def test_finalisers_that_allocate_and_release_run_in_every_collection(self, installed):
        sizes = random.Random(5)

        class Nest:
            def __init__(self):
                self.itself = self
                self.array = cupy.empty(sizes.randint(1, 1 << 16), "u1")

            def __del__(self):
                cupy.empty(sizes.randint(1, 1 << 16), "u1")

        threshold = gc.get_threshold()
        gc.set_threshold(1)
        try:
            for _ in range(300):
                Nest()
        finally:
            gc.set_threshold(*threshold)
        gc.collect()
        stats = installed.memory_stats()
        assert stats["allocation.all.allocated"] == stats["allocation.all.freed"] == 600
        installed.check()

    def test_an_upstream_call_may_be_interrupted_by_a_release(self, installed, sim):
        array = cupy.empty(3 * MIB, "u1")
        bag = [array]
        del array
        sim.during("reserve", bag.clear)
        other = cupy.empty(5 * MIB, "u1")
        assert installed.used_bytes() == 5 * MIB
        installed.check()
        del other

    def test_an_upstream_call_may_be_interrupted_by_a_request(self, installed, sim):
        bag = []
        sim.during("reserve", lambda: bag.append(cupy.empty(3 * MIB, "u1")))
        array = cupy.empty(3 * MIB, "u1")
        assert installed.used_bytes() == 6 * MIB
        assert array.data.ptr != bag[0].data.ptr
        bag.clear()
        installed.check()
        del array


class TestThreads:
    def test_arrays_of_a_threads_locals_die_with_it(self, installed):
        local = threading.local()

        def fill():
            local.array = cupy.empty(100, "u1")
            return installed.used_bytes()

        assert in_a_thread(fill) == UNIT
        gc.collect()
        assert installed.used_bytes() == 0

    def test_threads_release_each_others_arrays(self, installed):
        bag, errors = [], []

        def work(seed):
            choose = random.Random(seed)
            try:
                for _ in range(500):
                    bag.append(cupy.empty(choose.randint(1, 1 << 18), "u1"))
                    if len(bag) > 50:
                        with suppress(IndexError):
                            bag.pop(choose.randrange(25))
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
        finally:
            sys.setswitchinterval(interval)
        assert errors == []
        spans = sorted((array.data.ptr, array.data.mem.size) for array in bag)
        assert all(ptr + size <= after for (ptr, size), (after, _) in pairwise(spans))
        assert installed.used_bytes() == sum(size for _, size in spans)
        bag.clear()
        stats = installed.memory_stats()
        assert stats["allocation.all.allocated"] == stats["allocation.all.freed"] == 2000


EXIT = """
import sys, threading
import cupy, cachepool
pool = cachepool.enable(device="sim")
in_globals = cupy.empty(1000)
class Node: pass
node = Node(); node.itself, node.array = node, cupy.empty(1000)
started = threading.Event()
def wait():
    in_a_frame = cupy.empty(1000)
    started.set()
    threading.Event().wait()
threading.Thread(target=wait, daemon=True).start()
started.wait()
cupy.kept = cupy.empty(3 << 20, "u1")
"""


class TestExit:
    @pytest.mark.parametrize("last", ["", "del pool", "cachepool.disable()", "sys.exit(3)"])
    def test_arrays_that_live_at_exit_make_no_noise(self, last):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", EXIT + last],
            cwd=CHECKOUT,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert (done.returncode, done.stderr) == (3 if "exit" in last else 0, "")
