"""Sums of products over loops, by matrix products."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tilewright.compiler.reference.scalars import Array


def contract(a: Array, b: Array, shape: tuple[int, ...], reduced: Sequence[int]) -> Array:
    """sum of a * b over the `reduced` loops of an iteration space of extents `shape`; these keep size 1 in the result.

    a, b: values over the space (an axis has the loop's extent, or 1 where the value does not vary); float64 or int64.
    """
    repeats = 1
    for d in reduced:
        if a.shape[d] == b.shape[d] == 1:
            repeats *= shape[d]
    a, b = _sum_alone(a, b, reduced), _sum_alone(b, a, reduced)
    loops = range(len(shape))
    varies = [(a.shape[d] != 1, b.shape[d] != 1) for d in loops]
    k = [d for d in loops if d in reduced and all(varies[d])]
    batch = [d for d in loops if d not in reduced and varies[d][0] == varies[d][1]]
    m = [d for d in loops if d not in (*k, *batch) and varies[d][0]]
    n = [d for d in loops if d not in (*k, *batch, *m)]
    left = _grouped(a, batch, m, k, n)
    right = _grouped(b, batch, k, n, m)
    product = _product(left, right) * repeats
    sizes = [*(a.shape[d] for d in (*batch, *m)), *(b.shape[d] for d in n), *(1 for _ in k)]
    return product.reshape(sizes).transpose(np.argsort([*batch, *m, *n, *k]))


def _sum_alone(x: Array, other: Array, reduced: Sequence[int]) -> Array:
    """`x` summed over the reduced loops along which only it varies."""
    alone = tuple(d for d in reduced if x.shape[d] != 1 and other.shape[d] == 1)
    return x.sum(axis=alone, keepdims=True) if alone else x


def _grouped(x: Array, batch: list[int], rows: list[int], columns: list[int], unit: list[int]) -> Array:
    """[batch..., product of rows, product of columns]; `unit` are loops of size 1."""
    moved = x.transpose([*batch, *rows, *columns, *unit])
    sizes = [x.shape[d] for d in batch]
    return moved.reshape([*sizes, math.prod(x.shape[d] for d in rows), math.prod(x.shape[d] for d in columns)])


def _product(a: Array, b: Array) -> Array:
    """a @ b; integers through float64 while the sums stay exact there."""
    if a.dtype == np.float64:
        return np.asarray(np.matmul(a, b))
    bound = float(np.abs(a).max(initial=0)) * float(np.abs(b).max(initial=0)) * a.shape[-1]
    if bound < 2.0**52:
        return np.asarray(np.matmul(a.astype(np.float64), b.astype(np.float64)).astype(np.int64))
    return np.asarray(np.matmul(a, b))
