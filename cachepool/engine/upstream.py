"""What a heap asks of the place that its segments come from."""

from __future__ import annotations

from typing import Any, Protocol


class Held(Protocol):
    """What upstream returns for a segment, and gets back."""

    ptr: int


class Upstream(Protocol):
    """Where the heap's segments come from; `identity` says what kind of memory it is."""

    identity: str

    def reserve(self, nbytes: int) -> Held:
        """Take memory; DeviceFullError when there is none."""

    def release(self, held: Any) -> None:
        """Give memory back, on which no work is pending."""

    def holds(self, held: Any) -> bool:
        """Return whether memory is surely ours still, after a release that was interrupted."""

    def synchronize(self) -> None:
        """Wait for all work on the device."""

    def owner(self, key: int) -> object:
        """Return what keeps the stream of that key alive, or None."""
