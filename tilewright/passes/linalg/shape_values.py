"""Index values from Exprs: reads dims from the arguments of a function and computes sizes at its entry."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.passes.linalg.symbolic import DIMS, read_dims
from tilewright.passes.mlir import arith, ir, tensor
from tilewright.runtime.shape import Atom, Expr


class ShapeValues:
    """Computes each Expr once, at the start of the function, so that the value dominates every use."""

    def __init__(self, fn: ir.Operation) -> None:
        self._block = fn.regions[0].blocks[0]
        self._last: ir.Operation | None = None
        self._values: dict[Expr, ir.Value] = {}
        self._arguments = ir.ArrayAttr(fn.attributes["arg_attrs"]) if "arg_attrs" in fn.attributes else None
        self._places: dict[str, tuple[int, int]] = {}
        self._scaled: dict[str, tuple[tuple[int, int], int, int]] = {}  # axis of factor * dim + offset elements, factor, offset
        self._seen = 0  # arguments whose dims `_places` and `_scaled` hold

    def value(self, expr: Expr) -> ir.Value:
        """The index value of an Expr; ValueError when one of its symbols is no dim of the function."""
        if expr not in self._values:
            self._values[expr] = self._compute(expr)
        return self._values[expr]

    def symbols(self) -> frozenset[str]:
        """The dims that the function's arguments tell."""
        arguments = () if self._arguments is None else self._arguments
        return frozenset().union(*(dim.symbols for a in arguments if DIMS in (named := ir.DictAttr(a))
                                   for dim in read_dims(named[DIMS])))

    def dynamic(self, dims: Sequence[Expr]) -> list[ir.Value]:
        """Values of the extents that are not constant, in order."""
        return [self.value(d) for d in dims if d.constant is None]

    def mixed(self, dims: Sequence[Expr]) -> list[int | ir.Value]:
        return [self.value(d) if d.constant is None else d.constant for d in dims]

    def _compute(self, expr: Expr) -> ir.Value:
        if expr.constant is not None:
            return self._insert(lambda: arith.constant(ir.IndexType.get(), expr.constant))
        if expr.symbol is not None:
            return self._read(expr.symbol)
        total: ir.Value | None = None
        for factors, coefficient in expr.terms:
            term = self._term(factors, abs(coefficient) if total is not None else coefficient)
            if total is None:
                total = term
            else:
                kind, left = (arith.SubIOp if coefficient < 0 else arith.AddIOp), total
                total = self._binary(kind, left, term)
        return total

    def _term(self, factors: Sequence[Atom], coefficient: int) -> ir.Value:
        product: ir.Value | None = None
        for atom in factors:
            value = self._atom(atom)
            product = value if product is None else self._binary(arith.MulIOp, product, value)
        if product is None or coefficient != 1:
            scale = self.value(Expr.of(coefficient))
            return scale if product is None else self._binary(arith.MulIOp, product, scale)
        return product

    def _atom(self, atom: Atom) -> ir.Value:
        if atom.op == "dim":
            return self.value(Expr.dim(atom.name))
        a, b = (self.value(x) for x in atom.args)
        if atom.op == "mod":
            quotient = self._binary(arith.FloorDivSIOp, a, b)
            return self._binary(arith.SubIOp, a, self._binary(arith.MulIOp, quotient, b))
        kinds = {"floordiv": arith.FloorDivSIOp, "min": arith.MinSIOp, "max": arith.MaxSIOp}
        return self._binary(kinds[atom.op], a, b)

    def _place(self, symbol: str) -> tuple[int, int] | None:
        """The first argument, and its axis, whose extent is this dim; arguments are looked at as far as it takes."""
        while symbol not in self._places and self._arguments is not None and self._seen < len(self._arguments):
            named = ir.DictAttr(self._arguments[self._seen])
            for axis, dim in enumerate(read_dims(named[DIMS]) if DIMS in named else ()):
                if dim.symbol is not None:
                    self._places.setdefault(dim.symbol, (self._seen, axis))
                elif dim.linear is not None:
                    name, factor, offset = dim.linear
                    self._scaled.setdefault(name, ((self._seen, axis), factor, offset))
            self._seen += 1
        return self._places.get(symbol)

    def _read(self, symbol: str) -> ir.Value:
        place = self._place(symbol)
        return self._solved(symbol) if place is None else self._extent(*place)

    def _solved(self, symbol: str) -> ir.Value:
        """A dim that is read from an axis of factor * dim + offset elements."""
        if symbol not in self._scaled:
            raise ValueError(f"dimension {symbol} is no axis and no scalar argument of the function")
        place, factor, offset = self._scaled[symbol]
        found = self._extent(*place)
        if offset:
            found = self._binary(arith.SubIOp, found, self.value(Expr.of(offset)))
        return self._binary(arith.FloorDivSIOp, found, self.value(Expr.of(factor)))

    def _extent(self, index: int, axis: int) -> ir.Value:
        argument = self._block.arguments[index]
        if isinstance(argument.type, ir.RankedTensorType):
            at = self.value(Expr.of(axis))
            return self._insert(lambda: tensor.DimOp(argument, at).result)
        if str(argument.type) == "index":
            return argument
        return self._insert(lambda: arith.IndexCastOp(ir.IndexType.get(), argument).result)

    def _binary(self, kind: type, a: ir.Value, b: ir.Value) -> ir.Value:
        return self._insert(lambda: kind(a, b).result)

    def _insert(self, build: Callable[[], ir.Value]) -> ir.Value:
        at = (
            ir.InsertionPoint.at_block_begin(self._block) if self._last is None else ir.InsertionPoint.after(self._last)
        )
        with at, ir.Location.unknown():
            value = build()
        self._last = value.owner.operation if not isinstance(value.owner, ir.Block) else self._last
        return value


def tensor_type(dims: Sequence[Expr], element: ir.Type) -> ir.RankedTensorType:
    """A tensor type, static where the extent is constant."""
    absent = ir.ShapedType.get_dynamic_size()
    return ir.RankedTensorType.get([absent if d.constant is None else d.constant for d in dims], element)
