"""Which extents a model forces to be equal: one Equation per fact that the ops of a function state about its shapes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.compiler.dims.op_location import where
from tilewright.passes.linalg.symbolic import SymbolicShapes, integer, mixed, reassociation
from tilewright.passes.mlir import ir, maps_of, owner, position, walk
from tilewright.runtime.shape import Expr


@dataclass(frozen=True)
class Equation:
    """`left` equals `right` for every legal shape; `reason` names the operation and its location."""

    left: Expr
    right: Expr
    reason: str


def equations(fn: ir.Operation, shapes: SymbolicShapes) -> list[Equation]:
    """Every nontrivial equation, in program order. Ops whose extents are not expressions of the dims state nothing."""
    found = []
    for op in walk(fn):
        try:
            pairs = list(_stated(op, shapes))
        except ValueError:
            continue
        found += [Equation(a, b, f"{_named(op)} at {where(op)}") for a, b in pairs if a != b]
    return found


def _named(op: ir.Operation) -> str:
    return f'the assert "{ir.StringAttr(op.attributes["msg"]).value}"' if op.name == "cf.assert" else str(op.name)


def _stated(op: ir.Operation, shapes: SymbolicShapes) -> Iterator[tuple[Expr, Expr]]:
    name = op.name
    if name in ("linalg.yield", "linalg.index"):
        return
    if name == "linalg.softmax":
        yield from zip(shapes.dims(op.operands[0]), shapes.dims(op.operands[1]), strict=True)
    elif name.startswith("linalg."):
        yield from _structured(op, shapes)
    elif name == "tensor.cast":
        yield from zip(shapes.dims(op.operands[0]), _own(op.results[0], shapes.dims(op.operands[0])), strict=True)
    elif name == "tensor.concat":
        axis = integer(op.attributes["dim"])
        first = shapes.dims(op.operands[0])
        for other in list(op.operands)[1:]:
            yield from ((a, b) for i, (a, b) in enumerate(zip(first, shapes.dims(other), strict=True)) if i != axis)
    elif name == "tensor.expand_shape":
        result = shapes.dims(op.results[0])
        for extent, group in zip(shapes.dims(op.operands[0]), reassociation(op), strict=True):
            yield extent, _product([result[i] for i in group])
    elif name == "tensor.reshape":
        yield _product(shapes.dims(op.operands[0])), _product(shapes.dims(op.results[0]))
    elif name == "tensor.insert_slice":
        sizes = [s if isinstance(s, int) else shapes.expr(s) for s in mixed(op, "static_sizes", 3)]
        source = shapes.dims(op.operands[0])
        if len(sizes) == len(source):
            yield from ((a, Expr.of(b)) for a, b in zip(source, sizes, strict=True) if b is not None)
    elif name == "cf.assert":
        yield from _asserted(op.operands[0], shapes)


def _structured(op: ir.Operation, shapes: SymbolicShapes) -> Iterator[tuple[Expr, Expr]]:
    maps = maps_of(op)
    tensors = [v for v in op.operands if isinstance(v.type, ir.RankedTensorType)]
    if len(maps) != len(op.operands):
        return
    extents: dict[int, Expr] = {}
    for value, access in zip(op.operands, maps, strict=True):
        if value not in tensors:
            continue
        for extent, expr in zip(shapes.dims(value), access.results, strict=True):
            loop = position(expr)
            if loop is not None:
                yield extents.setdefault(loop, extent), extent


def _asserted(condition: ir.Value, shapes: SymbolicShapes) -> Iterator[tuple[Expr, Expr]]:
    op = owner(condition)
    if op is None:
        return
    if op.name == "arith.andi":
        for part in op.operands:
            yield from _asserted(part, shapes)
    elif op.name == "arith.cmpi" and integer(op.attributes["predicate"]) == 0:
        a, b = (shapes.expr(v) for v in op.operands)
        if a is not None and b is not None:
            yield a, b


def _own(value: ir.Value, otherwise: tuple[Expr, ...]) -> list[Expr]:
    """Static extents of the value's own type, `otherwise` where the type has none."""
    t = ir.RankedTensorType(value.type)
    return [otherwise[i] if t.is_dynamic_dim(i) else Expr.of(t.get_dim_size(i)) for i in range(t.rank)]


def _product(extents: tuple[Expr, ...] | list[Expr]) -> Expr:
    total = Expr.of(1)
    for e in extents:
        total = total * e
    return total
