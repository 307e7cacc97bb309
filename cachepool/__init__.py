"""A caching GPU memory pool for CuPy that tells the truth about memory.

``cachepool.enable()`` puts it under CuPy; ``memory_allocated()``, ``memory_reserved()`` and
their siblings say, with torch's names and meanings, where the memory is.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from cachepool._form import COMPILED as __compiled__
from cachepool._form import Allocation
from cachepool.errors import DeviceError, OptionError, PoolCorruptionError, RaceError
from cachepool.install import disable, enable, enabled_pool, get_pool
from cachepool.options import Options
from cachepool.pool import CachePool
from cachepool.torch_names import Emptied

if TYPE_CHECKING:
    from cachepool.devices.sim import SimDevice as SimDevice
    from cachepool.offline import ReplayResult as ReplayResult
    from cachepool.offline import Trace as Trace
    from cachepool.offline import replay as replay
    from cachepool.oom import MemoryReport as MemoryReport

    OutOfMemoryError: type[MemoryError]

__version__ = "0.1.0"

P = ParamSpec("P")
R = TypeVar("R")


def _on_the_enabled_pool(method: Callable[Concatenate[CachePool, P], R]) -> Callable[P, R]:
    """Return the function that calls a method of the pool enabled now."""

    @functools.wraps(method)
    def function(*args: P.args, **kwargs: P.kwargs) -> R:
        return method(enabled_pool(), *args, **kwargs)

    own = inspect.signature(method)
    function.__signature__ = own.replace(  # type: ignore[attr-defined]
        parameters=list(own.parameters.values())[1:]
    )
    return function


memory_allocated = _on_the_enabled_pool(CachePool.memory_allocated)
max_memory_allocated = _on_the_enabled_pool(CachePool.max_memory_allocated)
reset_max_memory_allocated = _on_the_enabled_pool(CachePool.reset_max_memory_allocated)
memory_reserved = _on_the_enabled_pool(CachePool.memory_reserved)
max_memory_reserved = _on_the_enabled_pool(CachePool.max_memory_reserved)
reset_max_memory_reserved = _on_the_enabled_pool(CachePool.reset_max_memory_reserved)
reset_max_memory_cached = reset_max_memory_reserved
reset_peak_memory_stats = _on_the_enabled_pool(CachePool.reset_peak_memory_stats)
reset_accumulated_memory_stats = _on_the_enabled_pool(CachePool.reset_accumulated_memory_stats)
memory_stats = _on_the_enabled_pool(CachePool.memory_stats)
memory_stats_as_nested_dict = _on_the_enabled_pool(CachePool.memory_stats_as_nested_dict)
memory_summary = _on_the_enabled_pool(CachePool.memory_summary)
memory_snapshot = _on_the_enabled_pool(CachePool.memory_snapshot)
empty_cache = _on_the_enabled_pool(CachePool.empty_cache)
mem_get_info = _on_the_enabled_pool(CachePool.mem_get_info)
set_per_process_memory_fraction = _on_the_enabled_pool(CachePool.set_per_process_memory_fraction)
get_per_process_memory_fraction = _on_the_enabled_pool(CachePool.get_per_process_memory_fraction)
list_gpu_processes = _on_the_enabled_pool(CachePool.list_gpu_processes)

_LATER = {
    "MemoryReport": "cachepool.oom",
    "ReplayResult": "cachepool.offline",
    "SimDevice": "cachepool.devices.sim",
    "Trace": "cachepool.offline",
    "replay": "cachepool.offline",
}


def __getattr__(name: str) -> Any:
    """Import on first use what a pool at work does not need; make OutOfMemoryError."""
    if name == "OutOfMemoryError":
        from cachepool.oom import out_of_memory_class

        value = out_of_memory_class()
    elif name in _LATER:
        value = getattr(__import__(_LATER[name], fromlist=[name]), name)
    else:
        raise AttributeError(f"module 'cachepool' has no attribute {name!r}")
    globals()[name] = value
    return value


__all__ = [
    "Allocation",
    "CachePool",
    "DeviceError",
    "Emptied",
    "MemoryReport",
    "OptionError",
    "Options",
    "OutOfMemoryError",
    "PoolCorruptionError",
    "RaceError",
    "ReplayResult",
    "SimDevice",
    "Trace",
    "__compiled__",
    "disable",
    "empty_cache",
    "enable",
    "get_per_process_memory_fraction",
    "get_pool",
    "list_gpu_processes",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "replay",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_max_memory_reserved",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
]
