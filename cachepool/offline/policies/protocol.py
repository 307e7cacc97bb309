"""What replay asks of a policy; the single page to read before writing another one.

A policy owns its device: it begins with an empty one of a given capacity and counts every
call to it.  Replay feeds the events of a trace in order and reads the figures after each.
"""

from __future__ import annotations

from typing import Any, ClassVar, Protocol


class Policy(Protocol):
    """How an allocator serves requests, told without a GPU."""

    name: ClassVar[str]
    """What `cachepool.offline.replay` and the command line call it."""

    option_names: ClassVar[tuple[str, ...] | None]
    """The keywords that the constructor takes; None if they are checked further down."""

    def __init__(self, capacity: int | None, **options: Any) -> None:
        """Begin with an empty device of `capacity` bytes, None for no limit."""

    def allocate(self, block_id: int, size: int, stream: int) -> int:
        """Serve a request and return its address; 0 for a request of 0 bytes, which is free.

        Raises `cachepool.errors.DeviceFullError` when the policy has tried all it can.
        """

    def free(self, block_id: int) -> None:
        """Take a block back; it was allocated and not freed before."""

    @property
    def reserved(self) -> int:
        """Bytes taken from the device and not given back."""

    @property
    def peak_reserved(self) -> int:
        """Peak of `reserved`, in bytes, moments within a request included."""

    @property
    def upstream_allocations(self) -> int:
        """Requests made to the device, failed ones included."""

    @property
    def upstream_failures(self) -> int:
        """Requests that the device refused."""

    @property
    def upstream_frees(self) -> int:
        """Segments given back to the device."""
