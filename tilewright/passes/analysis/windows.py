"""Windows of contractions: which loops pass over an axis, and which of its values are zero for certain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.passes.analysis.contraction import linear_terms
from tilewright.passes.linalg.structured import is_zero, iterator_kinds, uncast
from tilewright.passes.linalg.symbolic import SymbolicShapes, argument_attributes, integer, mixed
from tilewright.passes.mlir import ir, maps_of, operations, owner, position
from tilewright.passes.spaces.workload import Window
from tilewright.runtime.shape import Expr

ZEROS = "tw.zeros"  # of an argument: zeros before and after the values of each axis


def zeros_of(value: ir.Value) -> list[tuple[int, int]] | None:
    """How many places at both ends of each axis hold zero: a tensor.pad, also behind casts and transposing copies."""
    op = owner(value)
    if op is None:
        return None
    if op.name == "tensor.cast":
        return zeros_of(op.operands[0])
    if op.name == "tensor.pad":
        if not is_zero(operations(op.regions[0].blocks[0])[-1].operands[0]):
            return None
        found = padded_places(op)
        return found if any(any(pair) for pair in found) else None
    return _copied(op)


def padded_places(op: ir.Operation) -> list[tuple[int, int]]:
    """How many places a tensor.pad adds for certain at both ends of each axis."""
    sides = zip(mixed(op, "static_low", 1), mixed(op, "static_high", 2), strict=True)
    return [(max(0, a) if isinstance(a, int) else 0, max(0, b) if isinstance(b, int) else 0) for a, b in sides]


def _copied(op: ir.Operation) -> list[tuple[int, int]] | None:
    """The same of a generic that yields its one input at a permutation of the axes."""
    if op.name != "linalg.generic" or len(op.operands) != 2 or len(op.results) != 1:
        return None
    block = op.regions[0].blocks[0]
    if operations(block)[-1].operands[0] != block.arguments[0] or "reduction" in iterator_kinds(op):
        return None
    source, result = (list(m.results) for m in maps_of(op))
    inner = zeros_of(op.operands[0])
    if inner is None or len(source) != len(result):
        return None
    at = {position(e): pair for e, pair in zip(source, inner, strict=True)}
    places = [position(e) for e in result]
    return None if None in at or not set(places) <= set(at) else [at[d] for d in places]


def windows_of(op: ir.Operation, which: int, zeros: Sequence[tuple[int, int]], extents: Sequence[Expr]) -> tuple[Window, ...]:
    """The axes of operand `which` of a contraction that a window passes over.

    zeros, extents: of each axis.
    """
    results = list(maps_of(op)[which].results)
    kinds = iterator_kinds(op)
    terms = [linear_terms(e) for e in results]
    found = []
    for axis, (own, (low, high)) in enumerate(zip(terms, zeros, strict=True)):
        if own is None or len(own) != 2 or min(own.values()) < 1:
            continue
        others = {d for other, e in enumerate(terms) if other != axis for d in (e if e is not None else own)}
        rows = [d for d in own if kinds[d] == "parallel"]
        taps = [d for d in own if kinds[d] == "reduction"]
        if len(rows) == len(taps) == 1 and not others & set(own):
            found.append(Window(rows[0], taps[0], own[rows[0]], own[taps[0]], low, high, extents[axis]))
    return tuple(found)


def argument_zeros(named: Mapping[str, ir.Attribute]) -> tuple[int, ...]:
    """The zeros that the attributes of an argument tell of; empty when they tell of none."""
    return tuple(integer(n) for n in ir.ArrayAttr(named[ZEROS])) if ZEROS in named else ()


def argument_windows(fn: ir.Operation, root: ir.Operation, which: int, shapes: SymbolicShapes) -> tuple[Window, ...]:
    """The windows of operand `which` of a contraction in the function of a region."""
    value = uncast(root.operands[which])
    arguments = list(fn.regions[0].blocks[0].arguments)
    extents = shapes.dims(value)
    told = argument_zeros(argument_attributes(fn)[arguments.index(value)]) if value in arguments else ()
    inside = zeros_of(value) or [(0, 0)] * len(extents)
    return windows_of(root, which, list(zip(told[::2], told[1::2], strict=True)) or inside, extents)
