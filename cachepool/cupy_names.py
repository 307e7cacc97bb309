"""The methods of ``cupy.cuda.MemoryPool``: a program written for it runs unchanged.

They speak of the current device, as CuPy's do.
"""

from __future__ import annotations

import warnings

from cachepool.heaps import ALLOCATED, RESERVED
from cachepool.sizes import parse_size
from cachepool.torch_names import TorchNames


class CupyNames(TorchNames):
    """What CuPy's own pool offers besides ``malloc``."""

    def used_bytes(self) -> int:
        """Return the bytes of live blocks on the current device."""
        return self._current(ALLOCATED)

    def total_bytes(self) -> int:
        """Return the bytes taken from the current device: used and free."""
        return self._current(RESERVED)

    def free_bytes(self) -> int:
        """Return the bytes cached on the current device."""
        return self._current(RESERVED) - self._current(ALLOCATED)

    def n_free_blocks(self) -> int:
        """Return the number of cached blocks on the current device, neighbours as one."""
        return self.heap(self.device.current()).free_space()[2]

    def free_all_blocks(self, stream: object = None) -> None:
        """Give the wholly free segments of the current device back, of one stream or of all.

        Parameters
        ----------
        stream : object, optional
            Only what is cached for this stream.
        """
        self.empty_cache(self.device.current(), stream)

    def free_all_free(self) -> None:
        """Give all wholly free segments back; CuPy's older name of `free_all_blocks`."""
        warnings.warn("free_all_free is deprecated, use free_all_blocks", DeprecationWarning, 2)
        self.free_all_blocks()

    def set_limit(self, size: int | str | None = None, fraction: float | None = None) -> None:
        """Limit what may be taken from the current device.

        Parameters
        ----------
        size : int or str, optional
            Bytes, or text such as ``"8GiB"``; 0 is no limit, and so is neither argument.
        fraction : float, optional
            Of the device's memory, 0 to 1.

        Raises
        ------
        ValueError
            If both are given, or one is out of its range; the limit stays as it was.

        Notes
        -----
        Applies to new memory only: what is held above a lowered limit stays.
        """
        heap = self.heap(self.device.current())
        if fraction is not None:
            if size is not None:
                raise ValueError(f"give size or fraction, got both: {size!r} and {fraction!r}")
            if not 0 <= fraction <= 1:
                raise ValueError(f"fraction must be from 0 to 1, got {fraction!r}")
            size = int(fraction * self.device.mem_info(heap.device)[1])
        heap.limit = 0 if size is None else parse_size(size)

    def get_limit(self) -> int:
        """Return the limit of the current device in bytes, 0 if there is none."""
        return int(self.heap(self.device.current()).limit)

    def _current(self, figure: int) -> int:
        heap = self.heap(self.device.current())
        heap.settle()
        return heap.counters.read(figure, 2)[0]
