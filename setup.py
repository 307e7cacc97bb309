"""Build the compiled twin: cachepool/x.py becomes cachepool._compiled.x.

CACHEPOOL_BUILD=auto (default): compile if possible, else install the plain sources;
``required``: fail without a compiler; ``pure``: do not try.
"""

import os
from pathlib import Path

from setuptools import Extension, setup

PACKAGE = "cachepool"
DIRECTIVES = {
    "annotation_typing": False,  # annotations are mypy's; C types come from the .pxd
    "boundscheck": False,
    "wraparound": False,
    "initializedcheck": False,
}


def twins() -> list[Extension]:
    """Return one extension for each .pxd under _compiled/."""
    twin = Path(PACKAGE, "_compiled")
    found = []
    for pxd in sorted(twin.rglob("*.pxd")):
        name = pxd.relative_to(twin).with_suffix("")
        source = Path(PACKAGE, name).with_suffix(".py")
        found.append(Extension(".".join([PACKAGE, "_compiled", *name.parts]), [str(source)]))
    return found


mode = os.environ.get("CACHEPOOL_BUILD", "auto")
if mode not in ("auto", "required", "pure"):
    raise SystemExit(f"CACHEPOOL_BUILD must be auto, required or pure, got {mode!r}")
exts = []
if mode != "pure":
    try:
        from Cython.Build import cythonize
    except ImportError:
        if mode == "required":
            raise
    else:
        exts = cythonize(
            twins(),
            include_path=["stubs"],  # cupy/cuda/memory.pxd, so that CuPy is not needed to build
            build_dir="build",  # keeps the C files out of the tree
            compiler_directives=DIRECTIVES,
            force=True,  # the .pxd lies in another package: changes are not tracked
        )
        for ext in exts:
            ext.optional = mode != "required"  # cythonize() drops optional=
setup(ext_modules=exts)
