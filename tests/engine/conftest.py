"""For tests of the engine: what is imported is no garbage, so that collections stay cheap."""

import gc

import pytest


@pytest.fixture(scope="module", autouse=True)
def small_garbage():
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
