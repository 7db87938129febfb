"""Which arguments a call may give with their rows apart: those that only kernels read, which go by the strides of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.compiler.host.call_tables import MANY
from tilewright.compiler.host.launch_groups import ALONE
from tilewright.passes.codegen.emit import gep, integer_type
from tilewright.passes.codegen.index import Index, emit_expr
from tilewright.passes.linalg.strides import VIEW_OPS, View, Views, dense_strides
from tilewright.passes.linalg.symbolic import CONSTANT, SymbolicShapes, argument_attributes
from tilewright.passes.mlir import arith, ir, llvm, walk
from tilewright.runtime.shape import Expr


@dataclass(frozen=True)
class StridedInput:
    """A tensor input. number: among these. dense: the strides of its axes but the last where it has no gaps; names: what those of
    a run are called."""

    number: int
    dense: tuple[Expr, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"input{self.number}.stride{axis}" for axis, _ in enumerate(self.dense))

    @property
    def strides(self) -> tuple[Expr, ...]:
        """Of all axes, over `names`."""
        return (*map(Expr.dim, self.names), Expr.of(1))


def strided_inputs(main: ir.Operation, shapes: SymbolicShapes) -> dict[ir.Value, StridedInput]:
    """By the argument of an outlined @main: those whose every view has strides whatever their own are, and the same axis of unit
    stride. None of a program of many calls, which are to share their code, or of many
    arrays, which calls look at by tables."""
    ops, block = walk(main), main.regions[0].blocks[0]
    named = argument_attributes(main)
    tensors = [v for v, n in zip(block.arguments, named, strict=True)
               if isinstance(v.type, ir.RankedTensorType) and CONSTANT not in n]
    if len(tensors) + len(list(ops[-1].operands)) > MANY or sum(op.name == "func.call" for op in ops) > ALONE:
        return {}
    found = {v: StridedInput(number, dense_strides(shapes.dims(v))[:-1]) for number, v in enumerate(tensors)
             if ir.RankedTensorType(v.type).rank > 1}
    dense, apart = Views(shapes), Views(shapes, {v: given.strides for v, given in found.items()})
    for op in ops:
        for value in op.operands:
            if isinstance(value.type, ir.RankedTensorType) and (buffer := dense.view(value).buffer) in found and \
                    not _reads_any(op, value, dense, apart):
                del found[buffer]
    return found


def _reads_any(op: ir.Operation, value: ir.Value, dense: Views, apart: Views) -> bool:
    """Does an operation read a view of an argument whatever the strides of that?"""
    if op.name in VIEW_OPS:
        return dense.is_view(op) and apart.is_view(op)
    return op.name == "tensor.dim" or (op.name == "func.call" and _same_unit(dense.view(value), apart.view(value)))


def _same_unit(dense: View, apart: View) -> bool:
    """Are the axes of unit stride the same?"""
    return _units(dense.strides) == _units(apart.strides)


def _units(strides: Sequence[Expr]) -> list[bool]:
    return [s.constant == 1 for s in strides]


def stride_words(inputs: Sequence[StridedInput], words: ir.Value, dims: Mapping[str, Index]) -> dict[str, Index]:
    """The strides of inputs whose rows may lie apart: the words there in their order, those of dense rows where a word is 0."""
    found, i64, at = dict[str, Index](), integer_type(64), 0
    for given in inputs:
        for name, dense in zip(given.names, given.dense, strict=True):
            word = llvm.LoadOp(i64, gep(words, Index(at).value(i64), i64)).result
            is_dense = arith.cmpi(arith.CmpIPredicate.eq, word, Index(0).value(i64))
            found[name] = Index(arith.select(is_dense, emit_expr(dense, dims).value(i64), word))
            at += 1
    return found
