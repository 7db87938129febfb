"""Pixels of a convolution as bytes, laid out so that those under one place of the window follow each other. MLIR-free.

A strip of rows of the result reads some rows of the image. For each remainder of a row by the window's steps down, and each place
of the window across, there is a copy of them that has the pixels read there alone, in the order of the result. So the pixels of
the strip lie one behind the other at every place of the window, over the ends of rows too.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.passes.spaces.host.pool_plane import PlaneShape


@dataclass(frozen=True)
class PoolImage:
    """rows: of pixels of the result. channels: bytes of a pixel. block: pixels that are multiplied at once."""

    shape: PlaneShape
    rows: int
    channels: int
    block: int

    @property
    def phases(self) -> int:
        """Remainders of rows by the steps down."""
        return min(self.shape.steps[0], self.shape.taps[0])

    @property
    def tall(self) -> int:
        """Rows of a copy."""
        return self.rows + (self.shape.taps[0] - 1) // self.shape.steps[0]

    @property
    def read(self) -> list[tuple[int, int]]:
        """Remainders of places across by the steps, each with the pixels of a row that it has; empty where no two places across
        read the same ones."""
        across, step = self.shape.taps[1], self.shape.steps[1]
        if across <= step:
            return []
        return [(first, self.shape.width + (across - 1 - first) // step) for first in range(step)]

    @property
    def row(self) -> int:
        """Bytes of a row of a copy."""
        return self.shape.width * self.channels

    @property
    def copy(self) -> int:
        """Bytes of a copy."""
        return self.tall * self.row

    @property
    def pixels(self) -> int:
        """Of the result of a strip."""
        return self.rows * self.shape.width

    @property
    def bytes(self) -> int:
        """Of all copies, and of what the last block reads beyond them, in whole lines."""
        size = self.phases * self.shape.taps[1] * self.copy + (-self.pixels % self.block) * self.channels
        return -(-size // 64) * 64

    @property
    def row_bytes(self) -> int:
        """Of the pixels that a row of the result reads of one row of the image, in whole lines."""
        return -(-sum(wide for _, wide in self.read) * self.channels // 64) * 64
