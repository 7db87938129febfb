"""Comparisons of coordinates in bodies, such as masks are made of, as sums of loops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tilewright.passes.linalg.structured import iterator_kinds
from tilewright.passes.linalg.symbolic import SymbolicShapes, integer
from tilewright.passes.mlir import ir, maps_of, operations, owner, position
from tilewright.runtime.shape import Expr

Terms = tuple[dict[int, int], Expr]  # the factor of each loop, and the rest
Found = tuple[ir.Value, dict[int, int]]

_PREDICATES = {2: (1, 1), 3: (1, 0), 4: (-1, 1), 5: (-1, 0)}  # slt, sle, sgt, sge: sign, and what is added to compare by <= 0
_CASTS = ("arith.index_cast", "arith.extsi", "arith.trunci")


@dataclass(frozen=True)
class Element:
    """An integer that is read from memory: an element of a tensor, at the loops of its axes by their number in the sum."""

    tensor: ir.Value
    place: tuple[int, ...]


@dataclass
class Elements:
    """Integers from memory in a sum, by the symbols that stand for them there."""

    found: dict[str, Element] = field(default_factory=dict)

    def symbol(self, value: ir.Value, loops: Mapping[int, int]) -> Expr | None:
        """What stands for an argument of a body; None where it is no element at loops that the sum knows."""
        block = value.owner
        if not isinstance(block, ir.Block) or not block.owner.operation.name.startswith("linalg."):
            return None
        op, number = block.owner.operation, list(block.arguments).index(value)
        tensor, at = op.operands[number], [position(e) for e in maps_of(op)[number].results]
        if not isinstance(tensor.type, ir.RankedTensorType) or any(d not in loops for d in at):
            return None
        if not isinstance(tensor.type.element_type, ir.IntegerType) or tensor.type.element_type.width == 1:
            return None
        element = Element(tensor, tuple(loops[d] for d in at if d is not None))
        name = next((n for n, e in self.found.items() if e == element), f"element.{len(self.found)}")
        self.found[name] = element
        return Expr.dim(name)


def compared(shapes: SymbolicShapes, compare: ir.Operation, loops: Mapping[int, int],
             elements: Elements | None = None) -> Terms | None:
    """The sum that is 0 or less just where an `arith.cmpi` holds; None where it is no such comparison.

    Args:
        loops: the number that each loop of the comparison's own operation has in the sum.
        elements: takes the integers from memory that are in the sum; None: there may be none.
    """
    kind = integer(compare.attributes["predicate"])
    sides = [_terms(shapes, v, loops, elements) for v in compare.operands]
    if kind not in _PREDICATES or sides[0] is None or sides[1] is None:
        return None
    sign, more = _PREDICATES[kind]
    found = _difference(sides[0], sides[1])
    return {d: sign * s for d, s in found[0].items() if s}, found[1] * sign + more


def read(value: ir.Value, loops: Mapping[int, int]) -> Found | None:
    """What makes the element that an argument of a body is: a value in the body of the operation before, and the loops of that
    one; None where it is read from memory."""
    block = value.owner
    if not isinstance(block, ir.Block):
        return None
    op = block.owner.operation
    if not op.name.startswith("linalg."):
        return None
    number = list(block.arguments).index(value)
    made = owner(op.operands[number])
    if made is None or made.name != "linalg.generic" or len(made.results) != 1 or "reduction" in iterator_kinds(made):
        return None
    own: dict[int, int] = {}
    for axis, loop in zip(maps_of(op)[number].results, maps_of(made)[-1].results, strict=True):
        at, inner = position(axis), position(loop)
        if inner is not None and at is not None and at in loops:
            own[inner] = loops[at]
    return operations(made.regions[0].blocks[0])[-1].operands[0], own


def _terms(shapes: SymbolicShapes, value: ir.Value, loops: Mapping[int, int], elements: Elements | None) -> Terms | None:
    """An integer as a sum of loops and an Expr."""
    op = owner(value)
    if op is None:
        before = read(value, loops)
        if before is not None:
            return _terms(shapes, *before, elements)
        known = _known(shapes, value)
        symbol = elements.symbol(value, loops) if known is None and elements is not None else None
        return known if symbol is None else ({}, symbol)
    if op.name == "linalg.index":
        loop = loops.get(integer(op.attributes["dim"]))
        return None if loop is None else ({loop: 1}, Expr.of(0))
    if op.name in _CASTS:  # elements may have any value, which a narrower type would change
        return _terms(shapes, op.operands[0], loops, None if op.name == "arith.trunci" else elements)
    if op.name in ("arith.addi", "arith.subi"):
        a, b = (_terms(shapes, v, loops, elements) for v in op.operands)
        if a is None or b is None:
            return None
        return _difference(a, b if op.name == "arith.subi" else _difference(({}, Expr.of(0)), b))
    return _known(shapes, value)


def _known(shapes: SymbolicShapes, value: ir.Value) -> Terms | None:
    found = shapes.expr(value)
    return None if found is None else ({}, found)


def _difference(a: Terms, b: Terms) -> Terms:
    return {d: a[0].get(d, 0) - b[0].get(d, 0) for d in {*a[0], *b[0]}}, a[1] - b[1]
