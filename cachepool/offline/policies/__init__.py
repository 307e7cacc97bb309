"""The policies that replay knows, by name; one file each."""

from __future__ import annotations

from cachepool.offline.policies.cachepool import CachepoolPolicy
from cachepool.offline.policies.cupy import CupyPolicy
from cachepool.offline.policies.none import NonePolicy
from cachepool.offline.policies.protocol import Policy

POLICIES: dict[str, type[Policy]] = {
    policy.name: policy for policy in (CachepoolPolicy, CupyPolicy, NonePolicy)
}
"""Every policy by the name that `cachepool.offline.replay` takes."""

__all__ = ["POLICIES", "CachepoolPolicy", "CupyPolicy", "NonePolicy", "Policy", "make_policy"]


def make_policy(name: str, capacity: int | None, options: dict[str, object]) -> Policy:
    """Return a fresh policy over an empty device.

    Parameters
    ----------
    name : str
        One of `POLICIES`.
    capacity : int or None
        Memory of the device in bytes, None for no limit.
    options : dict
        What the policy takes besides.

    Returns
    -------
    Policy
        Nothing allocated yet.

    Raises
    ------
    ValueError
        If there is no such policy, or it has no such option.
    """
    if name not in POLICIES:
        raise ValueError(f"policy must be one of {', '.join(POLICIES)}, got {name!r}")
    known = POLICIES[name].option_names
    for option in options:
        if known is not None and option not in known:
            allowed = ", ".join(known) or "no options"
            raise ValueError(f"policy {name!r} takes {allowed}, got {option!r}")
    return POLICIES[name](capacity, **options)
