"""Two-minute smoke run for a machine with a GPU.

``python tests/gpu/smoke.py [--json FILE] [--no-build] [--allow-hip]``

Builds the compiled twin in place (where that fails, says so and goes on uncompiled), runs
``python -m cachepool demo --json``, does a few hundred array operations on several streams and
compares them with numpy's, and verifies that the pool's books are exact.  Prints a line for
each step and exits with 1 if any failed.  Needs CuPy and numpy; fetches nothing.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MIB = 2**20
SEED = 2024
DEMO_KEYS = (
    "device",
    "compiled",
    "peak_allocated",
    "peak_reserved",
    "hit_rate",
    "upstream_allocations",
    "returned_by_empty_cache",
    "peers",
)


def why_not(allow_hip: bool = False) -> str | None:
    """Return why no GPU can be used here, None if one can."""
    try:
        import cupy
    except ImportError as error:
        return f"CuPy cannot be imported: {error}"
    runtime = cupy.cuda.runtime
    if runtime.is_hip and not allow_hip:
        return "CuPy is a ROCm build here; these are checks for CUDA (tests/rig has the others)"
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        return f"the driver says: {error}"
    return None if count else "the driver knows no device"


# ---- in processes of their own ----------------------------------------------------------------


def build() -> dict[str, Any]:
    """Build the compiled twin in place; a failure is a fact of the report, not an error."""
    done = run("setup.py", "build_ext", "--inplace")
    facts: dict[str, Any] = {"built": done.returncode == 0}
    if done.returncode:
        facts["why not"] = last_line(done)
    form = run("-c", "import cachepool; print(cachepool.__compiled__)")
    if form.returncode:
        raise RuntimeError(f"cachepool cannot be imported: {last_line(form)}")
    return facts | {"compiled": form.stdout.strip() == "True"}


def demo() -> dict[str, Any]:
    """Run the demo, which must find the GPU and report all of its figures."""
    done = run("-m", "cachepool", "demo", "--json")
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}: {last_line(done)}")
    figures = json.loads(done.stdout)
    missing = [key for key in DEMO_KEYS if key not in figures]
    expect(not missing, f"the demo's figures lack {missing}")
    expect("sim" not in str(figures["device"]), f"the demo ran on {figures['device']!r}")
    expect(0 < figures["hit_rate"] <= 1, f"hit rate {figures['hit_rate']}")
    return {key: figures[key] for key in DEMO_KEYS if key != "peers"}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run this Python in the project's folder."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    """Return the last line that a process has written, where errors say what they are."""
    return ((done.stderr.strip() or done.stdout.strip()).splitlines() or ["no output"])[-1]


# ---- on the pool -------------------------------------------------------------------------------


def array_work(pool: Any) -> dict[str, Any]:
    """Do 400 array operations on four streams and compare each result with numpy's."""
    import cupy
    import numpy as np

    operations = [
        lambda xp, x: x + 1.5,
        lambda xp, x: x * x - x,
        lambda xp, x: x.sum(axis=0),
        lambda xp, x: x.max(axis=1),
        lambda xp, x: xp.ascontiguousarray(x.T),
        lambda xp, x: x[::2, 1:].copy(),
        lambda xp, x: xp.concatenate([x, x * 2]),
        lambda xp, x: xp.where(x > 0, x, 0.0),
    ]
    rng = np.random.default_rng(SEED)
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(4)]
    live: list[tuple[Any, ...]] = []
    before = pool.memory_stats()["allocation.all.allocated"]
    for i in range(400):
        shape = (int(rng.integers(2, 800)), int(2 ** rng.uniform(1, 8)))
        host = rng.standard_normal(shape)
        operation, stream = operations[i % len(operations)], streams[int(rng.integers(4))]
        with stream:
            live.append((operation(np, host), operation(cupy, cupy.asarray(host)), stream, i))
        if len(live) > 10:
            compare(*live.pop(int(rng.integers(len(live)))))
    for item in live:
        compare(*item)
    requests = pool.memory_stats()["allocation.all.allocated"] - before
    expect(requests >= 800, f"only {requests} of the requests came to the pool")
    return {"operations": 400, "requests": requests}


def compare(expected: Any, result: Any, stream: Any, i: int) -> None:
    """Raise unless a result on a stream is numpy's."""
    import numpy as np

    found = result.get(stream=stream)
    stream.synchronize()
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12, err_msg=f"operation {i}")


def late_writes(pool: Any) -> dict[str, Any]:
    """Release memory under pending writes; no other stream's array may be hit by one."""
    import cupy

    rng = random.Random(SEED)
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(4)]
    burden = {stream: cupy.cuda.runtime.malloc(32 * MIB) for stream in streams}
    live: list[tuple[Any, Any, int]] = []
    checked = 0
    try:
        for step in range(600):
            stream, size = rng.choice(streams), rng.choice((512, 40_000, 3 * MIB))
            with stream:
                array = cupy.empty(size, "u1")
                for _ in range(rng.choice((0, 0, 4))):  # keeps the stream busy for a while
                    cupy.cuda.runtime.memsetAsync(burden[stream], 0, 32 * MIB, stream.ptr)
                array.data.memset_async(step % 251, size)
            live.append((stream, array, step % 251))
            if len(live) > 8:
                owner, array, value = live.pop(rng.randrange(len(live)))
                if rng.random() < 0.5:
                    found = array.get(stream=owner)
                    owner.synchronize()
                    expect((found == value).all(), f"step {step}: another stream wrote here")
                    checked += 1
    finally:
        cupy.cuda.runtime.deviceSynchronize()
        for ptr in burden.values():
            cupy.cuda.runtime.free(ptr)
    return {"arrays checked": checked}


def streams_and_events(pool: Any) -> dict[str, Any]:
    """Hand arrays from one stream to the other by events."""
    import cupy
    import numpy as np

    a, b = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    host = np.random.default_rng(SEED).standard_normal((500, 400))
    for turn in range(20):
        with a:
            x = cupy.asarray(host) * (turn + 2)
            ready = a.record()
        b.wait_event(ready)
        with b:
            y = x.sum(axis=0) + 1
            found = y.get(stream=b)
        b.synchronize()
        np.testing.assert_allclose(found, (host * (turn + 2)).sum(axis=0) + 1, rtol=1e-9)
    return {"turns": 20}


def libraries(pool: Any) -> dict[str, Any]:
    """Use what takes work space from the pool: sorting, products, transforms."""
    import cupy
    import numpy as np

    host = np.random.default_rng(SEED).standard_normal((300, 256))
    facts: dict[str, Any] = {}
    cases = {
        "sort": lambda xp: xp.sort(xp.asarray(host), axis=1),
        "matmul": lambda xp: xp.asarray(host) @ xp.asarray(host).T,
        "fft": lambda xp: xp.fft.fft(xp.asarray(host), axis=1),
    }
    if cupy.cuda.runtime.is_hip:
        return dict.fromkeys(cases, "left out on a ROCm build")
    for name, case in cases.items():
        try:
            found = case(cupy).get()
        except (ImportError, OSError) as error:  # CUDA's libraries are not part of CuPy
            facts[name] = f"not here: {error}"
            continue
        np.testing.assert_allclose(found, case(np), rtol=1e-8, atol=1e-8, err_msg=name)
        facts[name] = "as numpy"
    if facts["fft"] == "as numpy":
        cupy.fft.config.get_plan_cache().clear()  # plans hold work space
    return facts


def out_of_memory(pool: Any) -> dict[str, Any]:
    """Reach a limit and the device's end: an error that says so, and work goes on."""
    import cupy

    import cachepool

    pool.empty_cache()
    free, total = pool.mem_get_info()
    pool.set_limit(size=pool.total_bytes() + 8 * MIB)
    try:
        refused(32 * MIB)
        array = cupy.zeros(MIB, "u1")
    finally:
        pool.set_limit(size=0)
    report = refused(total + 1024 * MIB)
    expect(report.device_total == total, f"report: {report}, driver: {total} in all")
    expect(int(array.sum()) == 0, "an array changed under the failure")
    expect(cupy.empty(16 * MIB, "u1").size == 16 * MIB, "no memory after the failure")
    expect(issubclass(cachepool.OutOfMemoryError, cupy.cuda.memory.OutOfMemoryError), "not CuPy's")
    return {"device free": free, "device total": total}


def refused(nbytes: int) -> Any:
    """Ask for more than there is; return the report of the error."""
    import cupy

    import cachepool

    try:
        cupy.empty(nbytes, "u1")
    except cachepool.OutOfMemoryError as error:
        return error.report
    raise AssertionError(f"{nbytes:,} bytes were served")


def returned_memory(pool: Any) -> dict[str, Any]:
    """See in the driver's own figures that cached memory is taken, and given back."""
    import cupy

    pool.empty_cache()
    size = 256 * MIB
    at_start = pool.mem_get_info()[0]
    array = cupy.empty(size, "u1")
    live = pool.mem_get_info()[0]
    del array
    cached = pool.mem_get_info()[0]
    expect(pool.memory_reserved() == size, f"{pool.memory_reserved():,} bytes are reserved")
    expect(pool.empty_cache() == size, "empty_cache() gave something else back")
    at_end = pool.mem_get_info()[0]
    # Others may use the device at the same time: half of it is evidence enough.
    expect(at_start - live > size // 2, f"free: {at_start:,} before, {live:,} after a request")
    expect(at_start - cached > size // 2, f"free: {at_start:,} before, {cached:,} after a release")
    expect(at_end - cached > size // 2, f"free: {cached:,} before, {at_end:,} after emptying")
    return {"free at start": at_start, "live": live, "cached": cached, "free at end": at_end}


def exact_books(pool: Any) -> dict[str, Any]:
    """Verify that nothing is allocated, and nothing reserved after emptying the cache."""
    gc.collect()
    pool.check()
    expect(pool.memory_allocated() == 0, f"{pool.memory_allocated():,} bytes are allocated")
    reserved = pool.memory_reserved()
    stats = pool.memory_stats()
    for figure in ("allocation", "allocated_bytes", "requested_bytes"):
        ever, freed = stats[f"{figure}.all.allocated"], stats[f"{figure}.all.freed"]
        expect(ever == freed, f"{figure}: {ever:,} in all, {freed:,} freed")
    emptied = pool.empty_cache()
    expect(emptied == reserved, f"{reserved:,} bytes reserved, {emptied:,} given back")
    expect(pool.memory_reserved() == 0, f"{pool.memory_reserved():,} bytes stay reserved")
    pool.check()
    return {
        "requests": stats["allocation.all.allocated"],
        "device allocations": stats["num_device_alloc"],
        "given back": int(emptied),
    }


CHECKS = (
    returned_memory,
    out_of_memory,
    array_work,
    late_writes,
    streams_and_events,
    libraries,
)


def expect(truth: Any, message: str) -> None:
    """Raise AssertionError with a message, also under ``python -O``."""
    if not truth:
        raise AssertionError(message)


# ---- the report --------------------------------------------------------------------------------


class Report:
    """The steps that were taken, printed as they end."""

    def __init__(self) -> None:
        self.steps: dict[str, dict[str, Any]] = {}

    @property
    def ok(self) -> bool:
        """Whether no step failed."""
        return all(step["ok"] for step in self.steps.values())

    def take(self, function: Any, *arguments: Any) -> Any:
        """Take a step; its exception becomes part of the report."""
        start = time.perf_counter()
        try:
            facts = function(*arguments)
        except Exception as error:
            step = {"ok": False, "error": f"{type(error).__name__}: {error}"}
            step["where"] = traceback.format_exc(limit=-3)
            facts = None
            traceback.clear_frames(error.__traceback__)
        else:
            step = {"ok": True, **facts}
        step["seconds"] = round(time.perf_counter() - start, 2)
        self.steps[function.__name__] = step
        shown = ", ".join(f"{k}: {v}" for k, v in step.items() if k not in ("ok", "where"))
        print(f"{'ok    ' if step['ok'] else 'FAILED'} {function.__name__}: {shown}", flush=True)
        return facts


def machine() -> dict[str, Any]:
    """Say on what this runs."""
    import cupy
    import numpy

    import cachepool

    runtime = cupy.cuda.runtime
    return {
        "device": runtime.getDeviceProperties(0)["name"].decode(),
        "devices": runtime.getDeviceCount(),
        "driver": runtime.driverGetVersion(),
        "runtime": runtime.runtimeGetVersion(),
        "cupy": cupy.__version__,
        "numpy": numpy.__version__,
        "python": sys.version.split()[0],
        "cachepool": cachepool.__version__,
        "compiled": cachepool.__compiled__,
    }


def on_the_pool(report: Report) -> dict[str, Any]:
    """Take the steps that need the pool enabled on the GPU."""
    import cachepool

    with cachepool.enable(device="cuda") as pool:
        for check in CHECKS:
            report.take(check, pool)
        report.take(exact_books, pool)
    return {"checks": len(CHECKS)}


def gpu(allow_hip: bool) -> dict[str, Any]:
    """Find a GPU, or fail with the reason."""
    why = why_not(allow_hip)
    if why is not None:
        raise RuntimeError(why)
    return machine()


def main(arguments: list[str] | None = None) -> int:
    """Run everything; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", metavar="FILE", help="write the report there as JSON")
    parser.add_argument("--no-build", action="store_true", help="use what is built already")
    parser.add_argument("--allow-hip", action="store_true", help="also take CuPy's ROCm build")
    options = parser.parse_args(arguments)
    sys.path.insert(0, str(ROOT))
    report = Report()
    if not options.no_build:
        report.take(build)  # before anything imports the package
    if report.take(gpu, options.allow_hip) is not None:
        report.take(demo)
        report.take(on_the_pool, report)
    print("all is well" if report.ok else "FAILED", flush=True)
    if options.json:
        facts = {"ok": report.ok, "steps": report.steps}
        Path(options.json).write_text(json.dumps(facts, indent=1, default=str) + "\n")
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
