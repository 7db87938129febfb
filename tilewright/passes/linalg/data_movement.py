"""Ops that only move elements, and folding them into the indexing maps of what reads their result."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.passes.linalg.structured import (
    body,
    compose,
    covers_loops,
    inits,
    inputs,
    is_rewritable,
    iterator_kinds,
    rebuild,
    replace,
)
from tilewright.passes.linalg.symbolic import mixed
from tilewright.passes.mlir import ir, maps_of, operations, owner, position, walk

Wanted = Callable[[ir.AffineMap], bool]
MOVEMENT_OPS = ("tensor.pad", "tensor.concat", "tensor.insert_slice", "tensor.insert")  # place elements and compute none
MAPPED_MOVEMENTS = ("linalg.transpose", "linalg.broadcast", "linalg.generic")  # what may only move elements, by maps


def movement(op: ir.Operation | None) -> ir.AffineMap | None:
    """For an op that only moves elements (transpose, broadcast, a generic that yields its one input): coordinates of
    its result -> coordinates of its input. None for every other op.
    """
    if op is None or op.name not in MAPPED_MOVEMENTS or len(op.results) != 1 or len(op.operands) != 2:
        return None
    if "reduction" in iterator_kinds(op):
        return None
    block = body(op)
    inner = operations(block)
    if len(inner) != 1 or inner[0].operands[0] != block.arguments[0]:
        return None
    source, result = maps_of(op)
    if not result.is_permutation or not all(position(e) is not None or _zero(e) for e in source.results):
        return None
    back = [ir.AffineExpr.get_dim([position(e) for e in result.results].index(d)) for d in range(result.n_dims)]
    return ir.AffineMap.get(
        result.n_dims, 0, [e.compose(ir.AffineMap.get(result.n_dims, 0, back)) for e in source.results]
    )


def constant_pad(op: ir.Operation) -> bool:
    """A tensor.pad with one value for all padded places."""
    if op.name != "tensor.pad":
        return False
    yielded = operations(op.regions[0].blocks[0])[-1].operands[0]
    return not isinstance(yielded.owner, ir.Block) and all(
        not isinstance(x, int) or x >= 0 for s, n in (("static_low", 1), ("static_high", 2)) for x in mixed(op, s, n)
    )


def fold_movements(fn: ir.Operation, wanted: Wanted) -> None:
    """Generics and named contractions read the source of each wanted movement through a composed map.

    An operand stays when without it no other operand would give some loop its extent.
    """
    for op in walk(fn):
        if is_rewritable(op) and op.regions[0].blocks:
            _fold_operands(op, wanted)


def _fold_operands(op: ir.Operation, wanted: Wanted) -> None:
    maps = maps_of(op)
    sources = inputs(op)
    before = list(sources)
    for i in range(len(sources)):
        access = _movement_of(sources[i], wanted)
        while access is not None:
            folded = [*maps[:i], compose(access, maps[i]), *maps[i + 1 :]]
            if not covers_loops(folded):
                break
            maps, sources[i] = folded, owner(sources[i]).operands[0]  # type: ignore[union-attr]
            access = _movement_of(sources[i], wanted)
    if sources != before:
        new = rebuild(op, sources, inits(op), maps, iterator_kinds(op))
        replace(op, list(new.results))


def _movement_of(value: ir.Value, wanted: Wanted) -> ir.AffineMap | None:
    """The movement that defines the value, when it is wanted: coordinates of the value -> coordinates of its source."""
    defining = owner(value)
    if defining is None or not defining.regions or not defining.regions[0].blocks:
        return None
    access = movement(defining)
    return access if access is not None and wanted(access) else None


def _zero(expr: ir.AffineExpr) -> bool:
    return isinstance(expr, ir.AffineConstantExpr) and ir.AffineConstantExpr(expr).value == 0
