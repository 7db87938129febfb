"""Symbolic sizes of torch.export, which are sympy expressions, as Exprs over dims."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import reduce
from typing import Any

import sympy
import torch

from tilewright.compiler.ops.graph import Graph
from tilewright.runtime.errors import IngestError
from tilewright.runtime.shape import Expr

_DENOMINATOR = 1000  # largest denominator of a factor such as 1.5 in floor(1.5 * s)
_QUOTIENTS = ("IntTrueDiv", "FloatTrueDiv")
_DIVISIONS = ("FloorDiv", "CleanDiv")
_REMAINDERS = ("Mod", "PythonMod")
_SAME = ("Identity", "ToFloat")
_ROUNDINGS = ("FloorToInt", "CeilToInt", "TruncToInt", "floor", "ceiling")


class DataDependentSizeError(ValueError):
    """A size that the shapes of the inputs do not determine; names its symbol."""


@dataclass
class Sizes:
    """Converts sizes. `names`: the dim of every sympy symbol; symbols that are not in it depend on data. `graph`: decides
    what is the larger of two sizes by the ranges of its dims, where they allow it."""

    names: Mapping[sympy.Symbol, str]
    graph: Graph
    _known: dict[sympy.Expr, Expr] = field(default_factory=dict)

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
        if value not in self._known:
            self._known[value] = self._convert(value)
        return self._known[value]

    def define(self, value: torch.SymInt, size: Expr) -> None:
        """A symbol that is no dim has this value, which follows from the dims."""
        if isinstance(value.node.expr, sympy.Symbol) and value.node.expr not in self.names:
            self._known[value.node.expr] = size

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
            numerator, denominator = self._ratio(e.args[0])
            whole = numerator.ceildiv(denominator) if kind in ("CeilToInt", "ceiling") else numerator // denominator
            return whole
        raise IngestError(f"the size {e} of the model uses {kind}, which sizes cannot hold: use + - * // %, min and max")

    def _ratio(self, e: sympy.Expr) -> tuple[Expr, Expr]:
        """A rational size as numerator and denominator."""
        kind = type(e).__name__
        if kind in _QUOTIENTS:
            (a, b), (c, d) = self._ratio(e.args[0]), self._ratio(e.args[1])
            return a * d, b * c
        if isinstance(e, (sympy.Float, sympy.Rational)):
            fraction = Fraction(float(e)).limit_denominator(_DENOMINATOR)
            if float(fraction) != float(e):
                raise IngestError(f"the size factor {e} is no ratio of small integers: use one such as 1.5, or sizes instead")
            return Expr.of(fraction.numerator), Expr.of(fraction.denominator)
        if isinstance(e, sympy.Mul) or kind == "FloatMul":
            parts = [self._ratio(a) for a in e.args]
            return reduce(Expr.__mul__, (n for n, _ in parts)), reduce(Expr.__mul__, (d for _, d in parts))
        if isinstance(e, sympy.Add):
            total = Expr.of(0), Expr.of(1)
            for n, d in map(self._ratio, e.args):
                total = total[0] * d + n * total[1], total[1] * d
            return total
        return self.expr(e), Expr.of(1)
