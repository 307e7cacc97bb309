"""What a command's help documents of its ``--json``."""

from __future__ import annotations

import re


def keys(epilog: str) -> set[str]:
    """Return the keys documented below the line that begins with ``--json``."""
    section = epilog.partition("\n--json")[2]
    entries = re.findall(r"^  (\w+(?:, \w+)*)  ", section, re.MULTILINE)
    return {name for entry in entries for name in entry.split(", ")}
