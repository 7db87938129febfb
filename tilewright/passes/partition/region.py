"""A dispatch region: its frame, the places of its values, and when one frame holds two of them.

A region has a frame: for a contraction or a window op the axes of its result, for row reductions the loops of the
reduction (rows and columns), else the loops of the elementwise operations. Every value of a region has a place in it,
the frame axis of each of its axes, and an operation joins a region only when it reads all values of the region at their
places: then a kernel that walks the frame can compute each value where it stands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.passes.analysis.op_kinds import OpKind, body_names
from tilewright.passes.mlir import ir, maps_of, position
from tilewright.runtime.shape import Expr

ROOTED = (OpKind.CONTRACTION, OpKind.WINDOW)
Place = tuple[int, ...]


@dataclass(eq=False)
class Region:
    """Operations of one kernel. `loops` gives the frame axis of each loop of an op, `places` of each value axis.

    parts: does it hold reductions in parts? What they give has no place: it is read when all parts are done."""

    kind: OpKind
    root: ir.Operation
    frame: list[Expr]
    columns: set[int] = field(default_factory=set)
    ops: list[ir.Operation] = field(default_factory=list)
    loops: dict[ir.Operation, Place] = field(default_factory=dict)
    places: dict[ir.Value, Place] = field(default_factory=dict)
    parts: bool = False

    def has(self, name: str) -> bool:
        """Is an operation of this name, `linalg.generic` or `math.exp`, one of the region, or inside one?"""
        return any(op.name == name or name in body_names(op) for op in self.ops)

    def renamed(self, axes: Sequence[int]) -> tuple[dict[ir.Operation, Place], dict[ir.Value, Place]]:
        """Loops and places with frame axis a called axes[a]."""
        return (
            {o: tuple(axes[a] for a in p) for o, p in self.loops.items()},
            {v: tuple(axes[a] for a in p) for v, p in self.places.items()},
        )


@dataclass(frozen=True)
class Refusal:
    """Why `op` does not join the region of `other`: rule names the condition that fails."""

    op: str
    other: str
    rule: str
    reason: str


def positions(m: ir.AffineMap) -> Place | None:
    found = [position(e) for e in m.results]
    return None if None in found else tuple(p for p in found if p is not None)


def extend(pairs: dict[int, int], region: Region, source: Region) -> str | None:
    """Complete `pairs` (source axis -> region axis) to an embedding of one frame in the other; else what fails."""
    free_source = [a for a in range(len(source.frame)) if a not in pairs]
    free_region = [a for a in range(len(region.frame)) if a not in pairs.values()]
    if not source.columns and not region.columns:
        return "the reader does not walk each element of the region once" if free_source or free_region else None
    if source.columns and region.columns:
        if any((a in source.columns) != (b in region.columns) for a, b in pairs.items()):
            return "the reductions run along different axes"
        if any(a not in source.columns for a in free_source) or any(a not in region.columns for a in free_region):
            return "the reductions have different rows"
        return _match(pairs, free_source, free_region, region, source)
    if source.columns:
        if not free_source:
            return "the reader has a loop that the region does not" if free_region else None
        if any(a not in source.columns for a in free_source):
            return "the reader does not walk all rows"
        return (
            _match(pairs, free_source, free_region, region, source)
            if free_region
            else (None if len(free_source) == len(source.columns) else "the reader walks some of the columns only")
        )
    if free_source:
        return "the value has an axis that the reduction does not walk"
    rows_only = set(free_region) == region.columns
    return None if not free_region or rows_only else "the value is not one per row or per element"


def _match(
    pairs: dict[int, int], sources: Sequence[int], regions: Sequence[int], region: Region, source: Region
) -> str | None:
    if [source.frame[a] for a in sources] != [region.frame[a] for a in regions]:
        return "the columns have different extents"
    pairs.update(zip(sources, regions, strict=True))
    return None


def misread(op: ir.Operation, loops_of: Mapping[ir.Operation, Place], places: Mapping[ir.Value, Place]) -> str | None:
    """Does `op` read a value elsewhere than at its place?"""
    loops = loops_of.get(op)
    maps = maps_of(op) if op.name.startswith("linalg.") else []
    for i, value in enumerate(op.operands):
        if value not in places:
            continue
        if loops is None or i >= len(maps):
            return f"{op.name} reads a value of the region at other places"
        at = positions(maps[i])
        if at is None or tuple(loops[d] for d in at) != places[value]:
            return f"{op.name} reads a value of the region under another index map"
    return None
