"""ShapeTable: the shapes that a lattice's kernels may run at, and what follows from extents, tiles and guards alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from tilewright.search.cost_model import analytic
from tilewright.search.cost_model.pairs import Pairs
from tilewright.search.space.array_types import Floats, Ints
from tilewright.search.space.guards import Guards
from tilewright.search.space.lattice import Lattice
from tilewright.search.space.shapes import Dims


class ShapeTable:
    """A lattice and shapes. What takes pairs gives an array over them."""

    def __init__(self, lattice: Lattice, shapes: Sequence[Dims]) -> None:
        self.lattice, self.shapes = lattice, tuple(shapes)

    @cached_property
    def extents(self) -> Ints:
        """[shape, extent]."""
        return np.array([[e.evaluate(dict(s)) for e in self.lattice.extents.values()] for s in self.shapes], np.int64).reshape(
            len(self.shapes), len(self.lattice.extents))

    @cached_property
    def flops(self) -> Floats:
        """Arithmetic of each shape."""
        return np.array([self.lattice.workload.flops.evaluate(dict(s)) for s in self.shapes], np.float64)

    @cached_property
    def bytes(self) -> Floats:
        """Distinct bytes that each shape reads and writes."""
        return np.array([max(1, self.lattice.workload.bytes.evaluate(dict(s))) for s in self.shapes], np.float64)

    def pads(self, pairs: Pairs) -> Floats:
        """Share of the time that is not spent on padding and on short blocks."""
        extents, lattice, c = self.extents[pairs.shapes], self.lattice, pairs.configs
        short = analytic.tails(extents, lattice.blocks[c], lattice.least[c], lattice.halved[c])
        return short * analytic.pad(extents, lattice.whole[c], lattice.pads[c], lattice.partial[c])

    def filled(self, pairs: Pairs) -> Floats:
        """Share of the tiles that is in the result: what a unit copies stops at the extent."""
        tiles = self.lattice.whole[pairs.configs]
        return analytic.pad(self.extents[pairs.shapes], tiles, tiles, np.ones_like(tiles, np.float64))

    def units(self, pairs: Pairs) -> Floats:
        """Independent work units."""
        return analytic.units(self.extents[pairs.shapes], self.lattice.units[pairs.configs])

    def legal(self, pairs: Pairs) -> np.ndarray:
        """Does the kernel serve the shape, as far as its cost description says, and the guards of what was built?"""
        fits = np.all(self.extents[pairs.shapes] <= self.lattice.most[pairs.configs], axis=1)
        return np.asarray(fits & self.guarded(pairs))

    def guarded(self, pairs: Pairs) -> np.ndarray:
        """Do the guards hold, as far as they are known of what was built?"""
        if not self.lattice.facts:
            return np.ones(len(pairs.configs), bool)
        return np.asarray(self._guards.hold(pairs.configs, pairs.shapes))

    def extent_columns(self) -> dict[str, Floats]:
        """[shape] of the logarithm of each extent, under its name."""
        return {f"log_{n}": np.log2(np.maximum(self.extents[:, i], 1)) for i, n in enumerate(self.lattice.extents)}

    def tile_columns(self, pairs: Pairs) -> dict[str, Floats]:
        """Tiles along each extent, and the share of one that is left over."""
        extents, tiles = self.extents[pairs.shapes], self.lattice.tiles[pairs.configs]
        columns: dict[str, Floats] = {}
        for i, name in enumerate(self.lattice.extents):
            columns[f"tiles_{name}"] = np.log2(np.maximum(extents[:, i] / tiles[:, i], 1 / 64))
            columns[f"tail_{name}"] = (extents[:, i] % tiles[:, i]) / tiles[:, i]
        return columns

    @cached_property
    def _guards(self) -> Guards:
        return Guards(self.lattice, self.shapes)
