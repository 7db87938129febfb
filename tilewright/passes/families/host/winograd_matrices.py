"""Winograd's minimal filtering F(m, r): m outputs of a filter of r taps by m + r - 1 multiplications.

y = A^T [(G g) * (B^T d)] for d of m + r - 1 values and g of r, and the same along two axes for a square (Lavin and Gray, "Fast
Algorithms for Convolutional Neural Networks", CVPR 2016, sections 3 and 4). The matrices follow from the points 0, 1, -1, 2,
-2, ... and infinity that polynomials are evaluated at (Toom-Cook).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache
from math import prod

from tilewright.passes.codegen.emit import constant, element_type, lanes_of
from tilewright.passes.mlir import arith, ir, llvm

Matrix = tuple[tuple[Fraction, ...], ...]


@cache
def matrices(m: int, r: int) -> tuple[Matrix, Matrix, Matrix]:
    """A^T [m, m + r - 1], G [m + r - 1, r], B^T [m + r - 1, m + r - 1], exact."""
    points = [Fraction((i + 1) // 2 * (1 if i % 2 else -1)) for i in range(m + r - 2)]
    scales = [prod((p - q for q in points if q != p), start=Fraction(1)) for p in points]
    infinity = [Fraction(0)]
    at = [[*(p**i for p in points), Fraction(int(i == m - 1))] for i in range(m)]
    g = [[p**k / abs(f) for k in range(r)] for p, f in zip(points, scales, strict=True)]
    g.append([*infinity * (r - 1), Fraction(1)])
    bt = [[(1 if f > 0 else -1) * c for c in _expanded([q for q in points if q != p])] + infinity
          for p, f in zip(points, scales, strict=True)]
    bt.append(_expanded(points))
    return tuple(map(tuple, at)), tuple(map(tuple, g)), tuple(map(tuple, bt))


def _expanded(roots: Sequence[Fraction]) -> list[Fraction]:
    """Coefficients, lowest first, of the product of x - root."""
    found = [Fraction(1)]
    for root in roots:
        found = [a - root * b for a, b in zip([Fraction(0), *found], [*found, Fraction(0)], strict=True)]
    return found


def corner(matrix: Matrix, rows: int, columns: int) -> Matrix:
    """The first rows and columns. With fewer taps the last column of G is without effect and the last row of G and of B^T, of
    the point infinity, gives zero: F(m, r - 1) is computed among F(m, r) by the corners of G and B^T."""
    return tuple(row[:columns] for row in matrix[:rows])


def on_both_sides(left: Matrix, right: Matrix, read: Callable[[int, int], ir.Value],
                  write: Callable[[int, int, ir.Value], None]) -> None:
    """L X R^T of a rectangle X of vectors, read column by column and written row by row."""
    half = [apply(left, [read(i, j) for i in range(len(left[0]))]) for j in range(len(right[0]))]
    for i in range(len(left)):
        for j, value in enumerate(apply(right, [column[i] for column in half])):
            write(i, j, value)


def apply(matrix: Matrix, values: Sequence[ir.Value]) -> list[ir.Value]:
    """The matrix times a column of scalars or vectors of a float type."""
    return [_sum([(c, v) for c, v in zip(row, values, strict=True) if c]) for row in matrix]


def _sum(terms: Sequence[tuple[Fraction, ir.Value]]) -> ir.Value:
    """The first term is one that needs no product, where there is one."""
    (factor, first), *rest = sorted(terms, key=lambda t: (t[0] != 1, abs(t[0]) == 1))
    total = first if factor == 1 else arith.mulf(_splat(factor, first), first)
    for factor, value in rest:
        if abs(factor) == 1:
            total = (arith.addf if factor > 0 else arith.subf)(total, value)
        else:
            total = llvm.intr_fmuladd(_splat(factor, value), value, total)
    return total


def _splat(factor: Fraction, like: ir.Value) -> ir.Value:
    return constant(element_type(like.type), float(factor), lanes_of(like))
