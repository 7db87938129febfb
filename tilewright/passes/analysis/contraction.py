"""Contraction: a linalg op seen as sum over k of lhs * rhs, its loops in four groups: batch, m, n, k.

The groups come from the indexing maps alone, so named contractions, convolutions (M is (n, oh, ow), K is (kh, kw, c)), grouped
and depthwise ones, and generics of any layout are the same thing to a kernel family. The graph passes that decide what becomes a
contraction and the families that emit one ask this one matcher.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.passes.linalg.structured import CASTS, iterator_kinds, loop_extents
from tilewright.passes.linalg.symbolic import SymbolicShapes
from tilewright.passes.mlir import ir, maps_of, operations, owner, position
from tilewright.runtime.shape import Expr

LHS, RHS, OUT = 0, 1, 2
_WIDER_BYTES = (["arith.extsi"], ["arith.extui"])
_MULTIPLY, _ADD = ("arith.mulf", "arith.muli"), ("arith.addf", "arith.addi")


@dataclass(frozen=True)
class Product:
    """The body acc + lhs * rhs: the conversions that each factor goes through, and the type that is accumulated in.

    f16 and bf16 are accumulated in f32 and rounded once at the end.
    """

    casts: tuple[tuple[ir.Operation, ...], tuple[ir.Operation, ...]]
    element: ir.Type
    accumulator: ir.Type


def product_of(op: ir.Operation) -> Product | None:
    """The body when it is one multiplication and one addition with conversions; else None."""
    if not op.name.startswith("linalg.") or len(op.operands) != 3 or len(op.results) != 1 or not len(op.regions):
        return None
    block = op.regions[0].blocks[0]
    arguments = list(block.arguments)
    add = owner(operations(block)[-1].operands[0])
    if add is None or add.name not in _ADD or arguments[OUT] not in list(add.operands):
        return None
    terms = [v for v in add.operands if v != arguments[OUT]]
    multiply = owner(terms[0]) if len(terms) == 1 else None
    if multiply is None or multiply.name not in _MULTIPLY:
        return None
    found: dict[int, tuple[ir.Operation, ...]] = {}
    for value in multiply.operands:
        chain: list[ir.Operation] = []
        while (cast := owner(value)) is not None and cast.name in CASTS:
            chain.insert(0, cast)
            value = cast.operands[0]
        if value not in arguments[:OUT]:
            return None
        found[arguments.index(value)] = tuple(chain)
    if set(found) != {LHS, RHS}:
        return None
    element = add.results[0].type
    narrow = isinstance(element, ir.F16Type | ir.BF16Type)
    return Product((found[LHS], found[RHS]), element, ir.F32Type.get() if narrow else element)


@dataclass(frozen=True)
class Groups:
    """Loops of a contraction, in the op's order. batch: in both operands and the result; m, n: in one operand and the result;
    k: summed."""

    batch: tuple[int, ...]
    m: tuple[int, ...]
    n: tuple[int, ...]
    k: tuple[int, ...]

    @staticmethod
    def of(op: ir.Operation) -> Groups:
        """ValueError when a loop is in none of them."""
        where = f"{op.name} at {op.location}"
        maps = maps_of(op)
        used = [used_loops(m) for m in maps]
        kinds = iterator_kinds(op)
        written = [position(e) for e in maps[OUT].results if not isinstance(e, ir.AffineConstantExpr)]
        parallel = [d for d, kind in enumerate(kinds) if kind == "parallel"]
        if None in written or sorted(d for d in written if d is not None) != parallel:
            raise ValueError(f"{where}: the result's map {maps[OUT]} is no permutation of the parallel loops")
        idle = [d for d in range(len(kinds)) if d not in used[LHS] | used[RHS]]
        if idle:
            raise ValueError(f"{where}: loop d{idle[0]} is in neither operand")
        group = {(True, True): "batch", (True, False): "m", (False, True): "n"}
        named = {d: group[d in used[LHS], d in used[RHS]] if d in parallel else "k" for d in range(len(kinds))}
        return Groups(*(tuple(d for d in named if named[d] == g) for g in ("batch", "m", "n", "k")))


def is_contraction(op: ir.Operation) -> bool:
    """A sum of products with rows or columns of its own; x*x summed along a row is a reduction, not a contraction."""
    if product_of(op) is None:
        return False
    try:
        groups = Groups.of(op)
    except ValueError:
        return False
    return bool(groups.m or groups.n)


def sums_products(op: ir.Operation) -> bool:
    """Is it a product summed along some loop, whatever its other loops are?"""
    return product_of(op) is not None and "reduction" in iterator_kinds(op)


@dataclass(frozen=True)
class Contraction:
    """batch, m, n, k: loop dimensions in the op's order; maps: of lhs, rhs and the result; extents: one per loop."""

    op: ir.Operation
    product: Product
    maps: tuple[ir.AffineMap, ...]
    extents: tuple[Expr, ...]
    batch: tuple[int, ...]
    m: tuple[int, ...]
    n: tuple[int, ...]
    k: tuple[int, ...]

    @staticmethod
    def of(op: ir.Operation, shapes: SymbolicShapes) -> Contraction:
        """The view of an op; ValueError says why it is no sum of products over a dense result."""
        product = product_of(op)
        if product is None:
            raise ValueError(f"{op.name} at {op.location}: the body is not one multiplication added to the result")
        groups = Groups.of(op)
        extents = tuple(loop_extents(op, shapes))
        return Contraction(op, product, tuple(maps_of(op)), extents, groups.batch, groups.m, groups.n, groups.k)

    def roles(self) -> list[str]:
        """ "b", "m", "n" or "k" of each loop. Of a convolution, images are m, output channels n, window and input channels k,
        groups b."""
        named = {d: role for role, loops in zip("bmnk", (self.batch, self.m, self.n, self.k), strict=True) for d in loops}
        return [named[d] for d in range(len(self.extents))]

    def multiplies_bf16(self) -> bool:
        """Are both factors read as bf16 and multiplied as they are, up to widening, and added in f32?"""
        read = [ir.RankedTensorType(self.operand(which).type).element_type for which in (LHS, RHS)]
        casts = {cast.name for chain in self.product.casts for cast in chain}
        return all(isinstance(t, ir.BF16Type) for t in read) and casts <= {"arith.extf"} and \
            isinstance(self.product.accumulator, ir.F32Type)

    def byte_signs(self) -> tuple[bool, bool] | None:
        """Is each factor signed, where both are read as bytes, widened to i32 and multiplied? None of other products."""
        read = [str(ir.RankedTensorType(self.operand(which).type).element_type) for which in (LHS, RHS)]
        casts = [[cast.name for cast in chain] for chain in self.product.casts]
        if read != ["i8", "i8"] or str(self.product.accumulator) != "i32" or any(c not in _WIDER_BYTES for c in casts):
            return None
        return casts[LHS] == _WIDER_BYTES[0], casts[RHS] == _WIDER_BYTES[0]

    @property
    def parallel(self) -> tuple[int, ...]:
        return tuple(sorted((*self.batch, *self.m, *self.n)))

    def operand(self, which: int) -> ir.Value:
        return self.op.operands[which]

    def loops_of(self, which: int) -> frozenset[int]:
        """The loops that an operand depends on."""
        return used_loops(self.maps[which])

    def size(self, loops: Sequence[int]) -> Expr:
        """Product of the extents of some loops."""
        total = Expr.of(1)
        for d in loops:
            total = total * self.extents[d]
        return total

    def cut(self, loops: Mapping[str, Sequence[int]]) -> dict[ir.Value, dict[str, tuple[int, ...]]]:
        """The result, with its axes that run along loops, by name of the loops."""
        axes = [position(e) for e in self.maps[OUT].results]
        return {self.op.results[0]: {name: tuple(axes.index(d) for d in found) for name, found in loops.items()}}

    def linear_axis(self, which: int, d: int) -> int | None:
        """The axis of an operand that moves by exactly one when loop `d` does, when `d` moves no other axis."""
        moving = [(axis, _slope(e, d)) for axis, e in enumerate(self.maps[which].results) if d in _loops(e)]
        return moving[0][0] if len(moving) == 1 and moving[0][1] == 1 else None


def used_loops(m: ir.AffineMap) -> frozenset[int]:
    return frozenset(d for e in m.results for d in _loops(e))


def linear_terms(e: ir.AffineExpr) -> dict[int, int] | None:
    """The factor of each loop in a sum of loops times constants, with no constant of its own; None for anything else."""
    at = position(e)
    if at is not None:
        return {at: 1}
    if isinstance(e, ir.AffineAddExpr):
        sides = [linear_terms(x) for x in (ir.AffineAddExpr(e).lhs, ir.AffineAddExpr(e).rhs)]
        if sides[0] is None or sides[1] is None or sides[0].keys() & sides[1].keys():
            return None
        return sides[0] | sides[1]
    if isinstance(e, ir.AffineMulExpr):
        loop, factor = position(ir.AffineMulExpr(e).lhs), ir.AffineMulExpr(e).rhs
        if loop is not None and isinstance(factor, ir.AffineConstantExpr):
            return {loop: int(ir.AffineConstantExpr(factor).value)}
    return None


def _loops(e: ir.AffineExpr) -> frozenset[int]:
    at = position(e)
    if at is not None:
        return frozenset([at])
    if isinstance(e, ir.AffineConstantExpr | ir.AffineSymbolExpr):
        return frozenset()
    binary = ir.AffineBinaryExpr(e)
    return _loops(binary.lhs) | _loops(binary.rhs)


def _slope(e: ir.AffineExpr, d: int) -> int | None:
    """The constant that `e` grows by when loop `d` grows by one; None when there is no such constant."""
    if d not in _loops(e):
        return 0
    if position(e) is not None:
        return 1
    binary = ir.AffineBinaryExpr(e)
    a, b = _slope(binary.lhs, d), _slope(binary.rhs, d)
    if a is None or b is None:
        return None
    if isinstance(e, ir.AffineAddExpr):
        return a + b
    if isinstance(e, ir.AffineMulExpr):
        for side, other in ((a, binary.rhs), (b, binary.lhs)):
            if isinstance(other, ir.AffineConstantExpr):
                return side * int(ir.AffineConstantExpr(other).value)
    return None
