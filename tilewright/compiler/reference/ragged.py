"""A ragged call by the model itself: one sequence after the other, each alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.compiler.reference.interpreter import evaluate
from tilewright.passes.linalg.symbolic import DIMS, argument_attributes, read_dims
from tilewright.passes.mlir import functions, ir, new_context
from tilewright.runtime.shape import Expr

Array = npt.NDArray[Any]


def evaluate_ragged(model: str, outer: str, inputs: Sequence[npt.ArrayLike],
                    lengths: Mapping[str, Sequence[int]]) -> list[Array]:
    """Results of a model in float64: of each all elements of the first sequence, then those of the second, in one axis.

    Args:
        model: text with `tw.dims` on its arguments. outer: the dim that counts sequences.
        inputs: one for each argument; of those whose extents depend on the sequence the packed rows.
        lengths: ragged dim -> the length of each sequence.
    """
    with new_context():
        module = ir.Module.parse(model)
        extents = [read_dims(named[DIMS]) if DIMS in named else () for named in argument_attributes(next(functions(module)))]
        return _evaluate(module, extents, outer, [np.asarray(x) for x in inputs], lengths)


def _evaluate(module: ir.Module, extents: Sequence[Sequence[Expr]], outer: str, arrays: Sequence[Array],
              lengths: Mapping[str, Sequence[int]]) -> list[Array]:
    own = {outer, *lengths}
    depends = [any(e.symbols & own for e in dims) for dims in extents]
    arrays = [_entries_first(x, dims, outer) for x, dims in zip(arrays, extents, strict=True)]
    starts = [0] * len(arrays)
    found: list[list[Array]] = []
    for number in range(len(next(iter(lengths.values())))):
        point = {outer: 1, **{name: int(given[number]) for name, given in lengths.items()}}
        arguments = []
        for i, (array, dims) in enumerate(zip(arrays, extents, strict=True)):
            if depends[i]:
                shape = [_extent(e, point, array, axis) for axis, e in enumerate(dims)]
                arguments.append(array.reshape(-1)[starts[i] : starts[i] + prod(shape)].reshape(shape))
                starts[i] += prod(shape)
            else:
                arguments.append(array)
        found.append(evaluate(module, arguments))
    count = len(ir.FunctionType(ir.TypeAttr(next(functions(module)).attributes["function_type"]).value).results)
    return [np.concatenate([np.zeros(0), *(own[i].reshape(-1) for own in found)]) for i in range(count)]


def _entries_first(array: Array, dims: Sequence[Expr], outer: str) -> Array:
    """An array, of which that of an entry for each sequence along a later axis, as constants may have it, has them first."""
    counts = [a for a, e in enumerate(dims) if e.symbol == outer]
    return np.moveaxis(array, counts[0], 0) if counts and array.ndim == len(dims) else array


def _extent(expr: Expr, point: Mapping[str, int], array: Array, axis: int) -> int:
    """Of one sequence's part; dims that are the same for all are read from the array, which has them last."""
    unknown = expr.symbols - point.keys()
    return array.shape[axis - 1] if unknown else expr.evaluate(point)
