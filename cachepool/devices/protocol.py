"""What the pool asks of a device; the single page to read before writing another one.

A device object stands for all devices of one kind; `device` is an ordinal.  Every call
may be made from any thread.  Calls that may block release the GIL where they can.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol


class Device(Protocol):
    """Memory, streams and the current device of a kind of hardware."""

    name: str
    """``"cuda"``, ``"sim"``, …: what reports print."""

    def count(self) -> int:
        """Return the number of devices."""

    def current(self) -> int:
        """Return the ordinal of the calling thread's current device."""

    def use(self, device: int) -> AbstractContextManager[object]:
        """Make `device` current in the calling thread for the length of a ``with`` block."""

    def current_stream(self) -> int:
        """Return the key of the calling thread's current stream on its current device.

        The handle, which is not negative; a negative number for a stream whose handle does
        not name it (the per-thread default stream), never used for another one.
        """

    def current_stream_owner(self) -> object:
        """Return an object that keeps the current stream alive while it is referred to."""

    def stream_key(self, stream: object) -> int:
        """Return the key of a stream given as an object of this device's kind or as a handle.

        Raises TypeError for anything else.
        """

    def reserve(self, nbytes: int, device: int) -> int:
        """Take memory and return its address, a multiple of 512.

        Raises `cachepool.errors.DeviceFullError` when there is no room, any other error as
        it is.
        """

    def release(self, ptr: int, nbytes: int, device: int) -> None:
        """Give back a range that `reserve` returned; the device may reuse it at once."""

    def synchronize(self, device: int) -> None:
        """Wait for all work enqueued on a device."""

    def mem_info(self, device: int) -> tuple[int, int]:
        """Return the bytes free and in all, of the whole device, as cudaMemGetInfo."""
