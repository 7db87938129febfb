"""A contraction as a GEMM: which loops are rows and columns of the result, how its operands lie in memory. MLIR-free.

Columns run along the axis of unit stride of the first result, so m and n change places for a C^T; B is the operand that varies
with them, A the other one. The families' plans say the same of the IR (families: host_matmul_plan.py, simt_plan.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.passes.spaces.workload import Factor, Workload, told_once
from tilewright.runtime.limits import BYTE_FLOATS, GpuLimits
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

_ONE = Expr.of(1)
BYTE_FLOAT_TYPES = (DType.F8E4M3, DType.F8E5M2)
_NARROW = (DType.F16, DType.BF16, DType.I8, *BYTE_FLOAT_TYPES)


@told_once
def column_loop(workload: Workload) -> int | None:
    """The loop along the unit-stride axis of the first result; axes of one element are passed over.

    None where nothing runs along it. Of a workload without axes, from a log that is older than they are, the last loop of n or m.
    """
    out = workload.outputs[0]
    if not out.axes:
        return next((d for role in ("n", "m", "b") for d in reversed(_of_role(workload, role))), None)
    axes = sorted(range(len(out.axes)), key=lambda a: (a == out.unit_axis, a), reverse=True)
    found = [d for a in axes for d in out.axes[a].loops]
    return next((d for d in found if workload.loops[d].extent != _ONE), next(iter(found), None))


@told_once
def row_and_column_roles(workload: Workload) -> tuple[str, str]:
    """Rows run along m and columns along n, as GPU families tile them; the other way where columns are a loop of m."""
    column = column_loop(workload)
    role = "" if column is None else workload.loops[column].role
    swapped = role == "m" or (role != "n" and not _of_role(workload, "n"))
    return ("n", "m") if swapped else ("m", "n")


def row_and_column_extents(workload: Workload) -> tuple[Expr, Expr]:
    """All loops of rows by all of columns."""
    rows, columns = row_and_column_roles(workload)
    return workload.size(rows), workload.size(columns)


@dataclass(frozen=True)
class Gemm:
    """column: the loop along the vectors. rows: the parallel loops that `b`, which varies with it and is used again by all rows,
    does not depend on. last: the last loop that is summed over."""

    a: Factor
    b: Factor
    column: int
    rows: tuple[int, ...]
    last: int | None

    @staticmethod
    @told_once
    def of(workload: Workload) -> Gemm | None:
        """As host families see it; None where the workload has no factors or no columns."""
        return Gemm._along(workload, column_loop(workload))

    @staticmethod
    @told_once
    def turned(workload: Workload) -> Gemm | None:
        """With the one loop of rows as columns, and all columns as rows; None where there is no such loop, windows pass over what
        is read, or the factor of the rows is contiguous along no loop."""
        gemm = Gemm.of(workload)
        if gemm is None or len(gemm.rows) != 1 or gemm.a is gemm.b or any(o.panel for o in workload.inputs) \
                or any(workload.loops[window.tap].extent != _ONE for window in workload.windows):
            return None
        found = Gemm._along(workload, gemm.rows[0])
        if found is None or found.b is not gemm.a:
            return None
        long = [d for d in _of_role(workload, "k") if workload.loops[d].extent != _ONE]
        found = replace(found, last=next(iter(reversed(long)), found.last))
        return found if found.b_in_place or found.b_transposed else None

    @staticmethod
    def _along(workload: Workload, column: int | None) -> Gemm | None:
        varying = [f for f in workload.factors[:2] if column in f.loops]
        if column is None or not varying:
            return None
        parallel = [d for d, loop in enumerate(workload.loops) if loop.role in ("b", "m", "n")]
        b = min(varying, key=lambda f: len(f.loops & set(parallel)))
        a = next((f for f in workload.factors[:2] if f is not b), b)
        rows = tuple(d for d in parallel if d not in b.loops and d != column)
        return Gemm(a, b, column, rows, next(iter(reversed(_of_role(workload, "k"))), None))

    @property
    def b_in_place(self) -> bool:
        """Is B contiguous along the columns?"""
        return self.b.unit_axis is not None and self.b.linear_axis(self.column) == self.b.unit_axis

    @property
    def b_transposed(self) -> bool:
        """Is B contiguous along the last loop of k instead?"""
        along = self.b.unit_axis is not None and self.last is not None and self.b.linear_axis(self.last) == self.b.unit_axis
        return along and not self.b_in_place


@told_once
def tensor_core_bytes(workload: Workload) -> int | None:
    """Bytes of the elements that tensor cores would multiply; None where the factors are of other types than they take."""
    found = [f.dtype for f in workload.factors]
    sizes = [t.bytes for t in found if t in _NARROW]
    return sizes[0] if sizes and len(sizes) == len(found) and sizes.count(sizes[0]) == len(sizes) else None


def on_tensor_cores(workload: Workload, limits: GpuLimits) -> bool:
    """Do tensor cores of that architecture multiply the factors? 8-bit floats came later than the others."""
    floats = any(f.dtype in BYTE_FLOAT_TYPES for f in workload.factors)
    return tensor_core_bytes(workload) is not None and (not floats or limits.version >= BYTE_FLOATS)


def bytes_run_along_k(workload: Workload) -> bool:
    """Does memory run along the last loop of k in every factor of bytes? Of one that is computed its last axis counts."""
    sums = _of_role(workload, "k")
    read = [f for f in workload.factors if f.dtype.bytes == 1]
    units = [len(f.axes) - 1 if f.source is None else f.unit_axis for f in read]
    return all(unit is not None and sums and f.linear_axis(sums[-1]) == unit for f, unit in zip(read, units, strict=True))


def unaligned(workload: Workload, n: int) -> Expr:
    """0 exactly where every dynamic extent along which memory is contiguous is a multiple of n. What no loop runs along,
    such as a table of places, is read one by one anyway."""
    left = Expr.of(0)
    seen, operands = set[Expr](), (*workload.inputs, *workload.outputs)
    walked = any(operand.axes for operand in operands)
    for operand in operands:
        if operand.unit_axis is None or len(operand.dims) < 2 or (walked and not operand.axes):
            continue
        extent = operand.dims[operand.unit_axis]
        if extent.constant is None and not extent.divisible_by(n) and extent not in seen:
            seen.add(extent)
            left = left + extent % n
    return left


def unaligned_operands(workload: Workload, n: int) -> tuple[bool, bool, bool] | None:
    """Of A, B and the first result: may memory be contiguous along a dynamic extent that is no multiple of n? None where a factor
    is computed."""
    gemm = Gemm.of(workload)
    if gemm is None or gemm.a.source is None or gemm.b.source is None:
        return None
    found = []
    for operand in (workload.inputs[gemm.a.source], workload.inputs[gemm.b.source], workload.outputs[0]):
        extent = None if operand.unit_axis is None or len(operand.dims) < 2 else operand.dims[operand.unit_axis]
        found.append(extent is None or (extent.constant is None and not extent.divisible_by(n)))
    return found[0], found[1], found[2]


def _of_role(workload: Workload, role: str) -> Sequence[int]:
    return [d for d, loop in enumerate(workload.loops) if loop.role == role]
