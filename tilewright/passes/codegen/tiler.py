"""Tiler: builds loops over work units into a region, as an scf.forall that takes tiles of the region's values.

A loop takes its tiles from a value that the region computes whole (tensor.extract_slice) and puts them together again
(tensor.parallel_insert_slice); what follows the value reads what was put together. Loops of the root that form one linear space
are one axis of the slice, by tensor.collapse_shape, behind a transposition where they do not follow each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tilewright.passes.codegen.index import Index
from tilewright.passes.codegen.kernel_frame import KernelFrame
from tilewright.passes.codegen.units import AXES, BLOCK
from tilewright.passes.linalg.shape_values import ShapeValues, tensor_type
from tilewright.passes.mlir import ir, linalg, operations, owner, scf, tensor
from tilewright.runtime.shape import Expr

Groups = Mapping[str, Sequence[int]]  # the axes of a value that each part of a tile runs along, by the part's name


@dataclass(frozen=True)
class Part:
    """What a tile holds along one axis: [first, end), or `size` elements where there is no end."""

    first: Index
    end: Index | None = None
    size: int = 1


class Tiler:
    """Of one function on tensors. Build the plan of what is cut before the first loop: positions in `ops` change with it."""

    def __init__(self, frame: KernelFrame) -> None:
        self.frame = frame
        self.values = ShapeValues(frame.fn)
        self._last: ir.Operation | None = None  # of the loops so far, which follow each other as they are built

    def size(self, expr: Expr) -> Index:
        """An Expr in the IR."""
        return Index(expr.constant if expr.constant is not None else self.values.value(expr))

    def span(self, number: Index, step: int, extent: Expr) -> Part:
        """Part `number` of an extent in steps."""
        first = number * step
        if extent.constant is not None and extent.constant <= step:
            return Part(first, size=extent.constant)
        return Part(first, size=step) if extent.divisible_by(step) else Part(first, (first + step).min(self.size(extent)))

    def loop(self, counts: Sequence[Expr], cut: Callable[[list[Index]], Mapping[str, Part]], values: Mapping[ir.Value, Groups],
             block: int = 1) -> None:
        """A loop over as many units as the product of the counts. cut: the parts of the tile of a unit; values: what is cut,
        with the axes that the parts run along. block: units that are launched as one."""
        sizes = [self.size(count) for count in counts]
        bounds = [s.value(ir.IndexType.get()) if s.const is None else s.const for s in sizes]
        views = [_View(self, value, groups) for value, groups in values.items()]
        after = self._after(list(values))
        with ir.InsertionPoint(after[0]):
            made = scf.ForallOp([0] * len(bounds), bounds, [1] * len(bounds), [view.empty() for view in views])
            wholes = [view.whole(result) for view, result in zip(views, made.results, strict=True)]
        with ir.InsertionPoint(made.body):
            parts = cut([Index(v) for v in made.induction_variables])
            tiles = [view.tile(parts) for view in views]
            ends = scf.InParallelOp()
        with ir.InsertionPoint(ends.block):
            for (tile, place), out in zip(tiles, made.inner_iter_args, strict=True):
                tensor.ParallelInsertSliceOp(tile, out, *place)
        made.operation.attributes[AXES] = ir.ArrayAttr.get([ir.StringAttr.get(name) for name in views[0].names])
        if block > 1:
            made.operation.attributes[BLOCK] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), block)
        self._last = owner(wholes[-1])
        for view, whole in zip(views, wholes, strict=True):
            before = [use.owner.operation for use in view.value.uses if self._ancestor(use.owner.operation) not in after]
            view.value.replace_all_uses_except(whole, before)

    def _after(self, values: Sequence[ir.Value]) -> list[ir.Operation]:
        """The operations behind the last one that computes one of the values, and behind the loops so far."""
        ops = operations(self.frame.block)
        makers = [op for op in (*map(owner, values), self._last) if op is not None]
        return ops[1 + max(map(ops.index, makers)) :]

    def _ancestor(self, op: ir.Operation) -> ir.Operation:
        """The operation of the region that an operation is, or lies in."""
        while op.block != self.frame.block:
            op = op.parent.operation
        return op


@dataclass(frozen=True)
class _View:
    """A value as the loop cuts it: its axes in an order in which those of a group follow each other, each group one axis."""

    tiler: Tiler
    value: ir.Value
    groups: Groups

    @cached_property
    def _axes(self) -> list[tuple[str, list[int]]]:
        """Name and axes of each axis of the view, by the first of its axes; no name where it is not cut."""
        named = [(name, list(axes)) for name, axes in self.groups.items() if axes]
        cut = {a for _, axes in named for a in axes}
        rest = [("", [a]) for a in range(len(self._dims)) if a not in cut]
        return sorted([*named, *rest], key=lambda axis: axis[1])

    @cached_property
    def _dims(self) -> tuple[Expr, ...]:
        return self.tiler.frame.shapes.dims(self.value)

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self._axes]

    @property
    def _order(self) -> list[int]:
        return [a for _, axes in self._axes for a in axes]

    @property
    def _moved(self) -> bool:
        return self._order != sorted(self._order)

    @property
    def _folded(self) -> list[list[int]]:
        """Groups of the axes in their order."""
        found, start = list[list[int]](), 0
        for _, axes in self._axes:
            found.append(list(range(start, start + len(axes))))
            start += len(axes)
        return found

    @property
    def _extents(self) -> list[Expr]:
        found = []
        for _, axes in self._axes:
            found.append(Expr.of(1))
            for a in axes:
                found[-1] = found[-1] * self._dims[a]
        return found

    @property
    def _element(self) -> ir.Type:
        return ir.RankedTensorType(self.value.type).element_type

    def _new(self, dims: Sequence[Expr]) -> ir.Value:
        return tensor.EmptyOp(self.tiler.values.mixed(dims), self._element).result

    def empty(self) -> ir.Value:
        """What the tiles are put into."""
        return self._new(self._extents)

    def _flat(self) -> ir.Value:
        value: ir.Value = self.value
        if self._moved:
            into = self._new([self._dims[a] for a in self._order])
            value = linalg.transpose(value, outs=[into], permutation=self._order).results[0]
        if len(self._axes) == len(self._dims):
            return value
        return tensor.CollapseShapeOp(tensor_type(self._extents, self._element), value, self._folded).result

    def whole(self, flat: ir.Value) -> ir.Value:
        """The value, from the view put together."""
        if len(self._axes) < len(self._dims):
            dims = [self._dims[a] for a in self._order]
            flat = tensor.ExpandShapeOp(tensor_type(dims, self._element), flat, self._folded, self.tiler.values.dynamic(dims),
                                        _static(dims)).result
        if self._moved:
            back = [self._order.index(a) for a in range(len(self._dims))]
            flat = linalg.transpose(flat, outs=[self._new(self._dims)], permutation=back).results[0]
        return flat

    def tile(self, parts: Mapping[str, Part]) -> tuple[ir.Value, list[Any]]:
        """The slice of a unit, and its offsets, sizes and strides."""
        flat, offsets, sizes = self._flat(), list[Index](), list[Index]()
        for (name, _), extent in zip(self._axes, self._extents, strict=True):
            part = parts[name] if name else Part(Index(0), self.tiler.size(extent))
            offsets.append(part.first)
            sizes.append(Index(part.size) if part.end is None else part.end - part.first)
        place: list[Any] = [*map(_dynamic, (offsets, sizes)), [], *map(_numbers, (offsets, sizes)), [1] * len(sizes)]
        made = tensor.ExtractSliceOp(ir.RankedTensorType.get(_numbers(sizes), self._element), flat, *place)
        return made.result, place


def _static(dims: Sequence[Expr]) -> list[int]:
    absent = int(ir.ShapedType.get_dynamic_size())
    return [absent if d.constant is None else d.constant for d in dims]


def _numbers(values: Sequence[Index]) -> list[int]:
    absent = int(ir.ShapedType.get_dynamic_size())
    return [absent if v.const is None else v.const for v in values]


def _dynamic(values: Sequence[Index]) -> list[ir.Value]:
    return [v.value(ir.IndexType.get()) for v in values if v.const is None]
