"""No pool at all: what a program costs when each request goes to the device.

Peak reserved is then the peak of allocated bytes, which no pool of plain segments can beat;
the count of calls is the worst there is.
"""

from __future__ import annotations

from typing import ClassVar

from cachepool.offline.policies.device import DeviceFigures, round_up


class NonePolicy(DeviceFigures):
    """Each request is memory from the device, each free gives it back at once.

    Parameters
    ----------
    capacity : int or None
        Memory of the device in bytes, None for no limit.
    """

    name: ClassVar[str] = "none"
    option_names: ClassVar[tuple[str, ...] | None] = ()

    def __init__(self, capacity: int | None) -> None:
        super().__init__(capacity)
        self._sizes: dict[int, int] = {}

    def allocate(self, block_id: int, size: int, stream: int) -> int:
        """Take the size rounded up to 512 from the device; see `Policy.allocate`."""
        if not size:
            return 0
        rounded = round_up(size)
        address = self.device.reserve(rounded)
        self._sizes[block_id] = rounded
        return address

    def free(self, block_id: int) -> None:
        """Give a block's memory back; a block of 0 bytes has none."""
        if block_id in self._sizes:
            self.device.release(self._sizes.pop(block_id))
