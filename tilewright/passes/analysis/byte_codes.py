"""Byte codes: a tensor that is computed from one of bytes as (byte - zero) * scale, as quantised models have them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.passes.linalg.builders import renumber
from tilewright.passes.linalg.data_movement import constant_pad
from tilewright.passes.linalg.reshape import RESHAPES
from tilewright.passes.linalg.strides import VIEW_OPS
from tilewright.passes.linalg.structured import body, is_zero, iterator_kinds
from tilewright.passes.linalg.symbolic import reassociation
from tilewright.passes.mlir import ir, maps_of, operations, owner, position

_WIDER = {"arith.extsi": True, "arith.extui": False}
_FROM_BYTE = {"arith.sitofp": True, "arith.uitofp": False}


@dataclass(frozen=True)
class Term:
    """A number for each place, the same along some axes. value: a scalar, or a tensor that is read through `map`, from the axes
    of what the term belongs to."""

    value: ir.Value
    map: ir.AffineMap | None = None

    @property
    def one(self) -> bool:
        """Is it one number for all places?"""
        return self.map is None or not list(self.map.results)


@dataclass(frozen=True)
class ByteCodes:
    """(bytes of `source` - zero) * scales, with no zero where it is None. signed: how bytes are read. real: is it f32, or i32?

    path: views and pads by zero that lead from the bytes to the tensor.
    """

    source: ir.Value
    signed: bool
    zero: Term | None = None
    scales: tuple[Term, ...] = ()
    real: bool = False
    path: tuple[ir.Operation, ...] = ()

    @property
    def terms(self) -> tuple[Term, ...]:
        return (*(() if self.zero is None else (self.zero,)), *self.scales)

    @staticmethod
    def of(value: ir.Value) -> ByteCodes | None:
        """How a tensor of i32 or f32 is computed of bytes by elementwise operations; None where it is not."""
        op = owner(value)
        if op is None:
            return None
        if op.name in VIEW_OPS or _pads_zero(op):
            inner = ByteCodes.of(op.operands[0])
            terms = [] if inner is None else [_moved(t, op) for t in inner.terms]
            known = [t for t in terms if t is not None]
            if inner is None or len(known) < len(terms):
                return None
            return replace(inner, path=(*inner.path, op), zero=None if inner.zero is None else known[0],
                           scales=tuple(known[len(known) - len(inner.scales):]))
        if op.name != "linalg.generic" or len(op.results) != 1 or "reduction" in iterator_kinds(op):
            return None
        same = ir.AffineMap.get_identity(ir.RankedTensorType(value.type).rank)
        return _of_scalar(op, operations(body(op))[-1].operands[0]) if maps_of(op)[-1] == same else None


def _moved(term: Term, op: ir.Operation) -> Term | None:
    """A term of the operand of a view or pad over the axes of its result; None where they are others."""
    if term.map is None or term.one:
        return term
    if op.name not in RESHAPES:
        return None
    groups, rank = reassociation(op), ir.RankedTensorType(op.results[0].type).rank
    many = ir.RankedTensorType(op.results[0].type if op.name == "tensor.expand_shape" else op.operands[0].type).shape
    axes: dict[int, int] = {}
    for number, group in enumerate(groups):
        long = [a for a in group if many[a] != 1] or group[:1]
        if len(long) == 1:
            axes |= {number: long[0]} if op.name == "tensor.expand_shape" else dict.fromkeys(group, number)
    used = [position(e) for e in term.map.results]
    if any(d not in axes for d in used):
        return None
    return Term(term.value, ir.AffineMap.get(rank, 0, [renumber(e, axes) for e in term.map.results]))


def _pads_zero(op: ir.Operation) -> bool:
    if op.name != "tensor.pad" or not constant_pad(op):
        return False
    return is_zero(operations(body(op))[-1].operands[0])


def _of_scalar(op: ir.Operation, value: ir.Value) -> ByteCodes | None:
    """A scalar of the body of an elementwise generic."""
    numbered = _operand(op, value)
    if numbered is not None:
        operand, m = numbered
        return ByteCodes.of(operand) if m == ir.AffineMap.get_identity(m.n_dims) else None
    made = owner(value)
    if made is None or made.block != body(op):
        return None
    if made.name in (*_WIDER, *_FROM_BYTE):
        source = _operand(op, made.operands[0])
        kind = str(made.results[0].type)
        if source is not None and str(made.operands[0].type) == "i8":
            whole = source[1] == ir.AffineMap.get_identity(source[1].n_dims) and kind in ("i32", "f32")
            return ByteCodes(source[0], (_WIDER | _FROM_BYTE)[made.name], real=kind == "f32") if whole else None
        inner = _of_scalar(op, made.operands[0]) if made.name == "arith.sitofp" and kind == "f32" else None
        return None if inner is None or inner.real else replace(inner, real=True)
    if made.name == "arith.subi":
        inner, term = _of_scalar(op, made.operands[0]), _term(op, made.operands[1])
        return replace(inner, zero=term) if inner is not None and term is not None and inner.zero is None else None
    if made.name == "arith.mulf":
        for number, factor in (made.operands, reversed(list(made.operands))):
            inner, term = _of_scalar(op, number), _term(op, factor)
            if inner is not None and inner.real and term is not None:
                return replace(inner, scales=(*inner.scales, term))
    return None


def _operand(op: ir.Operation, value: ir.Value) -> tuple[ir.Value, ir.AffineMap] | None:
    """The operand that a scalar of the body is an element of, and its map."""
    for argument, operand, m in zip(body(op).arguments, op.operands, maps_of(op), strict=True):
        if argument == value:
            return operand, m
    return None


def _term(op: ir.Operation, value: ir.Value) -> Term | None:
    """A scalar of the body that comes from outside; None for one that is computed in it."""
    numbered = _operand(op, value)
    if numbered is not None:
        scalar = _only_scalar(numbered[0])
        return Term(*numbered) if scalar is None else Term(scalar)
    made = owner(value)
    return Term(value) if made is None or made.block != body(op) else None


def _only_scalar(value: ir.Value) -> ir.Value | None:
    """The scalar from outside that all elements of a tensor are; None where they may differ."""
    op = owner(value)
    if op is None or op.name not in ("linalg.generic", "linalg.fill"):
        return None
    if op.name == "linalg.fill":
        return op.operands[0]
    found = operations(body(op))[-1].operands[0]
    made = owner(found)
    inside = (made is None and found in list(body(op).arguments)) or (made is not None and made.block == body(op))
    return None if inside or len(op.results) != 1 else found
