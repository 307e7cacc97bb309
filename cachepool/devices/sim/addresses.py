"""The address space of one simulated device: first fit, byte-true.

    first                                                                   end
      | reserved | hole | reserved | reserved |            hole              |

Invariants: holes are sorted, disjoint, not empty and never adjacent (A1); reserved ranges and
holes tile the space (A2).  `reserve` is O(holes), `release` O(log n) and a list insertion.
A tree of holes was refused: a pool reserves rarely, and holes are few.

Capacity is not known here: physical memory is counted in bytes, it does not fragment.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

GRANULE = 512
"""Sizes are multiples of this many bytes, and so are addresses."""

LARGE = 2**21
"""From this size on, addresses are multiples of it (2 MiB, a page of the device)."""


def round_up(nbytes: int, unit: int = GRANULE) -> int:
    """Return the bytes rounded up to a multiple of `unit`."""
    return -(-nbytes // unit) * unit


class AddressSpace:
    """Hand out the lowest range that fits, and remember what is out."""

    first: int
    end: int
    #: size of each reserved range by its start, in bytes, multiples of 512
    sizes: dict[int, int]
    #: sum of `sizes`
    reserved: int

    def __init__(self, first: int, end: int) -> None:
        self.first = first
        self.end = end
        self.sizes = {}
        self.reserved = 0
        self._starts: list[int] = []  # of the reserved ranges, sorted
        self._holes: list[tuple[int, int]] = [(first, end)]

    def reserve(self, nbytes: int) -> int | None:
        """Return the start of the lowest fitting range, or None if no hole is long enough."""
        size = round_up(nbytes)
        alignment = LARGE if size >= LARGE else GRANULE
        for index, (low, high) in enumerate(self._holes):
            start = round_up(low, alignment)
            if start + size <= high:
                self._take(index, start, size)
                return start
        return None

    def _take(self, index: int, start: int, size: int) -> None:
        low, high = self._holes[index]
        rest = [(low, start), (start + size, high)]
        self._holes[index : index + 1] = [hole for hole in rest if hole[0] < hole[1]]
        self.sizes[start] = size
        insort(self._starts, start)
        self.reserved += size

    def release(self, start: int) -> None:
        """Give back the range that begins at `start`, which must be reserved."""
        size = self.sizes.pop(start)
        del self._starts[bisect_left(self._starts, start)]
        self.reserved -= size
        self._return_hole(start, start + size)

    def _return_hole(self, low: int, high: int) -> None:
        index = bisect_left(self._holes, (low, high))
        first = last = index
        if index > 0 and self._holes[index - 1][1] == low:
            first, low = index - 1, self._holes[index - 1][0]
        if index < len(self._holes) and self._holes[index][0] == high:
            last, high = index + 1, self._holes[index][1]
        self._holes[first:last] = [(low, high)]

    def first_gap(self, start: int, end: int) -> tuple[int, int] | None:
        """Return the first bytes of a range that are not reserved, or None if all are."""
        index = max(bisect_right(self._starts, start) - 1, 0)
        while start < end and index < len(self._starts):
            low = self._starts[index]
            if low > start:
                return start, min(end, low)
            start = max(start, low + self.sizes[low])
            index += 1
        return (start, end) if start < end else None
