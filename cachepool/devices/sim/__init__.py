"""A device in plain Python: memory, streams on a virtual clock, and a check of their order.

Read `device` first (what users call); then `machine` (what a call does), `order` (who comes
after whom), `uses` (who touched which bytes), `addresses`, `races`, `faults`, `touched`.
"""

from cachepool.devices.sim.costs import DEFAULT_COSTS, NO_COSTS
from cachepool.devices.sim.device import SimDevice
from cachepool.devices.sim.races import Race, Use
from cachepool.devices.sim.streams import SimEvent, SimStream

__all__ = ["DEFAULT_COSTS", "NO_COSTS", "Race", "SimDevice", "SimEvent", "SimStream", "Use"]
