"""Which uses of which bytes may still matter, on one device.

    |  piece: writes {w5}, reads {r1, r2}  |   gap: never used   |  piece: writes {w9}  |

Pieces are sorted, disjoint and not empty.  A use is dropped once nothing can race with it
without racing with one that is kept:

- a write drops every use ordered before it: whatever comes after the write comes after them,
  and whatever does not races with the write;
- a read drops the reads ordered before it, for the same reason against later writes, never a write;
- a use that the host has seen complete is before everything to come.

Hence a verdict "race or not" on a byte is exact, though not every earlier partner is named.
A touch is O(log pieces + pieces touched).  Pieces of finished uses are swept when their number
has doubled, so memory follows the work in flight.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import NamedTuple

from cachepool.devices.sim.races import Use

Uses = tuple[Use, ...]
Follows = Callable[[Use], bool]

SWEEP_AT_LEAST = 1024
"""No sweep below this number of pieces."""


class Piece(NamedTuple):
    """Bytes with one set of uses."""

    start: int
    end: int
    writes: Uses
    reads: Uses


class UseMap:
    """The uses of a device's bytes."""

    _starts: list[int]
    _pieces: list[Piece]
    _sweep_at: int

    def __init__(self) -> None:
        self._starts = []
        self._pieces = []
        self._sweep_at = SWEEP_AT_LEAST

    def __len__(self) -> int:
        return len(self._pieces)

    def clashes(
        self, start: int, end: int, follows: Follows, *, writing: bool
    ) -> dict[Use, tuple[int, int]]:
        """Return the uses that a touch now would race with, each with its first bytes.

        Parameters
        ----------
        start, end : int
            The bytes touched.
        follows : callable
            Whether the touch is ordered after a use.
        writing : bool
            Whether it writes; two reads never race.
        """
        found: dict[Use, tuple[int, int]] = {}
        first, last = self._span(start, end)
        for piece in self._pieces[first:last]:
            for use in piece.writes + piece.reads if writing else piece.writes:
                if not follows(use):
                    found.setdefault(use, (max(start, piece.start), min(end, piece.end)))
        return found

    def write(self, start: int, end: int, use: Use, follows: Follows) -> None:
        """Note a write that is ordered after whatever `follows` says."""

        def update(writes: Uses, reads: Uses) -> tuple[Uses, Uses]:
            return (*_unordered(writes, follows), use), _unordered(reads, follows)

        self._rewrite(start, end, update)

    def read(self, start: int, end: int, use: Use, follows: Follows, done: Follows) -> None:
        """Note a read; `done` says which uses the host has seen complete."""

        def update(writes: Uses, reads: Uses) -> tuple[Uses, Uses]:
            return _unordered(writes, done), (*_unordered(reads, follows), use)

        self._rewrite(start, end, update)

    def forget(self, start: int, end: int) -> None:
        """Drop all uses of a range: it has left the device, or come to it."""
        self._rewrite(start, end, lambda writes, reads: ((), ()))

    def sweep(self, done: Follows) -> None:
        """Drop finished uses if there are many pieces; amortised O(1) for each touch."""
        if len(self._pieces) < self._sweep_at:
            return
        kept: list[Piece] = []
        for piece in self._pieces:
            uses = _unordered(piece.writes, done), _unordered(piece.reads, done)
            _append(kept, piece.start, piece.end, uses)
        self._pieces = kept
        self._starts = [piece.start for piece in kept]
        self._sweep_at = max(SWEEP_AT_LEAST, 2 * len(kept))

    def _span(self, start: int, end: int) -> tuple[int, int]:
        """Return the slice of pieces that overlap a range."""
        first = bisect_right(self._starts, start)
        if first and self._pieces[first - 1].end > start:
            first -= 1
        return first, bisect_left(self._starts, end, first)

    def _rewrite(
        self, start: int, end: int, update: Callable[[Uses, Uses], tuple[Uses, Uses]]
    ) -> None:
        """Replace the uses of a range, cutting pieces at its ends and filling its gaps."""
        first, last = self._span(start, end)
        new: list[Piece] = []
        cursor = start
        for low, high, writes, reads in self._pieces[first:last]:
            if low < start:
                new.append(Piece(low, start, writes, reads))
            elif cursor < low:
                _append(new, cursor, low, update((), ()))
            cursor = min(high, end)
            _append(new, max(low, start), cursor, update(writes, reads))
            if high > end:
                new.append(Piece(end, high, writes, reads))
        if cursor < end:
            _append(new, cursor, end, update((), ()))
        self._pieces[first:last] = new
        self._starts[first:last] = [piece.start for piece in new]


def _unordered(uses: Uses, follows: Follows) -> Uses:
    return tuple([use for use in uses if not follows(use)])


def _append(pieces: list[Piece], start: int, end: int, uses: tuple[Uses, Uses]) -> None:
    """Add a piece, joined to the last one if that has the same uses; none without uses."""
    if not (uses[0] or uses[1]):
        return
    last = pieces[-1] if pieces else None
    if last is not None and last.end == start and (last.writes, last.reads) == uses:
        pieces[-1] = Piece(last.start, end, *uses)
    else:
        pieces.append(Piece(start, end, *uses))
