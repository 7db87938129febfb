"""Symbolic sizes: Expr over named dimensions, Dim with its range, ShapeRange over several dims.

An Expr is kept in one canonical form, a polynomial with integer coefficients over atoms, so that two sizes are equal when
their canonical forms are. Atoms are dimension names and the opaque results of floordiv, mod, min and max.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any, TypeVar, Union

from tilewright.runtime.dim_forms import Bounds, as_integer, as_integers, as_places, bounds_of
from tilewright.runtime.errors import OptionError, ShapeError
from tilewright.runtime.wording import option

Operand = Union["Expr", int]
DimLike = Union["Dim", tuple[int, int], tuple[int, int, int], range, Any]  # Any: a torch.export.Dim
V = TypeVar("V")
LARGEST = (1 << 63) - 1  # of a dim
LONGEST = 1 << 16  # characters of a size expression
TERMS = 256  # of a product of sums; of eight sums of two terms
_CALLS = ("floordiv", "mod", "min", "max")
_INFINITE = (math.inf, -math.inf)


@dataclass(frozen=True, order=True)
class Atom:
    """A factor that the polynomial does not look into: a dimension (`op` "dim"), or floordiv, mod, min, max of two Exprs."""

    op: str
    name: str = ""
    args: tuple[Expr, ...] = ()

    def __str__(self) -> str:
        return self.name if self.op == "dim" else f"{self.op}({', '.join(map(str, self.args))})"


Monomial = tuple[Atom, ...]


@dataclass(frozen=True, order=True)
class Expr:
    """An integer expression over dimension names; all arithmetic is exact and floors like Python's.

    `terms` are (factors, coefficient) pairs, sorted, with no zero coefficient. Build with `Expr.of`, `Expr.dim`,
    `Expr.parse` and the operators + - * // %, `ceildiv`, `minimum`, `maximum`.
    """

    terms: tuple[tuple[Monomial, int], ...]

    @staticmethod
    def of(value: Operand) -> Expr:
        if isinstance(value, Expr):
            return value
        return Expr((((), int(value)),)) if value else Expr(())

    @staticmethod
    def dim(name: str) -> Expr:
        return Expr((((Atom("dim", name),), 1),))

    @staticmethod
    def parse(text: str) -> Expr:
        """The inverse of `str`: integers, names, + - * // %, and calls of floordiv, ceildiv, mod, min, max.

        Raises:
            OptionError: it is none of these, or too large.
        """
        return _parsed(text.strip())

    @staticmethod
    def _collect(pairs: Iterable[tuple[Monomial, int]]) -> Expr:
        total: dict[Monomial, int] = {}
        for factors, coefficient in pairs:
            key = tuple(sorted(factors))
            total[key] = total.get(key, 0) + coefficient
        return Expr(tuple(sorted((k, c) for k, c in total.items() if c)))

    def __add__(self, other: Operand) -> Expr:
        return Expr._collect((*self.terms, *Expr.of(other).terms))

    __radd__ = __add__

    def __neg__(self) -> Expr:
        return Expr(tuple((f, -c) for f, c in self.terms))

    def __sub__(self, other: Operand) -> Expr:
        return self + -Expr.of(other)

    def __rsub__(self, other: Operand) -> Expr:
        return Expr.of(other) - self

    def __mul__(self, other: Operand) -> Expr:
        product = Expr.of(other)
        for factor, scaled in ((product.constant, self), (self.constant, product)):
            if factor is not None:
                return scaled if factor == 1 else Expr(tuple((f, c * factor) for f, c in scaled.terms if factor))
        terms = product.terms
        if min(len(self.terms), len(terms)) > 1 and len(self.terms) * len(terms) > TERMS:
            raise OptionError(f"a size is the product of sums of {len(self.terms)} and {len(terms)} terms; wanted at most "
                              f"{TERMS} written out: name a factor as a dimension of its own")
        return Expr._collect((f + g, c * d) for f, c in self.terms for g, d in terms)

    __rmul__ = __mul__

    def __floordiv__(self, other: Operand) -> Expr:
        """Floor division; exact quotients (12*B // 12, B*S*768 // (B*768)) stay polynomials."""
        divisor = Expr.of(other)
        if divisor == Expr.of(0):
            raise ShapeError(f"division of {self} by zero")
        a, b = self.constant, divisor.constant
        if a is not None and b is not None:
            return Expr.of(a // b)
        if len(divisor.terms) == 1:
            factors, coefficient = divisor.terms[0]
            whole = [(_without(f, factors), c) for f, c in self.terms]
            exact = [(f, c // coefficient) for f, c in whole if f is not None and c % coefficient == 0]
            if len(exact) == len(self.terms):
                return Expr._collect(exact)
            if b is not None and b > 0 and exact:
                divisible = Expr._collect((f, c) for f, c in self.terms if c % b == 0)
                rest = self - divisible
                return Expr._collect(exact) + Expr._atom("floordiv", rest, divisor) if rest.constant is None \
                    else Expr._collect(exact) + (rest.constant // b)
        if self == divisor:
            return Expr.of(1)
        return Expr._atom("floordiv", self, divisor)

    def __mod__(self, other: Operand) -> Expr:
        divisor = Expr.of(other)
        a, b = self.constant, divisor.constant
        if a is not None and b:
            return Expr.of(a % b)
        quotient = self // divisor
        if not any(atom.op == "floordiv" for f, _ in quotient.terms for atom in f) or quotient.constant is not None:
            return self - quotient * divisor
        return Expr._atom("mod", self, divisor)

    def ceildiv(self, other: Operand) -> Expr:
        """Smallest integer not below self / other."""
        return -((-self) // other) if self.constant is not None else (self + other - 1) // other

    def minimum(self, other: Operand) -> Expr:
        return self._extreme("min", Expr.of(other))

    def maximum(self, other: Operand) -> Expr:
        return self._extreme("max", Expr.of(other))

    def _extreme(self, op: str, other: Expr) -> Expr:
        difference = (self - other).constant
        if difference is not None:
            return self if (difference <= 0) == (op == "min") else other
        return Expr._atom(op, *sorted((self, other)))

    @staticmethod
    def _atom(op: str, *args: Expr) -> Expr:
        return Expr((((Atom(op, "", tuple(args)),), 1),))

    @property
    def constant(self) -> int | None:
        """The value when it is the same for every shape, else None."""
        if not self.terms:
            return 0
        return self.terms[0][1] if len(self.terms) == 1 and not self.terms[0][0] else None

    @property
    def symbol(self) -> str | None:
        """The dimension's name when the expression is just that dimension, else None."""
        if len(self.terms) == 1 and self.terms[0][1] == 1 and len(self.terms[0][0]) == 1:
            atom = self.terms[0][0][0]
            return atom.name if atom.op == "dim" else None
        return None

    @property
    def linear(self) -> tuple[str, int, int] | None:
        """(dim, factor, offset) when the expression is factor * dim + offset with a positive factor, else None."""
        terms = [(factors, c) for factors, c in self.terms if factors]
        if len(terms) != 1 or len(terms[0][0]) != 1 or terms[0][0][0].op != "dim" or terms[0][1] < 1:
            return None
        return terms[0][0][0].name, terms[0][1], sum(c for factors, c in self.terms if not factors)

    @property
    def symbols(self) -> frozenset[str]:
        found: set[str] = set()
        for factors, _ in self.terms:
            for atom in factors:
                found |= {atom.name} if atom.op == "dim" else frozenset().union(*(a.symbols for a in atom.args))
        return frozenset(found)

    def evaluate(self, dims: Mapping[str, int]) -> int:
        """The value for concrete dims; a missing dim is a KeyError that names it."""
        return self.fold(int, dims.__getitem__, _apply)

    def substitute(self, dims: Mapping[str, Operand]) -> Expr:
        """Dimensions replaced by expressions (or integers); the rest stays."""
        return self.fold(Expr.of, lambda name: Expr.of(dims[name]) if name in dims else Expr.dim(name), combine)

    def fold(self, number: Callable[[int], V], dim: Callable[[str], V], apply: Callable[[str, V, V], V]) -> V:
        """The value over anything that has + and *: SSA values, sizes of another framework.

        Args:
            number: the value of an integer. dim: that of a dim, by its name.
            apply: that of "floordiv", "mod", "min" or "max" of two values.
        """
        total: Any = number(0)
        for factors, coefficient in self.terms:
            product: Any = number(coefficient)
            for atom in factors:
                value = dim(atom.name) if atom.op == "dim" else apply(atom.op, *(x.fold(number, dim, apply) for x in atom.args))
                product = product * value
            total = total + product
        return total  # type: ignore[no-any-return]

    def bounds(self, ranges: Mapping[str, tuple[float, float]]) -> tuple[float, float]:
        """An interval that contains every value over the given (inclusive) ranges; math.inf where there is no bound.

        Of ranges of integers it is exact: no float takes part but math.inf.
        """
        lo: float = 0
        hi: float = 0
        for factors, coefficient in self.terms:
            span: tuple[float, float] = (coefficient, coefficient)
            for atom in factors:
                span = product(span, _atom_bounds(atom, ranges))
            lo, hi = lo + span[0], hi + span[1]
        return lo, hi

    def divisible_by(self, n: int, multiples: Mapping[str, int] | None = None) -> bool:
        """Is every value a multiple of n? `multiples` states what single dims are known to be multiples of."""
        for factors, coefficient in self.terms:
            known = abs(coefficient)
            for atom in factors:
                known *= (multiples or {}).get(atom.name, 1) if atom.op == "dim" else 1
            if known % n:
                return False
        return True

    def __str__(self) -> str:
        if not self.terms:
            return "0"
        text = ""
        for factors, c in sorted(self.terms, key=lambda t: (-len(t[0]), t)):
            names = [str(a) for a in factors]
            body = "*".join(names if abs(c) == 1 and names else [str(abs(c)), *names])
            text += (" - " if c < 0 else " + ") + body if text else ("-" if c < 0 else "") + body
        return text

    def __repr__(self) -> str:
        return f"Expr({str(self)!r})"


def _without(factors: Monomial, divisor: Monomial) -> Monomial | None:
    left = list(factors)
    for atom in divisor:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def _apply(op: str, a: int, b: int) -> int:
    if op in ("min", "max"):
        return min(a, b) if op == "min" else max(a, b)
    if b == 0:
        raise ShapeError(f"{op} of {a} by a dimension that is zero")
    return a // b if op == "floordiv" else a % b


def combine(op: str, a: Expr, b: Expr) -> Expr:
    """Apply floordiv, ceildiv, mod, min or max by name."""
    return {"floordiv": Expr.__floordiv__, "ceildiv": Expr.ceildiv, "mod": Expr.__mod__,
            "min": Expr.minimum, "max": Expr.maximum}[op](a, b)


def product(x: tuple[float, float], y: tuple[float, float]) -> tuple[float, float]:
    """The interval of the products of two intervals."""
    corners = [_times(a, b) for a in x for b in y]
    return min(corners), max(corners)


def _times(a: float, b: float) -> float:
    """a * b, where 0 times anything is 0; no integer becomes a float, which the largest cannot."""
    if a == 0 or b == 0:
        return 0
    if a in _INFINITE or b in _INFINITE:
        return math.inf if (a > 0) == (b > 0) else -math.inf
    return a * b


def _atom_bounds(atom: Atom, ranges: Mapping[str, tuple[float, float]]) -> tuple[float, float]:
    if atom.op == "dim":
        return ranges.get(atom.name, (0, math.inf))
    (a, b), (c, d) = (x.bounds(ranges) for x in atom.args)
    if atom.op == "min":
        return min(a, c), min(b, d)
    if atom.op == "max":
        return max(a, c), max(b, d)
    if atom.op == "mod":
        return (0, min(d - 1, b) if a >= 0 else d - 1) if c > 0 else (-math.inf, math.inf)
    if c <= 0:
        return -math.inf, math.inf
    corners = [_floor_ratio(x, y) for x in (a, b) for y in (c, d)]
    return min(corners), max(corners)


def _floor_ratio(x: float, y: float) -> float:
    if math.isinf(x):
        return x
    if math.isinf(y):
        return 0 if x >= 0 else -1
    return x // y


@lru_cache(4096)
def _parsed(text: str) -> Expr:
    if len(text) > LONGEST:
        raise OptionError(f"the size expression {text[:40]!r}... has {len(text)} characters; wanted at most {LONGEST}: name a "
                          "part of it as a dimension of its own")
    try:
        return _from_ast(ast.parse(text, mode="eval").body)
    except SyntaxError as error:
        raise OptionError(f"cannot read the size expression {text!r}: {error.msg}") from error
    except ValueError as error:  # a null byte
        raise OptionError(f"cannot read the size expression {text!r}: {error}") from error
    except (RecursionError, MemoryError) as error:
        raise OptionError(f"the size expression {text[:40]!r}... nests too deeply; name a part of it as a dimension of its "
                          "own") from error


def _from_ast(node: ast.expr) -> Expr:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return Expr.of(node.value)
    if isinstance(node, ast.Name):
        return Expr.dim(node.id)
    if isinstance(node, ast.Attribute):  # default names such as arg0.1 do not parse as names; they are written arg0.d1
        return Expr.dim(ast.unparse(node))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_from_ast(node.operand)
    if isinstance(node, ast.BinOp):
        a, b = _from_ast(node.left), _from_ast(node.right)
        for kind, apply in ((ast.Add, Expr.__add__), (ast.Sub, Expr.__sub__), (ast.Mult, Expr.__mul__),
                            (ast.FloorDiv, Expr.__floordiv__), (ast.Mod, Expr.__mod__)):
            if isinstance(node.op, kind):
                return apply(a, b)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in (*_CALLS, "ceildiv"):
        return reduce(lambda a, b: combine(node.func.id, a, b), map(_from_ast, node.args))  # type: ignore[attr-defined]
    raise OptionError(f"cannot read the size expression {ast.unparse(node)!r}: use integers, dimension names, "
                      "+ - * // %, ceildiv(), min() and max()")


@dataclass(frozen=True)
class Dim:
    """A dimension whose value is known only at run time.

    Args:
        lo, hi: inclusive range of legal values; lo may be 0. Both in one: (lo, hi), (lo, hi, multiple), range(lo, hi + 1, step),
            a torch.export.Dim, or another Dim.
        multiple_of: every legal value is a multiple of this.
        samples: values worth measuring; never the only legal ones.
        at: the place, or the places, that the dimension is read from, such as "x.1" (axis 1 of argument x), "arg0.1" (of the
            first argument) or "n" (a scalar).
    Raises:
        OptionError: none of these forms, or no legal value; says what was wanted.
    """

    lo: int
    hi: int
    multiple_of: int = 1
    samples: tuple[int, ...] | None = None
    at: tuple[str, ...] | None = None

    def __init__(
        self,
        lo: Any,
        hi: int | None = None,
        multiple_of: int = 1,
        samples: Iterable[int] | None = None,
        at: str | Iterable[str] | None = None,
    ) -> None:
        if hi is not None:
            bounds = Bounds(as_integer(lo, "Dim: lo"), as_integer(hi, "Dim: hi"))
        elif isinstance(lo, Dim):
            bounds = Bounds(lo.lo, lo.hi, lo.multiple_of)
            samples, at = lo.samples if samples is None else samples, lo.at if at is None else at
        else:
            bounds = bounds_of(lo, "Dim")
        step = as_integer(multiple_of, "Dim: multiple_of") if bounds.multiple_of == 1 else bounds.multiple_of
        fields = {"lo": bounds.lo, "hi": bounds.hi, "multiple_of": step, "samples": as_integers(samples, "Dim: samples"),
                  "at": as_places(at)}
        for name, value in fields.items():
            object.__setattr__(self, name, value)
        self._check()

    @staticmethod
    def of(value: DimLike, what: str) -> Dim:
        """A Dim from what `dynamic_dims` takes; OptionError that names `what`, as in "dim T"."""
        if isinstance(value, Dim):
            return value
        bounds = bounds_of(value, what)
        try:
            return Dim(*bounds)
        except OptionError as error:
            raise OptionError(f"{what}: {error}") from None

    def _check(self) -> None:
        if not 0 <= self.lo <= self.hi:
            swapped = f"; swap them, ({self.hi}, {self.lo})" if 0 <= self.hi < self.lo else "; give sizes from 0 on"
            raise OptionError(f"Dim({self.lo}, {self.hi}): wanted 0 <= lo <= hi, got lo = {self.lo} and hi = {self.hi}{swapped}")
        if self.hi >= 1 << 63:
            raise OptionError(f"Dim({self.lo}, {self.hi}): wanted sizes below 2**63, got {self.hi}; give the largest size that a "
                              "call has")
        if self.multiple_of < 1:
            raise OptionError(f"Dim(multiple_of={self.multiple_of}): wanted an integer >= 1; leave it out where any size is "
                              "legal")
        if not self.values(1):
            raise OptionError(f"Dim({self.lo}, {self.hi}, multiple_of={self.multiple_of}): wanted a multiple of "
                              f"{self.multiple_of} between {self.lo} and {self.hi}, and there is none; widen the range")
        for s in self.samples or ():
            if not self.contains(s):
                raise OptionError(f"Dim: sample {s} is not a legal value; wanted values of {self}")

    def contains(self, value: int) -> bool:
        return self.lo <= value <= self.hi and value % self.multiple_of == 0

    def values(self, count: int) -> list[int]:
        """Up to `count` legal values spread over the range, both ends included, log-spaced."""
        first = -(-self.lo // self.multiple_of)
        last = self.hi // self.multiple_of
        if first > last:
            return []
        if count == 1 or first == last:
            return [last * self.multiple_of]
        base = max(first, 1)
        points = {first, last} | {round(base * (last / base) ** (i / (count - 1))) for i in range(count)}
        chosen = sorted(points)
        if len(chosen) > count:
            chosen = [chosen[0], *chosen[-(count - 1):]]
        return [p * self.multiple_of for p in chosen]

    def __str__(self) -> str:
        step = f", multiple of {self.multiple_of}" if self.multiple_of > 1 else ""
        return f"{self.lo}..{self.hi}{step}"


@dataclass(frozen=True)
class ShapeRange(Mapping[str, Dim]):
    """Named dims with their ranges, in a fixed order."""

    dims: tuple[tuple[str, Dim], ...]

    @staticmethod
    def of(dims: Mapping[str, DimLike]) -> ShapeRange:
        """From what `dynamic_dims` takes; OptionError names the dim that is wrong."""
        for name in dims:
            if not isinstance(name, str):
                raise OptionError(f'dynamic_dims: wanted the name of a dim or a place such as "x.1", got {name!r} of type '
                                  f"{type(name).__name__}; write it as text")
        return ShapeRange(tuple((n, Dim.of(d, f"dim {n}")) for n, d in dims.items()))

    def __getitem__(self, name: str) -> Dim:
        for n, d in self.dims:
            if n == name:
                return d
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(n for n, _ in self.dims)

    def __len__(self) -> int:
        return len(self.dims)

    def bounds(self) -> dict[str, tuple[float, float]]:
        return {n: (d.lo, d.hi) for n, d in self.dims}

    def multiples(self) -> dict[str, int]:
        return {n: d.multiple_of for n, d in self.dims}

    def check(self, values: Mapping[str, int], places: Mapping[str, str] | None = None) -> None:
        """Raise ShapeError naming the dim, its range, the value that lies outside and, where it is told, the place of that."""
        for name, dim in self.dims:
            if not dim.contains(values[name]):
                place = f"{places[name]}: " if places else ""
                raise ShapeError(f"{place}dim {name} = {values[name]} is outside its range {dim}; compile with a wider range, "
                                 "or with " + option("out_of_range", "fallback"))

    def points(self, per_dim: int) -> list[dict[str, int]]:
        """A grid of representative shapes: each dim's samples, else `per_dim` values spread over its range."""
        grid: list[dict[str, int]] = [{}]
        for name, dim in self.dims:
            values = list(dim.samples) if dim.samples else dim.values(per_dim)
            grid = [{**point, name: v} for point in grid for v in values]
        return grid
