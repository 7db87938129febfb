"""Verification: outputs in float64 for seeded inputs at a few shapes, which a kernel must reproduce before it may win."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tilewright.passes.spaces.workload import Operand, Workload
from tilewright.runtime.program.kernel import MicroKernel
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType
from tilewright.search.space.dense import clear_zeros, dense_symbols, memory_order
from tilewright.search.space.shapes import Dims, Points

_NORM = {DType.F64: 1e-11, DType.F32: 2e-5, DType.F16: 4e-3, DType.BF16: 3e-2}
_TF32 = 4e-3
_COARSE = 0.15  # of element types with two or three bits of fraction
PEAK = 8.0  # a single element may be off by so many times the bound of the whole
_LARGEST = 1 << 18  # elements of an operand of a case


@dataclass(frozen=True)
class Case:
    """What a workload gives at a shape: outputs in float64 (integers as they are) for `seeded` inputs. Scalars are 0."""

    shape: Dims
    seed: int
    outputs: tuple[npt.NDArray[np.float64], ...]


def edge_shapes(workload: Workload, points: Points, most: int = 3) -> list[Dims]:
    """Shapes to verify at, of operands that are not large: the smallest, one that no tile divides, one that all vectors do.

    The smallest comes whatever its size.
    """
    small = [s for s in points.shapes if _elements(workload, s) <= _LARGEST] or [points.shapes[0]]
    rough = [s for s in small if any(v % 2 for _, v in s)]
    whole = [s for s in small if all(v % 8 == 0 for _, v in s)]
    chosen = [small[0], *rough[-1:], *whole[-1:], small[-1]]
    return list(dict.fromkeys(chosen))[:most]


def seeded(workload: Workload, shape: Dims, seed: int) -> list[np.ndarray]:
    """Dense inputs, their unit axis innermost; the same on every machine."""
    rng = np.random.default_rng([seed, 0xCA5E])
    return [_array(o, dict(shape), rng) for o in workload.inputs]


def blank(workload: Workload, shape: Dims) -> list[np.ndarray]:
    """Dense arrays of the outputs' shapes, filled with what no kernel gives by chance."""
    made = []
    for o in workload.outputs:
        order = memory_order(o)
        array = np.full([o.dims[a].evaluate(dict(shape)) for a in order], 113, np.float32).astype(o.dtype.numpy)
        made.append(array.transpose([order.index(a) for a in range(len(order))]))
    return made


def why_wrong(workload: Workload, case: Case, got: Sequence[np.ndarray], kernel: MicroKernel) -> str | None:
    """What tells the results from the case's outputs; None where nothing does.

    Bounds are of ||y - r|| / ||r|| and of max|y - r| / max|r|, by the least exact of the result's type, those that the workload
    rounds to on the way, and tf32 where the kernel reads that.
    """
    for number, (found, wanted) in enumerate(zip(got, case.outputs, strict=True)):
        with np.errstate(all="ignore"):
            wide, rounded = found.astype(np.float64), wanted.astype(found.dtype).astype(np.float64)
        finite = np.isfinite(wide) & np.isfinite(rounded)
        if not np.array_equal(np.where(finite, 0.0, wide), np.where(finite, 0.0, rounded), equal_nan=True):
            return f"result {number} at {dict(case.shape)}: NaN and inf are not where the reference has them"
        bound = bound_of(workload, found.dtype, kernel)
        difference, scale = (wide - wanted)[finite], wanted[finite]
        norm = _ratio(float(np.linalg.norm(difference)), float(np.linalg.norm(scale)))
        peak = _ratio(float(np.abs(difference).max(initial=0)), float(np.abs(scale).max(initial=0)))
        if norm > bound or peak > PEAK * bound:
            return (f"result {number} at {dict(case.shape)}: norm error {norm:.1e}, largest error {peak:.1e}; "
                    f"wanted {bound:.0e} and {PEAK * bound:.0e}")
    return None


def legal_cases(workload: Workload, kernel: MicroKernel, cases: Sequence[Case]) -> list[Case]:
    """Those at which the kernel's guards hold."""
    return [c for c in cases if kernel.legal(dense_symbols(workload, dict(c.shape)))]


def bound_of(workload: Workload, dtype: np.dtype[np.generic], kernel: MicroKernel) -> float:
    """The largest relative error that a result of a type may have."""
    if dtype.kind in "iub":
        return 0.0
    rounded = [DType.of(dtype), *(t for t in DType if t.is_float and re.search(rf"(?<![a-zA-Z_]){t.value}\b", workload.ir))]
    return max(_TF32 if "tf32=true" in kernel.config else 0.0, *(_NORM.get(t, _COARSE) for t in rounded))


def _ratio(error: float, scale: float) -> float:
    return error / scale if scale else error


def _elements(workload: Workload, shape: Dims) -> int:
    dims: Mapping[str, int] = dict(shape)
    return max(int(np.prod([e.evaluate(dims) for e in o.dims], dtype=np.int64)) for o in _varying(workload))


def _varying(workload: Workload) -> list[Operand]:
    """Operands whose size depends on the shape; all where none does."""
    every = [*workload.inputs, *workload.outputs]
    return [o for o in every if any(_is_dynamic(d) for d in o.dims)] or every


def _is_dynamic(extent: Expr) -> bool:
    return extent.constant is None


def _array(operand: Operand, dims: Mapping[str, int], rng: np.random.Generator) -> np.ndarray:
    order = memory_order(operand)
    shape = [operand.dims[a].evaluate(dims) for a in order]
    values = rng.random(shape) - 0.5 if operand.dtype.is_float else rng.integers(0, 2, shape)
    return clear_zeros(operand, values.astype(operand.dtype.numpy).transpose([order.index(a) for a in range(len(order))]))
