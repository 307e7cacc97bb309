"""The pools that are timed, over an upstream that hands out numbers instead of memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cachepool.devices.cuda import CudaDevice
from cachepool.devices.cupy_edge import require_cupy
from cachepool.pool import CachePool

FIRST_ADDRESS = 1 << 40
GAP = 2 << 20


class _Addresses:
    """Addresses that are never repeated, of memory that does not exist."""

    def __init__(self) -> None:
        self.next = FIRST_ADDRESS

    def take(self, nbytes: int) -> int:
        ptr = self.next
        self.next += -(-nbytes // GAP) * GAP + GAP
        return ptr


class _NoMemory(CudaDevice):
    """CUDA devices whose memory is made-up addresses: all else is as on a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self._addresses = _Addresses()

    def reserve(self, nbytes: int, device: int) -> int:
        return self._addresses.take(nbytes)

    def release(self, ptr: int, nbytes: int, device: int) -> None:
        pass

    def synchronize(self, device: int) -> None:
        pass

    def mem_info(self, device: int) -> tuple[int, int]:
        return 1 << 46, 1 << 46


def ours() -> tuple[Callable[[int], Any], Callable[[], Any]]:
    """Return a new CachePool's ``malloc``, and what checks the pool afterwards."""
    pool = CachePool(_NoMemory())
    return pool.malloc, pool.check


def cupys() -> tuple[Callable[[int], Any], Callable[[], Any]]:
    """Return a new ``cupy.cuda.MemoryPool``'s ``malloc``, over made-up addresses."""
    memory: Any = require_cupy("the benchmark").cuda.memory
    base: Any = memory.BaseMemory
    addresses = _Addresses()

    class NoMemory(base):  # type: ignore[misc]
        def __init__(self, nbytes: int) -> None:
            self.ptr = addresses.take(nbytes)
            self.size = nbytes
            self.device_id = 0

    pool = memory.MemoryPool(lambda nbytes: memory.MemoryPointer(NoMemory(nbytes), 0))
    return pool.malloc, pool.used_bytes
