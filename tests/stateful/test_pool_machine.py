"""Any program over a pool on a simulated device keeps the invariants, after every step.

The reference (`Books`) knows ranges, sums and what the caller may expect of a caching pool;
it knows nothing of bins, segments' insides or ladders.  What the device has outstanding is
asked from the device.
"""

import gc
import random
from bisect import bisect_left, insort

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cachepool import CachePool, OutOfMemoryError, SimDevice
from cachepool.errors import DeviceError

MIB = 2**20
CAPACITY = 24 * MIB
SMALL = MIB  # requests up to here share slabs, as in torch
DEVICES = (0, 1)

SMALL_SIZES = st.one_of(
    st.sampled_from([0, 1, 511, 512, 513, 4096, 5000, 100_000, MIB]),
    st.integers(1, 70_000),
    st.integers(1, MIB),
)
LARGE_SIZES = st.one_of(
    st.sampled_from([MIB + 1, 2 * MIB, 3 * MIB, CAPACITY, CAPACITY + 1, 2**46, 2**47 + 1]),
    st.integers(MIB - 1024, 9 * MIB),
    st.integers(MIB - 1024, 4 * MIB),
)
CALLS = st.sampled_from(["reserve", "reserve", "release", "synchronize"])
DEVICE = st.sampled_from(DEVICES)
PICK = st.integers(0, 2**16)
WORK = st.sampled_from(["none", "writes", "reads"])


def rounded(nbytes):
    return -(-nbytes // 512) * 512


class Books:
    """What one device's figures must be, from what was asked, handed out and released."""

    def __init__(self):
        self.live = []  # (ptr, size, requested, stream key), by address
        self.ever = self.ever_bytes = self.ever_requested = 0
        self.peaks = dict.fromkeys(self.currents({}), 0)

    def add(self, ptr, size, requested, key):
        at = bisect_left(self.live, (ptr,))
        assert at == 0 or sum(self.live[at - 1][:2]) <= ptr, "overlaps the live block below"
        assert at == len(self.live) or ptr + size <= self.live[at][0], "overlaps the one above"
        insort(self.live, (ptr, size, requested, key))
        self.ever += 1
        self.ever_bytes += size
        self.ever_requested += requested

    def remove(self, ptr):
        del self.live[bisect_left(self.live, (ptr,))]

    def currents(self, outstanding):
        """Return the figures; `outstanding` is what the device says it has given away."""
        pinned = [(s, n) for s, n in outstanding.items() if self.inside(s, n)]
        allocated = sum(size for _, size, _, _ in self.live)
        return {
            "allocation": len(self.live),
            "allocated_bytes": allocated,
            "active_bytes": allocated,
            "requested_bytes": sum(requested for _, _, requested, _ in self.live),
            "inactive_split_bytes": sum(n for _, n in pinned) - allocated,
            "segment": len(outstanding),
            "reserved_bytes": sum(outstanding.values()),
        }

    def note_peaks(self, outstanding):
        for name, value in self.currents(outstanding).items():
            self.peaks[name] = max(self.peaks[name], value)

    def inside(self, start, nbytes):
        """Return the live blocks in a range of addresses."""
        first = bisect_left(self.live, (start,))
        return self.live[first : bisect_left(self.live, (start + nbytes,))]

    def longest_gap(self, start, nbytes):
        """Return the longest run of a range that no live block lies in."""
        ends = [start, *(ptr + size for ptr, size, _, _ in self.inside(start, nbytes))]
        starts = [*(ptr for ptr, _, _, _ in self.inside(start, nbytes)), start + nbytes]
        return max(low - high for low, high in zip(starts, ends, strict=True))


class PoolMachine(RuleBasedStateMachine):
    """Requests, releases, kernels, trims, limits, faults and readers, on two devices."""

    @initialize(seed=st.integers(0, 3))
    def begin(self, seed):
        gc.freeze()  # the pool collects before it gives up; what Hypothesis holds is in its way
        self.sim = SimDevice(CAPACITY, devices=2, on_race="record", recycle_handles=True, seed=seed)
        self.pool = CachePool(self.sim)
        self.books = {device: Books() for device in DEVICES}
        self.streams = {d: [self.sim.default_stream(d), self.sim.stream(d)] for d in DEVICES}
        self.held = []  # (Allocation, its ptr, size, requested at birth)
        self.limits = dict.fromkeys(DEVICES, 0)
        self.immortal = []  # streams that outlive the example
        self.faults = []
        self.occupied = []
        self.sizes = []  # asked for so far
        self.failed = None  # the request that last failed

    # ---- requests -----------------------------------------------------------------------

    @rule(nbytes=SMALL_SIZES, device=DEVICE, which=PICK, current=st.booleans(), work=WORK)
    def allocate_small(self, nbytes, device, which, current, work):
        self.request_and_work(nbytes, device, which, current, work)

    @rule(nbytes=LARGE_SIZES, device=DEVICE, which=PICK, current=st.booleans(), work=WORK)
    def allocate_large(self, nbytes, device, which, current, work):
        self.request_and_work(nbytes, device, which, current, work)

    @precondition(lambda self: self.sizes)
    @rule(which=PICK, device=DEVICE, other=PICK, current=st.booleans(), work=WORK)
    def allocate_a_size_seen_before(self, which, device, other, current, work):
        self.request_and_work(self.pick(self.sizes, which), device, other, current, work)

    def request_and_work(self, nbytes, device, which, current, work):
        stream = self.pick(self.streams[device], which)
        self.sizes.append(nbytes)
        allocation = self.request(nbytes, device, stream, current)
        if allocation is not None and nbytes and work != "none":
            stream.launch(1e-3, **{work: allocation})

    @rule(
        nbytes=st.integers(1, 40_000),
        count=st.integers(17, 20),
        device=DEVICE,
        which=PICK,
        keep=st.integers(0, 3),
        order=PICK,
    )
    def burst(self, nbytes, count, device, which, keep, order):
        """More blocks of one size than are kept for exact re-use, back in any order."""
        stream = self.pick(self.streams[device], which)
        first = len(self.held)
        for _ in range(count):
            self.request(nbytes, device, stream, False)
        mine = self.held[first:]
        random.Random(order).shuffle(mine)
        for entry in mine[keep:]:
            self.let_go(entry)

    def request(self, nbytes, device, stream, current):
        """Ask the pool; hold the result to the books.  None if it failed as it may."""
        before = self.sim.reserved(device)
        try:
            if current:
                with self.sim.use(device), stream:
                    allocation = self.pool.allocate(nbytes)
            else:
                allocation = self.pool.allocate(nbytes, stream=stream, device=device)
        except OutOfMemoryError:
            self.failed = (nbytes, device, stream)
            assert self.sim.reserved(device) <= before
            self.expect_no_room(nbytes, device, stream.key)
            return None
        except DeviceError:
            assert self.faults, "no fault was planned"
            assert self.sim.reserved(device) == before
            self.failed = (nbytes, device, stream)
            return None
        if self.limits[device] and self.sim.reserved(device) > before:
            assert self.sim.reserved(device) <= self.limits[device]
        self.hold(allocation, nbytes, device, stream.key)
        return allocation

    def hold(self, allocation, nbytes, device, key):
        assert allocation.size == rounded(nbytes)
        assert (allocation.requested, allocation.device) == (nbytes, device)
        if nbytes == 0:
            assert allocation.ptr == 0
            return
        assert allocation.stream == key
        assert allocation.ptr % 512 == 0
        home = [
            start
            for start, length in self.sim.outstanding(device).items()
            if start <= allocation.ptr and allocation.ptr + allocation.size <= start + length
        ]
        assert len(home) == 1, "not inside one range of the device"
        self.books[device].add(allocation.ptr, allocation.size, nbytes, key)
        self.books[device].note_peaks(self.sim.outstanding(device))
        self.held.append((allocation, allocation.ptr, allocation.size, nbytes))

    def expect_no_room(self, nbytes, device, key):
        """Out of memory must be true: no room below the limit, on the device, or cached."""
        if any(fault.times != 0 or fault.fired for fault in self.faults):
            return  # a planned failure may be the reason
        size = rounded(nbytes)
        limit = self.limits[device]
        room = self.sim.mem_info(device)[0]
        if limit:
            room = min(room, limit - self.sim.reserved(device))
        assert nbytes > limit > 0 or room < size, f"{room} bytes were free"
        if 0 < limit < nbytes or nbytes > 2**47:  # refused at once, the cache untouched
            return
        for start, length in self.sim.outstanding(device).items():
            blocks = self.books[device].inside(start, length)
            assert blocks, "out of memory with a wholly free segment in the cache"
            serves = blocks[0][3] == key and (blocks[0][1] <= SMALL) == (size <= SMALL)
            assert not serves or self.books[device].longest_gap(start, length) < size

    @precondition(lambda self: self.failed is not None)
    @rule()
    def ask_again_with_room(self):
        """The request that failed is served as soon as nothing stands in its way."""
        nbytes, device, stream = self.failed
        self.failed = None
        self.end_faults()
        while self.occupied:
            self.occupied.pop().release()
        with self.sim.use(device):
            self.pool.set_limit(0)
        self.limits[device] = 0
        if nbytes > CAPACITY:
            return
        for entry in [e for e in self.held if e[0].device == device]:
            self.let_go(entry)
        assert self.request(nbytes, device, stream, False) is not None

    @precondition(lambda self: self.held)
    @rule(which=PICK, way=st.sampled_from(["release", "release twice", "drop"]))
    def release(self, which, way):
        entry = self.pick(self.held, which)
        allocation = entry[0]
        if way == "drop":
            self.let_go(entry, drop=True)
            del entry, allocation
            return
        self.let_go(entry)
        assert allocation.ptr == 0
        if way == "release twice":
            allocation.release()

    @precondition(lambda self: self.held)
    @rule(which=PICK, count=st.integers(2, 8))
    def release_some(self, which, count):
        for _ in range(min(count, len(self.held))):
            self.let_go(self.pick(self.held, which))

    def let_go(self, entry, drop=False):
        allocation, ptr, size, requested = entry
        assert (allocation.ptr, allocation.size, allocation.requested) == (ptr, size, requested)
        books, device = self.books[allocation.device], allocation.device
        books.remove(ptr)
        books.note_peaks(self.sim.outstanding(device))
        self.held.remove(entry)
        if not drop:
            allocation.release()

    # ---- work on the device -------------------------------------------------------------

    @precondition(lambda self: self.held)
    @rule(which=PICK, other=PICK, read=st.booleans())
    def launch(self, which, other, read):
        """Work on a block: on its own stream, or on another one, ordered on both sides."""
        allocation = self.pick(self.held, which)[0]
        streams = self.streams[allocation.device]
        mine = [s for s in streams if s.key == allocation.stream]
        if not mine:
            return
        mine[0].launch(1e-3, **{"reads" if read else "writes": allocation})
        stranger = self.pick(streams, other)
        if stranger is not mine[0]:
            stranger.wait(mine[0].record())
            stranger.launch(1e-3, reads=allocation)
            mine[0].wait(stranger.record())

    @rule(device=DEVICE, which=PICK, how=st.sampled_from(["advance", "stream", "device"]))
    def wait(self, device, which, how):
        try:
            if how == "advance":
                self.sim.advance(2e-3)
            elif how == "stream":
                self.pick(self.streams[device], which).synchronize()
            else:
                self.sim.synchronize(device)
        except DeviceError:
            assert self.faults, "no fault was planned"

    @precondition(lambda self: any(len(s) < 4 for s in self.streams.values()))
    @rule(device=DEVICE, blocking=st.booleans())
    def new_stream(self, device, blocking):
        if len(self.streams[device]) < 4:
            self.streams[device].append(self.sim.stream(device, blocking=blocking))

    @precondition(lambda self: any(len(s) > 1 for s in self.streams.values()))
    @rule(device=DEVICE, which=PICK, destroy=st.booleans(), successor=st.booleans())
    def end_stream(self, device, which, destroy, successor):
        """Drop a user's stream, with whatever is cached for it, busy or not.

        The next stream gets its handle, unless something keeps it alive.
        """
        if len(self.streams[device]) < 2:
            return
        stream = self.pick(self.streams[device][1:], which)
        if self.failed and self.failed[2] is stream:
            self.failed = None
        self.streams[device].remove(stream)
        if destroy:
            try:
                self.sim.synchronize(device)  # else the next of that handle is a stranger
            except DeviceError:
                return
            stream.destroy()
        del stream
        if destroy or successor:
            self.streams[device].append(self.sim.stream(device))
        if destroy:  # what dies busy under a destroyed one's handle: see test_faults
            self.immortal.append(self.streams[device][-1])

    @rule(device=DEVICE, nbytes=st.integers(1, 3 * MIB), current=st.booleans())
    def stream_dies_busy(self, device, nbytes, current):
        """Work on a released block runs on, and the next stream would fit its cache."""
        stream = self.sim.stream(device)
        if self.request(nbytes, device, stream, current) is None:
            self.failed = None
            return
        entry = self.held[-1]
        stream.launch(1e-3, writes=entry[0])
        self.let_go(entry)
        del stream, entry
        self.request(nbytes, device, self.sim.stream(device), current)

    # ---- back to the device -------------------------------------------------------------

    @rule(device=st.sampled_from([None, 0, 1]), which=st.one_of(st.none(), PICK))
    def empty_cache(self, device, which):
        targets = DEVICES if device is None else (device,)
        stream = None if which is None else self.pick(self.streams[targets[0]], which)
        before = [self.sim.reserved(d) for d in DEVICES]
        failing = bool(self.faults)
        try:
            emptied = self.pool.empty_cache(device=device, stream=stream)
        except DeviceError:
            assert failing
            return
        after = [self.sim.reserved(d) for d in DEVICES]
        assert emptied == sum(before) - sum(after)
        if failing:
            return
        for d in targets:
            for start, length in self.sim.outstanding(d).items():
                blocks = self.books[d].inside(start, length)
                assert blocks or stream is not None, "a wholly free segment was kept"
        if stream is None:
            allocated = sum(self.books[d].currents({})["allocated_bytes"] for d in targets)
            assert emptied.kept == sum(self.sim.reserved(d) for d in targets) - allocated
            assert bool(emptied.reasons) == (emptied.kept > 0)

    @rule(device=DEVICE, limit=st.sampled_from([0, 0, CAPACITY, 9 * MIB + 512, 2 * MIB, 5000]))
    def set_limit(self, device, limit):
        with self.sim.use(device):
            self.pool.set_limit(limit)
            assert self.pool.get_limit() == limit
        self.limits[device] = limit

    @rule(device=DEVICE, fraction=st.sampled_from([1.0, 1.0, 0.5, 0.1, 0.0]))
    def set_fraction(self, device, fraction):
        self.pool.set_per_process_memory_fraction(fraction, device)
        # 1.0 is no limit; 0.0 leaves not a byte that could be asked for
        self.limits[device] = 0 if fraction == 1.0 else max(1, int(fraction * CAPACITY))

    # ---- trouble ------------------------------------------------------------------------

    @precondition(lambda self: len(self.faults) < 3)
    @rule(call=CALLS, at=st.integers(1, 3), times=st.sampled_from([1, 1, 1, 2, None]))
    def plan_fault(self, call, at, times):
        self.faults.append(PlannedFault(self.sim.fail(call, at=at, times=times)))

    @precondition(lambda self: not self.faults)
    @rule(call=CALLS, at=st.integers(1, 2), nbytes=LARGE_SIZES, device=DEVICE, which=PICK)
    def request_during_a_fault(self, call, at, nbytes, device, which):
        """A request that a fault refuses is served, or out of memory for good, without it."""
        stream = self.pick(self.streams[device], which)
        self.plan_fault(call, at, 2)
        served = self.request(nbytes, device, stream, False)
        self.pool_is_sound()
        self.end_faults()
        if served is None:
            self.request(nbytes, device, stream, False)

    @precondition(lambda self: not self.faults and self.sizes)
    @rule(at=st.integers(1, 2))
    def trim_during_a_fault(self, at):
        """A segment that the device does not take back stays in the books, and is named."""
        idle = sum(not self.books[d].inside(*span) for d in DEVICES for span in self.outstanding(d))
        self.plan_fault("release", at, 1)
        before = sum(self.sim.reserved(d) for d in DEVICES)
        emptied = self.pool.empty_cache()
        assert emptied == before - sum(self.sim.reserved(d) for d in DEVICES)
        refused = [reason for reason in emptied.reasons if "simulated fault" in reason]
        assert len(refused) == (idle >= at)
        self.pool_is_sound()
        self.end_faults()

    def outstanding(self, device):
        return list(self.sim.outstanding(device).items())

    @precondition(lambda self: self.faults)
    @rule()
    def end_faults(self):
        while self.faults:
            self.faults.pop().plan.remove()

    @precondition(lambda self: len(self.occupied) < 2)
    @rule(device=DEVICE, share=st.sampled_from([1, 2, 4]))
    def others_take_memory(self, device, share):
        nbytes = self.sim.mem_info(device)[0] * share // 4 // 512 * 512
        self.occupied.append(self.sim.occupy(nbytes, device))

    @precondition(lambda self: self.occupied)
    @rule()
    def others_give_back(self):
        self.occupied.pop().release()

    # ---- readers and resets -------------------------------------------------------------

    @rule(device=DEVICE)
    def read_everything(self, device):
        pool, sim = self.pool, self.sim
        pool.memory_stats(device)  # a device is known from its first mention on
        before = (pool.memory_stats(device), pool.memory_snapshot(), sim.calls, sim.now)
        pool.memory_summary(device)
        pool.memory_stats_as_nested_dict(device)
        pool.mem_get_info(device)
        pool.get_per_process_memory_fraction(device)
        pool.check(quick=True)
        repr(pool)
        with sim.use(device):
            figures = (pool.used_bytes(), pool.free_bytes(), pool.total_bytes())
            pool.n_free_blocks()
        assert figures[0] + figures[1] == figures[2] == sim.reserved(device)
        after = (pool.memory_stats(device), pool.memory_snapshot(), sim.calls, sim.now)
        assert after == before

    @rule(device=DEVICE)
    def snapshot_shows_the_live_blocks(self, device):
        segments = self.pool.memory_snapshot(device)
        found = {s["address"]: s["total_size"] for s in segments}
        assert found == self.sim.outstanding(device)
        shown = [
            (b["address"], b["size"], b["requested_size"], s["stream"])
            for s in segments
            for b in s["blocks"]
            if b["state"] == "active_allocated"
        ]
        assert shown == self.books[device].live

    @rule(device=DEVICE)
    def reset_peaks(self, device):
        self.pool.reset_peak_memory_stats(device)
        self.books[device].peaks = self.books[device].currents(self.sim.outstanding(device))

    @rule(device=DEVICE)
    def reset_accumulated(self, device):
        self.pool.reset_accumulated_memory_stats(device)
        books = self.books[device]
        books.ever = books.ever_bytes = books.ever_requested = 0

    # ---- after every step ---------------------------------------------------------------

    @invariant()
    def pool_is_sound(self):
        summary = self.pool.check()
        live = sum(len(books.live) for books in self.books.values())
        assert summary.blocks - summary.free_blocks == live
        assert summary.segments == sum(len(self.sim.outstanding(d)) for d in DEVICES)

    @invariant()
    def nothing_races(self):
        assert self.sim.races == []

    @invariant()
    def figures_are_those_of_the_reference(self):
        for device, books in self.books.items():
            stats = self.pool.memory_stats(device)
            figures = books.currents(self.sim.outstanding(device))
            for name, value in figures.items():
                assert stats[f"{name}.all.current"] == value, name
                assert stats[f"{name}.all.peak"] == books.peaks[name], name
            assert stats["allocation.all.allocated"] == books.ever
            assert stats["allocated_bytes.all.allocated"] == books.ever_bytes
            assert stats["requested_bytes.all.allocated"] == books.ever_requested
            assert self.pool.memory_allocated(device) == figures["allocated_bytes"]
            assert self.pool.memory_reserved(device) == self.sim.reserved(device)

    @invariant()
    def blocks_stay_where_they_are(self):
        for allocation, ptr, size, requested in self.held:
            assert (allocation.ptr, allocation.size, allocation.requested) == (
                ptr,
                size,
                requested,
            )

    def teardown(self):
        if not hasattr(self, "pool"):
            return
        self.end_faults()
        while self.held:
            self.let_go(self.held[-1])
        self.pool.check()
        self.pool.empty_cache()
        for device in DEVICES:
            assert self.pool.memory_reserved(device) == 0
            assert self.sim.outstanding(device) == {}
        assert self.sim.races == []
        self.pool.check()

    @staticmethod
    def pick(things, which):
        return things[which % len(things)]


class PlannedFault:
    """A fault that the device was told of; whether it has happened is asked of the plan."""

    def __init__(self, plan):
        self.plan = plan
        self.first = (plan.skip, plan.times)

    @property
    def times(self):
        return self.plan.times

    @property
    def fired(self):
        return (self.plan.skip, self.plan.times) != self.first


@pytest.fixture(scope="module", autouse=True)
def small_garbage():
    """Keep the collections that the pool asks for cheap: what is imported is not garbage."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


TestPoolMachine = pytest.mark.timeout(900)(PoolMachine.TestCase)  # to shrink a failure takes long
TestPoolMachine.settings = settings(
    max_examples=200,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
