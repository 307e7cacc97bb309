"""``cachepool bench``: what a request costs, beside CuPy's own pool."""

from __future__ import annotations

import argparse
import json
import sys

from cachepool.bench import nodriver

EPILOG = """\
--json prints a list with one object for each case:
  case               hit_512, hit_3mib, mixed, holes_10 … holes_100000
  ours_ns, peer_ns   ns of CPU time for a request and its release, medians
  peer               whose pool it is compared with
  ratio              ours / peer, median over turns that ran side by side
  spread             least and greatest of those ratios

hit_512 and hit_3mib: the cache serves one size again and again; mixed: sizes from 512 B to
1.5 MiB at random, with 1,000 holes; holes_N: hit_512 with N free blocks of 512 B to 2 MiB.
No memory is taken: both pools stand over made-up addresses, so the cost of the driver's own
calls is not in the figures.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``bench`` to the commands.

    Parameters
    ----------
    subparsers : action
        What ``ArgumentParser.add_subparsers()`` returned.
    """
    parser = subparsers.add_parser(
        "bench",
        help="time the pool beside CuPy's own",
        description="Time cache hits beside CuPy's MemoryPool, with or without a GPU.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="figures as JSON, see below")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Time every case and print a table, or JSON; return the exit code 0."""
    nodriver.install()
    from cachepool import __compiled__
    from cachepool.bench import cases

    if not args.json:
        print(f"{'compiled' if __compiled__ else 'uncompiled'}; ns for a request and its release")
        print(f"{'case':14} {'ours':>9} {'peer':>9} {'ratio':>7}   {'spread':15} peer")
    found = []
    for timing in cases.run(lambda case: print(f"{case} …", file=sys.stderr)):
        found.append(timing.as_dict())
        if not args.json:
            low, high = timing.spread
            print(
                f"{timing.case:14} {timing.ours_ns:9,.0f} {timing.peer_ns:9,.0f} "
                f"{timing.ratio:7.3f}   {low:.3f} to {high:.3f}   {timing.peer}",
                flush=True,
            )
    if args.json:
        print(json.dumps(found, indent=2))
    return 0
