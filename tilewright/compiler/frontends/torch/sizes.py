"""Symbolic sizes of torch.export, which are sympy expressions, as Exprs over dims."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import reduce
from typing import Any

import numpy as np
import sympy
import torch

from tilewright.compiler.ops.graph import Graph
from tilewright.runtime.errors import IngestError
from tilewright.runtime.shape import Dim, Expr

_TRIED = 1 << 14  # most values of dims at which sizes are compared
_LARGEST = 1 << 62
_POINTS = 1024  # values at which two sizes are sought to differ
_DENOMINATOR = 1000  # largest denominator of a factor such as 1.5 in floor(1.5 * s)
_QUOTIENTS = ("IntTrueDiv", "FloatTrueDiv")
_DIVISIONS = ("FloorDiv", "CleanDiv")
_REMAINDERS = ("Mod", "PythonMod")
_SAME = ("Identity", "ToFloat")
_ROUNDINGS = ("FloorToInt", "CeilToInt", "TruncToInt", "floor", "ceiling")


def _values(lo: int, hi: int, count: int) -> np.ndarray[Any, Any]:
    """All values of a range, or its first ones and others up to its end."""
    if hi - lo < count:
        return np.arange(lo, hi + 1, dtype=np.int64)
    return np.array(sorted({*range(lo, lo + count // 2), *Dim(lo, hi).values(count - count // 2)}), dtype=np.int64)


def elements(size: Expr, dims: Mapping[str, np.ndarray[Any, Any]]) -> Any:
    """A size for arrays of values of its dims, 64-bit integers."""
    return size.fold(np.int64, dims.__getitem__, _applied)


def _applied(op: str, a: Any, b: Any) -> Any:
    """floordiv, mod, min or max of arrays."""
    if op in ("floordiv", "mod"):
        divisor = np.where(b == 0, 1, b)  # where a size is not defined
        return a // divisor if op == "floordiv" else a % divisor
    return np.minimum(a, b) if op == "min" else np.maximum(a, b)


class DataDependentSizeError(ValueError):
    """A size that the shapes of the inputs do not determine; names its symbol."""


@dataclass
class Sizes:
    """Converts sizes. Those that are equal for all values of the dims' ranges are written in one way, that of the first.

    Args:
        names: the dim of every sympy symbol; symbols that are not in it depend on data.
        graph: has the ranges of the dims, which decide what is the larger of two sizes where they allow it.
        known: sizes by symbol or expression.
    """

    names: Mapping[sympy.Symbol, str]
    graph: Graph
    known: dict[sympy.Expr, Expr] = field(default_factory=dict)
    _written: dict[tuple[Any, ...], Expr] = field(default_factory=dict)

    def expr(self, value: Any) -> Expr:
        """An int, a SymInt or a sympy expression.

        Raises:
            DataDependentSizeError: it holds a symbol that is no dim.
            IngestError: it holds a function that sizes have no counterpart of.
        """
        if isinstance(value, torch.SymInt):
            value = value.node.expr
        if isinstance(value, int):
            return Expr.of(value)
        if value not in self.known:
            self.known[value] = self._once(self._convert(value))
        return self.known[value]

    def _once(self, size: Expr) -> Expr:
        """The size as it was first written, where one was met that is equal at all values of the dims, or at many of them."""
        names = sorted(size.symbols)
        if not names or any(n not in self.graph.ranges for n in names) or max(map(abs, self.graph.bounds(size))) > _LARGEST:
            return size
        each = int(_TRIED ** (1 / len(names)))
        grid = np.meshgrid(*(_values(*self.graph.ranges[n], each) for n in names), indexing="ij")
        values = elements(size, dict(zip(names, grid, strict=True)))
        for axis in reversed(range(len(names))) if size.linear is None else ():
            if (values == values.take([0], axis)).all():  # it does not depend on this dim
                values = values.take(0, axis)
                del names[axis]
        if not names:
            return Expr.of(int(values))
        return self._written.setdefault((*names, values.tobytes()), size)

    def difference(self, a: Expr, b: Expr) -> Mapping[str, int] | None:
        """Values of the dims at which two sizes differ, of a grid; None where they do not."""
        names = sorted(a.symbols | b.symbols)
        if a == b or any(n not in self.graph.ranges for n in names):
            return None
        each = max(2, int(_POINTS ** (1 / max(len(names), 1))))
        axes = [[v for v in Dim(*self.graph.ranges[n]).values(each) if v > 1] or [1] for n in names]  # 1: torch.export's 2
        points = (dict(zip(names, point, strict=True)) for point in itertools.product(*axes))
        return next((p for p in points if a.evaluate(p) != b.evaluate(p)), None)

    def define(self, value: torch.SymInt, size: Expr) -> None:
        """A symbol that is no dim has this value, which follows from the dims."""
        if isinstance(value.node.expr, sympy.Symbol) and value.node.expr not in self.names:
            self.known[value.node.expr] = size

    def _convert(self, e: sympy.Expr) -> Expr:
        kind = type(e).__name__
        if isinstance(e, sympy.Symbol):
            if e not in self.names:
                raise DataDependentSizeError(str(e))
            return Expr.dim(self.names[e])
        if isinstance(e, sympy.Integer):
            return Expr.of(int(e))
        if isinstance(e, sympy.Add):
            return reduce(Expr.__add__, map(self.expr, e.args))
        if isinstance(e, sympy.Mul):
            return reduce(Expr.__mul__, map(self.expr, e.args))
        if isinstance(e, sympy.Pow) or kind == "PowByNatural":
            base, exponent = e.args
            if isinstance(exponent, sympy.Integer) and exponent >= 0:
                return reduce(Expr.__mul__, [self.expr(base)] * int(exponent), Expr.of(1))
        if kind in _DIVISIONS:
            return self.expr(e.args[0]) // self.expr(e.args[1])
        if kind in _REMAINDERS:
            return self.expr(e.args[0]) % self.expr(e.args[1])
        if kind == "ModularIndexing":
            return (self.expr(e.args[0]) // self.expr(e.args[1])) % self.expr(e.args[2])
        if kind == "CeilDiv":
            return self.expr(e.args[0]).ceildiv(self.expr(e.args[1]))
        if kind in ("Max", "Min"):
            return reduce(self.graph.larger if kind == "Max" else self.graph.smaller, map(self.expr, e.args))
        if kind in _SAME:
            return self.expr(e.args[0])
        if kind in _ROUNDINGS:
            numerator, denominator = self.ratio(e.args[0])
            whole = numerator.ceildiv(denominator) if kind in ("CeilToInt", "ceiling") else numerator // denominator
            return whole
        if not e.free_symbols <= self.names.keys() | self.known.keys():
            raise DataDependentSizeError(str(e))
        raise IngestError(f"the size {e} of the model uses {kind}, which sizes cannot hold: use + - * // %, min and max")

    def ratio(self, e: sympy.Expr) -> tuple[Expr, Expr]:
        """A rational size as numerator and denominator, which is positive."""
        kind = type(e).__name__
        if kind in _QUOTIENTS:
            (a, b), (c, d) = self.ratio(e.args[0]), self.ratio(e.args[1])
            return a * d, b * c
        if isinstance(e, (sympy.Float, sympy.Rational)):
            fraction = Fraction(float(e)).limit_denominator(_DENOMINATOR)
            if float(fraction) != float(e):
                raise IngestError(f"the size factor {e} is no ratio of small integers: use one such as 1.5, or sizes instead")
            return Expr.of(fraction.numerator), Expr.of(fraction.denominator)
        if isinstance(e, sympy.Mul) or kind == "FloatMul":
            parts = [self.ratio(a) for a in e.args]
            return reduce(Expr.__mul__, (n for n, _ in parts)), reduce(Expr.__mul__, (d for _, d in parts))
        if isinstance(e, sympy.Add):
            total = Expr.of(0), Expr.of(1)
            for n, d in map(self.ratio, e.args):
                total = total[0] * d + n * total[1], total[1] * d
            return total
        return self.expr(e), Expr.of(1)
