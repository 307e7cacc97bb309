"""``python -m cachepool``: the command line."""

from cachepool.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
