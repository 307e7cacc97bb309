"""Replay: the events of a trace, one after the other, on a policy over an empty device."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from cachepool.errors import DeviceFullError
from cachepool.offline.policies import Policy, make_policy
from cachepool.offline.result import ReplayResult, thin
from cachepool.offline.trace import ALIGNMENT, Trace
from cachepool.offline.validate import ALLOCATE
from cachepool.sizes import parse_size

PROGRESS_EVERY = 1024
"""Events between two calls of a progress callback."""

Progress = Callable[[int, int], object]


def replay(
    trace: Trace | str | os.PathLike[str],
    policy: str = "cachepool",
    *,
    capacity: int | str | None = None,
    progress: Progress | None = None,
    **options: object,
) -> ReplayResult:
    """Replay a trace on a policy and return what it would have cost.

    Parameters
    ----------
    trace : Trace or path-like
        What to replay, or the file to load.
    policy : {"cachepool", "cupy", "none"}
        ``cachepool``: the real pool on a simulated device.  ``cupy``: CuPy's pool.
        ``none``: no pool, each request goes to the device.
    capacity : int or str, optional
        Memory of the device, bytes or text such as ``"8GiB"``; no limit if None.
    progress : callable, optional
        Called with the events done and their number, every `PROGRESS_EVERY` events.
    **options
        What the policy takes: ``ties="lowest"`` or ``"newest"`` for ``cupy``; the options of
        `CachePool` for ``cachepool``.

    Returns
    -------
    ReplayResult
        Where memory ran out, the figures up to there and ``oom_at``.

    Raises
    ------
    TraceError
        If the file cannot be read or contradicts itself.
    ValueError
        If there is no such policy, it has no such option, or a value is not allowed.

    Notes
    -----
    No GPU is used and no work is enqueued.  Frees take effect at once, on the stream the
    block was allocated on.

    Examples
    --------
    >>> trace = Trace(op=[0, 1, 0], id=[0, 0, 1], size=[4096, 4096, 512], stream=[0, 0, 0])
    >>> result = replay(trace, "cupy")
    >>> result.upstream_allocations, result.peak_reserved
    (1, 4096)
    """
    if not isinstance(trace, Trace):
        trace = Trace.load(trace)
    limit = None if capacity is None else parse_size(capacity, "capacity")
    run = _Run(trace, make_policy(policy, limit, options))
    run.play(progress)
    return run.result(limit)


class _Run:
    """A replay under way: where it stands, and what was seen after each event."""

    def __init__(self, trace: Trace, policy: Policy) -> None:
        self.trace = trace
        self.policy = policy
        allocations = int(np.count_nonzero(trace.events["op"] == ALLOCATE))
        self.addresses = np.full(allocations, -1, np.int64)
        self.reserved: list[int] = []
        self.requests = 0
        self.hits = 0
        self.oom_size: int | None = None

    def play(self, progress: Progress | None) -> None:
        """Play every event, or up to the one that runs out of memory."""
        events = self.trace.events
        # Python ints: a tenth of the cost of numpy scalars in what follows.
        columns = [events[field].tolist() for field in ("op", "id", "size", "stream")]
        for op, block, size, stream in zip(*columns, strict=True):
            if op != ALLOCATE:
                self.policy.free(block)
            elif not self._allocate(block, size, stream):
                break
            self.reserved.append(self.policy.reserved)
            if progress is not None and not len(self.reserved) % PROGRESS_EVERY:
                progress(len(self.reserved), len(events))

    def _allocate(self, block: int, size: int, stream: int) -> bool:
        """Serve a request; False if memory ran out."""
        before = self.policy.upstream_allocations
        self.requests += size > 0
        try:
            self.addresses[block] = self.policy.allocate(block, size, stream)
        except DeviceFullError:
            self.oom_size = size
            return False
        self.hits += size > 0 and self.policy.upstream_allocations == before
        return True

    def result(self, capacity: int | None) -> ReplayResult:
        """Return the figures of the events played."""
        done = len(self.reserved)
        live = self.trace.live_bytes()[:done]
        allocated = self.trace.live_bytes(ALIGNMENT)[:done]
        return ReplayResult(
            trace=self.trace.name,
            policy=self.policy.name,
            capacity=capacity,
            peak_live=_peak(live),
            peak_allocated=_peak(allocated),
            peak_reserved=self.policy.peak_reserved,
            reserved=self.policy.reserved,
            requests=self.requests,
            hits=self.hits,
            upstream_allocations=self.policy.upstream_allocations,
            upstream_failures=self.policy.upstream_failures,
            upstream_frees=self.policy.upstream_frees,
            oom_at=None if self.oom_size is None else done,
            oom_size=self.oom_size,
            addresses=self.addresses,
            timeline=thin(allocated, np.array(self.reserved, np.int64)),
        )


def _peak(figure: NDArray[np.int64]) -> int:
    return int(figure.max(initial=0))
