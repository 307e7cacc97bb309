"""What CuPy holds: the memory object of its arrays, and the ``malloc`` that makes one.

The only module that knows CuPy's structs.  The cycle collector must never see a handle, in
either form: then only the last reference going away runs the destructor, never a
collection in which another finaliser may still use, or resurrect, the array.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

try:
    import cython
except ImportError:
    from cachepool import _cyshim as cython

from cachepool import hooks

if TYPE_CHECKING:
    from .engine.blocks import Block
    from .engine.heap import Heap

if not cython.compiled:
    from cupy.cuda.device import get_device_id as cur_device
    from cupy.cuda.memory import BaseMemory, MemoryPointer
    from cupy.cuda.memory_hook import _has_memory_hooks as has_hooks
    from cupy.cuda.stream import get_current_stream

    from .engine.allocation import untrack
    from .engine.blocks import UNIT_BITS

    ADDRESS_SPACE = 1 << 47
    FIELDS = ("block", "heap")

    def plain_size(size: object) -> int:
        """Return an int from 0 to the end of the address space as it is, else -1."""
        return size if type(size) is int and 0 <= size <= ADDRESS_SPACE else -1

    def cur_stream(device: int) -> int:
        """Return the handle of the current stream."""
        return get_current_stream().ptr  # type: ignore[no-any-return]

    def make_pointer(handle: Handle) -> Any:
        """Return CuPy's pointer to the handle's memory."""
        return MemoryPointer(handle, 0)

    def bind(stream_mod: Any, device_mod: Any, hook_mod: Any) -> None:
        """Only the compiled form needs CuPy's C entry points."""


hooked = True  # whether any thread may have memory hooks


def notice_hooks() -> None:
    """Ask CuPy for memory hooks from now on."""
    global hooked
    hooked = True


@cython.final
@cython.no_gc
@cython.cclass
class Handle(BaseMemory):  # type: ignore[misc]
    """The memory of CuPy's pointers: ``ptr``, ``size``, ``device_id``; dying gives it back."""

    heap: Heap | None
    block: Block | None
    if TYPE_CHECKING:
        ptr: int
        size: int
        device_id: int

    if not cython.compiled:
        __slots__ = FIELDS

    @property
    def identity(self) -> str:
        """What kind of memory lies below, by the name of CuPy's class for it."""
        heap = self.heap
        return "Memory" if heap is None else heap.upstream.identity

    def free(self) -> None:
        """Give the memory back at once; its arrays dangle.  A second call does nothing."""
        b = self.block
        if b is None:
            return
        self.block = None
        h = self.heap
        if h is None:
            return
        ptr = self.ptr
        self.ptr = 0
        if hooked and has_hooks():
            hooks.release(h, b, self.device_id, self.size, ptr, id(self))
        else:
            h.release(b)

    def __reduce__(self) -> str:
        raise TypeError("memory of a pool cannot be copied or pickled; copy the array")

    def __dealloc__(self) -> None:
        b = self.block
        if b is None:
            return
        h = self.heap
        if hooked or h is None:
            self.free()
        else:
            self.block = None
            h.release(b)


if not cython.compiled:
    Handle.__del__ = Handle.__dealloc__


@cython.final
@cython.cclass
class Allocator:
    """``malloc(nbytes)`` as CuPy calls it, for the current device and stream.

    Parameters
    ----------
    heap_of : callable
        Returns the heap of a device ordinal.
    check_size : callable
        Returns a request as a number of bytes that can be served, or raises.
    device : Device
        Says which device and stream are current, unless `native`.
    native : bool
        Ask CuPy itself, at C level where compiled.
    handed_out : callable or None
        Told of every block: address, bytes, device, stream key.
    """

    heap_of: Callable[[int], Heap]
    check_size: Callable[[object], int]
    device: Any
    native: bool
    handed_out: Callable[[int, int, int, int], None] | None
    last: Heap | None

    def __init__(
        self,
        heap_of: Callable[[int], Heap],
        check_size: Callable[[object], int],
        device: Any,
        native: bool,
        handed_out: Callable[[int, int, int, int], None] | None,
    ) -> None:
        self.heap_of = heap_of
        self.check_size = check_size
        self.device = device
        self.native = native
        self.handed_out = handed_out
        self.last = None

    def malloc(self, size: object) -> Any:
        """Return a ``cupy.cuda.MemoryPointer`` to `size` bytes for the current stream.

        Parameters
        ----------
        size : int
            Bytes; 0 gives a null pointer.  The block has `size` rounded up to 512, which is
            what ``mem.size`` says.

        Returns
        -------
        cupy.cuda.MemoryPointer
            Its memory goes back to the cache when the last pointer or array over it dies.

        Raises
        ------
        TypeError, ValueError
            If `size` is not an integer (a bool is not), or negative; nothing has changed.
        cachepool.OutOfMemoryError
            If there is no memory, after giving cached memory back and collecting garbage.

        Notes
        -----
        Safe from any thread.  Calls ``cupy.cuda.MemoryHook`` as CuPy's own pool does.
        """
        n = plain_size(size)
        if n < 0:
            n = self.check_size(size)
        if hooked and has_hooks():
            return hooks.malloc(self.serve, self.device_id(), n)
        return self.serve(n)

    def serve(self, n: int) -> Any:
        """Allocate without hooks; n is a valid size."""
        if self.native:
            device = cur_device(0) if cython.compiled else cur_device()
            key = cur_stream(device)
            if key == 1 or key == 2:  # the legacy stream's other name; a thread's own stream
                key = self.device.current_stream()
        else:
            device = self.device.current()
            key = self.device.current_stream()
        h = Handle.__new__(Handle)
        if not cython.compiled:
            h.heap = h.block = None
            untrack(h)
        h.device_id = device
        if n == 0:
            h.ptr = h.size = 0
            return make_pointer(h)
        heap = self.last
        if heap is None or heap.device != device:
            heap = self.heap_of(device)
            self.last = heap
        b = heap.allocate(n, key)
        # The block is ours now; whatever runs below cannot harm the books.
        h.heap = heap
        h.block = b
        h.ptr = b.ptr
        h.size = b.n << UNIT_BITS
        if self.handed_out is not None:
            self.handed_out(h.ptr, h.size, device, key)
        return make_pointer(h)

    def device_id(self) -> int:
        """Return the current device's ordinal."""
        if self.native:
            return int(cur_device(0) if cython.compiled else cur_device())
        return int(self.device.current())

    def forget(self) -> None:
        """Ask `heap_of` again at the next request."""
        self.last = None


def _self_test() -> None:
    """Raise ImportError unless CuPy's structs are the ones that were declared."""
    import cupy.cuda.device
    import cupy.cuda.memory
    import cupy.cuda.memory_hook
    import cupy_backends.cuda.stream

    bind(cupy_backends.cuda.stream, cupy.cuda.device, cupy.cuda.memory_hook)
    if cython.compiled:
        # A struct of CuPy's that has grown is only a RuntimeWarning to Cython, while our own
        # fields would then lie on top of it.
        m = cupy.cuda.memory
        sizes = (m.BaseMemory.__basicsize__, m.MemoryPointer.__basicsize__)
        own = 24  # the method table, heap and block
        if sizes != (Handle.__basicsize__ - own, 48):
            raise ImportError(f"this CuPy's memory structs have other sizes: {sizes}")
    h = Handle.__new__(Handle)
    if not cython.compiled:
        h.heap = h.block = None
        untrack(h)
    h.ptr, h.size, h.device_id = 0x1234567000, 0x89ABC, 3
    p: Any = make_pointer(h)
    mem: Any = p.mem
    seen = (p.ptr, p.device_id, mem is h, mem.size, mem.ptr, mem.device_id)
    if seen != (0x1234567000, 3, True, 0x89ABC, 0x1234567000, 3):
        raise ImportError("this CuPy's memory structs are laid out differently")
    if gc.is_tracked(h):
        raise ImportError("handles came out visible to the cycle collector")


_self_test()
hooked = hooks.watch(notice_hooks)
