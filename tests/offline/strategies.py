"""Random programs for Hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from cachepool.offline import Trace
from tests.offline.scenarios import Program

SIZES = st.one_of(
    st.integers(0, 5000),
    st.sampled_from([0, 1, 511, 512, 513, 1024, 1536, 2048, 4096]),
    st.integers(1, 40).map(lambda pages: pages * 512),
)

STEP = st.one_of(
    st.tuples(st.just("allocate"), SIZES, st.integers(0, 2)),
    st.tuples(st.just("free"), st.integers(0, 2**16), st.just(0)),
)

# Hypothesis makes lists about five longer than their least size: long ones must be asked for.
STEPS = st.one_of(st.lists(STEP, max_size=20), st.lists(STEP, min_size=30, max_size=70))


def program(steps: list[tuple[str, int, int]]) -> Trace:
    """Return a valid trace: a free takes one of the live blocks, or nothing if none is."""
    noted = Program()
    live: list[int] = []
    for kind, number, stream in steps:
        if kind == "allocate":
            live.append(noted.allocate(number, stream))
        elif live:
            noted.free(live.pop(number % len(live)))
    return noted.trace("random") if noted.events else Trace([], [], [], [])


PROGRAMS = STEPS.map(program)
