"""Shared memory of the blocks of a batch, side by side, with its race tracker."""

from __future__ import annotations

import numpy as np

from tilewright.runtime.emulator.machine.lanes import Array, Geometry
from tilewright.runtime.emulator.machine.races import RaceTracker
from tilewright.runtime.emulator.machine.storage import Storage


class SharedMemory(Storage):
    """`size` bytes per block; block b of the batch begins at b * stride."""

    def __init__(self, blocks: int, geometry: Geometry, size: int, granule: int, track: bool) -> None:
        self.stride = -(-max(size, 16) // 64) * 64
        super().__init__(blocks * self.stride)
        self.size = size
        self.races = RaceTracker(blocks, geometry, self.stride // granule, granule) if track else None

    def granules(self, offsets: Array, size: int) -> Array:
        """[lane, n] granules that accesses of `size` bytes at these offsets touch."""
        assert self.races is not None
        unit = self.races.granule_bytes
        return np.asarray(offsets[:, None] // unit + np.arange(max(1, size // unit)))
