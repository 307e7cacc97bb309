"""The benchmark runs both pools for real; how fast they are is not a test's business."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

SMALL_RUN = """
import json
from cachepool.bench import nodriver
nodriver.install()
from cachepool.bench import cases
cases.PAIRS, cases.TURNS, cases.HOLES = 40, 3, (10, 100)
print(json.dumps([timing.as_dict() for timing in cases.run()]))
"""

AFTER_CUPY = """
import cupy
from cachepool.bench import nodriver
nodriver.driver_answers = lambda: False
nodriver.install()
"""


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def timings():
    done = python(SMALL_RUN)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_case_is_timed_on_both_sides(timings):
    assert [t["case"] for t in timings] == [
        "hit_512",
        "hit_3mib",
        "mixed",
        "holes_10",
        "holes_100",
    ]
    assert all(t["ours_ns"] > 0 and t["peer_ns"] > 0 for t in timings)


def test_the_ratio_lies_within_its_spread(timings):
    assert all(t["spread"][0] <= t["ratio"] <= t["spread"][1] for t in timings)


def test_the_peer_is_cupys_own_pool(timings):
    assert {t["peer"].split()[0] for t in timings} == {"cupy"}


def test_a_process_that_has_imported_cupy_is_told_so():
    done = python(AFTER_CUPY)
    assert done.returncode == 1
    assert "has not imported CuPy yet" in done.stderr
