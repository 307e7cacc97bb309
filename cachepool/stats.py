"""Statistics of one heap, in torch's shape, derived on reading.

The engine counts each figure for the small and the large pool as current value, peak and
ever-growing sum.  What torch shows besides follows from them:

    all        small pool + large pool, except the peak, which the engine keeps
    freed      ever − current: what came and is no longer there
    active     allocated: no block waits for another stream yet
    accumulated values (allocated, freed, num_*) count from the last accumulated reset

Resetting the accumulated values does not touch the engine: `HeapStats` notes what they
are at that moment and takes it off from then on.  A reader has the books to itself
(`books`), so that all figures of one reading belong to the same moment, and it changes
nothing that the choice of a block depends on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cachepool.engine.counters import FIGURES, POOLS

if TYPE_CHECKING:
    from cachepool.engine.heap import Heap

# torch's metrics by pool, and the engine's figure behind each
METRICS = {name: name for name in FIGURES} | {
    "active": "allocation",
    "active_bytes": "allocated_bytes",
}
OVERSIZE = ("oversize_allocations", "oversize_segments")  # no block is ever oversize: 0
EVENTS = {
    "num_alloc_retries": "retries",
    "num_ooms": "ooms",
    "num_oom_rejections": "rejections",
    "num_sync_all_streams": "syncs",
    "num_device_alloc": "device_allocs",
    "num_device_free": "device_frees",
}
STREAM_METRICS = ("allocation", "allocated_bytes", "reserved_bytes")  # as Cache.read
TAKE_OVERS = ("ordered", "completed", "waiting")


class HeapStats:
    """The statistics of one heap, and where its accumulated values start.

    Parameters
    ----------
    heap : Heap
        A heap of either form.

    Notes
    -----
    Safe from any thread; never waits for the device.  One per heap: a second one has
    starting values of its own.
    """

    def __init__(self, heap: Heap) -> None:
        self._heap = heap
        self._start: dict[str, int | float] = {}  # accumulated keys at their last reset

    def flat(self) -> dict[str, int | float]:
        """Return every statistic by its dotted key, sorted by key.

        Returns
        -------
        dict of str to int or float
            torch's keys: ``<metric>.<pool>.<type>`` with the pools ``all``, ``small_pool``
            and ``large_pool`` and the types ``current``, ``peak``, ``allocated`` and
            ``freed``; ``oversize_*.<type>``; ``num_*``; ``max_split_size``.  Metrics whose
            name has ``bytes`` are bytes, the others counts.

            cachepool's own:

            - ``fragmentation``: 0 to 1, 1 − largest free run ÷ all free bytes (the only float)
            - ``largest_free_block``: bytes of the largest free run of blocks
            - ``cached_bytes``: bytes reserved and not active
            - ``releasable_bytes``: bytes that emptying the cache would give back now
            - ``take_overs.{ordered,completed,waiting}``: blocks taken from other streams
            - ``streams.<n>.<metric>.<type>``: by the number of the stream's cache, for
              ``allocation``, ``allocated_bytes`` and ``reserved_bytes``

        Notes
        -----
        As ``torch.cuda.memory_stats``.  O(blocks), because of the free runs.
        """
        stats = _read(self._heap)
        for key, start in self._start.items():
            if key in stats:  # else a stream that is dead by now
                stats[key] -= start
        return dict(sorted(stats.items()))

    def nested(self) -> dict[str, Any]:
        """Return every statistic, one dict for each level of its key.

        Returns
        -------
        dict of str to int, float or dict
            ``flat()["segment.all.peak"]`` is ``nested()["segment"]["all"]["peak"]``; the
            number of a stream is text here too.

        Notes
        -----
        As ``torch.cuda.memory_stats_as_nested_dict``.  O(blocks).
        """
        nested: dict[str, Any] = {}
        for key, value in self.flat().items():
            *path, last = key.split(".")
            level = nested
            for name in path:
                level = level.setdefault(name, {})
            level[last] = value
        return nested

    def reset_peaks(self) -> None:
        """Let every peak, of the streams too, be the current value.

        Notes
        -----
        As ``torch.cuda.reset_peak_memory_stats``.  O(streams).
        """
        heap = self._heap
        heap.reading(lambda: _reset_peaks(heap))

    def reset_accumulated(self) -> None:
        """Let every ``allocated``, ``freed``, ``num_*`` and ``take_overs.*`` be 0.

        Notes
        -----
        As ``torch.cuda.reset_accumulated_memory_stats``; current values and peaks stay.
        From then on current = allocated − freed no longer holds.  O(blocks).
        """
        self._start = {k: v for k, v in _read(self._heap).items() if _accumulates(k)}


def _read(heap: Heap) -> dict[str, int | float]:
    """Return every statistic, accumulated since the heap's birth, in no order."""
    figures, caches, events, space = heap.reading(lambda: _facts(heap))
    stats: dict[str, int | float] = {"max_split_size": -1, **events}
    for metric, figure_name in METRICS.items():
        for pool in POOLS:
            stats |= _types(f"{metric}.{pool}", *figures[figure_name, pool])
    for metric in OVERSIZE:
        stats |= _types(metric, 0, 0, 0)
    for number, rows in caches:
        for metric, row in zip(STREAM_METRICS, rows, strict=True):
            stats |= _types(f"streams.{number}.{metric}", *row)
    stats |= {f"take_overs.{kind}": 0 for kind in TAKE_OVERS}
    return stats | _space(stats, *space)


def _types(prefix: str, current: int, peak: int, ever: int) -> dict[str, int]:
    """Return torch's four types of one figure."""
    return {
        f"{prefix}.current": current,
        f"{prefix}.peak": peak,
        f"{prefix}.allocated": ever,
        f"{prefix}.freed": ever - current,
    }


def _space(
    stats: dict[str, int | float], largest: int, free: int, runs: int, releasable: int
) -> dict[str, int | float]:
    """Return the figures of free memory; the last four arguments are `Heap.free_space`'s."""
    return {
        "fragmentation": 1 - largest / free if free else 0.0,
        "largest_free_block": largest,
        "cached_bytes": stats["reserved_bytes.all.current"] - stats["active_bytes.all.current"],
        "releasable_bytes": releasable,
    }


def _accumulates(key: str) -> bool:
    """Return whether the accumulated reset lets this figure be 0."""
    return key.endswith((".allocated", ".freed")) or key.startswith(("num_", "take_overs."))


def _facts(heap: Heap) -> tuple[dict[Any, Any], list[Any], dict[str, int], Any]:
    """Read everything at one moment; the books are ours."""
    figures = {
        (name, pool): heap.counters.read(figure, row)
        for figure, name in enumerate(FIGURES)
        for row, pool in enumerate(POOLS)
    }
    caches = [(c.number, c.read()) for c in heap.caches if c is not None]
    events = {key: int(getattr(heap, name)) for key, name in EVENTS.items()}
    space = heap.free_space()
    return figures, caches, events, space


def _reset_peaks(heap: Heap) -> None:
    heap.counters.reset_peaks()
    for cache in heap.caches:
        if cache is not None:
            cache.reset_peaks()
