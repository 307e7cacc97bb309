"""Stock CuPy on a stand-in HIP runtime: the marker ``rig``, and books that must be exact."""

import gc
from pathlib import Path

import pytest
from rigging import MIB, find_rig

import cachepool

DEVICES = (0, 1)
CAPACITY = 16 * 1024 * MIB
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("rig")


@pytest.fixture(scope="session")
def the_rig():
    found = find_rig()
    if isinstance(found, str):
        pytest.skip(found)
    return found


@pytest.fixture(autouse=True)
def rig(the_rig):
    """Give the rig; afterwards nothing more is taken, no stream more lives, no write was lost."""
    gc.collect()
    for device in DEVICES:
        the_rig.capacity(CAPACITY, device)
    before = books(the_rig)
    yield the_rig
    the_rig.fail_malloc(-1)
    gc.collect()
    left = {what: n - before[what] for what, n in books(the_rig).items() if n > before[what]}
    assert left == {}


@pytest.fixture
def pool(rig):
    """Give the pool enabled on the rig; afterwards its books and the rig's are exact."""
    used = [rig.used(device) for device in DEVICES]
    with cachepool.enable() as pool:
        yield pool
        gc.collect()
        pool.check()
        assert [pool.memory_allocated(device) for device in DEVICES] == [0, 0]
        pool.empty_cache()
        assert [pool.memory_reserved(device) for device in DEVICES] == [0, 0]
        assert [rig.used(device) for device in DEVICES] == used
        pool.close()


def books(rig):
    """Return what no test may leave more of than it found."""
    return {
        "bytes used on device 0": rig.used(0),
        "bytes used on device 1": rig.used(1),
        "managed allocations": rig.live_managed(),
        "streams": rig.live_streams(),
        "operations whose memory was freed": rig.freed_under_pending(),
    }
