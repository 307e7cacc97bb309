"""``cachepool demo``: real CuPy arrays on the pool, and an account of their memory."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from typing import Any

import cachepool
from cachepool.cli.account import account
from cachepool.devices.cupy_edge import require_cupy
from cachepool.offline import ReplayResult, Trace, replay
from cachepool.offline.result import thin
from cachepool.pool import CachePool

DONE, FAULT = 0, 1
PEERS = ("none", "cupy")
POINTS = 300
"""Rows of the timeline, at most."""

SEED_BYTES = 3_000_000
CALLS_TIMED = 8

EPILOG = """\
exit codes:
  0  done
  1  memory ran out, or a check of the books or of the computed values failed
  2  wrong usage; CuPy or the device asked for is not there

--json prints one object; sizes in bytes, times in seconds, figures of the workload alone:
  cachepool              version
  device                 "cuda" or "sim"
  compiled               whether the engine runs in its compiled form
  seed_example           list of {step, allocated, reserved}: allocate, del, empty_cache()
  requests, hits         requests of more than 0 bytes; those served without the device
  hit_rate               hits / requests
  peak_allocated         peak of the bytes that live arrays hold, each rounded up to 512
  peak_reserved          peak of the bytes taken from the device
  upstream_allocations   requests made to the device, refused ones included
  upstream_frees         segments given back to the device
  device_calls_saved     calls that a program without a cache would have made besides
  saved_s                what those calls cost on this device
  time                   "simulated" or "measured": where that cost comes from
  timeline               list of [event, allocated, reserved], peaks included
  returned_by_empty_cache  bytes that empty_cache() gave back at the end
  kept_by_empty_cache    bytes it could not give back
  kept_because           list of text: why not
  peers                  the same requests elsewhere: "none" (no cache), "cupy" (a model of CuPy's
                         pool), each {peak_allocated, peak_reserved, hit_rate,
                         upstream_allocations}
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """A line of the seed example, and the bytes after it."""

    step: str
    allocated: int
    reserved: int


@dataclasses.dataclass(frozen=True, slots=True)
class Figures:
    """What the demo found; the fields are the keys of ``--json``, documented there."""

    cachepool: str
    device: str
    compiled: bool
    seed_example: list[Step]
    requests: int
    hits: int
    hit_rate: float
    peak_allocated: int
    peak_reserved: int
    upstream_allocations: int
    upstream_frees: int
    device_calls_saved: int
    saved_s: float
    time: str
    timeline: list[list[int]]
    returned_by_empty_cache: int
    kept_by_empty_cache: int
    kept_because: list[str]
    peers: dict[str, dict[str, int | float]]


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``demo`` to the commands.

    Parameters
    ----------
    subparsers : action
        What ``ArgumentParser.add_subparsers()`` returned.
    """
    parser = subparsers.add_parser(
        "demo",
        help="run a small reconstruction on CuPy arrays and account for its memory",
        description="Run a small image reconstruction on CuPy arrays, on two streams, and "
        "account for its memory.  Without a GPU the device is simulated.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--device", default="auto", metavar="DEVICE", help="auto (default), cuda, sim or sim:8GiB"
    )
    parser.add_argument("--json", action="store_true", help="the figures as JSON, see below")
    parser.add_argument(
        "--save-trace", metavar="FILE", help="write the requests, for cachepool replay, as .npz"
    )
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Run the workload, print the account and return the exit code.

    Parameters
    ----------
    args : argparse.Namespace
        As `add_parser` declares them.

    Returns
    -------
    int
        0 done, 1 out of memory or a check failed.

    Raises
    ------
    ImportError, OptionError, DeviceError
        If CuPy is missing, or the device cannot be had.
    """
    require_cupy("the demo")
    try:
        figures, trace = measure(args.device)
        if args.save_trace is not None:
            trace.save(args.save_trace)
    except (MemoryError, ArithmeticError, OSError, cachepool.PoolCorruptionError) as error:
        print(f"cachepool demo: {error}", file=sys.stderr)
        return FAULT
    if args.json:
        print(json.dumps(dataclasses.asdict(figures), indent=2))
    else:
        print(account(figures))
    return DONE


def measure(device: str) -> tuple[Figures, Trace]:
    """Run the seed example and the workload on a new pool.

    Parameters
    ----------
    device : str
        As `cachepool.enable` takes it.

    Returns
    -------
    tuple of Figures and Trace
        What was found, and the requests of the workload.

    Raises
    ------
    OutOfMemoryError
        If the device has too little memory.
    ArithmeticError
        If the GPU computed other values than it must.
    PoolCorruptionError
        If the pool's books contradict themselves.
    """
    with cachepool.enable(device=device) as pool:
        steps = seed_example()
        costs = call_costs(pool.device)
        ran, trace = reconstruct(pool)
    peers = {name: replay(trace, name) for name in PEERS}
    plain = peers["none"]
    saved = (
        plain.upstream_allocations - ran["upstream_allocations"],
        plain.upstream_frees - ran["upstream_frees"],
    )
    figures = Figures(
        cachepool=cachepool.__version__,
        device=pool.device.name,
        compiled=cachepool.__compiled__,
        seed_example=steps,
        **ran,
        device_calls_saved=sum(saved),
        saved_s=saved[0] * costs[0] + saved[1] * costs[1],
        time="simulated" if hasattr(pool.device, "now") else "measured",
        peers={name: peer_figures(result) for name, result in peers.items()},
    )
    return figures, trace


def reconstruct(pool: CachePool) -> tuple[dict[str, Any], Trace]:
    """Run the workload; return its figures, by their names in `Figures`, and its requests."""
    from cachepool.cli.recorder import Recorder
    from cachepool.cli.workload import CudaWork, Reconstruction, SimulatedWork

    real = pool.device.name == "cuda"
    job = Reconstruction(CudaWork() if real else SimulatedWork(pool.device))
    recorder = Recorder(pool)
    pool.reset_peak_memory_stats()
    frees = device_frees(pool)
    with recorder:
        job.run()
    allocated, reserved = recorder.levels().T
    figures: dict[str, Any] = {
        "requests": recorder.requests,
        "hits": recorder.hits,
        "hit_rate": recorder.hits / recorder.requests,
        "peak_allocated": pool.max_memory_allocated(),
        "peak_reserved": pool.max_memory_reserved(),
        "upstream_allocations": recorder.upstream_allocations,
        "upstream_frees": device_frees(pool) - frees,
        "timeline": thin(allocated, reserved, POINTS).tolist(),
    }
    if real and job.wrong_values():
        raise ArithmeticError("the volume has other values than the batches add up to")
    emptied = pool.empty_cache()
    pool.check()
    return figures | {
        "returned_by_empty_cache": int(emptied),
        "kept_by_empty_cache": emptied.kept,
        "kept_because": list(emptied.reasons),
    }, recorder.trace("demo")


def seed_example() -> list[Step]:
    """Return what a few lines of CuPy do to the two figures."""
    import cupy

    steps = []

    def note(step: str) -> None:
        steps.append(Step(step, cachepool.memory_allocated(), cachepool.memory_reserved()))

    note("pool = cachepool.enable()")
    a = cupy.empty(SEED_BYTES, cupy.uint8)
    note("a = cupy.empty(3_000_000, cupy.uint8)")
    del a
    note("del a")
    cachepool.empty_cache()
    note("cachepool.empty_cache()")
    return steps


def call_costs(device: Any) -> tuple[float, float]:
    """Return the seconds that taking memory from the device costs, and giving it back."""
    simulated = hasattr(device, "now")
    ordinal, nbytes = device.current(), 8 << 20
    taking = giving = 0.0
    for _ in range(CALLS_TIMED):
        start = device.now if simulated else time.perf_counter()
        ptr = device.reserve(nbytes, ordinal)
        taken = device.now if simulated else time.perf_counter()
        device.release(ptr, nbytes, ordinal)
        given = device.now if simulated else time.perf_counter()
        taking += taken - start
        giving += given - taken
    return taking / CALLS_TIMED, giving / CALLS_TIMED


def device_frees(pool: CachePool) -> int:
    """Return how many segments have gone back to the device."""
    return int(pool.memory_stats()["num_device_free"])


def peer_figures(result: ReplayResult) -> dict[str, int | float]:
    """Return the figures of a replay that ``--json`` shows for a peer."""
    names = ("peak_allocated", "peak_reserved", "hit_rate", "upstream_allocations")
    return {name: getattr(result, name) for name in names}
