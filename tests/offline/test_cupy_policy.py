"""The fast policy against the plain model, and the rules one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachepool.errors import DeviceFullError
from cachepool.offline import Trace, replay
from cachepool.offline.policies import CupyPolicy
from cachepool.offline.policies.device import BASE
from tests.offline import scenarios
from tests.offline.cupy_model import CupyModel
from tests.offline.strategies import PROGRAMS


def play(trace: Trace, model: CupyModel) -> list[int]:
    """Return the model's addresses, up to the request that ran out of memory."""
    addresses = []
    for op, block, size, stream in trace.events[["op", "id", "size", "stream"]].tolist():
        if op == 1:
            model.free(block)
            continue
        address = model.allocate(block, size, stream)
        if address is None:
            break
        addresses.append(address)
    return addresses


def assert_same(trace: Trace, capacity: int | None, ties: str) -> None:
    model = CupyModel(capacity, ties, BASE)
    expected = play(trace, model)

    result = replay(trace, "cupy", capacity=capacity, ties=ties)

    served = result.addresses[result.addresses >= 0]
    assert served.tolist() == expected
    assert result.reserved == model.reserved
    assert result.peak_reserved == model.peak
    assert model.calls == [
        result.upstream_allocations,
        result.upstream_failures,
        result.upstream_frees,
    ]


@settings(max_examples=150, deadline=None)
@given(
    trace=PROGRAMS,
    pages=st.one_of(st.none(), st.integers(0, 120)),
    ties=st.sampled_from(["lowest", "newest"]),
)
def test_policy_does_what_the_plain_model_does(trace: Trace, pages: int | None, ties: str):
    assert_same(trace, None if pages is None else pages * 512, ties)


@pytest.mark.parametrize("ties", ["lowest", "newest"])
@pytest.mark.parametrize("capacity", [None, 8 * 2**30])
def test_policy_does_what_the_plain_model_does_near_the_limit(ties: str, capacity: int | None):
    events = scenarios.mixed_near_limit().events[:4000]

    trace = Trace(events["op"], events["id"], events["size"], events["stream"])

    assert_same(trace, capacity, ties)


def test_smallest_chunk_that_fits_is_taken_and_its_rest_stays_free():
    policy = CupyPolicy(None)
    large, wall, small = (policy.allocate(i, size, 0) for i, size in enumerate((4096, 512, 2048)))
    policy.free(0)
    policy.free(2)

    assert policy.allocate(3, 1000, 0) == small
    assert policy.allocate(4, 1024, 0) == small + 1024
    assert policy.allocate(5, 2048, 0) == large
    assert policy.allocate(6, 2048, 0) == large + 2048
    assert wall not in (large, small)
    assert policy.upstream_allocations == 3


def test_request_without_a_fitting_chunk_takes_exactly_its_rounded_size():
    policy = CupyPolicy(None)

    policy.allocate(0, 2**20 + 1, 0)

    assert policy.reserved == 2**20 + 512


def test_streams_do_not_exchange_memory():
    policy = CupyPolicy(None)
    policy.allocate(0, 512, 0)
    policy.free(0)

    policy.allocate(1, 512, 1)

    assert policy.upstream_allocations == 2


def test_freed_chunk_joins_both_neighbours():
    policy = CupyPolicy(None)
    whole = policy.allocate(0, 1536, 0)
    policy.free(0)
    for block in (1, 2, 3):
        policy.allocate(block, 512, 0)
    for block in (1, 3, 2):
        policy.free(block)

    assert policy.allocate(4, 1536, 0) == whole
    assert policy.upstream_allocations == 1


def test_flush_spares_a_segment_that_is_partly_live():
    policy = CupyPolicy(None)
    policy.allocate(0, 4096, 0)
    policy.free(0)
    policy.allocate(1, 512, 0)
    policy.allocate(2, 8192, 1)
    policy.free(2)

    assert policy.flush() == 8192
    assert policy.reserved == 4096


def test_refused_request_is_tried_three_times_and_leaves_the_books_as_they_are():
    policy = CupyPolicy(1024)
    policy.allocate(0, 1024, 0)

    with pytest.raises(DeviceFullError, match=r"512 bytes asked with 1,024 bytes"):
        policy.allocate(1, 1, 0)

    assert (policy.upstream_allocations, policy.upstream_failures) == (4, 3)
    assert policy.reserved == 1024


def test_memory_cached_on_another_stream_comes_back_through_the_device_only():
    policy = CupyPolicy(2048)
    policy.allocate(0, 1024, 0)
    policy.free(0)

    address = policy.allocate(1, 2048, 1)

    assert address == BASE + 1024
    assert (policy.upstream_failures, policy.upstream_frees) == (1, 1)


@pytest.mark.parametrize(("ties", "expected"), [("lowest", 0), ("newest", 1)])
def test_ties_decide_between_chunks_of_one_size(ties: str, expected: int):
    policy = CupyPolicy(None, ties=ties)
    addresses = [policy.allocate(block, 512, 0) for block in range(2)]
    policy.free(0)
    policy.free(1)

    assert policy.allocate(2, 512, 0) == addresses[expected]


def test_request_of_zero_bytes_costs_nothing():
    trace = Trace([0, 1, 0], [0, 0, 1], [0, 0, 0], [0, 0, 3])

    result = replay(trace, "cupy", capacity=0)

    assert (result.requests, result.upstream_allocations) == (0, 0)
    np.testing.assert_array_equal(result.addresses, [0, 0])
    assert (result.utilisation, result.hit_rate) == (1.0, 1.0)


def test_unknown_ties_are_refused():
    with pytest.raises(ValueError, match=r"ties must be one of lowest, newest, got 'oldest'"):
        CupyPolicy(None, ties="oldest")
