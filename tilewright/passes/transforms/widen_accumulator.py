"""widen-accumulator: sums in f16 and bf16 are accumulated in f32 and rounded once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.passes.analysis.op_kinds import combiner
from tilewright.passes.base import Pass
from tilewright.passes.linalg.builders import elementwise, fill
from tilewright.passes.linalg.clone import clone
from tilewright.passes.linalg.reshape import Reshaper
from tilewright.passes.linalg.structured import body, erase_unused, inits, iterator_kinds, main_of, replace
from tilewright.passes.mlir import arith, ir, operations, owner

_NARROW = ("f16", "bf16")
_SUMS = ("arith.addf", "arith.mulf")


@dataclass(frozen=True)
class WidenAccumulator(Pass):
    """Contractions, convolutions and reductions by + or * whose one result is f16 or bf16."""

    name: ClassVar[str] = "widen-accumulator"

    def run(self, module: ir.Module) -> None:
        for fn in main_of(module):
            tensors = Reshaper(fn)
            for op in operations(fn.regions[0].blocks[0]):
                if _accumulates_narrow(op):
                    with ir.InsertionPoint(op), op.location:
                        replace(op, [_widen(op, tensors)])
            erase_unused(fn)


def _accumulates_narrow(op: ir.Operation) -> bool:
    if not op.name.startswith("linalg.") or op.name == "linalg.softmax" or len(op.results) != 1:
        return False
    if str(ir.RankedTensorType(op.results[0].type).element_type) not in _NARROW or "reduction" not in iterator_kinds(
        op
    ):
        return False
    last = combiner(op)
    return last is not None and last.name in _SUMS


def _widen(op: ir.Operation, tensors: Reshaper) -> ir.Value:
    wide = ir.F32Type.get()
    start = inits(op)[0]
    narrow = ir.RankedTensorType(start.type).element_type
    dims = tensors.shapes.dims(start)
    dense = tensors.as_type(start, tensors.empty(dims, narrow).type)
    made = owner(start)
    if made is not None and made.name == "linalg.fill":
        into = fill(arith.ExtFOp(wide, made.operands[0]).result, tensors.empty(dims, wide))
    else:
        into = elementwise([dense], tensors.empty(dims, wide), lambda v: arith.ExtFOp(wide, v[0]).result)
    total = _accumulate(op, into)
    rounded = elementwise([total], tensors.empty(dims, narrow), lambda v: arith.TruncFOp(narrow, v[0]).result)
    return tensors.as_type(rounded, op.results[0].type)


def _accumulate(op: ir.Operation, into: ir.Value) -> ir.Value:
    """`op` again with an f32 accumulator: the combiner and what it joins work in f32."""
    start = inits(op)[0]
    wide = ir.RankedTensorType(into.type).element_type
    made = ir.Operation.create(
        op.name,
        results=[into.type],
        operands=[into if v == start and i == len(op.operands) - 1 else v for i, v in enumerate(op.operands)],
        attributes={n: op.attributes[n] for n in op.attributes},
        regions=1,
    )
    old = body(op)
    block = ir.Block.create_at_start(made.regions[0], [*(a.type for a in list(old.arguments)[:-1]), wide])
    values = dict(zip(old.arguments, block.arguments, strict=True))
    last = combiner(op)

    def widened(v: ir.Value) -> ir.Value:
        new = values.get(v, v)
        source = owner(new)
        if str(new.type) == str(wide):
            return new
        if source is not None and source.name == "arith.mulf":  # the product of narrow factors is not rounded
            return arith.MulFOp(widened(source.operands[0]), widened(source.operands[1])).result
        if source is not None and source.name == "arith.truncf" and str(source.operands[0].type) == str(wide):
            return source.operands[0]
        return arith.ExtFOp(wide, new).result

    with ir.InsertionPoint(block):
        for inner in operations(old):
            if inner == last:
                pair = [widened(v) for v in inner.operands]
                values[inner.results[0]] = (arith.AddFOp if inner.name == "arith.addf" else arith.MulFOp)(*pair).result
                continue
            copy = clone(inner, lambda v: values.get(v, v))
            values.update(zip(inner.results, copy.results, strict=True))
    _erase_unused_scalars(block)
    return made.results[0]


def _erase_unused_scalars(block: ir.Block) -> None:
    for op in reversed(operations(block)[:-1]):
        if not any(list(r.uses) for r in op.results):
            op.erase()
