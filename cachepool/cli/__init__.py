"""The command line: ``python -m cachepool COMMAND``, or ``cachepool COMMAND``."""

from cachepool.cli.main import main

__all__ = ["main"]
