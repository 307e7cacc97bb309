"""The state of a simulated machine, and what each device call does to it.

`Machine.call` is the gate of every call: it charges the cost, counts, applies planned faults and
interruptions, and runs the effect under the machine's one lock.  Methods named as calls
(`launch`, `record`, …) are effects: they run under the lock, and change nothing when they raise.

The lock is reentrant: a destructor that the garbage collector runs inside an effect may make
calls of its own (record, query, wait; a pool does that), and must not hang.
"""

from __future__ import annotations

import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from cachepool.devices.sim.addresses import AddressSpace, round_up
from cachepool.devices.sim.arguments import check_integer
from cachepool.devices.sim.faults import Moment, Plans
from cachepool.devices.sim.order import Clock, EventState, StreamState, Viewpoint
from cachepool.devices.sim.races import Race, Use
from cachepool.devices.sim.touched import ByteRange
from cachepool.devices.sim.uses import UseMap
from cachepool.errors import DeviceError, DeviceFullError, RaceError
from cachepool.sizes import exact_size

T = TypeVar("T")

FIRST_ADDRESS = 0x7000_0000_0000
ALL_ADDRESSES = 2**44
"""Bytes of address space, split evenly among the devices; all addresses lie below 2**47."""

UNLIMITED = 2**47
"""What a device without a capacity reports as its total, in bytes."""

FIRST_HANDLE, HANDLE_STEP = 0x5500_0000_0100, 0x100
PER_THREAD_HANDLE = 2


class Card:
    """One device: memory, uses, streams."""

    ordinal: int
    capacity: int
    space: AddressSpace
    uses: UseMap
    #: bytes that other processes hold
    occupied: int
    #: highest `space.reserved` so far
    peak: int
    #: by id; a destroyed stream stays until the host has seen its work complete
    streams: dict[int, StreamState]
    legacy: StreamState

    def __init__(self, ordinal: int, capacity: int, first: int, end: int) -> None:
        self.ordinal = ordinal
        self.capacity = capacity
        self.space = AddressSpace(first, end)
        self.uses = UseMap()
        self.occupied = 0
        self.peak = 0
        self.streams = {}

    @property
    def free(self) -> int:
        """Bytes that neither this process nor another one holds."""
        return self.capacity - self.space.reserved - self.occupied

    def implicit(self, state: StreamState) -> Iterable[StreamState]:
        """Return the streams whose kernels come before a kernel launched now on one of them."""
        if state.legacy:
            return [
                other for other in self.streams.values() if other.blocking and other is not state
            ]
        return (self.legacy,) if state.blocking else ()

    def demand(self, nbytes: int, what: str) -> None:
        """Raise DeviceFullError unless so many bytes are free."""
        if nbytes > self.free:
            raise DeviceFullError(
                f"{what} of {exact_size(nbytes)} on device {self.ordinal}: "
                f"{exact_size(self.free)} free of {exact_size(self.capacity)} "
                f"({self.space.reserved:,} reserved, {self.occupied:,} taken by others)"
            )


class Machine:
    """All devices, the host's clock and what the host knows."""

    #: host time in seconds
    now: float
    #: what the host has seen complete; only grows
    seen: dict[int, int]
    costs: Mapping[str, float]
    calls: Counter[str]
    plans: Plans
    races: list[Race]
    cards: list[Card]
    lock: threading.RLock
    #: streams whose last reference is gone; appended without the lock, by destructors
    dropped: deque[StreamState]

    def __init__(
        self,
        capacity: int | None,
        devices: int,
        seed: int,
        costs: Mapping[str, float],
        *,
        raising: bool,
        recycling: bool,
    ) -> None:
        self.now = 0.0
        self.seen = {}
        self.costs = costs
        self.calls = Counter()
        self.plans = Plans()
        self.races = []
        self.lock = threading.RLock()
        self.dropped = deque()
        self.raising = raising
        self.recycling = recycling
        self._next_id = 1
        self._next_handle = FIRST_HANDLE
        self._next_key = -1
        self._free_handles: list[int] = []
        self._ending: list[StreamState] = []  # destroyed, with work that nobody has observed
        self._host = Viewpoint(None, {}, self.seen)
        self._by_key: dict[int, StreamState] = {}
        self._span = ALL_ADDRESSES >> (devices - 1).bit_length()
        shift = seed % 4096 * 2**21
        total = UNLIMITED if capacity is None else capacity
        self.cards = []
        for ordinal in range(devices):
            first = FIRST_ADDRESS + ordinal * self._span
            self.cards.append(Card(ordinal, total, first + shift, first + self._span))
            self.cards[-1].legacy = self._new_stream(ordinal, 0, 0, blocking=True)

    # -- the gate

    def call(self, name: str, effect: Callable[[], T]) -> T:
        """Make one device call."""
        with self.lock:
            self.now += self.costs[name]
            if name != "launch":
                self.calls[name] += 1
            if not self.plans:
                return effect()
            moment = self.plans.next(name)
        return self._interrupted(moment, effect)

    def _interrupted(self, moment: Moment, effect: Callable[[], T]) -> T:
        """Run the effect, or fail, with what other threads do before and after it."""
        for act in moment.before:
            act()
        try:
            if moment.error is not None:
                raise moment.take_error()
            with self.lock:
                return effect()
        finally:
            for act in moment.after:
                act()

    # -- devices and memory

    def check_device(self, device: object) -> int:
        """Return the ordinal of a device, or raise."""
        ordinal = check_integer(device, "device")
        if not 0 <= ordinal < len(self.cards):
            raise ValueError(f"device must be in [0, {len(self.cards)}), got {ordinal}")
        return ordinal

    def card_of(self, address: int) -> Card | None:
        """Return the device whose addresses these are."""
        ordinal = (address - FIRST_ADDRESS) // self._span
        return self.cards[ordinal] if 0 <= ordinal < len(self.cards) else None

    def reserve(self, nbytes: int, device: int) -> int:
        """Take memory; return its address."""
        card = self.cards[device]
        size = round_up(nbytes)
        card.demand(size, "reserve")
        start = card.space.reserve(size)
        if start is None:
            raise DeviceFullError(
                f"reserve of {exact_size(size)} on device {device}: no such range in its "
                f"address space of {exact_size(card.space.end - card.space.first)}"
            )
        card.peak = max(card.peak, card.space.reserved)
        card.uses.forget(start, start + size)
        return start

    def release(self, ptr: int, nbytes: int, device: int) -> None:
        """Give a range back; at once, so all its uses must have been seen complete."""
        card = self.cards[device]
        size = card.space.sizes.get(ptr)
        if size is None:
            raise ValueError(
                f"release of 0x{ptr:x}: no reserved range of device {device} starts there"
            )
        if size != round_up(nbytes):
            raise ValueError(
                f"release of 0x{ptr:x} with {exact_size(nbytes)}: "
                f"the range reserved there has {exact_size(size)}"
            )
        released = (ptr, ptr + size)
        self._report(self._clashes(card, released, self._host, "release", writing=True))
        card.space.release(ptr)
        card.uses.forget(ptr, ptr + size)

    def occupy(self, nbytes: int, device: int) -> None:
        """Let another process take bytes; a negative number gives them back."""
        card = self.cards[device]
        if nbytes > 0:
            card.demand(nbytes, "occupy")
        card.occupied += nbytes

    # -- streams

    def _new_stream(self, device: int, handle: int, key: int, *, blocking: bool) -> StreamState:
        state = StreamState(self._next_id, device, handle, key, blocking=blocking)
        self._next_id += 1
        self.cards[device].streams[state.id] = state
        return state

    def create_stream(self, device: int, *, blocking: bool) -> StreamState:
        """Make a stream, under a recycled handle if there is one."""
        self.collect()
        if self._free_handles:
            handle = self._free_handles.pop()
        else:
            handle = self._next_handle
            self._next_handle += HANDLE_STEP
        state = self._new_stream(device, handle, handle, blocking=blocking)
        self._by_key[handle] = state
        return state

    def create_per_thread_stream(self, device: int) -> StreamState:
        """Make the per-thread default stream of one thread."""
        self.collect()
        state = self._new_stream(device, PER_THREAD_HANDLE, self._next_key, blocking=True)
        self._by_key[self._next_key] = state
        self._next_key -= 1
        return state

    def destroy_stream(self, state: StreamState) -> None:
        """End a stream; its enqueued work still runs.  Does nothing the second time."""
        if state.destroyed or state.legacy:
            return
        state.destroyed = True
        self._ending.append(state)
        del self._by_key[state.key]
        if self.recycling and state.handle != PER_THREAD_HANDLE:
            self._free_handles.append(state.handle)

    def collect(self) -> None:
        """End the streams that nobody refers to; drop destroyed ones whose work is done."""
        while self.dropped:
            self.destroy_stream(self.dropped.popleft())
        if not self._ending:
            return
        for state in [ending for ending in self._ending if self._settled(ending)]:
            self._ending.remove(state)
            del self.cards[state.device].streams[state.id]

    def _settled(self, state: StreamState) -> bool:
        return state.count <= self.seen.get(state.id, 0) and state.tail <= self.now

    def stream_of(self, key: int, device: int) -> StreamState:
        """Return the live stream of a key; 0 is the legacy stream of `device`."""
        self.collect()
        if key == 0:
            return self.cards[device].legacy
        state = self._by_key.get(key)
        if state is None:
            raise ValueError(f"{key} is no live stream's handle or key on this SimDevice")
        return state

    def _usable(self, state: StreamState) -> None:
        if state.destroyed:
            raise DeviceError(f"stream {state.id} has been destroyed; it takes no more calls")

    # -- work

    def launch(
        self, state: StreamState, seconds: float, reads: list[ByteRange], writes: list[ByteRange]
    ) -> None:
        """Enqueue a kernel."""
        self._usable(state)
        clock, ready = self._before_kernel(state)
        view = Viewpoint(state.id, clock, self.seen)
        self._check_touches(view, reads, f"read by stream {state.id}", writing=False)
        self._check_touches(view, writes, f"write by stream {state.id}", writing=True)
        start = max(self.now, ready)
        state.append_kernel(clock, start + seconds)
        for touched in reads:
            self._note(touched, Use(state.id, state.count, "read", start, start + seconds), view)
        for touched in writes:
            self._note(touched, Use(state.id, state.count, "write", start, start + seconds), view)

    def _before_kernel(self, state: StreamState) -> tuple[Clock, float]:
        return state.before_kernel(self.cards[state.device].implicit(state))

    def record(self, state: StreamState, event: EventState) -> None:
        """Let an event stand for all work enqueued on a stream so far."""
        self._usable(state)
        event.clock = state.after(self.seen)
        event.end = state.tail

    def wait(self, state: StreamState, event: EventState) -> None:
        """Order what a stream gets from now on after an event, as it is recorded now."""
        self._usable(state)
        if event.clock is not None:
            state.follow(event.clock, event.end)

    # -- what the host sees

    def _learn(self, clock: Clock) -> None:
        for key, count in clock.items():
            if count > self.seen.get(key, 0):
                self.seen[key] = count

    def _wait_until(self, end: float, what: str) -> None:
        if end == math.inf:
            raise DeviceError(f"{what} would never return: work on it has no end (seconds=inf)")
        self.now = max(self.now, end)

    def query_event(self, event: EventState) -> bool:
        """Return whether an event has completed; the host knows it then."""
        done = event.clock is None or event.end <= self.now
        if done and event.clock:
            self._learn(event.clock)
        return done

    def query_stream(self, state: StreamState) -> bool:
        """Return whether all work of a stream has completed; the host knows it then."""
        self._usable(state)
        done = state.tail <= self.now
        if done:
            self._learn(state.after(self.seen))
        return done

    def synchronize_event(self, event: EventState) -> None:
        """Let the host wait for an event."""
        self._wait_until(event.end if event.clock is not None else 0.0, "synchronize of the event")
        self._learn(event.clock or {})

    def synchronize_stream(self, state: StreamState) -> None:
        """Let the host wait for a stream."""
        self._usable(state)
        self._wait_until(state.tail, f"synchronize of stream {state.id}")
        self._learn(state.after(self.seen))

    def synchronize_device(self, device: int) -> None:
        """Let the host wait for all streams of a device, destroyed ones included."""
        streams = self.cards[device].streams.values()
        end = max(state.tail for state in streams)
        self._wait_until(end, f"synchronize of device {device}")
        for state in list(streams):
            self._learn(state.after(self.seen))
        self.collect()

    # -- races

    def hand_out(self, touched: ByteRange, device: int, key: int) -> None:
        """Check that work launched now on a stream may write the bytes."""
        state = self.stream_of(key, device)
        view = Viewpoint(state.id, self._before_kernel(state)[0], self.seen)
        later = f"hand-out to stream {state.id}"
        self._report(self._clashes(self.cards[device], touched, view, later, writing=True))

    def _check_touches(
        self, view: Viewpoint, ranges: list[ByteRange], later: str, *, writing: bool
    ) -> None:
        for touched in ranges:
            card = self.card_of(touched[0])
            self._report(self._clashes(card, touched, view, later, writing=writing))

    def _clashes(
        self, card: Card | None, touched: ByteRange, view: Viewpoint, later: str, *, writing: bool
    ) -> Iterator[Race]:
        """Yield the races of one touch."""
        start, end = touched
        if card is None:
            yield Race(-1, start, end, None, later, "no device has such addresses")
            return
        gap = card.space.first_gap(start, end)
        if gap is not None:
            yield Race(card.ordinal, *gap, None, later, "these bytes are not reserved")
        for use, (low, high) in card.uses.clashes(
            start, end, view.follows, writing=writing
        ).items():
            reason = view.explain(use, self.now)
            yield Race(card.ordinal, low, high, use, later, reason)

    def _report(self, races: Iterator[Race]) -> None:
        found = list(races)
        if not found:
            return
        self.races += found
        if self.raising:
            more = f" (and {len(found) - 1} more, see races)" if len(found) > 1 else ""
            raise RaceError(f"{found[0]}{more}")

    def _note(self, touched: ByteRange, use: Use, view: Viewpoint) -> None:
        """Remember a use; one of no device has been reported already."""
        card = self.card_of(touched[0])
        if card is None:
            return
        if use.action == "write":
            card.uses.write(*touched, use, view.follows)
        else:
            card.uses.read(*touched, use, view.follows, self._host.follows)
        card.uses.sweep(self._host.follows)
