"""The memory of the simulated devices, as `SimDevice` offers it."""

from __future__ import annotations

from cachepool.devices.sim.addresses import round_up
from cachepool.devices.sim.arguments import check_at_least, check_integer
from cachepool.devices.sim.machine import Machine
from cachepool.sizes import format_size, parse_size


class Occupied:
    """Memory that another process holds; made by `SimDevice.occupy`.

    Attributes
    ----------
    nbytes : int
        Bytes, a multiple of 512; 0 once released.
    device : int
        Ordinal of the device.
    """

    nbytes: int
    device: int

    def __init__(self, machine: Machine, nbytes: int, device: int) -> None:
        self.nbytes = nbytes
        self.device = device
        self._machine = machine

    def release(self) -> None:
        """Let the other process give the memory back; does nothing the second time."""
        with self._machine.lock:
            self._machine.occupy(-self.nbytes, self.device)
            self.nbytes = 0

    def __repr__(self) -> str:
        return f"<Occupied: {format_size(self.nbytes)} of device {self.device}>"


class MemoryCalls:
    """The part of `SimDevice` that takes memory and gives it back."""

    _machine: Machine

    def reserve(self, nbytes: int, device: int) -> int:
        """Take memory and return its address: the lowest range that is free.

        Parameters
        ----------
        nbytes : int
            Bytes, at least 1; counted rounded up to 512.
        device : int
            Ordinal.

        Returns
        -------
        int
            The address, a multiple of 2 MiB from 2 MiB on, else of 512; no two devices
            share addresses.

        Raises
        ------
        DeviceFullError
            If the capacity, or the address space, has no room.
        TypeError, ValueError
            If an argument is not what is allowed.
        """
        nbytes = check_at_least(nbytes, 1, "nbytes")
        ordinal = self._machine.check_device(device)
        return self._machine.call("reserve", lambda: self._machine.reserve(nbytes, ordinal))

    def release(self, ptr: int, nbytes: int, device: int) -> None:
        """Give back a range that `reserve` returned; at once, without waiting for work on it.

        Parameters
        ----------
        ptr : int
            The address that `reserve` returned.
        nbytes : int
            The bytes asked for then, or those rounded up to 512.
        device : int
            Ordinal.

        Raises
        ------
        RaceError
            If a use of the range has not been observed complete; nothing is released then.
        ValueError
            If no such range is reserved on that device; nothing is changed.
        """
        ptr = check_integer(ptr, "ptr")
        nbytes = check_at_least(nbytes, 1, "nbytes")
        ordinal = self._machine.check_device(device)
        self._machine.call("release", lambda: self._machine.release(ptr, nbytes, ordinal))

    def mem_info(self, device: int) -> tuple[int, int]:
        """Return the bytes free and in all, as cudaMemGetInfo; 2**47 in all if unlimited."""
        with self._machine.lock:
            card = self._machine.cards[self._machine.check_device(device)]
            return card.free, card.capacity

    def reserved(self, device: int = 0) -> int:
        """Return the bytes taken by `reserve` and not given back, a multiple of 512."""
        return self._machine.cards[self._machine.check_device(device)].space.reserved

    def peak_reserved(self, device: int = 0) -> int:
        """Return the most bytes that were ever reserved at once."""
        return self._machine.cards[self._machine.check_device(device)].peak

    def outstanding(self, device: int = 0) -> dict[int, int]:
        """Return the bytes of each range not given back, by its address; they sum to `reserved`."""
        with self._machine.lock:
            return dict(self._machine.cards[self._machine.check_device(device)].space.sizes)

    def occupy(self, nbytes: int | str, device: int = 0) -> Occupied:
        """Let another process take memory.

        Parameters
        ----------
        nbytes : int or str
            Bytes, or text such as ``"2GiB"``; counted rounded up to 512.
        device : int, default 0
            Ordinal.

        Returns
        -------
        Occupied
            Its ``release()`` gives the memory back.

        Raises
        ------
        DeviceFullError
            If so much is not free.
        TypeError, ValueError
            If an argument is not what is allowed.
        """
        size = round_up(parse_size(nbytes, "nbytes"))
        ordinal = self._machine.check_device(device)
        with self._machine.lock:
            self._machine.occupy(size, ordinal)
        return Occupied(self._machine, size, ordinal)
