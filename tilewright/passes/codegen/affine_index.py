"""Affine expressions and maps over Index values."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.passes.codegen.index import Index
from tilewright.passes.mlir import ir, position


def invert(m: ir.AffineMap, coords: Sequence[Index]) -> list[Index | None]:
    """Loop coordinates from result coordinates of a projected permutation (constants allowed); None where not fixed."""
    loops: list[Index | None] = [None] * m.n_dims
    for e, c in zip(m.results, coords, strict=True):
        at = position(e)
        if at is not None:
            loops[at] = c
        elif not isinstance(e, ir.AffineConstantExpr):
            raise ValueError(f"the output map {m} is not a permutation of loops")
    return loops


def evaluate(e: ir.AffineExpr, dims: Sequence[Index | None], symbols: Sequence[Index] = ()) -> Index:
    """An affine expression over Index values."""
    at: int | None = position(e)
    if at is not None:
        found = dims[at]
        if found is None:
            raise ValueError(f"loop d{at} has no coordinate here")
        return found
    if isinstance(e, ir.AffineSymbolExpr):
        return symbols[int(ir.AffineSymbolExpr(e).position)]
    if isinstance(e, ir.AffineConstantExpr):
        return Index(ir.AffineConstantExpr(e).value)
    binary = ir.AffineBinaryExpr(e)
    a, b = evaluate(binary.lhs, dims, symbols), evaluate(binary.rhs, dims, symbols)
    if isinstance(e, ir.AffineAddExpr):
        return a + b
    if isinstance(e, ir.AffineMulExpr):
        return a * b
    if isinstance(e, ir.AffineFloorDivExpr):
        return a.floordiv(b)
    if isinstance(e, ir.AffineCeilDivExpr):
        return (a + (b - 1)).floordiv(b)
    return a - a.floordiv(b) * b
