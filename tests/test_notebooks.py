"""The notebooks as committed: with the outputs that a run gives, and nothing of the machine."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

import cachepool

pytest.importorskip("cupy")

NOTEBOOKS = sorted((Path(__file__).resolve().parents[1] / "notebooks").glob("*.ipynb"))
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def code_cells(path: Path) -> list[dict[str, Any]]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def committed_text(cell: dict[str, Any]) -> str:
    """Return what a cell printed, then what it evaluated to."""
    shown = [output.get("text") or output["data"]["text/plain"] for output in cell["outputs"]]
    return "".join(line for lines in shown for line in lines).rstrip("\n")


def run(source: str, names: dict[str, Any]) -> str:
    """Run a cell and return the same of it."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(tree, "cell", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
            out.write("" if value is None else repr(value))
    return out.getvalue().rstrip("\n")


@pytest.fixture
def no_pool_left():
    yield
    while cachepool.get_pool() is not None:
        cachepool.disable()


def test_there_are_notebooks():
    assert "01_unused_memory" in [path.stem for path in NOTEBOOKS]


@each_notebook
def test_committed_outputs_are_those_of_a_run(path: Path, no_pool_left):
    names: dict[str, Any] = {}
    cells = [cell for cell in code_cells(path) if "matplotlib" not in "".join(cell["source"])]

    found = [run("".join(cell["source"]), names) for cell in cells]

    assert found == [committed_text(cell) for cell in cells]


@each_notebook
def test_notebook_was_run_from_the_top_and_has_a_picture(path: Path):
    cells = code_cells(path)

    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert any("image/png" in output.get("data", {}) for output in outputs)


@each_notebook
def test_notebook_names_no_path_of_the_machine_it_was_run_on(path: Path):
    text = " ".join(committed_text(cell) for cell in code_cells(path))

    assert re.findall(r"(?:/home|/root|/tmp|/usr|/work|site-packages)\S*", text) == []
