"""Strides of tensor values in the outlined form: which buffer a value looks at, from which offset, how far apart."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.passes.linalg.symbolic import SymbolicShapes, kept_axes, mixed, reassociation
from tilewright.passes.mlir import ir, owner
from tilewright.runtime.shape import Expr

VIEW_OPS = ("tensor.extract_slice", "tensor.expand_shape", "tensor.collapse_shape", "tensor.cast")


@dataclass(frozen=True)
class View:
    """A strided window: element (i0, i1, ...) lies at offset + sum(strides[a] * i[a]), in elements of `buffer`."""

    buffer: ir.Value
    offset: Expr
    strides: tuple[Expr, ...]


def dense_strides(dims: Sequence[Expr]) -> tuple[Expr, ...]:
    """Row-major strides."""
    strides = [Expr.of(1)]
    for extent in reversed(dims[1:]):
        strides.insert(0, strides[0] * extent)
    return tuple(strides[: len(dims)])


@dataclass(frozen=True)
class CopyLoop:
    """A loop of a copy: how often, and how far apart in what is read and in what is written, in elements."""

    extent: Expr
    source: Expr
    target: Expr


def copy_loops(extents: Sequence[Expr], source: Sequence[Expr], target: Sequence[Expr]) -> tuple[list[CopyLoop], Expr]:
    """The loops of a copy between two strided tensors, outermost first, and the elements of a run, which lie side by side in
    both. Axes that both walk as one are one."""
    found: list[CopyLoop] = []
    for extent, a, b in zip(extents, source, target, strict=True):
        if extent == Expr.of(1):
            continue
        if found and found[-1].source == a * extent and found[-1].target == b * extent:
            found[-1] = CopyLoop(found[-1].extent * extent, a, b)
        else:
            found.append(CopyLoop(extent, a, b))
    one = Expr.of(1)
    return found, found.pop().extent if found and found[-1].source == one and found[-1].target == one else one


def collapsed_stride(dims: Sequence[Expr], strides: Sequence[Expr]) -> Expr | None:
    """The one stride that walks all axes of a group in row-major order; None when there is none for every shape."""
    walked = [(d, s) for d, s in zip(dims, strides, strict=True) if d.constant != 1]
    if not walked:
        return strides[-1] if strides else Expr.of(1)
    for (_, outer), (extent, inner) in itertools.pairwise(walked):
        if outer != inner * extent:
            return None
    return walked[-1][1]


class Views:
    """View of every tensor value of one function.

    Arguments and results of operations that compute are dense buffers, and so is the result of a reshape or slice that
    no strides describe: it has to be copied.

    Args:
        strides: of arguments that are not dense.
    """

    def __init__(self, shapes: SymbolicShapes, strides: Mapping[ir.Value, tuple[Expr, ...]] | None = None) -> None:
        self.shapes = shapes
        self._views = {value: View(value, Expr.of(0), own) for value, own in (strides or {}).items()}

    def view(self, value: ir.Value) -> View:
        if value not in self._views:
            op = owner(value)
            found = self._through(op, value) if op is not None and op.name in VIEW_OPS else None
            self._views[value] = found or View(value, Expr.of(0), dense_strides(self.shapes.dims(value)))
        return self._views[value]

    def is_view(self, op: ir.Operation) -> bool:
        """Does the result of `op` look into another buffer?"""
        return op.name in VIEW_OPS and self.view(op.results[0]).buffer != op.results[0]

    def unit_axis(self, value: ir.Value) -> int | None:
        """The axis whose stride is 1 for every shape, the last one that can be longer than 1; None when none is."""
        dims = self.shapes.dims(value)
        unit = [a for a, s in enumerate(self.view(value).strides) if s.constant == 1]
        return max((a for a in unit if dims[a].constant != 1), default=max(unit, default=None))

    def _through(self, op: ir.Operation, value: ir.Value) -> View | None:
        """The view a view operation makes of its source; None when no strides describe it."""
        source = self.view(op.operands[0])
        if op.name == "tensor.cast":
            return View(source.buffer, source.offset, source.strides)
        if op.name == "tensor.extract_slice":
            return self._slice(op, source)
        groups = reassociation(op)
        if op.name == "tensor.expand_shape":
            dims = self.shapes.dims(value)
            if not groups:
                return View(source.buffer, source.offset, (Expr.of(1),) * len(dims))
            strides: list[Expr] = []
            for group, stride in zip(groups, source.strides, strict=True):
                strides += [stride * inner for inner in dense_strides([dims[a] for a in group])]
            return View(source.buffer, source.offset, tuple(strides))
        dims = self.shapes.dims(op.operands[0])
        found = [collapsed_stride([dims[a] for a in g], [source.strides[a] for a in g]) for g in groups]
        if any(s is None for s in found):
            return None
        return View(source.buffer, source.offset, tuple(s for s in found if s is not None))

    def _slice(self, op: ir.Operation, source: View) -> View | None:
        offsets, steps = mixed(op, "static_offsets", 1), mixed(op, "static_strides", 3)
        offset = source.offset
        strides = []
        kept = kept_axes(op)
        for axis, (at, step) in enumerate(zip(offsets, steps, strict=True)):
            start, stride = self._expr(at), self._expr(step)
            if start is None or stride is None:
                return None
            offset = offset + source.strides[axis] * start
            if axis in kept:
                strides.append(source.strides[axis] * stride)
        return View(source.buffer, offset, tuple(strides))

    def _expr(self, x: int | ir.Value) -> Expr | None:
        return Expr.of(x) if isinstance(x, int) else self.shapes.expr(x)
