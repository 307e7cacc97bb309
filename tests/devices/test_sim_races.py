"""What the happens-before checker calls a race, by hand; `test_sim_order` compares at random."""

import threading
from types import SimpleNamespace

import pytest

from cachepool.devices.sim import NO_COSTS, SimDevice
from cachepool.errors import RaceError


@pytest.fixture
def sim():
    return SimDevice(costs=NO_COSTS, devices=2)


@pytest.fixture
def streams(sim):
    """Three streams of device 0 that know nothing of each other or of the legacy stream."""
    return [sim.stream(blocking=False) for _ in range(3)]


@pytest.fixture
def block(sim):
    return sim.reserve(4096, 0), 4096


def part(block, start, nbytes):
    return block[0] + start, nbytes


class TestConflicts:
    @pytest.mark.parametrize("second", ["reads", "writes"])
    def test_unordered_use_after_a_write_is_a_race(self, streams, block, second):
        streams[0].launch(1.0, writes=block)
        with pytest.raises(RaceError):
            streams[1].launch(1.0, **{second: block})

    def test_unordered_write_after_a_read_is_a_race(self, streams, block):
        streams[0].launch(1.0, reads=block)
        with pytest.raises(RaceError):
            streams[1].launch(1.0, writes=block)

    def test_two_reads_are_none(self, sim, streams, block):
        streams[0].launch(1.0, reads=block)
        streams[1].launch(1.0, reads=block)
        assert sim.races == []

    def test_one_kernel_may_read_and_write_the_same_bytes(self, sim, streams, block):
        streams[0].launch(1.0, reads=block, writes=[block, part(block, 0, 10)])
        assert sim.races == []

    def test_only_bytes_that_overlap_matter(self, sim, streams, block):
        streams[0].launch(1.0, writes=part(block, 0, 100))
        streams[1].launch(1.0, writes=part(block, 100, 100))
        assert sim.races == []
        with pytest.raises(RaceError):
            streams[2].launch(1.0, reads=part(block, 99, 1))

    def test_each_of_several_unordered_readers_is_named(self, sim, streams, block):
        streams[0].launch(1.0, reads=block)
        streams[1].launch(1.0, reads=block)
        with pytest.raises(RaceError, match=r"\(and 1 more, see races\)"):
            streams[2].launch(1.0, writes=block)
        assert [race.earlier.stream for race in sim.races] == [streams[0].id, streams[1].id]

    def test_a_write_hidden_by_an_ordered_write_is_still_found_through_it(self, streams, block):
        streams[0].launch(1.0, writes=block)
        streams[1].wait(streams[0].record())
        streams[1].launch(1.0, writes=block)
        with pytest.raises(RaceError, match=f"write by kernel #1 of stream {streams[1].id}"):
            streams[2].launch(1.0, reads=block)

    def test_a_read_does_not_hide_the_write_before_it(self, streams, block):
        streams[0].launch(1.0, writes=block)
        streams[1].wait(streams[0].record())
        streams[1].launch(1.0, reads=block)
        with pytest.raises(RaceError, match=f"write by kernel #1 of stream {streams[0].id}"):
            streams[2].launch(1.0, reads=block)


class TestPartsOfABlock:
    @pytest.mark.parametrize("offset", [0, 1023, 3072, 4095])
    def test_what_a_write_leaves_on_both_sides_keeps_its_uses(self, sim, streams, block, offset):
        streams[0].launch(1.0, writes=block)
        streams[1].wait(streams[0].record())
        streams[1].launch(1.0, writes=part(block, 1024, 2048))
        with pytest.raises(RaceError, match=f"write by kernel #1 of stream {streams[0].id}"):
            streams[2].launch(1.0, reads=part(block, offset, 1))

    @pytest.mark.parametrize("offset", [0, 1000, 2000, 3000, 4000])
    def test_a_write_over_used_and_unused_bytes_is_noted_on_all(self, streams, block, offset):
        streams[0].launch(1.0, writes=[part(block, 500, 1000), part(block, 2500, 1000)])
        streams[1].wait(streams[0].record())
        streams[1].launch(1.0, writes=block)
        with pytest.raises(RaceError, match=f"write by kernel #1 of stream {streams[1].id}"):
            streams[2].launch(1.0, reads=part(block, offset, 1))

    def test_reads_over_two_writes_keep_them_apart(self, sim, streams, block):
        streams[0].launch(1.0, writes=part(block, 0, 2048))
        streams[1].launch(1.0, writes=part(block, 2048, 2048))
        streams[2].wait(streams[0].record())
        streams[2].wait(streams[1].record())
        streams[2].launch(1.0, reads=block)
        streams[0].launch(1.0, reads=part(block, 0, 2048))
        with pytest.raises(RaceError):
            streams[0].launch(1.0, reads=part(block, 2048, 1))


class TestOrder:
    def test_the_same_stream_is_in_order(self, sim, streams, block):
        streams[0].launch(1.0, writes=block)
        streams[0].launch(1.0, writes=block)
        assert sim.races == []

    def test_a_wait_orders_what_comes_after_it(self, sim, streams, block):
        streams[0].launch(1.0, writes=block)
        streams[1].wait(streams[0].record())
        streams[1].launch(1.0, writes=block)
        assert sim.races == []

    def test_a_wait_does_not_cover_what_came_after_the_record(self, streams, block):
        event = streams[0].record()
        streams[0].launch(1.0, writes=block)
        streams[1].wait(event)
        with pytest.raises(RaceError):
            streams[1].launch(1.0, writes=block)

    def test_a_wait_orders_in_one_direction(self, streams, block):
        streams[1].wait(streams[0].record())
        streams[1].launch(1.0, writes=block)
        with pytest.raises(RaceError):
            streams[0].launch(1.0, writes=block)

    def test_order_is_handed_on_as_it_was_at_the_record(self, sim, streams, block):
        first, second, third = streams
        second.launch(1.0)
        early = second.record()
        first.launch(1.0, writes=block)
        second.wait(first.record())
        third.wait(early)
        with pytest.raises(RaceError):
            third.launch(1.0, writes=block)
        third.wait(second.record())
        third.launch(1.0, writes=block)
        assert len(sim.races) == 1

    def test_a_wait_for_a_never_recorded_event_orders_nothing(self, sim, streams, block):
        streams[0].launch(1.0, writes=block)
        streams[1].wait(sim.event())
        with pytest.raises(RaceError):
            streams[1].launch(1.0, writes=block)

    def test_an_event_recorded_again_no_longer_stands_for_the_old_work(self, streams, block):
        first, second, third = streams
        first.launch(1.0, writes=block)
        event = first.record()
        second.record(event)
        third.wait(event)
        with pytest.raises(RaceError):
            third.launch(1.0, writes=block)

    def test_waits_order_across_devices(self, sim, streams, block):
        far = sim.stream(1)
        streams[0].launch(1.0, writes=block)
        far.wait(streams[0].record())
        far.launch(1.0, writes=block)
        with pytest.raises(RaceError):
            sim.stream(1, blocking=False).launch(1.0, reads=block)

    def test_work_of_a_destroyed_stream_still_counts(self, sim, streams, block):
        streams[0].launch(1.0, writes=block)
        streams[0].destroy()
        with pytest.raises(RaceError):
            streams[1].launch(1.0, writes=block)

    def test_a_recycled_handle_is_another_stream(self):
        sim = SimDevice(recycle_handles=True)
        block = sim.reserve(512, 0), 512
        first = sim.stream(blocking=False)
        first.launch(1.0, writes=block)
        first.destroy()
        second = sim.stream(blocking=False)
        assert second.handle == first.handle
        with pytest.raises(RaceError):
            sim.handed_out(*block, 0, second.handle)
        with pytest.raises(RaceError):
            second.launch(1.0, writes=block)

    def test_per_thread_streams_of_two_threads_are_not_ordered(self, sim, block):
        def work():
            sim.per_thread_stream.launch(1.0, writes=block)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        with pytest.raises(RaceError):
            work()


class TestObservedCompletion:
    @pytest.mark.parametrize("how", ["stream", "event", "device", "query", "query_stream"])
    def test_what_the_host_has_seen_complete_is_before_all_that_follows(
        self, sim, streams, block, how
    ):
        streams[0].launch(1.0, writes=block)
        event = streams[0].record()
        sim.advance(0.5)
        match how:
            case "stream":
                streams[0].synchronize()
            case "event":
                event.synchronize()
            case "device":
                sim.synchronize(0)
            case "query":
                sim.advance(0.5)
                assert event.done
            case "query_stream":
                sim.advance(0.5)
                assert streams[0].done
        streams[1].launch(1.0, writes=block)
        assert sim.races == []

    def test_it_includes_what_the_work_seen_came_after(self, sim, streams, block):
        streams[0].launch(1.0, writes=block)
        streams[1].wait(streams[0].record())
        streams[1].synchronize()
        streams[2].launch(1.0, writes=block)
        assert sim.races == []

    def test_completion_that_nobody_has_observed_is_no_order(self, sim, streams, block):
        streams[0].launch(1.0, writes=block)
        sim.advance(5.0)
        with pytest.raises(RaceError, match="it has ended at 1 s, but nobody has observed that"):
            streams[1].launch(1.0, writes=block)

    def test_a_query_answered_no_observes_nothing(self, sim, streams, block):
        streams[0].launch(1.0, writes=block)
        assert not streams[0].done
        assert not streams[0].record().done
        sim.advance(5.0)
        with pytest.raises(RaceError):
            streams[1].launch(1.0, writes=block)

    def test_an_event_observes_only_what_came_before_its_record(self, sim, streams, block):
        event = streams[0].record()
        streams[0].launch(1.0, writes=block)
        sim.advance(5.0)
        assert event.done
        with pytest.raises(RaceError):
            streams[1].launch(1.0, writes=block)

    def test_synchronize_of_another_device_observes_nothing_here(self, sim, streams, block):
        streams[0].launch(1.0, writes=block)
        sim.synchronize(1)
        with pytest.raises(RaceError):
            streams[1].launch(1.0, writes=block)


class TestLegacyOrder:
    def test_kernels_on_the_legacy_stream_follow_those_on_blocking_streams(self, sim, block):
        legacy, first, second = sim.default_stream(), sim.stream(), sim.stream()
        first.launch(1.0, writes=block)
        legacy.launch(1.0, writes=block)
        second.launch(1.0, writes=block)
        assert sim.races == []

    def test_blocking_streams_are_not_ordered_with_each_other(self, sim, block):
        sim.stream().launch(1.0, writes=block)
        with pytest.raises(RaceError):
            sim.stream().launch(1.0, writes=block)

    def test_a_kernel_on_it_in_between_orders_them_whatever_it_touches(self, sim, block):
        sim.stream().launch(1.0, writes=block)
        sim.default_stream().launch(1.0)
        sim.stream().launch(1.0, writes=block)
        assert sim.races == []

    def test_hand_out_to_it_without_a_kernel_orders_nothing(self, sim, block):
        first, second = sim.stream(), sim.stream()
        first.launch(1.0, writes=block)
        sim.handed_out(*block, 0, 0)
        with pytest.raises(RaceError):
            sim.handed_out(*block, 0, second.handle)

    def test_non_blocking_streams_are_not_ordered_with_it(self, sim, streams, block):
        streams[0].launch(1.0, writes=block)
        with pytest.raises(RaceError):
            sim.default_stream().launch(1.0, writes=block)

    def test_it_is_not_ordered_with_non_blocking_streams_either(self, sim, streams, block):
        sim.default_stream().launch(1.0, writes=block)
        with pytest.raises(RaceError):
            streams[0].launch(1.0, writes=block)

    def test_a_record_on_it_does_not_stand_for_blocking_streams(self, sim, streams, block):
        sim.stream().launch(1.0, writes=block)
        streams[0].wait(sim.default_stream().record())
        with pytest.raises(RaceError):
            streams[0].launch(1.0, writes=block)

    def test_a_record_after_a_kernel_on_it_stands_for_theirs_too(self, sim, streams, block):
        sim.stream().launch(1.0, writes=block)
        sim.default_stream().launch(1.0)
        streams[0].wait(sim.default_stream().record())
        streams[0].launch(1.0, writes=block)
        assert sim.races == []

    def test_a_wait_of_a_blocking_stream_without_a_kernel_is_not_passed_on(
        self, sim, streams, block
    ):
        streams[0].launch(1.0, writes=block)
        waiting = sim.stream()
        waiting.launch(1.0)
        waiting.wait(streams[0].record())
        with pytest.raises(RaceError):
            sim.default_stream().launch(1.0, writes=block)
        waiting.launch(1.0)
        sim.default_stream().launch(1.0, writes=block)
        assert len(sim.races) == 1

    def test_legacy_streams_of_two_devices_are_not_ordered(self, sim, block):
        sim.default_stream(1).launch(1.0, writes=block)
        with pytest.raises(RaceError):
            sim.default_stream(0).launch(1.0, writes=block)


class TestUnreservedMemory:
    @pytest.mark.parametrize("action", ["reads", "writes"])
    def test_use_after_release_is_a_race(self, sim, streams, block, action):
        sim.release(*block, 0)
        with pytest.raises(RaceError, match="these bytes are not reserved"):
            streams[0].launch(1.0, **{action: block})

    def test_one_byte_beyond_the_end_is_one_too(self, sim, streams, block):
        with pytest.raises(RaceError):
            streams[0].launch(1.0, reads=part(block, 4000, 97))
        race = sim.races[0]
        assert (race.start, race.end) == (block[0] + 4096, block[0] + 4097)
        assert (race.device, race.earlier) == (0, None)

    def test_ranges_that_touch_may_be_used_as_one(self, sim, streams, block):
        second = sim.reserve(512, 0)
        assert second == block[0] + 4096
        streams[0].launch(1.0, writes=part(block, 4000, 200))
        assert sim.races == []

    @pytest.mark.parametrize("address", [0, 0x1000, 2**47 + 5])
    def test_addresses_of_no_device_are_named(self, sim, streams, address):
        with pytest.raises(RaceError, match="of no device: no device has such addresses"):
            streams[0].launch(1.0, writes=(address, 8))
        assert sim.races[0].device == -1

    def test_empty_ranges_touch_nothing(self, sim, streams):
        streams[0].launch(1.0, reads=(0, 0), writes=[(0, 0)])
        assert sim.races == []


class TestRelease:
    @pytest.mark.parametrize("action", ["reads", "writes"])
    def test_release_with_work_pending_is_a_race_and_releases_nothing(
        self, sim, streams, block, action
    ):
        streams[0].launch(1.0, **{action: part(block, 100, 4)})
        with pytest.raises(RaceError, match="release of bytes"):
            sim.release(*block, 0)
        assert sim.outstanding() == {block[0]: 4096}

    def test_order_between_streams_is_not_enough(self, sim, streams, block):
        streams[0].launch(1.0, writes=block)
        streams[1].wait(streams[0].record())
        with pytest.raises(RaceError):
            sim.release(*block, 0)
        streams[1].synchronize()
        sim.release(*block, 0)

    def test_order_with_the_legacy_stream_is_not_enough(self, sim, block):
        sim.stream().launch(1.0, writes=block)
        sim.default_stream().launch(1.0)
        with pytest.raises(RaceError):
            sim.release(*block, 0)

    def test_uses_before_the_memory_was_reserved_do_not_count_afterwards(self):
        sim = SimDevice(on_race="record")
        ptr = sim.reserve(512, 0)
        sim.release(ptr, 512, 0)
        sim.stream(blocking=False).launch(1.0, writes=(ptr, 512))
        assert len(sim.races) == 1
        assert sim.reserve(512, 0) == ptr
        sim.handed_out(ptr, 512, 0, sim.default_stream())
        assert len(sim.races) == 1

    def test_memory_reserved_again_is_new(self, sim, streams, block):
        streams[0].launch(1.0, writes=block)
        streams[0].synchronize()
        sim.release(*block, 0)
        assert sim.reserve(4096, 0) == block[0]
        sim.handed_out(*block, 0, streams[1].handle)
        streams[1].launch(1.0, writes=block)
        assert sim.races == []

    def test_neighbours_keep_their_uses(self, sim, streams, block):
        other = sim.reserve(512, 0)
        streams[0].launch(1.0, writes=(other, 512))
        sim.release(*block, 0)
        with pytest.raises(RaceError):
            streams[1].launch(1.0, reads=(other, 512))


class TestHandOut:
    @pytest.mark.parametrize("action", ["reads", "writes"])
    def test_it_is_held_to_the_same_as_a_write(self, sim, streams, block, action):
        streams[0].launch(1.0, **{action: block})
        with pytest.raises(RaceError, match=f"hand-out to stream {streams[1].id} of bytes"):
            sim.handed_out(*block, 0, streams[1].handle)
        streams[1].wait(streams[0].record())
        sim.handed_out(*block, 0, streams[1].handle)

    def test_it_is_not_remembered_as_a_use(self, sim, streams, block):
        sim.handed_out(*block, 0, streams[0].handle)
        sim.handed_out(*block, 0, streams[1])
        sim.release(*block, 0)
        assert sim.races == []

    def test_bytes_not_reserved_on_that_device_are_a_race(self, sim, streams, block):
        with pytest.raises(RaceError, match="device 1: these bytes are not reserved"):
            sim.handed_out(*block, 1, streams[0].handle)

    def test_no_bytes_are_always_right(self, sim):
        sim.handed_out(0, 0, 0, 0)

    def test_a_negative_key_is_a_per_thread_stream(self, sim, block):
        stream, other = sim.per_thread_stream, sim.stream()
        stream.launch(1.0, writes=block)
        sim.handed_out(*block, 0, stream.key)
        with pytest.raises(RaceError):
            sim.handed_out(*block, 0, other.key)

    def test_it_takes_no_time_and_is_no_call(self, block):
        sim = SimDevice()
        ptr = sim.reserve(512, 0)
        now, calls = sim.now, sim.calls
        sim.handed_out(ptr, 512, 0, 0)
        assert (sim.now, sim.calls) == (now, calls)

    @pytest.mark.parametrize(
        ("arguments", "error", "message"),
        [
            ((-1, 5, 0, 0), ValueError, "ptr must be at least 0, got -1"),
            ((5, -1, 0, 0), ValueError, "nbytes must be at least 0, got -1"),
            (("a", 1, 0, 0), TypeError, "ptr must be an int, got 'a'"),
            ((5, 5, 0, 77), ValueError, "77 is no live stream's handle"),
            ((5, 5, 0, "s"), TypeError, "stream must be a SimStream or a handle"),
        ],
    )
    def test_wrong_arguments_are_named(self, sim, arguments, error, message):
        with pytest.raises(error, match=message):
            sim.handed_out(*arguments)


class TestReports:
    def test_the_message_names_bytes_uses_and_the_missing_order(self, sim, streams, block):
        first, second, _ = streams
        first.launch(0.5)
        second.wait(first.record())
        first.launch(1.0, writes=part(block, 0, 2048))
        with pytest.raises(RaceError) as caught:
            second.launch(1.0, reads=part(block, 1024, 2048))
        start = block[0] + 1024
        assert str(caught.value) == (
            f"read by stream {second.id} of bytes 0x{start:x} to 0x{start + 1024:x} "
            f"(1,024 bytes (1.0 KiB)) of device 0 is not ordered after the write by kernel #2 of "
            f"stream {first.id} (0.5 to 1.5 s): stream {second.id} is ordered after kernels up to "
            f"#1 of stream {first.id}, the host has seen complete none of stream {first.id}"
        )

    def test_a_raised_launch_is_not_enqueued_and_leaves_no_use(self, sim, streams, block):
        streams[0].launch(1.0, writes=block)
        other = sim.reserve(512, 0)
        with pytest.raises(RaceError):
            streams[1].launch(9.0, reads=block, writes=(other, 512))
        streams[2].launch(1.0, writes=(other, 512))
        streams[1].synchronize()
        assert sim.now == 0
        assert len(sim.races) == 1

    def test_recorded_races_go_through(self, block):
        sim = SimDevice(on_race="record", costs=NO_COSTS)
        ptr = sim.reserve(512, 0)
        first, second = sim.stream(blocking=False), sim.stream(blocking=False)
        first.launch(1.0, writes=(ptr, 512))
        second.launch(2.0, writes=(ptr, 512))
        sim.release(ptr, 512, 0)
        second.launch(1.0, writes=[(ptr, 512), (0, 8)])
        laters = [race.later for race in sim.races]
        writes = f"write by stream {second.id}"
        assert laters == [writes, "release", "release", writes, writes]
        sim.synchronize(0)
        assert sim.now == 3
        assert sim.outstanding() == {}

    def test_the_list_given_out_is_a_copy(self, sim, streams):
        before = sim.races
        with pytest.raises(RaceError):
            streams[0].launch(1.0, writes=(0, 8))
        assert (len(before), len(sim.races)) == (0, 1)

    def test_arrays_and_allocations_are_checked_as_their_bytes(self, sim, streams, block):
        array = SimpleNamespace(data=SimpleNamespace(ptr=block[0] + 8), nbytes=16)
        allocation = SimpleNamespace(ptr=block[0], size=4096)
        streams[0].launch(1.0, writes=array)
        with pytest.raises(RaceError) as caught:
            streams[1].launch(1.0, reads=[allocation])
        assert f"0x{block[0] + 8:x} to 0x{block[0] + 24:x}" in str(caught.value)


class TestMemoryOfTheChecker:
    def test_overwriting_in_order_keeps_one_piece(self, sim, streams, block):
        for _ in range(200):
            streams[0].launch(1.0, reads=part(block, 8, 8), writes=block)
        assert len(sim._machine.cards[0].uses) == 1

    def test_pieces_of_finished_work_are_swept(self, sim, streams):
        ptr = sim.reserve(2**20, 0)
        for turn in range(20):
            for offset in range(turn, 2**18, 1024):
                streams[0].launch(1.0, writes=(ptr + offset, 1))
            streams[0].synchronize()
        assert len(sim._machine.cards[0].uses) <= 1024

    def test_many_readers_of_one_stream_are_one(self, sim, streams, block):
        for _ in range(200):
            streams[0].launch(1.0, reads=block)
            streams[1].launch(1.0, reads=block)
        with pytest.raises(RaceError):
            streams[2].launch(1.0, writes=block)
        assert len(sim.races) == 2

    def test_clocks_forget_streams_that_are_over(self, sim, streams):
        for _ in range(50):
            passing = sim.stream(blocking=False)
            passing.launch(1.0)
            streams[0].wait(passing.record())
            passing.synchronize()
        streams[0].record()
        assert len(streams[0]._state.clock) == 0
