"""FeatureSpace: named features for the cost model, of a configuration in its workload and of a configuration at a shape.

A row of numbers always travels with its names, so that a model trained on one family or operator reads the rows of another.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from tilewright.search.cost_model.form import CostForm
from tilewright.search.cost_model.pairs import Pairs, Rows
from tilewright.search.cost_model.shape_table import ShapeTable
from tilewright.search.cost_model.workload_features import workload_features
from tilewright.search.space.array_types import Floats
from tilewright.search.space.shapes import Dims


class FeatureSpace(ShapeTable):
    """The lattice of a form and shapes, with what the cost model reads of their pairs."""

    def __init__(self, form: CostForm, shapes: Sequence[Dims]) -> None:
        super().__init__(form.lattice, shapes)
        self.form = form

    @property
    def config_rows(self) -> Rows:
        """One row a configuration: its coordinates and what its family says of it, what its workload is, and what the form says
        of it, as far as it was built as its code tells."""
        return self._config_rows.beside(self.form.config_columns())

    @cached_property
    def _config_rows(self) -> Rows:
        columns = dict(self.lattice.config_columns)
        for name, value in workload_features(self.lattice.workload).items():
            columns[name] = np.full(len(self.lattice), value)
        return _rows(columns)

    @cached_property
    def shape_rows(self) -> Rows:
        """One row a shape."""
        return _rows(self.form.shape_columns(self))

    def pair_rows(self, pairs: Pairs) -> Rows:
        """Features of a kernel at a shape: what the analytic form leaves open."""
        columns, shape = self.form.pair_columns(self, pairs), self.shape_rows
        for i, name in enumerate(shape.names):
            columns[name] = shape.values[pairs.shapes, i]
        return _rows(columns)

    def log_base(self, pairs: Pairs) -> Floats:
        """Logarithm of the cycles expected by arithmetic alone."""
        return self.form.log_cycles(self, pairs)


def _rows(columns: dict[str, Floats]) -> Rows:
    return Rows(tuple(columns), np.stack(list(columns.values()), axis=1))
