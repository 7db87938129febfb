"""Shapes and inputs to try a compiled model with, repeatable from a seed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from tilewright.compiler.verification.random_inputs import Given, RandomValues
from tilewright.runtime.errors import ShapeError
from tilewright.runtime.program.program import Program
from tilewright.runtime.shape import Dim, ShapeRange


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
