"""Let CuPy answer "device 0 of 1" without a driver, so that its own pool can be timed.

CuPy's pool asks the runtime for the current device, which fails without a driver; nothing
else in a cache hit does.  CuPy's extensions look the two functions up, when they are
imported, in a table of the runtime module (``__pyx_capi__``).  `install` arranges that the
two entries of that table are replaced the moment the module has run.  No file and no
machine code is changed.  The stand-ins come from the C library: CuPy passes a 0, to which
``abs`` answers 0 (the device) and ``isascii`` 1 (the count).

With a driver there is nothing to do, and nothing is done.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import sys
from types import ModuleType
from typing import Any

RUNTIME = "cupy_backends.cuda.api.runtime"
SIGNATURE = b"int (int __pyx_skip_dispatch)"


def driver_answers() -> bool:
    """Return whether a CUDA driver is there and finds a device, without CuPy."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return False
    return count.value > 0


def install() -> None:
    """Prepare the first import of CuPy in this process for a machine without a driver.

    Raises
    ------
    RuntimeError
        If CuPy has been imported already: its pools are bound to the real functions then.
    """
    if driver_answers() or any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    if RUNTIME in sys.modules:
        raise RuntimeError("the benchmark needs a process that has not imported CuPy yet")
    sys.meta_path.insert(0, _Finder())


class _Finder:
    """Finds the runtime module and has it loaded with the two entries replaced."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != RUNTIME:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(name, spec.origin)
        return spec


class _Loader(importlib.machinery.ExtensionFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        libc = ctypes.CDLL(None)
        for name, stand_in in (("getDevice", libc.abs), ("getDeviceCount", libc.isascii)):
            _replace(module, name, stand_in)
        module.getDevice = lambda: 0  # type: ignore[attr-defined]
        module.getDeviceCount = lambda: 1  # type: ignore[attr-defined]


def _replace(module: Any, name: str, function: Any) -> None:
    """Put a C function into the module's table, if the entry there has its signature."""
    get_name = ctypes.pythonapi.PyCapsule_GetName
    get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    found = get_name(module.__pyx_capi__[name])
    if found != SIGNATURE:
        raise RuntimeError(f"this CuPy's {name} is {found!r}: the benchmark does not know it")
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = (
        ctypes.py_object,
        [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p],
    )
    address = ctypes.cast(function, ctypes.c_void_p).value
    module.__pyx_capi__[name] = new(address, SIGNATURE, None)
