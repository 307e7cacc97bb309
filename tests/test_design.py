"""docs/design.md names, for each invariant, tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TABLE = re.findall(r"^\| (I\d) \|.*$", (ROOT / "docs/design.md").read_text(), re.MULTILINE)
ROWS = [
    line
    for line in (ROOT / "docs/design.md").read_text().splitlines()
    if re.match(r"\| I\d \|", line)
]


def test_every_invariant_has_its_row():
    assert TABLE == ["I1", "I2", "I3", "I4", "I5", "I6", "I7"]


@pytest.mark.parametrize("row", ROWS, ids=TABLE)
def test_the_tests_named_exist(row):
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row)
    assert named
    for path, name in named:
        assert re.search(rf"^\s*(def|class) {name}\b", (ROOT / path).read_text(), re.MULTILINE), (
            name
        )
