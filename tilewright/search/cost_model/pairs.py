"""Rows of named numbers, and pairs of a configuration and a shape by their numbers: what the cost model is fed with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.search.space.array_types import Floats, Ints, Many


@dataclass(frozen=True)
class Rows:
    """values: [row, feature]; NaN where a feature does not apply."""

    names: tuple[str, ...]
    values: Floats

    def beside(self, columns: Mapping[str, Floats]) -> Rows:
        """With more columns."""
        if not columns:
            return self
        return Rows((*self.names, *columns), np.column_stack([self.values, *columns.values()]))

    def under(self, names: Sequence[str]) -> Floats:
        """The columns with these names, in their order; NaN for those that are not there."""
        place = {n: i for i, n in enumerate(self.names)}
        found = np.full((len(self.values), len(names)), np.nan)
        for column, name in enumerate(names):
            if name in place:
                found[:, column] = self.values[:, place[name]]
        return found


@dataclass(frozen=True)
class Pairs:
    """(configuration, shape, threads) triples by index into a FeatureSpace: arrays of one length."""

    configs: Ints
    shapes: Ints
    threads: Ints

    @staticmethod
    def product(configs: Many, shapes: Many, threads: Many) -> Pairs:
        """All combinations, threads fastest."""
        axes = [np.asarray(values, np.int64) for values in (configs, shapes, threads)]
        grid = np.meshgrid(*axes, indexing="ij")
        return Pairs(*(g.ravel() for g in grid))

    def __len__(self) -> int:
        return len(self.configs)
