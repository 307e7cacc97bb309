"""How large a segment to take from the device for a request that the cache cannot serve."""

from __future__ import annotations

SLAB = 2 << 20
SMALL = 1 << 20


def slabs(nbytes: int, room: int) -> tuple[int, ...]:
    """Return the segment sizes to try: a slab or whole 2 MiB steps, then just the request.

    Parameters
    ----------
    nbytes : int
        Bytes of the request, rounded up to 512.
    room : int
        Bytes that the limit leaves; -1 without a limit.

    Returns
    -------
    tuple of int
        Bytes, in the order to try.  Requests up to 1 MiB share slabs of 2 MiB; a larger one
        gets its own segment in steps of 2 MiB, the granularity of cudaMalloc.  Where the
        limit or the device leaves no room for that, a segment of exactly the request.
    """
    usual = SLAB if nbytes <= SMALL else -(-nbytes // SLAB) * SLAB
    return (nbytes,) if usual == nbytes or 0 <= room < usual else (usual, nbytes)


def exact(nbytes: int, room: int) -> tuple[int, ...]:
    """Return just the request: for a backing that is a pool, or a count, of its own."""
    return (nbytes,)
