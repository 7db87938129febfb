"""Arrays to call a compiled model with, repeatable from a seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.runtime.errors import ShapeError
from tilewright.runtime.program.program import Argument, Program
from tilewright.runtime.program.ragged_point import lengths_of
from tilewright.runtime.ragged_dim import offsets_name
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class RandomValues:
    """What an input is filled with: values in [lo, hi], of integers both ends included."""

    lo: float
    hi: float

    def draw(self, shape: tuple[int, ...], dtype: np.dtype[Any], rng: np.random.Generator) -> Array:
        """An array of this type."""
        if np.issubdtype(dtype, np.integer):
            return rng.integers(round(self.lo), round(self.hi), size=shape, endpoint=True).astype(dtype)
        return np.asarray(rng.uniform(self.lo, self.hi, size=shape)).astype(dtype)


Given = Array | RandomValues


def random_inputs(
    program: Program, dims: Mapping[str, int], seed: int, given: Mapping[str, Given] | None = None
) -> list[Array]:
    """An array per input of the program at these dims, those of `given` taken as they are.

    Weights (tensors of two or more axes, all static) have a variance of 1 / fan-in, static vectors lie in [0.5, 1.5],
    so that activations stay near 1 and variances are positive. Integers are 0 or 1, which most index operands allow
    (i8: -4 to 4); where `given` names a range, they are drawn from it.
    """
    supplied = dict(given or {})
    rng = np.random.default_rng(seed)
    places = {place: dims[d.name] for d in program.dims for place in d.at}
    found = []
    for argument in program.inputs:
        value = _random(argument, dims, rng)  # drawn even if supplied, so that the others do not depend on it
        if argument.name in places and argument.dims is None:
            value = np.asarray(places[argument.name], dtype=argument.dtype.numpy)
        found.append(_given(argument, supplied.pop(argument.name), value, seed) if argument.name in supplied else value)
    if supplied:
        names = ", ".join(a.name for a in program.inputs)
        raise ShapeError(f"the model has no input {', '.join(map(repr, supplied))}; its inputs: {names}")
    return found


def batch_inputs(program: Program, lengths: Mapping[str, Sequence[int]], seed: int,
                 given: Mapping[str, Given] | None = None, dims: Mapping[str, int] | None = None) -> list[Array]:
    """An array for each input of a ragged program, offsets and sums with them, as `random_inputs` draws them. dims: those that
    do not follow from the lengths."""
    whole = lengths_of(program, {**(dims or {}), **lengths})[0]
    dims = {n: v for n, v in whole.items() if n in program.ranges()}
    arrays = random_inputs(program, dims, seed, given)
    ends = {offsets_name(n): np.append(0, np.cumsum(own, dtype=np.int64)).astype(np.int64) for n, own in lengths.items()}
    return [ends.get(a.name, x) for a, x in zip(program.inputs, arrays, strict=True)]


def _given(argument: Argument, given: Given, drawn: Array, seed: int) -> Array:
    """What is given for an argument, of the shape that was drawn for it where only a range is."""
    if isinstance(given, RandomValues):
        return given.draw(drawn.shape, np.dtype(argument.dtype.numpy), np.random.default_rng([seed, *argument.name.encode()]))
    return given.astype(argument.dtype.numpy) if argument.dims is None else given


def _random(argument: Argument, dims: Mapping[str, int], rng: np.random.Generator) -> Array:
    extents = [Expr.parse(d) for d in argument.dims or ()]
    shape = tuple(e.evaluate(dims) for e in extents)
    dtype = argument.dtype
    if not dtype.is_float:
        low = -4 if dtype is DType.I8 else 0
        return rng.integers(low, 4 if dtype is DType.I8 else 1, size=shape, endpoint=True).astype(dtype.numpy)
    static = bool(extents) and all(e.constant is not None for e in extents)
    if static and len(shape) == 1:
        return rng.uniform(0.5, 1.5, size=shape).astype(dtype.numpy)
    fan_in = math.prod(sorted(shape)[:-1]) if static else 1
    return np.asarray(rng.standard_normal(size=shape) / math.sqrt(max(fan_in, 1))).astype(dtype.numpy)
