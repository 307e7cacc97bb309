"""The entry: which command runs, what its errors become, what it imports."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

import cachepool
from cachepool.cli import main
from cachepool.cli.main import COMMANDS
from tests.cli import process

IMPORTS = """\
import json, sys
from cachepool.cli import main
try:
    main(["--help"])
except SystemExit as exit:
    print(json.dumps([exit.code, sorted(sys.modules)]), file=sys.stderr)
"""


def fake_command(error: BaseException | None) -> SimpleNamespace:
    """Return a module whose command raises, or prints a line."""

    def run(args: argparse.Namespace) -> int:
        if error is not None:
            raise error
        print("done")
        return 0

    def add_parser(subparsers: argparse._SubParsersAction) -> None:
        subparsers.add_parser("bench").set_defaults(func=run)

    return SimpleNamespace(add_parser=add_parser)


def test_help_lists_every_command_and_imports_neither_cupy_nor_numpy():
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True)

    code, modules = json.loads(done.stderr)
    assert code == 0
    assert all(f"\n    {name} " in done.stdout for name in COMMANDS)
    assert {"cupy", "numpy", "cachepool.cli.demo"}.isdisjoint(modules)


@pytest.mark.parametrize("name", COMMANDS)
def test_line_in_the_help_is_the_one_that_the_command_gives_itself(name: str):
    module = pytest.importorskip(f"cachepool.cli.{name}")
    lines = {}
    listing = SimpleNamespace(
        add_parser=lambda name, **given: (
            lines.update({name: given["help"]}) or argparse.ArgumentParser()
        )
    )

    module.add_parser(listing)

    assert lines == {name: COMMANDS[name]}


def test_version_is_the_package_s():
    done = process.run("--version")

    assert (done.returncode, done.stdout) == (0, f"cachepool {cachepool.__version__}\n")


@pytest.mark.parametrize("arguments", [[], ["dmo"], ["demo", "--jsn"], ["--json"]])
def test_wrong_usage_is_exit_code_2(arguments: list[str], capsys):
    with pytest.raises(SystemExit) as raised:
        main(arguments)

    assert raised.value.code == 2
    assert capsys.readouterr().err.startswith("usage: cachepool")


def test_command_that_is_not_installed_is_said_to_be_so(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "cachepool.cli.bench", None)

    assert main(["bench"]) == 2

    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("cachepool bench: not part of this installation: ")


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (cachepool.OptionError("unknown option"), 2, "unknown option"),
        (cachepool.DeviceError("no device"), 2, "no device"),
        (ImportError("needs CuPy"), 2, "needs CuPy"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (ZeroDivisionError("by zero"), 1, "ZeroDivisionError: by zero (--debug shows where)"),
    ],
)
def test_error_of_a_command_is_one_line_and_an_exit_code(
    error: BaseException, code: int, message: str, monkeypatch, capsys
):
    monkeypatch.setitem(sys.modules, "cachepool.cli.bench", fake_command(error))

    assert main(["bench"]) == code

    assert capsys.readouterr() == ("", f"cachepool bench: {message}\n")


@pytest.mark.parametrize("arguments", [["--debug", "bench"], ["bench", "--debug"]])
def test_debug_lets_the_traceback_through(arguments: list[str], monkeypatch):
    monkeypatch.setitem(sys.modules, "cachepool.cli.bench", fake_command(ZeroDivisionError()))

    with pytest.raises(ZeroDivisionError):
        main(arguments)


def test_command_is_run_with_the_arguments_of_the_process_by_default(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "cachepool.cli.bench", fake_command(None))
    monkeypatch.setattr(sys, "argv", ["cachepool", "bench"])

    assert main() == 0

    assert capsys.readouterr().out == "done\n"


def test_import_of_the_package_s_command_line_gives_the_function():
    assert importlib.import_module("cachepool.cli").main is main
    assert main.__name__ == "main"


@pytest.mark.parametrize("argument", ["doctor", "--help"])
def test_closed_pipe_ends_quietly(argument: str):
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "cachepool", argument],
            stdout=writer,
            stderr=subprocess.PIPE,
            cwd=process.CHECKOUT,
            timeout=120,
        )
    finally:
        os.close(writer)

    assert (done.returncode, done.stderr) == (0, b"")
