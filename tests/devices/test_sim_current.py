"""Handles, keys, current devices and streams, and the end of a stream."""

import threading

import pytest

from cachepool.devices.sim import NO_COSTS, SimDevice
from cachepool.errors import DeviceError


@pytest.fixture
def sim():
    return SimDevice(costs=NO_COSTS, devices=2)


def in_thread(fn):
    """Return what a function returns when another thread runs it."""
    results = []
    thread = threading.Thread(target=lambda: results.append(fn()))
    thread.start()
    thread.join()
    return results[0]


class TestCurrentDevice:
    def test_it_is_0_at_first_and_restored_after_use(self, sim):
        with sim.use(1):
            with sim.use(0):
                assert sim.current() == 0
            assert sim.current() == 1
        assert sim.current() == 0
        assert sim.count() == 2

    def test_it_is_restored_after_an_error(self, sim):
        with pytest.raises(KeyError), sim.use(1):
            raise KeyError
        assert sim.current() == 0

    def test_it_belongs_to_the_thread(self, sim):
        with sim.use(1):
            assert in_thread(sim.current) == 0


class TestCurrentStream:
    def test_it_is_the_legacy_default_stream_at_first(self, sim):
        assert sim.current_stream() == 0
        assert sim.current_stream_owner() is sim.default_stream()

    def test_with_blocks_nest_and_restore(self, sim):
        first, second = sim.stream(), sim.stream()
        with first as entered:
            assert entered is first
            with second, first:
                assert sim.current_stream() == first.handle
            assert sim.current_stream() == first.handle
            with second:
                assert sim.current_stream_owner() is second
        assert sim.current_stream() == 0

    def test_it_belongs_to_the_thread(self, sim):
        with sim.stream():
            assert in_thread(sim.current_stream) == 0

    def test_a_stream_becomes_current_on_its_own_device_as_in_cupy(self, sim):
        far = sim.stream(1)
        with far:
            assert sim.current_stream() == 0
            with sim.use(1):
                assert sim.current_stream() == far.handle
        with sim.use(1):
            assert sim.current_stream_owner() is sim.default_stream(1)

    def test_blocks_left_out_of_order_are_an_error_and_change_nothing(self, sim):
        first, second = sim.stream(), sim.stream()
        first.__enter__()
        second.__enter__()
        with pytest.raises(RuntimeError, match="is not the stream that this thread entered last"):
            first.__exit__(None, None, None)
        assert sim.current_stream_owner() is second
        second.__exit__(None, None, None)
        assert sim.current_stream_owner() is first

    def test_a_thread_cannot_leave_what_another_has_entered(self, sim):
        def leave(stream):
            with pytest.raises(RuntimeError, match="in the thread that entered them"):
                stream.__exit__(None, None, None)
            return True

        with sim.stream() as stream:
            assert in_thread(lambda: leave(stream))
            assert sim.current_stream_owner() is stream

    def test_its_owner_keeps_it_alive(self, sim):
        with sim.stream():
            handle = sim.current_stream()
            owner = sim.current_stream_owner()
        assert sim.stream_key(handle) == owner.key
        del owner
        with pytest.raises(ValueError, match=f"{handle} is no live stream's handle"):
            sim.stream_key(handle)


class TestPerThreadStreams:
    def test_each_thread_has_its_own_under_one_handle_and_two_keys(self, sim):
        mine = sim.per_thread_stream

        def other():
            stream = sim.per_thread_stream
            return stream.handle, stream.key, stream.id

        handle, key, number = in_thread(other)
        assert mine.handle == handle == 2
        assert mine.key < 0
        assert key < 0
        assert mine.key != key
        assert mine.id != number
        assert sim.per_thread_stream is mine

    def test_each_device_has_its_own(self, sim):
        here = sim.per_thread_stream
        with sim.use(1):
            there = sim.per_thread_stream
        assert (here.device, there.device) == (0, 1)
        assert here.key != there.key

    def test_current_stream_answers_the_key_and_not_the_handle(self, sim):
        with sim.per_thread_stream as stream:
            assert sim.current_stream() == stream.key < 0
            assert sim.stream_key(2) == stream.key

    def test_handle_2_means_that_of_the_asking_thread(self, sim):
        mine = sim.stream_key(2)
        assert in_thread(lambda: sim.stream_key(2)) != mine
        assert in_thread(lambda: sim.stream_key(mine)) == mine

    def test_keys_are_not_used_again_when_threads_end(self):
        sim = SimDevice(recycle_handles=True)
        keys = [in_thread(lambda: sim.per_thread_stream.key) for _ in range(4)]
        assert len(set(keys)) == 4
        assert sim.stream().handle > 2

    def test_they_end_with_their_thread_and_their_work_runs_on(self, sim):
        def work():
            sim.per_thread_stream.launch(3.0)
            return sim.per_thread_stream.key

        key = in_thread(work)
        with pytest.raises(ValueError, match=f"{key} is no live stream's handle or key"):
            sim.stream_key(key)
        sim.synchronize(0)
        assert sim.now == 3


class TestHandles:
    def test_the_default_stream_has_0_on_each_device(self, sim):
        assert sim.default_stream(0).handle == sim.default_stream(1).handle == 0
        assert sim.default_stream(0).id != sim.default_stream(1).id

    def test_created_streams_have_unique_positive_ones(self, sim):
        streams = [sim.stream(device) for device in (0, 1, 0, 1)]
        assert len({stream.handle for stream in streams}) == 4
        assert min(stream.handle for stream in streams) > 2

    def test_a_key_is_found_for_a_stream_a_handle_and_a_key(self, sim):
        stream = sim.stream()
        assert sim.stream_key(stream) == stream.key == stream.handle
        assert sim.stream_key(stream.handle) == stream.handle
        assert sim.stream_key(sim.default_stream(1)) == 0
        assert sim.stream_key(0) == sim.stream_key(1) == 0

    def test_a_stream_of_another_machine_is_refused(self, sim):
        with pytest.raises(ValueError, match="stream must be of this SimDevice, got <SimStream"):
            sim.stream_key(SimDevice().stream())

    @pytest.mark.parametrize("handle", [7, -1, 2**60])
    def test_an_int_that_is_no_live_handle_is_refused(self, sim, handle):
        with pytest.raises(ValueError, match=f"{handle} is no live stream's handle or key"):
            sim.stream_key(handle)

    @pytest.mark.parametrize("stream", [None, "0", 1.0, True])
    def test_anything_else_is_refused(self, sim, stream):
        with pytest.raises(TypeError, match=r"stream must be a SimStream or a handle \(int\)"):
            sim.stream_key(stream)

    def test_they_are_not_reused_unless_asked_for(self, sim):
        first = sim.stream()
        first.destroy()
        assert sim.stream().handle != first.handle

    def test_recycled_handle_names_the_next_stream_which_has_another_id(self):
        sim = SimDevice(recycle_handles=True)
        first = sim.stream()
        first.destroy()
        second = sim.stream(blocking=False)
        assert second.handle == first.handle
        assert second.id != first.id
        assert sim.stream_key(first.handle) == sim.stream_key(second)
        assert sim.stream().handle != second.handle

    def test_the_handle_destroyed_last_is_recycled_first(self):
        sim = SimDevice(recycle_handles=True)
        first, second = sim.stream(), sim.stream()
        first.destroy()
        second.destroy()
        assert sim.stream().handle == second.handle


class TestEndOfAStream:
    def test_it_takes_no_more_calls_and_its_work_still_runs(self, sim):
        stream = sim.stream()
        stream.launch(3.0)
        stream.destroy()
        event = sim.event()
        refused = [
            lambda: stream.launch(1.0),
            lambda: stream.record(event),
            lambda: stream.wait(event),
            stream.synchronize,
            lambda: stream.done,
            stream.__enter__,
        ]
        for call in refused:
            with pytest.raises(DeviceError, match=f"stream {stream.id} has been destroyed"):
                call()
        sim.synchronize()
        assert sim.now == 3
        assert "destroyed" in repr(stream)

    def test_its_handle_is_no_live_one(self, sim):
        stream = sim.stream()
        stream.destroy()
        with pytest.raises(ValueError, match="is no live stream's handle"):
            sim.stream_key(stream.handle)
        with pytest.raises(ValueError, match="stream must not be destroyed, got <SimStream"):
            sim.stream_key(stream)

    def test_destroying_twice_does_not_free_the_handle_twice(self):
        sim = SimDevice(recycle_handles=True)
        stream = sim.stream()
        stream.destroy()
        stream.destroy()
        streams = [sim.stream(), sim.stream()]
        assert len({each.handle for each in streams}) == 2

    def test_the_last_reference_ends_it_too(self):
        sim = SimDevice(recycle_handles=True)
        handle = sim.stream().handle
        assert sim.stream().handle == handle

    def test_a_destroyed_stream_that_is_dropped_does_not_end_its_successor(self):
        sim = SimDevice(recycle_handles=True)
        first = sim.stream()
        first.destroy()
        second = sim.stream()
        del first
        assert sim.stream_key(second.handle) == second.key

    @pytest.mark.parametrize("name", ["default_stream", "per_thread_stream"])
    def test_default_streams_cannot_be_destroyed(self, sim, name):
        stream = sim.default_stream() if name == "default_stream" else sim.per_thread_stream
        with pytest.raises(DeviceError, match="a default stream cannot be destroyed: <SimStream"):
            stream.destroy()

    def test_many_streams_leave_nothing_once_their_work_is_observed(self, sim):
        for _ in range(50):
            sim.stream().launch(1.0)
        sim.synchronize(0)
        sim.stream()
        assert len(sim._machine.cards[0].streams) <= 3


def test_the_repr_of_a_stream_has_figures(sim):
    stream = sim.stream(1)
    stream.launch(1.0)
    expected = f"<SimStream {stream.id} of device 1, handle 0x{stream.handle:x}: 1 kernels>"
    assert repr(stream) == expected


@pytest.mark.parametrize("blocking", [0, None, "yes"])
def test_blocking_must_be_a_bool(sim, blocking):
    with pytest.raises(TypeError, match="blocking must be True or False"):
        sim.stream(blocking=blocking)
