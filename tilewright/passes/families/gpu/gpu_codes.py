"""Family `gpu_codes`: products of few rows by weights in few bits or out of pools, which are decoded in registers.

Blocks are those of `gemv`. A thread reads up to 16 bytes of codes of a column at once, 16 to 128 values of k, and the scales of
their groups; codes alone come from memory. Rows are read where they are multiplied: they lie in the caches. By fused
multiply-adds sums of one row or two are multiplied by the scale of a group, else values before; for mma.sync values are rounded
to the type of the rows, as the region says. Pools lie in shared memory, as f32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tilewright.passes.analysis.codes import Codes
from tilewright.passes.analysis.pools import Pools
from tilewright.passes.codegen.emit import vector_type
from tilewright.passes.codegen.gpu_kernel import GpuKernel
from tilewright.passes.codegen.gpu_space import Point
from tilewright.passes.codegen.index import Index
from tilewright.passes.codegen.kernel_frame import KernelFrame
from tilewright.passes.codegen.tiler import Tiler
from tilewright.passes.families.gpu import gemv
from tilewright.passes.families.gpu.coded_columns import CodedColumns, Decoding, PooledColumns
from tilewright.passes.families.gpu.coded_pairs import CodedPairs
from tilewright.passes.families.gpu.gemv_block import GemvBlock
from tilewright.passes.families.gpu.gemv_product import FusedProduct, MatrixProduct, Place, Rows
from tilewright.passes.families.gpu.mma_product import TensorProduct
from tilewright.passes.families.gpu.simt_plan import SimtPlan
from tilewright.passes.families.gpu.simt_store import SplitSum
from tilewright.passes.mlir import arith, ir, owner, vector
from tilewright.passes.spaces.gpu.gemv import ALONG_K
from tilewright.passes.spaces.gpu.gpu_codes import SCALED_SUMS, GpuCodesConfig

_FEW = 8  # rows up to which they are on the short side of mma.sync


def emit(kernel: GpuKernel, config: GpuCodesConfig) -> None:
    """The whole kernel. ValueError when the columns of the region are not decoded from codes that lie along k."""
    plan = SimtPlan.of(kernel)
    gemv.launch(kernel, plan, config, lambda split: _CodedBlock(kernel, plan, config, split))


def tile(frame: KernelFrame, config: GpuCodesConfig, tiler: Tiler) -> None:
    """The units of `gemv`."""
    gemv.tile(frame, config, tiler)


class _CodedBlock(GemvBlock):
    """Columns that are decoded."""

    late = True

    def __init__(self, kernel: GpuKernel, plan: SimtPlan, config: GpuCodesConfig, split: SplitSum | None) -> None:
        super().__init__(kernel, plan, config, split)
        made = owner(plan.view.operand(plan.column_side))
        codes, pools = Codes.of(made), Pools.of(made)
        if (codes is None and pools is None) or len(plan.view.k) != 1 or plan.view.batch:
            raise ValueError(f"{plan.view.op.name} at {plan.view.op.location}: wanted columns that are decoded from codes")
        self.decoding: Decoding = (CodedColumns(kernel, plan.view, plan.column_side, config.bytes, codes) if codes is not None
                                   else PooledColumns.of(kernel, plan.view, plan.column_side, config.bytes, pools))
        self.positions = self.decoding.positions
        sides, size = (plan.row_side, plan.column_side), (config.rows_each, config.columns, self.positions)
        self.product = (self._matrix(sides, size, TensorProduct.of(plan.view)) if config.tensor else
                        _CodedProduct(self.code, sides, *size, self.decoding))

    def _matrix(self, sides: tuple[int, int], size: tuple[int, int, int], product: TensorProduct) -> MatrixProduct:
        decoding = self.decoding
        pairs = CodedPairs.of(decoding, product.element) if isinstance(decoding, CodedColumns) else None
        if pairs is None:
            return _CodedMatrix(self.code, sides, *size, product, decoding)
        kind = _FewRowsOfPairs if size[0] <= _FEW else _PairsMatrix
        return kind(self.code, sides, *size, product, decoding, pairs)

    def weights(self, batch: Point) -> Decoding:
        self.decoding.begin()
        return self.decoding


@dataclass(frozen=True)
class _CodedProduct(FusedProduct):
    """By fused multiply-adds in f32."""

    decoding: Decoding

    def add(self, weights: Sequence[ir.Value], rows: Rows, sums: Sequence[ir.Value]) -> list[ir.Value]:
        made, found = self.decoding, list(sums)
        columns = [weights[i : i + made.each] for i in range(0, len(weights), made.each)]
        late = made.scaled and self.rows <= SCALED_SUMS  # one scale for the sum of a run
        for start in range(0, self.positions, made.run_length):
            parts = [self.code.zero(1)] * len(found) if late else found
            for first in range(start, start + made.run_length, made.step):
                parts = self._step(columns, rows(first, made.step), first, parts, not late)
            if late:
                scales = [made.scale(column, start) for column in columns]
                found = [self.code.multiply_add(part, scales[i % self.columns], total)
                         for i, (part, total) in enumerate(zip(parts, found, strict=True))]
            else:
                found = parts
        return found

    def _step(self, columns: Sequence[Sequence[ir.Value]], rows: Sequence[ir.Value], first: int, sums: Sequence[ir.Value],
              scaled: bool) -> list[ir.Value]:
        made, found = self.decoding, list(sums)
        left = [self.code.factor(self.sides[0], row) for row in rows]
        for r, column in enumerate(columns):
            values = made.values(column, first, scaled)
            for m, row in enumerate(left):
                for i, value in enumerate(values):
                    a = vector.extract(row, [], [i]) if made.step > 1 else row
                    at = m * self.columns + r
                    found[at] = self.code.multiply_add(a, value, found[at])
        return found


@dataclass(frozen=True)
class _CodedMatrix(MatrixProduct):
    """By mma.sync, of values that are rounded to the type of the rows."""

    decoding: Decoding

    def add(self, weights: Sequence[ir.Value], rows: Rows, sums: Sequence[ir.Value]) -> list[ir.Value]:
        made, found = self.decoding, list(sums)
        columns = [weights[i : i + made.each] for i in range(0, len(weights), made.each)]
        wide, narrow = (vector_type(t, made.step) for t in (ir.F32Type.get(), self.product.element))
        for first in range(0, self.positions, made.step):
            rounded = [arith.truncf(narrow, vector.from_elements(wide, made.values(column, first, True))) for column in columns]
            found = self.multiply(rounded, rows(first, made.step), found)
        return found


@dataclass(frozen=True)
class _PairsMatrix(_CodedMatrix):
    """The same where pairs of codes become pairs of that type."""

    pairs: CodedPairs

    def add(self, weights: Sequence[ir.Value], rows: Rows, sums: Sequence[ir.Value]) -> list[ir.Value]:
        made, found = self.decoding, list(sums)
        columns = [weights[i : i + made.each] for i in range(0, len(weights), made.each)]
        for first in range(0, self.positions, self.pairs.step):
            words = [self.pairs.rows(row) for row in rows(first, self.pairs.step)]
            found = self.multiply_words([self.pairs.values(column, first) for column in columns], words, found)
        return found


class _FewRowsOfPairs(_PairsMatrix):
    """Of eight rows: columns are on the long side of mma.sync, two of a lane at once."""

    def zeros(self) -> list[ir.Value]:
        return [self.code.zero(1)] * (self.columns * 2)

    def multiply_words(self, weights: Sequence[Sequence[ir.Value]], words: Sequence[Sequence[ir.Value]],
                       sums: Sequence[ir.Value]) -> list[ir.Value]:
        found, (row,) = list(sums), words
        for q in range(0, len(row), 2):
            for r in range(0, self.columns, 2):
                a = [weights[r][q], weights[r + 1][q], weights[r][q + 1], weights[r + 1][q + 1]]
                at = slice(2 * r, 2 * r + 4)
                found[at] = self.product.mma(self.sides[::-1], a, row[q : q + 2], found[at])
        return found

    def places(self, sums: Sequence[ir.Value], lane: Index) -> Iterator[Place]:
        for number, value in enumerate(sums):
            pair, q = divmod(number, 4)
            yield lane % ALONG_K * 2 + q % 2, lane // ALONG_K, Index(2 * pair + q // 2), value
