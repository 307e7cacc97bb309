"""The demo's workload: an iterative image reconstruction on CuPy arrays, two streams.

    upload stream    batch k+1: projections ──────┐ (waits for the batch two before)
    compute stream   batch k:   estimate, padded, spectrum, update ── volume += update

Batches vary in size, workspaces are padded to powers of two as for a Fourier transform, the
volume stays, and small results pile up beside it.  On a GPU every step computes, and the
volume counts the batches at the end; on the simulated device the same steps are launched as
kernels that say what they read and write, so that its checker sees any unordered reuse.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Protocol

import cupy
import numpy as np

BYTES_PER_SECOND = 1e12
"""Memory traffic of a simulated kernel; about what a GPU of today reaches."""

VIEWS = 180
SWEEPS = {1: 6, 2: 12}
"""Sweeps over all views at each scale, coarse to fine."""

BATCH = (6, 20)
"""Views in a batch: at least, at most."""

Kernel = Callable[..., object]


class Work(Protocol):
    """Two streams, and what can be enqueued on them."""

    upload: Any
    compute: Any

    def run(self, stream: Any, kernel: Kernel, out: Any, *ins: Any) -> None:
        """Enqueue ``kernel(out, *ins)``, which writes `out` and reads `ins`."""

    def follow(self, later: Any, earlier: Any) -> None:
        """Let the work to come on one stream wait for the work so far on the other."""

    def finish(self) -> None:
        """Wait for all work."""


class SimulatedWork:
    """Kernels on the virtual clock of a `SimDevice`; nothing is computed."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self.upload, self.compute = device.stream(), device.stream()

    def run(self, stream: Any, kernel: Kernel, out: Any, *ins: Any) -> None:
        """Launch a kernel as long as its memory traffic takes."""
        traffic = sum(array.nbytes for array in (out, *ins))
        stream.launch(traffic / BYTES_PER_SECOND, reads=ins, writes=out)

    def follow(self, later: Any, earlier: Any) -> None:
        """Record and wait."""
        later.wait(earlier.record())

    def finish(self) -> None:
        """Wait for the device."""
        self.device.synchronize()


class CudaWork:
    """Kernels of CuPy on the current device."""

    def __init__(self) -> None:
        self.upload = cupy.cuda.Stream(non_blocking=True)
        self.compute = cupy.cuda.Stream(non_blocking=True)

    def run(self, stream: Any, kernel: Kernel, out: Any, *ins: Any) -> None:
        """Compute."""
        with stream:
            kernel(out, *ins)

    def follow(self, later: Any, earlier: Any) -> None:
        """Record and wait."""
        later.wait_event(earlier.record())

    def finish(self) -> None:
        """Wait for both streams."""
        self.upload.synchronize()
        self.compute.synchronize()


class Reconstruction:
    """Coarse, then fine sweeps over the projections, in batches of random size.

    Parameters
    ----------
    work : Work
        Where to compute.
    seed : int
        Of the batch sizes.

    Attributes
    ----------
    volume : cupy.ndarray
        The result, float32; each batch adds 1 to it where there is a GPU to compute.
    batches : int
        Batches done.
    kept : list of cupy.ndarray
        Small results that stay: norms of each batch, a slice of the volume for each sweep.
    """

    def __init__(self, work: Work, seed: int = 1) -> None:
        self.work = work
        self.random = random.Random(seed)
        self.volume: Any = None
        self.batches = 0
        self.kept: list[Any] = []

    def run(self) -> None:
        """Reconstruct."""
        for scale, sweeps in SWEEPS.items():
            self._begin(scale)
            for _ in range(sweeps):
                self._sweep(scale)
        self.work.finish()

    def wrong_values(self) -> bool:
        """Return whether the volume is not what the batches must have made of it."""
        return bool((cupy.asnumpy(self.volume) != self.batches).any())

    def _begin(self, scale: int) -> None:
        """Take a finer volume in place of the coarse one."""
        with self.work.compute:
            volume = cupy.empty((64 * scale, 128 * scale, 128 * scale), cupy.float32)
        if self.volume is None:
            self._compute(_zero, volume)
        else:
            self._compute(_refine, volume, self.volume)
        self.volume = volume

    def _sweep(self, scale: int) -> None:
        batch = None
        left = VIEWS
        while left or batch is not None:
            views = min(left, self.random.randint(*BATCH))
            left -= views
            following = self._load(views, scale) if views else None
            if batch is not None:
                self._update(batch)
                # The batch goes back to the cache of the upload stream, still being read.
                self.work.follow(self.work.upload, self.work.compute)
            batch = following
        with self.work.compute:
            smooth = cupy.empty_like(self.volume)
            gradient = cupy.empty((3, *self.volume.shape), cupy.float32)
            preview = cupy.empty(self.volume.shape[1:], cupy.float32)
        self._compute(_spread, gradient, self.volume)
        self._compute(_first, smooth, gradient)
        self._compute(_copy, self.volume, smooth)
        self._compute(_first, preview, self.volume)
        self.kept.append(preview)

    def _load(self, views: int, scale: int) -> Any:
        """Upload a batch of projections."""
        with self.work.upload:
            projections = cupy.empty((views, 128 * scale, 192 * scale), cupy.float32)
        self.work.run(self.work.upload, _one, projections)
        return projections

    def _update(self, projections: Any) -> None:
        """Compare a batch with the volume, filter the difference, and add it up."""
        views, _, columns = projections.shape
        self.work.follow(self.work.compute, self.work.upload)
        with self.work.compute:
            difference = cupy.empty_like(projections)
            norms = cupy.empty(views, cupy.float32)
        self._compute(_copy, difference, projections, self.volume)
        self._compute(_corner, norms, difference)
        filtered = self._filter(difference, 1 << (2 * columns - 1).bit_length())
        with self.work.compute:
            update = cupy.empty_like(self.volume)
        self._compute(_spread_corner, update, filtered[:, :, :columns])
        self._compute(_add, self.volume, update)
        self.kept.append(norms)
        self.batches += 1

    def _filter(self, difference: Any, width: int) -> Any:
        """Return rows filtered in frequency space, padded to `width` against wrap-around."""
        views, rows, columns = difference.shape
        with self.work.compute:
            padded = cupy.empty((views, rows, width), cupy.float32)
            spectrum = cupy.empty((views, rows, width // 2 + 1), cupy.complex64)
        self._compute(_zero, padded)
        self._compute(_copy, padded[:, :, :columns], difference)
        self._compute(_to_spectrum, spectrum, padded)
        self._compute(_halve, spectrum)
        self._compute(_from_spectrum, padded, spectrum)
        return padded

    def _compute(self, kernel: Kernel, out: Any, *ins: Any) -> None:
        self.work.run(self.work.compute, kernel, out, *ins)


# What the kernels compute: stand-ins with the traffic of the real ones, and a sum that can be
# foretold.  Each takes its result first, whose shape may be smaller than its input's.


def _zero(out: Any) -> None:
    out.fill(0)


def _one(out: Any) -> None:
    out.fill(1)


def _copy(out: Any, source: Any, *also_read: Any) -> None:
    cupy.copyto(out, source)


def _add(out: Any, update: Any) -> None:
    cupy.add(out, update, out=out)


def _halve(out: Any) -> None:
    cupy.multiply(out, np.float32(0.5), out=out)


def _first(out: Any, source: Any) -> None:
    cupy.copyto(out, source[0])


def _refine(out: Any, coarse: Any) -> None:
    cupy.copyto(out, coarse[:1, :1, :1])


def _spread(out: Any, source: Any) -> None:
    cupy.copyto(out, source[None])


def _corner(out: Any, source: Any) -> None:
    cupy.copyto(out, source[:, 0, 0])


def _spread_corner(out: Any, source: Any) -> None:
    cupy.copyto(out, source[:1, :1, :1])


def _to_spectrum(out: Any, rows: Any) -> None:
    out.fill(0)
    cupy.add(rows[:, :, ::2], rows[:, :, ::2], out=out[:, :, :-1])


def _from_spectrum(out: Any, spectrum: Any) -> None:
    cupy.copyto(out[:, :, ::2], spectrum[:, :, :-1].real)
