"""Whole numbers of few bits as the factor of a product that rows differ in: activations rounded to as many bits as a call says.

    v[...] = float((code[...] and mask) - (zero[...] and mask)),   mask = 2 ** bits - 1

The codes are bytes; bits is a constant or a dim of the model, from 1 to 8. So every v is a whole number below 2 ** bits in
magnitude, whatever the bytes hold, and sums of products with bytes are exact in integers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tilewright.passes.analysis.op_kinds import body_names
from tilewright.passes.linalg.data_movement import constant_pad
from tilewright.passes.linalg.strides import VIEW_OPS
from tilewright.passes.linalg.structured import body, is_zero, iterator_kinds
from tilewright.passes.linalg.symbolic import integer
from tilewright.passes.mlir import arith, ir, maps_of, operations, owner

MOST_BITS = 8
_SAME = ("arith.index_cast", "arith.index_castui", "arith.extui", "arith.extsi", "arith.trunci")
_WIDER = ("arith.extui",)
_ARITHMETIC: Mapping[str, Callable[[int, int], int]] = MappingProxyType({
    "arith.addi": lambda a, b: a + b, "arith.subi": lambda a, b: a - b, "arith.shli": lambda a, b: a << b,
    "arith.minsi": min, "arith.minui": min,
})


@dataclass(frozen=True)
class WholeRows:
    """Of the operation `op` that makes floats of codes. codes: its operand with the bytes. bits: how many, or the index value
    that says so. zero: its operand with what is taken from the codes, None where nothing is."""

    op: ir.Operation
    codes: int
    bits: int | ir.Value
    zero: int | None = None

    @property
    def zero_place(self) -> list[int] | None:
        """Where the operand has what is taken from every code; None where it is not the same for all."""
        places = [] if self.zero is None else list(maps_of(self.op)[self.zero].results)
        known = [ir.AffineConstantExpr(e).value for e in places if isinstance(e, ir.AffineConstantExpr)]
        return known if len(known) == len(places) else None

    @staticmethod
    def of(op: ir.Operation | None) -> WholeRows | None:
        """None for an operation that is no such conversion."""
        if op is None or op.name != "linalg.generic" or len(op.results) != 1 or set(iterator_kinds(op)) - {"parallel"}:
            return None
        if "arith.sitofp" not in body_names(op) or str(ir.RankedTensorType(op.results[0].type).element_type) != "f32":
            return None
        cast = owner(operations(body(op))[-1].operands[0])
        if cast is None or cast.name != "arith.sitofp":
            return None
        value, masks, zero = cast.operands[0], list[ir.Value](), None
        made = owner(value)
        if made is not None and made.name == "arith.subi":
            zero = _masked(op, made.operands[1], masks)
            value = made.operands[0]
            if zero is None:
                return None
        codes = _masked(op, value, masks)
        if codes is None or str(value.type) not in ("i16", "i32", "i64"):
            return None
        bits = [_bits(m) for m in masks]
        return None if bits[0] is None or any(b != bits[0] for b in bits) else WholeRows(op, codes, bits[0], zero)

    @staticmethod
    def behind(value: ir.Value) -> WholeRows | None:
        """Of what a value is a view of, or surrounds with zeros."""
        op = owner(value)
        while op is not None and (op.name in VIEW_OPS or _pads_zero(op)):
            op = owner(op.operands[0])
        return WholeRows.of(op)


def _pads_zero(op: ir.Operation) -> bool:
    return op.name == "tensor.pad" and constant_pad(op) and is_zero(operations(body(op))[-1].operands[0])


def _masked(op: ir.Operation, value: ir.Value, masks: list[ir.Value]) -> int | None:
    """The operand whose bytes, read without a sign, are masked; the mask is noted."""
    made = owner(value)
    if made is None or made.name != "arith.andi":
        return None
    arguments = list(body(op).arguments)
    for number, mask in (made.operands, reversed(list(made.operands))):
        source = number
        while (inner := owner(source)) is not None and inner.name in _WIDER:
            source = inner.operands[0]
        if source in arguments and source != number and str(source.type) == "i8":
            masks.append(mask)
            return arguments.index(source)
    return None


def _bits(mask: ir.Value) -> int | ir.Value | None:
    """How many low bits a mask has: a number, or the index value of which it has that many, for 1 to 8."""
    leaves = list[ir.Value]()
    found = [_value(mask, k, leaves) for k in range(1, MOST_BITS + 1)]
    if not leaves:
        sizes = {f for f in found if f is not None}
        size = sizes.pop() if len(sizes) == 1 else 0
        return size.bit_length() if size in [(1 << k) - 1 for k in range(1, MOST_BITS + 1)] else None
    if any(leaf != leaves[0] for leaf in leaves) or found != [(1 << k) - 1 for k in range(1, MOST_BITS + 1)]:
        return None
    return leaves[0] if isinstance(leaves[0].type, ir.IndexType) else None


def _value(value: ir.Value, k: int, leaves: list[ir.Value]) -> int | None:
    """A number where the index that it is computed of is k; the index is noted."""
    op = owner(value)
    if op is None or op.name == "tensor.dim":
        leaves.append(value)
        return k
    if op.name == "arith.constant":
        return integer(op.attributes["value"])
    if op.name not in (*_SAME, *_ARITHMETIC, "arith.select", "arith.cmpi"):
        return None
    given = [_value(v, k, leaves) for v in op.operands]
    known = [g for g in given if g is not None]
    if len(known) < len(given):
        return None
    if op.name in _SAME:
        return known[0]
    if op.name == "arith.select":
        return known[1] if known[0] else known[2]
    if op.name == "arith.cmpi":
        predicate = arith.CmpIPredicate(integer(op.attributes["predicate"]))
        compared = {arith.CmpIPredicate.ult: known[0] < known[1], arith.CmpIPredicate.slt: known[0] < known[1]}
        return int(compared[predicate]) if predicate in compared else None
    return _ARITHMETIC[op.name](*known)
