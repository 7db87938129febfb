"""fold-reshapes: reshapes that undo each other cancel, the others move out of the way of their readers and writers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from tilewright.passes.base import Pass, until_stable
from tilewright.passes.linalg.loop_groups import can_merge, merge
from tilewright.passes.linalg.reshape import RESHAPES, Reshaper, full_axis, product
from tilewright.passes.linalg.shape_values import tensor_type
from tilewright.passes.linalg.structured import defined_by, erase_unused, inputs, main_of, users
from tilewright.passes.linalg.symbolic import mixed, reassociation
from tilewright.passes.mlir import ir, maps_of, owner, position, replace_all_uses, tensor, walk
from tilewright.runtime.shape import Expr

ROUNDS = 32  # besides one for each operation that a reshape can move past


@dataclass(frozen=True)
class FoldReshapes(Pass):
    """A generic that reads an expanded tensor, or whose result is only read collapsed, runs over the merged axes; the
    expand moves behind it. A slice of an expanded tensor becomes an expanded slice.
    """

    name: ClassVar[str] = "fold-reshapes"

    def run(self, module: ir.Module) -> None:
        for fn in main_of(module):
            until_stable(self.name, partial(_round, fn), ROUNDS + len(walk(fn)))


def _round(fn: ir.Operation) -> bool:
    """Each reshape moves by one operation at least."""
    views = Reshaper(fn)
    changed = [_fold(op, views) for op in walk(fn) if any(map(_used, op.results))]
    erase_unused(fn)
    return any(changed)


def _used(value: ir.Value) -> bool:
    return next(iter(value.uses), None) is not None


def _fold(op: ir.Operation, views: Reshaper) -> bool:
    if op.name in RESHAPES:
        return _shorten(op, views)
    if op.name == "linalg.generic":
        return _merge_loops(op, views)
    if op.name == "tensor.extract_slice":
        return _slice_before_expand(op, views)
    return False


def _shorten(op: ir.Operation, views: Reshaper) -> bool:
    """A chain of reshapes as its shortest equivalent; a reshaped empty or fill made anew."""
    source, target = op.operands[0], list(views.shapes.dims(op.results[0]))
    made = owner(source)
    if made is None:
        return False
    with ir.InsertionPoint(op), op.location:
        if made.name in ("tensor.empty", "linalg.fill"):
            replace_all_uses(op.results[0], views.as_type(views.reshape(source, target), op.results[0].type))
            return True
        if product(views.shapes.dims(source)) != product(target):
            return False  # equal by a check at run time only
        for length, earlier in enumerate(views.earlier(source, target), 2):
            first = earlier.operands[0]
            if views.steps(first, target) < length - (earlier.name == "tensor.cast"):
                replace_all_uses(op.results[0], views.as_type(views.reshape(first, target), op.results[0].type))
                return True
    return False


def _merge_loops(op: ir.Operation, views: Reshaper) -> bool:
    maps = maps_of(op)
    for value, access in zip(op.operands, maps, strict=True):
        expand = defined_by(value, "tensor.expand_shape")
        groups = reassociation(expand) if expand is not None and value in inputs(op) else []
        if _merge_one(op, access, groups, views):
            return True
    for result, access in zip(op.results, maps[len(op.operands) - len(op.results) :], strict=True):
        readers = users(result)
        if readers and all(r.name == "tensor.collapse_shape" for r in readers) and _merge_one(
            op, access, reassociation(readers[0]), views
        ):
            return True
    return False


def _merge_one(op: ir.Operation, access: ir.AffineMap, groups: list[list[int]], views: Reshaper) -> bool:
    for group in groups:
        loops = [position(access.results[a]) for a in group]
        known = [d for d in loops if d is not None]
        if len(known) == len(loops) > 1 and can_merge(op, known, views):
            merge(op, known, views)
            return True
    return False


def _slice_before_expand(op: ir.Operation, views: Reshaper) -> bool:
    expand = defined_by(op.operands[0], "tensor.expand_shape")
    if expand is None or len(views.shapes.dims(op.results[0])) != len(views.shapes.dims(op.operands[0])):
        return False
    groups = reassociation(expand)
    rank = ir.RankedTensorType(expand.results[0].type).rank
    split = [a for g in groups if len(g) > 1 for a in g] if groups else range(rank)
    if not all(full_axis(op, a, views.shapes) for a in split):
        return False
    inner = expand.operands[0]
    source = views.shapes.dims(inner)
    parts: list[list[int | ir.Value]] = []
    for segment, name in enumerate(("static_offsets", "static_sizes", "static_strides")):
        own = mixed(op, name, 1 + segment)
        whole = views.values.mixed(source) if name == "static_sizes" else [int(name == "static_strides")] * len(groups)
        parts.append([own[g[0]] if len(g) == 1 else whole[k] for k, g in enumerate(groups)])
    dims = [views.shapes.dims(op.results[0])[g[0]] if len(g) == 1 else source[k] for k, g in enumerate(groups)]
    with ir.InsertionPoint(op), op.location:
        new = _slice(inner, dims, parts)
        replace_all_uses(
            op.results[0], views.as_type(views.reshape(new, views.shapes.dims(op.results[0])), op.results[0].type)
        )
    return True


def _slice(source: ir.Value, dims: list[Expr], parts: list[list[int | ir.Value]]) -> ir.Value:
    absent = ir.ShapedType.get_dynamic_size()
    dynamic = [[v for v in part if not isinstance(v, int)] for part in parts]
    static = [[v if isinstance(v, int) else absent for v in part] for part in parts]
    kinds = [absent if not isinstance(size, int) else size for size in parts[1]]
    result = ir.RankedTensorType.get(kinds, ir.RankedTensorType(source.type).element_type)
    new = tensor.ExtractSliceOp(result, source, *dynamic, *static).result
    exact = tensor_type(dims, result.element_type)
    return new if new.type == exact else tensor.CastOp(exact, new).result
