"""Shared by all tests: hypothesis without deadlines, and no pool left enabled."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import cachepool
from cachepool.install import get_pool

try:
    import hypothesis
except ImportError:  # a bare GPU machine, for tests/gpu
    pass
else:
    hypothesis.settings.register_profile("cachepool", deadline=None, print_blob=True)
    hypothesis.settings.load_profile("cachepool")


def pytest_report_header() -> str:
    """Say which form of the engine is under test."""
    form = "compiled" if cachepool.__compiled__ else "uncompiled"
    return f"cachepool {cachepool.__version__}, {form} engine"


@pytest.fixture(autouse=True)
def no_pool_left_enabled() -> Iterator[None]:
    """Fail a test that leaves a pool enabled, and take the pool away for the next one."""
    yield
    left = 0
    while get_pool() is not None:
        cachepool.disable()
        left += 1
    assert left == 0, f"{left} pool(s) left enabled"
