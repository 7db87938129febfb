"""What arithmetic alone says of a micro-kernel at a shape: padding, occupancy, work (DietCode, section 4).

`time = work / (rate(kernel) * occ * pad)`. Everything is an array over (configuration, shape) pairs.
"""

from __future__ import annotations

import numpy as np

from runtime.limits import HostLimits
from search.space import Floats, Ints

_LOADED_BYTES = 16.0  # that one core takes from beyond its own caches in a cycle
_UNITS_OF_FMA = 2.0


def pad(extents: Ints, tiles: Ints) -> Floats:
    """Share of the computed elements that the result needs: the product of e / (t * ceil(e / t)) over the extents.

    extents, tiles: [pair, extent].
    """
    whole = -(-extents // tiles) * tiles
    share = np.where(extents > 0, extents / np.maximum(whole, 1), 1.0)
    return np.asarray(np.prod(share, axis=1), np.float64)


def units(extents: Ints, unit: Ints) -> Floats:
    """Independent pieces of work; a unit of 0 takes the whole extent."""
    pieces = np.where(unit > 0, -(-extents // np.maximum(unit, 1)), 1)
    return np.asarray(np.prod(np.maximum(pieces, 1).astype(np.float64), axis=1), np.float64)


def occ(pieces: Floats, cores: Floats) -> Floats:
    """Share of the cores that is busy: g / (ceil(g / cores) * cores)."""
    return pieces / (np.ceil(pieces / cores) * cores)


def work(flops: Floats, bytes_: Floats, limits: HostLimits) -> Floats:
    """Cycles of one core at its peak rate, or at its memory's where that takes longer."""
    peak = _UNITS_OF_FMA * 2 * limits.vector_bytes / 4
    return np.maximum(np.maximum(flops / peak, bytes_ / _LOADED_BYTES), 1.0)
