"""lower-precision: contractions of f32 read their operands rounded to a narrower float and still accumulate in f32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.passes.analysis.contraction import is_contraction
from tilewright.passes.base import Pass
from tilewright.passes.linalg.builders import elementwise
from tilewright.passes.linalg.copies import COPY
from tilewright.passes.linalg.shape_values import ShapeValues
from tilewright.passes.linalg.strides import VIEW_OPS
from tilewright.passes.linalg.structured import inits, inputs, iterator_kinds, main_of, rebuild
from tilewright.passes.linalg.symbolic import SymbolicShapes
from tilewright.passes.mlir import arith, attributes, ir, maps_of, owner, replace_all_uses, tensor, walk
from tilewright.runtime.errors import OptionError

_TYPES = {"bf16": "bf16", "f16": "f16"}


@dataclass(frozen=True)
class LowerPrecision(Pass):
    """element: "bf16" or "f16", the type that the operands are rounded to. apart: tensors are rounded once, where they
    are made and before any view of them, arguments by kernels of their own, so that contractions read narrow memory; else
    contractions may round what they load."""

    name: ClassVar[str] = "lower-precision"
    element: str = "bf16"
    apart: bool = False

    def __post_init__(self) -> None:
        if self.element not in _TYPES:
            raise OptionError(f"{self.name}: element={self.element!r}; wanted bf16 or f16")

    def run(self, module: ir.Module) -> None:
        narrow = ir.Type.parse(_TYPES[self.element])
        for fn in main_of(module):
            rounded: dict[ir.Value, ir.Value] = {}
            for op in walk(fn):
                if is_contraction(op) and _is_f32(op):
                    _lower(fn, op, narrow, rounded, self.apart)


def _is_f32(op: ir.Operation) -> bool:
    return all(str(ir.RankedTensorType(v.type).element_type) == "f32" for v in op.operands)


def _lower(fn: ir.Operation, op: ir.Operation, narrow: ir.Type, rounded: dict[ir.Value, ir.Value], apart: bool) -> None:
    """The contraction again, over rounded operands that its body widens."""
    operands = [_rounded_apart(fn, v, narrow, rounded) if apart else _rounded(fn, v, narrow, rounded) for v in inputs(op)]

    def widen(block: ir.Block) -> None:
        for argument in list(block.arguments)[:2]:
            argument.set_type(narrow)
        with ir.InsertionPoint.at_block_begin(block):
            for argument in list(block.arguments)[:2]:
                users = [use.owner for use in argument.uses]
                wide = arith.extf(ir.F32Type.get(), argument)
                for user in users:
                    for i, v in enumerate(user.operands):
                        if v == argument:
                            user.operands[i] = wide

    made = rebuild(op, operands, inits(op), maps_of(op), iterator_kinds(op), widen)
    replace_all_uses(op.results[0], made.results[0])
    op.erase()


def _rounded(fn: ir.Operation, value: ir.Value, narrow: ir.Type, rounded: dict[ir.Value, ir.Value]) -> ir.Value:
    if value not in rounded:
        rounded[value] = _round(fn, value, narrow)
    return rounded[value]


def _rounded_apart(fn: ir.Operation, value: ir.Value, narrow: ir.Type, rounded: dict[ir.Value, ir.Value]) -> ir.Value:
    """The same view of the rounded source of a view."""
    made = owner(value)
    if value in rounded or made is None or made.name not in VIEW_OPS:
        known = value in rounded
        found = _rounded(fn, value, narrow, rounded)
        if made is None and not known:
            found.owner.attributes[COPY] = ir.UnitAttr.get()
        return found
    source = _rounded_apart(fn, made.operands[0], narrow, rounded)
    shape = ir.RankedTensorType(value.type).shape
    with ir.InsertionPoint.after(made), made.location:
        again = ir.Operation.create(made.name, [ir.RankedTensorType.get(shape, narrow)], [source, *list(made.operands)[1:]],
                                    attributes(made))
    rounded[value] = again.results[0]
    return rounded[value]


def _round(fn: ir.Operation, value: ir.Value, narrow: ir.Type) -> ir.Value:
    """An elementwise truncation right after the value is made."""
    made = owner(value)
    with ir.InsertionPoint.at_block_begin(value.owner) if made is None else ir.InsertionPoint.after(made):
        into = tensor.empty(ShapeValues(fn).mixed(SymbolicShapes(fn).dims(value)), narrow)
        return elementwise([value], into, lambda scalars: arith.truncf(narrow, scalars[0]))
