"""WorkloadForm: a Workload as plain data, sizes as text: what tuning logs and runner processes carry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from tilewright.passes.spaces.workload import Axes, Axis, Factor, Kind, Loop, Operand, Window, Workload
from tilewright.runtime.errors import TilewrightError
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

MOST_WORK = 1 << 60  # operations or bytes of a launch
AxisForms = tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]  # loops and steps of each axis


class OperandForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Operand of passes/spaces/workload.py."""

    dtype: DType
    dims: tuple[str, ...]
    unit_axis: int | None
    constant: bool = False
    panel: int = 0
    zeros: tuple[int, ...] = ()
    axes: AxisForms = ()
    codes: str = ""


class FactorForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Factor of passes/spaces/workload.py."""

    dtype: DType
    axes: AxisForms
    unit_axis: int | None
    source: int | None
    signed: bool = True


class WindowForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Window of passes/spaces/workload.py."""

    row: int
    tap: int
    stride: int
    dilation: int
    low: int
    high: int
    extent: str


class WorkloadForm(msgspec.Struct, frozen=True, tag="workload", tag_field="record", forbid_unknown_fields=True):
    """All fields of a Workload; `loops` are (role, extent). Logs from before there were axes, factors and counts lack them."""

    key: str
    name: str
    kind: Kind
    ir: str
    dims: tuple[str, ...]
    inputs: tuple[OperandForm, ...]
    outputs: tuple[OperandForm, ...]
    loops: tuple[tuple[str, str], ...]
    flops: str
    bytes: str
    scalars: tuple[DType, ...] = ()
    windows: tuple[WindowForm, ...] = ()
    factors: tuple[FactorForm, ...] = ()
    transcendentals: int = 0
    reductions: int = 0
    accumulator: DType | None = None
    part_rows: int = 0
    segments: str = ""
    kept: DType | None = None

    @staticmethod
    def of(w: Workload) -> WorkloadForm:
        return WorkloadForm(w.key, w.name, w.kind, w.ir, w.dims, tuple(map(_form, w.inputs)), tuple(map(_form, w.outputs)),
                            tuple((loop.role, str(loop.extent)) for loop in w.loops), str(w.flops), str(w.bytes), w.scalars,
                            tuple(map(_window, w.windows)), tuple(map(_factor, w.factors)), w.transcendentals, w.reductions,
                            w.accumulator, w.part_rows, w.segments, w.kept)

    def workload(self) -> Workload:
        """The inverse of `of`."""
        loops = tuple(Loop(role, Expr.parse(extent)) for role, extent in self.loops)
        windows = (Window(x.row, x.tap, x.stride, x.dilation, x.low, x.high, Expr.parse(x.extent)) for x in self.windows)
        return Workload(self.key, self.name, self.kind, self.ir, self.dims, tuple(map(_operand, self.inputs)),
                        tuple(map(_operand, self.outputs)), loops, Expr.parse(self.flops), Expr.parse(self.bytes), self.scalars,
                        tuple(windows), tuple(map(_factor_of, self.factors)),
                        self.transcendentals, self.reductions, self.accumulator, self.part_rows, self.segments, self.kept)

    def shape_fault(self, dims: Mapping[str, int]) -> str:
        """Why no launch has these dims: others than the workload's, or more work than can be counted; empty for good ones."""
        if dims.keys() != set(self.dims):
            return f"dims {', '.join(dims) or 'none'}; the workload's are {', '.join(self.dims) or 'none'}"
        try:
            work = max(Expr.parse(size).evaluate(dims) for size in (self.flops, self.bytes))
        except (TilewrightError, ArithmeticError) as error:
            return f"no launch has dims {dict(dims)}: {error}"
        return "" if work < MOST_WORK else f"no launch has dims {dict(dims)}: its arithmetic or its bytes are {work:.1e}"

    def fault(self) -> str:
        """Why this describes no operator: a size that cannot be read, or a number of what is not there; empty for a good one."""
        try:
            w = self.workload()
        except (TilewrightError, ArithmeticError, TypeError, ValueError, RecursionError, MemoryError) as error:
            return f"a size cannot be read: {error}"
        for size in _sizes(w):
            if not size.symbols <= set(w.dims):
                return f"the size {size} is not one of the dims {', '.join(w.dims) or 'none'}"
        return next(_wrong_numbers(w), "")


def _sizes(w: Workload) -> Iterator[Expr]:
    yield from (w.flops, w.bytes, *(loop.extent for loop in w.loops), *(x.extent for x in w.windows))
    for operand in (*w.inputs, *w.outputs):
        yield from operand.dims


def _tensors(w: Workload) -> Iterator[tuple[str, int, Operand | Factor]]:
    """Name and rank of all."""
    for what, operands in (("input", w.inputs), ("output", w.outputs)):
        for i, operand in enumerate(operands):
            yield f"{what} {i}", len(operand.dims), operand
    for i, factor in enumerate(w.factors):
        yield f"factor {i}", len(factor.axes), factor


def _wrong_numbers(w: Workload) -> Iterator[str]:
    """What has the number of a loop, axis or input that is not there."""
    loops = range(len(w.loops))
    for name, rank, tensor in _tensors(w):
        if len(tensor.axes) not in (0, rank):
            yield f"{name} has {rank} dims and {len(tensor.axes)} axes"
        if tensor.unit_axis is not None and tensor.unit_axis not in range(rank):
            yield f"{name} has no axis {tensor.unit_axis}"
        for axis in tensor.axes:
            if len(axis.loops) != len(axis.steps) or not set(axis.loops) <= set(loops):
                yield f"an axis of {name} moves with loops {axis.loops} by {axis.steps}; the workload has {len(loops)} loops"
    for window in w.windows:
        if not {window.row, window.tap} <= set(loops):
            yield f"a window moves with loops {window.row} and {window.tap}; the workload has {len(loops)} loops"
    for factor in w.factors:
        if factor.source is not None and factor.source not in range(len(w.inputs)):
            yield f"a factor is input {factor.source}; the workload has {len(w.inputs)} inputs"


def _window(w: Window) -> WindowForm:
    return WindowForm(w.row, w.tap, w.stride, w.dilation, w.low, w.high, str(w.extent))


def _factor(f: Factor) -> FactorForm:
    return FactorForm(f.dtype, _axis_forms(f.axes), f.unit_axis, f.source, f.signed)


def _factor_of(f: FactorForm) -> Factor:
    return Factor(f.dtype, _axes(f.axes), f.unit_axis, f.source, f.signed)


def _axis_forms(axes: Axes) -> AxisForms:
    return tuple((a.loops, a.steps) for a in axes)


def _axes(forms: AxisForms) -> Axes:
    return tuple(Axis(loops, steps) for loops, steps in forms)


def _form(o: Operand) -> OperandForm:
    return OperandForm(o.dtype, tuple(map(str, o.dims)), o.unit_axis, o.constant, o.panel, o.zeros, _axis_forms(o.axes),
                       o.codes)


def _operand(o: OperandForm) -> Operand:
    return Operand(o.dtype, tuple(map(Expr.parse, o.dims)), o.unit_axis, o.constant, o.panel, o.zeros, _axes(o.axes), o.codes)
