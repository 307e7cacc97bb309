"""CuPy's pool once more, as slow and plain as can be: the reference for the fast policy.

Written from the rules of the reference alone and sharing nothing with `cachepool.offline`:
a segment is a Python list of tiles in address order, and every search looks at all of them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Tile:
    address: int
    size: int
    block: int | None
    freed_at: int = 0


class CupyModel:
    """Segments as lists of tiles; `calls` are (total, refused, given back)."""

    def __init__(self, capacity: int | None, ties: str, first_address: int) -> None:
        self.capacity = capacity
        self.ties = ties
        self.segments: list[tuple[int, list[Tile]]] = []
        self.next_address = first_address
        self.clock = 0
        self.peak = 0
        self.calls = [0, 0, 0]

    @property
    def reserved(self) -> int:
        return sum(tile.size for _, tiles in self.segments for tile in tiles)

    def allocate(self, block: int, size: int, stream: int) -> int | None:
        """Return the address, None if memory ran out."""
        if size == 0:
            return 0
        while size % 512:
            size += 1
        fitting = [
            (tile.size, tile.address if self.ties == "lowest" else -tile.freed_at, tile, tiles)
            for owner, tiles in self.segments
            for tile in tiles
            if owner == stream and tile.block is None and tile.size >= size
        ]
        if not fitting:
            return self.grow(block, size, stream)
        _, _, tile, tiles = min(fitting, key=lambda found: found[:2])
        if tile.size > size:
            rest = Tile(tile.address + size, tile.size - size, None, self.tick())
            tiles.insert(tiles.index(tile) + 1, rest)
        tile.size, tile.block = size, block
        return tile.address

    def grow(self, block: int, size: int, stream: int) -> int | None:
        for attempt in range(3):
            if attempt:
                self.flush()
            self.calls[0] += 1
            if self.capacity is None or self.reserved + size <= self.capacity:
                break
            self.calls[1] += 1
        else:
            return None
        tile = Tile(self.next_address, size, block)
        self.next_address += size
        self.segments.append((stream, [tile]))
        self.peak = max(self.peak, self.reserved)
        return tile.address

    def flush(self) -> None:
        kept = [
            (s, tiles) for s, tiles in self.segments if len(tiles) > 1 or tiles[0].block is not None
        ]
        self.calls[2] += len(self.segments) - len(kept)
        self.segments = kept

    def free(self, block: int) -> None:
        for _, tiles in self.segments:
            for tile in tiles:
                if tile.block == block:
                    tile.block = None
                    tile.freed_at = self.tick()
                    self.join(tiles, tile)
                    return

    def join(self, tiles: list[Tile], freed: Tile) -> None:
        """Melt every run of free tiles into its first one, as young as the one just freed."""
        joined: list[Tile] = []
        for tile in tiles:
            if joined and joined[-1].block is None and tile.block is None:
                joined[-1].size += tile.size
                joined[-1].freed_at = freed.freed_at
            else:
                joined.append(tile)
        tiles[:] = joined

    def tick(self) -> int:
        self.clock += 1
        return self.clock
