"""The errors that cachepool raises; ``OutOfMemoryError`` has a room of its own (`oom`)."""

from __future__ import annotations


class OptionError(ValueError):
    """An option, or its value, that the pool does not know."""


class DeviceError(RuntimeError):
    """A device that cannot be used: no driver, a broken one, or no such device."""


class DeviceFullError(MemoryError):
    """The device has no room for the bytes asked; what `Device.reserve` raises then.

    The pool catches it, gives cached memory back and tries again.
    """


class PoolCorruptionError(RuntimeError):
    """The pool's books contradict themselves.

    Attributes
    ----------
    breaches : list of str
        Every breach found, each with the number of the invariant and the address.
    """

    def __init__(self, breaches: list[str]) -> None:
        self.breaches = list(breaches)
        super().__init__(self.breaches)

    def __str__(self) -> str:
        lines = "\n  ".join(self.breaches)
        return f"{len(self.breaches)} breach(es) of the pool's invariants:\n  {lines}"


class RaceError(RuntimeError):
    """Work on a simulated device touched memory that unordered work still uses."""
