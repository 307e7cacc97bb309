"""Whose turn it is at the books of a heap.

Compiled, the GIL excludes: a hit and a release run no Python code between their first and
their last write.  Uncompiled, and in both forms off the hot path, `enter` locks and sets
``busy``.  Who finds the books busy (another thread, or a destructor that runs in the middle
of a change) leaves its block in ``pending`` (released) or ``arrived`` (first of a new
segment); the next to leave or enter books them, arrivals first, as a block may be released
before its segment is booked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import RLock
from typing import Any

try:
    import cython
except ImportError:
    from cachepool import _cyshim as cython

from .blocks import Block
from .cache import Cache


@cython.cclass
class Turns:
    """The lock of a heap's books, and what waits to be booked."""

    busy: bool
    lock: Any
    pending: deque[Block]
    arrived: deque[tuple[Cache, Block]]

    def __init__(self) -> None:
        self.busy = False
        self.lock = RLock()
        self.pending = deque()
        self.arrived = deque()

    def enter(self, wait: bool) -> bool:
        """Have the books to ourselves; False when re-entered from a change of ours."""
        if not self.lock.acquire(wait):
            return False
        if self.busy:
            self.lock.release()
            return False
        self.busy = True
        if self.pending or self.arrived:
            self.drain()
        return True

    def leave(self) -> None:
        """Let others at the books, and book what they have left meanwhile."""
        self.busy = False
        self.lock.release()
        if self.pending or self.arrived:
            self.settle()

    def reading(self, function: Callable[[], Any]) -> Any:
        """Call a function with the books to ourselves, and return what it returns.

        Compiled, no signal handler runs between entering, the call and leaving.  Re-entered
        from a change of this thread, in a finaliser say, there is nobody to wait for: the
        function reads the books as they are.
        """
        entered = self.enter(True)
        try:
            return function()
        finally:
            if entered:
                self.leave()

    def drain(self) -> None:
        """Book what waits; arrivals first, as one may be among the pending by now."""
        while self.arrived:
            cache, b = self.arrived.popleft()
            self.admit(cache, b)
        while self.pending:
            self.put(self.pending.popleft())

    def settle(self) -> None:
        """Book what waits, unless someone (maybe us, below) has the books."""
        while (self.pending or self.arrived) and self.enter(False):
            self.busy = False
            self.lock.release()

    def admit(self, cache: Cache, b: Block) -> None:
        """Book a new segment; the books are ours."""
        raise NotImplementedError

    def put(self, b: Block) -> None:
        """Count a released block and put it into its cache; the books are ours."""
        raise NotImplementedError
