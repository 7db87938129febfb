"""Signs of numbers, as far as the operations say that made them: an exponential is never below 0, its negative never above.

NaN has no sign: what is said holds for all else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tilewright.passes.linalg.structured import body, inputs, iterator_kinds
from tilewright.passes.linalg.symbolic import integer
from tilewright.passes.mlir import ir, maps_of, operations, owner

NONPOSITIVE = "tw.nonpositive"  # unit attribute of a math.exp or math.exp2 whose argument is never above 0
# unit attribute of a math.exp that is used in a sum of at least 1 alone, where what is far too small to count need not be 0
SUMMED = "tw.summed"
# unit attribute of a math.exp2 of f32: the number is 2^(2x) for a product x, which is not rounded and never above 0
HALF_PRODUCT = "tw.half_product"
_DEEPEST = 48  # operations between a number and what says its sign
_POSITIVE = frozenset(("math.exp", "math.exp2", "math.absf", "math.sqrt", "math.cosh", "arith.uitofp"))
_LIKE_OPERAND = frozenset((
    "arith.extf", "arith.truncf", "math.tanh", "math.erf", "math.log1p", "math.expm1", "math.atan", "math.sinh", "math.asinh",
    "math.cbrt", "linalg.fill", "tensor.cast", "tensor.collapse_shape", "tensor.expand_shape", "tensor.extract_slice",
    "tensor.extract"))
_ABOVE, _BELOW = (2, 3, 9, 10), (4, 5, 11, 12)  # arith.cmpf's predicates ogt, oge, ugt, uge and olt, ole, ult, ule


@dataclass(frozen=True)
class Sign:
    """above, below: may the number be above 0, below 0?"""

    above: bool = True
    below: bool = True

    def __or__(self, other: Sign) -> Sign:
        return Sign(self.above or other.above, self.below or other.below)

    def __neg__(self) -> Sign:
        return Sign(self.below, self.above)

    def __mul__(self, other: Sign) -> Sign:
        return Sign((self.above and other.above) or (self.below and other.below),
                    (self.above and other.below) or (self.below and other.above))


@dataclass(frozen=True)
class Signs:
    """Signs of scalars in the bodies of linalg operations, and of the elements of tensors."""

    known: dict[ir.Value, Sign] = field(default_factory=dict)

    def of(self, value: ir.Value, depth: int = 0) -> Sign:
        """The sign of a number, or of all elements of a tensor."""
        if value not in self.known and depth < _DEEPEST:
            self.known[value] = self._argument(value, depth + 1) if owner(value) is None else self._result(value, depth + 1)
        return self.known.get(value, Sign())

    def _argument(self, value: ir.Value, depth: int) -> Sign:
        """Of an input of a body: the sign of its tensor."""
        block = value.owner
        if not isinstance(block, ir.Block) or block.owner.name != "linalg.generic":
            return Sign()
        op, number = block.owner.operation, list(block.arguments).index(value)
        return self.of(op.operands[number], depth) if number < len(inputs(op)) else Sign()

    def _result(self, value: ir.Value, depth: int) -> Sign:
        op = owner(value)
        assert op is not None
        if op.name == "linalg.generic":
            return self.of(operations(body(op))[-1].operands[list(op.results).index(value)], depth)
        if op.name == "arith.constant":
            number = number_of(value)
            return Sign() if number is None else Sign(number > 0, number < 0)
        if op.name in _POSITIVE:
            return Sign(below=False)
        if op.name in _LIKE_OPERAND:
            return self.of(op.operands[0], depth)
        if op.name == "arith.select":
            return self._select(op, depth)
        rule = _RULES.get(op.name)
        return Sign() if rule is None else rule(self, op, depth)

    def _select(self, op: ir.Operation, depth: int) -> Sign:
        """What was compared with a number from 0 on is above it where the comparison says so."""
        condition, first, second = op.operands
        a, b, test = self.of(first, depth), self.of(second, depth), owner(condition)
        if test is not None and test.name == "arith.cmpf":
            bound, predicate = number_of(test.operands[1]), integer(test.attributes["predicate"])
            if bound is not None and bound >= 0:
                if predicate in _ABOVE and _grows_with(test.operands[0], first):
                    a = Sign(a.above, False)
                if predicate in _BELOW and _grows_with(test.operands[0], second):
                    b = Sign(b.above, False)
        return a | b


def number_of(value: ir.Value) -> float | None:
    """The number of a scalar constant, or of one that all elements have."""
    op = owner(value)
    if op is None or op.name != "arith.constant":
        return None
    attribute = op.attributes["value"]
    if isinstance(attribute, ir.DenseElementsAttr):
        if not attribute.is_splat:
            return None
        attribute = attribute.get_splat_value()
    return float(attribute.value) if isinstance(attribute, (ir.FloatAttr, ir.IntegerAttr)) else None


def _grows_with(compared: ir.Value, value: ir.Value) -> bool:
    """Is one number the other, or a product of it with a number above 0?"""
    made = owner(compared)
    if compared == value:
        return True
    if made is None or made.name != "arith.mulf":
        return False
    first, second = made.operands
    return any(a == value and (number_of(b) or 0) > 0 for a, b in ((first, second), (second, first)))


def _negated(signs: Signs, op: ir.Operation, depth: int) -> Sign:
    return -signs.of(op.operands[0], depth)


def _added(signs: Signs, op: ir.Operation, depth: int) -> Sign:
    return signs.of(op.operands[0], depth) | signs.of(op.operands[1], depth)


def _subtracted(signs: Signs, op: ir.Operation, depth: int) -> Sign:
    return signs.of(op.operands[0], depth) | -signs.of(op.operands[1], depth)


def _multiplied(signs: Signs, op: ir.Operation, depth: int) -> Sign:
    """Of what is left of the factors where two that are the same number are taken out, as in (-0.5 x) x."""
    sign, left = Sign(below=False), list[_Factor]()
    for factor in _factors(op.results[0], depth):
        if factor in left:
            left.remove(factor)
        else:
            left.append(factor)
    for value, _ in left:
        sign *= signs.of(value, depth)
    return sign


_Factor = tuple[ir.Value, str]  # a scalar, or a tensor and the map of its element


def _factors(value: ir.Value, depth: int) -> list[_Factor]:
    """The factors of a number, through products that other operations make of elements at the same place."""
    op = owner(value)
    if op is None:
        return _factors_of_element(value, depth)
    if op.name != "arith.mulf" or depth >= _DEEPEST:
        return [(value, "")]
    return [f for operand in op.operands for f in _factors(operand, depth + 1)]


def _factors_of_element(value: ir.Value, depth: int) -> list[_Factor]:
    block = value.owner
    if not isinstance(block, ir.Block) or block.owner.name != "linalg.generic":
        return [(value, "")]
    reader, number = block.owner.operation, list(block.arguments).index(value)
    if number >= len(inputs(reader)):
        return [(value, "")]
    tensor, place = reader.operands[number], str(maps_of(reader)[number])
    made = owner(tensor)
    if made is None or made.name != "linalg.generic" or set(iterator_kinds(made)) - {"parallel"}:
        return [(tensor, place)]
    result = list(made.results).index(tensor)
    own = str(maps_of(made)[len(inputs(made)) + result])
    inner = _factors(operations(body(made))[-1].operands[result], depth + 1)
    constants = [number_of(v) is not None for v, _ in inner]
    if all(m == own or constant for (_, m), constant in zip(inner, constants, strict=True)):
        return [(v, "" if constant else place) for (v, _), constant in zip(inner, constants, strict=True)]
    return [(tensor, place)]


def _divided(signs: Signs, op: ir.Operation, depth: int) -> Sign:
    """By a number that is no 0, whose own sign would decide."""
    first, second = op.operands
    number = number_of(second)
    if not number and not _from_one(signs, second, depth):
        return Sign()
    return signs.of(first, depth) * (Sign(number > 0, number < 0) if number else Sign(below=False))


def _larger(signs: Signs, op: ir.Operation, depth: int) -> Sign:
    a, b = (signs.of(v, depth) for v in op.operands)
    return Sign(a.above or b.above, a.below and b.below)


def _smaller(signs: Signs, op: ir.Operation, depth: int) -> Sign:
    a, b = (signs.of(v, depth) for v in op.operands)
    return Sign(a.above and b.above, a.below or b.below)


def _logarithm(signs: Signs, op: ir.Operation, depth: int) -> Sign:
    return Sign(below=not _from_one(signs, op.operands[0], depth))


def _from_one(signs: Signs, value: ir.Value, depth: int) -> bool:
    """Is a number never below 1: a sum of one that is, and another that is not below 0?"""
    made = owner(value)
    if made is None or made.name != "arith.addf":
        return (number_of(value) or 0) >= 1
    first, second = made.operands
    return any((number_of(a) or 0) >= 1 and not signs.of(b, depth).below for a, b in ((first, second), (second, first)))


_RULES: Mapping[str, Callable[[Signs, ir.Operation, int], Sign]] = {
    "arith.negf": _negated, "arith.addf": _added, "arith.subf": _subtracted, "arith.mulf": _multiplied, "arith.divf": _divided,
    "arith.maximumf": _larger, "arith.minimumf": _smaller, "math.log": _logarithm, "math.log2": _logarithm,
    "math.log10": _logarithm,
}
