"""Where an element of a root lands in the values computed from it: stored coordinates as Exprs of the root's.

A family that holds a root's elements in registers stores every result at the coordinates that `place` gives, and lets the
evaluator compute what lies between. Works through elementwise ops, permutations and reshapes.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.passes.linalg.structured import iterator_kinds
from tilewright.passes.linalg.symbolic import SymbolicShapes, evaluate_affine, reassociation
from tilewright.passes.mlir import ir, maps_of, position, walk
from tilewright.runtime.shape import Expr

Place = tuple[Expr, ...]


def axis_name(axis: int) -> str:
    """The symbol that stands for the root's coordinate on one axis."""
    return f"root.{axis}"


def place(shapes: SymbolicShapes, root: ir.Value, ops: Sequence[ir.Operation], results: Sequence[ir.Value]) -> list[Place]:
    """Coordinates of each result for the root's element (root.0, root.1, ...).

    Raises:
        ValueError: a result does not follow from one element of the root, or from different ones on different ways.
    """
    rank = ir.RankedTensorType(root.type).rank
    placed: dict[ir.Value, Place] = {root: tuple(Expr.dim(axis_name(a)) for a in range(rank))}
    for op in ops:
        inner = [o for o in walk(op) for v in o.operands if v in placed]
        if inner:
            raise ValueError(f"{inner[0].name} at {inner[0].location}: reads the root at computed places")
        for number, value in enumerate(op.operands):
            if value not in placed or not _reads(op, number):
                continue
            for result, coords in zip(op.results, _through(shapes, op, number, placed[value]), strict=True):
                if placed.setdefault(result, coords) != coords:
                    raise ValueError(f"{op.name} at {op.location}: joins different elements of the root")
    missing = [r for r in results if r not in placed]
    if missing:
        raise ValueError(f"result {missing[0]} does not depend on the root")
    return [placed[r] for r in results]


def _reads(op: ir.Operation, number: int) -> bool:
    """False where a tensor is only the shape of a result."""
    if not op.name.startswith("linalg.") or not len(op.regions):
        return op.name not in ("tensor.dim",)
    return next(iter(op.regions[0].blocks[0].arguments[number].uses), None) is not None


def _through(shapes: SymbolicShapes, op: ir.Operation, number: int, coords: Place) -> list[Place]:
    """Coordinates in the results of `op` of what operand `number` holds at `coords`."""
    where = f"{op.name} at {op.location}"
    if op.name == "tensor.cast":
        return [coords]
    if op.name == "tensor.collapse_shape":
        extents = shapes.dims(op.operands[0])
        return [tuple(collapsed([extents[a] for a in group], [coords[a] for a in group]) for group in reassociation(op))]
    if op.name == "tensor.expand_shape":
        extents = shapes.dims(op.results[0])
        found: list[Expr] = []
        for group, c in zip(reassociation(op), coords, strict=True):
            found += expanded(c, [extents[axis] for axis in group])
        return [tuple(found)]
    if not op.name.startswith("linalg.") or "reduction" in iterator_kinds(op):
        raise ValueError(f"{where}: its elements do not come from one element of the root")
    maps = maps_of(op)
    loops: list[Expr | None] = [None] * maps[0].n_dims
    for e, c in zip(maps[number].results, coords, strict=True):
        at = position(e)
        if at is not None:
            loops[at] = c
        elif not isinstance(e, ir.AffineConstantExpr):
            raise ValueError(f"{where}: reads the root through {maps[number]}")
    known = [x for x in loops if x is not None]
    if len(known) < len(loops):
        raise ValueError(f"{where}: repeats an element of the root")
    outputs = maps[len(op.operands) - len(op.results) :]
    return [tuple(evaluate_affine(e, known) for e in m.results) for m in outputs]


def collapsed(extents: Sequence[Expr], coords: Sequence[Expr]) -> Expr:
    """The coordinate on one axis in place of several."""
    total = Expr.of(0)
    for extent, c in zip(extents, coords, strict=True):
        total = total * extent + c
    return total


def expanded(linear: Expr, extents: Sequence[Expr]) -> list[Expr]:
    """The coordinates on several axes in place of one."""
    found: list[Expr] = []
    for extent in reversed(extents[1:]):
        found.insert(0, linear % extent)
        linear = linear // extent
    return [linear, *found]


def steps_of(coordinate: Expr) -> list[tuple[str, int]]:
    """The symbols of a coordinate with what it grows by when each grows by one, 0 where that is no constant.

    The smallest steps come first, those that are no constants last.
    """
    steps = {s: (coordinate.substitute({s: Expr.dim(s) + 1}) - coordinate).constant or 0 for s in coordinate.symbols}
    last_first = sorted(steps, key=lambda s: (len(s), s), reverse=True)
    return sorted(((s, steps[s]) for s in last_first), key=lambda pair: (pair[1] == 0, abs(pair[1])))
