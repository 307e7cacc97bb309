"""The statistics as a table of text: torch's, character for character, but for the name.

Every line is 75 characters between two bars.  A row shows the current value, the peak,
and the accumulated allocated and freed of one metric; numbers are cut off, not rounded.
The unit of a column is chosen by the row of all pools, and its sub-rows share it, so that
they add up by eye.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

WIDTH = 75
SIZE_UNITS = ("B  ", "KiB", "MiB", "GiB", "TiB", "PiB")
COUNT_UNITS = (" ", "K", "M")
TYPES = ("current", "peak", "allocated", "freed")
HEADER = "        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  "
SIZES = {
    "allocated_bytes": "Allocated memory",
    "active_bytes": "Active memory",
    "requested_bytes": "Requested memory",
    "reserved_bytes": "GPU reserved memory",
    "inactive_split_bytes": "Non-releasable memory",
}
COUNTS = {
    "allocation": "Allocations",
    "active": "Active allocs",
    "segment": "GPU reserved segments",
    "inactive_split": "Non-releasable allocs",
}
OVERSIZE = {
    "oversize_allocations": "Oversize allocations",
    "oversize_segments": "Oversize GPU segments",
}
POOLS = {"large_pool": "      from large pool", "small_pool": "      from small pool"}

Stats = Mapping[str, int | float]
Format = Callable[[int, int], str]


def summary(stats: Stats, device: int, abbreviated: bool = False) -> str:
    """Return the statistics of a device as a table of text.

    Parameters
    ----------
    stats : mapping of str to int or float
        What `HeapStats.flat` returns, or ``torch.cuda.memory_stats``.
    device : int
        Ordinal, for the title.
    abbreviated : bool, optional
        Whether to leave the rows of the two pools out.

    Returns
    -------
    str
        Lines of 77 characters, each ending in a line feed.

    Raises
    ------
    KeyError
        If `stats` lacks one of the figures shown.

    Notes
    -----
    As ``torch.cuda.memory_summary``.
    """
    ooms, retries = int(stats["num_ooms"]), int(stats["num_alloc_retries"])
    lines = [
        "=" * WIDTH,
        f"{'':21}cachepool memory summary, device ID {device:<17d} ",
        "-" * WIDTH,
        f"{'':12}CUDA OOMs: {ooms:<12d} | {'':6} cudaMalloc retries: {retries:<8d}  ",
        "=" * WIDTH,
        HEADER,
    ]
    pools = {} if abbreviated else POOLS
    for metrics, form in ((SIZES, _size), (COUNTS, _count)):
        for metric, title in metrics.items():
            lines += _rows(stats, form, {f"{metric}.all": title}, metric, pools)
    for metric, title in OVERSIZE.items():
        lines += _rows(stats, _count, {metric: title}, metric, {})
    lines.append("=" * WIDTH)
    return "".join(f"|{line}|\n" for line in lines)


def _rows(
    stats: Stats, form: Format, head: dict[str, str], metric: str, pools: dict[str, str]
) -> list[str]:
    """Return a rule, the row of all pools (`head`), and a row for each of `pools`."""
    lines = ["-" * WIDTH]
    leads: list[int] = []
    for prefix, title in (head | {f"{metric}.{p}": name for p, name in pools.items()}).items():
        values = [int(stats[f"{prefix}.{kind}"]) for kind in TYPES]
        leads = leads or values
        cells = [form(value, lead) for value, lead in zip(values, leads, strict=True)]
        lines.append(f" {title:<21} | {' | '.join(cells)} ")
    return lines


def _size(nbytes: int, lead: int) -> str:
    """Return bytes in the unit that suits `lead`, 10 characters."""
    step = _step(lead, 768, 1024, len(SIZE_UNITS))
    return f"{nbytes // 1024**step:6d} {SIZE_UNITS[step]}"


def _count(count: int, lead: int) -> str:
    """Return a count in the unit that suits `lead`, 10 characters."""
    step = _step(lead, 750, 1000, len(COUNT_UNITS))
    return f"{count // 1000**step:7d} {COUNT_UNITS[step]} "


def _step(lead: int, limit: int, base: int, units: int) -> int:
    """Return how often to step the unit up: while `lead` is `limit` of the next one or more."""
    step = 0
    while step + 1 < units and lead >= limit * base ** (step + 1):
        step += 1
    return step
