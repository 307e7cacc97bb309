"""What a replay found: figures, addresses and a timeline thin enough to draw."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from cachepool.sizes import format_size

MAX_POINTS = 2000
"""Points of a timeline, at most; peaks are always among them."""

POINT = np.dtype([("event", np.int64), ("allocated", np.int64), ("reserved", np.int64)])


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ReplayResult:
    """One trace on one policy.

    Figures cover the events that were replayed: all, or those up to the one that failed.
    Sizes are bytes.

    Attributes
    ----------
    trace, policy : str
        What was replayed on what.
    capacity : int or None
        Memory of the device in bytes, None for no limit.
    peak_live : int
        Peak of the requested bytes of live blocks.
    peak_allocated : int
        The same with each size rounded up to 512.
    peak_reserved : int
        Peak of the bytes taken from the device.
    reserved : int
        Bytes taken from the device at the end.
    requests : int
        Requests of more than 0 bytes, a failed one included.
    hits : int
        Those served without a call to the device.
    upstream_allocations : int
        Requests made to the device, refused ones included.
    upstream_failures : int
        Requests that the device refused.
    upstream_frees : int
        Segments given back to the device.
    oom_at : int or None
        Index of the event that ran out of memory and ended the replay.
    oom_size : int or None
        Bytes it asked for.
    addresses : ndarray of int64, shape (n_allocations,)
        Address of each block; 0 for a block of 0 bytes, -1 where the replay did not get to.
    timeline : ndarray with int64 fields event, allocated, reserved
        Bytes after an event, at most `MAX_POINTS` rows in order; both peaks are kept.
    """

    trace: str
    policy: str
    capacity: int | None
    peak_live: int
    peak_allocated: int
    peak_reserved: int
    reserved: int
    requests: int
    hits: int
    upstream_allocations: int
    upstream_failures: int
    upstream_frees: int
    oom_at: int | None
    oom_size: int | None
    addresses: NDArray[np.int64]
    timeline: NDArray[np.void]

    @property
    def utilisation(self) -> float:
        """Peak live bytes over peak reserved bytes; 1.0 if nothing was reserved."""
        return self.peak_live / self.peak_reserved if self.peak_reserved else 1.0

    @property
    def hit_rate(self) -> float:
        """Share of requests served without a call to the device; 1.0 without requests."""
        return self.hits / self.requests if self.requests else 1.0

    def summary(self) -> dict[str, str | int | float | None]:
        """Return every figure by name, without the arrays: what ``--json`` prints.

        Returns
        -------
        dict
            The keys are the attributes, with ``utilisation`` and ``hit_rate``.
        """
        names = [name for name in self.__slots__ if name not in ("addresses", "timeline")]
        return {name: getattr(self, name) for name in (*names, "utilisation", "hit_rate")}

    def __repr__(self) -> str:
        end = "" if self.oom_at is None else f", out of memory at event {self.oom_at:,}"
        return (
            f"<ReplayResult {self.trace} on {self.policy}: "
            f"peak reserved {format_size(self.peak_reserved)}, "
            f"utilisation {self.utilisation:.1%}, hits {self.hit_rate:.1%}, "
            f"{self.upstream_allocations:,} upstream allocations{end}>"
        )


def thin(
    allocated: NDArray[np.int64], reserved: NDArray[np.int64], limit: int = MAX_POINTS
) -> NDArray[np.void]:
    """Return a timeline of at most `limit` points that keeps both peaks.

    Parameters
    ----------
    allocated, reserved : ndarray of int64, shape (n_events,)
        Bytes after each event.
    limit : int
        Rows, at least 3.

    Returns
    -------
    ndarray with int64 fields event, allocated, reserved
        Of each stretch of events: where either figure is greatest, and the last.
    """
    n_events = len(reserved)
    if n_events <= limit:
        chosen = np.arange(n_events)
    else:
        bounds = np.linspace(0, n_events, limit // 3 + 1).astype(np.int64)
        picks = [bounds[1:] - 1]
        for figure in (allocated, reserved):
            peaks = [a + figure[a:b].argmax() for a, b in pairwise(bounds)]
            picks.append(np.array(peaks))
        chosen = np.unique(np.concatenate(picks))
    points = np.empty(len(chosen), POINT)
    points["event"] = chosen
    points["allocated"], points["reserved"] = allocated[chosen], reserved[chosen]
    return points
