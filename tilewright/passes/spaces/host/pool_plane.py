"""Pixels of a convolution side by side as one long row, for which tables of products with a pool are made. MLIR-free.

The pixels that a strip of rows of the result reads lie in planes, one for each remainder of their place by the window's steps,
each row behind the other. Then place (d, a) of the window is a step of so many pixels along a plane, the same for every pixel of
the strip, and vectors go on from row to row; what they compute between the end of a row and the next is not read.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.passes.spaces.gemm_operands import Gemm
from tilewright.passes.spaces.workload import Workload, told_once

_LINE = 64  # bytes


@dataclass(frozen=True)
class PlaneShape:
    """height, width: of the result. taps, steps: of the window, down and across."""

    height: int
    width: int
    taps: tuple[int, int]
    steps: tuple[int, int]

    @staticmethod
    @told_once
    def of(workload: Workload) -> PlaneShape | None:
        """None where no window of known extents passes over the last two loops of rows."""
        gemm = Gemm.of(workload)
        if gemm is None or len(gemm.rows) < 2:
            return None
        found = [next((w for w in workload.windows if w.row == d and w.dilation == 1), None) for d in gemm.rows[-2:]]
        if found[0] is None or found[1] is None:
            return None
        sizes = [workload.loops[d].extent.constant for d in (*gemm.rows[-2:], found[0].tap, found[1].tap)]
        steps = [w.stride if isinstance(w.stride, int) else 0 for w in found if w is not None]
        if None in sizes or min(steps) < 1:
            return None
        height, width, down, across = (s or 0 for s in sizes)
        return PlaneShape(height, width, (down, across), (steps[0], steps[1]))


@dataclass(frozen=True)
class Plane:
    """Of a strip of so many rows of the result, in vectors of `lanes` pixels that take `bytes` in the tables."""

    shape: PlaneShape
    rows: int
    lanes: int
    bytes: int

    @property
    def phases(self) -> list[tuple[int, int]]:
        """Remainders of places by the steps."""
        (down, across), (y, x) = self.shape.taps, self.shape.steps
        return [(d, a) for d in range(min(y, down)) for a in range(min(x, across))]

    @property
    def beyond(self) -> tuple[int, int]:
        """Rows and pixels of a plane that the window reads beyond those of the result."""
        (down, across), (y, x) = self.shape.taps, self.shape.steps
        return (down - 1) // y, (across - 1) // x

    @property
    def wide(self) -> int:
        """Pixels of a row of a plane."""
        return self.shape.width + self.beyond[1]

    @property
    def tall(self) -> int:
        """Rows of a plane."""
        return self.rows + self.beyond[0]

    @property
    def blocks(self) -> int:
        """Vectors of sums, from the first pixel of the result to the last."""
        return -(-((self.rows - 1) * self.wide + self.shape.width) // self.lanes)

    @property
    def vectors(self) -> int:
        """Of a plane that are read."""
        return self.blocks - (-(self.beyond[0] * self.wide + self.beyond[1]) // self.lanes)

    @property
    def stride(self) -> int:
        """Pixels from one entry of the tables to the next: an odd number of lines, which spreads entries over the cache."""
        each = self.lanes * self.bytes
        more = _LINE // each if self.vectors * each % (2 * _LINE) == 0 else 0
        return (self.vectors + more) * self.lanes

    def place(self, down: int, across: int) -> tuple[int, int]:
        """The phase of a place of the window, by number, and how far along its plane."""
        y, x = self.shape.steps
        return self.phases.index((down % y, across % x)), down // y * self.wide + across // x
