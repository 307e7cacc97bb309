"""The edge to CuPy: importing it, with a clear word when that cannot be."""

from __future__ import annotations

from typing import Any

OLDEST = (13, 6)
ADVICE = 'pip install "cachepool[cuda12]" (or cuda13, the one that fits your CUDA)'


def require_cupy(what: str) -> Any:
    """Import CuPy and return it.

    Parameters
    ----------
    what : str
        What needs it, for the message.

    Raises
    ------
    ImportError
        If CuPy is not installed, or older than 13.6; says which extra to install.
    """
    try:
        import cupy
    except ImportError as error:
        raise ImportError(f"{what} needs CuPy: {ADVICE} [{error}]") from error
    check_version(cupy.__version__, what)
    return cupy


def check_version(version: str, what: str) -> None:
    """Raise ImportError if that version of CuPy is too old."""
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < OLDEST:
        raise ImportError(f"{what} needs CuPy 13.6 or newer, found {version}: {ADVICE}")
