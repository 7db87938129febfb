"""Index: an integer coordinate with operators that folds constants, for emitting addresses and loops.

An Index is a constant, a scalar SSA value, a ramp `base + lane * step` over the lanes of a vector, or a vector of unrelated
values. Sums and products keep ramps, so that a load can tell a contiguous run from a gather.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import gcd
from typing import Any

from tilewright.passes.mlir import arith, ir, vector
from tilewright.runtime.shape import Expr


class Index:
    """Immutable. `type` is the integer type of coordinates (i64 on the host, i32 on a GPU), known once a value is.

    `multiple`: a number that divides the value (of lane 0, for a ramp) for certain; 0 when the value is 0. `displaced`: a value
    and a number whose sum is the value of lane 0, where addresses are to tell which are a number of bytes from one another.
    """

    __slots__ = ("_value", "const", "displaced", "lanes", "multiple", "step", "type")

    def __init__(self, value: Index | int | ir.Value, step: Index | None = None, lanes: int = 1) -> None:
        self.const: int | None = None
        self._value: ir.Value | None = None
        self.type: ir.Type | None = None
        self.step = step
        self.lanes = lanes
        self.multiple = 1
        self.displaced: tuple[Index, int] | None = None
        if isinstance(value, Index):
            self.const, self._value, self.type, self.multiple = value.const, value._value, value.type, value.multiple
            self.displaced = value.displaced
            if step is None:
                self.step, self.lanes = value.step, value.lanes
        elif isinstance(value, int):
            self.const = value
            self.multiple = abs(value)
        else:
            self._value = value
            t = value.type
            self.type = ir.VectorType(t).element_type if isinstance(t, ir.VectorType) else t
            if isinstance(t, ir.VectorType):
                self.lanes = ir.VectorType(t).shape[0]

    @staticmethod
    def ramp(base: Index | int, lanes: int, step: Index | int = 1) -> Index:
        """base, base + step, ...: one value per lane."""
        return Index(Index(base), Index(step), lanes) if lanes > 1 else Index(base)

    def known_multiple(self, n: int) -> Index:
        """The same value, known to be a multiple of n (besides what is known already)."""
        found = Index(self)
        found.multiple = n * self.multiple // gcd(n, self.multiple) if self.multiple else 0
        return found

    @property
    def is_vector(self) -> bool:
        return self.lanes > 1

    @property
    def base(self) -> Index:
        """The value of lane 0 of a ramp; a scalar itself."""
        if self.step is None:
            return self
        scalar = Index(0)
        scalar.const, scalar._value, scalar.type, scalar.multiple = self.const, self._value, self.type, self.multiple
        scalar.displaced = self.displaced
        return scalar

    def displace(self, n: int) -> Index:
        """The value and n; addresses made with it are those of the value and a constant."""
        found = Index(self + n)
        found.displaced = (self, n) if n and self.const is None else None
        return found

    def lane(self, number: int) -> Index:
        """One lane of a ramp; a scalar itself."""
        return self if self.step is None else self.base + self.step * number

    def value(self, type_: ir.Type) -> ir.Value:
        """The scalar SSA value, or the vector of all lanes."""
        if self.step is not None:
            vector_type = ir.VectorType.get([self.lanes], type_)
            first = vector.broadcast(vector_type, self.base.value(type_))
            numbers = [ir.IntegerAttr.get(type_, i) for i in range(self.lanes)]
            lane = arith.constant(vector_type, ir.DenseElementsAttr.get(numbers, vector_type))
            if self.step.const != 1:
                lane = arith.muli(lane, vector.broadcast(vector_type, self.step.value(type_)))
            return arith.addi(first, lane)
        if self._value is None:
            return arith.constant(type_, ir.IntegerAttr.get(type_, self.const))
        return self._value

    def _pair(self, other: Index, build: Callable[[Any, Any], ir.Value]) -> Index:
        type_ = self.type or other.type or ir.IntegerType.get_signless(64)
        a, b = self.value(type_), other.value(type_)
        lanes = max(self.lanes, other.lanes)
        return Index(build(*_alike(splat_to(a, lanes), splat_to(b, lanes))))

    def _fold(self, other: Index | int, fold: Callable[[int, int], int], build: Callable[[Any, Any], ir.Value]) -> Index:
        o = Index(other)
        if self.step is None and o.step is None and self.const is not None and o.const is not None:
            return Index(fold(self.const, o.const))
        return self._pair(o, build)

    def _divided_by(self, n: int) -> Index:
        """Itself, freshly made, now known to be a multiple of n."""
        if self.const is None:
            self.multiple = n
        return self

    def __add__(self, other: Index | int) -> Index:
        o = Index(other)
        if o.const == 0 and o.step is None:
            return self
        if self.const == 0 and self.step is None:
            return o
        if self.step is not None and (o.step is not None or not o.is_vector):
            step = self.step + o.step if o.step is not None else self.step
            return Index.ramp(self.base + o.base, self.lanes, step)
        if o.step is not None and not self.is_vector:
            return o + self
        total = self._fold(o, lambda a, b: a + b, arith.addi)._divided_by(gcd(self.multiple, o.multiple))
        for a, b in ((self, o), (o, self)):
            if a.displaced is not None and not b.is_vector:
                total.displaced = (a.displaced[0] + b, a.displaced[1])
        return total

    __radd__ = __add__

    def __sub__(self, other: Index | int) -> Index:
        o = Index(other)
        if o.const == 0 and o.step is None:
            return self
        if self.step is not None and not o.is_vector:
            return Index.ramp(self.base - o, self.lanes, self.step)
        if o.step is not None or self.step is not None:
            return self + o * -1
        return self._fold(o, lambda a, b: a - b, arith.subi)._divided_by(gcd(self.multiple, o.multiple))

    def __rsub__(self, other: int) -> Index:
        return Index(other) - self

    def __mul__(self, other: Index | int) -> Index:
        o = Index(other)
        for a, b in ((self, o), (o, self)):
            if b.step is None and b.const == 1:
                return a
            if b.step is None and b.const == 0:
                return Index(0)
            if a.step is not None and not b.is_vector:
                return Index.ramp(a.base * b, a.lanes, a.step * b)
        return self._fold(o, lambda a, b: a * b, arith.muli)._divided_by(self.multiple * o.multiple)

    __rmul__ = __mul__

    def __floordiv__(self, other: Index | int) -> Index:
        """Both sides must be non-negative."""
        return self if Index(other).const == 1 else self._fold(other, lambda a, b: a // b, arith.divui)

    def __mod__(self, other: Index | int) -> Index:
        """Both sides must be non-negative."""
        o = Index(other)
        if o.const == 1:
            return Index(0)
        return self._fold(o, lambda a, b: a % b, arith.remui)._divided_by(gcd(self.multiple, o.multiple))

    def floordiv(self, other: Index) -> Index:
        """Rounds towards minus infinity; the divisor must be positive."""
        if other.const == 1:
            return self
        if self.const is not None and self.step is None and other.const is not None:
            return Index(self.const // other.const)
        adjusted = self - select(self.lt(0), other - 1, Index(0), self.lanes, self.type or other.type)
        return adjusted._pair(other, arith.divsi)

    def ceildiv(self, n: Index | int) -> Index:
        return (self + (Index(n) - 1)) // n

    def min(self, other: Index | int) -> Index:
        return self._fold(other, min, arith.minsi)._divided_by(gcd(self.multiple, Index(other).multiple))

    def max(self, other: Index | int) -> Index:
        return self._fold(other, max, arith.maxsi)._divided_by(gcd(self.multiple, Index(other).multiple))

    def compare(self, predicate: arith.CmpIPredicate, other: Index | int) -> ir.Value | bool:
        o = Index(other)
        if self.step is None and o.step is None and self.const is not None and o.const is not None:
            p = arith.CmpIPredicate
            return {p.slt: self.const < o.const, p.sle: self.const <= o.const, p.eq: self.const == o.const,
                    p.sge: self.const >= o.const}[predicate]
        return self._pair(o, lambda a, b: arith.cmpi(predicate, a, b)).value(ir.IntegerType.get_signless(1))

    def lt(self, other: Index | int) -> ir.Value | bool:
        return self.compare(arith.CmpIPredicate.slt, other)

    def le(self, other: Index | int) -> ir.Value | bool:
        return self.compare(arith.CmpIPredicate.sle, other)

    def ge(self, other: Index | int) -> ir.Value | bool:
        return self.compare(arith.CmpIPredicate.sge, other)

    def eq(self, other: Index | int) -> ir.Value | bool:
        return self.compare(arith.CmpIPredicate.eq, other)


def select(condition: ir.Value | bool, a: Index, b: Index, lanes: int = 1, type_: ir.Type | None = None) -> Index:
    """a where the condition holds, else b. `type_`: of coordinates, where both may be constants."""
    if isinstance(condition, bool):
        return a if condition else b
    t = a.type or b.type or type_ or ir.IntegerType.get_signless(64)
    lanes = max(a.lanes, b.lanes, Index(condition).lanes, lanes)
    x, y = _alike(*(splat_to(v.value(t), lanes) for v in (a, b)))
    return Index(arith.select(splat_to(condition, lanes), x, y))._divided_by(gcd(a.multiple, b.multiple))


def _alike(a: ir.Value, b: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Both of the type that coordinates have: what was made of constants alone, such as a row that is one vector, has 64 bits."""
    if a.type == b.type:
        return a, b
    wide = ir.IntegerType.get_signless(64)
    x, y = (_resized(v, other.type) if _element(v) == wide else v for v, other in ((a, b), (b, a)))
    return x, y


def _resized(value: ir.Value, type_: ir.Type) -> ir.Value:
    element = ir.VectorType(type_).element_type if isinstance(type_, ir.VectorType) else type_
    return arith.index_cast(type_, value) if isinstance(element, ir.IndexType) else arith.trunci(type_, value)


def _element(value: ir.Value) -> ir.Type:
    return ir.VectorType(value.type).element_type if isinstance(value.type, ir.VectorType) else value.type


def splat_to(value: ir.Value, lanes: int) -> ir.Value:
    """A vector of `lanes` elements: the value itself when it is one already, else broadcast; a scalar for one lane."""
    if lanes == 1 or isinstance(value.type, ir.VectorType):
        return value
    return vector.broadcast(ir.VectorType.get([lanes], value.type), value)


def delinearize(linear: Index, sizes: list[Index]) -> list[Index]:
    """Coordinates, slowest first, of a linear number in a box of `sizes`."""
    found: list[Index] = []
    for size in reversed(sizes[1:]):
        found.append(linear % size)
        linear = linear // size
    return [linear, *reversed(found)] if sizes else []


def emit_expr(expr: Expr, dims: Mapping[str, Index]) -> Index:
    """An Expr at the insertion point, over the given dims. A divisor below 1, for which no model is defined, counts as 1."""
    return expr.fold(Index, dims.__getitem__, _apply)


def _apply(op: str, a: Index, b: Index) -> Index:
    if op in ("floordiv", "mod"):
        b = b.max(1)
    if op == "floordiv":
        return a.floordiv(b)
    if op == "mod":
        return a - a.floordiv(b) * b
    return a.min(b) if op == "min" else a.max(b)
