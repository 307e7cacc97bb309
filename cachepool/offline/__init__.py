"""Traces of allocations, and what they would cost with one policy or another.

Nothing here is needed by a live pool, and a trace file runs no code.
"""

from __future__ import annotations

from cachepool.offline.policies import POLICIES
from cachepool.offline.result import ReplayResult
from cachepool.offline.run import replay
from cachepool.offline.trace import Trace
from cachepool.offline.validate import TraceError

__all__ = ["POLICIES", "ReplayResult", "Trace", "TraceError", "replay"]
