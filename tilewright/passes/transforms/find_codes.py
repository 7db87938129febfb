"""find-codes: weights in few bits are marked where they are decoded, so that they stay so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tilewright.passes.analysis.codes import BYTE_BITS, NARROW, Codes
from tilewright.passes.analysis.compile_time import constant_arguments
from tilewright.passes.analysis.contraction import is_contraction
from tilewright.passes.analysis.pools import Pools
from tilewright.passes.analysis.whole_rows import WholeRows
from tilewright.passes.base import Pass
from tilewright.passes.linalg.reshape import RESHAPES
from tilewright.passes.linalg.structured import body, compose, inputs, iterator_kinds, main_of, rebuild, users
from tilewright.passes.linalg.symbolic import reassociation
from tilewright.passes.mlir import arith, ir, maps_of, operations, owner, position, replace_all_uses, tensor

CODES = "tw.codes"


@dataclass(frozen=True)
class FindCodes(Pass):
    """A decoding of constants that only contractions read gets `tw.codes`, with its format as text; and so does one of bytes with
    a sign that meets such a one in all of them, so that both factors reach the kernel as integers.

    Arithmetic on constants alone would run at compile time, and what is stored would be its result: weights of 4 bits as f32.
    The mark keeps it from that, and the pass fuse computes it where contractions load. Weights out of pools (analysis/pools.py)
    are marked alike, where the pools are constants too; what permutes their axes goes into the decoding.
    So are whole numbers of few bits (analysis/whole_rows.py) that meet such weights.

    rounded: does the target multiply values in f16 or bf16, so that what rounds decoded ones is part of the decoding? Elsewhere
    these are computed once, as any arithmetic on constants.
    """

    name: ClassVar[str] = "find-codes"
    rounded: bool = False

    def run(self, module: ir.Module) -> None:
        for fn in main_of(module):
            constants = constant_arguments(fn)
            rounded = [(op, r) for op in operations(fn.regions[0].blocks[0]) if (r := _rounding(op)) is not None]
            for op, rounding in rounded if self.rounded else ():
                if all(v in constants for v in inputs(op)):
                    _round(op, rounding)
            found = [c for op in operations(fn.regions[0].blocks[0])
                     if (c := Codes.of(op)) is not None and _multiplied(op) and (self.rounded or not c.rounded)]
            for op in [op for op in operations(fn.regions[0].blocks[0]) if Pools.of(op) is not None]:  # others may be erased here
                op = _in_reading_order(op)
                pools = Pools.of(op)
                given = [] if pools is None else [*inputs(op), *(book.pool for book in pools.books)]
                if pools is not None and _multiplied(op) and all(_viewed(v) in constants for v in given):
                    op.attributes[CODES] = ir.StringAttr.get(pools.text)
                    _mark_rows(op)
            weights = [c for c in found if all(v in constants for v in inputs(c.op))]
            for codes in weights:
                codes.op.attributes[CODES] = ir.StringAttr.get(codes.text)
            marked = {c.op.results[0] for c in weights}
            for codes in found:
                met = [v for reader in users(codes.op.results[0]) for v in list(reader.operands)[:2] if v != codes.op.results[0]]
                if codes not in weights and codes.signed and codes.bits == BYTE_BITS and met and all(v in marked for v in met):
                    codes.op.attributes[CODES] = ir.StringAttr.get(codes.text)


def _mark_rows(weight: ir.Operation) -> None:
    """Marks the whole numbers of few bits that the readers of a weight multiply it by, and what surrounds them with zeros."""
    for reader in users(weight.results[0]):
        for number in (0, 1):
            made = _whole_in_order(owner(reader.operands[number]))
            if made is not None and WholeRows.of(made) is not None and _multiplied(made):
                made.attributes[CODES] = ir.StringAttr.get("a")
            if made is None or made.name != "tensor.pad" or not _multiplied(made):
                continue
            inner = _whole_in_order(owner(made.operands[0]))
            whole = WholeRows.behind(made.results[0])
            if whole is not None and inner == whole.op and len(users(inner.results[0])) == 1:
                for op in (inner, made):
                    op.attributes[CODES] = ir.StringAttr.get("a")


def _whole_in_order(made: ir.Operation | None) -> ir.Operation | None:
    """Whole numbers of few bits in the order that they are read in, where `made` only adds axes to them; else `made`."""
    if made is None or made.name not in RESHAPES or not made.results[0].type.has_static_shape:
        return made
    inner = owner(made.operands[0])
    return made if inner is None or WholeRows.of(inner) is None else _in_reading_order(inner)


def _rounding(op: ir.Operation) -> ir.Operation | None:
    """What rounds the values of a decoding to a narrow type, and does nothing else, where that alone reads them."""
    readers = users(op.results[0]) if len(op.results) == 1 else []
    if len(readers) != 1 or readers[0].name != "linalg.generic" or len(readers[0].operands) != 2 or Codes.of(op) is None:
        return None
    reader, inside = readers[0], operations(body(readers[0]))
    plain = set(maps_of(reader)) == {ir.AffineMap.get_identity(len(iterator_kinds(reader)))}
    narrow = str(ir.RankedTensorType(reader.results[0].type).element_type) in NARROW
    return reader if plain and narrow and len(inside) == 2 and inside[0].name == "arith.truncf" and \
        inside[0].operands[0] == body(reader).arguments[0] and inside[1].operands[0] == inside[0].results[0] else None


def _round(op: ir.Operation, rounding: ir.Operation) -> None:
    """A decoding whose values are of the type that they were rounded to behind it."""
    kind = ir.RankedTensorType(rounding.results[0].type)

    def edit(block: ir.Block) -> None:
        block.arguments[len(block.arguments) - 1].set_type(kind.element_type)
        last = operations(block)[-1]
        with ir.InsertionPoint(last), last.location:
            last.operands[0] = arith.truncf(kind.element_type, last.operands[0])

    with ir.InsertionPoint(op), op.location:
        into = tensor.EmptyOp(list(kind.shape), kind.element_type).result
    made = rebuild(op, inputs(op), [into], maps_of(op), iterator_kinds(op), edit)
    replace_all_uses(rounding.results[0], made.results[0])
    rounding.erase()
    op.erase()


def _viewed(value: ir.Value) -> ir.Value:
    """What a value is a reshape of."""
    while (made := owner(value)) is not None and made.name in RESHAPES:
        value = made.operands[0]
    return value


def _in_reading_order(op: ir.Operation) -> ir.Operation:
    """A decoding whose axes are those that are read: what only permutes them, or leaves out or adds some of one element, goes
    into its result's map."""
    while len(readers := users(op.results[0])) == 1:
        if (added := _added_axes(readers[0])) is not None:
            op = _with_axes(op, readers[0], added)
            continue
        order = _permutation(readers[0]) or _long_axes(readers[0])
        if order is None:
            break
        old, maps = ir.RankedTensorType(op.results[0].type), maps_of(op)
        loops = [position(maps[-1].results[a]) for a in order]
        at = {d: n for n, d in enumerate(sorted(d for d in loops if d is not None))}
        here = [ir.AffineExpr.get_dim(at[d]) if d in at else ir.AffineExpr.get_constant(0) for d in range(maps[-1].n_dims)]
        inner = ir.AffineMap.get(len(at), 0, here)
        maps[-1] = ir.AffineMap.get(maps[-1].n_dims, 0, [maps[-1].results[a] for a in order])
        maps = [compose(m, inner) for m in maps]
        with ir.InsertionPoint(op), op.location:
            into = tensor.EmptyOp([old.shape[a] for a in order], old.element_type).result
        made = rebuild(op, inputs(op), [into], maps, ["parallel"] * len(at))
        for inside in operations(body(made)):
            if inside.name == "linalg.index":
                number = ir.IntegerAttr(inside.attributes["dim"])
                inside.attributes["dim"] = ir.IntegerAttr.get(number.type, at[number.value])
        replace_all_uses(readers[0].results[0], made.results[0])
        readers[0].erase()
        op.erase()
        op = made
    return op


def _added_axes(op: ir.Operation) -> list[int | None] | None:
    """The axis of its operand at each axis of the result, None at one of one element that is new, of a reshape that only adds
    such; None of any other operation."""
    if op.name != "tensor.expand_shape":
        return None
    shape, found = ir.RankedTensorType(op.results[0].type).shape, list[int | None]()
    for axis, group in enumerate(reassociation(op)):
        kept = ([a for a in group if shape[a] != 1] or group[-1:])
        if len(kept) > 1:
            return None
        found += [axis if a == kept[0] else None for a in group]
    return found


def _with_axes(op: ir.Operation, reader: ir.Operation, axes: Sequence[int | None]) -> ir.Operation:
    """A decoding with loops of one step for the new axes of what reads it, which goes."""
    maps, count = maps_of(op), maps_of(op)[-1].n_dims
    total = count + axes.count(None)
    new = iter(range(count, total))
    written = [ir.AffineExpr.get_dim(next(new)) if a is None else maps[-1].results[a] for a in axes]
    maps = [*(ir.AffineMap.get(total, 0, list(m.results)) for m in maps[:-1]), ir.AffineMap.get(total, 0, written)]
    with ir.InsertionPoint(op), op.location:
        t = ir.RankedTensorType(reader.results[0].type)
        into = tensor.EmptyOp(list(t.shape), t.element_type).result
    made = rebuild(op, inputs(op), [into], maps, ["parallel"] * total)
    replace_all_uses(reader.results[0], made.results[0])
    reader.erase()
    op.erase()
    return made


def _long_axes(op: ir.Operation) -> list[int] | None:
    """The axes that a reshape keeps which only leaves out axes of one element, but the last; None of any other operation."""
    if op.name != "tensor.collapse_shape":
        return None
    shape, kept = ir.RankedTensorType(op.operands[0].type).shape, list[int]()
    for group in reassociation(op):
        long = [a for a in group if shape[a] != 1] or group[-1:]
        if len(long) > 1:
            return None
        kept += long
    return kept if shape[-1] == 1 or kept[-1:] == [len(shape) - 1] else None


def _permutation(op: ir.Operation) -> list[int] | None:
    """The axis of its operand at each axis of the result, of an operation that only permutes them."""
    if op.name == "linalg.transpose":
        return list(ir.DenseI64ArrayAttr(op.attributes["permutation"]))
    if op.name != "linalg.generic" or len(op.operands) != 2 or set(iterator_kinds(op)) != {"parallel"} or \
            operations(body(op))[0].name != "linalg.yield" or operations(body(op))[0].operands[0] != body(op).arguments[0]:
        return None
    read, written = ([position(e) for e in m.results] for m in maps_of(op))
    return [read.index(d) for d in written] if None not in read and sorted(read) == sorted(written) else None  # type: ignore[type-var]


def _multiplied(op: ir.Operation) -> bool:
    """Do contractions alone read the result, at least one?"""
    readers = users(op.results[0])
    return bool(readers) and all(is_contraction(r) for r in readers)
