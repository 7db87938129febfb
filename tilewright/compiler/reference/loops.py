"""The iteration space of a linalg operation: reading and writing tensors through indexing maps, whole spaces at a time.

A value over the space has one axis per loop; an axis has size 1 where the value does not vary or the loop is held.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.compiler.reference.scalars import Array, affine
from tilewright.passes.mlir import ir
from tilewright.runtime.errors import ShapeError

Plan = list[tuple[int, int, int] | int]


@dataclass(frozen=True)
class Linear:
    """An affine expression `sum(scale[d] * loop d) + offset`."""

    scale: tuple[tuple[int, int], ...]
    offset: int


@dataclass(frozen=True)
class IterationSpace:
    """Extents of all loops, and the loops that are held at one value."""

    extents: tuple[int, ...]
    fixed: Mapping[int, int]

    def at(self, fixed: Mapping[int, int]) -> IterationSpace:
        return IterationSpace(self.extents, {**self.fixed, **fixed})

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(1 if d in self.fixed else e for d, e in enumerate(self.extents))

    def grids(self) -> list[Array]:
        """The index of every loop, as values over the space."""
        rank = len(self.extents)
        spread = [np.arange(e).reshape([-1 if a == d else 1 for a in range(rank)]) for d, e in enumerate(self.extents)]
        return [np.full((1,) * rank, self.fixed[d]) if d in self.fixed else g for d, g in enumerate(spread)]


def linear(e: ir.AffineExpr, fixed: Mapping[int, int]) -> Linear | None:
    """`e` as a linear form with the fixed loops put in; None for floordiv, ceildiv and mod of loops."""
    if isinstance(e, ir.AffineDimExpr):
        return Linear((), fixed[e.position]) if e.position in fixed else Linear(((e.position, 1),), 0)
    if isinstance(e, ir.AffineConstantExpr):
        return Linear((), e.value)
    if not isinstance(e, ir.AffineBinaryExpr):
        return None
    a, b = linear(e.lhs, fixed), linear(e.rhs, fixed)
    if a is None or b is None:
        return None
    if isinstance(e, ir.AffineAddExpr):
        scale = dict(a.scale)
        for d, s in b.scale:
            scale[d] = scale.get(d, 0) + s
        return Linear(tuple((d, s) for d, s in scale.items() if s), a.offset + b.offset)
    if isinstance(e, ir.AffineMulExpr) and not (a.scale and b.scale):
        form, factor = (a, b.offset) if a.scale else (b, a.offset)
        return Linear(tuple((d, s * factor) for d, s in form.scale if factor), form.offset * factor)
    if a.scale or b.scale:
        return None
    return Linear((), int(affine(e, fixed)))


def used_loops(e: ir.AffineExpr) -> set[int]:
    """The loops that an expression names."""
    if isinstance(e, ir.AffineDimExpr):
        return {e.position}
    if isinstance(e, ir.AffineBinaryExpr):
        return used_loops(e.lhs) | used_loops(e.rhs)
    return set()


def loop_extents(maps: Sequence[ir.AffineMap], shapes: Sequence[tuple[int, ...]], what: str) -> tuple[int, ...]:
    """Extent of every loop from the axes that it indexes alone; ShapeError when two axes disagree."""
    found: dict[int, int] = {}
    for m, shape in zip(maps, shapes, strict=True):
        for e, extent in zip(m.results, shape, strict=True):
            if isinstance(e, ir.AffineDimExpr) and found.setdefault(e.position, extent) != extent:
                raise ShapeError(f"{what}: loop d{e.position} runs over {found[e.position]} and over {extent} elements")
    missing = [d for d in range(maps[0].n_dims if maps else 0) if d not in found]
    if missing:
        raise ShapeError(f"{what}: no operand axis gives the extent of loop d{missing[0]}")
    return tuple(found[d] for d in range(len(found)))


def _slices(forms: Sequence[Linear | None]) -> Plan | None:
    """Per axis (loop, start, step) or a constant; None when the access is not a plain strided view."""
    found: Plan = []
    seen: set[int] = set()
    for form in forms:
        if form is None or len(form.scale) > 1:
            return None
        if not form.scale:
            found.append(form.offset)
            continue
        loop, step = form.scale[0]
        if step < 1 or loop in seen:
            return None
        seen.add(loop)
        found.append((loop, form.offset, step))
    return found


def _index(plan: Plan, space: IterationSpace, shape: tuple[int, ...], what: str) -> tuple[Any, ...]:
    """Slices of size 1 for constants, so that the view keeps its rank; the ellipsis keeps rank 0 a view."""
    index: list[Any] = []
    for entry, extent in zip(plan, shape, strict=True):
        loop, start, step = (None, entry, 1) if isinstance(entry, int) else entry
        count = 1 if loop is None else space.extents[loop]
        last = start + (count - 1) * step
        if count and not (start >= 0 and last < extent):
            raise ShapeError(f"{what}: an index runs from {start} to {last} on an axis of {extent} elements")
        index.append(slice(start, last + 1 if count else start, step))
    return (*index, ...)


def _points(m: ir.AffineMap, space: IterationSpace, shape: tuple[int, ...], what: str) -> tuple[Array, ...]:
    grids = space.grids()
    index = tuple(np.asarray(affine(e, grids)) for e in m.results)
    check_bounds(index, shape, what)
    return index


def check_bounds(index: Sequence[Array], shape: Sequence[int], what: str) -> None:
    """ShapeError when an index array leaves its axis."""
    for axis, (i, extent) in enumerate(zip(index, shape, strict=True)):
        if i.size and (i.min() < 0 or i.max() >= extent):
            worst = int(i.min() if i.min() < 0 else i.max())
            raise ShapeError(f"{what}: index {worst} on axis {axis} of {extent} elements")


def read(array: Array, m: ir.AffineMap, space: IterationSpace, what: str) -> Array:
    """The operand as a value over the space: a view where the map allows it."""
    rank = len(space.extents)
    plan = _slices([linear(e, space.fixed) for e in m.results])
    if plan is None:
        index = _points(m, space, array.shape, what)
        return np.asarray(array[index]).reshape(np.broadcast_shapes((1,) * rank, *(i.shape for i in index)))
    view = array[_index(plan, space, array.shape, what)]
    loops = {e[0]: axis for axis, e in enumerate(plan) if not isinstance(e, int)}
    constant = [axis for axis, e in enumerate(plan) if isinstance(e, int)]
    order = sorted(loops)
    view = view.transpose([loops[d] for d in order] + constant)
    view = view[(...,) + (0,) * len(constant)] if constant else view
    return np.expand_dims(view, [d for d in range(rank) if d not in loops])


def write(target: Array, m: ir.AffineMap, space: IterationSpace, value: Array, what: str) -> None:
    """Store a value over the space into `target`, in place. The map must not send two points to one element."""
    plan = _slices([linear(e, space.fixed) for e in m.results])
    if plan is None:
        target[_points(m, space, target.shape, what)] = np.broadcast_to(value, space.shape)
        return
    view = target[_index(plan, space, target.shape, what)]
    loops = [e[0] for e in plan if not isinstance(e, int)]
    full = np.broadcast_to(value, np.broadcast_shapes(value.shape, tuple(
        space.extents[d] if d in loops else 1 for d in range(len(space.extents)))))
    rest = [d for d in range(full.ndim) if d not in loops]
    view[...] = full.transpose(loops + rest).reshape(view.shape)
