"""normalize: one form of everything that is left after recovery, so that fusion sees few kinds of operations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.passes.analysis.op_kinds import body_names, combiner, scatters
from tilewright.passes.base import Pass
from tilewright.passes.linalg.builders import fill, generic
from tilewright.passes.linalg.clone import clone
from tilewright.passes.linalg.collapse import is_dense_constant
from tilewright.passes.linalg.reshape import Reshaper
from tilewright.passes.linalg.structured import (
    body,
    covers_loops,
    erase_unused,
    inits,
    inputs,
    iterator_kinds,
    loop_extents,
    main_of,
    rebuild,
    replace,
)
from tilewright.passes.mlir import arith, ir, linalg, maps_of, operations, owner, replace_all_uses

_MOVES = ("linalg.transpose", "linalg.broadcast")


@dataclass(frozen=True)
class Normalize(Pass):
    """transpose, broadcast and tensor.generate become generics; splat constants and tensor.splat become fills, slices of empty
    tensors and results without elements empty ones, sums over no elements what they start from.

    Generics read fills as scalars, take scalars from outside, drop operands that their body does not use, and start from an empty
    tensor where they do not accumulate. What adds 0 to sums that start from 0 is these sums.
    """

    name: ClassVar[str] = "normalize"

    def run(self, module: ir.Module) -> None:
        for fn in main_of(module):
            tensors = Reshaper(fn)
            for op in operations(fn.regions[0].blocks[0]):
                with ir.InsertionPoint(op), op.location:
                    if not _without_elements(op, tensors):
                        _normalize(op, tensors)
            erase_unused(fn)
            tensors = Reshaper(fn)
            for op in operations(fn.regions[0].blocks[0]):
                if op.name == "linalg.generic":
                    with ir.InsertionPoint(op), op.location:
                        _simplify(op, tensors)
            erase_unused(fn)


def _normalize(op: ir.Operation, tensors: Reshaper) -> None:
    if op.name in _MOVES and op.results:
        new = rebuild(op, inputs(op), inits(op), maps_of(op), iterator_kinds(op))
        replace(op, list(new.results))
    elif op.name == "tensor.generate":
        replace_all_uses(op.results[0], _generate(op, tensors))
    elif op.name in ("tensor.splat", "tensor.from_elements") or op.name == "arith.constant":
        _splat(op, tensors)
    elif op.name == "tensor.extract_slice" and _is_empty(op.operands[0]):  # as a view it would be a place that nothing allocates
        replace_all_uses(op.results[0], _empty_as(op.results[0], tensors))


def _without_elements(op: ir.Operation, tensors: Reshaper) -> bool:
    """Results of a known extent of 0 are empty tensors: nothing is computed, and MLIR refuses windows of them. Are there no other
    results?"""
    none = [r for r in op.results if isinstance(r.type, ir.RankedTensorType) and 0 in ir.RankedTensorType(r.type).shape]
    if op.name != "tensor.empty":
        for result in none:
            replace_all_uses(result, _empty_as(result, tensors))
    return len(none) == len(op.results) > 0


def _empty_as(value: ir.Value, tensors: Reshaper) -> ir.Value:
    """An empty tensor of the extents and type of a value."""
    element = ir.RankedTensorType(value.type).element_type
    return tensors.as_type(tensors.empty(tensors.shapes.dims(value), element), value.type)


def _splat(op: ir.Operation, tensors: Reshaper) -> None:
    """A tensor with one value becomes a fill."""
    result = op.results[0]
    if not isinstance(result.type, ir.RankedTensorType) or is_dense_constant(op):
        return
    element = ir.RankedTensorType(result.type).element_type
    if op.name == "arith.constant":
        scalar = arith.ConstantOp(element, ir.DenseElementsAttr(op.attributes["value"]).get_splat_value()).result
    elif op.name == "tensor.splat" or all(v == op.operands[0] for v in op.operands):
        scalar = op.operands[0]
    else:
        return
    replace_all_uses(
        result, tensors.as_type(fill(scalar, tensors.empty(tensors.shapes.dims(result), element)), result.type)
    )


def _generate(op: ir.Operation, tensors: Reshaper) -> ir.Value:
    """tensor.generate as a generic without inputs that computes from its loop numbers."""
    kind = ir.RankedTensorType(op.results[0].type)
    empty = tensors.empty(tensors.shapes.dims(op.results[0]), kind.element_type)
    made = generic([], [empty], [ir.AffineMap.get_identity(kind.rank)], ["parallel"] * kind.rank, [empty.type])
    block = ir.Block.create_at_start(made.regions[0], [kind.element_type])
    old = body(op)
    values: dict[ir.Value, ir.Value] = {}
    with ir.InsertionPoint(block):
        for axis, argument in enumerate(old.arguments):
            values[argument] = linalg.IndexOp(axis).result
        for inner in operations(old):
            if inner.name == "tensor.yield":
                ir.Operation.create("linalg.yield", operands=[values.get(inner.operands[0], inner.operands[0])])
                continue
            copy = clone(inner, lambda v: values.get(v, v))
            values.update(zip(inner.results, copy.results, strict=True))
    return tensors.as_type(made.results[0], op.results[0].type)


def _simplify(op: ir.Operation, tensors: Reshaper) -> None:
    block, maps, kinds = body(op), maps_of(op), iterator_kinds(op)
    count = len(inputs(op))
    for i, value in enumerate(inputs(op)):
        source = owner(value)
        if value.type == block.arguments[i].type:
            block.arguments[i].replace_all_uses_with(value)
        elif source is not None and source.name == "linalg.fill" and source.operands[0].type == block.arguments[i].type:
            block.arguments[i].replace_all_uses_with(source.operands[0])
    same = _adds_nothing(op)
    if same is not None:
        replace(op, [same])
        return
    if not scatters(op) and _never_steps(op, tensors):
        replace(op, inits(op))
        return
    starts = [
        _empty_as(v, tensors)
        if not list(block.arguments[count + n].uses) and not _is_empty(v) and not scatters(op) and _always_steps(op, tensors)
        else v
        for n, v in enumerate(inits(op))
    ]
    kept = list(range(count))
    for i in reversed(range(count)):
        left = [k for k in kept if k != i]
        if not list(block.arguments[i].uses) and covers_loops([maps[k] for k in [*left, *range(count, len(maps))]]):
            kept = left
    if len(kept) == count and starts == inits(op):
        return
    sources = inputs(op)

    def drop(inner: ir.Block) -> None:
        for i in reversed(range(count)):
            if i not in kept:
                inner.erase_argument(i)

    new = rebuild(op, [sources[k] for k in kept], starts, [*(maps[k] for k in kept), *maps[count:]], kinds, drop)
    replace(op, list(new.results))


def _adds_nothing(op: ir.Operation) -> ir.Value | None:
    """The sums from 0 that an operation adds 0 to, which changes none, since none of them is -0. None of any other operation."""
    block, maps = body(op), maps_of(op)
    if body_names(op) != ["arith.addf", "linalg.yield"] or "reduction" in iterator_kinds(op) or len(op.results) != 1:
        return None
    terms = list(operations(block)[0].operands)
    for i, value in enumerate(inputs(op)):
        made = owner(value)
        if block.arguments[i] not in terms or made is None or value.type != op.results[0].type or maps[i] != maps[-1]:
            continue
        other = terms[1 - terms.index(block.arguments[i])]
        last = combiner(made) if made.name == "linalg.generic" and "reduction" in iterator_kinds(made) else None
        if last is not None and last.name == "arith.addf" and len(made.results) == 1 and _is_zero(other):
            start = owner(inits(made)[0])
            if start is not None and start.name == "linalg.fill" and _is_zero(start.operands[0]):
                return value
    return None


def _is_zero(value: ir.Value) -> bool:
    """Is it the floating-point constant 0, not -0?"""
    made = owner(value)
    known = made.attributes["value"] if made is not None and made.name == "arith.constant" else None
    return isinstance(known, ir.FloatAttr) and str(ir.FloatAttr(known).value) == "0.0"


def _always_steps(op: ir.Operation, tensors: Reshaper) -> bool:
    """Has each loop that is reduced over a step for every shape? Without one, a result is what it starts from."""
    reduced = [d for d, kind in enumerate(iterator_kinds(op)) if kind == "reduction"]
    extents = loop_extents(op, tensors.shapes) if reduced else []
    return all(tensors.shapes.bounds(extents[d])[0] >= 1 for d in reduced)


def _never_steps(op: ir.Operation, tensors: Reshaper) -> bool:
    """Has a loop that is reduced over a known extent of 0? Results are what they start from."""
    reduced = [d for d, kind in enumerate(iterator_kinds(op)) if kind == "reduction"]
    extents = loop_extents(op, tensors.shapes) if reduced else []
    return any(extents[d].constant == 0 for d in reduced)


def _is_empty(value: ir.Value) -> bool:
    made = owner(value)
    return (
        made is not None
        and made.name in ("tensor.empty", "tensor.cast")
        and (made.name == "tensor.empty" or _is_empty(made.operands[0]))
        and next(iter(value.uses), None) is not None
    )
