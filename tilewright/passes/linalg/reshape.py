"""Reshapes as views: from one list of extents to another by collapse_shape and expand_shape, decided on Exprs alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.passes.linalg.shape_values import ShapeValues, tensor_type
from tilewright.passes.linalg.symbolic import SymbolicShapes, mixed, reassociation
from tilewright.passes.mlir import ir, linalg, owner, tensor
from tilewright.runtime.shape import Expr

Group = tuple[list[int], list[int]]
RESHAPES = ("tensor.expand_shape", "tensor.collapse_shape")


def product(extents: Sequence[Expr]) -> Expr:
    total = Expr.of(1)
    for e in extents:
        total = total * e
    return total


def matching_groups(source: Sequence[Expr], target: Sequence[Expr]) -> list[Group]:
    """Finest (source axes, target axes) groups of equal product, in order; ValueError when the totals differ.

    A shape of rank 0 gives no groups; the other side then holds unit axes only.
    """
    if product(source) != product(target):
        raise ValueError(f"cannot reshape [{', '.join(map(str, source))}] to [{', '.join(map(str, target))}]")
    if not source or not target:
        return []
    groups: list[Group] = []
    i = j = 0
    while i < len(source) and j < len(target):
        ends = [
            (a, b)
            for a in range(i + 1, len(source) + 1)
            for b in range(j + 1, len(target) + 1)
            if product(source[i:a]) == product(target[j:b])
        ]
        a, b = min(ends, key=sum) if ends else (len(source), len(target))
        groups.append((list(range(i, a)), list(range(j, b))))
        i, j = a, b
    last = groups[-1]
    groups[-1] = (last[0] + list(range(i, len(source))), last[1] + list(range(j, len(target))))
    return groups


class Reshaper:
    """Builds views and empty tensors of symbolic extents at the current insertion point."""

    def __init__(self, fn: ir.Operation) -> None:
        self.shapes = SymbolicShapes(fn)
        self.values = ShapeValues(fn)

    def reshape(self, value: ir.Value, target: Sequence[Expr]) -> ir.Value:
        """`value` with the extents `target`: nothing, one collapse, one expand, or a collapse and an expand.

        Reshapes that made `value` are looked through where that takes fewer steps; an empty tensor or a fill is made anew.
        """
        wanted, op = list(target), owner(value)
        if op is not None and op.name in ("tensor.empty", "linalg.fill") and wanted != list(self.shapes.dims(value)):
            made = self.empty(wanted, ir.RankedTensorType(value.type).element_type)
            return made if op.name == "tensor.empty" else linalg.fill(op.operands[0], outs=[made])
        chain = [value, *(op.operands[0] for op in self.earlier(value, wanted))]
        start = min(reversed(chain), key=lambda v: self.steps(v, wanted))
        return self._direct(start, wanted)

    def earlier(self, value: ir.Value, target: Sequence[Expr]) -> Iterator[ir.Operation]:
        """The reshapes and casts that made `value`, last first, while their operand has as many elements as `target`.

        One whose sizes are only equal by a check at run time ends the chain: its operand's extents are other expressions.
        """
        total = product(target)
        while (op := owner(value)) is not None and (op.name in RESHAPES or op.name == "tensor.cast"):
            value = op.operands[0]
            if product(self.shapes.dims(value)) != total:
                return
            yield op

    def steps(self, value: ir.Value, target: Sequence[Expr]) -> int:
        """How many reshape ops lead from `value` itself to the extents `target`."""
        source = list(self.shapes.dims(value))
        if source == list(target):
            return 0
        count = len(matching_groups(source, target))
        return (count < len(source)) + (count < len(target))

    def _direct(self, value: ir.Value, wanted: list[Expr]) -> ir.Value:
        source = list(self.shapes.dims(value))
        element = ir.RankedTensorType(value.type).element_type
        value = self._cast(value, tensor_type(source, element))
        if source == wanted:
            return value
        groups = matching_groups(source, wanted)
        middle = [product([source[a] for a in s]) for s, _ in groups]
        if len(middle) < len(source):
            value = tensor.CollapseShapeOp(
                tensor_type(middle, element), value, _attribute([s for s, _ in groups])
            ).result
        if len(middle) < len(wanted):
            value = self.expand(value, [t for _, t in groups], wanted)
        return value

    def expand(self, value: ir.Value, groups: Sequence[Sequence[int]], target: Sequence[Expr]) -> ir.Value:
        element = ir.RankedTensorType(value.type).element_type
        kind = tensor_type(target, element)
        source = tensor_type([product([target[a] for a in g]) for g in groups], element)
        static = [ir.ShapedType.get_dynamic_size() if d.constant is None else d.constant for d in target]
        return tensor.ExpandShapeOp(
            kind, self._cast(value, source), _attribute(groups), self.values.dynamic(target), static
        ).result

    def empty(self, dims: Sequence[Expr], element: ir.Type) -> ir.Value:
        return tensor.EmptyOp(self.values.mixed(dims), element).result

    def as_type(self, value: ir.Value, kind: ir.Type) -> ir.Value:
        """`value` under a type of the same extents that may be less static."""
        return self._cast(value, kind)

    def _cast(self, value: ir.Value, kind: ir.Type) -> ir.Value:
        return value if value.type == kind else tensor.CastOp(kind, value).result


def collapses_free(value: ir.Value, axes: Sequence[int], shapes: SymbolicShapes) -> bool:
    """Is merging these adjacent axes of a tensor a change of view, with no copy?"""
    op = owner(value)
    if len(axes) < 2 or op is None:
        return True
    if op.name == "tensor.extract_slice":
        source = op.operands[0]
        if len(shapes.dims(source)) != len(shapes.dims(value)):
            return False
        return (
            all(full_axis(op, a, shapes) for a in axes[1:])
            and _unit_steps(op, axes)
            and collapses_free(source, axes, shapes)
        )
    if op.name == "tensor.cast":
        return collapses_free(op.operands[0], axes, shapes)
    if op.name == "tensor.expand_shape":
        behind = [k for k, g in enumerate(reassociation(op)) if any(a in axes for a in g)]
        return collapses_free(op.operands[0], behind, shapes)
    if op.name == "tensor.collapse_shape":
        groups = reassociation(op)
        return collapses_free(op.operands[0], [a for k in axes for a in groups[k]], shapes)
    return True


def full_axis(op: ir.Operation, axis: int, shapes: SymbolicShapes) -> bool:
    """Does a tensor.extract_slice keep the whole of one source axis?"""
    offset, size, stride = (
        mixed(op, n, 1 + i)[axis] for i, n in enumerate(("static_offsets", "static_sizes", "static_strides"))
    )
    extent = shapes.dims(op.operands[0])[axis]
    known = Expr.of(size) if isinstance(size, int) else shapes.expr(size)
    return offset == 0 and stride == 1 and known == extent


def _unit_steps(op: ir.Operation, axes: Sequence[int]) -> bool:
    strides = mixed(op, "static_strides", 3)
    return all(strides[a] == 1 for a in axes)


def _attribute(groups: Sequence[Sequence[int]]) -> ir.ArrayAttr:
    i64 = ir.IntegerType.get_signless(64)
    return ir.ArrayAttr.get([ir.ArrayAttr.get([ir.IntegerAttr.get(i64, a) for a in g]) for g in groups])
