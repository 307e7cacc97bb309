"""Our pool over and under CuPy's own, and both in the same stories.

CuPy's pool asks the driver which device is current, so this runs in a process in which a
stand-in answers; see `stand_in`, and `stacked_scenarios` for what is run.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import conformity  # noqa: F401  skips without CuPy
import pytest
import stacked_scenarios

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def outcomes():
    """Run all scenarios; return by name "" or what went wrong."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(HERE / "stacked_scenarios.py")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), str(HERE)])},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


@pytest.mark.parametrize("scenario", stacked_scenarios.names())
def test_what_holds_together_with_cupys_own_pool(outcomes, scenario):
    assert outcomes[scenario] == ""
