"""The heaps of a pool, one for each device, made when first asked for."""

from __future__ import annotations

import functools
import operator
import threading

from cachepool import _form, growth
from cachepool.devices.cupy_edge import require_cupy
from cachepool.devices.protocol import Device
from cachepool.engine.counters import FIGURES
from cachepool.oom import MemoryReport, make_error
from cachepool.options import Options, check_size
from cachepool.stats import HeapStats
from cachepool.upstream import CallableUpstream, DeviceUpstream

ADDRESS_SPACE = 1 << 47
ALLOCATED, RESERVED = FIGURES.index("allocated_bytes"), FIGURES.index("reserved_bytes")


class Heaps:
    """What every room of the pool stands on: its device, its options, a heap per ordinal.

    Attributes
    ----------
    device : Device
        Where memory comes from.
    options : Options
        What was asked for.
    closed : bool
        Whether the pool refuses requests.
    """

    def __init__(self, device: Device, options: Options) -> None:
        if _form.FAULT is not None:
            raise ImportError(_form.FAULT)
        if options.backing != "malloc":
            require_cupy("a callable backing")
        self.device = device
        self.options = options
        self.closed = False
        self._heaps: dict[int, _form.Heap] = {}
        self._stats: dict[int, HeapStats] = {}
        self._lock = threading.Lock()

    def heap(self, device: int) -> _form.Heap:
        """Return the heap of a device ordinal.

        Raises
        ------
        ValueError
            If there is no such device.
        RuntimeError
            If the pool is closed.
        """
        heap = self._heaps.get(device)
        if heap is None:
            limit = self._limit_of(device)
            with self._lock:
                heap = self._heaps.get(device)
                if heap is None:
                    heap = self._make_heap(device, limit)
        return heap

    def heaps(self) -> list[_form.Heap]:
        """Return the heaps that exist, by device."""
        return [heap for _, heap in sorted(self._heaps.items())]

    def totals(self) -> tuple[int, int]:
        """Return the bytes allocated and reserved on all devices."""
        heaps = self.heaps()
        allocated = sum(heap.counters.read(ALLOCATED, 2)[0] for heap in heaps)
        return allocated, sum(heap.counters.read(RESERVED, 2)[0] for heap in heaps)

    def ordinal(self, device: object) -> int:
        """Return the ordinal that `device` names; the current device's for None."""
        if device is None:
            return self.device.current()
        if isinstance(device, bool) or not hasattr(device, "__index__"):
            raise TypeError(f"device must be an ordinal or None, got {device!r}")
        return operator.index(device)

    def check_size(self, size: object, device: int | None = None) -> int:
        """Return a request that can be served at all, as bytes, or raise."""
        nbytes = check_size(size)
        if nbytes > ADDRESS_SPACE:
            heap = self.heap(self.ordinal(device))
            heap.rejections += 1
            heap.ooms += 1
            raise out_of_memory(self.device, heap, nbytes)
        return nbytes

    def _make_heap(self, device: int, limit: int) -> _form.Heap:
        backing = self.options.backing
        if callable(backing):
            upstream: DeviceUpstream = CallableUpstream(self.device, device, backing)
            sizes = growth.exact
        else:
            upstream, sizes = DeviceUpstream(self.device, device), growth.slabs
        # Nothing below refers to the pool: a heap goes with its last array, not with a collection.
        error = functools.partial(out_of_memory, self.device)
        heap = _form.Heap(device, upstream, sizes, error, limit)
        self._stats[device] = HeapStats(heap)
        self._heaps[device] = heap
        return heap

    def _limit_of(self, device: int) -> int:
        if self.closed:
            raise RuntimeError("this pool is closed: make or enable another one")
        count = self.device.count()
        if not 0 <= device < count:
            raise ValueError(f"device must be from 0 to {count - 1}, got {device}")
        limit = self.options.limit
        if isinstance(limit, float):
            return int(limit * self.device.mem_info(device)[1])
        return limit

    def _take_heaps(self) -> list[_form.Heap]:
        """Close: make no more heaps, and return those there were."""
        with self._lock:
            self.closed = True
            heaps = self.heaps()
            self._heaps.clear()
            self._stats.clear()
        return heaps


def out_of_memory(device: Device, heap: _form.Heap, size: int) -> MemoryError:
    """Return the error for a request of `size` bytes that a heap could not serve."""
    try:
        free, total = device.mem_info(heap.device)
    except Exception:  # a device that cannot even say; the report must not hide the cause
        free = total = -1
    return make_error(
        MemoryReport(
            asked=size,
            device=heap.device,
            allocated=heap.counters.read(ALLOCATED, 2)[0],
            reserved=heap.counters.read(RESERVED, 2)[0],
            limit=heap.limit,
            largest_free_block=heap.free_space()[0],
            device_free=free,
            device_total=total,
        )
    )
