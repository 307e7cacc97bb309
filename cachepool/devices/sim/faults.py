"""Planned faults, and things that other threads do in the middle of a call.

Plans of one call name are kept in the order in which they were made; each counts the calls
from its own making, so the outcome depends on the order of calls alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from cachepool.devices.sim.costs import DEFAULT_COSTS
from cachepool.errors import DeviceError, DeviceFullError

CALL_NAMES = tuple(DEFAULT_COSTS)
"""The calls that can fail or be interrupted; all but ``launch`` are counted."""

ErrorSource = BaseException | type[BaseException]


class Fault:
    """A planned failure; made by `SimDevice.fail`.

    Attributes
    ----------
    call : str
        The name of the call that fails.
    skip : int
        Calls that still succeed before it.
    times : int or None
        Failures that are still to come; None = for ever.
    """

    call: str
    skip: int
    times: int | None

    def __init__(
        self, plans: list[Fault], call: str, skip: int, times: int | None, error: ErrorSource | None
    ) -> None:
        self.call = call
        self.skip = skip
        self.times = times
        self._error = error
        self._plans = plans

    def remove(self) -> None:
        """Cancel what has not happened yet; does nothing if all has."""
        self.times = 0
        if self in self._plans:
            self._plans.remove(self)

    def fires(self) -> bool:
        """Count one call; return whether this plan makes it fail."""
        if self.skip:
            self.skip -= 1
            return False
        if self.times is not None:
            self.times -= 1
            if self.times <= 0:
                self.remove()
        return True

    def error(self) -> BaseException:
        """Return the exception to raise."""
        if isinstance(self._error, BaseException):
            return self._error
        default = DeviceFullError if self.call == "reserve" else DeviceError
        return (self._error or default)(f"simulated fault in {self.call}")

    def __repr__(self) -> str:
        return f"<Fault in {self.call}: after {self.skip} calls, {self.times} times>"


@dataclass(slots=True)
class Moment:
    """What is planned for one call: before its effect, after it, or instead of it."""

    before: list[Callable[[], object]] = field(default_factory=list)
    after: list[Callable[[], object]] = field(default_factory=list)
    error: BaseException | None = None

    def take_error(self) -> BaseException:
        """Return the error and forget it: else it and the frames it passed keep each other."""
        error, self.error = self.error, None
        assert error is not None
        return error


class Plans:
    """All faults and interruptions of one simulated machine."""

    faults: list[Fault]

    def __init__(self) -> None:
        self.faults = []
        self._interruptions: list[tuple[str, str, Callable[[], object]]] = []

    def __bool__(self) -> bool:
        return bool(self.faults or self._interruptions)

    def fail(self, call: str, skip: int, times: int | None, error: ErrorSource | None) -> Fault:
        """Plan a fault."""
        fault = Fault(self.faults, call, skip, times, error)
        self.faults.append(fault)
        return fault

    def interrupt(self, call: str, when: str, act: Callable[[], object]) -> None:
        """Plan an interruption of the next call of that name."""
        self._interruptions.append((call, when, act))

    def next(self, call: str) -> Moment:
        """Return what is planned for this call, and count it."""
        fired = [fault for fault in list(self.faults) if fault.call == call and fault.fires()]
        moment = Moment(error=fired[0].error() if fired else None)
        for name, when, act in self._interruptions:
            if name == call:
                (moment.before if when == "start" else moment.after).append(act)
        self._interruptions = [plan for plan in self._interruptions if plan[0] != call]
        return moment
