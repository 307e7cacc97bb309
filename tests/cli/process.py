"""The command line in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]

BLOCKED = """\
import sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r} or name.startswith({name!r} + "."):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Finder())
from cachepool.cli import main
sys.exit(main({arguments!r}))
"""


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return _python("-m", "cachepool", *arguments, environment=environment)


def run_without(name: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run where a package cannot be found."""
    script = BLOCKED.format(name=name, arguments=list(arguments))
    return _python("-c", script, environment=environment)


def _python(*arguments: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    env = os.environ | {"PYTHONPATH": str(CHECKOUT)} | environment
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
