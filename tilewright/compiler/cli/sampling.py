"""Shapes and inputs to try a compiled model with, repeatable from a seed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from tilewright.compiler.cli.arguments import Array, Given, RandomValues
from tilewright.runtime.errors import ShapeError
from tilewright.runtime.program.program import Argument, Program
from tilewright.runtime.shape import Dim, Expr, ShapeRange
from tilewright.runtime.tensor import DType


def shapes_of(ranges: ShapeRange, count: int, seed: int) -> list[dict[str, int]]:
    """Up to `count` distinct shapes: the ends of all dims, primes, neighbours of powers of two, random values."""
    if not ranges:
        return [{}]
    rng = np.random.default_rng(seed)
    corners = [{n: pick(d) for n, d in ranges.items()} for pick in (_lowest, _highest)]
    corners += [{**corners[0], n: _highest(d)} for n, d in ranges.items()]
    pools = {n: _pool(d, count, rng) for n, d in ranges.items()}
    drawn = [{n: pool[(i * (k + 1)) % len(pool)] for k, (n, pool) in enumerate(pools.items())} for i in range(count)]
    drawn += [{n: int(rng.choice(pool)) for n, pool in pools.items()} for _ in range(count * 8)]
    distinct = {tuple(shape.items()): shape for shape in corners + drawn}
    return list(distinct.values())[:count]


def _lowest(dim: Dim) -> int:
    return -(-dim.lo // dim.multiple_of) * dim.multiple_of


def _highest(dim: Dim) -> int:
    return dim.hi // dim.multiple_of * dim.multiple_of


def _pool(dim: Dim, count: int, rng: np.random.Generator) -> list[int]:
    """Legal values worth trying, the interesting kinds interleaved, in random order within a kind."""
    powers = [1 << k for k in range(dim.hi.bit_length() + 1)]
    around = [v for p in powers[2:] for v in (p - 1, p, p + 1)]
    low, high = -(-dim.lo // dim.multiple_of), dim.hi // dim.multiple_of
    anywhere = [int(v) * dim.multiple_of for v in rng.integers(low, high, size=4 * count, endpoint=True)]
    primes = [v for v in range(2, min(dim.hi, 4096) + 1) if _prime(v)]
    kinds = [_legal(dim, rng.permutation(np.array(k, dtype=np.int64))) for k in (primes, around, anywhere)]
    longest = max(map(len, kinds))
    mixed = [kind[i] for i in range(longest) for kind in kinds if i < len(kind)]
    return list(dict.fromkeys([*(dim.samples or ()), *mixed]))


def _legal(dim: Dim, values: Iterable[int]) -> list[int]:
    return [int(v) for v in values if dim.contains(int(v))]


def _prime(n: int) -> bool:
    return all(n % k for k in range(2, math.isqrt(n) + 1))


def dims_of(program: Program, given: Mapping[str, Given]) -> dict[str, int]:
    """The dims that the given inputs fix; ShapeError when two of them disagree."""
    found: dict[str, tuple[int, str]] = {}
    scalars = {a.name for a in program.inputs if a.dims is None}
    for dim in program.dims:
        for place in dim.at:
            name, axis = (place, "") if place in scalars else place.rsplit(".", 1)
            array = given.get(name)
            if array is None or isinstance(array, RandomValues):
                continue
            if axis and int(axis) >= array.ndim:
                raise ShapeError(f"input {name} has rank {array.ndim}; {dim.name} is read from its axis {axis}")
            value = array.shape[int(axis)] if axis else int(array)
            before, where = found.setdefault(dim.name, (value, place))
            if before != value:
                raise ShapeError(f"dim {dim.name} is {before} by {where} and {value} by {place}")
    return {name: value for name, (value, _) in found.items()}


def check_dims(program: Program, values: Mapping[str, int]) -> dict[str, int]:
    """A value for each dim of the program, in range; ShapeError names what is missing or unknown."""
    ranges = program.ranges()
    known = ", ".join(f"{n} ({d})" for n, d in ranges.items()) or "none"
    for name in values:
        if name not in ranges:
            raise ShapeError(f"the model has no dim {name!r}; its dims: {known}")
    for name in ranges:
        if name not in values:
            raise ShapeError(f"dim {name} has no value: give --dim {name}=VALUE; the dims: {known}")
    if program.out_of_range == "error":
        ranges.check(values)
    return {n: values[n] for n in ranges}


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
