"""CuPy's own pool without a driver: "device 0 of 1" answered to those who ask.

``cupy.cuda.MemoryPool`` over made-up memory needs nothing of the driver but the current device
and the number of devices.  CuPy's modules bind those two functions when they are imported,
from a table in ``cupy_backends.cuda.api.runtime``; after `install`, that table holds
functions of the C library: called with 0, ``abs`` says 0 and ``isascii`` says 1.
"""

import ctypes
import sys
from importlib.machinery import ExtensionFileLoader, PathFinder

RUNTIME = "cupy_backends.cuda.api.runtime"
SIGNATURE = b"int (int __pyx_skip_dispatch)"
ANSWERS = {"getDevice": ("abs", 0), "getDeviceCount": ("isascii", 1)}


class Loader(ExtensionFileLoader):
    """Loads the module and puts the answers into its table."""

    def exec_module(self, module):
        """Run the module as usual, then replace two of its functions."""
        super().exec_module(module)
        new = ctypes.pythonapi.PyCapsule_New
        new.restype = ctypes.py_object
        new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        name_of = ctypes.pythonapi.PyCapsule_GetName
        name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
        libc = ctypes.CDLL(None)
        for function, (in_libc, answer) in ANSWERS.items():
            if name_of(module.__pyx_capi__[function]) != SIGNATURE:
                raise ImportError(f"this CuPy declares {function} in another way")
            address = ctypes.cast(getattr(libc, in_libc), ctypes.c_void_p)
            module.__pyx_capi__[function] = new(address, SIGNATURE, None)
            setattr(module, function, lambda answer=answer: answer)


class Finder:
    """Finds that one module."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        """Return the module's spec with our loader."""
        if name != RUNTIME:
            return None
        spec = PathFinder.find_spec(name, path, target)
        spec.loader = Loader(name, spec.origin)
        return spec


def install():
    """Answer from the next import of CuPy on; once it is imported, it is too late."""
    if RUNTIME in sys.modules:
        raise RuntimeError("install() must come before CuPy is imported")
    sys.meta_path.insert(0, Finder)
