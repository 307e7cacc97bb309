"""The compiled engine and its source are one: the same program gives the same heap."""

import os
import random
from pathlib import Path

import pytest
from upstreams import MIB, NoMemoryError, Upstream, out_of_memory

import cachepool
from cachepool import _form
from cachepool.engine.check import audit
from cachepool.engine.counters import FIGURES
from cachepool.growth import slabs

PACKAGE = Path(cachepool.__file__).parent
BOTH = os.environ.get("CACHEPOOL_TEST") == "both"
SIZES = (1, 511, 512, 513, 1000, 4096, 40_000, 512_000, MIB, MIB + 1, 3 * MIB, 5 * MIB + 77)


def twins():
    """Return the sources that a build compiles, each with its .pxd."""
    compiled = PACKAGE / "_compiled"
    return [
        (PACKAGE / pxd.relative_to(compiled).with_suffix(".py"), pxd)
        for pxd in sorted(compiled.rglob("*.pxd"))
    ]


def extensions():
    return sorted((PACKAGE / "_compiled").rglob("*.so"))


def missing(why):
    """Skip a test that needs the twin, or fail it where the twin must be there."""
    if BOTH:
        pytest.fail(why)
    pytest.skip(why)


@pytest.fixture
def forms():
    """Return the heap module of both forms."""
    try:
        return _form.load("pure", "engine.heap"), _form.load("compiled", "engine.heap")
    except ImportError as error:
        missing(f"the compiled twin is not built: {error}")


class Run:
    """A heap and what a program has got from it, as plain numbers."""

    def __init__(self, module, capacity, limit=0):
        self.upstream = Upstream(capacity)
        self.heap = module.Heap(0, self.upstream, slabs, out_of_memory, limit)
        self.live = []
        self.answers = []

    def step(self, op, x, y):
        if op == "allocate":
            try:
                block = self.heap.allocate(x, y)
            except NoMemoryError:
                self.answers.append(None)
            else:
                self.live.append(block)
                self.answers.append((block.ptr, block.n, block.requested))
        elif op == "release" and self.live:
            self.heap.release(self.live.pop(x % len(self.live)))
        elif op == "trim":
            only = self.heap.by_key.get(y) if x % 2 else None
            self.answers.append(self.heap.trim(only, None))
        elif op == "limit":
            self.heap.limit = x
        elif op == "peaks":
            self.heap.counters.reset_peaks()

    def picture(self):
        """Return everything that both forms must agree on."""
        heap = self.heap
        return {
            "answers": self.answers,
            "calls": self.upstream.log,
            "figures": [heap.counters.read(i, p) for i in range(len(FIGURES)) for p in range(3)],
            "caches": [None if c is None else (c.key, c.number, c.read()) for c in heap.caches],
            "segments": {p: (s.n, s.cache, bool(s.small), tiles(s)) for p, s in
                         heap.segments.items()},
            "events": (heap.retries, heap.ooms, heap.rejections, heap.syncs,
                       heap.device_allocs, heap.device_frees),
            "space": heap.free_space(),
        }  # fmt: skip


def tiles(segment):
    found, block = [], segment.first
    while block is not None:
        found.append((block.ptr, block.n, block.requested, block.bin, block.rank))
        block = block.next
    return found


def program(seed, steps):
    """Return a random program: allocations and releases, now and then something else."""
    random_ = random.Random(seed)
    for _ in range(steps):
        op = random_.choices(["allocate", "release", "trim", "limit", "peaks"], [50, 46, 1, 1, 1])[
            0
        ]
        if op == "allocate":
            size = random_.choice(SIZES) if random_.random() < 0.6 else random_.randint(1, 2 * MIB)
            yield op, size, random_.randrange(3)
        elif op == "limit":
            yield op, random_.choice([0, 0, 16 * MIB, 40 * MIB]), 0
        else:
            yield op, random_.randrange(2**16), random_.randrange(3)


@pytest.mark.parametrize("seed", range(6))
def test_both_forms_give_the_same_addresses_figures_and_segments(forms, seed):
    pure, compiled = (Run(module, 64 * MIB) for module in forms)
    for step in program(seed, 1000):
        pure.step(*step)
        compiled.step(*step)
        assert pure.answers[-1:] == compiled.answers[-1:], step
    assert pure.picture() == compiled.picture()
    assert audit(pure.heap).breaches == audit(compiled.heap).breaches == []
    assert len(set(pure.answers)) > 100


def test_the_programs_reach_out_of_memory_and_trims_that_give_back():
    run = Run(_form.load("pure", "engine.heap"), 64 * MIB)
    for seed in range(6):
        for step in program(seed, 1000):
            run.step(*step)
    assert run.heap.ooms > 5
    assert run.heap.device_frees > 5
    assert run.upstream.calls["synchronize"] > 5


def test_forms_are_two_forms(forms):
    pure, compiled = forms
    assert pure.__file__.endswith(".py")
    assert not compiled.__file__.endswith(".py")
    assert pure.Heap is not compiled.Heap


def test_every_module_of_the_twin_is_built():
    built = {path.name.split(".")[0] for path in extensions()}
    if not built:
        missing("the compiled twin is not built")
    assert built == {source.stem for source, _ in twins()}


def test_no_source_is_newer_than_its_compiled_twin():
    if not extensions():
        missing("the compiled twin is not built")
    oldest = min(extensions(), key=lambda path: path.stat().st_mtime)
    stale = [
        path.name
        for pair in twins()
        for path in pair
        if path.stat().st_mtime > oldest.stat().st_mtime
    ]
    assert stale == [], f"newer than {oldest.name}: build again"
