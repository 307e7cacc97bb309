"""The checker and the clock against brute force, on random programs.

The model keeps every operation as a node of a graph and knows nothing of vector clocks, of
pieces, of pruning: A precedes B if a path leads from A to B.
"""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from cachepool.devices.sim import NO_COSTS, SimDevice

BLOCK = 512
SLOTS = 4
STREAMS = 5  # legacy, two blocking, one not, one of another device


@dataclass
class Node:
    before: list["Node"]
    reads: set = field(default_factory=set)
    writes: set = field(default_factory=set)
    end: float = 0.0


def ancestors(node):
    found, todo = set(), list(node.before)
    while todo:
        each = todo.pop()
        if id(each) not in found:
            found.add(id(each))
            todo += each.before
    return found


class Model:
    """All operations so far; streams 0 (legacy), 1, 2 (blocking), 3 (not), 4 (other device)."""

    def __init__(self):
        root = Node([])
        self.now = 0.0
        self.host = root
        self.last = [root] * STREAMS  # of each stream
        self.kernels = [root] * STREAMS
        self.kernel_ends = [0.0] * STREAMS
        self.ends = [0.0] * STREAMS
        self.events = {}
        self.dead = []  # last node, last kernel, its end, end of all: of streams replaced
        self.nodes = []  # kernels whose bytes are still reserved

    def implicit(self, stream):
        """Return the kernels that a kernel on a stream follows implicitly, each with its end."""
        others = {0: [1, 2], 1: [0], 2: [0]}.get(stream, [])
        kernels = [(self.kernels[other], self.kernel_ends[other]) for other in others]
        if stream == 0:
            kernels += [dead[1:3] for number, *dead in self.dead if number in (1, 2)]
        return kernels

    def next_kernel(self, stream, reads, writes):
        before = [self.host, self.last[stream]]
        before += [kernel for kernel, _ in self.implicit(stream)]
        return Node(before, reads, writes)

    def replace(self, stream):
        left = self.last[stream], self.kernels[stream]
        self.dead.append((stream, *left, self.kernel_ends[stream], self.ends[stream]))
        self.last[stream] = self.kernels[stream] = Node([])
        self.kernel_ends[stream] = self.ends[stream] = 0.0

    def races(self, node):
        known = ancestors(node)
        return any(
            id(old) not in known
            and (old.writes & (node.reads | node.writes) or old.reads & node.writes)
            for old in self.nodes
        )

    def launch(self, stream, seconds, reads, writes):
        node = self.next_kernel(stream, reads, writes)
        racing = self.races(node)
        ready = [end for _, end in self.implicit(stream)]
        self.ends[stream] = max(self.now, self.ends[stream], *ready) + seconds
        self.kernel_ends[stream] = self.ends[stream]
        self.last[stream] = self.kernels[stream] = node
        self.nodes.append(node)
        return racing

    def record(self, stream, event):
        node = Node([self.host, self.last[stream]], end=max(self.now, self.ends[stream]))
        self.events[event] = node

    def wait(self, stream, event):
        if event in self.events:
            node = self.events[event]
            self.last[stream] = Node([self.last[stream], node])
            self.ends[stream] = max(self.ends[stream], node.end)

    def observe(self, nodes, end):
        self.now = max(self.now, end)
        self.host = Node([self.host, *nodes])

    def released(self, slots):
        node = Node([self.host], set(), slots)
        racing = self.races(node)
        for old in self.nodes:
            old.reads -= slots
            old.writes -= slots
        return racing


class Pair:
    """The simulated device and the model, driven alike and compared."""

    def __init__(self):
        self.sim = SimDevice(devices=2, costs=NO_COSTS, on_race="record", recycle_handles=True)
        self.model = Model()
        self.ptr = self.sim.reserve(SLOTS * BLOCK, 0)
        self.streams = [
            self.sim.default_stream(),
            self.sim.stream(),
            self.sim.stream(),
            self.sim.stream(blocking=False),
            self.sim.stream(1),
        ]
        self.events = [self.sim.event(0) for _ in range(2)] + [self.sim.event(1)]

    def raced(self, act):
        before = len(self.sim.races)
        act()
        return len(self.sim.races) > before

    def ranges(self, slots):
        return [(self.ptr + slot * BLOCK, BLOCK) for slot in sorted(slots)]

    def launch(self, stream, seconds, reads, writes):
        expected = self.model.launch(stream, seconds, set(reads), set(writes))
        launch = self.streams[stream].launch
        got = self.raced(
            lambda: launch(seconds, reads=self.ranges(reads), writes=self.ranges(writes))
        )
        assert got == expected

    def span(self, stream, seconds, low, length, writing):
        """Launch on bytes that cut and cover what others touched."""
        slots = set(range(low, min(low + length, SLOTS)))
        touched = (self.ptr + low * BLOCK, len(slots) * BLOCK)
        reads, writes = (set(), slots) if writing else (slots, set())
        expected = self.model.launch(stream, seconds, reads, writes)
        action = {"writes" if writing else "reads": touched}
        assert self.raced(lambda: self.streams[stream].launch(seconds, **action)) == expected

    def hand_out_all(self):
        """Compare the verdict on every byte for every stream."""
        for number, key in enumerate(self.streams):
            known = ancestors(self.model.next_kernel(number, set(), set()))
            unordered = [node for node in self.model.nodes if id(node) not in known]
            used = set().union(*(node.reads | node.writes for node in unordered))
            for ptr, nbytes in self.ranges(range(SLOTS)):
                got = self.raced(lambda: self.sim.handed_out(ptr, nbytes, 0, key))  # noqa: B023
                assert got == ((ptr - self.ptr) // BLOCK in used)

    def renew(self):
        """Release all the memory, and reserve it again."""
        expected = self.model.released(set(range(SLOTS)))
        assert self.raced(lambda: self.sim.release(self.ptr, SLOTS * BLOCK, 0)) == expected
        assert self.sim.reserve(SLOTS * BLOCK, 0) == self.ptr

    def replace(self, stream):
        """Destroy a stream and create another one, which gets its handle."""
        old = self.streams[stream]
        old.destroy()
        self.streams[stream] = self.sim.stream(old.device, blocking=old.blocking)
        assert self.streams[stream].handle == old.handle
        self.model.replace(stream)

    def record(self, stream, event):
        event = 2 if stream == 4 else event % 2
        self.model.record(stream, event)
        self.streams[stream].record(self.events[event])

    def join(self, first, second):
        """Order what a stream gets from now on after all work of another."""
        event = 2 if first == 4 else 0
        self.record(first, event)
        self.wait(second, event)

    def wait(self, stream, event):
        self.model.wait(stream, event)
        self.streams[stream].wait(self.events[event])

    def advance(self, seconds):
        self.model.now += seconds
        self.sim.advance(seconds)

    def query_event(self, event):
        node = self.model.events.get(event)
        expected = node is None or node.end <= self.model.now
        if expected and node is not None:
            self.model.observe([node], 0)
        assert self.events[event].done == expected

    def query_stream(self, stream):
        expected = self.model.ends[stream] <= self.model.now
        if expected:
            self.model.observe([self.model.last[stream]], 0)
        assert self.streams[stream].done == expected

    def synchronize(self, stream):
        self.model.observe([self.model.last[stream]], self.model.ends[stream])
        self.streams[stream].synchronize()

    def synchronize_event(self, event):
        if event in self.model.events:
            node = self.model.events[event]
            self.model.observe([node], node.end)
        self.events[event].synchronize()

    def synchronize_device(self, device):
        streams = range(4) if device == 0 else (4,)
        dead = [dead for number, *dead in self.model.dead if number in streams]
        ends = [self.model.ends[s] for s in streams] + [each[-1] for each in dead]
        nodes = [self.model.last[s] for s in streams] + [each[0] for each in dead]
        self.model.observe(nodes, max(ends))
        self.sim.synchronize(device)


stream = st.integers(0, STREAMS - 1)
event = st.integers(0, 2)
slot = st.integers(0, SLOTS - 1)
slots = st.sets(slot, max_size=2)
seconds = st.sampled_from([0.0, 0.5, 1.0, 2.0])


def step(name, *arguments):
    return st.tuples(st.just(name), st.tuples(*arguments))


launches = st.one_of(
    step("launch", stream, seconds, slots, slots),
    step("span", stream, seconds, slot, st.integers(1, SLOTS), st.booleans()),
)
orders = st.one_of(
    step("join", stream, stream),
    step("join", stream, stream),
    step("record", stream, event),
    step("wait", stream, event),
)
observations = st.one_of(
    step("advance", seconds),
    step("query_event", event),
    step("query_stream", stream),
    step("synchronize", stream),
    step("synchronize_event", event),
    step("synchronize_device", st.integers(0, 1)),
    step("renew"),
    step("replace", st.integers(1, STREAMS - 1)),
)
checks = step("hand_out_all")
steps_of_a_program = st.one_of(launches, launches, orders, orders, observations, checks)
program = st.lists(steps_of_a_program, min_size=5, max_size=40)


@settings(max_examples=300, deadline=None)
@given(program)
def test_races_answers_and_times_are_those_of_the_closed_graph(steps):
    pair = Pair()
    for name, arguments in steps:
        getattr(pair, name)(*arguments)
        assert pair.sim.now == pair.model.now
    pair.hand_out_all()
    pair.synchronize_device(0)
    pair.synchronize_device(1)
    assert pair.sim.now == pair.model.now
    pair.renew()
