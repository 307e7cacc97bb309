"""What is current in a thread: its device, and on each device a stream."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cachepool.devices.sim.streams import SimStream


class CurrentState(threading.local):
    """The calling thread's current device and streams; another thread sees its own."""

    device: int
    #: current streams by device; a device without an entry is on its legacy stream
    streams: dict[int, SimStream]
    #: this thread's per-thread default streams by device; they end with the thread
    per_thread: dict[int, SimStream]

    def __init__(self) -> None:
        self.device = 0
        self.streams = {}
        self.per_thread = {}
        self._entered: list[tuple[SimStream, SimStream | None]] = []

    def enter(self, stream: SimStream) -> None:
        """Make a stream current on its own device."""
        self._entered.append((stream, self.streams.get(stream.device)))
        self.streams[stream.device] = stream

    def leave(self, stream: SimStream) -> None:
        """Restore what `enter` found."""
        if not self._entered or self._entered[-1][0] is not stream:
            raise RuntimeError(
                f"{stream!r} is not the stream that this thread entered last; "
                "leave `with` blocks in the reverse order, in the thread that entered them"
            )
        previous = self._entered.pop()[1]
        if previous is None:
            del self.streams[stream.device]
        else:
            self.streams[stream.device] = previous
