"""Predicted time of a product with the work on its rows in one launch, and in two. MLIR-free.

By the arithmetic that chooses between configurations of a family (`predicted.py`), of the kernels that would run. Rows that are
read again right away come from the L2 cache where they have room. One launch is predicted to gain where none was measured to, so
that its time counts as often as was measured at worst (`measured_percent`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from tilewright.passes.spaces.family_registry import cost_of, families_of, heuristics_of
from tilewright.passes.spaces.gpu.gpu_rates import GpuRates
from tilewright.passes.spaces.gpu.mma_rows_heuristics import Thresholds
from tilewright.passes.spaces.gpu.predicted import predicted
from tilewright.passes.spaces.numerics import Numerics
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Axes, Axis, Factor, Kind, Loop, Operand, Workload
from tilewright.runtime.limits import GpuLimits
from tilewright.runtime.program.dispatch import Node, select
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

_CACHED = 32 << 20  # bytes of rows that stay in the L2 cache
_START = 900.0  # cycles of a launch before its first bytes come, and of the end of its last block
_ROLES = ("m", "n", "k")


@dataclass(frozen=True)
class RowsOfProduct:
    """factor, kept, result: element types of the factors, of the product's rows as they would lie in memory, and of what is made
    of them. reductions: along each row. others: bytes of further tensors that are read or written for each of its elements."""

    columns: int
    depth: int
    factor: DType
    kept: DType
    result: DType
    reductions: int
    others: int = 0

    def product(self) -> Workload:
        """The product alone, over M."""
        row, column, depth = ((Axis((d,), (1,)),) for d in range(3))
        sizes = (Expr.dim("M"), Expr.of(self.columns), Expr.of(self.depth))

        def operand(dtype: DType, axes: Axes) -> Operand:
            return Operand(dtype, tuple(sizes[a.loops[0]] for a in axes), 1, axes=axes)

        a, b = operand(self.factor, row + depth), operand(self.factor, depth + column)
        loops = tuple(Loop(role, size) for role, size in zip(_ROLES, sizes, strict=True))
        factors = tuple(Factor(o.dtype, o.axes, 1, n) for n, o in enumerate((a, b)))
        flops = sizes[0] * sizes[1] * sizes[2] * 2
        return Workload("", "product", Kind.CONTRACTION, "", ("M",), (a, b), (operand(self.kept, row + column),), loops, flops,
                        Expr.of(0), factors=factors, accumulator=DType.F32, reductions=1)

    def stitched(self) -> Workload:
        """With its rows."""
        alone = self.product()
        result = replace(alone.outputs[0], dtype=self.result)
        return replace(alone, name="product_rows", kind=Kind.PRODUCT_ROWS, outputs=(result,), kept=self.kept,
                       reductions=1 + self.reductions)


def why_not(shape: RowsOfProduct, limits: GpuLimits) -> str | None:
    """The rule by which no kernel holds such a product and its rows."""
    families = families_of(shape.stitched(), limits, Numerics(tf32=True))
    return None if families[0] == "mma_rows" else "mma_rows: its rows do not fit the shared memory of a block"


def cycles(shape: RowsOfProduct, rows: int, limits: GpuLimits) -> tuple[float, float]:
    """Of both as two launches, and as one."""
    apart, stitched = _arithmetic(shape, rows, limits)
    return apart, stitched * Thresholds().measured_percent / 100


@lru_cache(1 << 10)
def _arithmetic(shape: RowsOfProduct, rows: int, limits: GpuLimits) -> tuple[float, float]:
    rates = GpuRates.of(limits)
    each = float(rows * shape.columns)
    passed, further = each * shape.kept.bytes, each * (shape.result.bytes + shape.others)
    every = float(limits.multiprocessors)
    cached = rates.l2 if passed < _CACHED else rates.memory
    apart = _cycles(shape, False, rows, limits) + rates.launch + _START + (passed / cached + further / rates.memory) / every
    return apart, _cycles(shape, True, rows, limits) + each * shape.others / rates.memory / every


def _cycles(shape: RowsOfProduct, stitched: bool, rows: int, limits: GpuLimits) -> float:
    """Of the kernel that runs untuned, of a product with its rows or alone."""
    at, workload = {"M": rows}, shape.stitched() if stitched else shape.product()
    configs, root = _untuned(shape, stitched, limits)
    config = configs[select(root, at).kernel]
    costs = cost_of(config.family)
    extents = {name: extent.evaluate(at) for name, extent in costs.extents(workload).items()}
    return float(predicted([config], workload, limits, costs, extents)[0, 0])


@lru_cache(1 << 10)
def _untuned(shape: RowsOfProduct, stitched: bool, limits: GpuLimits) -> tuple[tuple[TileConfig, ...], Node]:
    workload = shape.stitched() if stitched else shape.product()
    family = families_of(workload, limits, Numerics(tf32=True))[0]
    configs, root = heuristics_of(family).default(workload, limits)
    return configs, root
