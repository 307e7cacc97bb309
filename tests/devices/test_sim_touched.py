"""What counts as bytes that a kernel touches; only attributes matter, never classes."""

from types import SimpleNamespace as Thing

import numpy as np
import pytest

from cachepool.devices.sim.touched import byte_ranges


def device_array(view, base=0):
    """Return what CuPy's array would show of a NumPy view, placed at address `base`."""
    origin = view if view.base is None else view.base
    offset = view.__array_interface__["data"][0] - origin.__array_interface__["data"][0]
    return Thing(
        data=Thing(ptr=base + offset),
        nbytes=view.nbytes,
        shape=view.shape,
        strides=view.strides,
        itemsize=view.itemsize,
    )


WHOLE = np.arange(100, dtype=np.int32)


@pytest.mark.parametrize(
    ("view", "extent"),
    [
        (WHOLE, (5000, 5400)),
        (WHOLE[10:20], (5040, 5080)),
        (WHOLE[::2], (5000, 5396)),
        (WHOLE[::-1], (5000, 5400)),
        (WHOLE[20:10:-3], (5044, 5084)),
        (WHOLE[7:8].reshape(()), (5028, 5032)),
    ],
)
def test_an_array_counts_from_its_lowest_to_its_highest_byte(view, extent):
    assert byte_ranges(device_array(view, 5000), "reads") == [extent]


def test_a_transposed_corner_counts_its_extent():
    corner = np.zeros((10, 10), np.int8)[2:4, 3:5].T
    assert byte_ranges(device_array(corner, 1000), "reads") == [(1023, 1035)]


def test_an_empty_array_counts_nothing():
    assert byte_ranges(device_array(WHOLE[:0], 5000), "reads") == []


def test_an_array_without_strides_counts_its_bytes():
    array = Thing(data=Thing(ptr=5000), nbytes=40)
    assert byte_ranges(array, "reads") == [(5000, 5040)]


def test_a_memory_pointer_counts_from_itself_to_the_end_of_its_memory():
    pointer = Thing(ptr=5100, mem=Thing(ptr=5000, size=512))
    assert byte_ranges(pointer, "reads") == [(5100, 5512)]


def test_an_allocation_counts_its_size():
    assert byte_ranges(Thing(ptr=5000, size=512), "reads") == [(5000, 5512)]


def test_a_pair_is_an_address_and_a_length():
    assert byte_ranges((5000, 12), "reads") == [(5000, 5012)]
    assert byte_ranges((np.int64(5000), np.int64(12)), "reads") == [(5000, 5012)]


def test_an_iterable_is_all_its_elements_but_the_empty_ones():
    things = [(1, 2), Thing(ptr=50, size=5), (9, 0), device_array(WHOLE, 4000)]
    expected = [(1, 3), (50, 55), (4000, 4400)]
    assert byte_ranges(things, "reads") == expected
    assert byte_ranges(iter(things), "reads") == expected
    assert byte_ranges(tuple(things), "reads") == expected


def test_a_tuple_of_two_arrays_is_no_pair_though_arrays_have_an_index():
    class Array(Thing):
        def __index__(self):
            raise AssertionError("an array must not be read as a number")

    two = (Array(data=Thing(ptr=10), nbytes=4), Array(data=Thing(ptr=30), nbytes=8))
    assert byte_ranges(two, "reads") == [(10, 14), (30, 38)]


def test_nothing_is_no_range():
    assert byte_ranges((), "reads") == byte_ranges([], "reads") == []


@pytest.mark.parametrize(
    ("touched", "message"),
    [
        (5000, "reads must be a device array .*; got 5000"),
        ("abc", "reads must be .*; got 'abc'"),
        (None, "reads must be .*; got None"),
        ([5000, 12], "each of reads must be .*; got 5000"),
        ([np.zeros(2)], "each of reads must be"),
        ((1, 2.5), "each of reads must be .*; got 1"),
        (Thing(ptr=5000), "reads must be"),
    ],
)
def test_anything_else_is_named(touched, message):
    with pytest.raises(TypeError, match=message):
        byte_ranges(touched, "reads")


@pytest.mark.parametrize("pair", [(-1, 5), (5, -1)])
def test_a_negative_pair_is_named(pair):
    with pytest.raises(ValueError, match=r"\(ptr, nbytes\) in writes must not be negative, got"):
        byte_ranges([pair], "writes")
