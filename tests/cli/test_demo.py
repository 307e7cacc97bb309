"""``cachepool demo``: its figures against the requests it made, its text, its ends."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import cachepool
from cachepool.cli import main
from cachepool.cli.demo import EPILOG, measure
from cachepool.devices.sim.costs import DEFAULT_COSTS
from cachepool.offline import Trace, replay
from tests.cli import documented, process

cupy = pytest.importorskip("cupy")

ALLOCATE = 0
ISSUE_KEYS = {
    "device",
    "compiled",
    "peak_allocated",
    "peak_reserved",
    "hit_rate",
    "upstream_allocations",
    "returned_by_empty_cache",
    "peers",
}
PEER_KEYS = {"peak_allocated", "peak_reserved", "hit_rate", "upstream_allocations"}


class Ran(NamedTuple):
    figures: dict[str, Any]
    trace: Trace
    #: op, id and size of each event
    events: list[tuple[int, int, int]]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    path = tmp_path_factory.mktemp("demo") / "demo.npz"
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main(["demo", "--device", "sim", "--json", "--save-trace", str(path)])
    assert code == 0
    trace = Trace.load(path)
    columns = (trace.events[field].tolist() for field in ("op", "id", "size"))
    return Ran(json.loads(out.getvalue()), trace, list(zip(*columns, strict=True)))


def rounded(size: int) -> int:
    return (size + 511) // 512 * 512


def levels(events: list[tuple[int, int, int]]) -> list[int]:
    """Return the bytes allocated after each event, each size rounded up to 512."""
    live: dict[int, int] = {}
    found = []
    for op, block, size in events:
        if op == ALLOCATE:
            live[block] = rounded(size)
        else:
            del live[block]
        found.append(sum(live.values()))
    return found


def test_json_keys_are_those_documented(ran: Ran):
    assert set(ran.figures) == documented.keys(EPILOG)
    assert set(ran.figures) >= ISSUE_KEYS


def test_device_and_form_are_told(ran: Ran):
    assert ran.figures["device"] == "sim"
    assert ran.figures["compiled"] is cachepool.__compiled__
    assert ran.figures["cachepool"] == cachepool.__version__


def test_seed_example_shows_that_freed_memory_stays_reserved_until_the_cache_is_emptied(ran: Ran):
    figures = [(step["allocated"], step["reserved"]) for step in ran.figures["seed_example"]]

    start, allocated, freed, emptied = figures
    assert start == emptied == (0, 0)
    assert allocated[0] == 3_000_320
    assert allocated[1] >= 3_000_320
    assert freed == (0, allocated[1])


def test_workload_uses_two_streams_and_varying_sizes_and_leaves_something_behind(ran: Ran):
    sizes = {size for _, _, size in ran.events}

    assert len(set(ran.trace.events["stream"].tolist())) == 2
    assert len(sizes) > 50
    assert levels(ran.events)[-1] > 0


def test_peak_allocated_is_that_of_the_requests(ran: Ran):
    assert ran.figures["peak_allocated"] == max(levels(ran.events))


def test_requests_hits_and_upstream_allocations_add_up(ran: Ran):
    requests = sum(op == ALLOCATE for op, _, _ in ran.events)

    assert ran.figures["requests"] == requests
    assert ran.figures["hits"] == requests - ran.figures["upstream_allocations"]
    assert ran.figures["hit_rate"] == ran.figures["hits"] / requests


def test_same_requests_replayed_on_another_pool_give_the_same_figures(ran: Ran):
    again = replay(ran.trace, "cachepool")

    names = ("hits", "hit_rate", "peak_reserved", "upstream_allocations", "upstream_frees")
    assert {n: ran.figures[n] for n in names} == {n: getattr(again, n) for n in names}


@pytest.mark.parametrize("peer", ["none", "cupy"])
def test_peer_has_the_figures_of_an_independent_replay(peer: str, ran: Ran):
    result = replay(ran.trace, peer)

    found = ran.figures["peers"][peer]
    assert set(found) == PEER_KEYS
    assert found == {name: getattr(result, name) for name in PEER_KEYS}


def test_no_cache_calls_the_device_for_each_request_and_holds_what_is_allocated(ran: Ran):
    assert ran.figures["peers"]["none"] == {
        "peak_allocated": max(levels(ran.events)),
        "peak_reserved": max(levels(ran.events)),
        "hit_rate": 0.0,
        "upstream_allocations": ran.figures["requests"],
    }


def test_calls_saved_and_their_time_are_counted_against_no_cache(ran: Ran):
    requests = ran.figures["requests"]
    releases = len(ran.events) - requests
    takes = requests - ran.figures["upstream_allocations"]
    gives = releases - ran.figures["upstream_frees"]

    seconds = takes * DEFAULT_COSTS["reserve"] + gives * DEFAULT_COSTS["release"]
    assert ran.figures["device_calls_saved"] == takes + gives
    assert ran.figures["saved_s"] == pytest.approx(seconds)
    assert ran.figures["time"] == "simulated"


def test_timeline_follows_the_requests_and_keeps_both_peaks(ran: Ran):
    allocated = levels(ran.events)

    timeline = ran.figures["timeline"]
    assert [row[1] for row in timeline] == [allocated[row[0]] for row in timeline]
    assert max(row[1] for row in timeline) == ran.figures["peak_allocated"]
    assert max(row[2] for row in timeline) == ran.figures["peak_reserved"]
    assert timeline[-1][0] == len(ran.events) - 1


def test_empty_cache_accounts_for_all_that_was_cached_at_the_end(ran: Ran):
    _, allocated, reserved = ran.figures["timeline"][-1]
    kept = ran.figures["kept_by_empty_cache"]

    assert ran.figures["returned_by_empty_cache"] + kept == reserved - allocated
    assert kept > 0
    assert f"{kept:,} bytes" in " ".join(ran.figures["kept_because"])


def test_two_runs_are_the_same(ran: Ran):
    figures, trace = measure("sim")

    assert figures.hit_rate == ran.figures["hit_rate"]
    assert [list(row) for row in figures.timeline] == ran.figures["timeline"]
    assert (trace.events == ran.trace.events).all()


def test_account_is_plain_text_of_at_most_100_columns_with_the_figures(ran: Ran, capsys):
    before = cupy.cuda.get_allocator()

    assert main(["demo", "--device", "sim"]) == 0

    out, err = capsys.readouterr()
    figures = ran.figures
    assert err == ""
    assert out.isascii()
    assert max(map(len, out.splitlines())) <= 100
    for text in (
        "3,000,320",
        f"hit rate {figures['hit_rate']:.1%}",
        f"{figures['device_calls_saved']:,} saved",
        f"gave back {figures['returned_by_empty_cache']:,} bytes",
        f"kept {figures['kept_by_empty_cache']:,} bytes",
        "CuPy's own pool",
        "no cache",
    ):
        assert text in out
    assert cachepool.get_pool() is None
    assert cupy.cuda.get_allocator() == before


def test_too_small_a_device_is_out_of_memory_said_in_one_line(capsys):
    assert main(["demo", "--device", "sim:100MiB"]) == 1

    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("cachepool demo: Out of memory allocating ")
    assert cachepool.get_pool() is None


def test_stream_that_does_not_wait_for_the_other_is_found_as_a_race(monkeypatch, capsys):
    from cachepool.cli.workload import SimulatedWork

    monkeypatch.setattr(SimulatedWork, "follow", lambda self, later, earlier: None)

    assert main(["demo", "--device", "sim"]) == 1

    assert capsys.readouterr().err.startswith("cachepool demo: RaceError: ")
    assert cachepool.get_pool() is None


def test_trace_that_cannot_be_written_is_exit_code_1_with_the_path(tmp_path: Path, capsys):
    path = tmp_path / "no such folder" / "demo.npz"

    assert main(["demo", "--device", "sim", "--save-trace", str(path)]) == 1

    assert str(path.parent) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("device", "message"),
    [("gpu", "unknown device 'gpu'"), ("sim:8 apples", "capacity must be a number of bytes")],
)
def test_wrong_device_is_exit_code_2(device: str, message: str, capsys):
    assert main(["demo", "--device", device]) == 2

    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"cachepool demo: {message}")


def test_json_stands_alone_on_stdout_of_a_process():
    done = process.run("demo", "--json")

    assert done.returncode == 0
    assert json.loads(done.stdout)["hit_rate"] > 0.9
    assert all("using a simulated one" in line for line in done.stderr.splitlines())


def test_without_cupy_the_extra_to_install_is_named():
    done = process.run_without("cupy", "demo")

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("cachepool demo: the demo needs CuPy")
    assert "cachepool[cuda12]" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.gpu
def test_gpu_computes_what_the_batches_add_up_to(capsys):
    from cachepool.devices.cuda import probe

    if (why := probe()) is not None:
        pytest.skip(f"no CUDA device: {why}")

    assert main(["demo", "--device", "cuda", "--json"]) == 0

    assert json.loads(capsys.readouterr().out)["device"] == "cuda"
