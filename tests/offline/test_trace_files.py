"""Reading and writing trace files, broken ones included."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cachepool.offline import Trace, TraceError
from cachepool.offline.trace import SEGMENT
from tests.offline import scenarios


@pytest.fixture
def trace() -> Trace:
    segments = np.array([(2, 0, 2**40, 4096, 0), (0, 1, 2**41, 512, 1)], SEGMENT)
    return Trace(
        op=[0, 0, 1],
        id=[0, 1, 0],
        size=[100, 0, 100],
        stream=[0, 1, 0],
        addr=[2**40, 0, 2**40],
        n_init=1,
        init_block=[1024],
        segments=segments,
        meta={"name": "tiny", "what": "a test", "gpu": None, "note": "µ"},
    )


@pytest.fixture
def members(trace: Trace, tmp_path: Path) -> dict[str, np.ndarray]:
    """The arrays of a good file, to be spoilt."""
    trace.save(tmp_path / "good.npz")
    with np.load(tmp_path / "good.npz") as archive:
        return dict(archive)


def assert_refused(path: Path, members: dict[str, np.ndarray], message: str) -> None:
    np.savez(path, **members)
    with pytest.raises(TraceError, match=message):
        Trace.load(path)


def test_saved_trace_is_read_back_exactly(trace: Trace, tmp_path: Path):
    trace.save(tmp_path / "a.npz")

    again = Trace.load(tmp_path / "a.npz")

    np.testing.assert_array_equal(again.events, trace.events)
    np.testing.assert_array_equal(again.segments, trace.segments)
    np.testing.assert_array_equal(again.init_block, trace.init_block)
    assert (again.n_init, again.streams, again.name) == (1, 2, "tiny")
    assert again.meta.items() >= trace.meta.items()


def test_saved_trace_has_the_types_and_counts_of_the_format(members: dict[str, np.ndarray]):
    kinds = {name: str(array.dtype) for name, array in members.items() if name != "meta"}
    meta = json.loads(str(members["meta"]))

    assert kinds == {
        "op": "uint8",
        "id": "int32",
        "size": "int64",
        "stream": "int16",
        "addr": "int64",
        "init_block": "int64",
        "seg_kind": "uint8",
        "seg_pos": "int32",
        "seg_addr": "int64",
        "seg_size": "int64",
        "seg_stream": "int16",
    }
    assert [meta[key] for key in ("n_events", "n_init", "n_segment_events", "n_streams")] == [
        3,
        1,
        2,
        2,
    ]
    assert meta["peak_live"] == 100


def test_trace_without_events_survives_a_round_trip(tmp_path: Path):
    Trace([], [], [], []).save(tmp_path / "empty.npz")

    assert len(Trace.load(tmp_path / "empty.npz")) == 0


def test_name_is_that_of_the_file_where_the_metadata_have_none(members, tmp_path: Path):
    meta = json.loads(str(members["meta"]))
    del meta["name"]

    np.savez(tmp_path / "stem.npz", **{**members, "meta": np.array(json.dumps(meta))})

    assert Trace.load(tmp_path / "stem.npz").name == "stem"


def test_file_with_the_required_arrays_only_is_read(members, tmp_path: Path):
    needed = {name: members[name] for name in ("op", "id", "size", "stream")}

    np.savez(tmp_path / "bare.npz", meta=np.array("{}"), **needed)
    trace = Trace.load(tmp_path / "bare.npz")

    assert (len(trace), len(trace.segments), trace.n_init) == (3, 0, 0)
    assert not trace.events["addr"].any()


def test_failed_save_leaves_the_old_file_and_no_draft(trace: Trace, tmp_path: Path):
    path = tmp_path / "a.npz"
    trace.save(path)
    before = path.read_bytes()
    trace.meta["not JSON"] = {1, 2}

    with pytest.raises(TypeError, match="not JSON serializable"):
        trace.save(path)

    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_missing_file_is_named(tmp_path: Path):
    with pytest.raises(TraceError, match=r"nope\.npz: no such file"):
        Trace.load(tmp_path / "nope.npz")


def test_directory_is_refused(tmp_path: Path):
    with pytest.raises(TraceError, match=r"cannot be read: Is a directory"):
        Trace.load(tmp_path)


@pytest.mark.parametrize("content", [b"", b"P", b"op,id,size\n0,0,1\n", b"\x93NUMPY\x01\x00"])
def test_other_file_is_refused_as_not_an_npz(content: bytes, tmp_path: Path):
    path = tmp_path / "other.npz"
    path.write_bytes(content)

    with pytest.raises(TraceError, match=r"other\.npz: not an \.npz file"):
        Trace.load(path)


def test_pickled_objects_are_not_loaded(members, tmp_path: Path):
    members["op"] = np.array([{}, 1, 2], object)

    assert_refused(tmp_path / "a.npz", members, r"damaged .*Object arrays cannot be loaded")


@pytest.mark.parametrize("name", ["op", "id", "size", "stream", "meta", "seg_pos"])
def test_missing_array_is_named(name: str, members, tmp_path: Path):
    del members[name]

    assert_refused(tmp_path / "a.npz", members, rf"a\.npz: missing array\(s\): {name}")


def test_initial_blocks_without_their_sizes_are_refused(members, tmp_path: Path):
    del members["init_block"]

    assert_refused(tmp_path / "a.npz", members, r"n_init is 1, but 'init_block' has 0 entries")


@pytest.mark.parametrize(
    ("name", "dtype", "message"),
    [
        ("id", "int64", r"array 'id' must be int32, got int64"),
        ("size", "float64", r"array 'size' must be int64, got float64"),
        ("seg_kind", "int8", r"array 'seg_kind' must be uint8, got int8"),
    ],
)
def test_array_of_another_type_is_named(name, dtype, message, members, tmp_path: Path):
    members[name] = members[name].astype(dtype)

    assert_refused(tmp_path / "a.npz", members, message)


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("op", np.zeros((3, 1), "u1"), r"array 'op' must be one-dimensional, got shape \(3, 1\)"),
        ("id", np.zeros(2, "i4"), r"array 'id' has 2 entries, but 'op' has 3"),
        ("seg_pos", np.zeros(1, "i4"), r"array 'seg_pos' has 1 entries, but 'seg_kind' has 2"),
        ("meta", np.array("{]"), r"'meta' is not JSON: .*line 1 column 2"),
        ("meta", np.array("[" * 100_000), r"'meta' is not JSON"),
        ("meta", np.array("[1]"), r"'meta' must be a JSON object, got list"),
        ("meta", np.array(["{}"]), r"'meta' must be a zero-dimensional string array"),
        ("meta", np.array(3), r"'meta' must be a zero-dimensional string array, got int64"),
        ("meta", np.array('{"format": 2}'), r"format version 2; this cachepool reads version 1"),
    ],
)
def test_array_that_breaks_the_format_is_named(name, array, message, members, tmp_path: Path):
    members[name] = array

    assert_refused(tmp_path / "a.npz", members, message)


def test_later_version_is_refused_before_its_arrays_are_judged(tmp_path: Path):
    members = {"meta": np.array('{"format": 3}'), "op": np.array([3.5])}

    assert_refused(tmp_path / "a.npz", members, r"format version 3; this cachepool reads version 1")


def test_arrays_in_the_other_byte_order_are_read(trace: Trace, members, tmp_path: Path):
    swapped = {
        name: array.astype(array.dtype.newbyteorder(">")) if name != "meta" else array
        for name, array in members.items()
    }

    np.savez(tmp_path / "big.npz", **swapped)

    np.testing.assert_array_equal(Trace.load(tmp_path / "big.npz").events, trace.events)


@pytest.fixture(scope="module")
def file_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("file") / "a.npz"
    scenarios.pipeline_8gib().save(path)
    return path.read_bytes()


@settings(max_examples=60, deadline=None)
@given(share=st.floats(0.01, 0.999))
def test_file_cut_off_anywhere_is_refused(share: float, file_bytes: bytes, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "cut.npz"
    path.write_bytes(file_bytes[: max(2, int(len(file_bytes) * share))])

    with pytest.raises(TraceError, match=r"cut\.npz: damaged or cut off"):
        Trace.load(path)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(place=st.floats(0, 0.999), value=st.integers(0, 255))
def test_file_with_a_flipped_byte_is_read_or_refused(place, value, file_bytes, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "flipped.npz"
    spoilt = bytearray(file_bytes)
    spoilt[int(len(spoilt) * place)] = value
    path.write_bytes(spoilt)

    try:
        trace = Trace.load(path)
    except TraceError:
        return
    assert len(trace) == len(scenarios.pipeline_8gib())
