"""``cachepool doctor``: what is installed, what is used, what is wrong, what is missing."""

from __future__ import annotations

import argparse
import dataclasses
import json
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from cachepool.cli import checks
from cachepool.cli.checks import Findings
from cachepool.sizes import format_size

HEALTHY, FAULT = 0, 1
WIDTH = 100

EPILOG = """\
exit codes:
  0  nothing is wrong; what is missing is optional
  1  a fault was found
  2  wrong usage

--json prints one object:
  healthy    whether no fault was found
  cachepool  {version, compiled, handle, form, twin}: whether the engine runs compiled; the form of
             CuPy's handles ("compiled", "pure", null without CuPy); CACHEPOOL_FORM; the extension
             modules built ("built", or why there are none)
  python     {version, platform}
  numpy      {version}
  cupy       {version, package, why}: null and the reason where it cannot be used
  device     {name, why, devices}: "cuda" or "sim", why no CUDA device is used, and for each CUDA
             device {ordinal, name, free, total}, in bytes
  options    {name: {value, origin}}: in force for a pool made without arguments
  faults     list of {what, advice}: what is wrong, and what to do
  missing    list of {what, advice}: what is not there, and the command to get it
  notes      list of text
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``doctor`` to the commands.

    Parameters
    ----------
    subparsers : action
        What ``ArgumentParser.add_subparsers()`` returned.
    """
    parser = subparsers.add_parser(
        "doctor",
        help="say what is installed, which device is used, and what is missing",
        description="Say what is installed, which device a pool would use, which options are in "
        "force, what is wrong, and what is missing.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="the findings as JSON, see below")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Examine, print the findings and return the exit code.

    Parameters
    ----------
    args : argparse.Namespace
        As `add_parser` declares them.

    Returns
    -------
    int
        0 healthy, 1 a fault was found.
    """
    found = checks.examine()
    if args.json:
        print(json.dumps(dataclasses.asdict(found) | {"healthy": found.healthy}, indent=2))
    else:
        print("\n".join(map(_wrapped, _lines(found))))
    return HEALTHY if found.healthy else FAULT


def _wrapped(line: str) -> str:
    """Return a line as lines of at most `WIDTH` columns."""
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    return textwrap.fill(line, WIDTH, subsequent_indent=indent, break_long_words=False)


def _lines(found: Findings) -> Iterator[str]:
    yield f"cachepool {found.cachepool['version']}"
    for name, value in _rows(found):
        yield f"  {name:<10}{value}"
    if found.options:
        yield "options of a pool made without arguments"
    for name, option in found.options.items():
        yield f"  {name:<10}{_value(name, option['value']):<14}{option['origin']}"
    for title, entries in (("missing", found.missing), ("faults", found.faults)):
        if entries:
            yield title
        for entry in entries:
            yield f"  {entry['what']}"
            yield f"    -> {entry['advice']}"
    for note in found.notes:
        yield f"note: {note}"
    yield "healthy" if found.healthy else f"not healthy: {len(found.faults)} fault(s)"


def _rows(found: Findings) -> Iterator[tuple[str, str]]:
    yield "engine", _engine(found.cachepool)
    yield "python", f"{found.python['version']}, {found.python['platform']}"
    yield "numpy", found.numpy["version"] or "cannot be imported"
    yield "CuPy", _cupy(found.cupy)
    if found.device["name"] == "sim":
        yield "device", "simulated"
    for device in found.device["devices"]:
        free, total = format_size(device["free"]), format_size(device["total"])
        yield "device", f"cuda {device['ordinal']}: {device['name']}, {free} free of {total}"


def _cupy(cupy: Mapping[str, str | None]) -> str:
    parts = [cupy["version"], f"({cupy['package']})" if cupy["package"] else None, cupy["why"]]
    return " ".join(part for part in parts if part)


def _engine(cachepool: Mapping[str, Any]) -> str:
    form = "compiled" if cachepool["compiled"] else "uncompiled"
    handle = {"pure": ", uncompiled handles", "compiled": ", compiled handles"}
    return f"{form}{handle.get(cachepool['handle'], '')}; CACHEPOOL_FORM={cachepool['form']}"


def _value(name: str, value: object) -> str:
    if name == "limit" and isinstance(value, int):
        return format_size(value) if value else "none"
    if name == "limit" and isinstance(value, float):
        return f"{value:.0%} of memory"
    return str(value)
