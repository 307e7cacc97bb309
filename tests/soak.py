"""A million random requests and releases; run by hand: ``python tests/soak.py``.

On a simulated device, through real CuPy arrays and ``pool.malloc`` where CuPy is installed,
else through ``pool.allocate``.  CACHEPOOL_FORM picks the form.  Exit code 1 unless

- ``pool.check()`` is clean all along and the pool's figures are those of this program,
- nothing races, and nothing is left on the device after the last release,
- the process's own memory (VmRSS) does not grow after the warm-up, by more than TOLERANCE.
"""

import argparse
import gc
import os
import random
import sys
import time
from collections import Counter

import cachepool
from cachepool import CachePool, SimDevice

MIB = 2**20
CAPACITY = 320 * MIB
LIVE = 300  # blocks held, about
WARM_UP = 0.2  # of the steps: caches, free lists and arenas have their size by then
# What may come and go with the interpreter's arenas (1 MiB each) and the number of blocks
# that happen to be live.  A leak of one 8-byte word a step would be 6.4 MB over the 800,000
# steps that are watched; the smallest Python object a step, ten times that.
TOLERANCE = 2 * MIB


def resident():
    """Return the process's resident memory in bytes."""
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    raise OSError("no VmRSS in /proc/self/status")


def makers(pool):
    """Return ways to get memory: functions of a size that return what holds it."""
    try:
        import cupy
    except ImportError:
        return [pool.allocate], "pool.allocate"
    cupy.cuda.set_allocator(pool.malloc)
    return [pool.malloc, lambda n: cupy.empty(n, cupy.uint8), pool.allocate], "arrays and malloc"


class Soak:
    """The program, and its own count of what it holds."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.sim = SimDevice(CAPACITY, on_race="record")
        self.pool = CachePool(self.sim)
        self.makers, self.way = makers(self.pool)
        self.streams = [self.sim.default_stream(), self.sim.stream(), self.sim.stream()]
        self.held = []
        self.nbytes = 0
        self.tally = Counter()

    def size(self):
        """Return a size: mostly small and often the same, now and then large."""
        roll = self.rng.random()
        if roll < 0.5:
            return self.rng.choice([64, 512, 4096, 5000, 65_536, 300_000])
        if roll < 0.9:
            return self.rng.randint(1, 200_000)
        return self.rng.randint(MIB, 12 * MIB)

    def step(self):
        if self.held and self.rng.random() < len(self.held) / (2 * LIVE):
            self.drop(self.rng.randrange(len(self.held)))
            return
        nbytes = self.size()
        try:
            self.hold(self.rng.choice(self.makers)(nbytes), nbytes)
        except MemoryError:
            self.tally["out of memory"] += 1
            for _ in range(min(20, len(self.held))):
                self.drop(0)

    def hold(self, memory, nbytes):
        rounded = -(-nbytes // 512) * 512
        self.held.append((memory, rounded))
        self.nbytes += rounded
        self.tally["requests"] += 1

    def drop(self, at):
        self.held[at], self.held[-1] = self.held[-1], self.held[at]
        self.nbytes -= self.held.pop()[1]
        self.tally["releases"] += 1

    def run(self, steps):
        """Take so many steps on changing streams, with kernels and trims now and then."""
        left = steps
        while left > 0:
            with self.rng.choice(self.streams) as stream:
                mine = len(self.held)
                for _ in range(min(500, left)):
                    self.step()
                if len(self.held) > mine:
                    stream.launch(1e-4, writes=self.held[-1][0])
            left -= 500
            if self.rng.random() < 0.02:
                self.pool.empty_cache()
                self.tally["trims"] += 1

    def faults(self):
        """Return what is wrong now, in words."""
        found = [f"race: {race}" for race in self.sim.races]
        try:
            self.pool.check()
        except cachepool.PoolCorruptionError as error:
            found += error.breaches
        figures = (self.pool.memory_allocated(), self.pool.memory_reserved())
        wanted = (self.nbytes, self.sim.reserved())
        if figures != wanted:
            found.append(f"allocated, reserved are {figures}, should be {wanted}")
        return found

    def finish(self):
        """Let everything go; return what is left, in words."""
        self.held.clear()
        self.nbytes = 0
        self.pool.empty_cache()
        left = self.sim.outstanding()
        return [f"left on the device: {left}"] if left else []


def main():
    """Run the soak, print its figures, return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    steps, seed = vars(parser.parse_args()).values()
    soak = Soak(seed)
    form = "compiled" if cachepool.__compiled__ else "pure"
    print(f"{steps:,} steps, seed {seed}, {form}, {soak.way}, pid {os.getpid()}")
    started, part, faults, memory = time.perf_counter(), max(1, steps // 20), [], []
    for done in range(part, part * 20 + 1, part):
        soak.run(part)
        faults += soak.faults()
        gc.collect()
        if done >= WARM_UP * steps:
            memory.append(resident())
    faults += soak.finish() + soak.faults()
    third = max(1, len(memory) // 3)
    growth = min(memory[-third:]) - min(memory[:third])  # of the floors: noise only adds
    if growth > TOLERANCE:
        faults.append(f"VmRSS grew by {growth:,} bytes, {TOLERANCE:,} are tolerated")
    print(", ".join(f"{count:,} {what}" for what, count in sorted(soak.tally.items())))
    print("VmRSS after warm-up, MiB:", *(f"{m / MIB:.1f}" for m in memory))
    print(f"{form}: growth {growth:,} bytes; {time.perf_counter() - started:.0f} s")
    print("\n".join(f"FAULT {fault}" for fault in faults) or "books exact, no growth")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
