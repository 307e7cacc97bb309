"""Results side by side, for a terminal: one row for each policy, at most 100 columns."""

from __future__ import annotations

from collections.abc import Sequence

from cachepool.offline.result import ReplayResult
from cachepool.offline.trace import Trace
from cachepool.sizes import exact_size, format_size

HEADINGS = (
    "policy",
    "peak reserved",
    "utilisation",
    "hit rate",
    "upstream allocations",
    "upstream frees",
)


def describe(trace: Trace, capacity: int | None) -> str:
    """Return two lines that say what is replayed, on how much memory.

    Parameters
    ----------
    trace : Trace
        What is replayed.
    capacity : int or None
        Memory of the device in bytes, None for no limit.

    Returns
    -------
    str
        Without a newline at the end.
    """
    device = "no limit" if capacity is None else format_size(capacity)
    return (
        f"{trace.name}: {len(trace):,} events, streams {trace.streams}, device {device}\n"
        f"peak live {format_size(trace.peak_live)}, "
        f"rounded to 512 {format_size(trace.peak_allocated)}"
    )


def comparison(results: Sequence[ReplayResult]) -> str:
    """Return a table of results, and a line for each that ran out of memory.

    Parameters
    ----------
    results : sequence of ReplayResult
        Of one trace.

    Returns
    -------
    str
        Without a newline at the end.
    """
    rows = [HEADINGS, *(_row(result) for result in results)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    lines = [_line(row, widths) for row in rows]
    lines += [_end(result) for result in results if result.oom_at is not None]
    return "\n".join(lines)


def _row(result: ReplayResult) -> tuple[str, ...]:
    calls = f"{result.upstream_allocations:,}"
    if result.upstream_failures:
        calls += f" ({result.upstream_failures:,} refused)"
    return (
        result.policy,
        format_size(result.peak_reserved),
        f"{result.utilisation:.1%}",
        f"{result.hit_rate:.1%}",
        calls,
        f"{result.upstream_frees:,}",
    )


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    """Return one row, its first cell to the left and figures to the right."""
    first, *rest = (
        cell.rjust(width) if column else cell.ljust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    )
    return "  ".join([first, *rest])


def _end(result: ReplayResult) -> str:
    allocated = int(result.timeline["allocated"][-1]) if len(result.timeline) else 0
    return (
        f"{result.policy}: out of memory at event {result.oom_at:,}: "
        f"{exact_size(result.oom_size or 0)} asked,\n"
        f"  {format_size(allocated)} allocated, {format_size(result.reserved)} reserved"
    )
