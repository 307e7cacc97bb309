"""The simulated device: what users create, and what a pool sits on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Literal

from cachepool.devices.sim.arguments import (
    check_at_least,
    check_flag,
    check_integer,
    check_name,
    check_seconds,
    is_integer,
)
from cachepool.devices.sim.costs import complete_costs
from cachepool.devices.sim.current import CurrentState
from cachepool.devices.sim.machine import PER_THREAD_HANDLE, Machine
from cachepool.devices.sim.memory import MemoryCalls
from cachepool.devices.sim.order import StreamState
from cachepool.devices.sim.races import Race
from cachepool.devices.sim.streams import SimEvent, SimStream
from cachepool.devices.sim.trouble import TroubleCalls
from cachepool.sizes import format_size, parse_size

MOST_DEVICES = 64
LEGACY_HANDLES = (0, 1)
"""The default stream and cudaStreamLegacy."""


class SimDevice(MemoryCalls, TroubleCalls):
    """A machine with simulated devices, without a GPU, a driver or CuPy.

    Memory is addresses only: nothing can be stored in it.  Streams run on a virtual clock.
    Every kernel says what bytes it reads and writes, and a happens-before checker reports any
    use that is not *ordered* after the uses before it, whether or not it would have gone well.
    Given the same calls in the same order, everything is the same again.

    Parameters
    ----------
    capacity : int or str, optional
        Bytes of each device (``"8GiB"``); unlimited if None: `mem_info` then reports a total
        of 2**47.
    devices : int, default 1
        How many devices, 1 to 64.
    on_race : {"raise", "record"}
        Whether a race raises `RaceError`, or is only appended to `races`.
    recycle_handles : bool, default False
        Whether the next stream created gets the handle of the one destroyed last, as a driver
        may do.
    costs : dict of str to float, optional
        Seconds of host time for calls; those not named keep `DEFAULT_COSTS` (``reserve``
        150 µs, ``release`` 50 µs, ``launch`` 0, others 1 µs).
    seed : int, default 0
        Where addresses begin: another seed shifts them by up to 8 GiB in steps of 2 MiB, as from
        one run of a process to the next.

    Attributes
    ----------
    name : str
        ``"sim"``.

    Raises
    ------
    TypeError, ValueError
        If an argument is not what is allowed.

    Notes
    -----
    *Time.* `now` moves by the costs of calls (paid when a call begins, failed ones included), by
    `advance`, and by waiting in `synchronize`.  Devices run on while the host does other things.

    *Order.* A kernel comes after the earlier kernels of its stream, after what its stream has
    waited for (`SimStream.wait`), and after all work that the host had **observed** complete by
    then: by a synchronisation, or a query answered with yes.  That work has ended by the clock is
    not enough.  Kernels on the legacy default stream (handle 0) come after earlier kernels on the
    blocking streams of the device, and the other way round; event waits and records alone do not
    order so.  `release` acts at once, so that only observed completion precedes it.

    *Races.* A write must come after every earlier use of its bytes, a read after every earlier
    write, and all bytes must be reserved.  `handed_out` is held to the same as a write.  The
    call that would raise `RaceError` changes nothing but `calls`, `now` and `races`; with
    ``on_race="record"`` it goes through.

    *Threads.* Every method may be called from any thread; one lock.  Current device and current
    stream belong to the thread.  All threads count as one host: what one has observed, all know.
    Functions given to `during` run without the lock.

    Examples
    --------
    >>> from cachepool.devices.sim import SimDevice
    >>> sim = SimDevice("1GiB", on_race="record")
    >>> a, b = sim.stream(), sim.stream()
    >>> ptr = sim.reserve(2**20, device=0)
    >>> a.launch(2e-3, writes=(ptr, 2**20))
    >>> b.launch(1e-3, reads=(ptr, 2**20))             # nothing orders b after a
    >>> len(sim.races)
    1
    >>> b.wait(a.record())
    >>> b.launch(1e-3, reads=(ptr, 2**20))             # now it does
    >>> len(sim.races)
    1
    >>> sim.synchronize()
    >>> sim.release(ptr, 2**20, device=0)
    >>> sim.calls["wait"], sim.reserved(), sim.outstanding()
    (1, 0, {})
    """

    name = "sim"

    def __init__(
        self,
        capacity: int | str | None = None,
        *,
        devices: int = 1,
        on_race: Literal["raise", "record"] = "raise",
        recycle_handles: bool = False,
        costs: Mapping[str, float] | None = None,
        seed: int = 0,
    ) -> None:
        if check_at_least(devices, 1, "devices") > MOST_DEVICES:
            raise ValueError(f"devices must be at most {MOST_DEVICES}, got {devices}")
        self._machine = Machine(
            None if capacity is None else parse_size(capacity, "capacity"),
            devices,
            check_integer(seed, "seed"),
            complete_costs(costs),
            raising=check_name(on_race, ("raise", "record"), "on_race") == "raise",
            recycling=check_flag(recycle_handles, "recycle_handles"),
        )
        self._limited = capacity is not None
        self._current = CurrentState()
        self._defaults = [self._wrap(card.legacy) for card in self._machine.cards]

    def _wrap(self, state: StreamState) -> SimStream:
        return SimStream(self._machine, self._current, state)

    # -- devices and time

    def count(self) -> int:
        """Return the number of devices."""
        return len(self._machine.cards)

    def current(self) -> int:
        """Return the ordinal of the calling thread's current device; 0 at first."""
        return self._current.device

    def use(self, device: int) -> AbstractContextManager[None]:
        """Make a device current in the calling thread for the length of a ``with`` block.

        Parameters
        ----------
        device : int
            Ordinal.

        Returns
        -------
        context manager
            Restores the device that was current when it was entered.

        Raises
        ------
        ValueError
            If there is no such device.
        """
        return self._using(self._machine.check_device(device))

    @contextmanager
    def _using(self, device: int) -> Iterator[None]:
        previous = self._current.device
        self._current.device = device
        try:
            yield
        finally:
            self._current.device = previous

    @property
    def now(self) -> float:
        """Host time in seconds, from 0."""
        return self._machine.now

    def advance(self, seconds: float) -> None:
        """Let the host do something else for a while; it observes nothing by that.

        Parameters
        ----------
        seconds : float
            Host time, not negative.

        Raises
        ------
        TypeError, ValueError
            If `seconds` is not a finite, non-negative number.
        """
        seconds = check_seconds(seconds, "seconds", forever=False)
        with self._machine.lock:
            self._machine.now += seconds

    def synchronize(self, device: int | None = None) -> None:
        """Move host time to the end of all work enqueued on a device, and observe it complete.

        Parameters
        ----------
        device : int, optional
            Ordinal; the current device if None.

        Raises
        ------
        DeviceError
            If some of the work never ends.
        ValueError
            If there is no such device.
        """
        ordinal = self.current() if device is None else self._machine.check_device(device)
        self._machine.call("synchronize", lambda: self._machine.synchronize_device(ordinal))

    # -- streams

    def stream(self, device: int = 0, *, blocking: bool = True) -> SimStream:
        """Create a stream.

        Parameters
        ----------
        device : int, default 0
            Ordinal of its device.
        blocking : bool, default True
            Whether its kernels are ordered with those of the legacy default stream.

        Returns
        -------
        SimStream
            It is destroyed with the last reference to it.

        Raises
        ------
        TypeError, ValueError
            If an argument is not what is allowed.
        """
        ordinal = self._machine.check_device(device)
        blocking = check_flag(blocking, "blocking")
        with self._machine.lock:
            return self._wrap(self._machine.create_stream(ordinal, blocking=blocking))

    def default_stream(self, device: int = 0) -> SimStream:
        """Return the legacy default stream of a device (handle 0)."""
        return self._defaults[self._machine.check_device(device)]

    @property
    def per_thread_stream(self) -> SimStream:
        """The calling thread's per-thread default stream on its current device (handle 2).

        It is a blocking stream, made at the first use; it ends with the thread.
        """
        mine, device = self._current.per_thread, self._current.device
        if device not in mine:
            with self._machine.lock:
                mine[device] = self._wrap(self._machine.create_per_thread_stream(device))
        return mine[device]

    def event(self, device: int = 0) -> SimEvent:
        """Return an event that was never recorded, for streams of a device."""
        return SimEvent(self._machine, self._machine.check_device(device))

    def current_stream(self) -> int:
        """Return the key of the calling thread's current stream on its current device.

        The handle; a negative number, never used for another stream, for a per-thread one.
        """
        return self.current_stream_owner().key

    def current_stream_owner(self) -> SimStream:
        """Return the calling thread's current stream on its current device."""
        device = self._current.device
        return self._current.streams.get(device) or self._defaults[device]

    def stream_key(self, stream: object) -> int:
        """Return the key of a stream of this machine.

        Parameters
        ----------
        stream : SimStream or int
            A stream; or a handle, where 0 and 1 are the legacy default stream and 2 is the
            calling thread's per-thread default stream on its current device; or a key.

        Returns
        -------
        int
            The handle; a negative number for a per-thread stream.  0 stands for the legacy
            default stream of any device.

        Raises
        ------
        TypeError
            If it is neither a `SimStream` nor an int.
        ValueError
            If it belongs to another `SimDevice`, has been destroyed, or is no live handle.
        """
        if isinstance(stream, SimStream):
            return self._key_of(stream)
        if not is_integer(stream):
            raise TypeError(f"stream must be a SimStream or a handle (int), got {stream!r}")
        handle = check_integer(stream, "stream")
        if handle in LEGACY_HANDLES:
            return 0
        if handle == PER_THREAD_HANDLE:
            return self.per_thread_stream.key
        with self._machine.lock:
            return self._machine.stream_of(handle, 0).key

    def _key_of(self, stream: SimStream) -> int:
        if stream._machine is not self._machine:
            raise ValueError(f"stream must be of this SimDevice, got {stream!r} of another one")
        if stream._state.destroyed:
            raise ValueError(f"stream must not be destroyed, got {stream!r}")
        return stream.key

    # -- the checker

    def handed_out(self, ptr: int, nbytes: int, device: int, stream_key: int | SimStream) -> None:
        """Check that memory may be given to a stream; for a pool to call at each hand-out.

        Work launched now on that stream must come after every earlier use of the bytes, and the
        bytes must be reserved.  Nothing is remembered of the hand-out, and no host time passes.

        Parameters
        ----------
        ptr : int
            Start of the bytes.
        nbytes : int
            How many; 0 is always right.
        device : int
            Ordinal of the device of the memory.
        stream_key : int or SimStream
            As for `stream_key`; 0 is the legacy default stream of `device`.

        Raises
        ------
        RaceError
            If there is no such order (with ``on_race="record"`` only `races` grows).
        TypeError, ValueError
            If an argument is not what is allowed.
        """
        start = check_at_least(ptr, 0, "ptr")
        end = start + check_at_least(nbytes, 0, "nbytes")
        ordinal = self._machine.check_device(device)
        key = self.stream_key(stream_key)
        if start == end:
            return
        with self._machine.lock:
            self._machine.hand_out((start, end), ordinal, key)

    @property
    def races(self) -> list[Race]:
        """All races found so far, oldest first, raised ones included; a list of its own."""
        with self._machine.lock:
            return list(self._machine.races)

    def __repr__(self) -> str:
        cards = self._machine.cards
        reserved = format_size(sum(card.space.reserved for card in cards))
        capacity = format_size(cards[0].capacity) if self._limited else "unlimited"
        return (
            f"<SimDevice: {len(cards)} x {capacity}, {reserved} reserved, at {self.now:.9g} s, "
            f"{len(self._machine.races)} races>"
        )
