"""A use of bytes by a kernel, and two of them in no order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from cachepool.sizes import exact_size


class Use(NamedTuple):
    """Bytes read or written by one kernel.

    Attributes
    ----------
    stream : int
        Id of the kernel's stream.
    number : int
        The kernel's number on that stream, from 1.
    action : str
        ``"read"`` or ``"write"``.
    start, end : float
        When the kernel runs, in seconds of the virtual clock.
    """

    stream: int
    number: int
    action: str
    start: float
    end: float

    def __str__(self) -> str:
        times = f"{self.start:.9g} to {self.end:.9g} s"
        return f"{self.action} by kernel #{self.number} of stream {self.stream} ({times})"


@dataclass(slots=True, frozen=True)
class Race:
    """A touch of bytes that is not ordered after an earlier use, or of bytes not reserved.

    Attributes
    ----------
    device : int
        Device of the bytes; -1 if the address belongs to none.
    start, end : int
        The bytes, as addresses; `end` is the first byte after them.
    earlier : Use or None
        The use that is not ordered before; None if the bytes are not reserved.
    later : str
        The touch that found it: ``"write by stream 3"``, ``"release"``.
    reason : str
        Why there is no order.
    """

    device: int
    start: int
    end: int
    earlier: Use | None
    later: str
    reason: str

    def __str__(self) -> str:
        where = f"bytes 0x{self.start:x} to 0x{self.end:x} ({exact_size(self.end - self.start)})"
        where += f" of device {self.device}" if self.device >= 0 else " of no device"
        if self.earlier is None:
            return f"{self.later} of {where}: {self.reason}"
        return f"{self.later} of {where} is not ordered after the {self.earlier}: {self.reason}"
