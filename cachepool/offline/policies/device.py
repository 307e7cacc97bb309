"""A device that only counts bytes, and the figures that policies over it report.

Addresses grow from `BASE` and are never used twice, so a block's address tells its age, and
"lowest address" is well defined without a model of the driver's own placement.
"""

from __future__ import annotations

from cachepool.errors import DeviceFullError
from cachepool.offline.trace import ALIGNMENT
from cachepool.sizes import exact_size

BASE = 1 << 40
"""The first address, in bytes; well away from 0, which stands for "no memory"."""


def round_up(size: int) -> int:
    """Return a size in bytes rounded up to a multiple of `ALIGNMENT`."""
    return -(-size // ALIGNMENT) * ALIGNMENT


class CountingDevice:
    """Memory that is full when the bytes taken reach the capacity; it never fragments.

    Parameters
    ----------
    capacity : int or None
        Bytes, None for no limit.
    """

    def __init__(self, capacity: int | None) -> None:
        self.capacity = capacity
        self.reserved = 0
        self.peak_reserved = 0
        self.allocations = 0
        self.failures = 0
        self.frees = 0
        self._next_address = BASE

    def reserve(self, nbytes: int) -> int:
        """Take memory.

        Parameters
        ----------
        nbytes : int
            Bytes, a multiple of `ALIGNMENT`.

        Returns
        -------
        int
            Address.

        Raises
        ------
        DeviceFullError
            If fewer than `nbytes` are left.
        """
        self.allocations += 1
        if self.capacity is not None and self.reserved + nbytes > self.capacity:
            self.failures += 1
            raise DeviceFullError(
                f"{exact_size(nbytes)} asked with {exact_size(self.reserved)} of "
                f"{exact_size(self.capacity)} taken"
            )
        self.reserved += nbytes
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        address = self._next_address
        self._next_address += nbytes
        return address

    def release(self, nbytes: int) -> None:
        """Give back a range of `nbytes` bytes that `reserve` returned."""
        self.frees += 1
        self.reserved -= nbytes


class DeviceFigures:
    """The figures of a policy whose device is a `CountingDevice`, for `Policy`."""

    def __init__(self, capacity: int | None) -> None:
        self.device = CountingDevice(capacity)

    @property
    def reserved(self) -> int:
        """Bytes taken from the device and not given back."""
        return self.device.reserved

    @property
    def peak_reserved(self) -> int:
        """Peak of `reserved`, in bytes."""
        return self.device.peak_reserved

    @property
    def upstream_allocations(self) -> int:
        """Requests made to the device, failed ones included."""
        return self.device.allocations

    @property
    def upstream_failures(self) -> int:
        """Requests that the device refused."""
        return self.device.failures

    @property
    def upstream_frees(self) -> int:
        """Segments given back to the device."""
        return self.device.frees
