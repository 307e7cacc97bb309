"""CuPy's policy against the figures under **CuPy** in scenarios.md, as printed there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cachepool.offline import ReplayResult, Trace, replay
from tests.offline import scenarios
from tests.offline.scenarios import GIB, MIB


def printed(nbytes: int, like: str) -> str:
    """Return bytes with the unit and the digits of a figure such as ``"488.5 GiB"``."""
    number, unit = like.split()
    decimals = len(number.partition(".")[2])
    return f"{nbytes / {'MiB': MIB, 'GiB': GIB}[unit]:,.{decimals}f} {unit}"


COMPLETED = [
    (scenarios.grow_2000, "4095MiB", "500 MiB", "4,091 MiB", 2127, 127),
    (scenarios.grow_2000, None, "500 MiB", "488.5 GiB", 2000, 0),
    (scenarios.concat_loop, None, "0.92 MiB", "229.3 MiB", 1001, 0),
    (scenarios.concat_sister, "8GiB", "3,000 MiB", "8,191 MiB", 1671, 170),
    (scenarios.variable_batch, None, "9,291 MiB", "47,251 MiB", 147, 0),
    (scenarios.variable_batch, "24GiB", "9,291 MiB", "24,498 MiB", 162, 2),
    (scenarios.variable_batch, "20GiB", "9,291 MiB", None, 158, 2),
    (scenarios.variable_batch, "10000MiB", "9,291 MiB", None, 211, 7),
    (scenarios.fft_workspaces, None, "17,852 MiB", "36,790 MiB", 38, 0),
    (scenarios.fft_workspaces, "24GiB", "17,852 MiB", None, 56, 4),
    (scenarios.fft_workspaces, "20GiB", "17,852 MiB", None, 81, 16),
    (scenarios.fft_workspaces, "19453MiB", "17,852 MiB", None, 97, 28),
    (scenarios.mixed_near_limit, None, "6,403 MiB", "11,044 MiB", 49, 0),
    (scenarios.mixed_near_limit, "9204MiB", "6,403 MiB", None, 61, 4),
    (scenarios.streams_32, None, "256 MiB", "8,192 MiB", 32, 0),
    (scenarios.streams_32, "4GiB", "256 MiB", "4,096 MiB", 33, 1),
    (scenarios.streams_sister, None, "1 GiB", "8 GiB", 32, 0),
]


@pytest.mark.parametrize(
    ("scenario", "capacity", "live", "reserved", "calls", "refused"), COMPLETED
)
def test_cupy_has_the_figures_of_scenarios(
    scenario: Callable[[], Trace],
    capacity: str | None,
    live: str,
    reserved: str | None,
    calls: int,
    refused: int,
):
    result = replay(scenario(), "cupy", capacity=capacity)

    assert result.oom_at is None
    assert printed(result.peak_allocated, live) == live
    assert reserved is None or printed(result.peak_reserved, reserved) == reserved
    assert (result.upstream_allocations, result.upstream_failures) == (calls, refused)


@pytest.mark.parametrize(
    ("scenario", "capacity"),
    [
        (scenarios.variable_batch, "9900MiB"),
        (scenarios.fft_workspaces, "19353MiB"),
        (scenarios.mixed_near_limit, "9104MiB"),
    ],
)
def test_cupy_runs_out_one_step_below_the_smallest_capacity(scenario, capacity):
    assert replay(scenario(), "cupy", capacity=capacity).oom_at is not None


def live_bytes(result: ReplayResult) -> int:
    """Return the bytes allocated when memory ran out."""
    return int(result.timeline["allocated"][-1])


def test_cupy_runs_out_at_the_second_large_block_of_big_block_nibbled():
    result = replay(scenarios.big_block_nibbled(), "cupy", capacity="16GiB")

    # 1 large, 180 small, then the large one again.
    assert result.requests == 182
    assert result.oom_size == 11643387904
    assert printed(live_bytes(result), "2.26 GiB") == "2.26 GiB"
    assert printed(result.reserved, "10.84 GiB") == "10.84 GiB"
    assert printed(result.reserved - live_bytes(result), "8.6 GiB") == "8.6 GiB"


def test_cupy_runs_out_at_the_last_temporary_of_pipeline_8gib():
    result = replay(scenarios.pipeline_8gib(), "cupy", capacity="8GiB")

    assert result.oom_size == 4 * GIB
    assert result.reserved == 5 * GIB
    assert live_bytes(result) == 3 * GIB


def test_cupy_runs_out_at_request_1672_of_mixed_near_limit_on_8gib():
    result = replay(scenarios.mixed_near_limit(), "cupy", capacity="8GiB")

    assert result.requests == 1672
    assert -(-result.oom_size // 512) * 512 == 273465344
    assert printed(live_bytes(result), "6,142 MiB") == "6,142 MiB"
    assert printed(result.reserved, "8,021 MiB") == "8,021 MiB"


def test_variable_batch_has_as_many_requests_as_scenarios_say():
    trace = scenarios.variable_batch()

    assert replay(trace, "cupy").requests == 18012


def test_newest_ties_lie_in_the_range_that_scenarios_give_for_other_orders():
    result = replay(scenarios.mixed_near_limit(), "cupy", ties="newest")

    assert 10_121 * MIB <= result.peak_reserved <= 11_304 * MIB
