"""From what a user says of the device to a Device object."""

from __future__ import annotations

import importlib.util
import logging
from typing import Any, cast

from cachepool.devices.protocol import Device
from cachepool.errors import OptionError
from cachepool.options import nearest
from cachepool.sizes import parse_size

logger = logging.getLogger("cachepool")
NAMES = ("auto", "cuda", "sim", "sim:<capacity>")
_said: set[str] = set()


def find_device(device: object, capacity: object) -> Device:
    """Return the device that a pool is asked to use.

    Parameters
    ----------
    device : str or Device
        ``"auto"`` (CUDA when a driver and a device are there, else simulated, which one log
        line says), ``"cuda"``, ``"sim"``, ``"sim:8GiB"``, or a Device object.
    capacity : int or str or None
        Bytes of the simulated device; None is without limit.

    Raises
    ------
    OptionError
        If `device` is no such thing, or `capacity` is given for another device.
    DeviceError
        For ``"cuda"`` without a device; also for ``"auto"`` if the driver is broken.
    """
    if not isinstance(device, str):
        if not all(hasattr(device, name) for name in ("reserve", "release", "current_stream")):
            raise OptionError(f"device must be one of {NAMES} or a Device, got {device!r}")
        if capacity is not None:
            raise OptionError("capacity goes with device='sim'; this device has its own")
        return cast(Device, device)
    kind, colon, size = device.partition(":")
    if kind == "sim":
        if colon and capacity is not None:
            raise OptionError(f"give the capacity once: device={device!r}, capacity={capacity!r}")
        return _simulated(size if colon else capacity)
    if colon or kind not in ("auto", "cuda"):
        raise OptionError(f"unknown device {device!r}{nearest(device, NAMES)}")
    if kind == "auto" and (why := _why_no_cuda()) is not None:
        if why not in _said:
            _said.add(why)
            logger.warning("no CUDA device (%s): using a simulated one", why)
        return _simulated(capacity)
    if capacity is not None:
        raise OptionError("capacity is the simulated device's; on CUDA use limit= instead")
    from cachepool.devices.cuda import CudaDevice

    return cast(Device, CudaDevice())


def _why_no_cuda() -> str | None:
    if importlib.util.find_spec("cupy") is None:
        return "CuPy is not installed"
    from cachepool.devices.cuda import probe

    return probe()


def _simulated(capacity: Any) -> Device:
    from cachepool.devices.sim import SimDevice

    try:
        size = None if capacity is None else parse_size(capacity, "capacity")
    except (TypeError, ValueError) as error:
        raise OptionError(str(error)) from error
    return cast(Device, SimDevice(size))
