"""Streams and events as users hold them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cachepool.devices.sim.arguments import check_seconds
from cachepool.devices.sim.order import EventState, StreamState
from cachepool.devices.sim.touched import byte_ranges
from cachepool.errors import DeviceError

if TYPE_CHECKING:
    from types import TracebackType

    from cachepool.devices.sim.current import CurrentState
    from cachepool.devices.sim.machine import Machine


class SimEvent:
    """An event of a simulated device; made by `SimStream.record` or `SimDevice.event`.

    Attributes
    ----------
    device : int
        Ordinal of the device whose streams may record it.

    Notes
    -----
    One that was never recorded answers "done", and a wait for it does nothing, as in CUDA.
    """

    device: int

    def __init__(self, machine: Machine, device: int) -> None:
        self.device = device
        self._machine = machine
        self._state = EventState(device)

    @property
    def done(self) -> bool:
        """Whether the recorded work has completed, as cudaEventQuery; a call ``query``.

        A yes is an observation: what is enqueued later, on any stream, comes after that work.
        """
        return self._machine.call("query", lambda: self._machine.query_event(self._state))

    def synchronize(self) -> None:
        """Move host time to the end of the recorded work; an observation as `done`.

        Raises
        ------
        DeviceError
            If the work never ends.
        """
        self._machine.call("synchronize", lambda: self._machine.synchronize_event(self._state))

    def __repr__(self) -> str:
        recorded = self._state.clock is not None
        what = f"completes at {self._state.end:.9g} s" if recorded else "never recorded"
        return f"<SimEvent of device {self.device}: {what}>"


class SimStream:
    """A stream of a simulated device; made by `SimDevice.stream` and its like.

    Work runs in order, on the virtual clock.  ``with stream:`` makes it the calling thread's
    current stream on the stream's device (nestable; restores what it found).  A stream is
    destroyed by `destroy`, or with the last reference to it.

    Attributes
    ----------
    id : int
        Its number on this machine, never reused.
    handle : int
        Its address-like name: 0 for a legacy default stream, 2 for a per-thread one.
    key : int
        What a pool knows it by: the handle; a negative number for a per-thread stream.
    device : int
        Ordinal of its device.
    blocking : bool
        Whether its kernels are ordered with those of the legacy stream of its device.
    """

    id: int
    handle: int
    key: int
    device: int
    blocking: bool

    def __init__(self, machine: Machine, current: CurrentState, state: StreamState) -> None:
        self.id = state.id
        self.handle = state.handle
        self.key = state.key
        self.device = state.device
        self.blocking = state.blocking
        self._machine = machine
        self._current = current
        self._state = state

    def launch(self, seconds: float, *, reads: object = (), writes: object = ()) -> None:
        """Enqueue a kernel.

        It starts when the host has enqueued it, the stream's earlier work has ended, and what
        the stream waits for has ended; a blocking stream and the legacy stream of its device
        also wait for each other's earlier kernels.

        Parameters
        ----------
        seconds : float
            How long it runs; ``math.inf`` = it never ends.
        reads, writes : object or iterable of objects
            What it touches: device arrays (``.data.ptr``, ``.nbytes``; a strided view counts
            from its lowest to its highest byte), memory pointers (``.ptr``, ``.mem``),
            allocations (``.ptr``, ``.size``) or pairs ``(ptr, nbytes)``.

        Raises
        ------
        RaceError
            If it touches memory that is not reserved; if a write is not ordered after an earlier
            use of the same bytes, or a read not after an earlier write.  Nothing is enqueued
            then.  With ``on_race="record"`` it is, and the race is only listed.
        DeviceError
            If the stream has been destroyed.
        TypeError, ValueError
            If an argument is not what is allowed.
        """
        seconds = check_seconds(seconds, "seconds", forever=True)
        read = byte_ranges(reads, "reads")
        written = byte_ranges(writes, "writes")
        machine, state = self._machine, self._state
        machine.call("launch", lambda: machine.launch(state, seconds, read, written))

    def record(self, event: SimEvent | None = None) -> SimEvent:
        """Record an event: it stands for all work enqueued here so far.

        Parameters
        ----------
        event : SimEvent, optional
            One of this device, recorded before or not; a new one if None.

        Returns
        -------
        SimEvent
            The event.

        Raises
        ------
        DeviceError
            If the stream has been destroyed.
        TypeError, ValueError
            If `event` is not an event of this stream's device.
        """
        if event is None:
            event = SimEvent(self._machine, self.device)
        recorded = self._check_event(event)
        if event.device != self.device:
            raise ValueError(f"event must be of the stream's device {self.device}, got {event!r}")
        self._machine.call("record", lambda: self._machine.record(self._state, recorded))
        return event

    def wait(self, event: SimEvent) -> None:
        """Let the work enqueued here from now on wait for an event, as it is recorded now.

        Parameters
        ----------
        event : SimEvent
            Of any device of this machine; one never recorded does nothing.

        Raises
        ------
        DeviceError
            If the stream has been destroyed.
        TypeError, ValueError
            If `event` is not an event of this `SimDevice`.
        """
        awaited = self._check_event(event)
        self._machine.call("wait", lambda: self._machine.wait(self._state, awaited))

    def _check_event(self, event: object) -> EventState:
        if not isinstance(event, SimEvent):
            raise TypeError(f"event must be a SimEvent, got {event!r}")
        if event._machine is not self._machine:
            raise ValueError(f"event must be of the stream's own SimDevice, got {event!r}")
        return event._state

    @property
    def done(self) -> bool:
        """Whether all work has completed, as cudaStreamQuery; a call ``query_stream``.

        A yes is an observation: what is enqueued later, on any stream, comes after that work.
        Raises DeviceError if the stream has been destroyed.
        """
        return self._machine.call("query_stream", lambda: self._machine.query_stream(self._state))

    def synchronize(self) -> None:
        """Move host time to the end of all work enqueued here; an observation as `done`.

        Raises
        ------
        DeviceError
            If the stream has been destroyed, or the work never ends.
        """
        self._machine.call("synchronize", lambda: self._machine.synchronize_stream(self._state))

    def destroy(self) -> None:
        """End the stream: it takes no more calls; work enqueued before still runs.

        Does nothing the second time.  With ``recycle_handles=True`` the next stream created gets
        its handle.

        Raises
        ------
        DeviceError
            If it is a default stream.
        """
        if self.handle == 0 or self.key < 0:
            raise DeviceError(f"a default stream cannot be destroyed: {self!r}")
        with self._machine.lock:
            self._machine.destroy_stream(self._state)

    def __enter__(self) -> SimStream:
        if self._state.destroyed:
            raise DeviceError(f"stream {self.id} has been destroyed; it cannot become current")
        self._current.enter(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._current.leave(self)

    def __del__(self) -> None:
        # No lock here: the collector may run this while the thread holds it.
        if hasattr(self, "_state"):
            self._machine.dropped.append(self._state)

    def __repr__(self) -> str:
        state = "destroyed" if self._state.destroyed else f"{self._state.count} kernels"
        return f"<SimStream {self.id} of device {self.device}, handle 0x{self.handle:x}: {state}>"
