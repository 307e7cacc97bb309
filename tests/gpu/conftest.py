"""The real device: skipped, with the driver's own reason, where there is none."""

import gc
from pathlib import Path

import pytest
import smoke

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    mine = [i for i in items if HERE in i.path.parents and i.get_closest_marker("gpu")]
    why = smoke.why_not() if mine else None
    if why is not None:
        for item in mine:
            item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture
def pool():
    """Give the pool enabled on the GPU; afterwards its books are exact."""
    import cachepool

    with cachepool.enable(device="cuda") as pool:
        yield pool
        gc.collect()
        smoke.exact_books(pool)
