"""The heap of one device: who gets which block.

The life of a block: `allocate` takes it from its stream's cache (`pick`), merging what was
kept for exact re-use if nothing fits; a miss takes a new segment, gives whole free segments
back and tries again, lets the cycle collector run and tries again, and is out of memory
then.  `release` puts it back.  After every step that may have let other code run,
the search starts over.

Whose turn it is at the books is the subject of `turns`.  Upstream is called with nothing
held: it may block, and may run anything.

What a hit and a release run uncompiled is written out where a call would be cleaner: calls
are what they cost.
"""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING

try:
    import cython
except ImportError:
    from cachepool import _cyshim as cython

from cachepool.errors import DeviceFullError

from .blocks import Block, Segment
from .cache import Cache
from .counters import Counters
from .turns import Turns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cachepool.engine.upstream import Held, Upstream

if not cython.compiled:
    from .blocks import SMALL_UNITS, UNIT_BITS
    from .counters import RESERVED


@cython.final
@cython.cclass
class Heap(Turns):
    """Serve ``allocate(size, key)`` and ``release(block)`` on one device.

    Parameters
    ----------
    device : int
        Ordinal, for reports.
    upstream : Upstream
        Where segments come from.
    growth : callable
        ``growth(nbytes, room)`` returns the segment sizes to try for a request, in order;
        `room` is what the limit leaves, -1 without one.
    out_of_memory : callable
        ``out_of_memory(heap, size)`` makes the exception for a request that cannot be served.
    """

    device: int
    upstream: Upstream
    growth: Callable[[int, int], Iterable[int]]
    out_of_memory: Callable[[Heap, int], BaseException]
    limit: int
    promised: int
    caches: list[Cache | None]
    by_key: dict[int, Cache]
    last: Cache | None
    counters: Counters
    alone: int
    segments: dict[int, Segment]
    limbo: dict[int, Segment]
    retries: int
    ooms: int
    rejections: int
    syncs: int
    device_allocs: int
    device_frees: int

    def __init__(
        self,
        device: int,
        upstream: Upstream,
        growth: Callable[[int, int], Iterable[int]],
        out_of_memory: Callable[[Heap, int], BaseException],
        limit: int = 0,
    ) -> None:
        Turns.__init__(self)
        self.device = device
        self.upstream = upstream
        self.growth = growth
        self.out_of_memory = out_of_memory
        self.limit = limit
        self.promised = 0
        self.caches = []
        self.by_key = {}
        self.last = None
        self.counters = Counters()
        self.alone = self.holders(Cache(0, object(), self.counters))
        self.segments = {}
        self.limbo = {}
        self.retries = self.ooms = self.rejections = self.syncs = 0
        self.device_allocs = self.device_frees = 0

    def allocate(self, size: int, key: int) -> Block:
        """Return a block of `size` bytes (more than 0) for use on the stream `key`."""
        n = (size + 511) >> UNIT_BITS
        cache = self.last
        if cache is None or cache.key != key:
            cache = self.cache_of(key)
        b = self.obtain(cache, n, size)
        if b is None:
            b = self.miss(cache, n, size)
        return b

    def release(self, b: Block) -> None:
        """Take a block back: any thread, any moment; never raises, never waits."""
        if cython.compiled:
            if self.busy or self.arrived:
                self.pending.append(b)
                self.settle()
            else:
                self.put(b)
        elif self.lock.acquire(False):
            if self.busy:
                self.pending.append(b)
                self.lock.release()
            else:
                self.busy = True
                try:
                    if self.arrived:
                        self.drain()
                    self.put(b)
                finally:
                    self.busy = False
                    self.lock.release()
                if self.pending or self.arrived:
                    self.settle()
        else:
            self.pending.append(b)
            self.settle()

    def obtain(self, cache: Cache, n: int, size: int) -> Block | None:
        """Serve from the stream's own cache; None when re-entered or nothing fits."""
        if cython.compiled:
            return None if self.busy else self.pick(cache, n, size)
        self.lock.acquire()
        if self.busy:
            self.lock.release()
            return None
        self.busy = True
        try:
            if self.pending or self.arrived:
                self.drain()
            return self.pick(cache, n, size)
        finally:
            self.busy = False
            self.lock.release()
            if self.pending or self.arrived:
                self.settle()

    def pick(self, cache: Cache, n: int, size: int) -> Block | None:
        """Take a block from a cache and count it; the books are ours."""
        if n > SMALL_UNITS:
            b = cache.large.take(n)
        else:
            b = cache.small.get(n)
            if b is None and cache.small.flush():
                b = cache.small.take(n)
        if b is not None:
            b.requested = size
            self.counters.taken(b)
            cache.taken(n << UNIT_BITS)
        return b

    def put(self, b: Block) -> None:
        """Count a released block and put it into its cache; the books are ours."""
        s = b.segment
        n = b.n
        requested = b.requested
        b.requested = 0
        cache: Cache = self.caches[b.cache]  # type: ignore[assignment]
        cache.count -= 1
        cache.nbytes -= n << UNIT_BITS
        tiles = s.tiles
        if s.small:
            cache.small.put(b)
        else:
            cache.large.give(b)
        self.counters.given(s, n, requested, s.tiles < tiles)

    def miss(self, cache: Cache, n: int, size: int) -> Block:
        """Climb the ladder: grow, trim and grow, collect, trim and grow, give up."""
        if 0 < self.limit < size:
            self.rejections += 1
            raise self.refuse(size)
        b = self.again(cache, n, size) or self.grow(cache, n, size)
        if b is None:
            self.retries += 1
            self.trim(None, None)
            b = self.again(cache, n, size) or self.grow(cache, n, size)
        if b is None:
            gc.collect()
            b = self.again(cache, n, size)
        if b is None:
            self.trim(None, None)
            b = self.again(cache, n, size) or self.grow(cache, n, size)
        if b is None:
            raise self.refuse(size)
        return b

    def refuse(self, size: int) -> BaseException:
        """Count an out-of-memory and make its exception."""
        self.ooms += 1
        return self.out_of_memory(self, size)

    def again(self, cache: Cache, n: int, size: int) -> Block | None:
        """Wait for the books and look again."""
        if not self.enter(True):
            return None
        try:
            return self.pick(cache, n, size)
        finally:
            self.leave()

    def grow(self, cache: Cache, n: int, size: int) -> Block | None:
        """Serve from a new segment; None if the limit or the device leaves no room."""
        for want in self.growth(n << UNIT_BITS, self.room()):
            if not self.promise(want):
                continue
            held: Held | None = None
            try:
                held = self.upstream.reserve(want)
            except DeviceFullError:
                continue
            finally:
                if held is None:
                    self.withdraw(want)
            return self.arrive(cache, held, want, n, size)
        return None

    def room(self) -> int:
        """Return the bytes that the limit leaves, -1 without one."""
        if not self.limit:
            return -1
        return max(0, self.limit - self.counters.total(RESERVED) - self.promised)

    def promise(self, nbytes: int) -> bool:
        """Set bytes under the limit aside, so that two threads cannot both take them."""
        with self.lock:
            if self.limit and nbytes > self.room():
                return False
            self.promised += nbytes
            return True

    def withdraw(self, nbytes: int) -> None:
        """Take a promise back."""
        with self.lock:
            self.promised -= nbytes

    def arrive(self, cache: Cache, held: Held, nbytes: int, n: int, size: int) -> Block:
        """Make a segment whose first n units are in use, and book it when possible."""
        s = Segment(held.ptr, nbytes >> UNIT_BITS, cache.number, n <= SMALL_UNITS, held)
        b = s.first
        b.requested = size
        if s.n > n:
            b.split(n)
            s.tiles = 2
        self.arrived.append((cache, b))
        self.settle()
        return b

    def admit(self, cache: Cache, b: Block) -> None:
        """Book a new segment; the books are ours."""
        s = b.segment
        self.segments[s.ptr] = s
        if self.caches[cache.number] is None:  # forgotten while it grew
            self.caches[cache.number] = cache
            self.by_key.setdefault(cache.key, cache)
        self.promised -= s.n << UNIT_BITS
        self.device_allocs += 1
        self.counters.grown(s, 1)
        cache.grown(s.n << UNIT_BITS)
        self.counters.taken(b)
        cache.taken(b.n << UNIT_BITS)
        rest = b.next
        if rest is not None:
            cache.link(rest)

    def trim(self, only: Cache | None, faults: list[str] | None) -> int:
        """Give segments without a live block back, of one cache or of all.

        Returns the bytes given back.  What upstream refuses to take is booked again, with a
        line in `faults`.  An error of the wait before it leaves everything as it was.
        """
        leaving = self.detach(only)
        given = 0
        refused: list[Segment] = []
        try:
            if leaving:
                self.syncs += 1
                self.upstream.synchronize()
            while leaving:
                s = leaving[len(leaving) - 1]
                try:
                    self.upstream.release(s.held)
                except Exception as error:
                    refused.append(s)
                    if faults is not None:
                        faults.append(f"{s.n << UNIT_BITS:,} bytes at {s.ptr:#x}: {error}")
                except BaseException:  # interrupted, maybe after the fact
                    if not self.upstream.holds(s.held):
                        leaving.pop()
                        self.drop(s)
                    raise
                else:
                    given += s.n << UNIT_BITS
                    self.drop(s)
                leaving.pop()
        finally:
            self.attach(leaving + refused)
        self.forget_streams()
        return given

    def detach(self, only: Cache | None) -> list[Segment]:
        """Take the segments without a live block out of the books, into limbo."""
        found: list[Segment] = []
        if not self.enter(True):
            return found
        try:
            for c in self.caches:
                if c is not None and (only is None or c is only):
                    c.small.flush()
            for s in list(self.segments.values()):
                cache = self.cache_at(s.cache)
                if s.live or (only is not None and cache is not only):
                    continue
                cache.unlink(s.first)
                del self.segments[s.ptr]
                self.limbo[id(s)] = s
                found.append(s)
        finally:
            self.leave()
        return found

    def attach(self, segments: list[Segment]) -> None:
        """Put segments from limbo back into the books."""
        if not segments or not self.enter(True):
            return
        try:
            for s in segments:
                del self.limbo[id(s)]
                self.segments[s.ptr] = s
                self.cache_at(s.cache).link(s.first)
        finally:
            self.leave()

    def drop(self, s: Segment) -> None:
        """Forget a segment that upstream has taken back."""
        entered = self.enter(True)
        try:
            del self.limbo[id(s)]
            self.device_frees += 1
            self.counters.grown(s, -1)
            self.cache_at(s.cache).grown(-(s.n << UNIT_BITS))
            s.dissolve()
        finally:
            if entered:
                self.leave()
        s.held = None  # may run anything

    def cache_of(self, key: int) -> Cache:
        """Return the cache of a stream, made on its first request."""
        c = self.by_key.get(key)
        if c is None:
            new = Cache(key, self.upstream.owner(key), self.counters)  # may run anything
            with self.lock:
                c = self.by_key.get(key)
                if c is None:
                    c = new
                    c.number = len(self.caches)
                    self.caches.append(c)
                    self.by_key[key] = c
        elif c.owner is None and key > 0:
            c.owner = self.upstream.owner(key)
        # A stream known by its handle alone is asked for each time: the next one that can be
        # held may be another stream under the same handle.
        self.last = c if key <= 0 or c.owner is not None else None
        return c

    def cache_at(self, number: int) -> Cache:
        """Return the cache of that number, which has or had memory."""
        c = self.caches[number]
        assert c is not None
        return c

    def forget_streams(self) -> None:
        """Drop the caches that hold no memory and whose stream only we keep alive."""
        owners = []  # die last, with nothing held
        if self.enter(True):
            for c in list(self.by_key.values()):
                if c.reserved == 0 and (c.owner is None or self.holders(c) <= self.alone):
                    self.caches[c.number] = None
                    del self.by_key[c.key]
                    owners.append(c.owner)
                    if self.last is c:
                        self.last = None
            self.leave()

    def holders(self, c: Cache) -> int:
        """Count who refers to a cache's stream object, us included (see ``alone``)."""
        owner = c.owner
        return sys.getrefcount(owner)

    def free_space(self) -> tuple[int, int, int, int]:
        """Return the largest free run, all free bytes, the runs, and what trim would give.

        Neighbours that are free count as one run, kept for exact re-use or not.  O(blocks).
        """
        largest = total = runs = whole = 0
        entered = self.enter(True)
        for s in self.segments.values():
            run = 0
            b: Block | None = s.first
            while b is not None:
                if b.requested:
                    run = 0
                else:
                    runs += run == 0
                    run += b.n
                    total += b.n
                    largest = max(largest, run)
                b = b.next
            if s.live == 0:
                whole += s.n
        if entered:
            self.leave()
        return largest << UNIT_BITS, total << UNIT_BITS, runs, whole << UNIT_BITS

    def __del__(self) -> None:
        """Give everything back: the pool and the last of its arrays are gone."""
        if sys is None or sys.is_finalizing():
            return
        try:
            self.settle()
            self.trim(None, None)
        except Exception:  # a destructor must not raise; the device keeps the memory then
            return
