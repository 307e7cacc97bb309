"""Memory of the simulated device: reserve, release, capacity, other processes."""

import doctest
from itertools import pairwise

import pytest

from cachepool.devices.protocol import Device
from cachepool.devices.sim import SimDevice, device
from cachepool.errors import DeviceFullError

KIB, MIB, GIB = 2**10, 2**20, 2**30


def satisfies_the_protocol(candidate: Device) -> Device:
    return candidate


def test_the_example_in_the_documentation_runs():
    result = doctest.testmod(device)
    assert result.attempted >= 10
    assert result.failed == 0


def test_it_is_a_device_called_sim():
    assert satisfies_the_protocol(SimDevice()).name == "sim"


@pytest.mark.parametrize("capacity", [8 * GIB, "8GiB", "8 gb"])
def test_capacity_is_bytes_or_text(capacity):
    assert SimDevice(capacity).mem_info(0) == (8 * GIB, 8 * GIB)


def test_unlimited_capacity_reports_a_total_of_two_to_the_47():
    sim = SimDevice()
    sim.reserve(MIB, 0)
    assert sim.mem_info(0) == (2**47 - MIB, 2**47)


def test_bytes_are_counted_rounded_up_to_512():
    sim = SimDevice("1GiB")
    ptr = sim.reserve(513, 0)
    assert sim.reserved() == 1024
    assert sim.outstanding() == {ptr: 1024}
    assert sim.mem_info(0) == (GIB - 1024, GIB)


def test_addresses_look_like_those_of_cuda_and_never_overlap_across_devices():
    sim = SimDevice(devices=3)
    ranges = sorted((sim.reserve(4 * GIB, device), device) for device in (2, 0, 1, 0, 2))
    for (low, _), (high, _) in pairwise(ranges):
        assert low + 4 * GIB <= high
    assert all(2**46 < ptr < 2**47 - 4 * GIB for ptr, _ in ranges)


@pytest.mark.parametrize("devices", [1, 2, 3, 64])
def test_the_last_address_of_the_last_device_lies_below_two_to_the_47(devices):
    sim = SimDevice(devices=devices)
    span = 2**44 // (1 << (devices - 1).bit_length())
    assert sim.reserve(span, devices - 1) + span <= 2**47


def test_the_same_calls_give_the_same_addresses():
    def addresses():
        sim = SimDevice(seed=3)
        first = sim.reserve(MIB, 0)
        sim.reserve(4 * MIB, 0)
        sim.release(first, MIB, 0)
        return [sim.reserve(KIB, 0), sim.reserve(MIB, 0), sim.reserve(3 * MIB, 0)]

    assert addresses() == addresses()


def test_another_seed_shifts_addresses_by_whole_pages():
    shift = SimDevice(seed=5).reserve(1, 0) - SimDevice().reserve(1, 0)
    assert shift == 5 * 2 * MIB


def test_peak_reserved_stays_when_memory_is_given_back():
    sim = SimDevice()
    ptr = sim.reserve(MIB, 0)
    sim.release(ptr, MIB, 0)
    sim.reserve(512, 0)
    assert (sim.reserved(), sim.peak_reserved()) == (512, MIB)


def test_devices_count_apart():
    sim = SimDevice("1MiB", devices=2)
    sim.reserve(MIB, 1)
    assert (sim.reserved(0), sim.reserved(1)) == (0, MIB)
    assert sim.outstanding(0) == {}
    assert sim.mem_info(0) == (MIB, MIB)


def test_a_full_device_refuses_and_says_what_is_free():
    sim = SimDevice("1MiB")
    sim.reserve(MIB - 512, 0)
    with pytest.raises(
        DeviceFullError, match=r"reserve of 1,024 bytes .*512 bytes free of 1,048,576"
    ):
        sim.reserve(513, 0)
    assert sim.reserved() == MIB - 512
    assert sim.reserve(512, 0)


def test_capacity_does_not_fragment_as_physical_pages_do_not():
    sim = SimDevice(3 * MIB)
    first, middle, last = (sim.reserve(MIB, 0) for _ in range(3))
    sim.release(first, MIB, 0)
    sim.release(last, MIB, 0)
    assert sim.reserve(2 * MIB, 0) not in (first, middle)


def test_the_address_space_ends_even_without_a_capacity():
    sim = SimDevice()
    with pytest.raises(DeviceFullError, match="address space of 17,592,186,044,416 bytes"):
        sim.reserve(2**44 + 1, 0)


def test_released_memory_is_the_next_to_be_reserved():
    sim = SimDevice()
    first, _ = sim.reserve(KIB, 0), sim.reserve(KIB, 0)
    sim.release(first, KIB, 0)
    assert sim.reserve(KIB, 0) == first


@pytest.mark.parametrize("nbytes", [1000, 1024])
def test_release_takes_the_bytes_asked_for_or_the_rounded_ones(nbytes):
    sim = SimDevice()
    sim.release(sim.reserve(1000, 0), nbytes, 0)
    assert sim.outstanding() == {}


@pytest.mark.parametrize(
    ("offset", "nbytes", "device", "message"),
    [
        (512, KIB, 0, "no reserved range of device 0 starts there"),
        (0, KIB, 1, "no reserved range of device 1 starts there"),
        (0, 512, 0, r"with 512 bytes: the range reserved there has 1,024 bytes"),
        (0, 2 * KIB, 0, "the range reserved there has 1,024 bytes"),
    ],
)
def test_a_wrong_release_is_an_error_and_changes_nothing(offset, nbytes, device, message):
    sim = SimDevice(devices=2)
    ptr = sim.reserve(KIB, 0)
    with pytest.raises(ValueError, match=message):
        sim.release(ptr + offset, nbytes, device)
    assert sim.outstanding() == {ptr: KIB}


def test_a_second_release_is_an_error():
    sim = SimDevice()
    ptr = sim.reserve(KIB, 0)
    sim.release(ptr, KIB, 0)
    with pytest.raises(ValueError, match=f"release of 0x{ptr:x}: no reserved range"):
        sim.release(ptr, KIB, 0)


def test_another_process_takes_memory_and_gives_it_back():
    sim = SimDevice("1MiB")
    other = sim.occupy("1000KiB")
    assert sim.mem_info(0) == (24 * KIB, MIB)
    assert sim.reserved() == 0
    with pytest.raises(DeviceFullError, match="1,024,000 taken by others"):
        sim.reserve(32 * KIB, 0)
    other.release()
    assert sim.reserve(32 * KIB, 0)
    assert sim.mem_info(0) == (MIB - 32 * KIB, MIB)


def test_another_process_gives_back_only_once():
    sim = SimDevice("1MiB")
    other = sim.occupy(100)
    assert other.nbytes == 512
    assert "512 B of device 0" in repr(other)
    other.release()
    other.release()
    assert sim.mem_info(0) == (MIB, MIB)


def test_another_process_cannot_take_what_is_reserved():
    sim = SimDevice("1MiB", devices=2)
    sim.reserve(MIB, 1)
    with pytest.raises(DeviceFullError, match="occupy of 512 bytes on device 1: 0 bytes free"):
        sim.occupy(1, device=1)
    assert sim.occupy(MIB, device=0).device == 0


@pytest.mark.parametrize("device", [-1, 2])
@pytest.mark.parametrize(
    "call",
    [
        lambda sim, device: sim.reserve(1, device),
        lambda sim, device: sim.release(1, 1, device),
        lambda sim, device: sim.mem_info(device),
        lambda sim, device: sim.reserved(device),
        lambda sim, device: sim.peak_reserved(device),
        lambda sim, device: sim.outstanding(device),
        lambda sim, device: sim.occupy(1, device),
        lambda sim, device: sim.synchronize(device),
        lambda sim, device: sim.stream(device),
        lambda sim, device: sim.default_stream(device),
        lambda sim, device: sim.event(device),
        lambda sim, device: sim.use(device),
        lambda sim, device: sim.handed_out(0, 0, device, 0),
    ],
)
def test_a_device_that_does_not_exist_is_named(call, device):
    with pytest.raises(ValueError, match=rf"device must be in \[0, 2\), got {device}"):
        call(SimDevice(devices=2), device)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda sim: sim.reserve(0, 0), ValueError, "nbytes must be at least 1, got 0"),
        (lambda sim: sim.reserve(-5, 0), ValueError, "nbytes must be at least 1, got -5"),
        (lambda sim: sim.reserve(1.5, 0), TypeError, "nbytes must be an int, got 1.5"),
        (lambda sim: sim.reserve(True, 0), TypeError, "nbytes must be an int, got True"),
        (lambda sim: sim.reserve(1, "0"), TypeError, "device must be an int, got '0'"),
        (lambda sim: sim.release(None, 1, 0), TypeError, "ptr must be an int, got None"),
        (lambda sim: sim.release(1, 0, 0), ValueError, "nbytes must be at least 1, got 0"),
        (lambda sim: sim.occupy(-1), ValueError, "nbytes must not be negative, got -1"),
        (lambda sim: sim.occupy("much"), ValueError, "nbytes must be a number of bytes or text"),
    ],
)
def test_wrong_arguments_are_named_and_cost_nothing(call, error, message):
    sim = SimDevice()
    with pytest.raises(error, match=message):
        call(sim)
    assert sim.now == 0
    assert not sim.calls


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"capacity": "big"}, ValueError, "capacity must be a number of bytes or text"),
        ({"capacity": -1}, ValueError, "capacity must not be negative"),
        ({"devices": 0}, ValueError, "devices must be at least 1, got 0"),
        ({"devices": 65}, ValueError, "devices must be at most 64, got 65"),
        ({"devices": 1.0}, TypeError, "devices must be an int, got 1.0"),
        (
            {"on_race": "ignore"},
            ValueError,
            "on_race must be one of 'raise', 'record'; got 'ignore'",
        ),
        ({"recycle_handles": 1}, TypeError, "recycle_handles must be True or False, got 1"),
        ({"costs": 5}, TypeError, "costs must be a dict of call name to seconds, got 5"),
        (
            {"costs": {"malloc": 1}},
            ValueError,
            "call in costs must be one of 'reserve', .*'malloc'",
        ),
        (
            {"costs": {"wait": -1}},
            ValueError,
            r"cost of wait must be seconds in \[0, inf\), got -1",
        ),
        ({"costs": {"wait": "x"}}, TypeError, "cost of wait must be seconds"),
        ({"seed": "a"}, TypeError, "seed must be an int, got 'a'"),
    ],
)
def test_wrong_settings_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        SimDevice(**arguments)


def test_the_repr_has_figures():
    sim = SimDevice("8GiB", devices=2)
    sim.reserve(MIB, 1)
    assert repr(sim) == "<SimDevice: 2 x 8.0 GiB, 1.0 MiB reserved, at 0.00015 s, 0 races>"
    assert "1 x unlimited" in repr(SimDevice())
