"""widen-sub-byte: tensors of 2 to 7 bit integers are kept one element a byte, and narrowed again where they are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.passes.base import Pass
from tilewright.passes.linalg.builders import fill
from tilewright.passes.linalg.structured import body, inits, inputs, iterator_kinds, main_of, rebuild, replace
from tilewright.passes.mlir import arith, ir, maps_of, operations, walk
from tilewright.runtime.errors import PassError

_VIEWS = ("tensor.cast", "tensor.empty", "tensor.extract_slice", "tensor.insert_slice", "tensor.expand_shape",
          "tensor.collapse_shape", "tensor.concat")  # they move elements and look at none


def narrow_type(kind: ir.Type) -> ir.IntegerType | None:
    """The element type of a tensor of 2 to 7 bit integers, else None."""
    if not isinstance(kind, ir.RankedTensorType) or not isinstance(ir.RankedTensorType(kind).element_type, ir.IntegerType):
        return None
    element = ir.IntegerType(ir.RankedTensorType(kind).element_type)
    return element if 1 < element.width < 8 else None


@dataclass(frozen=True)
class WidenSubByte(Pass):
    """An i4 tensor becomes an i8 tensor of the same values; bodies see i4 as before, the low bits of what they read.

    Constants become `arith.extsi` of themselves, which canonicalize folds.
    """

    name: ClassVar[str] = "widen-sub-byte"

    def run(self, module: ir.Module) -> None:
        for fn in main_of(module):
            block = fn.regions[0].blocks[0]
            for op in walk(fn):  # before any type changes: rebuilt operations read their operands' types
                if op.name.startswith("linalg.") and op.name not in ("linalg.generic", "linalg.fill", "linalg.yield") \
                        and any(narrow_type(v.type) for v in op.operands):
                    replace(op, list(rebuild(op, inputs(op), inits(op), maps_of(op), iterator_kinds(op)).results))
                    op.erase()
            for argument in block.arguments:
                if narrow_type(argument.type) is not None:
                    argument.set_type(_wide(argument.type))
            for op in walk(fn):
                if op.results:
                    _widen(op)
            types = [a.type for a in block.arguments], [v.type for v in operations(block)[-1].operands]
            fn.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(*types))


def _wide(kind: ir.Type) -> ir.RankedTensorType:
    return ir.RankedTensorType.get(ir.RankedTensorType(kind).shape, _byte())


def _byte() -> ir.IntegerType:
    return ir.IntegerType.get_signless(8)


def _widen(op: ir.Operation) -> None:
    narrow = [narrow_type(r.type) for r in op.results]
    if op.name == "linalg.generic":
        _widen_body(op)
    elif op.name == "tensor.extract" and str(op.operands[0].type.element_type) != str(op.results[0].type):
        _narrow_after(op)
        return
    if not any(narrow):
        return
    with ir.InsertionPoint(op), op.location:
        if op.name == "linalg.fill":
            replace(op, [fill(arith.ExtSIOp(_byte(), op.operands[0]).result, op.operands[1])])
            op.erase()
            return
        if op.name == "tensor.pad":
            last = operations(body(op))[-1]
            with ir.InsertionPoint(last):
                last.operands[0] = arith.ExtSIOp(_byte(), last.operands[0]).result
        elif op.name not in (*_VIEWS, "linalg.generic", "arith.constant"):
            raise PassError(f"{op.name} at {op.location} computes a tensor of {next(filter(None, narrow))}; "
                            "cast its operands to i8 first")
    if op.name == "arith.constant":
        _extend_constant(op)
        return
    for result, element in zip(op.results, narrow, strict=True):
        if element is not None:
            result.set_type(_wide(result.type))


def _extend_constant(op: ir.Operation) -> None:
    with ir.InsertionPoint.after(op), op.location:
        extended = arith.ExtSIOp(_wide(op.results[0].type), op.results[0])
    op.results[0].replace_all_uses_except(extended.result, extended.operation)


def _narrow_after(op: ir.Operation) -> None:
    """A tensor.extract whose tensor has become wider."""
    element = op.results[0].type
    op.results[0].set_type(_byte())
    with ir.InsertionPoint.after(op), op.location:
        narrowed = arith.TruncIOp(element, op.results[0])
    op.results[0].replace_all_uses_except(narrowed.result, narrowed.operation)


def _widen_body(op: ir.Operation) -> None:
    """Block arguments become bytes and are narrowed first; what is yielded is extended."""
    block = body(op)
    for argument, operand in zip(block.arguments, op.operands, strict=True):
        element = argument.type
        if operand.type.element_type != element:
            argument.set_type(_byte())
            with ir.InsertionPoint.at_block_begin(block), op.location:
                narrowed = arith.TruncIOp(element, argument)
            argument.replace_all_uses_except(narrowed.result, narrowed.operation)
    last = operations(block)[-1]
    for i, result in enumerate(op.results):
        if narrow_type(result.type) is not None:
            with ir.InsertionPoint(last), op.location:
                last.operands[i] = arith.ExtSIOp(_byte(), last.operands[i]).result
