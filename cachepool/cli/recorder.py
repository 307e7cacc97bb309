"""Recording what CuPy asks of the pool, as the demo does: a memory hook that makes a `Trace`."""

from __future__ import annotations

from typing import Any

import numpy as np
from cupy.cuda import MemoryHook
from numpy.typing import NDArray

from cachepool.offline import Trace
from cachepool.offline.validate import ALLOCATE
from cachepool.pool import CachePool

FREE = 1 - ALLOCATE


class Recorder(MemoryHook):  # type: ignore[misc]
    """Requests, releases and calls to the device of this thread, while it is entered.

    Parameters
    ----------
    pool : CachePool
        The pool that serves them; it must be empty.

    Attributes
    ----------
    requests, hits : int
        Requests of more than 0 bytes; those served without a call to the device.
    upstream_allocations : int
        Requests made to the device, refused ones included.

    Notes
    -----
    Costs several times what the pool does itself.
    """

    name = "cachepool recorder"

    def __init__(self, pool: CachePool) -> None:
        self.pool = pool
        self.requests = self.hits = self.upstream_allocations = 0
        self._before = 0
        self._events: list[tuple[int, int, int, int]] = []  # op, id, size, stream
        self._live: dict[int, tuple[int, int, int]] = {}  # by pmem_id
        self._streams = {0: 0}  # the default stream has number 0 in a trace
        self._levels: list[tuple[int, int]] = []

    def malloc_preprocess(self, **_: Any) -> None:
        """Note the calls made so far."""
        self._before = self.upstream_allocations

    def alloc_preprocess(self, **_: Any) -> None:
        """Count a call to the device."""
        self.upstream_allocations += 1

    def malloc_postprocess(self, *, size: int, mem_ptr: int, pmem_id: int, **_: Any) -> None:
        """Record a request that was served."""
        if not mem_ptr:  # of 0 bytes, or failed
            return
        self.requests += 1
        self.hits += self.upstream_allocations == self._before
        key = self.pool.device.current_stream()
        block = (self.requests - 1, size, self._streams.setdefault(key, len(self._streams)))
        self._live[pmem_id] = block
        self._note(ALLOCATE, block)

    def free_postprocess(self, *, pmem_id: int, **_: Any) -> None:
        """Record a release."""
        if pmem_id in self._live:
            self._note(FREE, self._live.pop(pmem_id))

    def _note(self, op: int, block: tuple[int, int, int]) -> None:
        self._events.append((op, *block))
        self._levels.append((self.pool.memory_allocated(), self.pool.memory_reserved()))

    def trace(self, name: str) -> Trace:
        """Return what was recorded so far."""
        columns = np.array(self._events, np.int64).reshape(-1, 4).T
        return Trace(*columns, meta={"name": name})

    def levels(self) -> NDArray[np.int64]:
        """Return the bytes allocated and reserved after each event: int64, shape (n_events, 2)."""
        return np.array(self._levels, np.int64).reshape(-1, 2)
