"""Builders of linalg ops whose body comes from elsewhere, and affine expressions over renamed loops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tilewright.passes.mlir import ir, position
from tilewright.runtime.errors import PassError

Body = Callable[[list[ir.Value]], ir.Value]


def generic(
    inputs: Sequence[ir.Value],
    outputs: Sequence[ir.Value],
    maps: Sequence[ir.AffineMap],
    kinds: Sequence[str],
    types: Sequence[ir.Type],
) -> ir.Operation:
    """A linalg.generic with an empty region; the caller adds the body."""
    return ir.Operation.create(
        "linalg.generic",
        results=list(types),
        operands=[*inputs, *outputs],
        regions=1,
        attributes={
            "indexing_maps": ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in maps]),
            "iterator_types": ir.ArrayAttr.get([ir.Attribute.parse(f"#linalg.iterator_type<{k}>") for k in kinds]),
            "operandSegmentSizes": ir.DenseI32ArrayAttr.get([len(inputs), len(outputs)]),
        },
    )


def fill(scalar: ir.Value, into: ir.Value) -> ir.Value:
    """linalg.fill of `into`."""
    made = ir.Operation.create(
        "linalg.fill",
        results=[into.type],
        operands=[scalar, into],
        regions=1,
        attributes={"operandSegmentSizes": ir.DenseI32ArrayAttr.get([1, 1])},
    )
    element = scalar.type
    block = ir.Block.create_at_start(made.regions[0], [element, into.type.element_type])
    with ir.InsertionPoint(block):
        ir.Operation.create("linalg.yield", operands=[block.arguments[0]])
    return made.results[0]


def renumber(e: ir.AffineExpr, loops: Mapping[int, ir.AffineExpr | int]) -> ir.AffineExpr:
    """`e` with each loop replaced by another loop or by an expression."""
    at = position(e)
    if at is not None:
        new = loops[at]
        return ir.AffineExpr.get_dim(new) if isinstance(new, int) else new
    if isinstance(e, ir.AffineConstantExpr):
        return e
    binary = ir.AffineBinaryExpr(e)
    a, b = renumber(binary.lhs, loops), renumber(binary.rhs, loops)
    for kind, make in (
        (ir.AffineAddExpr, ir.AffineExpr.get_add),
        (ir.AffineMulExpr, ir.AffineExpr.get_mul),
        (ir.AffineModExpr, ir.AffineExpr.get_mod),
        (ir.AffineFloorDivExpr, ir.AffineExpr.get_floor_div),
        (ir.AffineCeilDivExpr, ir.AffineExpr.get_ceil_div),
    ):
        if isinstance(e, kind):
            return make(a, b)
    raise PassError(f"affine expression {e} has symbols")


def i64(value: int) -> ir.IntegerAttr:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)


def elementwise(
    inputs: Sequence[ir.Value], into: ir.Value, body: Body, maps: Sequence[ir.AffineMap] | None = None
) -> ir.Value:
    """A generic over the axes of `into`; body(input scalars) gives the element. Maps default to the identity."""
    rank = ir.RankedTensorType(into.type).rank
    same = ir.AffineMap.get_identity(rank)
    made = generic(inputs, [into], [*(maps or [same] * len(inputs)), same], ["parallel"] * rank, [into.type])
    fill_body(made, body)
    return made.results[0]


def reduction(source: ir.Value, into: ir.Value, axis: int, body: Body) -> ir.Value:
    """A generic that folds an axis; body([element, total]) gives the new total."""
    rank = ir.RankedTensorType(source.type).rank
    kept = [ir.AffineExpr.get_dim(d) for d in range(rank) if d != axis]
    maps = [ir.AffineMap.get_identity(rank), ir.AffineMap.get(rank, 0, kept)]
    made = generic([source], [into], maps, ["reduction" if d == axis else "parallel" for d in range(rank)], [into.type])
    fill_body(made, body)
    return made.results[0]


def fill_body(op: ir.Operation, body: Body) -> None:
    """Give a generic with an empty region its body; body(scalars of its operands) gives the element."""
    block = ir.Block.create_at_start(op.regions[0], [ir.RankedTensorType(v.type).element_type for v in op.operands])
    with ir.InsertionPoint(block):
        ir.Operation.create("linalg.yield", operands=[body(list(block.arguments))])
