"""Where a heap's segments come from: the device itself, or a callable of the user's."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from cachepool import hooks
from cachepool.devices.protocol import Device
from cachepool.errors import DeviceFullError


@dataclass(frozen=True, slots=True)
class Range:
    """Memory of the device: address and bytes."""

    ptr: int
    nbytes: int


class DeviceUpstream:
    """Plain allocations of one device."""

    identity: str = "Memory"

    def __init__(self, device: Device, ordinal: int) -> None:
        self.device = device
        self.ordinal = ordinal

    def reserve(self, nbytes: int) -> Any:
        """Take memory, between the calls of CuPy's memory hooks if there are any."""
        return hooks.reserve(self.take, self.release, self.ordinal, nbytes)

    def take(self, nbytes: int) -> Any:
        """Take memory from the device."""
        return Range(self.device.reserve(nbytes, self.ordinal), nbytes)

    def release(self, held: Any) -> None:
        """Give memory back."""
        self.device.release(held.ptr, held.nbytes, self.ordinal)

    def holds(self, held: Any) -> bool:
        """Return whether the device's own books, if it has any, say that memory is out."""
        books = getattr(self.device, "outstanding", None)
        return books is not None and held.ptr in books(self.ordinal)

    def synchronize(self) -> None:
        """Wait for all work on the device."""
        self.device.synchronize(self.ordinal)

    def owner(self, key: int) -> object:
        """Return what keeps the stream of that key alive, if it is the current one."""
        if self.device.current() == self.ordinal and self.device.current_stream() == key:
            return self.device.current_stream_owner()
        return None


class CallableUpstream(DeviceUpstream):
    """Segments from ``f(nbytes) -> MemoryPointer``; dropping the pointer gives them back."""

    def __init__(self, device: Device, ordinal: int, function: Callable[[int], Any]) -> None:
        super().__init__(device, ordinal)
        self.function = function

    def take(self, nbytes: int) -> Any:
        """Call the function with the device current."""
        try:
            with self._current():
                pointer = self.function(nbytes)
        except Exception as error:
            if isinstance(error, MemoryError) or getattr(error, "status", None) == 2:
                raise DeviceFullError(str(error)) from error
            raise
        ptr = getattr(pointer, "ptr", None)
        if not isinstance(ptr, int) or not hasattr(pointer, "mem"):
            raise TypeError(
                f"backing must return a cupy.cuda.MemoryPointer, {self.function!r} returned "
                f"{pointer!r}"
            )
        if ptr <= 0 or ptr % 512:
            raise ValueError(
                f"backing must return memory at a multiple of 512, {self.function!r} returned "
                f"address {ptr:#x}"
            )
        mem = pointer.mem
        size = mem.size - (ptr - mem.ptr)
        if size < nbytes:
            raise ValueError(
                f"backing must return at least the bytes asked, {self.function!r} returned "
                f"{size:,} of {nbytes:,}"
            )
        self.identity = getattr(mem, "identity", type(mem).__name__)
        return pointer

    def release(self, held: Any) -> None:
        """Do nothing: the heap drops the pointer, which gives the memory back."""

    def holds(self, held: Any) -> bool:
        """Return True: the heap drops the pointer later."""
        return True

    def _current(self) -> AbstractContextManager[object]:
        if self.device.current() == self.ordinal:
            return nullcontext()
        return self.device.use(self.ordinal)
