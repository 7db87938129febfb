"""What arithmetic alone says of a micro-kernel at a shape: padding, occupancy, work (DietCode, MLSys'22, section 4).

`time = work / (rate(kernel) * occ * pad)`, where `pad` counts short blocks too. Everything is an array over (configuration, shape) pairs.
"""

from __future__ import annotations

import numpy as np

from runtime.limits import HostLimits
from search.space import Floats, Ints

_NEAR, _SHARED, _FAR = 48.0, 28.0, 8.0  # bytes a core moves in a cycle: its own cache, the shared one, memory
_UNITS_OF_FMA = 2.0


def pad(extents: Ints, pads: Ints) -> Floats:
    """Share of the computed elements that the result needs: the product of e / (t * ceil(e / t)) over the extents.

    extents, pads: [pair, extent].
    """
    whole = -(-extents // pads) * pads
    share = np.where(extents > 0, extents / np.maximum(whole, 1), 1.0)
    return np.asarray(np.prod(share, axis=1), np.float64)


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
