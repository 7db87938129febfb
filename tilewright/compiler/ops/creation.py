"""Tensors out of nothing but numbers and extents: constants, counts, identity and triangles."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.compiler.ops.body import Body, Scalar, computed_in
from tilewright.compiler.ops.graph import Graph, Number, Size, Tensor, axis_of, element_type, size
from tilewright.compiler.ops.pointwise import where
from tilewright.runtime.errors import OptionError, ShapeError
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType


def full(g: Graph, dims: Sequence[Size], value: Number, dtype: str | DType = "f32") -> Tensor:
    """A tensor of the extents `dims` that holds one number everywhere: an int, a float, or an Expr of dims."""
    return g.full(dims, value, dtype)


def zeros(g: Graph, dims: Sequence[Size], dtype: str | DType = "f32") -> Tensor:
    """A tensor of zeros of the extents `dims`."""
    return g.full(dims, 0, dtype)


def ones(g: Graph, dims: Sequence[Size], dtype: str | DType = "f32") -> Tensor:
    """A tensor of ones of the extents `dims`."""
    return g.full(dims, 1, dtype)


def full_like(x: Tensor, value: Number, dtype: str | DType | None = None) -> Tensor:
    """A tensor of x's extents that holds one number; dtype: default x's."""
    return x.graph.full(x.dims, value, x.dtype if dtype is None else dtype)


def iota(
    g: Graph, dims: Sequence[Size], axis: int = 0, dtype: str | DType = "i64", *, start: Number = 0, step: Number = 1
) -> Tensor:
    """start + step * (position along `axis`), the same along all other axes of the extents `dims`.

    Start and step may be Exprs of dims. 16-bit floats compute in f32 and are rounded once.

    Raises:
        ShapeError: no such axis. OptionError: a fraction as start or step of an integer type.
    """
    kind, sizes = element_type("iota", dtype), [size("iota", d) for d in dims]
    if not -len(sizes) <= axis < len(sizes):
        raise ShapeError(f"iota: axis {axis} of {len(sizes)} extents")
    for number in (start, step):
        if isinstance(number, float) and not kind.is_float and number != int(number):
            raise OptionError(f"iota: {number} as start or step of {kind.value}; use a float type")
    at, wide = axis % len(sizes), computed_in(kind).value

    def body(region: Body, _: Sequence[Scalar], __: Scalar) -> Scalar:
        value = region.index(at).cast(wide)
        if step != 1:
            value = value * g.number(region, step, wide)
        return value if _is_zero(start) else value + g.number(region, start, wide)

    loops = [f"d{i}" for i in range(len(sizes))]
    return g.generic([], (g.empty(kind, sizes), loops), ["parallel"] * len(sizes), body)


def _is_zero(number: Number) -> bool:
    return number == Expr.of(0) if isinstance(number, Expr) else number == 0


def arange(g: Graph, start: Number, stop: Number | None = None, step: Number = 1, dtype: str | DType | None = None) -> Tensor:
    """start, start + step, ... before stop, as numpy.arange; one number is stop, from 0 on.

    Numbers are ints, floats or Exprs of dims; a step is a number that is not 0. dtype: default f32 with a float among them, else
    i64.

    Raises:
        OptionError: a step of 0, or a float beside an Expr that has no fixed value (the extent would not be an integer
        expression).
    """
    first, last = (0, start) if stop is None else (start, stop)
    numbers = [_plain(n) for n in (first, last, step)]
    if isinstance(numbers[2], Expr) or numbers[2] == 0:
        raise OptionError(f"arange: a step of {step}; wanted a number that is not 0")
    floating = any(isinstance(n, float) for n in numbers)
    if floating and any(isinstance(n, Expr) for n in numbers):
        whole = [int(n) if isinstance(n, float) and n == int(n) else n for n in numbers]
        if any(isinstance(n, float) for n in whole):
            raise OptionError(f"arange({first}, {last}, {step}): a fraction beside an extent; the number of elements is no "
                              "expression of the dims. Use iota with start and step")
        begin, end, by = whole
    else:
        begin, end, by = numbers
    extent = _count(begin, end, by)
    kind = dtype if dtype is not None else "f32" if floating else "i64"
    return iota(g, [g.larger(extent, Expr.of(0))], 0, kind, start=first, step=step)


def _plain(number: Number) -> Number:
    return number if not isinstance(number, Expr) or number.constant is None else number.constant


def _count(begin: Number, end: Number, by: Number) -> Expr:
    if isinstance(begin, float) or isinstance(end, float) or isinstance(by, float):
        from math import ceil

        return Expr.of(ceil((float(end) - float(begin)) / float(by)))  # type: ignore[arg-type]
    assert isinstance(by, int)
    gap = Expr.of(end) - begin
    return gap.ceildiv(by) if by > 0 else (-gap).ceildiv(-by)


def eye(g: Graph, rows: Size, columns: Size | None = None, dtype: str | DType = "f32", *, diagonal: int = 0) -> Tensor:
    """Ones where column - row == diagonal, else zeros: [rows, columns]; columns: default rows."""
    kind = element_type("eye", dtype)
    dims = [size("eye", rows), size("eye", rows if columns is None else columns)]
    return g.generic([], (g.empty(kind, dims), ["d0", "d1"]), ["parallel"] * 2,
                     lambda region, _, __: (region.index(1) - region.index(0)).compare("eq", diagonal))


def triangle(g: Graph, rows: Size, columns: Size, *, diagonal: Size = 0, upper: bool = False) -> Tensor:
    """An i1 mask [rows, columns]: true where column - row <= diagonal, with `upper` where it is >= diagonal."""
    dims = [size("triangle", rows), size("triangle", columns)]
    offset = Expr.parse(diagonal) if isinstance(diagonal, str) else diagonal

    def body(region: Body, _: Sequence[Scalar], __: Scalar) -> Scalar:
        limit = region.index(0) + g.number(region, offset, "index")
        return region.index(1).compare("ge" if upper else "le", limit)

    return g.generic([], (g.empty(DType.I1, dims), ["d0", "d1"]), ["parallel"] * 2, body)


def tril(x: Tensor, diagonal: Size = 0) -> Tensor:
    """x where column - row <= diagonal over its last two axes, else 0. diagonal: an int, or an Expr of dims."""
    return _masked("tril", x, diagonal, False)


def triu(x: Tensor, diagonal: Size = 0) -> Tensor:
    """x where column - row >= diagonal over its last two axes, else 0. diagonal: an int, or an Expr of dims."""
    return _masked("triu", x, diagonal, True)


def _masked(name: str, x: Tensor, diagonal: Size, upper: bool) -> Tensor:
    axis_of(name, x, -2)
    rows, columns = x.dims[-2:]
    kept = triangle(x.graph, rows, columns, diagonal=diagonal, upper=upper)
    return kept.graph.pointwise(name, lambda k, v: k & v, kept, x) if x.dtype is DType.I1 else where(kept, x, 0)
