"""cachepool itself: the real pool on a simulated device, driven through its public methods.

What replay reports is what the engine does in production, streams and take-overs included.
No work is enqueued, so a stream query answers "done" and a take-over costs one query.
"""

from __future__ import annotations

from typing import Any, ClassVar

from cachepool.errors import DeviceFullError


class CachepoolPolicy:
    """A `cachepool.CachePool` over a `SimDevice`; one simulated stream per trace stream.

    Parameters
    ----------
    capacity : int or None
        Memory of the device in bytes, None for no limit.
    **options
        Options of `CachePool`.

    Raises
    ------
    cachepool.OptionError
        If the pool does not know an option or its value.
    """

    name: ClassVar[str] = "cachepool"
    option_names: ClassVar[tuple[str, ...] | None] = None

    def __init__(self, capacity: int | None, **options: Any) -> None:
        # Imported here: readers of traces and the other policies do without the engine.
        from cachepool.devices.sim import SimDevice
        from cachepool.pool import CachePool

        self._device = SimDevice(capacity)
        self._pool = CachePool(device=self._device, **options)
        self._streams = {0: self._device.default_stream()}
        self._live: dict[int, Any] = {}

    def allocate(self, block_id: int, size: int, stream: int) -> int:
        """Ask the pool for a block on the simulated stream; see `Policy.allocate`."""
        if stream not in self._streams:
            self._streams[stream] = self._device.stream()
        try:
            block = self._pool.allocate(size, stream=self._streams[stream])
        except MemoryError as error:
            raise DeviceFullError(str(error)) from error
        self._live[block_id] = block
        return int(block.ptr)

    def free(self, block_id: int) -> None:
        """Release a block."""
        self._live.pop(block_id).release()

    @property
    def reserved(self) -> int:
        """Bytes taken from the device and not given back."""
        return self._pool.memory_reserved()

    @property
    def peak_reserved(self) -> int:
        """Peak of `reserved`, in bytes."""
        return self._pool.max_memory_reserved()

    @property
    def upstream_allocations(self) -> int:
        """Requests made to the device, failed ones included."""
        return self._device.calls["reserve"]

    @property
    def upstream_failures(self) -> int:
        """Requests that the device refused: those that neither are out nor came back."""
        served = len(self._device.outstanding()) + self.upstream_frees
        return self.upstream_allocations - served

    @property
    def upstream_frees(self) -> int:
        """Segments given back to the device."""
        return self._device.calls["release"]
