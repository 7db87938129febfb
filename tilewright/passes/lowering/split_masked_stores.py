"""split-masked-stores: a store of the first lanes of a vector becomes plain stores of parts of it, under branches.

Where a target has no masked store, LLVM branches for every lane; that of AVX2 takes a Zen 3 core 5 ns, the branches 1 to 2. A
row's count of lanes is mostly that of the row before, so the branches are foreseen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.passes.base import Mlir, Pass
from tilewright.passes.codegen.emit import constant, element_type, gep, integer_type, lanes_of, vector_type, when
from tilewright.passes.mlir import arith, ir, llvm, owner, scf, vector, walk

_STORE = "llvm.intr.masked.store"


@dataclass(frozen=True)
class SplitMaskedStores(Pass):
    """A store of `count` of n lanes, n a power of two: all of them, or halves, quarters and so on as the bits of `count` say.
    Stores whose mask is no comparison of 0, 1, ... n - 1 with a count stay."""

    name: ClassVar[str] = "split-masked-stores"

    def run(self, module: ir.Module) -> None:
        if all(op.name != _STORE for op in walk(module.operation)):
            return
        Mlir("canonicalize").run(module)
        for op in walk(module.operation):
            if op.name != _STORE:
                continue
            value, pointer, mask = op.operands
            count = counted(mask)
            if count is not None and lanes_of(value).bit_count() == 1:
                with ir.InsertionPoint(op), op.location:
                    _store_first(value, pointer, count, ir.IntegerAttr(op.attributes["alignment"]).value)
                op.erase()


def counted(mask: ir.Value) -> ir.Value | None:
    """How many lanes, from the first on, a mask in canonical form selects; None where it does not say so."""
    compare = owner(mask)
    if compare is None or compare.name != "arith.cmpi" or compare.attributes["predicate"] != _more_than():
        return None
    limit, ramp = map(owner, compare.operands)
    if limit is None or limit.name != "vector.broadcast" or ramp is None or ramp.name != "arith.constant":
        return None
    numbers = ir.DenseIntElementsAttr(ramp.attributes["value"])
    count: ir.Value = limit.operands[0]
    return count if list(numbers) == list(range(len(numbers))) else None


def _more_than() -> ir.Attribute:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), arith.CmpIPredicate.sgt)


def _store_first(value: ir.Value, pointer: ir.Value, count: ir.Value, alignment: int) -> None:
    """Of no lane where the count is below 1, of all where it is not below their number."""
    zero, lanes = constant(count.type, 0), lanes_of(value)

    def store(value: ir.Value, pointer: ir.Value) -> None:
        llvm.StoreOp(value, pointer, alignment=alignment)

    def halve(value: ir.Value, pointer: ir.Value, some: ir.Value) -> None:
        half, element = lanes_of(value) // 2, element_type(value.type)
        bit = arith.cmpi(arith.CmpIPredicate.ne, arith.andi(some, constant(count.type, half)), zero)
        if half == 1:
            when(bit, lambda: store(vector.extract(value, [], [0]), pointer))
            return
        first, second = (vector.shuffle(value, value, [*range(begin, begin + half)]) for begin in (0, half))
        op = scf.IfOp(bit, [vector_type(element, half), pointer.type], has_else=True)
        with ir.InsertionPoint(op.then_block):
            store(first, pointer)
            scf.YieldOp([second, gep(pointer, constant(integer_type(64), half), element)])
        with ir.InsertionPoint(op.else_block):
            scf.YieldOp([first, pointer])
        left, at = op.results_
        halve(left, at, some)

    every = arith.cmpi(arith.CmpIPredicate.sge, count, constant(count.type, lanes))
    when(every, lambda: store(value, pointer), lambda: halve(value, pointer, arith.maxsi(count, zero)))
