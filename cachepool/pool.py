"""CachePool: what users hold.  It finds the heap of a device and hands out its memory."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from cachepool import _form, install
from cachepool.cupy_names import CupyNames
from cachepool.devices.cupy_edge import require_cupy
from cachepool.devices.find import find_device
from cachepool.devices.protocol import Device
from cachepool.engine.check import Audit, audit, device_books
from cachepool.engine.counters import FIGURES
from cachepool.errors import PoolCorruptionError
from cachepool.options import Options

OURS = ("hand-out", "release")


@dataclass(frozen=True)
class CheckSummary:
    """What `CachePool.check` looked at: counts, and bytes allocated and reserved."""

    heaps: int
    segments: int
    blocks: int
    free_blocks: int
    allocated: int
    reserved: int


class CachePool(CupyNames):
    """A caching memory pool: released memory is kept for the next request of its stream.

    Parameters
    ----------
    device : str or Device
        ``"auto"``, ``"cuda"``, ``"sim"``, ``"sim:8GiB"``, or a Device such as `SimDevice`.
    capacity : int or str, optional
        Bytes of the simulated device; without limit if None.
    **options
        See `Options`: ``backing``, ``limit``.

    Raises
    ------
    OptionError
        For an unknown option or a value that is not allowed.
    DeviceError
        If ``device="cuda"`` and there is none, or if the driver does not work.

    Notes
    -----
    Every method may be called from any thread.  A pool that is dropped gives its memory back
    when the last array over it has died; `close` gives back at once what no array holds.

    Examples
    --------
    >>> import cachepool
    >>> pool = cachepool.CachePool("sim:1GiB")
    >>> a = pool.allocate(3_000_000)
    >>> pool.memory_allocated(), pool.memory_reserved()
    (3000320, 4194304)
    >>> del a
    >>> pool.memory_allocated(), pool.memory_reserved()
    (0, 4194304)
    >>> pool.empty_cache()
    4194304
    """

    def __init__(
        self, device: str | Device = "auto", *, capacity: int | str | None = None, **options: Any
    ) -> None:
        super().__init__(find_device(device, capacity), Options.collect(options))
        self._alone = isinstance(device, str)
        self._allocator: Callable[[], Any] = lambda: None
        # A backing of the user's hands out memory that the device does not know.
        knows = self.options.backing == "malloc"
        self._handed_out = getattr(self.device, "handed_out", None) if knows else None

    def __repr__(self) -> str:
        allocated, reserved = self.totals()
        return (
            f"<CachePool on {self.device.name}: {allocated:,} bytes allocated, "
            f"{reserved:,} reserved{', closed' if self.closed else ''}>"
        )

    @property
    def malloc(self) -> Callable[[int], Any]:
        """CuPy's hook: ``malloc(nbytes) -> cupy.cuda.MemoryPointer``, for the current stream.

        A bound method, which keeps the pool alive.  ``cupy.cuda.set_allocator(pool.malloc)`` puts
        it in place for every thread, ``cupy.cuda.using_allocator`` for one.
        """
        allocator = self._allocator()
        if allocator is None:
            allocator = self._make_allocator()
            self._allocator = weakref.ref(allocator)
        malloc: Callable[[int], Any] = allocator.malloc
        return malloc

    def _make_allocator(self) -> Any:
        """Make what CuPy calls.  It holds the pool, so the pool holds it weakly."""
        require_cupy("CachePool.malloc")
        handle = _form.handle()
        native = self.device.name == "cuda"
        return handle.Allocator(self.heap, self.check_size, self.device, native, self._handed_out)

    def allocate(
        self, nbytes: int, *, stream: object = None, device: int | None = None
    ) -> _form.Allocation:
        """Allocate without CuPy.

        Parameters
        ----------
        nbytes : int
            Bytes; 0 gives a null address.
        stream : object, optional
            A stream of the pool's device, or its handle; the current one if None.
        device : int, optional
            Ordinal; the current device if None.

        Returns
        -------
        Allocation
            With ``ptr``, ``size`` (rounded up to 512), ``requested``, ``stream``, ``device``
            and ``release()``; released when it dies.

        Raises
        ------
        TypeError, ValueError
            For a size, stream or device that is none.
        OutOfMemoryError
            If there is no memory, after giving cached memory back and collecting garbage.
        """
        size = self.check_size(nbytes, device)
        heap = self.heap(self.ordinal(device))
        with self._made_current(heap.device, stream):
            key = self.device.current_stream() if stream is None else self.device.stream_key(stream)
            cache = heap.cache_of(key)
            if cache.owner is None and key > 0 and not isinstance(stream, int):
                cache.owner = stream
            allocation = _form.lease(heap, size, key)
        if size and self._handed_out is not None:
            self._handed_out(allocation.ptr, allocation.size, heap.device, key)
        return allocation

    @contextmanager
    def _made_current(self, device: int, stream: object) -> Iterator[None]:
        """Make the device current, and over a callable backing the stream, which it asks for."""
        with ExitStack() as stack:
            if device != self.device.current():
                stack.enter_context(self.device.use(device))
            if stream is not None and callable(self.options.backing):
                if hasattr(stream, "__enter__"):
                    stack.enter_context(stream)  # type: ignore[arg-type]
                elif self.device.stream_key(stream) != self.device.current_stream():
                    raise ValueError(
                        f"over a callable backing, stream must be the current one or an object "
                        f"that a with block makes current, got {stream!r}"
                    )
            yield

    def check(self, quick: bool = False) -> CheckSummary:
        """Verify the pool's invariants, I1 to I5 of the design.

        Parameters
        ----------
        quick : bool
            Compare totals only, without walking the blocks.

        Raises
        ------
        PoolCorruptionError
            Listing every breach.

        Notes
        -----
        O(blocks); quick: O(devices).  Other threads wait meanwhile.
        """
        breaches: list[str] = []
        walked: list[Audit] = []
        heaps = self.heaps()
        for heap in heaps:
            if quick:
                breaches += _quick(heap)
                continue
            found = audit(heap)
            breaches += [f"device {heap.device}: {b}" for b in found.breaches]
            walked.append(found)
            breaches += self._check_device(heap)
        # What the program's own kernels do to each other is no fault of the pool.
        races = [r for r in getattr(self.device, "races", ()) if r.later.startswith(OURS)]
        breaches += [f"I5 {race}" for race in races]
        if breaches:
            raise PoolCorruptionError(breaches)
        allocated, reserved = self.totals()
        return CheckSummary(
            heaps=len(heaps),
            segments=sum(a.segments for a in walked),
            blocks=sum(a.blocks for a in walked),
            free_blocks=sum(a.free_blocks for a in walked),
            allocated=allocated,
            reserved=reserved,
        )

    def close(self) -> None:
        """Give back what no array holds and refuse further requests.

        Arrays that live stay valid; their memory goes back when the last of them dies.
        """
        allocator = self._allocator()
        if allocator is not None:
            allocator.forget()
        for heap in self._take_heaps():
            heap.settle()
            heap.trim(None, None)

    def __reduce__(self) -> str:
        raise TypeError("a CachePool cannot be copied or pickled; its options can")

    def __enter__(self) -> CachePool:
        install.require_enabled(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        install.leave(self)

    def _check_device(self, heap: _form.Heap) -> list[str]:
        books = getattr(self.device, "outstanding", None)
        if books is None or self.options.backing != "malloc":
            return []
        for _ in range(100):  # other threads may be between the device and the books
            before = _moves(heap)
            breaches = device_books(heap, books(heap.device), self._alone)
            if not breaches or (not heap.promised and not heap.limbo and before == _moves(heap)):
                return breaches
        return []


def _moves(heap: _form.Heap) -> tuple[int, int, int, int]:
    """Return what changes when memory comes from the device or goes back."""
    return heap.promised, len(heap.limbo), heap.device_allocs, heap.device_frees


def _quick(heap: _form.Heap) -> list[str]:
    heap.settle()
    requested, allocated, reserved = (
        heap.counters.read(FIGURES.index(name), 2)[0]
        for name in ("requested_bytes", "allocated_bytes", "reserved_bytes")
    )
    if 0 <= requested <= allocated <= reserved:
        return []
    return [f"I3 not requested <= allocated <= reserved: {requested}, {allocated}, {reserved}"]
