"""Trace files: one ``.npz`` with one-dimensional arrays and JSON metadata, format version 1.

This room knows names, types and how a file can be broken; `validate` knows what the arrays
must say.  Files are read without pickle, so a trace from a stranger cannot run code.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from cachepool.offline.validate import (
    EVENT_TYPES,
    INIT_TYPES,
    SEGMENT_TYPES,
    TraceError,
    check_format,
)

REQUIRED = ("op", "id", "size", "stream")
TYPES = EVENT_TYPES | INIT_TYPES | SEGMENT_TYPES

Arrays = dict[str, NDArray[Any]]


def read_arrays(path: str | os.PathLike[str]) -> tuple[Arrays, dict[str, Any]]:
    """Read a trace file.

    Parameters
    ----------
    path : path-like
        ``NAME.npz``.

    Returns
    -------
    arrays : dict of ndarray
        The arrays of the format that the file has, by name.
    meta : dict
        The metadata.

    Raises
    ------
    TraceError
        If there is no such file, it is not an npz or is cut off, the metadata are not JSON
        or of a later version, or an array is missing or of another type.
    """
    members = _read_members(Path(path))
    meta = parse_meta(members.pop("meta", None))
    # Before all else: a later version may well have other arrays and types.
    check_format(meta)
    missing = [name for name in REQUIRED if name not in members]
    if any(name in members for name in SEGMENT_TYPES):
        missing += [name for name in SEGMENT_TYPES if name not in members]
    if missing:
        raise TraceError(f"missing array(s): {', '.join(missing)}")
    arrays = {name: members[name] for name in TYPES if name in members}
    for name, array in arrays.items():
        _check_type(name, array)
    return arrays, meta


def _read_members(path: Path) -> Arrays:
    """Return all that an npz holds; whatever a broken one raises becomes a `TraceError`."""
    try:
        # Opened here: numpy leaves a file that it fails to read open.
        with path.open("rb") as file:
            return _unpack(file)
    except FileNotFoundError:
        raise TraceError("no such file") from None
    except OSError as error:
        raise TraceError(f"cannot be read: {error.strerror or error}") from error


def _unpack(file: BinaryIO) -> Arrays:
    """Return the arrays of an open npz."""
    if file.read(2) != b"PK":
        # numpy would suggest to load it as a pickle, which is not safe advice.
        raise TraceError("not an .npz file")
    file.seek(0)
    try:
        with np.load(file, allow_pickle=False) as archive:
            return {name: np.asarray(archive[name]) for name in archive.files}
    except Exception as error:
        # numpy, zipfile and zlib raise a dozen kinds of errors for damaged files.
        raise TraceError(f"damaged or cut off ({type(error).__name__}: {error})") from error


def parse_meta(member: NDArray[Any] | None) -> dict[str, Any]:
    """Return the metadata held as JSON in a zero-dimensional string array.

    Parameters
    ----------
    member : ndarray of str, shape ()
        None if the file has none.

    Returns
    -------
    dict
        By key.

    Raises
    ------
    TraceError
        If it is missing, not text, not JSON or not an object.
    """
    if member is None:
        raise TraceError("missing array(s): meta")
    if member.ndim or member.dtype.kind != "U":
        raise TraceError(
            f"'meta' must be a zero-dimensional string array, got {member.dtype} "
            f"of shape {member.shape}"
        )
    try:
        meta = json.loads(str(member))
    except (ValueError, RecursionError) as error:
        raise TraceError(f"'meta' is not JSON: {error}") from error
    if not isinstance(meta, dict):
        raise TraceError(f"'meta' must be a JSON object, got {type(meta).__name__}")
    return meta


def _check_type(name: str, array: NDArray[Any]) -> None:
    if array.ndim != 1:
        raise TraceError(f"array {name!r} must be one-dimensional, got shape {array.shape}")
    # "=" forgives the byte order, which numpy converts.
    if array.dtype.newbyteorder("=") != TYPES[name]:
        raise TraceError(f"array {name!r} must be {TYPES[name]}, got {array.dtype}")


def write_arrays(
    path: str | os.PathLike[str], arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]
) -> None:
    """Write a trace file; what was there stays until the new one is complete.

    Parameters
    ----------
    path : path-like
        ``NAME.npz``, used as given.
    arrays : mapping of ndarray
        All arrays of the format.
    meta : mapping
        The metadata, JSON values.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    path = Path(path)
    members: dict[str, Any] = {"meta": np.array(json.dumps(meta)), **arrays}
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez_compressed(file, **members)
        _share(draft)
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise


def _share(draft: str) -> None:
    """Give a temporary file, private as `mkstemp` makes it, the mode that `open` would."""
    mask = os.umask(0)
    os.umask(mask)
    os.chmod(draft, 0o666 & ~mask)
