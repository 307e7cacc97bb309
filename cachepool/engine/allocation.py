"""A block as adapters hold it, without CuPy: released when it dies."""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import cython
except ImportError:
    from cachepool import _cyshim as cython

from .heap import Heap

if TYPE_CHECKING:
    from .blocks import Block

if not cython.compiled:
    import ctypes

    from .blocks import UNIT_BITS

    # Every Python class is a GC type; taking the instance off the collector's list gives
    # it the life of the compiled (no_gc) one: see `Allocation`.
    untrack = ctypes.PYFUNCTYPE(None, ctypes.py_object)(("PyObject_GC_UnTrack", ctypes.pythonapi))


@cython.final
@cython.no_gc
@cython.cclass
class Allocation:
    """Device memory, in use until `release` is called or the object dies.

    Attributes
    ----------
    ptr : int
        Device address; 0 if nothing was requested, or after `release`.
    size : int
        Bytes of the block: `requested` rounded up to 512.
    requested : int
        Bytes asked for.
    stream : int
        Key of the stream that it was allocated for: its handle, or a negative number for a
        per-thread default stream.
    device : int
        Ordinal.

    Notes
    -----
    The cycle collector never sees it, so that it dies with its last reference and not in a
    collection in which another finaliser may still use, or resurrect, its holder.
    """

    heap: Heap | None
    block: Block | None
    ptr: int
    size: int
    requested: int
    stream: int
    device: int

    if not cython.compiled:
        __slots__ = ("block", "device", "heap", "ptr", "requested", "size", "stream")

    def release(self) -> None:
        """Give the memory back to the cache of its stream; a second call does nothing.

        Safe from any thread; never raises, waits, or calls the driver.
        """
        b = self.block
        if b is not None:
            h = self.heap
            self.block = None
            self.heap = None
            self.ptr = 0
            if h is not None:
                h.release(b)

    def __dealloc__(self) -> None:
        self.release()

    def __reduce__(self) -> str:
        raise TypeError("an Allocation owns its memory: it cannot be copied or pickled")

    def __repr__(self) -> str:
        return f"<Allocation of {self.size:,} bytes at {self.ptr:#x} on device {self.device}>"


if not cython.compiled:
    Allocation.__del__ = Allocation.__dealloc__  # type: ignore[attr-defined]


def lease(heap: Heap, size: int, key: int) -> Allocation:
    """Allocate `size` bytes (0 or more) from a heap for the stream `key`."""
    a = Allocation.__new__(Allocation)
    if not cython.compiled:
        a.heap = a.block = None
        untrack(a)
    a.ptr = a.size = 0
    a.requested = size
    a.stream = key
    a.device = heap.device
    if size:
        b = heap.allocate(size, key)
        a.heap = heap
        a.block = b
        a.ptr = b.ptr
        a.size = b.n << UNIT_BITS
    return a
