"""Traces that contradict themselves are refused, with the event and the value."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachepool.offline import Trace, TraceError
from cachepool.offline.trace import SEGMENT
from tests.offline.strategies import PROGRAMS

GOOD = {
    "op": [0, 0, 1, 0, 1],
    "id": [0, 1, 0, 2, 2],
    "size": [100, 200, 100, 300, 300],
    "stream": [0, 1, 0, 0, 0],
}


def changed(**columns: object) -> dict[str, object]:
    return {**GOOD, **columns}


def test_good_events_make_a_trace():
    trace = Trace(**GOOD)

    assert len(trace) == 5
    assert trace.streams == 2
    assert trace.n_init == 0
    assert (trace.peak_live, trace.peak_allocated) == (500, 1024)
    assert repr(trace) == "<Trace unnamed: 5 events on 2 stream(s), peak live 500 B>"


def test_trace_without_events_is_valid():
    trace = Trace([], [], [], [])

    assert (len(trace), trace.streams, trace.peak_live, trace.peak_allocated) == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"op": [0, 0, 7, 0, 1]}, r"event 2: unknown op 7; version 1 has 0 .* and 1"),
        ({"size": [100, -5, 100, 300, 300]}, r"event 1: size must not be negative, got -5"),
        ({"stream": [0, 1, 0, -2, 0]}, r"event 3: stream must not be negative, got -2"),
        ({"id": [0, 1, 9, 2, 2]}, r"event 2: free of block 9, which is not allocated yet"),
        ({"id": [0, 1, -1, 2, 2]}, r"event 2: free of block -1, which is not allocated yet"),
        ({"id": [0, 1, 2, 2, 0]}, r"event 2: free of block 2, which is not allocated yet"),
        ({"id": [0, 0, 0, 2, 2]}, r"event 1: block 0 is allocated twice, first at event 0"),
        ({"id": [0, 2, 0, 1, 1]}, r"event 1: blocks are numbered .* expected block 1, got 2"),
        ({"id": [0, 1, 0, -3, 2]}, r"event 3: blocks are numbered .* expected block 2, got -3"),
        ({"id": [0, 1, 0, 2, 0]}, r"event 4: block 0 is freed twice, first at event 2"),
        ({"size": [100, 200, 101, 300, 300]}, r"event 2: .* size 101, .* with size 100"),
        ({"stream": [0, 1, 1, 0, 0]}, r"event 2: .* stream 1, .* with stream 0"),
        ({"size": [2**62, 2**62, 2**62, 3, 3]}, r"event 1: sizes add up to more than 2\*\*62"),
    ],
)
def test_event_that_breaks_a_rule_is_named(columns: dict[str, object], message: str):
    with pytest.raises(TraceError, match=message):
        Trace(**changed(**columns))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"op": [0, 0, 1]}, r"array 'id' has 5 entries, but 'op' has 3"),
        ({"stream": [0]}, r"array 'stream' has 1 entries, but 'op' has 5"),
        ({"addr": [1, 2]}, r"array 'addr' has 2 entries, but 'op' has 5"),
        ({"size": [0.5] * 5}, r"array 'size' must hold integers \(int64\), got float64"),
        ({"op": [[0, 0, 1, 0, 1]]}, r"array 'op' must be one-dimensional, got shape \(1, 5\)"),
        ({"stream": [0, 1, 0, 40_000, 0]}, r"stream\[3\] is 40000, which does not fit in int16"),
        ({"op": [0, 0, -1, 0, 1]}, r"op\[2\] is -1, which does not fit in uint8"),
    ],
)
def test_column_of_a_wrong_type_or_length_is_named(columns: dict[str, object], message: str):
    with pytest.raises(TraceError, match=message):
        Trace(**changed(**columns))


def test_free_in_a_trace_without_allocations_is_refused():
    with pytest.raises(TraceError, match=r"event 0: free of block 0"):
        Trace([1], [0], [1], [0])


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"n_init": 6}, r"n_init must be in \[0, 5\] \(the events\), got 6"),
        ({"n_init": -1}, r"n_init must be in \[0, 5\] \(the events\), got -1"),
        ({"n_init": 3}, r"event 2: n_init is 3, so this must be an allocation, got op 1"),
        ({"n_init": 2, "init_block": [512]}, r"n_init is 2, but 'init_block' has 1 entries"),
        ({"init_block": [512]}, r"n_init is 0, but 'init_block' has 1 entries"),
        ({"n_init": 1, "meta": {"n_init": 2}}, r"metadata say n_init is 2, the arrays have 1"),
        ({"meta": {"n_init": "two"}}, r"n_init must be a count of events, got 'two'"),
        ({"meta": {"n_events": 7}}, r"metadata say n_events is 7, the arrays have 5"),
        ({"meta": {"n_streams": 1}}, r"metadata say n_streams is 1, the events use 2"),
        ({"meta": {"n_segment_events": 3}}, r"n_segment_events is 3, the arrays have 0"),
        ({"meta": {"format": 2}}, r"format version 2; this cachepool reads version 1"),
        ({"meta": {"format": "x"}}, r"format version 'x'; this cachepool reads version 1"),
    ],
)
def test_metadata_that_contradict_the_events_are_refused(facts: dict[str, object], message: str):
    with pytest.raises(TraceError, match=message):
        Trace(**GOOD, **facts)


def segment_events(**fields: int) -> np.ndarray:
    row = {"kind": 0, "pos": 0, "addr": 0, "size": 512, "stream": 0, **fields}
    return np.array([tuple(row[name] for name in SEGMENT.names)], SEGMENT)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": 5}, r"seg_kind\[0\] must be in \[0, 4\], got 5"),
        ({"pos": 6}, r"seg_pos\[0\] must be in \[0, 5\], got 6"),
        ({"size": -1}, r"seg_size\[0\] must be not negative, got -1"),
    ],
)
def test_segment_event_that_breaks_a_rule_is_named(fields: dict[str, int], message: str):
    with pytest.raises(TraceError, match=message):
        Trace(**GOOD, segments=segment_events(**fields))


def test_sizes_of_initial_blocks_default_to_the_rounded_sizes():
    trace = Trace(**GOOD, n_init=2)

    np.testing.assert_array_equal(trace.init_block, [512, 512])


def test_more_streams_than_used_may_be_declared():
    assert Trace(**GOOD, meta={"n_streams": 4}).streams == 4


def test_trace_cannot_be_changed_through_its_arrays():
    trace = Trace(**GOOD)

    with pytest.raises(ValueError, match="read-only"):
        trace.events["size"][0] = 1


def test_arrays_given_are_not_shared_with_the_trace():
    sizes = np.array(GOOD["size"])
    trace = Trace(**changed(size=sizes))

    sizes[0] = 7

    assert trace.events["size"][0] == 100


@settings(max_examples=150, deadline=None)
@given(trace=PROGRAMS, data=st.data())
def test_any_single_change_of_an_identifier_is_noticed(trace: Trace, data: st.DataObject):
    events = trace.events.copy()
    if not len(events):
        return
    index = data.draw(st.integers(0, len(events) - 1))
    allocated = int((events["op"] == 0).sum())
    wrong = data.draw(st.integers(-2, allocated + 1).filter(lambda n: n != events["id"][index]))
    frees = events["op"] == 1
    may_be_free_of_another = (
        frees[index]
        and 0 <= wrong < allocated
        and wrong in events["id"][:index][~frees[:index]]
        and wrong not in events["id"][frees]
    )
    events["id"][index] = wrong
    columns = [events[name] for name in ("op", "id", "size", "stream")]

    if not may_be_free_of_another:
        with pytest.raises(TraceError, match=r"event \d+: "):
            Trace(*columns)


def test_a_hundred_thousand_events_are_checked_in_milliseconds():
    n = 50_000
    op = np.repeat([0, 1], n)
    block = np.concatenate([np.arange(n), np.arange(n)[::-1]])
    ones = np.ones(2 * n, int)

    start = time.process_time()
    Trace(op, block, ones, ones)
    elapsed = time.process_time() - start

    # A loop over the events would take twenty times as long; the margin is for slow machines.
    assert elapsed < 0.25
