"""Planned faults and interruptions: which call they hit, what the call leaves behind."""

import threading

import pytest

from cachepool.devices.sim import NO_COSTS, SimDevice
from cachepool.errors import DeviceError, DeviceFullError, RaceError


@pytest.fixture
def sim():
    return SimDevice("1MiB", costs=NO_COSTS)


def outcomes(call, times):
    """Return which of so many calls went well."""
    result = []
    for _ in range(times):
        try:
            call()
            result.append(True)
        except DeviceError:
            result.append(False)
    return result


class TestFail:
    def test_the_next_call_fails_once(self, sim):
        sim.fail("synchronize")
        assert outcomes(sim.synchronize, 3) == [False, True, True]

    def test_the_nth_call_fails(self, sim):
        sim.fail("synchronize", at=3)
        assert outcomes(sim.synchronize, 4) == [True, True, False, True]

    def test_several_in_a_row_fail(self, sim):
        sim.fail("synchronize", at=2, times=2)
        assert outcomes(sim.synchronize, 5) == [True, False, False, True, True]

    def test_all_fail_for_ever_until_removed(self, sim):
        fault = sim.fail("synchronize", at=2, times=None)
        assert outcomes(sim.synchronize, 5) == [True, False, False, False, False]
        fault.remove()
        fault.remove()
        assert outcomes(sim.synchronize, 2) == [True, True]

    def test_other_calls_do_not_count(self, sim):
        sim.fail("synchronize", at=2)
        sim.stream().record()
        assert outcomes(sim.synchronize, 3) == [True, False, True]

    def test_plans_count_on_their_own(self, sim):
        sim.fail("synchronize", at=1)
        sim.fail("synchronize", at=3)
        assert outcomes(sim.synchronize, 4) == [False, True, False, True]

    def test_reserve_fails_as_a_full_device_does(self, sim):
        sim.fail("reserve")
        with pytest.raises(DeviceFullError, match="simulated fault in reserve"):
            sim.reserve(512, 0)
        assert sim.mem_info(0)[0] == 2**20
        assert sim.reserve(512, 0)

    def test_the_error_may_be_an_instance_or_a_class(self, sim):
        error = OSError("bus")
        sim.fail("reserve", error=error)
        sim.fail("release", error=OSError)
        with pytest.raises(OSError, match="bus") as caught:
            sim.reserve(512, 0)
        assert caught.value is error
        with pytest.raises(OSError, match="simulated fault in release"):
            sim.release(sim.reserve(512, 0), 512, 0)

    def test_a_failed_call_is_counted_and_takes_its_time(self):
        sim = SimDevice()
        sim.fail("reserve")
        with pytest.raises(DeviceFullError):
            sim.reserve(512, 0)
        assert sim.calls == {"reserve": 1}
        assert sim.now == 150e-6

    def test_its_repr_says_what_is_to_come(self, sim):
        assert repr(sim.fail("wait", at=3)) == "<Fault in wait: after 2 calls, 1 times>"


class TestFailedCallsChangeNothing:
    def test_release(self, sim):
        ptr = sim.reserve(512, 0)
        sim.fail("release")
        with pytest.raises(DeviceError):
            sim.release(ptr, 512, 0)
        assert sim.outstanding() == {ptr: 512}

    def test_record_leaves_the_event_as_it_was(self, sim):
        stream, event = sim.stream(), sim.event()
        stream.launch(5.0)
        sim.fail("record")
        with pytest.raises(DeviceError, match="simulated fault in record"):
            stream.record(event)
        assert event.done

    def test_wait_orders_nothing(self, sim):
        block = sim.reserve(512, 0), 512
        first, second = sim.stream(), sim.stream()
        first.launch(5.0, writes=block)
        event = first.record()
        sim.fail("wait")
        with pytest.raises(DeviceError):
            second.wait(event)
        with pytest.raises(RaceError):
            sim.handed_out(*block, 0, second.handle)

    @pytest.mark.parametrize("call", ["query", "query_stream", "synchronize"])
    def test_queries_and_synchronize_observe_nothing(self, sim, call):
        block = sim.reserve(512, 0), 512
        stream = sim.stream()
        stream.launch(5.0, writes=block)
        event = stream.record()
        sim.advance(9.0)
        sim.fail(call)
        ask = {
            "query": lambda: event.done,
            "query_stream": lambda: stream.done,
            "synchronize": event.synchronize,
        }
        with pytest.raises(DeviceError):
            ask[call]()
        with pytest.raises(RaceError):
            sim.release(*block, 0)

    def test_launch_enqueues_nothing(self, sim):
        stream = sim.stream()
        sim.fail("launch")
        with pytest.raises(DeviceError):
            stream.launch(5.0)
        assert stream.done


class TestDuring:
    def test_the_function_runs_once_inside_the_next_call(self, sim):
        ran = []
        sim.during("synchronize", lambda: ran.append(dict(sim.calls)))
        sim.stream().record()
        assert ran == []
        sim.synchronize()
        sim.synchronize()
        assert ran == [{"record": 1, "synchronize": 1}]

    def test_work_enqueued_inside_a_record_is_not_covered_by_it(self, sim):
        block = sim.reserve(512, 0), 512
        first, second = sim.stream(), sim.stream()
        sim.during("record", lambda: first.launch(1.0, writes=block))
        second.wait(first.record())
        with pytest.raises(RaceError):
            second.launch(1.0, writes=block)

    def test_work_enqueued_at_the_start_of_a_record_is_covered(self, sim):
        block = sim.reserve(512, 0), 512
        first, second = sim.stream(), sim.stream()
        sim.during("record", lambda: first.launch(1.0, writes=block), when="start")
        second.wait(first.record())
        second.launch(1.0, writes=block)
        assert sim.races == []

    def test_a_query_that_answered_done_stays_so_though_work_came_in_between(self, sim):
        stream = sim.stream()
        sim.during("query_stream", lambda: stream.launch(1.0))
        assert stream.done
        assert not stream.done

    def test_another_process_may_take_the_room_first(self, sim):
        sim.during("reserve", lambda: sim.occupy("1MiB"), when="start")
        with pytest.raises(DeviceFullError, match="1,048,576 taken by others"):
            sim.reserve(512, 0)

    def test_calls_made_by_the_function_are_not_interrupted_again(self, sim):
        ran = []
        sim.during("reserve", lambda: ran.append(sim.reserve(512, 0)))
        outer = sim.reserve(512, 0)
        assert ran == [outer + 512]

    def test_it_runs_though_the_call_fails(self, sim):
        ran = []
        sim.during("reserve", lambda: ran.append("end"))
        sim.during("reserve", lambda: ran.append("start"), when="start")
        sim.fail("reserve")
        with pytest.raises(DeviceFullError):
            sim.reserve(512, 0)
        assert ran == ["start", "end"]

    def test_what_it_raises_comes_out_of_the_call_which_has_happened(self, sim):
        def trip():
            raise KeyError("oops")

        sim.during("reserve", trip)
        with pytest.raises(KeyError, match="oops"):
            sim.reserve(512, 0)
        assert sim.reserved() == 512

    @pytest.mark.parametrize("when", ["start", "end"])
    def test_it_runs_without_the_lock_so_that_threads_can_act(self, sim, when, in_other_thread):
        sim.during("reserve", lambda: in_other_thread(lambda: sim.reserve(512, 0)), when=when)
        sim.reserve(512, 0)
        assert sim.reserved() == 1024


@pytest.fixture
def in_other_thread():
    """Run a function in another thread and wait for it, but not for ever."""

    def run(fn):
        thread = threading.Thread(target=fn, daemon=True)
        thread.start()
        thread.join(timeout=60)
        assert not thread.is_alive(), "the machine's lock is held"

    return run


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda sim: sim.fail("malloc"),
            ValueError,
            "call must be one of 'reserve', .*got 'malloc'",
        ),
        (lambda sim: sim.fail(5), ValueError, "call must be one of .*; got 5"),
        (lambda sim: sim.fail("wait", at=0), ValueError, "at must be at least 1, got 0"),
        (lambda sim: sim.fail("wait", at=1.5), TypeError, "at must be an int, got 1.5"),
        (lambda sim: sim.fail("wait", times=0), ValueError, "times must be at least 1, got 0"),
        (lambda sim: sim.fail("wait", error="x"), TypeError, "error must be an exception or .*'x'"),
        (lambda sim: sim.fail("wait", error=int), TypeError, "error must be an exception or"),
        (lambda sim: sim.during("malloc", int), ValueError, "call must be one of .*got 'malloc'"),
        (lambda sim: sim.during("wait", 5), TypeError, "fn must be callable, got 5"),
        (
            lambda sim: sim.during("wait", int, when="x"),
            ValueError,
            "when must be one of 'end', 's",
        ),
    ],
)
def test_wrong_arguments_are_named_and_plan_nothing(sim, call, error, message):
    with pytest.raises(error, match=message):
        call(sim)
    assert not sim._machine.plans
