"""What the doctor examines.  Nothing here raises: what fails is a finding."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import platform
import shutil
import warnings
from dataclasses import dataclass, field
from importlib import metadata
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import cachepool
from cachepool import _form
from cachepool.devices.cupy_edge import check_version
from cachepool.errors import DeviceError, OptionError
from cachepool.options import Options, option_names

BUILD = "in the checkout: pip install -e ."
COMPILER = f"install a C compiler (Debian: apt install build-essential); {BUILD}"
CUDA_13 = 13000
SIMULATED = "needed to compute: an NVIDIA GPU and its driver; the simulated device needs neither"
PREALLOCATING = {
    "jax": ("XLA_PYTHON_CLIENT_PREALLOCATE", "false"),
    "tensorflow": ("TF_FORCE_GPU_ALLOW_GROWTH", "true"),
}
"""Libraries that take most of a GPU when they start, and the variable that stops them."""


@dataclass
class Findings:
    """What was found, by the keys of ``cachepool doctor --json``."""

    cachepool: dict[str, Any] = field(default_factory=dict)
    python: dict[str, str] = field(default_factory=dict)
    numpy: dict[str, str | None] = field(default_factory=dict)
    cupy: dict[str, str | None] = field(default_factory=dict)
    device: dict[str, Any] = field(default_factory=dict)
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    faults: list[dict[str, str]] = field(default_factory=list)
    missing: list[dict[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def healthy(self) -> bool:
        """Whether no fault was found."""
        return not self.faults

    def fault(self, what: str, advice: str) -> None:
        """Note something wrong."""
        self.faults.append({"what": what, "advice": advice})

    def miss(self, what: str, advice: str) -> None:
        """Note something that is not there."""
        self.missing.append({"what": what, "advice": advice})


def examine() -> Findings:
    """Return everything that can be found out without taking device memory.

    Returns
    -------
    Findings
        With a fault for each thing that is wrong.
    """
    found = Findings()
    found.python = {
        "version": f"{platform.python_version()} ({platform.python_implementation()})",
        "platform": f"{platform.system()} {platform.machine()}",
    }
    _numpy(found)
    cupy = _cupy(found)
    _engine(found, cupy)
    _device(found, cupy)
    _options(found)
    _neighbours(found)
    return found


def _numpy(found: Findings) -> None:
    try:
        found.numpy = {"version": importlib.import_module("numpy").__version__}
    except Exception as error:
        found.numpy = {"version": None}
        found.fault(f"numpy cannot be imported: {error}", 'pip install "numpy>=2.0"')


def _cupy(found: Findings) -> Any:
    """Return CuPy if it can be used, else None."""
    found.cupy = {"version": None, "package": _package(), "why": None}
    install = f'pip install --upgrade "{_wanted()}"'
    if not _installed("cupy"):
        found.cupy["why"] = "not installed"
        found.miss("CuPy: arrays on the pool", install)
        return None
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            cupy = importlib.import_module("cupy")
    except Exception as error:
        found.cupy["why"] = "installed, but cannot be imported"
        found.fault(f"CuPy cannot be imported: {_first_line(error)}", install)
        return None
    found.notes += [f"importing CuPy warned: {_first_line(w.message)}" for w in caught]
    found.cupy["version"] = cupy.__version__
    try:
        check_version(cupy.__version__, "cachepool")
    except ImportError as error:
        found.cupy["why"] = "too old"
        found.fault(_first_line(error), install)
        return None
    return cupy


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # a finder, or a module put in its place, objects
        return False


def _package() -> str | None:
    """Return the name of the distribution that CuPy came with."""
    for name in ("cupy-cuda13x", "cupy-cuda12x", "cupy-cuda11x", "cupy-rocm-7-0", "cupy"):
        try:
            metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        return name
    return None


def _wanted() -> str:
    """Return the CuPy to install: for the driver that is there, else for CUDA 12."""
    version = ctypes.c_int(0)
    try:
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):  # no driver, or only a stub of it
        version.value = 0
    return "cupy-cuda13x>=14.0" if version.value >= CUDA_13 else "cupy-cuda12x>=13.6"


def _engine(found: Findings, cupy: Any) -> None:
    twin = _twin()
    found.cachepool = {
        "version": cachepool.__version__,
        "compiled": cachepool.__compiled__,
        "handle": _handle(found) if cupy is not None else None,
        "form": os.environ.get("CACHEPOOL_FORM", "auto"),
        "twin": twin or "built",
    }
    wrong = getattr(_form, "FAULT", None)
    if wrong is not None:
        found.fault(_first_line(wrong), f"unset CACHEPOOL_FORM; to compile, {_how_to_build()}")
    if twin is not None:
        found.miss(f"the compiled engine: {twin}", _how_to_build())


def _twin() -> str | None:
    """Return why the engine cannot run compiled, None if it can."""
    folder = Path(cachepool.__file__).parent / "_compiled" / "engine"
    if not any((folder / f"heap{suffix}").exists() for suffix in EXTENSION_SUFFIXES):
        others = list(folder.glob("heap.*.so"))
        return "built for another Python" if others else "not built"
    try:
        _form.load("compiled", "engine.heap")
    except Exception as error:
        return f"built, but it cannot be loaded: {_first_line(error)}"
    return None


def _how_to_build() -> str:
    return BUILD if any(map(shutil.which, ("cc", "gcc", "clang"))) else COMPILER


def _handle(found: Findings) -> str | None:
    """Return the form of the handles that CuPy would get."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            name: str = _form.handle().__name__
        except Exception as error:
            found.fault(
                f"CuPy's memory handles cannot be made: {_first_line(error)}", _how_to_build()
            )
            return None
    found.notes += [_first_line(w.message) for w in caught]
    return "compiled" if name.startswith("cachepool._compiled.") else "pure"


def _device(found: Findings, cupy: Any) -> None:
    found.device = {"name": "sim", "why": None, "devices": []}
    if cupy is None:
        found.device["why"] = "CuPy cannot be used"
        return
    from cachepool.devices.cuda import probe

    try:
        found.device["why"] = probe()
        if found.device["why"] is None:
            found.device["name"] = "cuda"
            found.device["devices"] = _devices(cupy)
        else:
            found.miss(f"a CUDA device: {found.device['why']}", SIMULATED)
    except DeviceError as error:
        found.device["why"] = "the driver does not work"
        found.fault(_first_line(error), "see what nvidia-smi says; reinstall the driver, reboot")
    except Exception as error:
        found.fault(f"a CUDA device does not answer: {_first_line(error)}", "see nvidia-smi")


def _devices(cupy: Any) -> list[dict[str, Any]]:
    runtime = cupy.cuda.runtime
    devices = []
    for ordinal in range(runtime.getDeviceCount()):
        name = runtime.getDeviceProperties(ordinal)["name"]
        with cupy.cuda.Device(ordinal):
            free, total = runtime.memGetInfo()
        text = name.decode() if isinstance(name, bytes) else str(name)
        devices.append({"ordinal": ordinal, "name": text, "free": free, "total": total})
    return devices


def _options(found: Findings) -> None:
    try:
        options = Options.collect({})
    except OptionError as error:
        found.fault(str(error), "correct or unset CACHEPOOL_CONF and CUPY_GPU_MEMORY_LIMIT")
        return
    for name in option_names():
        value = {"value": getattr(options, name), "origin": options.origins[name]}
        found.options[name] = value


def _neighbours(found: Findings) -> None:
    for library, (variable, value) in PREALLOCATING.items():
        if _installed(library) and os.environ.get(variable) != value:
            found.notes.append(
                f"{library} takes most of a GPU's memory when it starts; in one process with "
                f"CuPy set {variable}={value}"
            )


def _first_line(error: object) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" =-")]
    return lines[0] if lines else type(error).__name__
