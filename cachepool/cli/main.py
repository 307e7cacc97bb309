"""The command line's entry: finds the command, and turns its errors into messages.

A command is a module of this package with ``add_parser(subparsers)`` and
``run(args) -> exit code``.  It is imported only when it is asked for, so that ``--help``
needs neither numpy nor CuPy.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TypeVar

import cachepool
from cachepool.errors import DeviceError, OptionError

T = TypeVar("T")

DONE, FAULT, USAGE = 0, 1, 2
INTERRUPTED = 130
"""Exit codes; 3, an input that cannot be read, is the commands' own."""

COMMANDS = {
    "demo": "run a small reconstruction on CuPy arrays and account for its memory",
    "doctor": "say what is installed, which device is used, and what is missing",
    "replay": "replay a trace of allocations on a simulated device",
    "bench": "time the pool beside CuPy's own",
}
"""Every command, with its line in ``--help``."""

EPILOG = """\
exit codes:
  0    done
  1    a check failed: a fault found, memory run out
  2    wrong usage, or something that the command needs is not there
  3    an input that cannot be read
  130  interrupted

`cachepool COMMAND --help` documents the options of a command and the keys of its --json.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments; those of the process if None.

    Returns
    -------
    int
        The exit code.

    Raises
    ------
    SystemExit
        From argparse, for ``--help``, ``--version`` and wrong usage.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    name = next((a for a in arguments if not a.startswith("-")), None)
    try:
        module = _command(name) if name in COMMANDS else None
    except ModuleNotFoundError as error:
        return _fail(f"cachepool {name}", f"not part of this installation: {error}", USAGE)
    return _guarded(_parser(name, module), arguments, f"cachepool {name}")


def _command(name: str | None) -> ModuleType:
    return importlib.import_module(f"cachepool.cli.{name}")


def _parser(name: str | None, module: ModuleType | None) -> argparse.ArgumentParser:
    """Return the parser: whole for the command asked for, one line for each of the others."""
    parser = argparse.ArgumentParser(
        prog="cachepool",
        description="A caching GPU memory pool for CuPy that tells the truth about memory.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"cachepool {cachepool.__version__}")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for other, line in COMMANDS.items():
        if other == name and module is not None:
            module.add_parser(commands)
            # After the command too; left out there, it must not undo the one before it.
            commands.choices[other].add_argument(
                "--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks"
            )
        else:
            commands.add_parser(other, help=line)
    return parser


def _guarded(parser: argparse.ArgumentParser, arguments: list[str], who: str) -> int:
    """Return a command's exit code, and what went wrong as one message."""
    debug = False
    try:
        args = _flushed(lambda: parser.parse_args(arguments))
        debug = args.debug
        return int(_flushed(lambda: args.func(args)))
    except BrokenPipeError:
        # Nobody reads on.  Python flushes stdout once more at exit: let it go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except KeyboardInterrupt:
        return _fail(who, "interrupted", INTERRUPTED)
    except (DeviceError, ImportError, OptionError) as error:
        if debug:
            raise
        return _fail(who, str(error), USAGE)
    except Exception as error:
        if debug:
            raise
        text = f"{type(error).__name__}: {error} (--debug shows where)"
        return _fail(who, text, FAULT)


def _flushed(call: Callable[[], T]) -> T:
    """Call, and flush stdout, so that a closed pipe shows here and not at exit."""
    try:
        result = call()
    except SystemExit:  # argparse has printed help
        sys.stdout.flush()
        raise
    sys.stdout.flush()
    return result


def _fail(who: str, message: str, code: int) -> int:
    print(f"{who}: {message}", file=sys.stderr)
    return code
