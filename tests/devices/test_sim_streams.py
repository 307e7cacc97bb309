"""Streams and events on the virtual clock; times are computed by hand."""

import math
from itertools import pairwise

import pytest

from cachepool.devices.sim import DEFAULT_COSTS, NO_COSTS, SimDevice
from cachepool.errors import DeviceError


@pytest.fixture
def sim():
    """A machine whose calls take no time, so that only the work does."""
    return SimDevice(costs=NO_COSTS, devices=2)


class TestTime:
    def test_work_of_one_stream_runs_one_after_the_other(self, sim):
        stream = sim.stream()
        stream.launch(2.0)
        stream.launch(3.0)
        assert sim.now == 0
        stream.synchronize()
        assert sim.now == 5

    def test_streams_run_side_by_side(self, sim):
        for seconds in (2.0, 3.0, 1.0):
            sim.stream(blocking=False).launch(seconds)
        sim.synchronize(0)
        assert sim.now == 3

    def test_work_does_not_start_before_it_is_enqueued(self, sim):
        stream = sim.stream()
        sim.advance(10)
        stream.launch(1)
        stream.synchronize()
        assert sim.now == 11

    def test_the_host_runs_on_while_the_device_works(self, sim):
        stream = sim.stream()
        stream.launch(5.0)
        sim.advance(3.0)
        stream.synchronize()
        assert sim.now == 5
        stream.synchronize()
        assert sim.now == 5

    def test_an_event_completes_with_the_work_before_it(self, sim):
        stream = sim.stream()
        stream.launch(2.0)
        event = stream.record()
        stream.launch(4.0)
        event.synchronize()
        assert sim.now == 2
        assert (event.done, stream.done) == (True, False)

    def test_an_event_is_done_from_the_very_end_of_its_work_on(self, sim):
        stream = sim.stream()
        stream.launch(2.0)
        event = stream.record()
        sim.advance(1.75)
        assert not event.done
        sim.advance(0.25)
        assert event.done

    def test_a_wait_delays_only_what_comes_after_it(self, sim):
        first, second = sim.stream(), sim.stream()
        first.launch(5.0)
        second.launch(1.0)
        before = second.record()
        second.wait(first.record())
        second.launch(1.0)
        before.synchronize()
        assert sim.now == 1
        second.synchronize()
        assert sim.now == 6

    def test_a_wait_is_for_the_event_as_recorded_then(self, sim):
        first, second = sim.stream(), sim.stream()
        first.launch(1.0)
        event = first.record()
        second.wait(event)
        first.launch(8.0)
        first.record(event)
        second.launch(1.0)
        second.synchronize()
        assert sim.now == 2

    def test_waits_work_across_devices(self, sim):
        far, near = sim.stream(1), sim.stream(0)
        far.launch(4.0)
        near.wait(far.record())
        near.launch(1.0)
        sim.synchronize(0)
        assert sim.now == 5

    def test_synchronize_of_a_device_waits_for_that_device_only(self, sim):
        sim.stream(0).launch(1.0)
        sim.stream(1).launch(9.0)
        sim.synchronize(0)
        assert sim.now == 1
        with sim.use(1):
            sim.synchronize()
        assert sim.now == 9

    def test_double_buffering_hides_the_copies(self, sim):
        """Four rounds of copy 2 s, compute 3 s, two buffers: 2 + 4 x 3 s, not 4 x 5 s."""
        copy, compute = sim.stream(blocking=False), sim.stream(blocking=False)
        buffers = [(sim.reserve(512, 0), 512) for _ in range(2)]
        free = [sim.event(), sim.event()]
        for turn in range(4):
            copy.wait(free[turn % 2])
            copy.launch(2.0, writes=buffers[turn % 2])
            compute.wait(copy.record())
            compute.launch(3.0, reads=buffers[turn % 2])
            compute.record(free[turn % 2])
        sim.synchronize(0)
        assert sim.now == 14

    def test_a_single_buffer_makes_copies_and_computing_take_turns(self, sim):
        copy, compute = sim.stream(blocking=False), sim.stream(blocking=False)
        buffer = (sim.reserve(512, 0), 512)
        for _ in range(4):
            copy.launch(2.0, writes=buffer)
            compute.wait(copy.record())
            compute.launch(3.0, reads=buffer)
            copy.wait(compute.record())
        sim.synchronize(0)
        assert sim.now == 20

    def test_work_without_end_is_never_done_and_cannot_be_waited_for(self, sim):
        stream = sim.stream()
        stream.launch(math.inf)
        event = stream.record()
        sim.advance(1e9)
        assert not event.done
        for synchronize in (stream.synchronize, event.synchronize, sim.synchronize):
            with pytest.raises(DeviceError, match=r"would never return: work on it has no end"):
                synchronize()
        assert sim.now == 1e9


class TestLegacyStream:
    def test_its_kernels_wait_for_those_of_blocking_streams_and_hold_them_up(self, sim):
        legacy, first, second = sim.default_stream(), sim.stream(), sim.stream()
        first.launch(2.0)
        legacy.launch(1.0)
        second.launch(4.0)
        second.synchronize()
        assert sim.now == 7

    def test_non_blocking_streams_ignore_it(self, sim):
        legacy, free = sim.default_stream(), sim.stream(blocking=False)
        legacy.launch(5.0)
        free.launch(1.0)
        free.synchronize()
        assert sim.now == 1
        legacy.launch(1.0)
        legacy.synchronize()
        assert sim.now == 6

    def test_it_is_one_for_each_device(self, sim):
        sim.default_stream(1).launch(5.0)
        stream = sim.stream(0)
        stream.launch(1.0)
        stream.synchronize()
        assert sim.now == 1

    def test_per_thread_default_streams_are_ordered_with_it(self, sim):
        sim.default_stream().launch(5.0)
        sim.per_thread_stream.launch(1.0)
        sim.per_thread_stream.synchronize()
        assert sim.now == 6

    def test_a_wait_without_a_kernel_on_a_blocking_stream_does_not_delay_it(self, sim):
        legacy, waiting, busy = sim.default_stream(), sim.stream(), sim.stream(blocking=False)
        busy.launch(9.0)
        waiting.wait(busy.record())
        legacy.launch(1.0)
        legacy.synchronize()
        assert sim.now == 1

    def test_kernels_of_a_destroyed_blocking_stream_still_hold_it_up(self, sim):
        legacy, stream = sim.default_stream(), sim.stream()
        stream.launch(3.0)
        stream.destroy()
        sim.stream()
        legacy.launch(1.0)
        legacy.synchronize()
        assert sim.now == 4


class TestCosts:
    def test_the_defaults_are_the_documented_ones(self):
        sim = SimDevice()
        stream = sim.stream()
        times = [sim.now]

        def step(result=None):
            times.append(sim.now)
            return result

        ptr = step(sim.reserve(512, 0))
        step(sim.release(ptr, 512, 0))
        step(stream.launch(0.0))
        event = step(stream.record())
        step(stream.wait(event))
        step(event.done)
        step(stream.done)
        step(stream.synchronize())
        spent = [b - a for a, b in pairwise(times)]
        assert spent == pytest.approx([150e-6, 50e-6, 0, 1e-6, 1e-6, 1e-6, 1e-6, 1e-6])

    def test_those_not_named_keep_their_default(self):
        sim = SimDevice(costs={"launch": 4e-6})
        sim.stream().launch(1.0)
        sim.reserve(512, 0)
        assert sim.now == pytest.approx(154e-6)
        assert DEFAULT_COSTS["launch"] == 0

    def test_a_launch_is_paid_before_it_is_enqueued(self):
        sim = SimDevice(costs={**NO_COSTS, "launch": 0.5})
        stream = sim.stream()
        stream.launch(2.0)
        stream.launch(2.0)
        stream.synchronize()
        assert sim.now == 4.5

    def test_calls_are_counted_by_name_and_launches_are_not(self, sim):
        stream = sim.stream()
        ptr = sim.reserve(512, 0)
        stream.launch(1.0)
        event = stream.record()
        stream.wait(event)
        assert not event.done
        assert not stream.done
        event.synchronize()
        stream.synchronize()
        sim.synchronize()
        sim.release(ptr, 512, 0)
        assert sim.calls == {
            "reserve": 1,
            "release": 1,
            "record": 1,
            "wait": 1,
            "query": 1,
            "query_stream": 1,
            "synchronize": 3,
        }

    def test_the_counter_given_out_is_a_copy(self, sim):
        before = sim.calls
        sim.reserve(512, 0)
        assert before["reserve"] == 0
        assert sim.calls - before == {"reserve": 1}


class TestEvents:
    def test_a_never_recorded_event_answers_done_and_its_wait_does_nothing(self, sim):
        busy, other = sim.stream(), sim.stream()
        busy.launch(5.0)
        event = sim.event()
        assert event.done
        event.synchronize()
        other.wait(event)
        other.launch(1.0)
        other.synchronize()
        assert sim.now == 1
        assert "never recorded" in repr(event)

    def test_an_event_of_an_idle_stream_is_done_at_once(self, sim):
        event = sim.stream().record()
        assert event.done
        assert repr(event) == "<SimEvent of device 0: completes at 0 s>"

    def test_an_event_outlives_its_stream(self, sim):
        stream, other = sim.stream(), sim.stream()
        stream.launch(3.0)
        event = stream.record()
        stream.destroy()
        other.wait(event)
        other.launch(1.0)
        other.synchronize()
        assert sim.now == 4

    def test_record_returns_the_event_it_was_given(self, sim):
        event = sim.event(1)
        assert sim.stream(1).record(event) is event

    def test_only_streams_of_its_device_record_it(self, sim):
        with pytest.raises(
            ValueError, match="event must be of the stream's device 1, got <SimEvent of d"
        ):
            sim.stream(1).record(sim.event(0))

    @pytest.mark.parametrize("call", ["record", "wait"])
    def test_an_event_of_another_machine_is_refused(self, sim, call):
        with pytest.raises(ValueError, match="event must be of the stream's own SimDevice"):
            getattr(sim.stream(), call)(SimDevice().event())

    @pytest.mark.parametrize(("call", "given"), [("record", 5), ("wait", None)])
    def test_anything_else_than_an_event_is_refused(self, sim, call, given):
        with pytest.raises(TypeError, match=f"event must be a SimEvent, got {given}"):
            getattr(sim.stream(), call)(given)


@pytest.mark.parametrize(
    ("seconds", "error"),
    [(-1, ValueError), (math.nan, ValueError), ("1", TypeError), (True, TypeError)],
)
def test_seconds_must_be_a_number_that_is_not_negative(sim, seconds, error):
    with pytest.raises(error, match="seconds must be seconds"):
        sim.stream().launch(seconds)
    with pytest.raises(error, match="seconds must be seconds"):
        sim.advance(seconds)


def test_host_time_cannot_advance_for_ever(sim):
    with pytest.raises(ValueError, match=r"seconds must be seconds in \[0, inf\), got inf"):
        sim.advance(math.inf)
