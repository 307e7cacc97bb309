"""The memory functions of ``torch.cuda``, with their names, units and meanings.

Methods of the pool; `cachepool` offers the same as functions on the pool enabled now.
`device` is an ordinal, or None for the current device (in `empty_cache`: for all).
"""

from __future__ import annotations

import os
from typing import Any

from cachepool import _form
from cachepool.heaps import ALLOCATED, RESERVED, Heaps
from cachepool.snapshot import snapshot
from cachepool.stats import HeapStats
from cachepool.summary import summary


class Emptied(int):
    """The bytes that `empty_cache` gave back: an int that also says what stayed, and why.

    Attributes
    ----------
    kept : int
        Bytes that are cached still.
    reasons : tuple of str
        Why they could not be given back, a line each.
    """

    kept: int
    reasons: tuple[str, ...]

    def __new__(cls, given: int, kept: int, reasons: tuple[str, ...]) -> Emptied:
        """Make the result of giving `given` bytes back."""
        self = super().__new__(cls, given)
        self.kept = kept
        self.reasons = reasons
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return (Emptied, (int(self), self.kept, self.reasons))


class TorchNames(Heaps):
    """What ``torch.cuda`` offers for its own allocator."""

    def memory_allocated(self, device: int | None = None) -> int:
        """Return the bytes that live arrays hold, each rounded up to 512.

        As ``torch.cuda.memory_allocated``.  O(1), never synchronises.
        """
        return self._read(device, ALLOCATED, 0)

    def max_memory_allocated(self, device: int | None = None) -> int:
        """Return the peak of `memory_allocated` since the start or the last reset, in bytes."""
        return self._read(device, ALLOCATED, 1)

    def memory_reserved(self, device: int | None = None) -> int:
        """Return the bytes taken from the device and not yet given back.

        As ``torch.cuda.memory_reserved``: all segments, cached memory included; what
        nvidia-smi counts as used, next to the CUDA context.  O(1), never synchronises.
        """
        return self._read(device, RESERVED, 0)

    def max_memory_reserved(self, device: int | None = None) -> int:
        """Return the peak of `memory_reserved` since the start or the last reset, in bytes."""
        return self._read(device, RESERVED, 1)

    def memory_stats(self, device: int | None = None) -> dict[str, int | float]:
        """Return all figures, flat and sorted: torch's keys, and some of our own.

        As ``torch.cuda.memory_stats``: ``<metric>.<pool>.<type>`` with pool ``all``,
        ``small_pool`` (requests up to 1 MiB) or ``large_pool`` and type ``current``,
        ``peak``, ``allocated`` or ``freed``.  Further: ``fragmentation`` (1 − largest free ÷
        all free), ``largest_free_block``, ``cached_bytes``, ``releasable_bytes`` (what
        `empty_cache` would give back), ``streams.<n>.<metric>.<type>``.  O(blocks).
        """
        return self._stats_of(device).flat()

    def memory_stats_as_nested_dict(self, device: int | None = None) -> dict[str, Any]:
        """Return the figures of `memory_stats` as a tree of dicts."""
        return self._stats_of(device).nested()

    def memory_summary(self, device: int | None = None, abbreviated: bool = False) -> str:
        """Return a table of the figures, laid out as ``torch.cuda.memory_summary``."""
        ordinal = self.ordinal(device)
        return summary(self._stats_of(ordinal).flat(), ordinal, abbreviated)

    def memory_snapshot(self, device: int | None = None) -> list[dict[str, Any]]:
        """Return the segments and their blocks, in torch's format, by address.

        Parameters
        ----------
        device : int, optional
            Only of this device; of all if None, as torch.
        """
        if device is not None:
            return snapshot(self.heap(self.ordinal(device)))
        return [segment for heap in self.heaps() for segment in snapshot(heap)]

    def reset_peak_memory_stats(self, device: int | None = None) -> None:
        """Let every peak be the current value."""
        self._stats_of(device).reset_peaks()

    def reset_max_memory_allocated(self, device: int | None = None) -> None:
        """Reset all peaks, as torch's function of that name does."""
        self.reset_peak_memory_stats(device)

    def reset_max_memory_reserved(self, device: int | None = None) -> None:
        """Reset all peaks, as torch's ``reset_max_memory_cached`` does."""
        self.reset_peak_memory_stats(device)

    reset_max_memory_cached = reset_max_memory_reserved

    def reset_accumulated_memory_stats(self, device: int | None = None) -> None:
        """Let every ``allocated`` and ``freed``, and the counts ``num_…``, be 0."""
        self._stats_of(device).reset_accumulated()

    def empty_cache(self, device: int | None = None, stream: object = None) -> Emptied:
        """Give every segment that no array lives in back to the device.

        Parameters
        ----------
        device : int, optional
            Only of this device; of all if None, as torch.
        stream : object, optional
            Only what is cached for this stream, given as an object or a handle.

        Returns
        -------
        Emptied
            The bytes given back, an int with ``kept`` (bytes cached still) and ``reasons``.

        Notes
        -----
        Waits for the work of the devices that give something back.
        """
        heaps = self.heaps() if device is None else [self.heap(self.ordinal(device))]
        key = None if stream is None else self.device.stream_key(stream)
        given = kept = 0
        reasons: list[str] = []
        for heap in heaps:
            only = None if key is None else heap.by_key.get(key)
            if key is not None and only is None:
                continue
            heap.settle()
            given += heap.trim(only, reasons)
            kept += _cached(heap, only)
            reasons += _pinned(heap, only)
        return Emptied(given, kept, tuple(reasons))

    def mem_get_info(self, device: int | None = None) -> tuple[int, int]:
        """Return the bytes free and in all of the whole device, all processes, as torch."""
        ordinal = self.ordinal(device)
        self.heap(ordinal)
        return self.device.mem_info(ordinal)

    def set_per_process_memory_fraction(self, fraction: float, device: int | None = None) -> None:
        """Limit reserved memory to a fraction of the device's memory.

        As ``torch.cuda.set_per_process_memory_fraction``: 1.0 removes the limit.

        Raises
        ------
        TypeError
            If `fraction` is not a float.
        ValueError
            If it is not from 0 to 1.
        """
        if not isinstance(fraction, float):
            raise TypeError(f"fraction must be a float, got {fraction!r}")
        if not 0.0 <= fraction <= 1.0:
            raise ValueError(f"fraction must be from 0 to 1, got {fraction}")
        heap = self.heap(self.ordinal(device))
        total = self.device.mem_info(heap.device)[1]
        # A limit of 0 bytes would mean none; one byte is as little as nothing.
        heap.limit = 0 if fraction == 1.0 else max(1, int(fraction * total))

    def get_per_process_memory_fraction(self, device: int | None = None) -> float:
        """Return the limit as a fraction of the device's memory, 1.0 without one."""
        heap = self.heap(self.ordinal(device))
        return heap.limit / self.device.mem_info(heap.device)[1] if heap.limit else 1.0

    def list_gpu_processes(self, device: int | None = None) -> str:
        """Return a list of the processes on a device with the memory they use, as torch.

        Through NVML (package nvidia-ml-py) on a GPU; a simulated device has this process only.
        """
        ordinal = self.ordinal(device)
        if self.device.name != "cuda":
            return _process_lines(ordinal, [(os.getpid(), self.memory_reserved(ordinal))])
        try:
            import pynvml
        except ImportError:
            return "pynvml is not installed: pip install nvidia-ml-py"
        try:
            pynvml.nvmlInit()
            gpu = pynvml.nvmlDeviceGetHandleByIndex(ordinal)
            found = pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)
        except pynvml.NVMLError as error:
            return f"NVML does not answer: {error}"
        return _process_lines(ordinal, [(p.pid, p.usedGpuMemory or 0) for p in found])

    def _read(self, device: int | None, figure: int, which: int) -> int:
        heap = self.heap(self.ordinal(device))
        heap.settle()
        return heap.counters.read(figure, 2)[which]

    def _stats_of(self, device: int | None) -> HeapStats:
        heap = self.heap(self.ordinal(device))
        return self._stats[heap.device]


def _cached(heap: _form.Heap, only: Any) -> int:
    if only is not None:
        allocated, reserved = (figure[0] for figure in only.read()[1:])
        return int(reserved - allocated)
    return heap.counters.read(RESERVED, 2)[0] - heap.counters.read(ALLOCATED, 2)[0]


def _pinned(heap: _form.Heap, only: Any) -> list[str]:
    """Say which cached bytes lie in segments with live blocks."""
    segments = heap.reading(
        lambda: [
            (s.live, free)
            for s in heap.segments.values()
            if s.live and (only is None or s.cache == only.number) and (free := _free_units(s))
        ]
    )
    if not segments:
        return []
    nbytes = sum(free for _, free in segments) * 512
    blocks = sum(live for live, _ in segments)
    return [
        f"device {heap.device}: {nbytes:,} bytes lie in {len(segments)} segment(s) beside "
        f"{blocks} live block(s)"
    ]


def _free_units(segment: Any) -> int:
    units, block = 0, segment.first
    while block is not None:
        if not block.requested:
            units += block.n
        block = block.next
    return units


def _process_lines(device: int, processes: list[tuple[int, int]]) -> str:
    lines = [f"GPU:{device}"]
    lines += [f"process {pid:>10d} uses {n / 2**20:>12.3f} MB GPU memory" for pid, n in processes]
    return "\n".join(lines if processes else [*lines, "no processes are running"])
