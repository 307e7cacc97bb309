"""The runner: figures, timeline, running out of memory, wrong arguments."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachepool.offline import POLICIES, Trace, TraceError, replay
from cachepool.offline.result import MAX_POINTS, thin
from tests.offline import scenarios
from tests.offline.strategies import PROGRAMS


@pytest.fixture
def trace() -> Trace:
    """Two blocks of 1 KiB, one released, 0 bytes, one of 512 in the first one's place."""
    return Trace([0, 0, 1, 0, 0], [0, 1, 0, 2, 3], [1000, 1024, 1000, 0, 512], [0] * 5)


def test_hits_are_the_requests_served_without_the_device(trace: Trace):
    result = replay(trace, "cupy")

    assert (result.requests, result.hits) == (3, 1)
    assert result.hit_rate == pytest.approx(1 / 3)
    assert result.peak_live == 2024
    assert result.peak_allocated == result.peak_reserved == 2048
    assert result.utilisation == 2024 / 2048


def test_timeline_has_a_point_for_each_event_of_a_short_trace(trace: Trace):
    timeline = replay(trace, "none").timeline

    assert timeline["event"].tolist() == [0, 1, 2, 3, 4]
    assert timeline["allocated"].tolist() == [1024, 2048, 1024, 1024, 1536]
    assert timeline["reserved"].tolist() == timeline["allocated"].tolist()


def test_replay_ends_at_the_request_that_runs_out_of_memory(trace: Trace):
    result = replay(trace, "none", capacity="1 KiB")

    assert (result.oom_at, result.oom_size) == (1, 1024)
    assert (result.requests, result.hits) == (2, 0)
    assert (result.peak_live, result.peak_reserved) == (1000, 1024)
    assert (result.upstream_allocations, result.upstream_failures) == (2, 1)
    assert result.addresses[0] > 0
    assert result.addresses[1:].tolist() == [-1, -1, -1]
    assert "out of memory at event 1" in repr(result)


def test_first_request_may_run_out_of_memory(trace: Trace):
    result = replay(trace, "none", capacity=0)

    assert result.oom_at == 0
    assert (result.peak_live, len(result.timeline)) == (0, 0)


def test_replay_takes_a_path(trace: Trace, tmp_path: Path):
    trace.save(tmp_path / "a.npz")

    assert replay(str(tmp_path / "a.npz"), "none").peak_live == 2024


def test_unreadable_path_is_a_trace_error(tmp_path: Path):
    with pytest.raises(TraceError, match="no such file"):
        replay(tmp_path / "a.npz", "none")


@pytest.mark.parametrize(
    ("policy", "options", "message"),
    [
        ("torch9", {}, r"policy must be one of cachepool, cupy, none, got 'torch9'"),
        ("cupy", {"tie": "lowest"}, r"policy 'cupy' takes ties, got 'tie'"),
        ("none", {"ties": "lowest"}, r"policy 'none' takes no options, got 'ties'"),
        ("cupy", {"ties": "best"}, r"ties must be one of lowest, newest, got 'best'"),
        ("cupy", {"capacity": "8 apples"}, r"capacity must be a number of bytes or text"),
    ],
)
def test_wrong_argument_is_refused_with_what_is_allowed(policy, options, message, trace: Trace):
    with pytest.raises(ValueError, match=message):
        replay(trace, policy, **options)


def test_result_cannot_be_changed(trace: Trace):
    result = replay(trace, "none")

    with pytest.raises(dataclasses.FrozenInstanceError):
        result.hits = 3


def test_summary_has_every_figure_and_no_array(trace: Trace):
    summary = replay(trace, "none", capacity=4096).summary()

    assert summary["capacity"] == 4096
    assert summary["utilisation"] == 2024 / 2048
    assert "timeline" not in summary
    assert all(isinstance(value, str | int | float | None) for value in summary.values())


def test_progress_is_told_as_the_replay_goes_on():
    seen = []

    replay(scenarios.grow_2000(), "none", progress=lambda done, total: seen.append((done, total)))

    assert seen == [(1024, 4000), (2048, 4000), (3072, 4000)]


def test_long_timeline_is_thin_and_keeps_the_peaks():
    trace = scenarios.mixed_near_limit()

    result = replay(trace, "none")

    assert len(result.timeline) <= MAX_POINTS
    assert result.timeline["reserved"].max() == result.peak_reserved
    assert result.timeline["allocated"].max() == trace.peak_allocated
    assert result.timeline["event"][-1] == len(trace) - 1


@settings(max_examples=60, deadline=None)
@given(
    figures=st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), max_size=200),
    limit=st.integers(3, 60),
)
def test_thinned_figures_are_in_order_true_and_keep_the_peaks(figures, limit: int):
    allocated, reserved = np.array(figures, np.int64).reshape(-1, 2).T

    points = thin(allocated, reserved, limit)

    assert len(points) <= limit or len(points) == len(figures)
    assert (np.diff(points["event"]) > 0).all()
    np.testing.assert_array_equal(points["reserved"], reserved[points["event"]])
    assert points["allocated"].max(initial=0) == allocated.max(initial=0)
    assert points["reserved"].max(initial=0) == reserved.max(initial=0)


@settings(max_examples=60, deadline=None)
@given(trace=PROGRAMS, pages=st.one_of(st.none(), st.integers(0, 100)))
def test_without_a_pool_memory_runs_out_exactly_when_live_bytes_do_not_fit(trace, pages):
    capacity = None if pages is None else pages * 512

    result = replay(trace, "none", capacity=capacity)

    fits = capacity is None or trace.peak_allocated <= capacity
    assert (result.oom_at is None) == fits
    assert not fits or result.peak_reserved == trace.peak_allocated


def test_every_policy_is_found_by_its_own_name():
    assert {policy.name for policy in POLICIES.values()} == POLICIES.keys()
