"""The real pool, driven by traces: its figures against what the trace itself implies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachepool.errors import OptionError
from cachepool.offline import Trace, replay
from tests.offline import scenarios
from tests.offline.strategies import PROGRAMS


def assert_no_overlap(trace: Trace, addresses: np.ndarray) -> None:
    """Walk the trace with the addresses given; live blocks must never share a byte."""
    live: dict[int, tuple[int, int]] = {}
    for op, block, size in trace.events[["op", "id", "size"]].tolist():
        if op == 1:
            live.pop(block, None)
        elif size:
            start = int(addresses[block])
            end = start + size
            assert start > 0
            assert start % 512 == 0
            assert all(end <= low or high <= start for low, high in live.values())
            live[block] = (start, end)


def test_recorded_trace_runs_on_the_pool(trace_path: Path):
    result = replay(trace_path)

    assert result.policy == "cachepool"
    assert result.oom_at is None
    assert result.peak_reserved >= result.peak_allocated
    assert (result.timeline["reserved"] >= result.timeline["allocated"]).all()
    assert result.upstream_failures == 0
    assert result.requests - result.hits <= result.upstream_allocations


@settings(max_examples=60, deadline=None)
@given(trace=PROGRAMS)
def test_live_blocks_never_overlap(trace: Trace):
    result = replay(trace)

    assert_no_overlap(trace, result.addresses)
    assert result.peak_reserved >= result.peak_allocated


@settings(max_examples=60, deadline=None)
@given(trace=PROGRAMS, pages=st.integers(0, 120))
def test_capacity_is_kept_and_memory_never_runs_out_while_cache_would_do(trace: Trace, pages: int):
    result = replay(trace, capacity=pages * 512)

    assert result.peak_reserved <= pages * 512
    assert result.oom_at is None or result.upstream_failures > 0
    assert result.oom_at is not None or result.peak_allocated <= pages * 512


def test_request_beyond_the_capacity_ends_the_replay():
    trace = Trace([0, 0], [0, 1], [2**20, 2**30], [0, 0])

    result = replay(trace, capacity="64MiB")

    assert (result.oom_at, result.oom_size) == (1, 2**30)
    assert result.upstream_failures > 0
    assert result.addresses.tolist()[1] == -1


def test_request_of_zero_bytes_costs_nothing():
    trace = Trace([0, 1], [0, 0], [0, 0], [0, 0])

    result = replay(trace, capacity=0)

    assert result.addresses.tolist() == [0]
    assert (result.upstream_allocations, result.requests) == (0, 0)


def test_a_second_round_is_served_from_the_cache():
    trace = Trace([0, 1] * 2, [0, 0, 1, 1], [2**20] * 4, [0] * 4)

    result = replay(trace)

    assert (result.requests, result.hits) == (2, 1)


def test_replay_is_the_same_every_time():
    first, second = (replay(scenarios.variable_batch()) for _ in range(2))

    np.testing.assert_array_equal(first.addresses, second.addresses)
    assert first.summary() == second.summary()


@pytest.mark.parametrize("scenario", scenarios.ALL, ids=lambda scenario: scenario.__name__)
def test_every_scenario_runs_without_a_limit(scenario):
    result = replay(scenario())

    assert result.oom_at is None
    assert result.peak_reserved >= result.peak_allocated


def test_option_that_the_pool_does_not_know_is_refused():
    with pytest.raises(OptionError):
        replay(scenarios.pipeline_8gib(), "cachepool", no_such_option=1)
