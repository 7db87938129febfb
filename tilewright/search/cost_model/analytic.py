"""What arithmetic alone says of a micro-kernel at a shape: padding, occupancy, work (after DietCode, MLSys'22).

`time = work / (rate(kernel) * occ * pad)`, where `pad` counts short blocks too, and overheads. Everything is an array over
(configuration, shape) pairs.
"""

from __future__ import annotations

import numpy as np

from tilewright.runtime.limits import HostLimits
from tilewright.search.space.array_types import Floats, Ints

_NEAR, _SHARED, _FAR = 48.0, 28.0, 8.0  # bytes a core moves in a cycle: its own cache, the shared one, memory
_UNITS_OF_FMA = 2.0
_LAUNCH, _UNIT = 2500.0, 60.0  # cycles
_COPIED = 12.0  # bytes a cycle


def pad(extents: Ints, tiles: Ints, pads: Ints, partial: Floats) -> Floats:
    """Share of the time that goes to elements of the result: the product over the extents of e / cost, where what lies beyond
    whole tiles is rounded up to `pads` and each element of it takes `partial` times as long.

    With pads = tiles and partial = 1 it is e / (t * ceil(e / t)). extents, tiles, pads, partial: [pair, extent].
    """
    whole, left = extents // tiles * tiles, extents % tiles
    cost = whole + -(-left // pads) * pads * partial
    return np.asarray(np.prod(np.where(extents > 0, extents / np.maximum(cost, 1), 1.0), axis=1), np.float64)


def tails(extents: Ints, tiles: Ints, least: Ints, halved: Ints) -> Floats:
    """Share of the time of blocks that is spent on what the result needs, where a short block costs as much as `least`
    elements: the product over the extents of e / (sum of the blocks' costs)."""
    whole, left = extents // tiles, extents % tiles
    single = np.where(left > 0, np.maximum(left, least), 0)
    pieces = np.zeros_like(left)
    for bit in range(6):
        has = (left >> bit) & 1
        pieces = pieces + has * np.maximum(1 << bit, least)
    cost = whole * np.maximum(tiles, least) + np.where(halved > 0, pieces, single)
    return np.asarray(np.prod(np.where(extents > 0, extents / np.maximum(cost, 1), 1.0), axis=1), np.float64)


def units(extents: Ints, unit: Ints) -> Floats:
    """Independent pieces of work; a unit of 0 takes the whole extent."""
    pieces = np.where(unit > 0, -(-extents // np.maximum(unit, 1)), 1)
    return np.asarray(np.prod(np.maximum(pieces, 1).astype(np.float64), axis=1), np.float64)


def occ(pieces: Floats, cores: Floats) -> Floats:
    """Share of the cores that is busy: g / (ceil(g / cores) * cores)."""
    return pieces / (np.ceil(pieces / cores) * cores)


def compute(flops: Floats, limits: HostLimits) -> Floats:
    """Cycles of one core at its peak rate of f32 multiply-adds."""
    return np.maximum(flops / (_UNITS_OF_FMA * 2 * limits.vector_bytes / 4), 1.0)


def traffic(bytes_: Floats, limits: HostLimits) -> Floats:
    """Cycles of one core that reads or writes every byte once, from the cache that holds them all."""
    rate = np.where(bytes_ <= limits.l2, _NEAR, np.where(bytes_ <= limits.l3, _SHARED, _FAR))
    return np.maximum(bytes_ / rate, 1.0)


def overhead(pieces: Floats, copied: Floats) -> Floats:
    """Cycles beside the work: the launch, the start of each unit, what each unit copies first."""
    return _LAUNCH + pieces * (_UNIT + copied / _COPIED)
