"""Statistics: torch's keys and meanings, the resets, and what only cachepool has."""

import random
import threading
from importlib import import_module

import pytest

from cachepool.errors import DeviceFullError
from cachepool.growth import slabs
from cachepool.stats import HeapStats

MIB = 2**20
FORMS = {"pure": "cachepool.engine.heap", "compiled": "cachepool._compiled.engine.heap"}
POOLS = ("all", "small_pool", "large_pool")
TYPES = ("current", "peak", "allocated", "freed")


class Range:
    def __init__(self, ptr):
        self.ptr = ptr


class Upstream:
    """Memory at rising addresses, up to a capacity; streams have no owner."""

    def __init__(self, capacity=2**40):
        self.capacity = capacity
        self.sizes = {}
        self.end = 2**32

    def reserve(self, nbytes):
        if sum(self.sizes.values()) + nbytes > self.capacity:
            raise DeviceFullError
        held = Range(self.end)
        self.end += nbytes + 2 * MIB
        self.sizes[held.ptr] = nbytes
        return held

    def release(self, held):
        del self.sizes[held.ptr]

    def synchronize(self):
        pass

    def owner(self, key):
        return None


@pytest.fixture(params=FORMS)
def new_heap(request):
    """Make a heap of either form."""
    try:
        module = import_module(FORMS[request.param])
    except ImportError as error:
        pytest.skip(f"the {request.param} engine is not here: {error}")

    def make(capacity=2**40):
        return module.Heap(0, Upstream(capacity), slabs, lambda heap, size: MemoryError(size))

    return make


def four_steps(heap):
    """Two small blocks on two streams stay; a large one came and went."""
    first = heap.allocate(1000, 0)  # 1,024 of a 2 MiB slab
    large = heap.allocate(3 * MIB, 0)  # of 4 MiB: a remainder of 1 MiB is split off
    heap.allocate(600, 7)  # another stream, so another slab
    heap.release(large)
    return first


def row(stats, prefix):
    return tuple(stats[f"{prefix}.{kind}"] for kind in TYPES)


def rounded(nbytes):
    return -(-nbytes // 512) * 512


class TestKeys:
    """The keys are torch's and ours, sorted, and the nested form says the same."""

    METRICS = [
        "allocation",
        "allocated_bytes",
        "active",
        "active_bytes",
        "requested_bytes",
        "segment",
        "reserved_bytes",
        "inactive_split",
        "inactive_split_bytes",
    ]
    SINGLE = [
        "num_alloc_retries",
        "num_ooms",
        "num_oom_rejections",
        "num_sync_all_streams",
        "num_device_alloc",
        "num_device_free",
        "max_split_size",
        "fragmentation",
        "largest_free_block",
        "cached_bytes",
        "releasable_bytes",
        "take_overs.ordered",
        "take_overs.completed",
        "take_overs.waiting",
    ]

    def test_a_new_heap_has_every_key_and_no_stream(self, new_heap):
        expected = {f"{m}.{p}.{t}" for m in self.METRICS for p in POOLS for t in TYPES}
        expected |= {f"oversize_{m}.{t}" for m in ("allocations", "segments") for t in TYPES}
        expected |= set(self.SINGLE)
        stats = HeapStats(new_heap()).flat()
        assert set(stats) == expected
        assert stats.pop("max_split_size") == -1
        assert set(stats.values()) == {0}

    def test_each_stream_adds_twelve_keys(self, new_heap):
        heap = new_heap()
        before = set(HeapStats(heap).flat())
        for key in (1, 2):
            heap.allocate(512, key)
        assert set(HeapStats(heap).flat()) - before == {
            f"streams.{n}.{m}.{t}"
            for n in (0, 1)
            for m in ("allocation", "allocated_bytes", "reserved_bytes")
            for t in TYPES
        }

    def test_keys_are_sorted_as_text(self, new_heap):
        heap = new_heap()
        for key in range(12):
            heap.allocate(512, key)
        keys = list(HeapStats(heap).flat())
        assert keys == sorted(keys)
        assert keys.index("streams.10.allocation.peak") < keys.index("streams.2.allocation.peak")

    def test_values_are_plain_ints_except_the_fragmentation(self, new_heap):
        heap = new_heap()
        four_steps(heap)
        kinds = {key: type(value) for key, value in HeapStats(heap).flat().items()}
        assert kinds.pop("fragmentation") is float
        assert set(kinds.values()) == {int}

    def test_nested_is_flat_with_a_dict_for_each_level(self, new_heap):
        def leaves(level, prefix=""):
            for name, value in level.items():
                if isinstance(value, dict):
                    yield from leaves(value, f"{prefix}{name}.")
                else:
                    yield prefix + name, value

        heap = new_heap()
        four_steps(heap)
        stats = HeapStats(heap)
        nested = stats.nested()
        assert dict(leaves(nested)) == stats.flat()
        assert nested["segment"]["all"]["peak"] == 3
        assert nested["streams"]["1"]["allocation"]["current"] == 1


class TestMeanings:
    """Figures of `four_steps`, computed by hand from torch's definitions."""

    SLAB_REST = 2 * MIB - 1024

    @pytest.mark.parametrize(
        ("metric", "everything", "small", "large"),
        [
            ("allocation", (2, 3, 3, 1), (2, 2, 2, 0), (0, 1, 1, 1)),
            ("active", (2, 3, 3, 1), (2, 2, 2, 0), (0, 1, 1, 1)),
            (
                "allocated_bytes",
                (2048, 3147776, 3147776, 3145728),
                (2048, 2048, 2048, 0),
                (0, 3145728, 3145728, 3145728),
            ),
            (
                "active_bytes",
                (2048, 3147776, 3147776, 3145728),
                (2048, 2048, 2048, 0),
                (0, 3145728, 3145728, 3145728),
            ),
            (
                "requested_bytes",
                (1600, 3147328, 3147328, 3145728),
                (1600, 1600, 1600, 0),
                (0, 3145728, 3145728, 3145728),
            ),
            ("segment", (3, 3, 3, 0), (2, 2, 2, 0), (1, 1, 1, 0)),
            (
                "reserved_bytes",
                (8388608, 8388608, 8388608, 0),
                (4194304, 4194304, 4194304, 0),
                (4194304, 4194304, 4194304, 0),
            ),
            # the large segment's remainder counted only while the large block was live
            ("inactive_split", (2, 3, 3, 1), (2, 2, 2, 0), (0, 1, 1, 1)),
            (
                "inactive_split_bytes",
                (4192256, 5240832, 5240832, 1048576),
                (4192256, 4192256, 4192256, 0),
                (0, 1048576, 1048576, 1048576),
            ),
        ],
    )
    def test_a_metric_after_four_steps(self, new_heap, metric, everything, small, large):
        heap = new_heap()
        four_steps(heap)
        stats = HeapStats(heap).flat()
        assert row(stats, f"{metric}.all") == everything
        assert row(stats, f"{metric}.small_pool") == small
        assert row(stats, f"{metric}.large_pool") == large

    def test_the_free_space_after_four_steps(self, new_heap):
        heap = new_heap()
        four_steps(heap)
        stats = HeapStats(heap).flat()
        assert stats["largest_free_block"] == 4194304  # the large segment, whole again
        assert stats["cached_bytes"] == 8386560  # 8 MiB less two blocks of 1,024
        assert stats["releasable_bytes"] == 4194304
        assert stats["fragmentation"] == pytest.approx(1 - 4194304 / 8386560, abs=1e-15)

    def test_the_streams_after_four_steps(self, new_heap):
        heap = new_heap()
        four_steps(heap)
        stats = HeapStats(heap).flat()
        assert row(stats, "streams.0.allocation") == (1, 2, 2, 1)
        assert row(stats, "streams.0.allocated_bytes") == (1024, 3146752, 3146752, 3145728)
        assert row(stats, "streams.0.reserved_bytes") == (6291456, 6291456, 6291456, 0)
        assert row(stats, "streams.1.allocation") == (1, 1, 1, 0)
        assert row(stats, "streams.1.allocated_bytes") == (1024, 1024, 1024, 0)
        assert row(stats, "streams.1.reserved_bytes") == (2097152, 2097152, 2097152, 0)

    def test_the_pool_is_told_by_the_rounded_size(self, new_heap):
        heap = new_heap()
        for size in (MIB - 511, MIB, MIB + 1):
            heap.allocate(size, 0)
        stats = HeapStats(heap).flat()
        assert stats["allocation.small_pool.current"] == 2
        assert stats["allocation.large_pool.current"] == 1

    def test_the_peak_of_all_is_not_the_sum_of_the_peaks(self, new_heap):
        heap = new_heap()
        heap.release(heap.allocate(MIB, 0))
        heap.release(heap.allocate(2 * MIB, 0))
        stats = HeapStats(heap).flat()
        assert stats["allocated_bytes.small_pool.peak"] == MIB
        assert stats["allocated_bytes.large_pool.peak"] == 2 * MIB
        assert stats["allocated_bytes.all.peak"] == 2 * MIB

    def test_nothing_free_is_not_fragmented(self, new_heap):
        heap = new_heap()
        block = heap.allocate(2 * MIB, 0)
        stats = HeapStats(heap).flat()
        assert stats["cached_bytes"] == stats["largest_free_block"] == 0
        assert stats["fragmentation"] == 0.0
        heap.release(block)
        assert HeapStats(heap).flat()["fragmentation"] == 0.0

    def test_a_dead_stream_is_left_out_and_its_number_not_given_again(self, new_heap):
        heap = new_heap()
        heap.release(heap.allocate(512, 5))
        heap.allocate(512, 6)
        heap.trim(None, None)  # stream 5 has no memory left and no owner
        numbers = {k.split(".")[1] for k in HeapStats(heap).flat() if k.startswith("streams.")}
        assert numbers == {"1"}

    def test_events_are_counted(self, new_heap):
        heap = new_heap(capacity=8 * MIB)
        for block in [heap.allocate(4 * MIB, 0), heap.allocate(4 * MIB, 0)]:
            heap.release(block)
        heap.allocate(6 * MIB, 0)  # only after both segments went back
        with pytest.raises(MemoryError):
            heap.allocate(4 * MIB, 0)  # nothing to give back
        heap.limit = 7 * MIB
        with pytest.raises(MemoryError):
            heap.allocate(8 * MIB, 0)  # more than the limit: refused outright
        stats = HeapStats(heap).flat()
        assert stats["num_alloc_retries"] == 2
        assert stats["num_ooms"] == 2
        assert stats["num_oom_rejections"] == 1
        assert stats["num_sync_all_streams"] == 1
        assert stats["num_device_alloc"] == 3
        assert stats["num_device_free"] == 2
        assert row(stats, "segment.all") == (1, 2, 3, 2)


class TestResets:
    """Each reset changes its own types and nothing else."""

    def test_reset_peaks_lets_every_peak_be_the_current_value(self, new_heap):
        heap = new_heap()
        four_steps(heap)
        stats = HeapStats(heap)
        expected = stats.flat()
        for key in expected:
            if key.endswith(".peak"):
                expected[key] = expected[key.removesuffix("peak") + "current"]
        stats.reset_peaks()
        assert stats.flat() == expected
        assert expected["allocation.all.peak"] == expected["streams.0.allocation.peak"] + 1 == 2

    def test_a_peak_grows_again_after_its_reset(self, new_heap):
        heap = new_heap()
        four_steps(heap)
        stats = HeapStats(heap)
        stats.reset_peaks()
        heap.release(heap.allocate(2 * MIB, 0))
        assert stats.flat()["allocated_bytes.all.peak"] == 2048 + 2 * MIB

    def test_reset_accumulated_leaves_current_values_and_peaks(self, new_heap):
        heap = new_heap()
        four_steps(heap)
        stats = HeapStats(heap)
        expected = stats.flat()
        assert expected["num_device_alloc"] == 3
        for key in expected:
            if key.endswith((".allocated", ".freed")) or key.startswith("num_"):
                expected[key] = 0
        stats.reset_accumulated()
        assert stats.flat() == expected

    def test_accumulated_values_count_from_the_last_reset(self, new_heap):
        heap = new_heap()
        first = four_steps(heap)
        stats = HeapStats(heap)
        stats.reset_accumulated()
        heap.allocate(100, 0)
        stats.reset_accumulated()
        heap.release(first)
        heap.allocate(5 * MIB, 9)  # 6 MiB, on a stream born after the reset
        after = stats.flat()
        assert row(after, "allocation.all") == (3, 3, 1, 1)
        assert row(after, "allocated_bytes.small_pool") == (1536, 2560, 0, 1024)
        assert row(after, "requested_bytes.large_pool") == (5 * MIB, 5 * MIB, 5 * MIB, 0)
        assert row(after, "reserved_bytes.all") == (14 * MIB, 14 * MIB, 6 * MIB, 0)
        assert row(after, "streams.0.allocated_bytes") == (512, 3146752, 0, 1024)
        assert row(after, "streams.2.reserved_bytes") == (6 * MIB, 6 * MIB, 6 * MIB, 0)
        assert after["num_device_alloc"] == 1

    def test_a_stream_may_die_after_the_reset(self, new_heap):
        heap = new_heap()
        heap.release(heap.allocate(512, 5))
        heap.allocate(512, 6)
        stats = HeapStats(heap)
        stats.reset_accumulated()
        heap.trim(None, None)
        after = stats.flat()
        assert "streams.0.allocation.allocated" not in after
        assert row(after, "segment.all") == (1, 2, 0, 1)

    def test_another_reader_is_not_affected(self, new_heap):
        heap = new_heap()
        four_steps(heap)
        one, other = HeapStats(heap), HeapStats(heap)
        before = other.flat()
        one.reset_accumulated()
        assert other.flat() == before


class Model:
    """What torch's definitions make of a run, from the requests and the segments alone."""

    def __init__(self, heap):
        self.heap = heap
        self.live = {}  # address: (requested, block)
        self.segment_pools = {}  # address: pool
        self.now, self.peak, self.ever = {}, {}, {}

    def allocate(self, size, key):
        block = self.heap.allocate(size, key)
        assert block.ptr not in self.live
        self.live[block.ptr] = (size, block)
        pool = "small_pool" if size <= MIB else "large_pool"
        for ptr in self.heap.upstream.sizes.keys() - self.segment_pools.keys():
            self.segment_pools[ptr] = pool
        self.note()

    def release(self, ptr):
        self.heap.release(self.live.pop(ptr)[1])
        self.note()

    def trim(self):
        self.heap.trim(None, None)
        for ptr in self.segment_pools.keys() - self.heap.upstream.sizes.keys():
            del self.segment_pools[ptr]
        self.note()

    def note(self):
        now = {(metric, pool): 0 for metric in TestKeys.METRICS for pool in POOLS}
        for size, _ in self.live.values():
            pool = "small_pool" if size <= MIB else "large_pool"
            for metric in ("allocation", "active"):
                now[metric, pool] += 1
            for metric in ("allocated_bytes", "active_bytes"):
                now[metric, pool] += rounded(size)
            now["requested_bytes", pool] += size
        for ptr, pool in self.segment_pools.items():
            now["segment", pool] += 1
            now["reserved_bytes", pool] += self.heap.upstream.sizes[ptr]
            free = self.inactive(ptr)
            now["inactive_split", pool] += len(free)
            now["inactive_split_bytes", pool] += sum(free)
        for (metric, pool), value in list(now.items()):
            if pool != "all":
                now[metric, "all"] += value
                rise = max(0, value - self.now.get((metric, pool), 0))
                for key in ((metric, pool), (metric, "all")):
                    self.ever[key] = self.ever.get(key, 0) + rise
        self.peak = {key: max(self.peak.get(key, 0), value) for key, value in now.items()}
        self.now = now

    def inactive(self, ptr):
        """Return the sizes of the free tiles of a segment that has live ones."""
        tiles = []
        block = self.heap.segments[ptr].first
        while block is not None:
            tiles.append((block.ptr in self.live, block.n * 512))
            block = block.next
        assert sum(size for _, size in tiles) == self.heap.upstream.sizes[ptr]
        return [size for live, size in tiles if not live] if any(t[0] for t in tiles) else []


def random_run(model, seed, steps=400, after=lambda: None):
    """Allocate, release and trim at random; return the addresses given, in order."""
    rng = random.Random(seed)
    given = []
    for _ in range(steps):
        if rng.random() < 0.01:
            model.trim()
        elif model.live and rng.random() < 0.5:
            model.release(rng.choice(sorted(model.live)))
        else:
            small = rng.random() < 0.7
            size = rng.randint(1, 40) * 500 if small else rng.randint(1, 9 * MIB)
            model.allocate(size, rng.choice((0, 3)))
            given.append(next(reversed(model.live)))
        after()
    return given


class TestRecount:
    """Figures agree with a count that knows nothing of bins, and reading is harmless."""

    COARSE = ("inactive_split", "inactive_split_bytes")  # their sums depend on steps within a call

    @pytest.mark.parametrize("seed", range(5))
    def test_every_figure_of_a_random_run_is_as_recounted(self, new_heap, seed):
        model = Model(new_heap())
        stats = HeapStats(model.heap)

        def compare():
            flat = stats.flat()
            for (metric, pool), value in model.now.items():
                current, peak, allocated, freed = row(flat, f"{metric}.{pool}")
                assert (current, peak) == (value, model.peak[metric, pool]), (metric, pool)
                assert allocated - freed == current
                if metric not in self.COARSE:
                    assert allocated == model.ever[metric, pool], (metric, pool)
            assert flat["cached_bytes"] == sum(model.heap.upstream.sizes.values()) - sum(
                rounded(size) for size, _ in model.live.values()
            )

        random_run(model, seed, after=compare)

    @pytest.mark.parametrize("seed", range(3))
    def test_releasable_bytes_are_what_a_trim_gives_back(self, new_heap, seed):
        model = Model(new_heap())
        random_run(model, seed, steps=150)
        for ptr in sorted(model.live)[::2]:
            model.release(ptr)
        releasable = HeapStats(model.heap).flat()["releasable_bytes"]
        assert releasable > 0
        assert model.heap.trim(None, None) == releasable

    @pytest.mark.parametrize("seed", range(3))
    def test_reading_and_resetting_change_no_later_address(self, new_heap, seed):
        watched, alone = Model(new_heap()), Model(new_heap())
        stats = HeapStats(watched.heap)

        def look():
            stats.nested()
            stats.reset_peaks()
            stats.reset_accumulated()

        assert random_run(watched, seed, after=look) == random_run(alone, seed)


class TestTurns:
    """A reading is of one moment, and never hangs."""

    def test_reading_from_within_a_change_does_not_hang_and_leaves_the_books_held(self, new_heap):
        heap = new_heap()
        block = heap.allocate(1000, 0)
        stats = HeapStats(heap)
        assert heap.enter(True)
        try:
            heap.release(block)  # waits: the books are held
            assert stats.flat()["allocation.all.current"] == 1
            assert heap.busy
        finally:
            heap.leave()
        assert row(stats.flat(), "allocation.all") == (0, 1, 1, 1)

    def test_the_books_are_free_after_a_reading_that_failed(self, new_heap, monkeypatch):
        heap = new_heap()
        monkeypatch.setattr("cachepool.stats.EVENTS", {"num_ooms": "no_such_counter"})
        with pytest.raises(AttributeError):
            HeapStats(heap).flat()
        assert not heap.busy

    def test_every_reading_beside_a_busy_thread_adds_up(self, new_heap):
        heap = new_heap()
        stats = HeapStats(heap)
        stop = threading.Event()

        def work():
            rng = random.Random(1)
            held = []
            while not stop.is_set():
                held.append(heap.allocate(rng.randint(1, 3 * MIB), rng.choice((0, 1))))
                if len(held) > 20:
                    heap.release(held.pop(rng.randrange(20)))

        thread = threading.Thread(target=work)
        thread.start()
        try:
            for flat in (stats.flat() for _ in range(200)):
                streams = [k for k in flat if k.startswith("streams.")]
                for metric in ("allocation", "allocated_bytes", "reserved_bytes"):
                    for kind in ("current", "allocated", "freed"):
                        parts = [flat[k] for k in streams if k.endswith(f".{metric}.{kind}")]
                        assert sum(parts) == flat[f"{metric}.all.{kind}"]
        finally:
            stop.set()
            thread.join()
