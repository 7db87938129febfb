"""Workload: one operator as outlined from a model, in canonical form: what is tuned, cached and dispatched. MLIR-free.

`ir` is the text of a module with one function
    func.func @workload(%arg0: tensor<?x768xf32> {tw.dims = ["d0", 768], tw.unit = 1}, ..., %arg3: index {tw.dims = ["d0"]},
                        %arg4: f32) -> (tensor<?x2304xf32> {tw.dims = ["d0", 2304], tw.unit = 1})
tensors first, then the local dims as index arguments in order, then other scalars. `tw.unit` is the axis whose stride is
statically 1 (absent: none is known); `tw.zeros` is how many values are zero before and after the others of each axis, of an
operand that a contraction passes a window over. Every extent inside is an expression of the local dims.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType


class Kind(Enum):
    """What drives the loop nest of a region."""

    CONTRACTION = "contraction"
    ATTENTION = "attention"
    PRODUCT_ROWS = "product_rows"
    ROWS = "rows"
    POINTWISE = "pointwise"
    GENERIC = "generic"


@dataclass(frozen=True)
class Axis:
    """How a coordinate on an axis of a tensor moves with the loops of the root.

    loops: those that it depends on, by number in Workload.loops, the one with the smallest step first. steps: what it grows by
    when each of them grows by one; 0 where that is no constant.
    """

    loops: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()

    @property
    def fastest(self) -> int | None:
        """The loop with the smallest step."""
        return self.loops[0] if self.loops else None


Axes = tuple[Axis, ...]


@dataclass(frozen=True)
class Operand:
    """A tensor operand: element type, extents over local dims, the axis of unit stride, whether it is bound at compile time.

    panel: columns of a panel when the tensor is laid out in panels (the pass pack-constants), else 0. zeros: how many values are
    zero for certain before and after the others, two numbers an axis; empty when none is known to be. axes: how the loops of the
    root move along each axis, whatever elementwise work lies between; empty where they do not reach it. codes: the format of
    weights in few bits whose bytes the tensor holds, as analysis/codes.py writes it: "u4g32"; empty for anything else.
    """

    dtype: DType
    dims: tuple[Expr, ...]
    unit_axis: int | None
    constant: bool = False
    panel: int = 0
    zeros: tuple[int, ...] = ()
    axes: Axes = ()
    codes: str = ""

    @property
    def along(self) -> int | None:
        """The loop that memory runs along: the fastest on the axis of unit stride."""
        return self.axes[self.unit_axis].fastest if self.axes and self.unit_axis is not None else None

    def stride_axes(self) -> list[int]:
        """Axes whose stride is passed at run time."""
        return [a for a in range(len(self.dims)) if a != self.unit_axis]


@dataclass(frozen=True)
class Loop:
    """A loop of the root: role b, m, n, k (contraction; attention, with e), row, col (rows), p (pointwise), r (others)."""

    role: str
    extent: Expr


@dataclass(frozen=True)
class Factor:
    """What a contraction multiplies on one side, as the root reads it.

    dtype: element type in memory where the products only widen it, else that of the products. axes: of the tensor that the root
    reads. unit_axis: its axis of unit stride when it is an input, or a slice of one; source: the number of that input. signed:
    whether integers are widened as signed ones.
    """

    dtype: DType
    axes: Axes
    unit_axis: int | None = None
    source: int | None = None
    signed: bool = True

    @property
    def loops(self) -> frozenset[int]:
        """The loops that it depends on."""
        return frozenset(d for axis in self.axes for d in axis.loops)

    def linear_axis(self, loop: int) -> int | None:
        """The axis that moves by exactly one when the loop does, when the loop moves no other axis."""
        moving = [(n, a.steps[a.loops.index(loop)]) for n, a in enumerate(self.axes) if loop in a.loops]
        return moving[0][0] if len(moving) == 1 and moving[0][1] == 1 else None


@dataclass(frozen=True)
class Window:
    """An axis that a contraction reads at row * stride + tap * dilation; its first `low` and last `high` places are zero.

    row, tap: loops by number, which move no other axis of the operand; extent: of the axis, zeros included.
    """

    row: int
    tap: int
    stride: int
    dilation: int
    low: int
    high: int
    extent: Expr

    @property
    def padded(self) -> bool:
        return self.low > 0 or self.high > 0


@dataclass(frozen=True)
class Workload:
    """An operator over local dims. Equal keys share kernels, tuning records and dispatch tables.

    key: sha256 of the canonical spec (iterators, maps, dtypes, static extents, epilogue, constness), never of printed IR.
    flops: scalar arithmetic operations; bytes: distinct bytes read and written; both over local dims.
    scalars: element types of scalar parameters that are not dims. windows: of an operand of a contraction. factors: both of a
    contraction; of attention those of the scores, then of the mixing. transcendentals: exponentials and their like in the bodies
    of the region. reductions: loops that are summed or joined over, of all its operations. accumulator: what a contraction
    adds its products in; None of other workloads and where a log does not tell. part_rows: steps of the first row loop that a
    work unit has, where there are reductions in parts (passes/analysis/parts.py); else 0. segments: of one whose kernels serve
    all sequences of a batch in one launch (GPU): what differs between them, as `Segments` writes it; empty for any other.
    kept: element type of the rows of a product that are worked on in its own kernel; None of other workloads.
    """

    key: str
    name: str
    kind: Kind
    ir: str
    dims: tuple[str, ...]
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    loops: tuple[Loop, ...]
    flops: Expr
    bytes: Expr
    scalars: tuple[DType, ...] = ()
    windows: tuple[Window, ...] = ()
    factors: tuple[Factor, ...] = ()
    transcendentals: int = 0
    reductions: int = 0
    accumulator: DType | None = None
    part_rows: int = 0
    segments: str = ""
    kept: DType | None = None

    def size(self, role: str) -> Expr:
        """Product of the extents of all loops with this role (1 when there is none)."""
        total = Expr.of(1)
        for loop in self.loops:
            if loop.role == role:
                total = total * loop.extent
        return total


_T = TypeVar("_T")


def told_once(tell: Callable[[Workload], _T]) -> Callable[[Workload], _T]:
    """What a function tells of a workload is kept with that workload: a space asks for it for each of ten thousands of
    configurations."""

    @functools.wraps(tell)
    def kept(workload: Workload) -> _T:
        known: dict[Any, _T] = workload.__dict__.setdefault("_told", {})
        if tell not in known:
            known[tell] = tell(workload)
        return known[tell]

    return kept
