"""Lanes: how the threads of a launch lie in arrays, one lane a thread, blocks side by side, warps padded to 32 lanes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.runtime.limits import WARP

Array = np.ndarray[Any, np.dtype[Any]]

RUNNING, PARKED, BLOCKED, EXITED = range(4)
"""Status of a lane: may run; waits at a warp instruction for lanes of its warp; waits at a barrier; done."""


@dataclass(frozen=True)
class Geometry:
    """Grid, block and cluster of a launch, each (x, y, z)."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int] = (1, 1, 1)

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def blocks(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def warps(self) -> int:
        return -(-self.threads // WARP)

    @property
    def blocks_of_cluster(self) -> int:
        return self.cluster[0] * self.cluster[1] * self.cluster[2]

    @property
    def group(self) -> int:
        """Warps of a cluster, which may use each other's shared memory."""
        return self.warps * self.blocks_of_cluster

    def block_index(self, linear: int) -> tuple[int, int, int]:
        x, y, _ = self.grid
        return linear % x, linear // x % y, linear // (x * y)

    def thread_index(self, linear: int) -> tuple[int, int, int]:
        x, y, _ = self.block
        return linear % x, linear // x % y, linear // (x * y)
