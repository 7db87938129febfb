"""Guards: where built kernels may run; those that were not built yet are taken to be as guarded as others with their accesses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.runtime.shape import Expr
from tilewright.search.space.array_types import Ints
from tilewright.search.space.dense import dense_symbols
from tilewright.search.space.lattice import Lattice
from tilewright.search.space.shapes import Dims

_ACCESSES = ("vec", "transpose_on_copy", "copied", "tile", "held", "vectors_in_registers", "queries_in_registers", "index")


class Guards:
    """Over the shapes of a feature space, for dense operands."""

    def __init__(self, lattice: Lattice, shapes: Sequence[Dims]) -> None:
        self.lattice, self.shapes = lattice, shapes
        self._symbols = [dense_symbols(lattice.workload, dict(s)) for s in shapes]
        self._hold: dict[tuple[str, ...], np.ndarray] = {}
        alike: dict[tuple[object, ...], int] = {}
        self._kind = np.array([alike.setdefault(_accesses(c), len(alike)) for c in lattice.configs], np.int64)
        self._kinds = len(alike)

    def hold(self, configs: Ints, shapes: Ints) -> np.ndarray:
        """[pair]: do the guards of the configuration hold at the shape?"""
        table = np.ones((self._kinds + len(self.lattice.facts), len(self.shapes)), bool)
        row = self._kind.copy()
        for i, (number, facts) in enumerate(self.lattice.facts.items()):
            table[self._kinds + i] = found = self._of(facts.guards)
            table[self._kind[number]] &= found
            row[number] = self._kinds + i
        return np.asarray(table[row[configs], shapes])

    def _of(self, guards: tuple[str, ...]) -> np.ndarray:
        if guards not in self._hold:
            exprs = [Expr.parse(g) for g in guards]
            self._hold[guards] = np.array([all(e.evaluate(s) == 0 for e in exprs) for s in self._symbols], bool)
        return self._hold[guards]


def _accesses(config: TileConfig) -> tuple[object, ...]:
    return (config.family, *(getattr(config, name, None) for name in _ACCESSES))
