"""Records as the cost model learns from them: pairs of a feature space that is as wide as what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.search.cost_model.feature_space import FeatureSpace
from tilewright.search.cost_model.form import CostForm
from tilewright.search.cost_model.model import CostModel, Samples
from tilewright.search.cost_model.pairs import Pairs
from tilewright.search.database.records import TuningRecord, cells
from tilewright.search.space.array_types import Floats, Ints
from tilewright.search.space.shapes import Dims


@dataclass(frozen=True)
class MeasuredPairs:
    """space: the shapes that were asked for, then the others that were measured. pairs: configuration, shape and threads of each
    cell of the records; seconds: what it took; turns: how often it was measured."""

    space: FeatureSpace
    pairs: Pairs
    seconds: Floats
    turns: Ints

    @staticmethod
    def of(space: FeatureSpace, records: Sequence[TuningRecord]) -> MeasuredPairs:
        """The good records of configurations of the lattice."""
        shapes: dict[Dims, int] = {s: i for i, s in enumerate(space.shapes)}
        rows = []
        names = space.lattice.workload.dims
        for cell in cells(records):
            config, dims = space.lattice.number(cell.config), dict(cell.shape)
            if config is not None and set(dims) == set(names):
                shape = tuple((n, dims[n]) for n in names)
                rows.append((config, shapes.setdefault(shape, len(shapes)), cell.threads, cell.turns, cell.seconds))
        table = np.array(rows, np.float64).reshape(-1, 5)
        whole = table[:, :4].astype(np.int64)
        return MeasuredPairs(FeatureSpace(space.form, tuple(shapes)), Pairs(*whole[:, :3].T), table[:, 4], whole[:, 3])

    def __len__(self) -> int:
        return len(self.pairs)


def training_samples(form: CostForm, records: Sequence[TuningRecord]) -> Samples | None:
    """What the cost model is trained on; None where there is nothing."""
    found = MeasuredPairs.of(FeatureSpace(form, ()), records)
    return Samples.of(found.space, found.pairs, found.seconds) if len(found) else None


def refit_device(form: CostForm, records: Sequence[TuningRecord], prior: CostModel) -> None:
    """Set the device's terms by which what was learned elsewhere tells best what was measured here.

    prior: learned on other devices.
    """
    found = MeasuredPairs.of(FeatureSpace(form, ()), records)
    if len(found) > 1:
        pairs = Pairs(found.pairs.configs, found.pairs.shapes, np.ones(len(found), np.int64))
        form.refit(found.space, pairs, lambda: np.log(found.seconds) - prior.predict(found.space, pairs)[0])
