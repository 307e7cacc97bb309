"""The text of the demo: its picture, by hand."""

from __future__ import annotations

from cachepool.cli.account import COLUMNS, ROWS, chart

MIB = 2**20


def bars(lines: list[str]) -> list[str]:
    """Return what stands right of the axis, from the top, each line to its full width."""
    return [line.partition("|")[2].ljust(COLUMNS) for line in lines[:ROWS]]


def column(lines: list[str], index: int) -> str:
    """Return one column of the picture, from the bottom."""
    return "".join(bar[index] for bar in reversed(bars(lines)))


def test_column_is_as_high_as_what_is_allocated_and_reserved():
    full, third = 9 * MIB, 3 * MIB
    timeline = [(event, third, 2 * third) for event in range(COLUMNS - 1)]

    lines = chart([*timeline, (COLUMNS - 1, 0, full)])

    assert column(lines, 0) == column(lines, COLUMNS - 2) == "###...   "
    assert column(lines, COLUMNS - 1) == "........."


def test_column_of_many_events_shows_the_greatest_of_each():
    timeline = [(event, 0, 8 * MIB) for event in range(10 * COLUMNS)]
    timeline[37] = (37, 8 * MIB, 8 * MIB)

    lines = chart(timeline)

    assert column(lines, 3) == "#########"
    assert column(lines, 2) == column(lines, 4) == "........."


def test_fewer_events_than_columns_leave_no_gap():
    lines = chart([(0, MIB, MIB), (1, MIB, 2 * MIB)])

    assert bars(lines)[-1] == "#" * COLUMNS
    assert bars(lines)[0] == " " * (COLUMNS // 2) + "." * (COLUMNS // 2)


def test_axis_names_the_greatest_and_the_half_and_the_number_of_events():
    lines = chart([(event, MIB, 6 * MIB) for event in range(1234)])

    assert lines[0].startswith("6.0 MiB |.")
    assert [line.split("|")[0].strip() for line in lines[1:ROWS]].count("3.0 MiB") == 1
    assert lines[ROWS].split() == ["0", "+" + "-" * COLUMNS]
    assert lines[-1].endswith("1,234 requests and releases")


def test_nothing_reserved_at_all_is_an_empty_picture():
    assert set("".join(bars(chart([(0, 0, 0)])))) == {" "}
