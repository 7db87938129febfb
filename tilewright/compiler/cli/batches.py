"""Batches and inputs to try a ragged model with, repeatable from a seed, and arrays without the rows between its sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from tilewright.compiler.cli.arguments import DimArguments
from tilewright.compiler.verification.random_inputs import Array
from tilewright.runtime.program.program import Argument, DimInfo, Program

Lengths = dict[str, list[int]]
_MOST = 8  # sequences of a batch, where the range allows fewer; what they are is drawn


def batch_of(program: Program, arguments: DimArguments) -> dict[str, Any]:
    """The dims that --dim gives a ragged program; one value for a ragged dim is that of one sequence."""
    ragged = {d.name for d in program.ragged}
    return {**{n: [v] if n in ragged else v for n, v in arguments.values.items()}, **arguments.batches}


def batches_of(program: Program, count: int, seed: int) -> list[Lengths]:
    """Up to `count` batches: none and one sequence, shortest and longest ones, zeros and a long one, random ones."""
    rng = np.random.default_rng(seed)
    outer = next(d for d in program.dims if d.name == program.ragged[0].over)
    found = []
    for number in range(count):
        size = int(rng.integers(max(outer.lo, 1), max(outer.lo, 1, min(outer.hi, _MOST)), endpoint=True))
        if number < 2:
            size = max(outer.lo, min(number, outer.hi))
        found.append({d.name: _lengths(d, size, number, rng) for d in program.ragged})
    return found


def _lengths(dim: DimInfo, count: int, kind: int, rng: np.random.Generator) -> list[int]:
    if dim.length:
        return dim.lengths_by_number(count)
    step = dim.multiple_of
    low, high = -(-dim.lo // step), dim.hi // step
    drawn = [int(n) for n in rng.integers(low, high, size=count, endpoint=True)]
    if kind % 5 == 2:
        drawn = [high] * count
    elif kind % 5 == 3:
        drawn = [low] * count
        if count:
            drawn[int(rng.integers(count))] = high
    elif kind % 5 == 4:
        drawn = [min(high, low + int(n)) for n in rng.integers(0, 2, size=count, endpoint=True)]
    return [n * step for n in drawn]


def parts_of(argument: Argument, program: Program, lengths: Mapping[str, Sequence[int]]) -> list[tuple[int, int]]:
    """Of each sequence the rows of a packed argument that are its own, and those up to the next sequence."""
    dims = {d.name: d for d in program.ragged}
    names = [e for e in argument.block if not e.isdigit()] or [argument.ragged]
    each = list(zip(*(lengths[n] for n in names), strict=True))
    return [(prod(own), prod(dims[n].stored(length) for n, length in zip(names, own, strict=True))) for own in each]


def without_gaps(array: Array, argument: Argument, program: Program, lengths: Mapping[str, Sequence[int]]) -> Array:
    """The rows of all sequences one after the other."""
    if not argument.ragged or not any(d.has_gaps for d in program.ragged):
        return array
    kept, start = [array[:0]], 0
    for own, stored in parts_of(argument, program, lengths):
        kept.append(array[start : start + own])
        start += stored
    return np.concatenate(kept)
