"""Codes: weights in few bits as a contraction reads them, decoded by an elementwise operation.

    w[n, k] = (code[n, k] - zero[n, k floordiv group]) * scale[n, k floordiv group]

where the codes are bytes, or 1, 2 or 4 bits of one, or their bits lie in several such tensors, the low ones first; perhaps
rounded to f16 or bf16. The operation is a linalg.generic over (n, k)
in any order. Laid out by the
pass pack-constants, the bytes lie as [n / tile][k / values of a word][n mod tile][byte of the word], scales and zero points as
[n / tile][group][n mod tile]; the maps say so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.passes.analysis.contraction import Contraction
from tilewright.passes.linalg.structured import body, iterator_kinds
from tilewright.passes.linalg.symbolic import integer
from tilewright.passes.mlir import ir, maps_of, operations, owner, position

WORD = 4  # bytes of codes that lie side by side
BYTE_BITS = 8
NARROW = ("f16", "bf16")  # types that values are rounded to
_CASTS = ("arith.extui", "arith.extf", "arith.uitofp")
_SHIFTED = {"arith.muli": lambda a, b: a * b, "arith.shli": lambda a, b: a << b, "arith.remui": lambda a, b: a % b,
            "arith.remsi": lambda a, b: a % b, "arith.andi": lambda a, b: a & b}  # fmt: skip
_REMAINDERS = ("arith.remui", "arith.remsi")
_SAME = ("arith.index_cast", "arith.index_castui", "arith.trunci", "arith.extui", "arith.extsi")


@dataclass(frozen=True)
class Plane:
    """codes: number of the operand that holds some bits of every code. bits: how many."""

    codes: int
    bits: int

    @property
    def word(self) -> int:
        """Values of k in a word of bytes that lie side by side."""
        return WORD * (8 // self.bits)


@dataclass(frozen=True)
class Codes:
    """Of the decoding operation `op`, whose loops are n and k. planes: where the bits of a code lie, the low ones first; signed:
    of bytes, whether they have a sign.

    scale, zero: numbers of operands, None where there is none. point: the zero point where it is one number for all.
    group: values of k of a scale, 0 where it does not vary along k. tile: columns of a panel, 0 where nothing is laid out.
    rounded: the narrow type of the result, empty where it is f32.
    """

    op: ir.Operation
    n: int
    k: int
    planes: tuple[Plane, ...]
    signed: bool
    scale: int | None
    zero: int | None
    point: float
    group: int
    tile: int
    rounded: str = ""

    @property
    def bits(self) -> int:
        """Of a code."""
        return sum(p.bits for p in self.planes)

    @property
    def codes(self) -> int:
        """The number of the operand that holds the codes, or their low bits."""
        return self.planes[0].codes

    @property
    def each(self) -> int:
        """Values of k in a byte, of the plane that has most."""
        return self.word // WORD

    @property
    def word(self) -> int:
        """Values of k in a word of bytes that lie side by side, of the plane that has most."""
        return max(p.word for p in self.planes)

    @property
    def text(self) -> str:
        """What a workload's operand says of it: u4g32 for codes of 4 bits, groups of 32; z for zero points of groups, p for one
        of all codes that have a sign; rf16 where values are rounded to f16."""
        zero = "z" if self.zero is not None else "p" if self.signed and self.point else ""
        rounded = f"r{self.rounded}" if self.rounded else ""
        return f"{'s' if self.signed else 'u'}{self.bits}{f'g{self.group}' if self.group else ''}{zero}{rounded}"

    @staticmethod
    def of(op: ir.Operation | None) -> Codes | None:
        """None for an operation that is no such decoding."""
        if op is None or op.name != "linalg.generic" or len(op.results) != 1 or iterator_kinds(op) != ["parallel"] * 2:
            return None
        element = str(ir.RankedTensorType(op.results[0].type).element_type)
        if element not in ("f32", *NARROW):
            return None
        maps = maps_of(op)
        out = [position(e) for e in maps[-1].results]
        if sorted(d for d in out if d is not None) != [0, 1]:
            return None
        found = _body(op, "" if element == "f32" else element)
        return None if found is None else _placed(op, maps, found)


def multiplies(view: Contraction, which: int, codes: Codes) -> bool:
    """Is operand `which` of a product the decoded weight, with rows of the other one that it meets along its own k?"""
    if view.batch or len(view.k) != 1 or any(view.product.casts) or not isinstance(view.product.accumulator, ir.F32Type):
        return False
    out = [position(e) for e in maps_of(codes.op)[-1].results]
    along = [position(e) for e in view.maps[which].results]
    columns = (view.m, view.n)[which]
    return along[out.index(codes.k)] == view.k[0] and (along[out.index(codes.n)],) == columns


@dataclass(frozen=True)
class _Body:
    """Numbers of operands, and what the body does with them. phase: the loop whose number says which bits of a byte are read."""

    planes: tuple[Plane, ...]
    phase: int | None
    signed: bool
    scale: int | None = None
    zero: int | None = None
    point: float = 0.0
    rounded: str = ""


def _body(op: ir.Operation, rounded: str) -> _Body | None:
    block = op.regions[0].blocks[0]
    arguments = list(block.arguments)
    value = operations(block)[-1].operands[0]
    if rounded:
        last = owner(value)
        if last is None or last.name != "arith.truncf" or str(last.operands[0].type) != "f32":
            return None
        value = last.operands[0]
    scale = zero = None
    point = 0.0
    made = owner(value)
    if made is not None and made.name == "arith.mulf":
        scales = [(i, _argument(v, arguments, False)) for i, v in enumerate(made.operands)]
        number = next(((i, n) for i, n in scales if n is not None), None)
        if number is None:
            return None
        scale, value = number[1], made.operands[1 - number[0]]
        made = owner(value)
    if made is not None and made.name == "arith.subf":
        constant = owner(made.operands[1])
        if constant is not None and constant.name == "arith.constant":
            point = float(ir.FloatAttr(constant.attributes["value"]).value)
        else:
            zero = _argument(made.operands[1], arguments, None)
            if zero is None:
                return None
        value = made.operands[0]
        made = owner(value)
    if made is None or made.name not in ("arith.uitofp", "arith.sitofp"):
        return None
    parts = _joined(made.operands[0])
    codes = [_code(v, made.name == "arith.sitofp" and len(parts) == 1, arguments) for v, _ in parts]
    known = [c for c in codes if c is not None]
    if len(known) < len(parts):
        return None
    planes, (_, phase, signed) = tuple(c[0] for c in known), known[0]
    places = [sum(p.bits for p in planes[:i]) for i in range(len(planes))]
    if [place for _, place in parts] != places or any(c[1] != phase for c in known):
        return None
    if len(planes) > 1 and sum(p.bits for p in planes) >= BYTE_BITS:
        return None
    return _Body(planes, phase, signed, scale, zero, point, rounded)


def code_of(codes: Codes) -> tuple[ir.Value, ir.Value | None, ir.Value | None]:
    """In the body of a decoding: the code that becomes a float, the factor, and the float that is subtracted from the code."""
    arguments = list(body(codes.op).arguments)
    value = operations(body(codes.op))[-1].operands[0]
    scale = zero = None
    if codes.rounded:
        value = _owned(value).operands[0]
    if codes.scale is not None:
        factors = list(_owned(value).operands)
        number = next(i for i, v in enumerate(factors) if _argument(v, arguments, False) == codes.scale)
        scale, value = factors[number], factors[1 - number]
    if _owned(value).name == "arith.subf":
        value, zero = _owned(value).operands
    return _owned(value).operands[0], scale, None if codes.zero is None else zero


def _owned(value: ir.Value) -> ir.Operation:
    made = owner(value)
    assert made is not None
    return made


def _joined(value: ir.Value) -> list[tuple[ir.Value, int]]:
    """What an or puts into one code, each with the place of its lowest bit."""
    made = owner(value)
    if made is not None and made.name == "arith.ori":
        return [*_joined(made.operands[0]), *_joined(made.operands[1])]
    place = _number(made.operands[1]) if made is not None and made.name == "arith.shli" else None
    return [(value, 0)] if made is None or place is None else [(made.operands[0], place)]


def _code(value: ir.Value, signed: bool, arguments: Sequence[ir.Value]) -> tuple[Plane, int | None, bool] | None:
    """Where the bits of a code lie, the loop that says where in a byte, and whether they have a sign."""
    mask = None
    while (made := owner(value)) is not None:
        if made.name == "arith.extsi" and not signed and mask is None:
            return None  # the sign goes into bits that are then read as a number
        if made.name in ("arith.extui", "arith.extsi"):
            signed = signed and made.name == "arith.extsi"
            value = made.operands[0]
        elif made.name == "arith.andi" and mask is None and (mask := _number(made.operands[1])) is not None:
            value = made.operands[0]
        else:
            break
    made, shift = _defined(made), None
    if made is not None and made.name in ("arith.shrui", "arith.shrsi") and mask is not None:
        shift, value = made.operands[1], made.operands[0]
        while (made := owner(value)) is not None and made.name == "arith.extui":
            value = made.operands[0]
    if value not in arguments or str(value.type) != "i8":
        return None
    number = arguments.index(value)
    if mask is None:
        return Plane(number, BYTE_BITS), None, signed
    bits = int(mask).bit_length()
    if shift is None or bits not in (1, 2, 4) or mask != (1 << bits) - 1:
        return None
    phase = _phase(shift, bits)
    return None if phase is None else (Plane(number, bits), phase, False)


def _defined(made: ir.Operation | None) -> ir.Operation | None:
    """A shift behind a choice of it where it is within the type, else of zero, as define-arithmetic writes it."""
    if made is None or made.name != "arith.select" or _number(made.operands[2]) != 0:
        return made
    within, shifted = owner(made.operands[0]), owner(made.operands[1])
    if within is None or shifted is None or within.name != "arith.cmpi" or _number(within.operands[1]) != BYTE_BITS:
        return made
    return shifted if shifted.name == "arith.shrui" and shifted.operands[1] == within.operands[0] else made


def _phase(shift: ir.Value, bits: int) -> int | None:
    """The loop k where the shift is `bits` times the place of k in its byte; None for any other shift."""
    each = 8 // bits
    loops = set[int]()
    for k in range(2 * each):
        if number_at(shift, k, loops) != k % each * bits:
            return None
    return loops.pop() if len(loops) == 1 else None


def number_at(value: ir.Value, k: int, loops: set[int]) -> int | None:
    """An integer of the body where the loop that it reads the number of is at k; the loops are noted."""
    made = owner(value)
    if made is None:
        return None
    if made.name == "arith.constant":
        return integer(made.attributes["value"])
    if made.name == "linalg.index":
        loops.add(integer(made.attributes["dim"]))
        return k
    given = [number_at(v, k, loops) for v in made.operands]
    known = [g for g in given if g is not None]
    if len(known) < len(given) or made.name not in (*_SHIFTED, *_SAME) or (made.name in _REMAINDERS and known[1] <= 0):
        return None
    return known[0] if made.name in _SAME else _SHIFTED[made.name](*known)


def _argument(value: ir.Value, arguments: Sequence[ir.Value], integers: bool | None) -> int | None:
    """The number of the operand that a float of the body is, up to widening. integers: None where it may be one of them."""
    while (made := owner(value)) is not None and made.name in _CASTS and len(made.operands) == 1:
        if integers is False and made.name != "arith.extf":
            return None
        value = made.operands[0]
    return arguments.index(value) if made is None and value in arguments else None


def _number(value: ir.Value) -> int | None:
    made = owner(value)
    if made is None or made.name != "arith.constant":
        return None
    mask = integer(made.attributes["value"])
    return mask & 0xFF if mask < 0 else mask


def _placed(op: ir.Operation, maps: Sequence[ir.AffineMap], found: _Body) -> Codes | None:
    """Where the operands lie; None where a map is no such layout."""
    for k in (0, 1) if found.phase is None else (found.phase,):
        tiles = {_laid_out(maps[p.codes], p, 1 - k, k) for p in found.planes}
        tile = tiles.pop()
        if tile is None or tiles:
            continue
        groups = {g for o in (found.scale, found.zero) if o is not None and (g := _group(maps[o], 1 - k, k, tile)) is not None}
        wanted = sum(o is not None for o in (found.scale, found.zero))
        if any(_group(maps[o], 1 - k, k, tile) is None for o in (found.scale, found.zero) if o is not None) or len(groups) > 1 \
                or (wanted and not groups):
            continue
        return Codes(op, 1 - k, k, found.planes, found.signed, found.scale, found.zero, found.point,
                     groups.pop() if groups else 0, tile, found.rounded)
    return None


def _laid_out(m: ir.AffineMap, plane: Plane, n: int, k: int) -> int | None:
    """Columns of a panel of codes, 0 where they are plain; None where the map is no such layout."""
    each, tile = plane.word // WORD, _panel(m, n, 4)
    if tile:
        return tile if _divided(m.results[1], k) == plane.word and _within_word(m.results[3], k, each) else None
    return 0 if _plain(m, n, k, each) else None


def _panel(m: ir.AffineMap, n: int, rank: int) -> int:
    """Columns of a panel of a map (n floordiv tile, ..., n mod tile, ...); 0 where it is none."""
    results = list(m.results)
    if len(results) != rank or not isinstance(results[2], ir.AffineModExpr):
        return 0
    mod = ir.AffineModExpr(results[2])
    tile = _constant(mod.rhs)
    return tile if tile and position(mod.lhs) == n and _divided(results[0], n) == tile else 0


def _within_word(e: ir.AffineExpr, k: int, each: int) -> bool:
    """Is it the byte of k within its word?"""
    if not isinstance(e, ir.AffineModExpr) or _constant(ir.AffineModExpr(e).rhs) != WORD:
        return False
    return _divided(ir.AffineModExpr(e).lhs, k) == each


def _plain(m: ir.AffineMap, n: int, k: int, each: int) -> bool:
    """Two axes, one of n and one of k in bytes?"""
    results = list(m.results)
    return len(results) == 2 and any(position(results[a]) == n and _divided(results[1 - a], k) == each for a in (0, 1))


def _group(m: ir.AffineMap, n: int, k: int, tile: int) -> int | None:
    """Values of k that share an element; 0 for all; None where the map is no such layout."""
    results = list(m.results)
    if tile:
        rank = len(results)
        if rank not in (2, 3) or _divided(results[0], n) != tile:
            return None
        last = results[-1]
        if not isinstance(last, ir.AffineModExpr) or position(ir.AffineModExpr(last).lhs) != n:
            return None
        return 0 if rank == 2 or isinstance(results[1], ir.AffineConstantExpr) else _divided(results[1], k)
    along = [e for e in results if position(e) == n]
    others = [e for e in results if position(e) != n and not isinstance(e, ir.AffineConstantExpr)]
    if len(along) != 1 or len(others) > 1:
        return None
    return _divided(others[0], k) if others else 0


def _divided(e: ir.AffineExpr, d: int) -> int | None:
    """c where the expression is loop d floordiv c, in one step or several; 1 where it is the loop itself."""
    if position(e) == d:
        return 1
    if not isinstance(e, ir.AffineFloorDivExpr):
        return None
    inner, by = _divided(ir.AffineFloorDivExpr(e).lhs, d), _constant(ir.AffineFloorDivExpr(e).rhs)
    return None if inner is None or by is None else inner * by


def _constant(e: ir.AffineExpr) -> int | None:
    return int(ir.AffineConstantExpr(e).value) if isinstance(e, ir.AffineConstantExpr) else None
