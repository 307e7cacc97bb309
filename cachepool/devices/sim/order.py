"""Who comes after whom: vector clocks of streams, and what the host has seen complete.

A stream numbers its kernels 1, 2, 3 …  A clock maps stream ids to such numbers: "ordered after
all kernels of that stream up to this one".  It is sparse (absent = 0), leaves out its own
stream (a stream is in order), and is never changed in place, so that events and streams share it.

     stream 1   k1 ── k2 ── record(e) ── k3
                               │
     stream 2   k1 ── wait(e) ─┴─ k2            clock of stream 2 from here on: {1: 2}

The host's knowledge `seen` is a clock too.  It only grows, and counts for whatever is enqueued
from then on, on any stream; so it need not be copied into the streams' clocks, and entries that
it covers may be dropped from them.  All host threads count as one host.

Completion by the virtual clock alone is not order: a program that relies on it is right by luck.

The legacy stream's implicit order exists between kernels only: a kernel on it follows the
*kernels* of the blocking streams of its device, and theirs follow its *kernels*.  The real device
also orders around event waits on the legacy stream; relying on that is refused here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cachepool.devices.sim.races import Use

Clock = Mapping[int, int]


def join(first: Clock, second: Clock) -> Clock:
    """Return the clock that is ordered after both."""
    news = {key: count for key, count in second.items() if count > first.get(key, 0)}
    return {**first, **news} if news else first


class StreamState:
    """One stream: its place in the order, and the times of its work.

    Only a kernel raises `count`, so `kernel_clock` with `count` is the clock of the last kernel.
    """

    id: int
    device: int
    handle: int
    #: what the pool knows it by: the handle, or a negative number for a per-thread stream
    key: int
    #: ordered implicitly with the legacy stream
    blocking: bool
    legacy: bool
    destroyed: bool
    #: kernels enqueued so far
    count: int
    clock: Clock
    kernel_clock: Clock
    #: when all enqueued work ends, and when the last kernel does, in seconds
    tail: float
    kernel_tail: float

    __slots__ = (
        "blocking",
        "clock",
        "count",
        "destroyed",
        "device",
        "handle",
        "id",
        "kernel_clock",
        "kernel_tail",
        "key",
        "legacy",
        "tail",
    )

    def __init__(self, number: int, device: int, handle: int, key: int, *, blocking: bool) -> None:
        self.id = number
        self.device = device
        self.handle = handle
        self.key = key
        self.blocking = blocking
        self.legacy = handle == 0
        self.destroyed = False
        self.count = 0
        self.clock = self.kernel_clock = {}
        self.tail = self.kernel_tail = 0.0

    def before_kernel(self, implicit: Iterable[StreamState]) -> tuple[Clock, float]:
        """Return the clock of a kernel launched now, and when what it follows ends.

        Parameters
        ----------
        implicit : iterable of StreamState
            The streams whose kernels it follows without being told to.
        """
        clock, ready = self.clock, self.tail
        for other in implicit:
            ready = max(ready, other.kernel_tail)
            if other.count > clock.get(other.id, 0):
                clock = join(clock, {**other.kernel_clock, other.id: other.count})
        return clock, ready

    def append_kernel(self, clock: Clock, end: float) -> None:
        """Enqueue a kernel that `before_kernel` gave the clock of."""
        self.clock = self.kernel_clock = clock
        self.count += 1
        self.tail = self.kernel_tail = end

    def after(self, seen: Clock) -> Clock:
        """Return the clock of what is ordered after all work enqueued so far.

        What the host has seen is left out: this keeps clocks as small as the work in flight.
        """
        self.clock = {key: n for key, n in self.clock.items() if n > seen.get(key, 0)}
        return {**self.clock, self.id: self.count} if self.count else self.clock

    def follow(self, clock: Clock, end: float) -> None:
        """Enqueue a wait for what the clock covers, which ends at `end`."""
        self.clock = join(self.clock, clock)
        self.tail = max(self.tail, end)


@dataclass(slots=True)
class EventState:
    """The last record of an event; a clock of None = never recorded."""

    device: int
    clock: Clock | None = None
    end: float = 0.0


@dataclass(slots=True, frozen=True)
class Viewpoint:
    """Something about to be enqueued (or done by the host at once), and what it comes after.

    Attributes
    ----------
    stream : int or None
        Id of its stream; None = the host itself.
    clock : Clock
        What that stream is ordered after.
    seen : Clock
        What the host has seen complete.
    """

    stream: int | None
    clock: Clock
    seen: Clock

    def follows(self, use: Use) -> bool:
        """Return whether a use is ordered before this."""
        stream, number = use.stream, use.number
        return (
            stream == self.stream
            or number <= self.clock.get(stream, 0)
            or number <= self.seen.get(stream, 0)
        )

    def explain(self, use: Use, now: float) -> str:
        """Return why a use is not ordered before this."""
        host = _reach(self.seen.get(use.stream, 0), use.stream)
        reasons = [f"the host has seen complete {host}"]
        if self.stream is not None:
            own = _reach(self.clock.get(use.stream, 0), use.stream)
            reasons.insert(0, f"stream {self.stream} is ordered after {own}")
        if use.end <= now:
            reasons.append(f"it has ended at {use.end:.9g} s, but nobody has observed that")
        return ", ".join(reasons)


def _reach(count: int, stream: int) -> str:
    return f"kernels up to #{count} of stream {stream}" if count else f"none of stream {stream}"
