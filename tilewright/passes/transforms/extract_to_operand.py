"""extract-to-operand: a tensor.extract in a linalg.generic at coordinates that are loops becomes an operand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.passes.base import Pass
from tilewright.passes.linalg.structured import (
    body,
    erase_unused,
    inits,
    inputs,
    iterator_kinds,
    loop_extents,
    main_of,
    rebuild,
    replace,
    use_count,
)
from tilewright.passes.linalg.symbolic import SymbolicShapes, integer
from tilewright.passes.mlir import ir, maps_of, operations, owner, replace_all_uses, walk
from tilewright.runtime.shape import Expr


@dataclass(frozen=True)
class ExtractToOperand(Pass):
    """Exporters write a broadcast as `t[dim == 1 ? 0 : i, ...]`. Where the loop's extent is that dim, this is
    i: the two differ only in a loop of one step. A coordinate along an axis of extent 1 is 0.
    """

    name: ClassVar[str] = "extract-to-operand"

    def run(self, module: ir.Module) -> None:
        for fn in main_of(module):
            shapes = SymbolicShapes(fn)
            for op in walk(fn, "linalg.generic"):
                _rewrite(op, shapes)
            erase_unused(fn)


def _rewrite(op: ir.Operation, shapes: SymbolicShapes) -> None:
    maps = maps_of(op)
    extents = dict(enumerate(loop_extents(op, shapes)))
    found = []
    for inner in operations(body(op)):
        if inner.name == "tensor.extract" and _outside(inner.operands[0], op):
            access = _access(inner, extents, shapes)
            if access is not None:
                found.append((inner, access))
    if not found:
        return
    count = len(inputs(op))

    def edit(block: ir.Block) -> None:
        for inner, _ in found:
            argument = _insert_argument(block, count, inner.results[0].type, inner.location)
            replace_all_uses(inner.results[0], argument)
            inner.erase()
        _erase_dead(block)

    sources = [inner.operands[0] for inner, _ in found][::-1]
    accesses = [access for _, access in found][::-1]
    new = rebuild(
        op, [*inputs(op), *sources], inits(op), [*maps[:count], *accesses, *maps[count:]], iterator_kinds(op), edit
    )
    replace(op, list(new.results))


def _access(extract: ir.Operation, extents: dict[int, Expr], shapes: SymbolicShapes) -> ir.AffineMap | None:
    """The extract's coordinates as a map over the loops; None when one is not a whole loop or 0."""
    source, coordinates = extract.operands[0], list(extract.operands)[1:]
    results = []
    for extent, coordinate in zip(shapes.dims(source), coordinates, strict=True):
        loop = _loop(coordinate, extents, shapes)
        if extent == Expr.of(1):
            results.append(ir.AffineExpr.get_constant(0))
        elif loop is not None and extents.get(loop) == extent:
            results.append(ir.AffineExpr.get_dim(loop))
        else:
            return None
    return ir.AffineMap.get(max(extents) + 1 if extents else 0, 0, results)


def _loop(value: ir.Value, extents: dict[int, Expr], shapes: SymbolicShapes) -> int | None:
    """The loop that a coordinate counts, looking through casts and through `extent == 1 ? 0 : i`."""
    op = owner(value)
    if op is None:
        return None
    if op.name == "linalg.index":
        return integer(op.attributes["dim"])
    if op.name == "arith.index_cast":
        return _loop(op.operands[0], extents, shapes)
    if op.name != "arith.select":
        return None
    known = shapes.truth(op.operands[0])
    if known is not None:
        return _loop(op.operands[1 if known else 2], extents, shapes)
    loop = _loop(op.operands[2], extents, shapes)
    test = owner(op.operands[0])
    if (
        loop is None
        or loop not in extents
        or shapes.expr(op.operands[1]) != Expr.of(0)
        or test is None
        or test.name != "arith.cmpi"
    ):
        return None
    sides = {shapes.expr(v) for v in test.operands}
    return loop if integer(test.attributes["predicate"]) == 0 and sides == {extents.get(loop), Expr.of(1)} else None


def _outside(value: ir.Value, op: ir.Operation) -> bool:
    defining = owner(value)
    return value not in list(body(op).arguments) and (defining is None or defining.block != body(op))


def _insert_argument(block: ir.Block, at: int, kind: ir.Type, location: ir.Location) -> ir.Value:
    """A new block argument at `at`. Arguments can only be appended: the later ones are appended again behind it."""
    later = list(block.arguments)[at:]
    fresh = block.add_argument(kind, location)
    for old in later:
        replace_all_uses(old, block.add_argument(old.type, location))
    for _ in later:
        block.erase_argument(at)
    return fresh


def _erase_dead(block: ir.Block) -> None:
    for op in reversed(operations(block)[:-1]):
        if all(use_count(r) == 0 for r in op.results):
            op.erase()
