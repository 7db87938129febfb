"""Which kernels multiply rows by weights out of pools, by numbers of rows and of their bits: those of fewest cycles by count.

Cycles are those that a core with two loads and two vector instructions a cycle takes at least, times or plus what the same
kernels took above that (results/xeon-avx512.md, "What is chosen"). MLIR-free.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tilewright.passes.spaces.host.host_pools import (
    NARROW_BITS,
    NARROW_ROWS,
    PERMUTED_COLUMNS,
    SHUFFLED_COLUMNS,
    VECTOR,
    HostPoolsConfig,
    PoolFormat,
    sums_in_16_bits,
)
from tilewright.runtime.limits import HostLimits
from tilewright.runtime.program.dispatch import Leaf, Node, switch
from tilewright.runtime.shape import Expr

_LOOKED_UP = 1.2  # cycles of an index, a load and an addition of a register of rows
_CARRIED = 1.7  # more of taking up sums and putting them down
_WIDENED = 0.45  # more of sums of 16 bits, each time that they are widened
_MADE, _MADE_NARROW = 4.0, 3.25  # of an entry of eight rows, and of 16 rows in 16 bits
_STEP = 2.8  # of a step along columns besides what it does for each register of tables
_PERMUTED, _SHUFFLED = 2.0, 1.6  # of a permutation of 64 bytes, or a shuffle of 32, with its load and additions
_MERGED = 1.05  # of another one under a mask
_TOGETHER, _SHIFTED = 3.3, 1.3  # of four planes that are put together to floats, by shuffles; by shifts, of 256 entries
_MOST_ROWS = 2 * NARROW_ROWS  # beyond which blocks are all but whole


@dataclass(frozen=True)
class Sizes:
    """Of a product: vectors along the sum, columns, and the threads that there are."""

    groups: int
    columns: int
    threads: int = 1


def planes(bits: int) -> int:
    """Bytes of a product of eight whole numbers of so many bits, or of a float (0), with a vector of the pool."""
    return 4 if not bits else 2 if bits <= NARROW_BITS else 3


def cycles(config: HostPoolsConfig, form: PoolFormat, sizes: Sizes, limits: HostLimits) -> float:
    """Of a block of rows by the columns of a work unit, for a vector along the sum of each book."""
    columns, carried = min(sizes.columns, config.columns), _CARRIED / min(config.groups, sizes.groups)
    if config.by_bytes:
        lanes = limits.vector_bytes // 4
        made = form.padded / lanes * (VECTOR + 3 * planes(config.bits)) / 2
        wide = PERMUTED_COLUMNS if config.permute else SHUFFLED_COLUMNS
        step = (_permuted if config.permute else _shuffled)(config, form)
        return -(-columns // wide) * step + made
    if config.is_narrow:
        widened = _WIDENED / sums_in_16_bits(config.bits)
        return columns * (_LOOKED_UP + widened + carried) + form.padded * _MADE_NARROW
    made = form.padded * _MADE / (VECTOR if config.rows == 1 else 1)
    return columns * (_LOOKED_UP + carried) + made


def _permuted(config: HostPoolsConfig, form: PoolFormat) -> float:
    """Of 64 columns: of each plane a register for 64 entries."""
    registers = next(n for n in (1, 2, 4) if n * PERMUTED_COLUMNS >= form.entries)
    together = 0.0 if config.bits else _SHIFTED if registers > 2 else _TOGETHER
    return _STEP + planes(config.bits) * (_PERMUTED + _MERGED * (registers - 1)) + together


def _shuffled(config: HostPoolsConfig, form: PoolFormat) -> float:
    """Of 32 columns: of each plane a shuffle for 16 entries."""
    return _STEP + _SHUFFLED * planes(config.bits) * -(-form.entries // 16)


@dataclass(frozen=True)
class Choice:
    """Of kernels by number: rows of a block, and cycles of a block by the columns of a unit."""

    kernels: Sequence[HostPoolsConfig]
    taken: Callable[[HostPoolsConfig], float]
    sizes: Sizes

    def best(self, rows: int, bits: int) -> int:
        """The kernel of fewest cycles for so many rows of so many bits (0: floats); of equals the first."""
        able = [n for n, c in enumerate(self.kernels) if (c.bits >= bits if bits else not c.bits)]
        return min(able, key=lambda n: (self._turns(self.kernels[n], rows) * self.taken(self.kernels[n]), n))

    def _turns(self, config: HostPoolsConfig, rows: int) -> int:
        """Units of the thread with the most."""
        return -(-(-(-rows // config.rows) * -(-self.sizes.columns // config.columns)) // self.sizes.threads)

    def tree(self, rows: Expr, bits: Expr | None, widths: Sequence[int]) -> Node:
        """widths: of the rows in bits, ascending; the last serves all others, and is the only one where rows are floats."""
        nodes = [self._of_rows(rows, w) for w in widths]
        if bits is None or len(nodes) == 1:
            return nodes[-1]
        if bits.constant is not None:
            return next((n for w, n in zip(widths, nodes, strict=True) if bits.constant <= w), nodes[-1])
        kept = [(w, n) for w, n, after in zip(widths, nodes, nodes[1:], strict=False) if n != after]
        return switch(str(bits), kept, nodes[-1]) if kept else nodes[-1]

    def _of_rows(self, rows: Expr, bits: int) -> Node:
        if rows.constant is not None:
            return Leaf(self.best(rows.constant, bits))
        found = [(m, self.best(m, bits)) for m in range(1, _MOST_ROWS + 1)]
        last = found[-1][1]
        cases: list[tuple[int, Node]] = [(m, Leaf(n)) for (m, n), (_, after) in pairwise(found) if n != after]
        return switch(str(rows), cases, Leaf(last)) if cases else Leaf(last)
