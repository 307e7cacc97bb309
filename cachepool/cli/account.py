"""The demo's figures as text of at most 100 columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from cachepool.sizes import exact_size, format_size

if TYPE_CHECKING:
    from cachepool.cli.demo import Figures

COLUMNS, ROWS = 78, 9
USED, CACHED = "#", "."


def account(figures: Figures) -> str:
    """Return the whole account.

    Parameters
    ----------
    figures : Figures
        What `cachepool.cli.demo.measure` found.

    Returns
    -------
    str
        Without a newline at the end.
    """
    device = "a simulated device" if figures.device == "sim" else f"a {figures.device} device"
    form = "compiled" if figures.compiled else "uncompiled"
    lines = [f"cachepool {figures.cachepool} on {device}, {form} engine, arrays of CuPy"]
    for number, (title, body) in enumerate(_sections(figures), 1):
        lines += ["", f"{number}. {title}", *(f"   {line}".rstrip() for line in body)]
    return "\n".join(lines)


def _sections(figures: Figures) -> Iterator[tuple[str, list[str]]]:
    yield "What a program frees stays reserved, until the cache is emptied", _steps(figures)
    yield (
        "An image reconstruction: batches of varying size, padded workspaces, two streams",
        [*chart(figures.timeline), "", *_outcome(figures)],
    )
    yield "The same requests elsewhere", _table(_comparison(figures))
    yield (
        f"empty_cache() at the end gave back {exact_size(figures.returned_by_empty_cache)}",
        _kept(figures),
    )


def _steps(figures: Figures) -> list[str]:
    rows = [["", "allocated", "reserved"]]
    rows += [[s.step, f"{s.allocated:,}", f"{s.reserved:,}"] for s in figures.seed_example]
    return _table(rows)


def _outcome(figures: Figures) -> list[str]:
    calls = figures.upstream_allocations + figures.upstream_frees
    return [
        f"peak allocated {format_size(figures.peak_allocated)}, "
        f"peak reserved {format_size(figures.peak_reserved)}",
        f"hit rate {figures.hit_rate:.1%}: {figures.hits:,} of {figures.requests:,} requests "
        "without a call to the device",
        f"{calls:,} calls to the device instead of {calls + figures.device_calls_saved:,}: "
        f"{figures.device_calls_saved:,} saved, {figures.saved_s * 1e3:,.1f} ms of "
        f"{figures.time} time",
    ]


def _comparison(figures: Figures) -> list[list[str]]:
    names = {"cupy": "CuPy's own pool (a model of it)", "none": "no cache"}
    ours = {name: getattr(figures, name) for name in figures.peers["none"]}
    rows = [["", "peak allocated", "peak reserved", "hit rate", "device allocations"]]
    everyone = {"cachepool": ours} | {text: figures.peers[name] for name, text in names.items()}
    for name, found in everyone.items():
        rows.append(
            [
                name,
                format_size(int(found["peak_allocated"])),
                format_size(int(found["peak_reserved"])),
                f"{found['hit_rate']:.1%}",
                f"{found['upstream_allocations']:,}",
            ]
        )
    return rows


def _kept(figures: Figures) -> list[str]:
    kept = f"kept {exact_size(figures.kept_by_empty_cache)}"
    if not figures.kept_because:
        return [kept]
    return [f"{kept}, because:", *figures.kept_because]


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines, the first column to the left, figures to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def chart(timeline: Sequence[Sequence[int]]) -> list[str]:
    """Return the bytes over time as a picture of text.

    Parameters
    ----------
    timeline : sequence of (event, allocated, reserved)
        In order; sizes in bytes.

    Returns
    -------
    list of str
        Lines: one for each level from the greatest reserved down, an axis, a legend.
    """
    end = timeline[-1][0] + 1
    tops = [(0, 0)] * COLUMNS
    for event, allocated, reserved in timeline:
        column = event * COLUMNS // end
        tops[column] = max(tops[column][0], allocated), max(tops[column][1], reserved)
    for column in range(1, COLUMNS):
        if not tops[column][1]:  # fewer events than columns
            tops[column] = tops[column - 1]
    most = max(reserved for _, reserved in tops) or 1
    margin = max(len(format_size(most)), len(format_size(most // 2)))
    lines = []
    for row in range(ROWS, 0, -1):
        floor = (row - 0.5) * most / ROWS
        label = {ROWS: format_size(most), (ROWS + 1) // 2: format_size(most // 2)}.get(row, "")
        bars = "".join(_bar(allocated, reserved, floor) for allocated, reserved in tops)
        lines.append(f"{label:>{margin}} |{bars}".rstrip())
    axis = f"{'0':>{margin}} +{'-' * COLUMNS}"
    legend = f"{USED} allocated   {CACHED} reserved, unused"
    events = f"{end:,} requests and releases"
    gap = " " * (COLUMNS - len(legend) - len(events))
    return [*lines, axis, f"{'':>{margin}}  {legend}{gap}{events}"]


def _bar(allocated: int, reserved: int, floor: float) -> str:
    if allocated > floor:
        return USED
    return CACHED if reserved > floor else " "
