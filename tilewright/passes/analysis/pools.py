"""Pools: weights as indices of short vectors, which a contraction reads.

    w[n, ..., c] = sum over books b of pool_b[index_b[n, ..., c floordiv V], c mod V] * scale[n]

where the indices are bytes and each pool holds up to 256 vectors of V values. The operation is a linalg.generic over the axes of
the weight in any order; one pool may serve many weights. Laid out by the pass pack-constants, indices lie as
[n / tile][...][c / V][n mod tile]; the maps say so. Source: Bit-serial Weight Pools (MLSys 2022); with several books, AQLM.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.passes.analysis.codes import number_at
from tilewright.passes.analysis.contraction import Contraction
from tilewright.passes.linalg.structured import iterator_kinds
from tilewright.passes.linalg.symbolic import integer
from tilewright.passes.mlir import ir, maps_of, operations, owner, position

MOST_ENTRIES = 256  # that a byte tells apart
_CASTS = ("arith.extf", "arith.sitofp")
_NUMBERS = ("arith.index_castui", "arith.extui")


@dataclass(frozen=True)
class Book:
    """index: the operand of the decoding that holds the bytes. pool: [entries, vector], which the body reads."""

    index: int
    pool: ir.Value


@dataclass(frozen=True)
class Pools:
    """Of the decoding operation `op`. channel: the loop whose values a vector holds `vector` of; entries: of the largest pool.

    scale: the operand that all of an output is multiplied by, None where there is none; factor: a number that all of the weight
    is multiplied by. n: the loop of outputs, and tile: columns of a panel, where the indices are laid out; else None and 0. """

    op: ir.Operation
    channel: int
    vector: int
    entries: int
    books: tuple[Book, ...]
    scale: int | None
    factor: float = 1.0
    n: int | None = None
    tile: int = 0

    @property
    def element(self) -> str:
        """Type of the values of the first pool."""
        return str(ir.RankedTensorType(self.books[0].pool.type).element_type)

    @property
    def text(self) -> str:
        """What a workload's operand says of it: p64x8i8 for a pool of 64 vectors of 8 bytes, p256x8b2f32 for two books."""
        count = len(self.books)
        return f"p{self.entries}x{self.vector}{f'b{count}' if count > 1 else ''}{self.element}"

    @staticmethod
    def of(op: ir.Operation | None) -> Pools | None:
        """None for an operation that is no such decoding."""
        if op is None or op.name != "linalg.generic" or len(op.results) != 1 or set(iterator_kinds(op)) != {"parallel"}:
            return None
        if str(ir.RankedTensorType(op.results[0].type).element_type) != "f32" or not maps_of(op)[-1].is_permutation:
            return None
        found = _body(op)
        return None if found is None else _placed(found)


def pooled_columns(view: Contraction, which: int, pools: Pools) -> int | None:
    """The loop of the decoding along the outputs of a contraction, where operand `which` of that is the decoded weight and meets
    rows of f32 along all that it sums over; else None."""
    if view.batch or any(view.product.casts) or str(view.product.accumulator) != "f32":
        return None
    out = [position(e) for e in maps_of(pools.op)[-1].results]
    along = dict(zip(out, (position(e) for e in view.maps[which].results), strict=True))
    (columns,) = (view.m, view.n)[which] if len((view.m, view.n)[which]) == 1 else (None,)
    found = next((d for d, loop in along.items() if loop == columns and loop is not None), None)
    rest = sorted(loop for d, loop in along.items() if d != found and loop is not None)
    if found is None or found == pools.channel or rest != sorted(view.k) or len(along) != len(rest) + 1:
        return None
    scaled = None if pools.scale is None else _scale_loop(pools)
    return found if scaled in (None, found) else None


def loop_of(view: Contraction, which: int, pools: Pools, d: int) -> int:
    """The loop of the contraction that loop `d` of the decoding of its operand runs along."""
    out = [position(e) for e in maps_of(pools.op)[-1].results]
    found = position(view.maps[which].results[out.index(d)])
    assert found is not None
    return found


def _scale_loop(pools: Pools) -> int | None:
    """The loop that the scale varies with; None where one number is for all."""
    assert pools.scale is not None
    loops = [position(e) for e in maps_of(pools.op)[pools.scale].results]
    return next((d for d in loops if d is not None), None)


def _body(op: ir.Operation) -> Pools | None:
    block = op.regions[0].blocks[0]
    arguments = list(block.arguments)
    value = operations(block)[-1].operands[0]
    scale, whole = None, 1.0
    made = owner(value)
    if made is not None and made.name == "arith.mulf" and (constant := owner(made.operands[1])) is not None and \
            constant.name == "arith.constant":
        whole, value = float(ir.FloatAttr(constant.attributes["value"]).value), made.operands[0]
    elif made is not None and made.name == "arith.mulf":
        factors = [_argument(v, arguments) for v in made.operands]
        number = next((i for i, f in enumerate(factors) if f is not None), None)
        if number is None:
            return None
        scale, value = factors[number], made.operands[1 - number]
    terms = _terms(value)
    found = [_term(v, arguments) for v in terms]
    known = [f for f in found if f is not None]
    if not known or len(known) < len(found):
        return None
    channels, sizes = {channel for _, channel in known}, {tuple(ir.RankedTensorType(b.pool.type).shape) for b, _ in known}
    if len(channels) != 1 or len(sizes) != 1 or len({b.index for b, _ in known}) != len(known) or \
            len({str(b.pool.type) for b, _ in known}) != 1:
        return None
    entries, vector = sizes.pop()
    if not 0 < entries <= MOST_ENTRIES or vector < 1:
        return None
    return Pools(op, channels.pop(), vector, entries, tuple(b for b, _ in known), scale, whole)


def _terms(value: ir.Value) -> list[ir.Value]:
    """What is added."""
    made = owner(value)
    if made is None or made.name != "arith.addf":
        return [value]
    return [*_terms(made.operands[0]), *_terms(made.operands[1])]


def _term(value: ir.Value, arguments: Sequence[ir.Value]) -> tuple[Book, int] | None:
    """A value of a pool that the bytes of an operand name, and the loop whose place in a vector it is at."""
    while (made := owner(value)) is not None and made.name in _CASTS:
        value = made.operands[0]
    if made is None or made.name != "tensor.extract" or len(made.operands) != 3:
        return None
    pool, entry, place = made.operands
    t = ir.RankedTensorType(pool.type)
    if not t.has_static_shape or str(t.element_type) not in ("f32", "f16", "bf16", "i8"):
        return None
    inside = owner(pool)
    if inside is not None and inside.block == made.block:
        return None
    number = _index(entry, arguments, t.shape[0])
    loops = set[int]()
    if number is None or any(number_at(place, k, loops) != k % t.shape[1] for k in range(2 * t.shape[1])) or len(loops) != 1:
        return None
    return Book(number, pool), loops.pop()


def _index(value: ir.Value, arguments: Sequence[ir.Value], entries: int) -> int | None:
    """The operand whose bytes, read without a sign and kept below the number of entries, are the index."""
    widened = False
    while (made := owner(value)) is not None:
        if made.name == "arith.minui":
            last = owner(made.operands[1])
            if last is None or last.name != "arith.constant" or integer(last.attributes["value"]) != entries - 1:
                return None
        elif made.name in _NUMBERS:
            widened = True
        elif made.name != "arith.index_cast" or str(made.operands[0].type) == "i8":
            return None
        value = made.operands[0]
    return arguments.index(value) if widened and value in arguments and str(value.type) == "i8" else None


def _argument(value: ir.Value, arguments: Sequence[ir.Value]) -> int | None:
    """The number of the operand that a float of the body is, up to widening."""
    while (made := owner(value)) is not None and made.name == "arith.extf":
        value = made.operands[0]
    return arguments.index(value) if made is None and value in arguments else None


def _placed(found: Pools) -> Pools | None:
    """With where the operands lie; None where a map is no such layout."""
    maps, loops = maps_of(found.op), range(maps_of(found.op)[-1].n_dims)
    if found.scale is not None and not _per_output(maps[found.scale], found.channel):
        return None
    layout = _layout(maps[found.books[0].index], found, list(loops))
    if layout is None or any(maps[b.index] != maps[found.books[0].index] for b in found.books):
        return None
    n, tile = layout
    return replace(found, n=n, tile=tile)


def _per_output(m: ir.AffineMap, channel: int) -> bool:
    """One axis, of a loop or of one element, and no other that moves."""
    moving = [e for e in m.results if not isinstance(e, ir.AffineConstantExpr)]
    return len(moving) <= 1 and all(position(e) not in (None, channel) for e in moving)


def _layout(m: ir.AffineMap, found: Pools, loops: list[int]) -> tuple[int | None, int] | None:
    """The loop of outputs and the columns of a panel; None and 0 of indices that are not laid out; None of any other map."""
    results = list(m.results)
    n, tile = None, 0
    if isinstance(results[-1], ir.AffineModExpr):
        last, first = ir.AffineModExpr(results[-1]), results[0]
        if not isinstance(last.rhs, ir.AffineConstantExpr) or not isinstance(first, ir.AffineFloorDivExpr):
            return None
        n, tile = position(last.lhs), int(ir.AffineConstantExpr(last.rhs).value)
        if n is None or not _divides(first, n, tile):
            return None
        results = results[1:-1]
    shape, written = ir.RankedTensorType(found.op.results[0].type).shape, [position(e) for e in maps_of(found.op)[-1].results]
    single = [d for d in loops if shape[written.index(d)] == 1 and not any(position(e) == d for e in results)]
    wanted = [d for d in loops if d not in (found.channel, n, *single)]
    results = [e for e in results if not isinstance(e, ir.AffineConstantExpr)]
    others = [position(e) for e in results if not _divides(e, found.channel, found.vector)]
    if len(others) != len(results) - 1 or sorted(d for d in others if d is not None) != wanted:
        return None
    return n, tile


def _divides(e: ir.AffineExpr, d: int, by: int) -> bool:
    """Is it loop d floordiv `by`?"""
    if by == 1 and position(e) == d:
        return True
    if not isinstance(e, ir.AffineFloorDivExpr):
        return False
    divided = ir.AffineFloorDivExpr(e)
    return position(divided.lhs) == d and isinstance(divided.rhs, ir.AffineConstantExpr) and \
        int(ir.AffineConstantExpr(divided.rhs).value) == by
