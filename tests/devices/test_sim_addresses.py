"""The address space: first fit, compared with a model that tries every granule."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachepool.devices.sim.addresses import AddressSpace

UNIT = 512
MIB = 2**20
FIRST = 0x7000_0000_0000


def lowest_free_start(live, nbytes, first, end):
    """Try every aligned start from the bottom: the definition of first fit."""
    size = -(-nbytes // UNIT) * UNIT
    step = 2 * MIB if size >= 2 * MIB else UNIT
    for start in range(first, end - size + 1, step):
        if all(start + size <= low or low + length <= start for low, length in live.items()):
            return start
    return None


small_sizes = st.integers(1, 6 * UNIT)
steps = st.lists(st.one_of(small_sizes, st.integers(-30, -1)), max_size=60)


@given(steps)
def test_each_range_is_the_lowest_that_fits(program):
    end = FIRST + 40 * UNIT
    space, live = AddressSpace(FIRST, end), {}
    for step in program:
        if step > 0:
            expected = lowest_free_start(live, step, FIRST, end)
            assert space.reserve(step) == expected
            if expected is not None:
                live[expected] = -(-step // UNIT) * UNIT
        elif live:
            start = sorted(live)[step % len(live)]
            space.release(start)
            del live[start]
        assert space.sizes == live
        assert space.reserved == sum(live.values())


large_sizes = st.sampled_from([UNIT, MIB, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1, 5 * MIB])


@settings(max_examples=30)
@given(st.lists(st.one_of(large_sizes, st.integers(-30, -1)), max_size=12))
def test_large_ranges_are_the_lowest_aligned_ones(program):
    end = FIRST + 24 * MIB
    space, live = AddressSpace(FIRST, end), {}
    for step in program:
        if step > 0:
            expected = lowest_free_start(live, step, FIRST, end)
            assert space.reserve(step) == expected
            if expected is not None:
                live[expected] = -(-step // UNIT) * UNIT
        elif live:
            start = sorted(live)[step % len(live)]
            space.release(start)
            del live[start]


@given(steps, st.integers(0, 44), st.integers(1, 12))
def test_first_gap_is_the_first_run_of_bytes_that_no_range_holds(program, low, length):
    space = AddressSpace(FIRST, FIRST + 40 * UNIT)
    for step in program:
        if step > 0:
            space.reserve(step)
        elif space.sizes:
            space.release(sorted(space.sizes)[step % len(space.sizes)])
    held = {a + i for a, size in space.sizes.items() for i in range(0, size, UNIT)}
    wanted = [FIRST + (low + i) * UNIT for i in range(length)]
    missing = [address for address in wanted if address not in held]
    expected = None
    if missing:
        run = missing[0]
        while run in wanted and run not in held:
            run += UNIT
        expected = (missing[0], run)
    assert space.first_gap(wanted[0], wanted[-1] + UNIT) == expected


@pytest.mark.parametrize(
    ("nbytes", "alignment"),
    [(1, 512), (513, 512), (2 * MIB - 512, 512), (2 * MIB - 511, 2 * MIB), (2 * MIB, 2 * MIB)],
)
def test_alignment_is_2_mib_from_2_mib_on_else_512(nbytes, alignment):
    space = AddressSpace(FIRST, FIRST + 64 * MIB)
    space.reserve(1)
    assert space.reserve(nbytes) == FIRST + alignment


def test_a_gap_left_by_alignment_is_used_for_small_ranges():
    space = AddressSpace(FIRST, FIRST + 64 * MIB)
    space.reserve(512)
    assert space.reserve(4 * MIB) == FIRST + 2 * MIB
    assert space.reserve(512) == FIRST + 512


def test_released_neighbours_become_one_hole():
    space = AddressSpace(FIRST, FIRST + 3 * UNIT)
    starts = [space.reserve(UNIT) for _ in range(3)]
    for start in (starts[0], starts[2], starts[1]):
        space.release(start)
    assert space.reserve(3 * UNIT) == FIRST


def test_no_hole_is_long_enough():
    space = AddressSpace(FIRST, FIRST + 3 * UNIT)
    middle = [space.reserve(UNIT) for _ in range(3)][1]
    space.release(middle)
    assert space.reserve(2 * UNIT) is None
    assert space.reserve(UNIT) == middle
