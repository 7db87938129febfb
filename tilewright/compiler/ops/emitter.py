"""Text of one function under construction: value names, constants, index arithmetic on symbolic sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from tilewright.compiler.ops.body import literal
from tilewright.runtime.errors import OptionError
from tilewright.runtime.shape import Atom, Expr
from tilewright.runtime.tensor import DType

T = TypeVar("T")
_ATOM_OPS = {"floordiv": "floordivsi", "mod": "remsi", "min": "minsi", "max": "maxsi"}


def _never_negative(e: Expr) -> bool:
    """Whether an expression is a sum of products of dims and of atoms that are none of them below zero."""
    return all(coefficient > 0 and all(all(map(_never_negative, a.args[a.op == "mod":])) for a in factors)
               for factors, coefficient in e.terms)


def tensor_type(dtype: DType, dims: Sequence[Expr]) -> str:
    """`tensor<?x768xf32>`: an extent that is the same for every shape is static."""
    extents = ["?" if (c := d.constant) is None else str(c) for d in dims]
    return f"tensor<{'x'.join([*extents, dtype.signless.value])}>"


@dataclass
class Emitter:
    """Lines of the function's body. Constants stand at its top, index values before their first use.

    sources: where a size can be read, as the text of an operation, by the size.
    """

    constants: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    sources: dict[Expr, str] = field(default_factory=dict)
    _indices: dict[Expr, str] = field(default_factory=dict)
    _names: int = 0

    def fresh(self) -> str:
        self._names += 1
        return f"%v{self._names}"

    def constant(self, value: float, kind: str) -> str:
        """A constant of an MLIR scalar type."""
        return self.constants.setdefault(literal(value, kind), f"%c{len(self.constants)}")

    def emit(self, text: str) -> str:
        """Append `%name = text`; the name."""
        name = self.fresh()
        self.lines.append(f"{name} = {text}")
        return name

    def nested(self, build: Callable[[], T]) -> tuple[list[str], T]:
        """The lines that `build` emits, for a body inside the function, whose index values are not seen outside; its result."""
        outside, indices = self.lines, dict(self._indices)
        self.lines = []
        try:
            made = build()
        finally:
            lines, self.lines, self._indices = self.lines, outside, indices
        return lines, made

    def index(self, size: Expr | int) -> str:
        """An index value that holds a size."""
        expr = Expr.of(size)
        if expr.constant is not None:
            return self.constant(expr.constant, "index")
        if expr not in self._indices:
            self._indices[expr] = self._compute(expr)
        return self._indices[expr]

    def sizes(self, dims: Sequence[Expr]) -> str:
        """A mixed list of static and dynamic sizes: `4, %v3`."""
        return ", ".join(self.index(d) if (c := d.constant) is None else str(c) for d in dims)

    def dynamic(self, dims: Sequence[Expr]) -> str:
        """The dynamic ones of some sizes, as operands."""
        return ", ".join(self.index(d) for d in dims if d.constant is None)

    def _compute(self, expr: Expr) -> str:
        source = self.sources.get(expr)
        if source is not None:
            return source if source.startswith("%") else self.emit(source)
        total = ""
        for factors, coefficient in sorted(expr.terms, key=lambda t: t[1] < 0):
            sign, scale = ("subi" if coefficient < 0 and total else "addi"), coefficient
            if sign == "subi":
                scale = -coefficient
            term = self._term(factors, scale)
            total = self.emit(f"arith.{sign} {total}, {term} : index") if total else term
        return total

    def _term(self, factors: tuple[Atom, ...], scale: int) -> str:
        values = [self._atom(a) for a in factors] + ([self.index(scale)] if scale != 1 or not factors else [])
        product = values[0]
        for value in values[1:]:
            product = self.emit(f"arith.muli {product}, {value} : index")
        return product

    def _atom(self, atom: Atom) -> str:
        if atom.op == "dim":
            expr = Expr.dim(atom.name)
            return self.index(expr) if expr in self.sources else self._solved(atom.name)
        a, b = (self.index(e) for e in atom.args)
        if atom.op == "mod" and not all(_never_negative(e) for e in atom.args):  # arith.remsi takes the dividend's sign
            return self.emit(f"affine.apply affine_map<()[s0, s1] -> (s0 mod s1)>()[{a}, {b}]")
        return self.emit(f"arith.{_ATOM_OPS[atom.op]} {a}, {b} : index")

    def _solved(self, dim: str) -> str:
        """A dim that is read from an axis of factor * dim + offset elements."""
        for size in self.sources:
            if (linear := size.linear) is not None and linear[0] == dim:
                _, factor, offset = linear
                found = self.index(size)
                found = self.emit(f"arith.subi {found}, {self.index(offset)} : index") if offset else found
                return self.emit(f"arith.floordivsi {found}, {self.index(factor)} : index")
        raise OptionError(f"dim {dim} cannot be read: no input has an axis of that size; "
                          f"add one, or declare a scalar with dim({dim!r})")
