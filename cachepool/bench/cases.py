"""What is timed: a request and its release, in pairs, on a pool in some state.

Both sides run in the same process, in turns; a case's figure is the median over the turns,
its ratio the median of the ratios of turns that ran side by side.  Times are CPU time of
the process, so that other work on the machine disturbs less.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cachepool._form import COMPILED
from cachepool.bench import peers

UNIT = 512
MIB = 1 << 20
SEED = 7
TURNS = 9
PAIRS = 20_000 if COMPILED else 4_000
HOLES = (10, 1_000, 10_000, 100_000)


@dataclass(frozen=True)
class Timing:
    """A case's figures: nanoseconds for a request and its release, on either side.

    Attributes
    ----------
    case : str
        ``hit_512``, ``hit_3mib``, ``mixed``, or ``holes_<number of holes>``.
    ours_ns, peer_ns : float
        Medians over the turns, the loop around included.
    peer : str
        Whose pool it is compared with.
    ratio : float
        Median of ours ÷ peer, turn by turn.
    spread : list of float
        Least and greatest of those ratios.
    """

    case: str
    ours_ns: float
    peer: str
    peer_ns: float
    ratio: float
    spread: list[float]

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as JSON can hold them."""
        return asdict(self)


def run(progress: Callable[[str], None] = lambda line: None) -> Iterator[Timing]:
    """Time every case, yielding each when it is done.

    Parameters
    ----------
    progress : callable
        Called with a line before each case.
    """
    version = f"cupy {_cupy_version()} MemoryPool"
    pool_of_holes = {"hit_512": 10, "hit_3mib": 10, "mixed": 1_000}
    pool_of_holes |= {f"holes_{n}": n for n in HOLES}
    for case, holes in pool_of_holes.items():
        progress(case)
        yield _compare(case, holes, version)


def _compare(case: str, holes: int, peer: str) -> Timing:
    sizes = _sizes(case)
    mine, check = peers.ours()
    theirs, _ = peers.cupys()
    walls = [_make_holes(malloc, holes) for malloc in (mine, theirs)]
    gc.collect()
    for malloc in (mine, theirs):  # warm up: both sides serve from their caches afterwards
        _time(malloc, sizes)
    turns = [(_time(mine, sizes), _time(theirs, sizes)) for _ in range(TURNS)]
    check()
    del walls
    ratios = [a / b for a, b in turns]
    return Timing(
        case=case,
        ours_ns=round(statistics.median(a for a, _ in turns), 1),
        peer=peer,
        peer_ns=round(statistics.median(b for _, b in turns), 1),
        ratio=round(statistics.median(ratios), 3),
        spread=[round(min(ratios), 3), round(max(ratios), 3)],
    )


def _sizes(case: str) -> Sequence[int]:
    if case == "hit_3mib":
        return [3 * MIB] * PAIRS
    if case == "mixed":
        rng = random.Random(SEED)
        return [UNIT * rng.randint(1, 3000) for _ in range(PAIRS)]
    return [UNIT] * PAIRS


def _make_holes(malloc: Callable[[int], Any], number: int) -> list[Any]:
    """Leave that many holes of 512 B to 2 MiB, walled in by the live blocks returned."""
    rng = random.Random(SEED)
    whole = malloc(256 << 30)
    del whole  # a large free block to cut from, as a program that has run for a while has
    walls, holes = [], []
    for _ in range(number):
        holes.append(malloc(UNIT * rng.randint(1, 4096)))
        walls.append(malloc(UNIT))
    rng.shuffle(holes)
    holes.clear()
    return walls


def _time(malloc: Callable[[int], Any], sizes: Sequence[int]) -> float:
    """Return nanoseconds of CPU time for a request whose pointer dies at once."""
    start = time.process_time_ns()
    for size in sizes:
        malloc(size)
    return (time.process_time_ns() - start) / len(sizes)


def _cupy_version() -> str:
    import cupy

    version: str = cupy.__version__
    return version
