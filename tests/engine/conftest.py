"""For tests of the engine: a heap, and collections that stay cheap."""

import gc

import pytest
from upstreams import Bench


@pytest.fixture
def bench():
    """Return a heap without a limit over memory without end."""
    return Bench()


@pytest.fixture(scope="module", autouse=True)
def small_garbage():
    """Let what is imported be no garbage."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
