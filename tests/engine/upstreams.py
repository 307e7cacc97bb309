"""Memory for the engine's tests: rising addresses, a capacity, faults, things in the middle."""

from collections import Counter

from cachepool.errors import DeviceFullError

MIB = 2**20
FIRST = 2**32


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
