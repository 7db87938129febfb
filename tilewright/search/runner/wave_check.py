"""Two waves of blocks: a kernel is run where its blocks do not all fit the device at once, and its results are checked in O(n^2).

What only happens there: a persistent block takes a second tile, an epilogue overlaps what follows it, blocks start while others
end. There is no compiler where this runs, and no large result can be brought along. So the inputs of a known case are repeated
along a dim that the kernel's loops run over in parallel: the outputs are then those of the case, repeated. They are checked as
Freivalds checks products (Probabilistic machines can use less running time, 1977): a sum of the repetitions with random signs is
compared with the sum of the signs times what is known, so that every element counts and errors do not cancel but by chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.passes.spaces.family_registry import parse_config
from tilewright.passes.spaces.workload import Kind, Operand, Workload
from tilewright.runtime.limits import GpuLimits
from tilewright.runtime.program.kernel import MicroKernel
from tilewright.search.cost_model.forms import form_of
from tilewright.search.cost_model.gpu_form import GpuForm
from tilewright.search.cost_model.pairs import Pairs
from tilewright.search.cost_model.shape_table import ShapeTable
from tilewright.search.runner.verification import PEAK, Case, blank, bound_of
from tilewright.search.space.dense import dense_symbols, memory_order
from tilewright.search.space.lattice import Lattice
from tilewright.search.space.shapes import Dims

WAVES = 2
_LARGEST = 1 << 24  # elements of an operand
_PARALLEL = {Kind.CONTRACTION: {"b", "m", "n"}, Kind.ATTENTION: {"b", "m"}, Kind.PRODUCT_ROWS: {"m"}, Kind.ROWS: {"row"},
             Kind.POINTWISE: {"p"}}


@dataclass(frozen=True)
class WaveCheck:
    """A case repeated `count` times along the dim `dim`: arguments and the outputs' check.

    arrays: inputs, then outputs as the kernel finds them.
    """

    workload: Workload
    case: Case
    dim: str
    count: int

    @property
    def shape(self) -> Dims:
        return tuple((d, v * self.count if d == self.dim else v) for d, v in self.case.shape)

    def arrays(self, given: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Dense, as `seeded` and `blank` make them for smaller shapes. given: the inputs of the case."""
        repeated = [_repeated(o, a, self._axis(o), self.count) for o, a in zip(self.workload.inputs, given, strict=True)]
        return [*repeated, *blank(self.workload, self.shape)]

    def why_wrong(self, got: Sequence[np.ndarray], kernel: MicroKernel) -> str | None:
        """What tells the outputs from repetitions of the case's; None where nothing does."""
        signs = np.random.default_rng(self.case.seed + 1).choice([-1.0, 1.0], self.count)
        for number, (found, wanted, operand) in enumerate(zip(got, self.case.outputs, self.workload.outputs, strict=True)):
            axis = self._axis(operand)
            assert axis is not None, "wave_check takes no workload with such an output"
            parts = np.moveaxis(found, axis, 0).reshape(self.count, -1)
            known = np.moveaxis(wanted, axis, 0).reshape(-1)
            exact = found.dtype.kind in "iub" or found.dtype.itemsize == 8
            parts = parts.astype(np.float64 if exact else np.float32, copy=False)
            with np.errstate(all="ignore"):
                finite = np.isfinite(known.astype(found.dtype).astype(np.float64))
                if not (np.isfinite(parts) == finite).all():
                    return f"result {number} at {dict(self.shape)}: NaN and inf are not where the reference has them"
            if not finite.all():
                parts = np.where(finite, parts, parts.dtype.type(0))
            difference = signs.astype(parts.dtype) @ parts - signs.sum() * np.where(finite, known, 0.0)
            scale, limit = known[finite], bound_of(self.workload, found.dtype, kernel)
            error = difference / np.sqrt(self.count)
            norm = float(np.linalg.norm(error)) / (float(np.linalg.norm(scale)) or 1.0)
            peak = float(np.abs(error).max(initial=0)) / (float(np.abs(scale).max(initial=0)) or 1.0)
            if norm > limit or peak > PEAK * limit:
                return (f"result {number} at {dict(self.shape)}, {WAVES} waves of blocks: norm error {norm:.1e}, largest error "
                        f"{peak:.1e}; wanted {limit:.0e} and {PEAK * limit:.0e}")
        return None

    def _axis(self, operand: Operand) -> int | None:
        return next((a for a, e in enumerate(operand.dims) if self.dim in e.symbols), None)


def wave_check(workload: Workload, kernel: MicroKernel, cases: Sequence[Case], limits: GpuLimits) -> WaveCheck | None:
    """The smallest repetition of a case in which a kernel's tiles fill a device twice; None where no dim can be repeated, or the
    operands would be too large, or the kernel's guards hold at none."""
    dim = repeatable(workload)
    if dim is None:
        return None
    extents = [(dict(c.shape)[dim], c) for c in cases]
    for _, case in sorted(((e, c) for e, c in extents if e), key=lambda x: (x[0] % 8 == 0, -x[0])):  # off the tiles first
        count = 1
        while True:
            found = WaveCheck(workload, case, dim, count)
            dims = dict(found.shape)
            sizes = (int(np.prod([e.evaluate(dims) for e in o.dims])) for o in (*workload.inputs, *workload.outputs))
            if max(sizes) > _LARGEST:
                break
            if waves(workload, kernel, found.shape, limits) >= WAVES:
                if kernel.legal(dense_symbols(workload, dims)):
                    return found
                break
            count *= 2
    return None


def repeatable(workload: Workload) -> str | None:
    """A dim along which outputs repeat when inputs do: only loops run over it that sum nothing, no element knows its place, and
    every operand that has it has it once, as an axis of its own."""
    parallel = _PARALLEL.get(workload.kind, set())
    if workload.kind not in _PARALLEL or "linalg.index" in workload.ir:
        return None
    for dim in workload.dims:
        loops = [n for n, loop in enumerate(workload.loops) if dim in loop.extent.symbols]
        alone = len(loops) == 1 and workload.loops[loops[0]].role in parallel
        if alone and all(_repeats(o, dim, loops[0], o in workload.outputs) for o in (*workload.inputs, *workload.outputs)):
            return dim
    return None


def waves(workload: Workload, kernel: MicroKernel, shape: Dims, limits: GpuLimits) -> float:
    """How often the kernel's tiles fill a device."""
    lattice = Lattice(workload, limits, [parse_config(kernel.config)])
    form = form_of(lattice)
    assert isinstance(form, GpuForm)
    grid = form.grid(ShapeTable(lattice, (shape,)), Pairs.product([0], [0], [1]))
    return float(grid.blocks[0] / (limits.multiprocessors * max(1.0, float(grid.resident[0]))))


def _repeats(operand: Operand, dim: str, loop: int, output: bool) -> bool:
    """Has the operand the dim once, as the whole extent of an axis that the loop alone runs along? Inputs may lack it."""
    axes = [a for a, e in enumerate(operand.dims) if dim in e.symbols]
    if not axes:
        return not output
    (axis, *more) = axes
    whole = not more and str(operand.dims[axis]) == dim and not any(operand.zeros[2 * axis : 2 * axis + 2])
    return whole and bool(operand.axes) and operand.axes[axis].loops == (loop,) and operand.axes[axis].steps == (1,)


def _repeated(operand: Operand, array: np.ndarray, axis: int | None, count: int) -> np.ndarray:
    if axis is None:
        return array
    order = memory_order(operand)
    dense = np.concatenate([array.transpose(order)] * count, order.index(axis))
    return dense.transpose([order.index(a) for a in range(len(order))])
