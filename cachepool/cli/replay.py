"""``cachepool replay``: what a recorded program would have cost with one policy or another."""

from __future__ import annotations

import argparse
import json
import sys
import time

from cachepool.errors import OptionError
from cachepool.offline import POLICIES, ReplayResult, Trace, TraceError, replay
from cachepool.offline.policies.cupy import TIES
from cachepool.offline.table import comparison, describe
from cachepool.sizes import parse_size

DONE, OUT_OF_MEMORY, USAGE, UNREADABLE = range(4)
"""Exit codes."""

QUIET_S = 2.0
"""Seconds before progress is shown, and between two lines of it."""

EPILOG = """\
exit codes:
  0  every policy replayed the whole trace
  1  a policy ran out of memory
  2  wrong usage
  3  the trace cannot be read

--json prints a list with one object for each policy; sizes in bytes:
  trace, policy         what was replayed on what
  capacity              memory of the device, null for no limit
  peak_live             peak of requested bytes of live blocks
  peak_allocated        the same with each size rounded up to 512
  peak_reserved         peak of bytes taken from the device
  reserved              bytes taken from the device at the end
  utilisation           peak_live / peak_reserved
  requests, hits        requests of more than 0 bytes; those served without the device
  hit_rate              hits / requests
  upstream_allocations  requests made to the device, refused ones included
  upstream_failures     those that the device refused
  upstream_frees        segments given back to the device
  oom_at, oom_size      index of the event that ran out of memory, its bytes; else null
Figures of a policy that ran out of memory cover the events before that.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``replay`` to the commands.

    Parameters
    ----------
    subparsers : action
        What ``ArgumentParser.add_subparsers()`` returned.
    """
    parser = subparsers.add_parser(
        "replay",
        help="replay a trace of allocations on a simulated device",
        description="Replay a trace of allocations on a simulated device; no GPU is needed.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("trace", metavar="TRACE", help="NAME.npz, trace format version 1")
    parser.add_argument("--policy", choices=[*POLICIES, "all"], default="cachepool")
    parser.add_argument(
        "--capacity", type=_capacity, metavar="SIZE", help="memory of the device, such as 8GiB"
    )
    parser.add_argument("--ties", choices=TIES, help="cupy: which of equal free chunks to take")
    parser.add_argument("--json", action="store_true", help="figures as JSON, see below")
    parser.set_defaults(func=run)


def _capacity(text: str) -> int:
    try:
        return parse_size(text, "capacity")
    except ValueError as error:
        # argparse prints the text of this error only.
        raise argparse.ArgumentTypeError(str(error)) from error


def run(args: argparse.Namespace) -> int:
    """Replay, print the figures and return the exit code.

    Parameters
    ----------
    args : argparse.Namespace
        As `add_parser` declares them.

    Returns
    -------
    int
        0 done, 1 out of memory, 2 wrong usage, 3 the trace cannot be read.
    """
    names = list(POLICIES) if args.policy == "all" else [args.policy]
    if args.ties is not None and "cupy" not in names:
        return _fail(USAGE, f"--ties is for the policy cupy, not {args.policy}")
    try:
        trace = Trace.load(args.trace)
        results = [_replay(trace, name, args) for name in names]
    except TraceError as error:
        return _fail(UNREADABLE, str(error))
    except OptionError as error:
        # From the environment: the pool reads CACHEPOOL_CONF.
        return _fail(USAGE, str(error))
    if args.json:
        print(json.dumps([result.summary() for result in results], indent=2))
    else:
        print(describe(trace, args.capacity), comparison(results), sep="\n\n")
    ran_out = any(result.oom_at is not None for result in results)
    return OUT_OF_MEMORY if ran_out else DONE


def _replay(trace: Trace, name: str, args: argparse.Namespace) -> ReplayResult:
    options = {"ties": args.ties} if name == "cupy" and args.ties is not None else {}
    progress = _Progress(name)
    return replay(trace, name, capacity=args.capacity, progress=progress, **options)


class _Progress:
    """Lines on stderr, for replays that take long enough to wonder."""

    def __init__(self, policy: str) -> None:
        self.policy = policy
        self.due = time.monotonic() + QUIET_S

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now >= self.due:
            self.due = now + QUIET_S
            print(f"{self.policy}: {done:,} of {total:,} events", file=sys.stderr)


def _fail(code: int, message: str) -> int:
    print(f"cachepool replay: {message}", file=sys.stderr)
    return code
