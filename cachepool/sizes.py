"""Byte counts as people write them, and as messages print them."""

from __future__ import annotations

import operator
import re
from decimal import Decimal

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}
_PATTERN = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([KMGTP]?)(?:I?B)?\s*", re.IGNORECASE)


def parse_size(value: object, what: str = "size") -> int:
    """Return a byte count given as an integer or as text such as ``"512MiB"``.

    Parameters
    ----------
    value : int or str
        Bytes, or a number with an optional unit ``B, KB, KiB … PB, PiB``; both spellings
        are binary (1 GB = 1 GiB = 2**30 bytes), upper or lower case, space allowed.
    what : str
        What the value is, for the error text.

    Returns
    -------
    int
        Bytes, not negative; a fraction of a byte is cut off.

    Raises
    ------
    TypeError
        If `value` is neither an integer nor text (a bool counts as neither).
    ValueError
        If the text is not a size, or the number is negative.
    """
    if isinstance(value, str):
        match = _PATTERN.fullmatch(value)
        if match is None or ("." in match[1] and not match[2]):
            raise ValueError(
                f'{what} must be a number of bytes or text such as "8GiB", got {value!r}'
            )
        return int(Decimal(match[1]) * UNITS[match[2].upper()])
    if isinstance(value, bool):
        raise TypeError(f'{what} must be bytes (int) or text such as "8GiB", got {value!r}')
    try:
        nbytes = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(
            f'{what} must be bytes (int) or text such as "8GiB", got {value!r}'
        ) from None
    if nbytes < 0:
        raise ValueError(f"{what} must not be negative, got {nbytes}")
    return nbytes


def format_size(nbytes: int) -> str:
    """Return bytes in the largest binary unit that fits: ``"1.5 GiB"``, ``"512 B"``.

    Parameters
    ----------
    nbytes : int
        Bytes.

    Returns
    -------
    str
        One decimal, except for plain bytes.
    """
    for unit in ("PiB", "TiB", "GiB", "MiB", "KiB"):
        scale = UNITS[unit[0]]
        if abs(nbytes) >= scale:
            return f"{nbytes / scale:,.1f} {unit}"
    return f"{nbytes} B"


def exact_size(nbytes: int) -> str:
    """Return bytes for a message: ``"1,073,741,824 bytes (1.0 GiB)"``.

    Parameters
    ----------
    nbytes : int
        Bytes.

    Returns
    -------
    str
        The count with separators, and the binary unit where there is one.
    """
    text = f"{nbytes:,} bytes"
    return text if abs(nbytes) < 1024 else f"{text} ({format_size(nbytes)})"
