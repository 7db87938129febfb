"""WorkloadForm: a Workload as plain data, sizes as text: what tuning logs and runner processes carry."""

from __future__ import annotations

import msgspec

from passes.workload import Kind, Loop, Operand, Window, Workload
from runtime.shape import Expr
from runtime.tensor import DType


class OperandForm(msgspec.Struct, frozen=True):
    """Operand of passes/workload.py."""

    dtype: DType
    dims: tuple[str, ...]
    unit_axis: int | None
    constant: bool = False
    panel: int = 0
    zeros: tuple[int, ...] = ()


class WindowForm(msgspec.Struct, frozen=True):
    """Window of passes/workload.py."""

    row: int
    tap: int
    stride: int
    dilation: int
    low: int
    high: int
    extent: str


class WorkloadForm(msgspec.Struct, frozen=True, tag="workload", tag_field="record"):
    """All fields of a Workload; `loops` are (role, extent)."""

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

    @staticmethod
    def of(w: Workload) -> WorkloadForm:
        return WorkloadForm(w.key, w.name, w.kind, w.ir, w.dims, tuple(map(_form, w.inputs)), tuple(map(_form, w.outputs)),
                            tuple((loop.role, str(loop.extent)) for loop in w.loops), str(w.flops), str(w.bytes), w.scalars,
                            tuple(map(_window, w.windows)))

    def workload(self) -> Workload:
        """The inverse of `of`."""
        loops = tuple(Loop(role, Expr.parse(extent)) for role, extent in self.loops)
        windows = (Window(x.row, x.tap, x.stride, x.dilation, x.low, x.high, Expr.parse(x.extent)) for x in self.windows)
        return Workload(self.key, self.name, self.kind, self.ir, self.dims, tuple(map(_operand, self.inputs)),
                        tuple(map(_operand, self.outputs)), loops, Expr.parse(self.flops), Expr.parse(self.bytes), self.scalars,
                        tuple(windows))


def _window(w: Window) -> WindowForm:
    return WindowForm(w.row, w.tap, w.stride, w.dilation, w.low, w.high, str(w.extent))


def _form(o: Operand) -> OperandForm:
    return OperandForm(o.dtype, tuple(map(str, o.dims)), o.unit_axis, o.constant, o.panel, o.zeros)


def _operand(o: OperandForm) -> Operand:
    return Operand(o.dtype, tuple(map(Expr.parse, o.dims)), o.unit_axis, o.constant, o.panel, o.zeros)
