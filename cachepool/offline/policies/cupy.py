"""CuPy's memory pool, as it decides since 12.2 (written from its 14 sources).

Each stream has an arena of free chunks.  A request takes the smallest chunk of its own
arena that is large enough, the front of it if it is larger; else a segment of exactly the
rounded size.  A freed chunk joins its free neighbours.  Whole free segments go back to the
device only when it refuses one, and the free chunks are not searched again after that.

An arena is a sorted list of ``(size, rank, chunk)``: best fit is one bisection, an insert
or removal moves pointers only, which beats any tree up to the 100,000 free chunks that
traces reach.  Ranks are unique, so that chunks are never compared:

* ``ties="lowest"``: the rank is the address.  CuPy 14.1 takes the lowest address of its
  own *objects*, 13 and 14.0 the order of a hash set: both arbitrary, neither replayable.
* ``ties="newest"``: the chunk that became free last comes first.

Not modelled, because it cannot change a figure here: garbage collection before the last
try (nothing is collected in replay) and pending frees of CuPy 14 (one thread).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import ClassVar

from cachepool.errors import DeviceFullError
from cachepool.offline.policies.device import DeviceFigures, round_up

TIES = ("lowest", "newest")
"""Which of several free chunks of one size comes first."""

TRIES = 3
"""Calls to the device for one segment: at once, after a flush, after a collection and flush."""


class Chunk:
    """A tile of a segment; `entry` is its place in an arena, None while it is live."""

    __slots__ = ("address", "entry", "next", "prev", "size", "stream")

    address: int
    size: int
    stream: int
    prev: Chunk | None
    next: Chunk | None
    entry: Entry | None

    def __init__(self, address: int, size: int, stream: int) -> None:
        self.address = address
        self.size = size
        self.stream = stream
        self.prev = self.next = None
        self.entry = None

    def split(self, size: int) -> Chunk:
        """Keep the first `size` bytes and return the rest as a new neighbour."""
        rest = Chunk(self.address + size, self.size - size, self.stream)
        rest.prev, rest.next = self, self.next
        if rest.next is not None:
            rest.next.prev = rest
        self.next, self.size = rest, size
        return rest

    def absorb_next(self) -> None:
        """Take the bytes of the next chunk, which ceases to be."""
        gone = self.next
        assert gone is not None, "absorb_next() needs a neighbour"
        self.size += gone.size
        self.next = gone.next
        if self.next is not None:
            self.next.prev = self


Entry = tuple[int, int, Chunk]


class CupyPolicy(DeviceFigures):
    """CuPy's default pool.

    Parameters
    ----------
    capacity : int or None
        Memory of the device in bytes, None for no limit.
    ties : {"lowest", "newest"}
        Which of several free chunks of one size is taken: that of the lowest address, or
        the one that became free last.

    Raises
    ------
    ValueError
        If `ties` is something else.
    """

    name: ClassVar[str] = "cupy"
    option_names: ClassVar[tuple[str, ...] | None] = ("ties",)

    def __init__(self, capacity: int | None, *, ties: str = "lowest") -> None:
        if ties not in TIES:
            raise ValueError(f"ties must be one of {', '.join(TIES)}, got {ties!r}")
        super().__init__(capacity)
        self._newest_first = ties == "newest"
        self._inserted = 0
        self._arenas: dict[int, list[Entry]] = {}
        self._live: dict[int, Chunk] = {}

    def allocate(self, block_id: int, size: int, stream: int) -> int:
        """Serve a request from the stream's arena, else from the device; see `Policy`."""
        if not size:
            return 0
        rounded = round_up(size)
        chunk = self._best_fit(rounded, stream)
        if chunk is None:
            chunk = Chunk(self._reserve(rounded), rounded, stream)
        elif chunk.size > rounded:
            self._insert(chunk.split(rounded))
        self._live[block_id] = chunk
        return chunk.address

    def free(self, block_id: int) -> None:
        """Put a block into the arena it was allocated from; a block of 0 bytes has none."""
        chunk = self._live.pop(block_id, None)
        if chunk is not None:
            self._insert(self._merge(chunk))

    def flush(self) -> int:
        """Give every wholly free segment back to the device and return the bytes."""
        before = self.device.reserved
        for stream, arena in self._arenas.items():
            kept = []
            for entry in arena:
                size, _, chunk = entry
                if chunk.prev is None and chunk.next is None:
                    self.device.release(size)
                else:
                    kept.append(entry)
            self._arenas[stream] = kept
        return before - self.device.reserved

    def _best_fit(self, size: int, stream: int) -> Chunk | None:
        """Take the smallest chunk of at least `size` bytes out of the stream's arena."""
        arena = self._arenas.get(stream)
        if not arena:
            return None
        # A one-tuple sorts before every entry that begins with the same size.
        place = bisect_left(arena, (size,))
        if place == len(arena):
            return None
        chunk = arena.pop(place)[2]
        chunk.entry = None
        return chunk

    def _reserve(self, size: int) -> int:
        """Return the address of a new segment, flushing after each refusal."""
        for _ in range(TRIES - 1):
            try:
                return self.device.reserve(size)
            except DeviceFullError:
                self.flush()
        return self.device.reserve(size)

    def _merge(self, chunk: Chunk) -> Chunk:
        """Return a chunk joined with the free ones on both sides, none of them in an arena."""
        if chunk.next is not None and chunk.next.entry is not None:
            self._remove(chunk.next)
            chunk.absorb_next()
        if chunk.prev is not None and chunk.prev.entry is not None:
            chunk = chunk.prev
            self._remove(chunk)
            chunk.absorb_next()
        return chunk

    def _insert(self, chunk: Chunk) -> None:
        self._inserted += 1
        rank = -self._inserted if self._newest_first else chunk.address
        chunk.entry = (chunk.size, rank, chunk)
        insort(self._arenas.setdefault(chunk.stream, []), chunk.entry)

    def _remove(self, chunk: Chunk) -> None:
        assert chunk.entry is not None, "a live chunk is in no arena"
        arena = self._arenas[chunk.stream]
        del arena[bisect_left(arena, chunk.entry)]
        chunk.entry = None
