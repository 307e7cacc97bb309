"""Where the recorded traces are, and what BASELINES.md says of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
TRACES = Path(os.environ.get("CACHEPOOL_TRACES", CHECKOUT.parent / "shared" / "traces"))
BASELINES = TRACES / "BASELINES.md"

NO_TRACES = f"no recorded traces in {TRACES}; set CACHEPOOL_TRACES"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a test that takes `trace_path` every recorded trace, or one skip."""
    if "trace_path" in metafunc.fixturenames:
        paths = sorted(TRACES.glob("*.npz"))
        skip = pytest.mark.skip(reason=NO_TRACES)
        cases = paths or [pytest.param(None, marks=skip)]
        ids = [path.stem for path in paths] or ["none"]
        metafunc.parametrize("trace_path", cases, ids=ids)


@pytest.fixture(scope="session")
def traces() -> Path:
    if not list(TRACES.glob("*.npz")):
        pytest.skip(NO_TRACES)
    return TRACES


def table(heading: str) -> dict[str, list[str]]:
    """Return the rows of the tables below a heading of BASELINES.md, by their first cell."""
    text = BASELINES.read_text(encoding="utf-8")
    section = text.split(f"\n## {heading}", 1)[1].split("\n## ")[0]
    rows = [line.strip("| ").split("|") for line in section.splitlines() if line.startswith("|")]
    return {row[0].strip(): [cell.strip() for cell in row[1:]] for row in rows}


@pytest.fixture(scope="session")
def cupy_utilisation(traces: Path) -> dict[str, str]:
    """Per cent, as printed, by trace."""
    recorded = {name: row[1] for name, row in table("Utilisation by trace").items()}
    made = {name: row[0] for name, row in table("Synthetic programs").items()}
    return recorded | made


@pytest.fixture(scope="session")
def cupy_requests(traces: Path) -> dict[str, str]:
    """Requests to the driver, as printed, by trace; not given for the synthetic ones."""
    return {name: row[1] for name, row in table("Requests to the driver").items()}


@pytest.fixture(scope="session")
def cupy_smallest(traces: Path) -> dict[str, str]:
    """Peak live bytes over the smallest device, per cent as printed; recordings only."""
    return {name: row[0] for name, row in table("Smallest device\n").items()}
