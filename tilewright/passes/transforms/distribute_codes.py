"""distribute-codes: a product with a sum of decoded weights becomes a product with one decoding of all of their codes, or the sum
of the products with each of them.

Codes of 3, 5, 6 and 7 bits are stored as several of 1, 2 and 4 bits, whose decodings are added with factors (ops/codes.py). Each
of these is what kernels read as it is stored; their sum would be decoded into memory. Where the target's kernels put the bits of
codes together that share scales, that is one decoding; products of integers, by rows of bytes, are distributed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tilewright.passes.analysis.codes import BYTE_BITS, Codes, code_of
from tilewright.passes.analysis.compile_time import constant_arguments
from tilewright.passes.analysis.contraction import LHS, RHS, is_contraction
from tilewright.passes.base import Pass
from tilewright.passes.linalg.builders import elementwise, fill, fill_body, generic
from tilewright.passes.linalg.clone import clone
from tilewright.passes.linalg.reshape import Reshaper
from tilewright.passes.linalg.structured import body, erase_unused, inits, inputs, iterator_kinds, main_of, replace, users
from tilewright.passes.mlir import arith, ir, maps_of, operations, owner


@dataclass(frozen=True)
class DistributeCodes(Pass):
    """Of weights that are constants, each decoded from its own codes, and that contractions of f32 alone read.

    joined: do kernels of the target decode codes whose bits lie in several tensors?"""

    name: ClassVar[str] = "distribute-codes"
    joined: bool = False

    def run(self, module: ir.Module) -> None:
        for fn in main_of(module):
            constants, views = constant_arguments(fn), Reshaper(fn)
            for op in operations(fn.regions[0].blocks[0]):
                terms = _terms(op)
                readers = [] if terms is None else users(op.results[0])
                if terms is None or not readers or not all(_multiplies(r, op.results[0]) for r in readers):
                    continue
                decoded = [Codes.of(owner(inputs(op)[n])) for n, _ in terms]
                known = [c for c in decoded if c is not None and all(v in constants for v in inputs(c.op))]
                if len(known) < len(terms):
                    continue
                if self.joined and not any(_by_bytes(r, op.results[0]) for r in readers) and \
                        _joinable(known, [factor for _, factor in terms]):
                    replace(op, [_join(op, known, [factor for _, factor in terms])])
                    continue
                for reader in readers:
                    _distribute(reader, op, terms, views)
            erase_unused(fn)


def _terms(op: ir.Operation) -> list[tuple[int, float]] | None:
    """Numbers of operands and their factors, of an elementwise sum of two or more of them; the first has the factor 1."""
    if op.name != "linalg.generic" or len(op.results) != 1 or set(iterator_kinds(op)) != {"parallel"}:
        return None
    if set(maps_of(op)) != {ir.AffineMap.get_identity(len(iterator_kinds(op)))}:
        return None
    found = _summed(operations(body(op))[-1].operands[0], list(body(op).arguments), 1.0)
    if found is None or len(found) != len(inputs(op)) or len(found) < 2 or len({n for n, _ in found}) < len(found):
        return None
    return found if found[0][1] == 1.0 else None


def _summed(value: ir.Value, arguments: Sequence[ir.Value], factor: float) -> list[tuple[int, float]] | None:
    made = owner(value)
    if made is None:
        return [(arguments.index(value), factor)] if value in arguments[:-1] else None
    if made.name == "arith.addf":
        parts = [_summed(v, arguments, factor) for v in made.operands]
        return None if parts[0] is None or parts[1] is None else parts[0] + parts[1]
    constant = owner(made.operands[1]) if made.name == "arith.mulf" else None
    if constant is None or constant.name != "arith.constant":
        return None
    return _summed(made.operands[0], arguments, factor * float(ir.FloatAttr(constant.attributes["value"]).value))


def _multiplies(op: ir.Operation, weight: ir.Value) -> bool:
    """Is it a contraction of f32 with the weight as one of its factors?"""
    read = [v == weight for v in op.operands]
    return is_contraction(op) and sum(read) == 1 and (read[LHS] or read[RHS]) and \
        isinstance(ir.RankedTensorType(op.results[0].type).element_type, ir.F32Type)


def _by_bytes(op: ir.Operation, weight: ir.Value) -> bool:
    """Is the other factor decoded from bytes with a sign?"""
    rows = Codes.of(owner(op.operands[RHS if op.operands[LHS] == weight else LHS]))
    return rows is not None and rows.signed


def _joinable(parts: Sequence[Codes], factors: Sequence[float]) -> bool:
    """Do all share scales and layout, each with the bits above those before, and the first alone has zero points? And are groups
    whole numbers of words of each?"""
    first = parts[0]
    places = [float(1 << sum(p.bits for p in parts[:i])) for i in range(len(parts))]
    return list(factors) == places and sum(p.bits for p in parts) < BYTE_BITS and all(
        len(p.planes) == 1 and not p.signed and not p.tile and not p.rounded and (p.n, p.k) == (first.n, first.k)
        and _scale(p) == _scale(first) and maps_of(p.op)[-1] == maps_of(first.op)[-1] and (p.zero is None or p is first)
        and str(code_of(p)[0].type) == "i8" and first.group % p.word == 0 for p in parts)


def _scale(codes: Codes) -> tuple[ir.Value, ir.AffineMap] | None:
    """The scale and where it is read."""
    return None if codes.scale is None else (codes.op.operands[codes.scale], maps_of(codes.op)[codes.scale])


def _join(op: ir.Operation, parts: Sequence[Codes], factors: Sequence[float]) -> ir.Value:
    """(code - zero) * scale, of codes whose bits lie in the codes of the parts."""
    first, f32 = parts[0], ir.F32Type.get()
    shared = [n for n in (first.scale, first.zero) if n is not None]
    read = [*((p, p.codes) for p in parts), *((first, n) for n in shared)]
    maps = [*(maps_of(p.op)[n] for p, n in read), maps_of(first.op)[-1]]
    point = sum(p.point * f for p, f in zip(parts, factors, strict=True))

    def of(values: list[ir.Value]) -> ir.Value:
        arguments = list(body(first.op).arguments)
        known = {arguments[n]: v for n, v in zip(shared, values[len(parts) :], strict=False)}
        code: ir.Value | None = None
        place = 0
        for part, value in zip(parts, values, strict=False):
            bits = _copy(code_of(part)[0], {body(part.op).arguments[part.codes]: value})
            moved = bits if code is None else arith.shli(bits, arith.constant(bits.type, place))
            code, place = moved if code is None else arith.ori(code, moved), place + part.bits
        found = arith.uitofp(f32, code)
        _, scale, zero = code_of(first)
        if zero is not None:
            found = arith.subf(found, _copy(zero, known))
        elif point:
            found = arith.subf(found, arith.constant(f32, point))
        return found if scale is None else arith.mulf(found, _copy(scale, known))

    with ir.InsertionPoint(op), op.location:
        made = generic([p.op.operands[n] for p, n in read], inits(op), maps, ["parallel"] * 2, [op.results[0].type])
        fill_body(made, of)
    return made.results[0]


def _copy(value: ir.Value, known: dict[ir.Value, ir.Value]) -> ir.Value:
    """A scalar computed anew, from other arguments."""
    if value not in known:
        made = owner(value)
        assert made is not None
        known[value] = clone(made, lambda v: _copy(v, known)).results[0]
    return known[value]


def _distribute(reader: ir.Operation, op: ir.Operation, terms: Sequence[tuple[int, float]], views: Reshaper) -> None:
    """The first product starts where the reader did, the others at 0."""
    element, kind = ir.F32Type.get(), reader.results[0].type
    dims = views.shapes.dims(reader.results[0])
    with ir.InsertionPoint(reader), reader.location:
        zero = arith.constant(element, 0.0)
        products = list[ir.Value]()
        for number, _ in terms:
            known = {op.results[0]: inputs(op)[number]}
            if products:
                known[inits(reader)[0]] = fill(zero, views.as_type(views.empty(dims, element), kind))
            products.append(clone(reader, lambda v, known=known: known.get(v, v)).results[0])  # type: ignore[misc]

        def added(values: list[ir.Value]) -> ir.Value:
            total = values[0]
            for value, (_, factor) in zip(values[1 : len(terms)], terms[1:], strict=True):
                total = arith.addf(total, arith.mulf(value, arith.constant(element, factor)))
            return total

        total = elementwise(products, views.as_type(views.empty(dims, element), kind), added)
    replace(reader, [total])
