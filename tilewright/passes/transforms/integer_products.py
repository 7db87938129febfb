"""integer-products: contractions of quantised tensors multiply their bytes; zero points and scales come after the sums.

    sum (a - za) (b - zb) = sum a b - za sum b - zb sum (a - za)

holds exactly for integers, as they wrap around. The sums of a constant are made at compile time. Factors of f32 that are
(byte - zero) * scale with no scale along k are summed as integers and scaled once, which is at least as accurate.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import ClassVar

from tilewright.passes.analysis.byte_codes import ByteCodes, Term
from tilewright.passes.analysis.compile_time import known_values
from tilewright.passes.analysis.contraction import LHS, OUT, RHS, is_contraction, product_of, used_loops
from tilewright.passes.base import Pass
from tilewright.passes.linalg.builders import elementwise, fill, fill_body, generic, renumber
from tilewright.passes.linalg.reshape import Reshaper, product
from tilewright.passes.linalg.structured import (
    body,
    compose,
    erase_unused,
    inits,
    is_zero_tensor,
    iterator_kinds,
    loop_extents,
    main_of,
)
from tilewright.passes.linalg.structured import replace as replace_results
from tilewright.passes.mlir import arith, attributes, ir, maps_of, operations, owner, position
from tilewright.runtime.shape import Expr

LONGEST = (2**31 - 1) // 255**2  # values of k whose products of centred bytes have a sum in 32 bits
_FLIP = 128  # between a byte read as signed and as unsigned, once its highest bit is turned


@dataclass(frozen=True)
class IntegerProducts(Pass):
    """apart: the target multiplies signed bytes by unsigned ones, so that of two factors of one sign one is shifted by 128."""

    name: ClassVar[str] = "integer-products"
    apart: bool = False

    def run(self, module: ir.Module) -> None:
        for fn in main_of(module):
            constants = known_values(fn)
            for op in operations(fn.regions[0].blocks[0]):
                if is_contraction(op):
                    with ir.InsertionPoint(op), op.location:
                        _rewrite(op, Reshaper(fn), self.apart, constants)
            erase_unused(fn)


@dataclass(frozen=True)
class _Factor:
    """One side of a contraction. base: the part of the zero point that is a known number; zero, scales: terms over the loops of
    the contraction; constant: are the bytes known at compile time? flips: is the highest bit of its bytes turned?"""

    codes: ByteCodes
    map: ir.AffineMap
    base: int
    zero: Term | None
    scales: tuple[Term, ...]
    constant: bool
    flips: bool = False

    @property
    def centred(self) -> bool:
        """Is its zero point certain to be 0?"""
        return self.base == 0 and self.zero is None

    @property
    def signed(self) -> bool:
        return self.codes.signed != self.flips

    @property
    def cost(self) -> int:
        """Of the sum of its values along k, which the other factor's zero point asks for."""
        return 0 if self.constant else 1 if self.map.is_projected_permutation else 2

    def flipped(self) -> _Factor:
        return replace(self, flips=True, base=self.base + (_FLIP if self.codes.signed else -_FLIP))


def _rewrite(op: ir.Operation, tensors: Reshaper, apart: bool, constants: Container[ir.Value]) -> None:
    a = _factor(op, LHS, constants)
    b = None if a is None else _factor(op, RHS, constants)
    if a is None or b is None or a.codes.real != b.codes.real or not is_zero_tensor(inits(op)[0]):
        return
    maps, kinds, extents = maps_of(op), iterator_kinds(op), loop_extents(op, tensors.shapes)
    depth = product([e for e, kind in zip(extents, kinds, strict=True) if kind == "reduction"]).constant
    if a.codes.real and (depth is None or depth > LONGEST):
        return
    if apart and a.codes.signed == b.codes.signed:
        a, b = _apart(a, b)
    if all(x.codes.source == v and not x.flips for x, v in zip((a, b), op.operands, strict=False)):
        return  # bytes already
    if any(not other.centred and not x.map.is_projected_permutation for x, other in ((a, b), (b, a))):
        return  # sums of windows
    read = [_bytes(x, tensors) for x in (a, b)]
    if read[0] is None or read[1] is None:
        return
    word = ir.IntegerType.get_signless(32)
    into = fill(arith.ConstantOp(word, 0).result, tensors.empty(tensors.shapes.dims(op.results[0]), word))
    made = generic(read, [into], maps, kinds, [into.type])
    fill_body(made, lambda v: arith.AddIOp(v[2], arith.MulIOp(_wide(v[0], a.signed), _wide(v[1], b.signed)).result).result)
    sums = _Sums(kinds, extents, tensors)
    columns = sums.of(read[1], b, False) if not a.centred else None
    rows = sums.of(read[0], a, True) if not b.centred else None
    found = _finished(made.results[0], (a, b), (columns, rows), maps[OUT], tensors)
    replace_results(op, [tensors.as_type(found, op.results[0].type)])


def _factor(op: ir.Operation, which: int, constants: Container[ir.Value]) -> _Factor | None:
    """None where it is not computed of bytes, or its zero point or scale varies along k."""
    multiplied, value, m = product_of(op), op.operands[which], maps_of(op)[which]
    assert multiplied is not None
    casts = [c.name for c in multiplied.casts[which]]
    if str(multiplied.element) == "i32" and str(ir.RankedTensorType(value.type).element_type) == "i8" and len(casts) == 1:
        codes: ByteCodes | None = ByteCodes(value, casts[0] == "arith.extsi")
    else:
        codes = ByteCodes.of(value) if not casts and str(multiplied.element) in ("i32", "f32") else None
    if codes is None or codes.real != (str(multiplied.element) == "f32"):
        return None
    kinds = iterator_kinds(op)
    terms = [t if t.map is None else Term(t.value, compose(t.map, m) if not t.one else t.map) for t in codes.terms]
    for t in terms:
        if t.map is not None and any((d := position(e)) is None or kinds[d] == "reduction" for e in t.map.results):
            return None
    zero = terms[0] if codes.zero is not None else None
    base = _whole(zero.value) if zero is not None else 0
    scales = tuple(terms[0 if codes.zero is None else 1:])
    return _Factor(codes, m, base or 0, zero if base is None else None, scales, codes.source in constants)


def _whole(value: ir.Value) -> int | None:
    op = owner(value)
    if op is None or op.name != "arith.constant" or not isinstance(op.attributes["value"], ir.IntegerAttr):
        return None
    return int(ir.IntegerAttr(op.attributes["value"]).value)


def _apart(a: _Factor, b: _Factor) -> tuple[_Factor, _Factor]:
    """Both with one of them flipped, the one that asks for fewer sums at run time."""

    def cost(a: _Factor, b: _Factor) -> int:
        return (0 if a.centred else b.cost) + (0 if b.centred else a.cost)

    return min(((a.flipped(), b), (a, b.flipped())), key=lambda pair: cost(*pair))


def _bytes(factor: _Factor, tensors: Reshaper) -> ir.Value | None:
    """The bytes that are multiplied, behind the views and pads of the factor; None where a pad has no code for zero."""
    codes, byte = factor.codes, ir.IntegerType.get_signless(8)
    value = codes.source
    low, high = (-128, 127) if factor.signed else (0, 255)
    if any(op.name == "tensor.pad" for op in codes.path) and (factor.zero is not None or not low <= factor.base <= high):
        return None
    if factor.flips:
        turned, into = arith.ConstantOp(byte, -_FLIP).result, tensors.empty(tensors.shapes.dims(value), byte)
        value = tensors.as_type(elementwise([value], into, lambda v: arith.XOrIOp(v[0], turned).result), value.type)
    for op in codes.path:
        kind = ir.RankedTensorType.get(ir.RankedTensorType(op.results[0].type).shape, byte)
        code = arith.ConstantOp(byte, (factor.base + _FLIP) % (2 * _FLIP) - _FLIP).result
        again = ir.Operation.create(op.name, [kind], [value, *list(op.operands)[1:]], attributes(op), regions=len(op.regions))
        for region in again.regions:
            with ir.InsertionPoint(ir.Block.create_at_start(region, [a.type for a in body(op).arguments])):
                ir.Operation.create("tensor.yield", operands=[code])
        value = again.results[0]
    return value


def _wide(value: ir.Value, signed: bool) -> ir.Value:
    word = ir.IntegerType.get_signless(32)
    return (arith.ExtSIOp if signed else arith.ExtUIOp)(word, value).result


@dataclass(frozen=True)
class _Sums:
    """Makes sums along k; kinds, extents: of the loops of the contraction."""

    kinds: Sequence[str]
    extents: Sequence[Expr]
    tensors: Reshaper

    def of(self, value: ir.Value, factor: _Factor, centred: bool) -> Term:
        """The sums of a factor's bytes, each less its zero point when `centred`."""
        loops = sorted(used_loops(factor.map))
        kept = [d for d in loops if self.kinds[d] == "parallel"]
        order = {d: i for i, d in enumerate(loops)}
        terms = _Terms([t for t in (factor.zero,) if t is not None and centred])
        word = ir.IntegerType.get_signless(32)
        into = fill(arith.ConstantOp(word, 0).result, self.tensors.empty([self.extents[d] for d in kept], word))

        def over(m: ir.AffineMap) -> ir.AffineMap:
            return ir.AffineMap.get(len(loops), 0, [renumber(e, order) for e in m.results])

        dims = ir.AffineMap.get(factor.map.n_dims, 0, [ir.AffineExpr.get_dim(d) for d in kept])
        made = generic([value, *terms.tensors], [into], [over(m) for m in (factor.map, *terms.maps, dims)],
                       [self.kinds[d] for d in loops], [into.type])

        def element(scalars: list[ir.Value]) -> ir.Value:
            number = _wide(scalars[0], factor.signed)
            if centred and not factor.centred:
                number = arith.SubIOp(number, _zero(factor, terms.scalars(scalars[1:-1]))).result
            return arith.AddIOp(scalars[-1], number).result

        fill_body(made, element)
        return Term(made.results[0], dims)


class _Terms:
    """Terms as operands of a generic: the tensors among them, their maps, and the scalars that its body reads."""

    def __init__(self, terms: Sequence[Term]) -> None:
        self.terms = list(terms)
        self.tensors = [t.value for t in terms if t.map is not None]
        self.maps = [t.map for t in terms if t.map is not None]

    def scalars(self, elements: Sequence[ir.Value]) -> list[ir.Value]:
        """Of all terms in order, from the elements of the tensors."""
        left = iter(elements)
        return [t.value if t.map is None else next(left) for t in self.terms]


def _zero(factor: _Factor, terms: Sequence[ir.Value]) -> ir.Value:
    """The zero point of a factor that has one; terms: the part that is not a known number, where there is one."""
    if terms and factor.base == 0:
        return terms[0]
    known = arith.ConstantOp(ir.IntegerType.get_signless(32), factor.base).result
    return arith.AddIOp(terms[0], known).result if terms else known


def _finished(total: ir.Value, factors: tuple[_Factor, _Factor], sums: tuple[Term | None, Term | None], out: ir.AffineMap,
              tensors: Reshaper) -> ir.Value:
    """The sums of products less what the zero points make of them, times the scales."""
    corrected = [(f, s) for f, s in zip(factors, sums, strict=True) if s is not None]
    scales = [t for f in factors for t in f.scales]
    if not corrected and not factors[0].codes.real:
        return total
    zeros = [[t for t in (f.zero,) if t is not None] for f, _ in corrected]
    terms = _Terms([t for (_, s), z in zip(corrected, zeros, strict=True) for t in (s, *z)] + scales)
    axes = {d: axis for axis, e in enumerate(out.results) if (d := position(e)) is not None}
    maps = [ir.AffineMap.get(len(out.results), 0, [renumber(e, axes) for e in m.results]) for m in terms.maps]
    real = ir.F32Type.get()
    into = tensors.empty(tensors.shapes.dims(total), real if factors[0].codes.real else ir.IntegerType.get_signless(32))

    def element(scalars: list[ir.Value]) -> ir.Value:
        found, left = scalars[0], terms.scalars(scalars[1:-1])
        for (factor, _), zero in zip(corrected, zeros, strict=True):
            shift = _zero(factor, left[1:1 + len(zero)])
            found = arith.SubIOp(found, arith.MulIOp(left[0], shift).result).result
            left = left[1 + len(zero):]
        if not factors[0].codes.real:
            return found
        number = arith.SIToFPOp(real, found).result
        return arith.MulFOp(number, reduce(lambda x, y: arith.MulFOp(x, y).result, left)).result if left else number

    return elementwise([total, *terms.tensors], into, element, [ir.AffineMap.get_identity(len(out.results)), *maps])
