"""What the conformance tests share: CuPy, and the upstream that CuPy's own tests mock."""

import gc
from concurrent.futures import ThreadPoolExecutor

import pytest

cupy = pytest.importorskip("cupy", reason="conformance with CuPy needs CuPy")

from cupy.cuda import memory, memory_hook  # noqa: E402

UNIT = 512
MIB = 2**20
SLAB = 2 * MIB


class SegmentMemory(memory.BaseMemory):
    """A segment's memory, which its backing counts while it lives."""

    def __init__(self, backing, ptr, nbytes):
        self.ptr, self.size, self.device_id = ptr, nbytes, backing.sim.current()
        self.backing = backing
        backing.live += nbytes

    def __del__(self):
        self.backing.live -= self.size


class Rising:
    """An upstream of exact segments at addresses of a simulated device, none of them twice.

    What is dropped is not given back to the device: that is how no address recurs.
    """

    def __init__(self, sim):
        self.sim = sim
        self.live = 0

    def __call__(self, nbytes):
        ptr = self.sim.reserve(nbytes, self.sim.current())
        return memory.MemoryPointer(SegmentMemory(self, ptr, nbytes), 0)


class Recorder(memory_hook.MemoryHook):
    """A memory hook that notes every call as (name, keywords)."""

    name = "Recorder"

    def __init__(self, calls=None):
        self.calls = [] if calls is None else calls

    def of(self, method):
        """Return the keywords of the calls of one method."""
        return [keywords for name, keywords in self.calls if name == method]

    def names(self):
        """Return the names of the methods called, in order."""
        return [name for name, _ in self.calls]


def _noting(method):
    def note(self, **keywords):
        self.calls.append((method, keywords))

    return note


HOOK_METHODS = tuple(
    f"{what}_{when}process" for what in ("malloc", "alloc", "free") for when in ("pre", "post")
)
for _method in HOOK_METHODS:
    setattr(Recorder, _method, _noting(_method))


def in_a_thread(function, *args):
    """Call a function in a new thread, which ends; return or raise what it does."""
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(function, *args).result(timeout=60)


def assert_all_given_back(pool, devices):
    """Check that nothing is in use, that the books hold, and that all can be given back."""
    if any(pool.memory_allocated(device) for device in devices):
        gc.collect()  # costs more than most tests
    pool.check()
    assert [pool.memory_allocated(device) for device in devices] == [0] * len(devices)
    pool.empty_cache()
    assert [pool.memory_reserved(device) for device in devices] == [0] * len(devices)
