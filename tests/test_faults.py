"""Every device call of a program fails once, or for ever: nothing is lost, nothing is wrong.

A fixed program of about forty operations runs over a simulated device.  For each call it
makes (reserve, release, synchronize) and each ordinal of it, it runs again with just that
call failing.  After every operation the books must be exact.
"""

import gc
import weakref
from contextlib import suppress
from itertools import pairwise

import pytest

from cachepool import CachePool, OutOfMemoryError, SimDevice
from cachepool.devices.sim import NO_COSTS
from cachepool.errors import DeviceError, DeviceFullError

MIB = 2**20
CAPACITY = 24 * MIB
CALLS = ("reserve", "release", "synchronize")

# (verb, what): names are of blocks; sizes leave the device full now and then.
PROGRAM = (
    ("get", "a", 100, 0),
    ("get", "b", 70_000, 0),
    ("get", "c", 3 * MIB, 0),
    ("put", "b"),
    ("get", "d", 70_000, 0),
    ("get", "e", 5000, 1),
    ("get", "f", 6 * MIB, 1),
    ("put", "c"),
    ("get", "g", 2 * MIB + 1, 0),
    ("put", "f"),
    ("empty", None),
    ("get", "h", 9 * MIB, 0),
    ("put", "e"),
    ("get", "i", 400_000, 1),
    ("put", "h"),
    ("get", "j", 11 * MIB, 1),  # only after the cached 9 MiB have gone back
    ("put", "g"),
    ("oom", 20 * MIB, 0),
    ("put", "j"),
    ("get", "k", 11 * MIB, 0),  # the other stream's 11 MiB go back
    ("put", "a"),
    ("put", "d"),
    ("oom", 22 * MIB, 1),
    ("get", "l", MIB, 0),
    ("put", "k"),
    ("empty", 0),
    ("get", "m", 513, 0),
    ("get", "n", 5 * MIB, 1),
    ("put", "n"),
    ("empty", 1),
    ("get", "o", 7 * MIB, 0),
    ("put", "l"),
    ("get", "p", MIB + 1, 1),
    ("put", "o"),
    ("oom", CAPACITY + 1, 0),
    ("get", "q", 13 * MIB, 1),
    ("put", "m"),
    ("put", "p"),
    ("put", "i"),
    ("put", "q"),
    ("empty", None),
)


class Theatre:
    """The program on a pool; `hits` counts operations that a fault reached."""

    def __init__(self, sim=None):
        self.sim = sim or SimDevice(CAPACITY, on_race="record", costs=NO_COSTS)
        self.pool = CachePool(self.sim)
        self.streams = [self.sim.default_stream(), self.sim.stream()]
        self.live = {}
        self.wanted = []  # requests that a fault has refused
        self.hits = 0
        self.quiet = (CALLS[0], 0)  # so many calls of that name may pass unchecked: as ever
        self.lost = 0  # ranges that the pool cannot know of

    def run(self, operations=PROGRAM, allowed=()):
        for verb, *rest in operations:
            try:
                getattr(self, verb)(*rest)
            except allowed:
                self.hits += 1
                if verb == "get":
                    self.wanted.append(rest)
            self.check()

    def get(self, name, nbytes, stream):
        allocation = self.pool.allocate(nbytes, stream=self.streams[stream])
        self.streams[stream].launch(1e-3, writes=allocation)
        self.live[name] = (allocation, allocation.ptr, allocation.size)

    def put(self, name):
        if name in self.live:
            self.live.pop(name)[0].release()
        self.wanted = [request for request in self.wanted if request[0] != name]

    def empty(self, stream):
        self.pool.empty_cache(stream=None if stream is None else self.streams[stream])

    def oom(self, nbytes, stream):
        try:
            self.pool.allocate(nbytes, stream=self.streams[stream])
        except OutOfMemoryError:
            return
        assert self.hits, "there was room"  # an earlier request that failed has left some

    def check(self):
        """All books agree with what this program holds, and with each other."""
        call, calls = self.quiet
        if self.sim.calls[call] < calls:
            return
        self.pool.check()
        assert self.sim.races == []
        outstanding = self.sim.outstanding()
        held = {s["address"]: s["total_size"] for s in self.pool.memory_snapshot(0)}
        assert held.items() <= outstanding.items()
        assert len(outstanding) - len(held) == self.lost
        assert self.pool.memory_reserved(0) == sum(held.values())
        spans = sorted((ptr, ptr + size) for _, ptr, size in self.live.values())
        assert all(a[1] <= b[0] for a, b in pairwise(spans))
        assert self.pool.memory_allocated(0) == sum(end - start for start, end in spans)
        for allocation, ptr, size in self.live.values():
            assert (allocation.ptr, allocation.size) == (ptr, size)
        assert self.pool.heap(0).promised == 0
        assert self.pool.heap(0).limbo == {}

    def finish(self):
        """With the faults over, what was refused is served, and everything goes back."""
        for name, nbytes, stream in self.wanted:
            self.get(name, nbytes, stream)
            self.check()
            self.put(name)
        for name in list(self.live):
            self.put(name)
        self.pool.empty_cache()
        assert self.pool.memory_reserved(0) == 0
        assert len(self.sim.outstanding()) == self.lost
        self.check()


def calls_of_the_program():
    theatre = Theatre()
    theatre.run()
    return theatre.sim.calls


@pytest.fixture(scope="module", autouse=True)
def small_garbage():
    """Keep the collections that the pool asks for cheap: what is imported is not garbage."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def test_program_reaches_every_call_and_the_retries():
    theatre = Theatre()
    theatre.run()
    calls = theatre.sim.calls
    assert all(calls[name] >= 5 for name in CALLS), calls
    stats = theatre.pool.memory_stats(0)
    assert stats["num_ooms"] == sum(verb == "oom" for verb, *_ in PROGRAM)
    assert stats["num_alloc_retries"] > stats["num_ooms"]  # some were served after a trim
    theatre.finish()


@pytest.mark.parametrize("call", CALLS)
def test_any_call_may_fail_once(call):
    reached = 0
    for at in range(1, calls_of_the_program()[call] + 1):
        theatre = Theatre()
        theatre.quiet = (call, at)
        fault = theatre.sim.fail(call, at=at)
        theatre.run(allowed=(OutOfMemoryError, DeviceError))
        assert fault.times == 0, f"{call} number {at} was never made"
        reached += theatre.hits
        theatre.finish()
    if call == "synchronize":
        assert reached > 0  # nothing to fall back on: the error comes out


@pytest.mark.parametrize("call", CALLS)
def test_any_call_may_fail_for_ever_from_then_on(call):
    for at in range(1, calls_of_the_program()[call] + 1):
        theatre = Theatre()
        theatre.quiet = (call, at)
        fault = theatre.sim.fail(call, at=at, times=None)
        theatre.run(allowed=(OutOfMemoryError, DeviceError))
        fault.remove()
        theatre.finish()


@pytest.mark.parametrize("call", CALLS)
def test_a_failure_for_ever_ends_and_the_rest_of_the_program_is_served(call):
    half = len(PROGRAM) // 2
    theatre = Theatre()
    fault = theatre.sim.fail(call, times=None)
    theatre.run(PROGRAM[:half], allowed=(OutOfMemoryError, DeviceError))
    fault.remove()
    theatre.wanted.clear()
    theatre.run(PROGRAM[half:])
    theatre.finish()


@pytest.mark.parametrize("call", CALLS)
def test_a_request_that_failed_is_served_when_the_fault_ends(call):
    theatre = Theatre()
    theatre.run((("get", "a", 9 * MIB, 0), ("put", "a"), ("get", "b", 8 * MIB, 1)))
    fault = theatre.sim.fail(call, times=None)
    before = theatre.pool.memory_snapshot(0)
    figures = theatre.pool.memory_stats(0)
    with pytest.raises((OutOfMemoryError, DeviceError)):
        theatre.get("c", 15 * MIB, 1)
    theatre.check()
    counted = {"num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_free"}
    changed = {
        key
        for key, value in theatre.pool.memory_stats(0).items()
        if value != figures[key] and key.startswith(("num_", "alloc", "active", "requested"))
    }
    assert changed <= counted
    if call != "reserve":  # else the ladder has given the cache back, as it should
        assert theatre.pool.memory_snapshot(0) == before
    fault.remove()
    theatre.get("c", 15 * MIB, 1)
    theatre.finish()


# ---- errors of other kinds ------------------------------------------------------------------


class Odd(Exception):
    """An error that the pool has never heard of."""


@pytest.mark.parametrize("call", ["reserve", "synchronize"])
@pytest.mark.parametrize("error", [Odd("odd"), ValueError("odd"), OSError("odd")])
def test_error_that_is_not_out_of_memory_comes_out_as_it_is(call, error):
    theatre = Theatre()
    theatre.run((("get", "a", 9 * MIB, 0), ("put", "a")))
    theatre.sim.fail(call, error=error)
    with pytest.raises(type(error)) as caught:
        theatre.get("b", 20 * MIB, 1)
    assert caught.value is error
    assert theatre.pool.memory_stats(0)["num_ooms"] == 0
    theatre.check()
    theatre.get("b", 20 * MIB, 1)
    theatre.finish()


def test_error_of_a_release_is_told_by_empty_cache():
    theatre = Theatre()
    theatre.run((("get", "a", 3 * MIB, 0), ("get", "b", 100, 0), ("put", "a"), ("put", "b")))
    theatre.sim.fail("release", error=Odd("the driver says no"))
    emptied = theatre.pool.empty_cache()
    theatre.check()
    assert emptied.kept == theatre.pool.memory_reserved(0) > 0
    assert any("the driver says no" in reason for reason in emptied.reasons)
    theatre.finish()


def test_full_device_that_never_recovers_is_out_of_memory_with_the_books_exact():
    theatre = Theatre()
    theatre.sim.fail("reserve", times=None, error=DeviceFullError)
    with pytest.raises(OutOfMemoryError):
        theatre.get("a", 100, 0)
    theatre.check()
    assert theatre.pool.memory_stats(0)["num_alloc_retries"] == 1
    assert theatre.sim.outstanding() == {}


# ---- interrupts -----------------------------------------------------------------------------


def interrupt():
    raise KeyboardInterrupt


@pytest.mark.parametrize("call", CALLS)
def test_keyboard_interrupt_before_a_call_takes_effect_leaves_the_books_exact(call):
    for at in range(calls_of_the_program()[call]):
        theatre = Theatre()
        interrupt_after(theatre.sim, call, at, "start")
        theatre.quiet = (call, at + 1)
        theatre.run(allowed=KeyboardInterrupt)
        assert theatre.hits == 1
        theatre.finish()


def test_keyboard_interrupt_at_the_end_of_a_wait_leaves_the_books_exact():
    for at in range(calls_of_the_program()["synchronize"]):
        theatre = Theatre()
        interrupt_after(theatre.sim, "synchronize", at, "end")
        theatre.quiet = ("synchronize", at + 1)
        theatre.run(allowed=KeyboardInterrupt)
        assert theatre.hits == 1
        theatre.finish()


def test_segment_whose_release_was_interrupted_after_the_fact_is_not_handed_out():
    # A SIGINT that arrives while cudaFree runs is raised when it has returned.
    for at in range(calls_of_the_program()["release"]):
        theatre = Theatre()
        interrupt_after(theatre.sim, "release", at, "end")
        theatre.quiet = ("release", at + 1)
        theatre.run(allowed=KeyboardInterrupt)
        assert theatre.hits == 1
        theatre.finish()


def test_reservation_interrupted_after_the_fact_costs_its_own_range_and_nothing_else():
    # The address is lost with the interrupt: only the device could return it.
    for at in range(calls_of_the_program()["reserve"]):
        theatre = Theatre()
        before = []

        def interrupt(theatre=theatre, before=before):
            known = len(theatre.pool.memory_snapshot(0))
            theatre.lost = len(theatre.sim.outstanding()) - known  # 0 if the device was full
            before.append(theatre.lost)
            raise KeyboardInterrupt

        interrupt_after(theatre.sim, "reserve", at, "end", interrupt)
        theatre.quiet = ("reserve", at + 1)
        theatre.run(allowed=(KeyboardInterrupt, OutOfMemoryError))
        assert before in ([0], [1])
        theatre.wanted.clear()  # the device has less room now
        theatre.finish()


def interrupt_after(sim, call, calls, when, interrupt=interrupt):
    """Interrupt the call of that name which comes after so many others."""

    def arm(left):
        if left:
            sim.during(call, lambda: arm(left - 1), when=when)
        else:
            sim.during(call, interrupt, when=when)

    if calls:
        sim.during(call, lambda: arm(calls - 1), when=when)
    else:
        sim.during(call, interrupt, when=when)


# ---- what a fault must not do ---------------------------------------------------------------


@pytest.mark.parametrize("call", ["reserve", "synchronize"])
def test_a_failed_call_does_not_keep_its_callers_alive(call):
    theatre = Theatre()
    theatre.run((("get", "a", 9 * MIB, 0), ("put", "a")))

    class Witness:
        pass

    def caller():
        witness = Witness()
        theatre.sim.fail(call)
        with suppress(DeviceError):
            theatre.pool.allocate(20 * MIB, stream=theatre.streams[1])
        return weakref.ref(witness)

    gc.disable()
    try:
        assert caller()() is None, "only a collection would free what the caller held"
    finally:
        gc.enable()


def test_hook_that_fails_after_a_reservation_does_not_lose_the_memory():
    pytest.importorskip("cupy")
    from cupy.cuda.memory_hook import MemoryHook

    class Bad(MemoryHook):
        name = "bad"

        def alloc_postprocess(self, **facts):
            raise Odd("hook")

    theatre = Theatre()
    with Bad(), pytest.raises(Odd):
        theatre.get("a", 100, 0)
    theatre.check()
    theatre.get("a", 100, 0)
    theatre.finish()


@pytest.mark.parametrize("way", ["argument", "current", "current on another device"])
def test_stream_is_kept_alive_by_its_cache_however_it_was_named(way):
    # Its handle must not come back for another stream while work on cached blocks runs.
    sim = SimDevice(CAPACITY, devices=2, on_race="record", recycle_handles=True, costs=NO_COSTS)
    pool = CachePool(sim)

    def request(stream):
        if way == "argument":
            return pool.allocate(5000, stream=stream, device=1)
        if way == "current":
            with sim.use(1), stream:
                return pool.allocate(5000)
        with stream:
            return pool.allocate(5000, device=1)  # device 0 is current

    stream = sim.stream(1)
    allocation = request(stream)
    stream.launch(1.0, writes=allocation)
    del allocation, stream
    again = request(sim.stream(1))
    assert again.size == 5120
    assert sim.races == []
    pool.check()


def test_request_beyond_the_address_space_is_counted_on_the_device_it_names():
    sim = SimDevice(CAPACITY, devices=2)
    pool = CachePool(sim)
    with pytest.raises(OutOfMemoryError) as caught:
        pool.allocate(2**47 + 1, device=1)
    assert caught.value.report.device == 1
    assert [pool.memory_stats(d)["num_ooms"] for d in (0, 1)] == [0, 1]


@pytest.mark.xfail(reason="a stream destroyed by hand while the pool holds it: needs stream ids")
@pytest.mark.parametrize("way", ["argument", "current"])
def test_stream_under_the_handle_of_a_destroyed_one_is_kept_alive_too(way):
    # first is destroyed by its owner, idle; second gets its handle and dies busy; third next.
    sim = SimDevice(CAPACITY, on_race="record", recycle_handles=True, costs=NO_COSTS)
    pool = CachePool(sim)

    def request(stream):
        if way == "argument":
            return pool.allocate(5000, stream=stream)
        with stream:
            return pool.allocate(5000)

    first = sim.stream()
    request(first).release()
    first.destroy()
    second = sim.stream()
    assert second.handle == first.handle
    allocation = request(second)
    second.launch(1.0, writes=allocation)
    del allocation, second
    assert request(sim.stream()).size == 5120
    assert sim.races == []
