"""For the engine's tests: memory at rising addresses, and a heap of the form in force over it."""

from collections import Counter

from cachepool import _form
from cachepool.engine.check import audit, device_books
from cachepool.engine.counters import FIGURES
from cachepool.errors import DeviceFullError
from cachepool.growth import slabs

MIB = 2**20
FIRST = 2**32
S, T = 10, 11  # two streams


class Range:
    """What upstream hands out."""

    def __init__(self, ptr, nbytes):
        self.ptr = ptr
        self.nbytes = nbytes


class Upstream:
    """Never gives an address twice; runs `before[call]` inside the call of that name."""

    identity = "test"

    def __init__(self, capacity=2**40):
        self.capacity = capacity
        self.outstanding = {}
        self.calls = Counter()
        self.before = {}
        self.log = []
        self.owners = {}
        self.end = FIRST

    def reserve(self, nbytes):
        self.enter("reserve", nbytes)
        if sum(self.outstanding.values()) + nbytes > self.capacity:
            raise DeviceFullError(f"{nbytes} bytes are not there")
        held = Range(self.end, nbytes)
        self.end += nbytes + 2 * MIB
        self.outstanding[held.ptr] = nbytes
        return held

    def release(self, held):
        self.enter("release", held.nbytes)
        assert self.outstanding.pop(held.ptr) == held.nbytes

    def synchronize(self):
        self.enter("synchronize", 0)

    def owner(self, key):
        return self.owners.get(key)

    def enter(self, call, nbytes):
        self.calls[call] += 1
        self.log.append((call, nbytes))
        if call in self.before:
            self.before[call]()


class NoMemoryError(MemoryError):
    """What the heaps of these tests raise when they give up."""


def out_of_memory(heap, size):
    return NoMemoryError(size)


class Bench:
    """A heap over a test upstream, and what a test asks of them."""

    def __init__(self, capacity=2**40, limit=0, growth=slabs):
        self.upstream = Upstream(capacity)
        self.heap = _form.Heap(0, self.upstream, growth, out_of_memory, limit)

    def get(self, nbytes, key=S):
        return self.heap.allocate(nbytes, key)

    def read(self, name):
        return self.heap.counters.read(FIGURES.index(name), 2)[0]

    def sound(self):
        """The books are right, and the device's agree."""
        found = audit(self.heap)
        assert found.breaches == []
        assert device_books(self.heap, self.upstream.outstanding, True) == []
        return found

    def finish(self, blocks):
        for block in blocks:
            self.heap.release(block)
        self.heap.trim(None, None)
        assert self.upstream.outstanding == {}
        assert (self.read("reserved_bytes"), self.read("allocated_bytes")) == (0, 0)
        assert self.heap.promised == 0
        self.sound()
