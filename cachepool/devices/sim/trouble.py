"""What makes a simulated device a test: counts of calls, planned faults, interruptions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from cachepool.devices.sim.arguments import check_at_least, check_name
from cachepool.devices.sim.faults import CALL_NAMES, ErrorSource, Fault
from cachepool.devices.sim.machine import Machine


class TroubleCalls:
    """The part of `SimDevice` that counts calls and disturbs them."""

    _machine: Machine

    @property
    def calls(self) -> Counter[str]:
        """How often each device call was made, failed ones included; a counter of its own.

        Keys: ``reserve, release, record, query`` (of an event), ``query_stream, wait,
        synchronize``.
        """
        with self._machine.lock:
            return Counter(self._machine.calls)

    def fail(
        self, call: str, *, at: int = 1, times: int | None = 1, error: ErrorSource | None = None
    ) -> Fault:
        """Make a coming call fail: it raises, and changes nothing but `calls` and `now`.

        Parameters
        ----------
        call : str
            A key of `calls`, or ``"launch"``.
        at : int, default 1
            Which of the next calls of that name, from 1.
        times : int or None, default 1
            How many in a row; None = for ever.
        error : exception or exception class, optional
            What they raise; `DeviceFullError` for ``reserve`` and `DeviceError` for others if
            None.

        Returns
        -------
        Fault
            Its ``remove()`` cancels what has not happened yet.

        Raises
        ------
        TypeError, ValueError
            If an argument is not what is allowed.
        """
        name = check_name(call, CALL_NAMES, "call")
        skip = check_at_least(at, 1, "at") - 1
        if times is not None:
            times = check_at_least(times, 1, "times")
        kind = error if isinstance(error, type) else type(error)
        if error is not None and not issubclass(kind, BaseException):
            raise TypeError(f"error must be an exception or an exception class, got {error!r}")
        with self._machine.lock:
            return self._machine.plans.fail(name, skip, times, error)

    def during(self, call: str, fn: Callable[[], object], *, when: str = "end") -> None:
        """Run a function inside the next call of a name, as if another thread acted then.

        Parameters
        ----------
        call : str
            A key of `calls`, or ``"launch"``.
        fn : callable
            Takes nothing.  It runs once, in the calling thread, without the machine's lock, also
            if the call fails; what it raises comes out of the call.
        when : {"end", "start"}
            After the call has taken effect and before it returns, or before it takes effect.

        Raises
        ------
        TypeError, ValueError
            If an argument is not what is allowed.
        """
        name = check_name(call, CALL_NAMES, "call")
        moment = check_name(when, ("end", "start"), "when")
        if not callable(fn):
            raise TypeError(f"fn must be callable, got {fn!r}")
        with self._machine.lock:
            self._machine.plans.interrupt(name, moment, fn)
