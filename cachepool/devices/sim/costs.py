"""What a call costs the host on the virtual clock, in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from cachepool.devices.sim.arguments import check_name, check_seconds

DEFAULT_COSTS: Mapping[str, float] = MappingProxyType(
    {
        "reserve": 150e-6,
        "release": 50e-6,
        "record": 1e-6,
        "query": 1e-6,
        "query_stream": 1e-6,
        "wait": 1e-6,
        "synchronize": 1e-6,
        "launch": 0.0,
    }
)
"""Seconds of host time that each call takes, beyond what `synchronize` waits for."""

NO_COSTS: Mapping[str, float] = MappingProxyType(dict.fromkeys(DEFAULT_COSTS, 0.0))
"""All calls free, for timings computed by hand."""


def complete_costs(costs: Mapping[str, float] | None) -> dict[str, float]:
    """Return the cost of every call: those given, the defaults for the others."""
    complete = dict(DEFAULT_COSTS)
    if costs is None:
        return complete
    if not isinstance(costs, Mapping):
        raise TypeError(f"costs must be a dict of call name to seconds, got {costs!r}")
    for call, seconds in costs.items():
        check_name(call, tuple(DEFAULT_COSTS), "call in costs")
        complete[call] = check_seconds(seconds, f"cost of {call}", forever=False)
    return complete
