"""CUDA devices through CuPy (and HIP devices through its ROCm build)."""

from __future__ import annotations

import itertools
import threading
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from cachepool.devices.cupy_edge import require_cupy
from cachepool.errors import DeviceError, DeviceFullError
from cachepool.sizes import exact_size

OUT_OF_MEMORY = 2
ABSENT = {
    34: "only a stub of the driver is installed",
    35: "no driver, or one older than CuPy needs",
    100: "no device",
}
_numbers = itertools.count(1)
_thread = threading.local()


class CudaDevice:
    """The CUDA devices that CuPy sees.

    Raises
    ------
    ImportError
        If CuPy is missing or too old.
    DeviceError
        If there is no driver or device, or the driver does not work; says which.
    """

    name = "cuda"

    def __init__(self) -> None:
        self._cupy = require_cupy('device="cuda"')
        self._runtime = self._cupy.cuda.runtime
        why = probe()
        if why is not None:
            raise DeviceError(f'no CUDA device can be used: {why}; device="sim" needs none')

    def count(self) -> int:
        """Return the number of devices."""
        return int(self._runtime.getDeviceCount())

    def current(self) -> int:
        """Return the ordinal of the calling thread's current device."""
        return int(self._runtime.getDevice())

    def use(self, device: int) -> AbstractContextManager[object]:
        """Make a device current for the length of a ``with`` block."""
        context: AbstractContextManager[object] = self._cupy.cuda.Device(device)
        return context

    def current_stream(self) -> int:
        """Return the handle of CuPy's current stream; of a per-thread one, its own number."""
        return _key(int(self._cupy.cuda.get_current_stream().ptr))

    def current_stream_owner(self) -> object:
        """Return CuPy's stream object: while it lives, the driver keeps the handle taken."""
        stream = self._cupy.cuda.get_current_stream()
        return None if int(stream.ptr) in (0, 1, 2) else stream

    def stream_key(self, stream: object) -> int:
        """Return the key of a CuPy stream, of an object with ``__cuda_stream__``, or a handle."""
        if hasattr(stream, "__cuda_stream__"):
            return _key(int(stream.__cuda_stream__()[1]))
        ptr = getattr(stream, "ptr", stream)
        if isinstance(ptr, bool) or not isinstance(ptr, int) or ptr < 0:
            raise TypeError(
                f"stream must be a cupy.cuda.Stream, an object with __cuda_stream__ or a "
                f"handle, got {stream!r}"
            )
        return _key(ptr)

    def reserve(self, nbytes: int, device: int) -> int:
        """Return new memory from cudaMalloc."""
        try:
            with self._on(device):
                return int(self._runtime.malloc(nbytes))
        except self._runtime.CUDARuntimeError as error:
            if error.status != OUT_OF_MEMORY:
                raise
            raise DeviceFullError(
                f"device {device} has no room for {exact_size(nbytes)}"
            ) from error

    def release(self, ptr: int, nbytes: int, device: int) -> None:
        """Give memory back by cudaFree, which waits for the device."""
        with self._on(device):
            self._runtime.free(ptr)

    def synchronize(self, device: int) -> None:
        """Wait for all work on a device."""
        with self._on(device):
            self._runtime.deviceSynchronize()

    def mem_info(self, device: int) -> tuple[int, int]:
        """Return the bytes free and in all, as cudaMemGetInfo."""
        with self._on(device):
            free, total = self._runtime.memGetInfo()
        return int(free), int(total)

    def _on(self, device: int) -> AbstractContextManager[object]:
        return nullcontext() if self.current() == device else self.use(device)


def _key(ptr: int) -> int:
    """Return the key of a handle: 1 is the legacy stream 0; 2 is each thread's own."""
    if ptr > 2:
        return ptr
    if ptr < 2:
        return 0
    number = getattr(_thread, "number", None)
    if number is None:
        number = _thread.number = next(_numbers)
    return -int(number)


def probe() -> str | None:
    """Return why no CUDA device can be used, None if one can.

    Raises
    ------
    DeviceError
        If a driver is there but does not work: that is a fault to mend, not an absence.
    """
    runtime: Any = require_cupy("CUDA").cuda.runtime
    try:
        count = runtime.getDeviceCount()
        runtime.getDevice()
    except runtime.CUDARuntimeError as error:
        if error.status in ABSENT:
            return f"{ABSENT[error.status]} ({error})"
        raise DeviceError(
            f'the CUDA driver is there but does not work: {error}; device="sim" needs none'
        ) from error
    return None if count else "no device"
