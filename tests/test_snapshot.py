"""Segments and blocks as torch's viewer reads them."""

import pickle
import pickletools
import random
from importlib import import_module

import pytest

from cachepool.growth import slabs
from cachepool.snapshot import snapshot
from cachepool.stats import HeapStats

MIB = 2**20
BASE = 0x7F0000000000
FORMS = {"pure": "cachepool.engine.heap", "compiled": "cachepool._compiled.engine.heap"}


class Range:
    def __init__(self, ptr):
        self.ptr = ptr


class Upstream:
    """Memory at falling addresses; calls `during` with the name of each call."""

    def __init__(self):
        self.low = BASE
        self.sizes = {}
        self.during = lambda call: None

    def reserve(self, nbytes):
        self.low -= nbytes + 16 * MIB
        self.sizes[self.low] = nbytes
        self.during("reserve")
        return Range(self.low)

    def release(self, held):
        self.during("release")
        del self.sizes[held.ptr]

    def synchronize(self):
        self.during("synchronize")

    def owner(self, key):
        return None


@pytest.fixture(params=FORMS)
def new_heap(request):
    """Make a heap of either form."""
    try:
        module = import_module(FORMS[request.param])
    except ImportError as error:
        pytest.skip(f"the {request.param} engine is not here: {error}")

    def make(device=0):
        return module.Heap(device, Upstream(), slabs, lambda heap, size: MemoryError(size))

    return make


def live(address, size, requested):
    return {
        "address": address,
        "size": size,
        "requested_size": requested,
        "state": "active_allocated",
        "frames": [],
    }


def free(address, size):
    return live(address, size, 0) | {"state": "inactive"}


def segment(address, total, allocated, requested, *blocks, device=0, stream=0, kind="small"):
    return {
        "device": device,
        "address": address,
        "total_size": total,
        "allocated_size": allocated,
        "active_size": allocated,
        "requested_size": requested,
        "stream": stream,
        "segment_type": kind,
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": list(blocks),
    }


def run(heap, seed, steps=300, after=lambda held: None):
    """Allocate and release at random; return the addresses given, and what is live."""
    rng = random.Random(seed)
    held, given = {}, []
    for _ in range(steps):
        if held and rng.random() < 0.45:
            heap.release(held.pop(rng.choice(sorted(held)))[1])
        else:
            small = rng.random() < 0.7
            size = rng.randint(1, 40) * 500 if small else rng.randint(1, 9 * MIB)
            block = heap.allocate(size, rng.choice((0, 3)))
            held[block.ptr] = size, block
            given.append(block.ptr)
        after(held)
    return given, held


class TestShape:
    """A snapshot has torch's keys and values, and the viewer can take it."""

    def test_a_new_heap_has_no_segment(self, new_heap):
        assert snapshot(new_heap()) == []

    def test_a_small_and_a_large_segment_of_two_streams(self, new_heap):
        heap = new_heap(device=2)
        heap.allocate(1000, 0)
        heap.allocate(513, 0)
        heap.allocate(3 * MIB, 77)
        small = BASE - 18 * MIB  # the first, so the higher one
        large = small - 20 * MIB
        assert snapshot(heap) == [
            segment(
                large,
                4 * MIB,
                3 * MIB,
                3 * MIB,
                live(large, 3 * MIB, 3 * MIB),
                free(large + 3 * MIB, MIB),
                device=2,
                stream=77,
                kind="large",
            ),
            segment(
                small,
                2 * MIB,
                2048,
                1513,
                live(small, 1024, 1000),
                live(small + 1024, 1024, 513),
                free(small + 2048, 2 * MIB - 2048),
                device=2,
            ),
        ]

    def test_released_small_neighbours_are_shown_unmerged(self, new_heap):
        heap = new_heap()
        blocks = [heap.allocate(512, 0) for _ in range(4)]
        for block in blocks[1:3]:
            heap.release(block)
        base = BASE - 18 * MIB
        assert snapshot(heap)[0]["blocks"] == [
            live(base, 512, 512),
            free(base + 512, 512),
            free(base + 1024, 512),
            live(base + 1536, 512, 512),
            free(base + 2048, 2 * MIB - 2048),
        ]

    def test_a_large_segment_whose_blocks_came_back_is_one_free_block(self, new_heap):
        heap = new_heap()
        heap.release(heap.allocate(5 * MIB, 0))
        base = BASE - 22 * MIB
        expected = segment(base, 6 * MIB, 0, 0, free(base, 6 * MIB), kind="large")
        assert snapshot(heap) == [expected]

    def test_the_key_of_a_per_thread_stream_is_negative(self, new_heap):
        heap = new_heap()
        heap.allocate(512, -5)
        assert snapshot(heap)[0]["stream"] == -5

    def test_nothing_is_more_than_plain_data_and_no_dict_or_list_is_shared(self, new_heap):
        seen = []

        def walk(thing):
            assert type(thing) in (int, str, bool, tuple, list, dict)
            if type(thing) in (list, dict):
                seen.append(id(thing))
            if type(thing) is dict:
                assert all(type(key) is str for key in thing)
            if type(thing) in (list, tuple, dict):
                for part in thing.values() if type(thing) is dict else thing:
                    walk(part)

        heap = new_heap()
        run(heap, 1)
        walk(segments := snapshot(heap))
        assert len(seen) > 100
        assert len(set(seen)) == len(seen)
        assert segments

    def test_a_pickle_of_protocol_4_needs_no_class(self, new_heap):
        heap = new_heap()
        run(heap, 2)
        data = pickle.dumps(snapshot(heap), protocol=4)
        names = {opcode.name for opcode, _, _ in pickletools.genops(data)}
        assert not names & {"GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "NEWOBJ"}
        assert pickle.loads(data) == snapshot(heap)


class TestTruth:
    """What a snapshot says is so, at every moment."""

    @pytest.mark.parametrize("seed", range(3))
    def test_a_random_run_is_shown_as_it_is(self, new_heap, seed):
        heap = new_heap()

        def compare(held):
            segments = snapshot(heap)
            addresses = [s["address"] for s in segments]
            assert addresses == sorted(addresses)
            assert {s["address"]: s["total_size"] for s in segments} == heap.upstream.sizes
            shown = {}
            for s in segments:
                end = s["address"]
                for block in s["blocks"]:
                    assert block["address"] == end
                    end += block["size"]
                    if block["state"] == "active_allocated":
                        shown[end - block["size"]] = block["requested_size"]
                assert end == s["address"] + s["total_size"]
            assert shown == {ptr: size for ptr, (size, _) in held.items()}

        run(heap, seed, after=compare)

    def test_the_sums_are_those_of_the_statistics(self, new_heap):
        heap = new_heap()
        run(heap, 4)
        segments, stats = snapshot(heap), HeapStats(heap).flat()
        for kind in ("small", "large"):
            part = [s for s in segments if s["segment_type"] == kind]
            assert len(part) == stats[f"segment.{kind}_pool.current"]
            reserved = sum(s["total_size"] for s in part)
            assert reserved == stats[f"reserved_bytes.{kind}_pool.current"]
        for size, metric in {
            "allocated_size": "allocated_bytes",
            "active_size": "active_bytes",
            "requested_size": "requested_bytes",
        }.items():
            assert sum(s[size] for s in segments) == stats[f"{metric}.all.current"]

    @pytest.mark.parametrize("seed", range(3))
    def test_a_snapshot_changes_no_later_address(self, new_heap, seed):
        heap = new_heap()
        watched = run(heap, seed, after=lambda held: snapshot(heap))
        assert watched[0] == run(new_heap(), seed)[0]

    def test_a_segment_on_its_way_back_is_listed_as_free_until_it_is_gone(self, new_heap):
        heap = new_heap()
        block = heap.allocate(512, 0)
        heap.release(heap.allocate(3 * MIB, 0))
        before = snapshot(heap)
        assert [s["total_size"] for s in before] == [4 * MIB, 2 * MIB]
        seen = []
        heap.upstream.during = lambda call: seen.append((call, snapshot(heap)))
        heap.trim(None, None)
        assert seen == [("synchronize", before), ("release", before)]
        assert snapshot(heap) == before[1:]
        heap.release(block)

    def test_a_snapshot_from_within_a_change_does_not_hang_and_leaves_the_books_held(
        self, new_heap
    ):
        heap = new_heap()
        block = heap.allocate(512, 0)
        assert heap.enter(True)
        try:
            heap.release(block)  # waits: the books are held
            assert snapshot(heap)[0]["allocated_size"] == 512
            assert heap.busy
        finally:
            heap.leave()
        assert snapshot(heap)[0]["allocated_size"] == 0
