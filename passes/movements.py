"""Folding ops that only move elements into the indexing maps of what reads their result."""

from __future__ import annotations

from collections.abc import Callable

from passes.mlir import ir, maps_of, owner, walk
from passes.structured import (
    compose,
    covers_loops,
    inits,
    inputs,
    is_rewritable,
    iterator_kinds,
    movement,
    rebuild,
    replace,
)

Wanted = Callable[[ir.AffineMap], bool]


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
