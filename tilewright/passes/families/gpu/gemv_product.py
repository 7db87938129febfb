"""How a thread of `gemv` multiplies: by fused multiply-adds, or by mma.sync with the rest of its warp.

Of a piece of k a thread has the same positions of its columns' weights and of rows. Tensor cores add over the lanes along k and
share rows among the lanes along the columns; multiply-adds leave that to the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from tilewright.passes.codegen.emit import constant, integer_type, lanes_of, vector_type
from tilewright.passes.codegen.index import Index
from tilewright.passes.codegen.product_code import ProductCode
from tilewright.passes.families.gpu.gpu_join import shuffle
from tilewright.passes.families.gpu.mma_product import TensorProduct
from tilewright.passes.mlir import arith, ir, llvm, vector
from tilewright.passes.spaces.gpu.gemv import ALONG_K

_ROWS = 8  # half of an instruction's long side
Place = tuple[Index, Index, Index, ir.Value]
Rows = Callable[[int, int], list[ir.Value]]  # of a position in a piece and a number of them: a vector for each row of the lane


class LaneProduct(Protocol):
    """What a thread does with the weights of a piece, as they were loaded, and rows."""

    def rows_of(self, lane: Index) -> list[Index]: ...

    def zeros(self) -> list[ir.Value]: ...

    def add(self, weights: Sequence[ir.Value], rows: Rows, sums: Sequence[ir.Value]) -> list[ir.Value]: ...

    def places(self, sums: Sequence[ir.Value], lane: Index) -> Iterator[Place]: ...


@dataclass(frozen=True)
class FusedProduct:
    """sides: the operands of rows and of columns. rows, columns: of a thread; every lane has all rows of the block. positions: of
    k, of a thread in a piece."""

    code: ProductCode
    sides: tuple[int, int]
    rows: int
    columns: int
    positions: int

    def rows_of(self, _: Index) -> list[Index]:
        """The rows, from the block's first on, that a lane reads."""
        return [Index(row) for row in range(self.rows)]

    def zeros(self) -> list[ir.Value]:
        return [self.code.zero(1)] * (self.rows * self.columns)

    def add(self, weights: Sequence[ir.Value], rows: Rows, sums: Sequence[ir.Value]) -> list[ir.Value]:
        """The sums and the products of a piece of k: a vector of its positions for each column."""
        found = list(sums)
        left = [self.code.factor(self.sides[0], row) for row in rows(0, self.positions)]
        right = [self.code.factor(self.sides[1], column) for column in weights]
        for i in range(lanes_of(left[0])):
            b = [vector.extract(column, [], [i]) for column in right]
            for m, row in enumerate(left):
                a = vector.extract(row, [], [i])
                for r, other in enumerate(b):
                    at = m * self.columns + r
                    found[at] = self.code.multiply_add(a, other, found[at])
        return found

    def places(self, sums: Sequence[ir.Value], lane: Index) -> Iterator[Place]:
        """Row, lane along the columns and number of its column of each sum that the lane has in the end. Of the four lanes along
        k each keeps a quarter."""
        found, along = list(sums), lane % ALONG_K
        for distance in (1, 2):
            keeps = (along // distance % 2).eq(0)
            found = [self._exchanged(found[i], found[i + 1], keeps, distance) for i in range(0, len(found), 2)]
        for q, value in enumerate(found):
            yield Index(4 * q // self.columns), lane // ALONG_K, along + 4 * q % self.columns, value

    def _exchanged(self, even: ir.Value, odd: ir.Value, keeps: ir.Value | bool, distance: int) -> ir.Value:
        """The first of two sums in lanes that keep it, the second in others, with what the lane at that distance has of it."""
        mine, others = arith.select(keeps, even, odd), arith.select(keeps, odd, even)
        return self.code.add(mine, shuffle(others, distance))


@dataclass(frozen=True)
class MatrixProduct:
    """The same by tensor cores. Rows are on the side of 16, though there may be 8: weights then are what an instruction takes of
    them, in the registers that loads bring them to."""

    code: ProductCode
    sides: tuple[int, int]
    rows: int
    columns: int
    positions: int
    product: TensorProduct

    def rows_of(self, lane: Index) -> list[Index]:
        """The rows, from the block's first on, that a lane reads."""
        return [lane + first for first in range(0, self.rows, _ROWS)]

    def zeros(self) -> list[ir.Value]:
        return [self.code.zero(1)] * (self.columns * 4)

    def add(self, weights: Sequence[ir.Value], rows: Rows, sums: Sequence[ir.Value]) -> list[ir.Value]:
        return self.multiply(weights, rows(0, self.positions), sums)

    def multiply(self, weights: Sequence[ir.Value], rows: Sequence[ir.Value], sums: Sequence[ir.Value]) -> list[ir.Value]:
        """Vectors of the same positions of every column and of every row of the lane."""
        return self.multiply_words([registers(w) for w in weights], [registers(row) for row in rows], sums)

    def multiply_words(self, weights: Sequence[Sequence[ir.Value]], words: Sequence[Sequence[ir.Value]],
                       sums: Sequence[ir.Value]) -> list[ir.Value]:
        """The same of words of two elements."""
        found = list(sums)
        low, high = words[0], words[1] if len(words) > 1 else [constant(integer_type(32), 0)] * len(words[0])
        for q in range(0, len(low), 2):
            a = [low[q], high[q], low[q + 1], high[q + 1]]
            for r, column in enumerate(weights):
                found[4 * r : 4 * r + 4] = self.product.mma(self.sides, a, column[q : q + 2], found[4 * r : 4 * r + 4])
        return found

    def places(self, sums: Sequence[ir.Value], lane: Index) -> Iterator[Place]:
        """Row, lane along the columns and number of its column of each sum that the lane has in the end."""
        for number, value in enumerate(sums):
            column, q = divmod(number, 4)
            if q // 2 * _ROWS < self.rows:
                yield lane // ALONG_K + q // 2 * _ROWS, lane % ALONG_K * 2 + q % 2, Index(column), value


def registers(value: ir.Value) -> list[ir.Value]:
    """A vector as words of two elements."""
    words = lanes_of(value) // 2
    whole = llvm.BitcastOp(vector_type(integer_type(32), words), value).result
    return [vector.extract(whole, [], [i]) for i in range(words)]
