"""Putting a pool under CuPy and taking it away again: a stack.

Each `enable` pushes what it found (CuPy's allocator, and the object that
``cupy.get_default_memory_pool()`` returns, which cuFFT flushes when it is out of memory),
each `disable` pops the innermost and restores exactly that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cachepool.devices.cupy_edge import require_cupy

if TYPE_CHECKING:
    from cachepool.devices.protocol import Device
    from cachepool.pool import CachePool


@dataclass(frozen=True)
class Entry:
    """A pool that is enabled, and what was there before."""

    pool: CachePool
    allocator: Callable[[int], Any] | None
    default_pool: Any


_stack: list[Entry] = []
_lock = threading.RLock()


def enable(
    pool: CachePool | None = None,
    *,
    device: str | Device = "auto",
    capacity: int | str | None = None,
    **options: Any,
) -> CachePool:
    """Put a pool under CuPy, for every thread.

    Parameters
    ----------
    pool : CachePool, optional
        A pool made before; else one is made from the other arguments.
    device : str or Device
        ``"auto"`` (CUDA when a driver and device are there, else simulated), ``"cuda"``,
        ``"sim"``, ``"sim:8GiB"``, or a Device object.
    capacity : int or str, optional
        Bytes of the simulated device; without limit if None.
    **options
        See `Options`.

    Returns
    -------
    CachePool
        As a context manager, ``with cachepool.enable() as pool:``, it disables at the end.

    Raises
    ------
    ImportError
        If CuPy is not installed or older than 13.6; says which extra to install.
    OptionError, DeviceError
        As `CachePool`; nothing has changed then.
    ValueError
        CuPy's own, inside ``using_allocator`` of this thread; nothing has changed.

    Notes
    -----
    Calls nest: each one pushes, and `disable` restores exactly what the innermost found.
    ``cupy.get_default_memory_pool()`` is the pool meanwhile, so programs that flush or read
    CuPy's default pool, and cuFFT's retry, reach it.
    """
    cupy = require_cupy("cachepool.enable()")
    if pool is None:
        from cachepool.pool import CachePool

        pool = CachePool(device, capacity=capacity, **options)
    else:
        _refuse_both(pool, device, capacity, options)
    malloc = pool.malloc
    with _lock:
        entry = Entry(pool, cupy.cuda.get_allocator(), cupy._default_memory_pool)
        cupy.cuda.set_allocator(malloc)
        cupy._default_memory_pool = pool
        _stack.append(entry)
    return pool


def disable() -> None:
    """Take the innermost enabled pool away and restore what its `enable` found.

    Arrays that live stay valid.  Does nothing if no pool is enabled.

    Raises
    ------
    ValueError
        CuPy's own, inside ``using_allocator`` of this thread; nothing has changed.
    """
    with _lock:
        if _stack:
            _pop()


def get_pool() -> CachePool | None:
    """Return the pool that is enabled now (the innermost), None if there is none."""
    with _lock:
        return _stack[-1].pool if _stack else None


def enabled_pool() -> CachePool:
    """Return the pool that is enabled now, or raise RuntimeError."""
    pool = get_pool()
    if pool is None:
        raise RuntimeError("no pool is enabled: call cachepool.enable() first")
    return pool


def require_enabled(pool: CachePool) -> None:
    """Raise RuntimeError unless a pool is the innermost one enabled."""
    if get_pool() is not pool:
        raise RuntimeError("only an enabled pool can lead a with block: with cachepool.enable(): …")


def leave(pool: CachePool) -> None:
    """Leave a ``with`` block of a pool: disable it, unless it has been disabled inside.

    Raises
    ------
    RuntimeError
        If another pool was enabled inside and is so still; nothing has changed.
    """
    with _lock:
        if all(entry.pool is not pool for entry in _stack):
            return
        if _stack[-1].pool is not pool:
            raise RuntimeError("with blocks left out of order: another pool is enabled inside")
        _pop()


def _pop() -> None:
    cupy = require_cupy("cachepool.disable()")
    entry = _stack[-1]
    cupy.cuda.set_allocator(entry.allocator)
    cupy._default_memory_pool = entry.default_pool
    _stack.pop()


def _refuse_both(pool: Any, device: object, capacity: object, options: dict[str, Any]) -> None:
    from cachepool.pool import CachePool

    if not isinstance(pool, CachePool):
        raise TypeError(f"enable() takes a CachePool, or keywords to make one, got {pool!r}")
    if device != "auto" or capacity is not None or options:
        raise TypeError("enable() takes a pool or the options to make one, not both")
    if pool.closed:
        raise ValueError("this pool is closed: make another one")
