"""How columns that are no constants are best read, by the number of rows: cycles by arithmetic. MLIR-free.

A step of k over the columns of a block costs the larger of its multiply-adds, its loads, and its lines where these come one by
one: rows of columns that lie apart are no stream that the hardware fetches ahead. Read in place, every block of rows pays for
the lines; copied on the way, the first block pays for them and for a store a vector, the others read the copies as one stream.
Streamed, the columns pass once as long pieces of their rows, and the sums are loaded and stored every few values of k. A pass
takes at least what the cache that holds the columns needs to give them. The cycles of a line were measured on Zen 4 with both
vector widths.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from tilewright.passes.spaces.host.host_matmul import SHORT_ROW, HostMatmulConfig
from tilewright.runtime.limits import LINE, HostLimits

_LINE_APART, _LINE_OF_SET = 4.25, 6.5  # cycles a line, in the latter case of rows that share cache sets and pages
_LINE_AGAIN = 2.0  # cycles a line that left the second cache since the block of rows before
_NEAR, _FAR = 32.0, 20.0  # bytes a cycle from the second cache; from beyond it
_COPY = 2.0  # cycles to copy a vector, half of which may pass while its line is waited for
_LATENCY = 4.0  # cycles of a multiply-add
_PAGE = 4096  # bytes
_ROWS = 64  # up to which rows are compared one by one


@dataclass(frozen=True)
class Reading:
    """Three ways to read columns of `pitch` bytes a row and `depth` rows.

    streamed: None where the columns are too few to be streamed.
    """

    limits: HostLimits
    element_bytes: int
    pitch: int | None
    depth: int
    in_place: HostMatmulConfig
    copied: HostMatmulConfig
    streamed: HostMatmulConfig | None

    def bounds(self) -> tuple[int, int]:
        """Rows up to which columns are streamed, and up to which they are read in place; copies are for more.

        In place is for the rows of one chunk of copies, which stays in the second cache.
        """
        most = max(1, self.copied.mc)
        last = min(most, _ROWS)
        streamed, in_place, copied = (self._sums(way, last) for way in (self._streamed, self._in_place, self._copied))
        few = last if self.streamed is not None else 0
        pairs = [(a, b) for a in range(few + 1) for b in range(a, last + 1)]
        first, second = min(pairs, key=lambda p: streamed[p[0]] + in_place[p[1]] - in_place[p[0]] - copied[p[1]])
        return first, most if second == last and first < last else second

    @staticmethod
    def _sums(way: Callable[[int], float], last: int) -> list[float]:
        """Logarithms of a way's cycles, added up over the rows 1 to m, for m from 0 to `last`."""
        totals = [0.0]
        for rows in range(1, last + 1):
            totals.append(totals[-1] + math.log(way(rows)))
        return totals

    @cached_property
    def _shares_sets(self) -> bool:
        return self.pitch is not None and self.pitch % _PAGE == 0

    def _lines(self, config: HostMatmulConfig) -> float:
        """Lines of a row of the block's columns."""
        return math.ceil(config.columns * self.element_bytes / LINE)

    def _apart(self, config: HostMatmulConfig) -> float:
        """Cycles of the lines of one step of k."""
        if self.pitch is not None and self.pitch <= SHORT_ROW:
            return 0.0
        return self._lines(config) * (_LINE_OF_SET if self._shares_sets else _LINE_APART)

    def _block(self, config: HostMatmulConfig, rows: int) -> float:
        """Cycles of a block of rows for one step of k, as far as its registers go: as many loads as multiply-adds a cycle, and
        each sum waits for itself."""
        return max(max(rows * config.nv, rows + config.nv) / self.limits.multiply_adds, _LATENCY)

    @staticmethod
    def _heights(config: HostMatmulConfig, rows: int) -> list[int]:
        whole, left = divmod(rows, config.mr)
        return [config.mr] * whole + [left] * (left > 0)

    def _in_place(self, rows: int) -> float:
        config = self.in_place
        stays = not self._shares_sets and self.depth * self._lines(config) * LINE <= self.limits.l2 // 2
        again = 0.0 if stays else self._lines(config) * _LINE_AGAIN
        blocks = [max(self._block(config, h), self._apart(config)) for h in self._heights(config, rows)]
        return (sum(blocks) + again * (len(blocks) - 1)) / config.columns

    def _copied(self, rows: int) -> float:
        config = self.copied
        first, *rest = self._heights(config, rows)
        block, apart, copy = self._block(config, first), self._apart(config), _COPY * config.nv
        cycles = max(block, apart) + max(copy / 2, copy - max(0.0, apart - block))
        return (cycles + sum(self._block(config, h) for h in rest)) / config.columns

    def _streamed(self, rows: int) -> float:
        """A sum is loaded and stored after `stream` multiply-adds; half of the stores are hidden."""
        config = self.streamed
        if config is None:
            return math.inf
        whole = self.depth * (self.pitch or 0)
        fetched = config.lanes * self.element_bytes / (_NEAR if whole <= self.limits.l2 else _FAR)
        heights, stored = self._heights(config, rows), rows / config.stream
        cycles = (sum(max(h, 1 + h / config.stream) for h in heights) + stored) / self.limits.multiply_adds
        return max(fetched, cycles) / config.lanes
