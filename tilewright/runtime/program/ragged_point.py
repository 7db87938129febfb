"""A batch of lengths as the dims of a ragged program: `explain(S=[5, 9])` and `memory`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.runtime.dim_forms import as_integer, as_integers
from tilewright.runtime.errors import OptionError, ShapeError
from tilewright.runtime.program.program import Program
from tilewright.runtime.ragged_dim import factors_of

Lengths = Mapping[str, Sequence[int]]


def lengths_of(program: Program, dims: Mapping[str, Any]) -> tuple[dict[str, Any], Lengths]:
    """The program's dims, and the lengths of each sequence, from a list of lengths for each ragged dim.

    Raises:
        OptionError: a ragged dim has no list. ShapeError: lists of different lengths, or a length outside its range.
    """
    found, lengths = dict(dims), {}
    for dim in program.ragged:
        if dim.length and dim.name not in found and dim.over in found:
            count = as_integer(found[dim.over], f"dim {dim.over}")
            found[dim.name] = dim.lengths_by_number(count)
        if dim.name not in found:
            raise OptionError(f"dim {dim.name}: wanted the length of each sequence, got none; give {dim.name}=[{dim.lo}, "
                              f"{dim.hi}]")
        own = as_integers(found.pop(dim.name), f"dim {dim.name}") or ()
        for number, length in enumerate(own):
            if not dim.dim().contains(length):
                raise ShapeError(f"dim {dim.name} = {length} of sequence {number} is outside its range {dim.dim()}; give one "
                                 "inside")
        lengths[dim.name] = own
        if found.setdefault(dim.over, len(own)) != len(own):
            raise ShapeError(f"dim {dim.name}: wanted {found[dim.over]} lengths, one for each {dim.over}, got {len(own)}; give "
                             "as many")
    found |= sums_of(program, {d.name: [d.stored(n) for n in lengths[d.name]] for d in program.ragged})
    return found, lengths


def sums_of(program: Program, lengths: Lengths) -> dict[str, int]:
    """The dims that are sums over all sequences."""
    return {d.name: sum(map(math.prod, zip(*(lengths[n] for n in names), strict=True)))
            for d in program.dims if (names := factors_of(d.name))}

