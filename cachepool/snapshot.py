"""What lies where: a heap's segments and their blocks, in torch's shape.

With the books to itself a walk only copies numbers out, two for each block; the dicts are
made afterwards, so that a large snapshot holds nobody up for longer than it must.

What is live is told by ``requested``, not by ``bin``: the blocks of a segment that is on
its way back to the device (in limbo) lie in no index either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cachepool.engine.blocks import Block, Segment
    from cachepool.engine.heap import Heap

UNIT = 512


def snapshot(heap: Heap) -> list[dict[str, Any]]:
    """Return the segments of a heap and the blocks that tile them, by address.

    Parameters
    ----------
    heap : Heap
        A heap of either form.

    Returns
    -------
    list of dict
        For each segment ``device``, ``address``, ``total_size``, ``allocated_size``,
        ``active_size``, ``requested_size``, ``stream`` (the key it serves: a raw handle),
        ``segment_type`` ("small" or "large"), ``segment_pool_id``, ``is_expandable``,
        ``frames`` and ``blocks``; for each block ``address``, ``size``,
        ``requested_size`` (0 if it is free), ``state`` ("active_allocated" or "inactive")
        and ``frames``.  Sizes in bytes.  Every dict and list is its own object, to be
        changed at will; nothing in it is more than an int, str, bool, tuple, list or dict.

    Notes
    -----
    As ``torch.cuda.memory_snapshot``, for one device.  Free neighbours that are kept
    unmerged for exact re-use are shown as they are.  A segment on its way back to the
    device is listed until it is gone, as in ``reserved_bytes``.  Changes nothing; O(blocks).
    """
    found, keys = heap.reading(lambda: _facts(heap))
    found.sort(key=lambda item: item[0])
    return [_segment(heap.device, keys[s.cache], s, tiles) for _, s, tiles in found]


def _tiles(s: Segment) -> list[int]:
    """Return the units and the requested bytes of each block: n, requested, n, requested …."""
    tiles: list[int] = []
    b: Block | None = s.first
    while b is not None:
        tiles.append(b.n)
        tiles.append(b.requested)
        b = b.next
    return tiles


def _segment(device: int, key: int | None, s: Segment, tiles: list[int]) -> dict[str, Any]:
    """Return torch's dict of a segment."""
    blocks = _blocks(s.ptr, tiles)
    live = sum(b["size"] for b in blocks if b["state"] == "active_allocated")
    return {
        "device": device,
        "address": s.ptr,
        "total_size": s.n * UNIT,
        "allocated_size": live,
        "active_size": live,  # no block waits for another stream yet
        "requested_size": sum(b["requested_size"] for b in blocks),
        "stream": key,
        "segment_type": "small" if s.small else "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    }


def _blocks(address: int, tiles: list[int]) -> list[dict[str, Any]]:
    """Return torch's dicts of the blocks that tile a segment from `address` on."""
    blocks: list[dict[str, Any]] = []
    for n, requested in zip(tiles[::2], tiles[1::2], strict=True):
        blocks.append(
            {
                "address": address,
                "size": n * UNIT,
                "requested_size": requested,
                "state": "active_allocated" if requested else "inactive",
                "frames": [],
            }
        )
        address += n * UNIT
    return blocks


def _facts(heap: Heap) -> tuple[list[Any], list[int | None]]:
    """Read segments and keys of streams at one moment; the books are ours."""
    # An address in both was given back and taken again before anyone noted the former.
    segments = {s.ptr: s for d in (heap.limbo, heap.segments) for s in d.values()}
    found = [(address, s, _tiles(s)) for address, s in segments.items()]
    keys = [None if c is None else c.key for c in heap.caches]
    return found, keys
