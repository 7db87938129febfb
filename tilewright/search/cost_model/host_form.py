"""HostForm: what arithmetic alone says of a host kernel at a shape (after DietCode, MLSys'22).

`time = work / (threads * occ)`, where work is the larger of arithmetic / (rate * pad) and memory traffic, and what comes beside
it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np

from tilewright.runtime.limits import HostLimits
from tilewright.search.cost_model import analytic
from tilewright.search.cost_model.pairs import Pairs
from tilewright.search.cost_model.shape_table import ShapeTable
from tilewright.search.cost_model.workload_features import stride_conflict
from tilewright.search.space.array_types import Floats, Ints
from tilewright.search.space.kernel_facts import KernelFacts
from tilewright.search.space.lattice import Lattice


class HostForm:
    """A CostForm. It has no terms that are fitted: the trees of the cost model take what it leaves."""

    drifts = True
    whole_vectors = False

    def __init__(self, lattice: Lattice, limits: HostLimits) -> None:
        self.lattice, self.limits = lattice, limits

    def note(self, config: str, facts: KernelFacts) -> None:
        self.lattice.note(config, facts)

    def config_columns(self) -> dict[str, Floats]:
        """None beside those of the lattice."""
        return {}

    def shape_columns(self, table: ShapeTable) -> dict[str, Floats]:
        """Logarithms of extents, work and bytes; strides that share cache sets."""
        w, compute, traffic = self.lattice.workload, self._compute(table), self._traffic(table)
        conflicts = [[stride_conflict(o, dict(s)) for s in table.shapes] for o in (*w.inputs, *w.outputs)]
        return {
            **table.extent_columns(),
            "log_work": np.log2(np.maximum(compute, traffic)),
            "compute_over_traffic": np.log2(compute / traffic),
            "bytes_of_l2": np.log2(table.bytes / self.limits.l2),
            "bytes_of_l3": np.log2(table.bytes / self.limits.l3),
            "conflicting_strides": np.sum(np.array(conflicts, np.float64), axis=0),
        }

    def pair_columns(self, table: ShapeTable, pairs: Pairs) -> dict[str, Floats]:
        cores = pairs.threads.astype(np.float64)
        pieces, work = table.units(pairs), self._work(table, pairs)
        waves = np.ceil(pieces / cores)
        return {
            "threads": cores,
            "pad": table.pads(pairs),
            "occ": analytic.occ(pieces, cores),
            "log_units": np.log2(pieces),
            "log_waves": np.log2(waves),
            "last_wave": pieces / cores - (waves - 1),
            "log_work_a_unit": np.log2(work / pieces),
            "work_over_traffic": np.log2(work / self._traffic(table)[pairs.shapes]),
            **table.tile_columns(pairs),
            **self._footprints(table, pairs),
        }

    def log_cycles(self, table: ShapeTable, pairs: Pairs) -> Floats:
        cores = pairs.threads.astype(np.float64)
        pieces = table.units(pairs)
        speed = cores * analytic.occ(pieces, cores)
        bytes_, along = self.lattice.copied
        copied = bytes_[pairs.configs] * table.extents[pairs.shapes, along[pairs.configs]] * table.filled(pairs)
        return np.asarray(np.log(self._work(table, pairs) / speed + analytic.overhead(pieces / speed, copied)), np.float64)

    def kernel_shifts(self, table: ShapeTable, measured: Pairs, beyond: Floats, targets: Pairs) -> tuple[Floats, Floats]:
        return np.zeros(len(measured)), np.zeros(len(targets))

    def refit(self, table: ShapeTable, measured: Pairs, beyond: Callable[[], Floats]) -> None:
        """Nothing moves."""

    def _compute(self, table: ShapeTable) -> Floats:
        """[shape]: cycles of one core for the arithmetic."""
        return analytic.compute(table.flops, self.limits)

    def _traffic(self, table: ShapeTable) -> Floats:
        """[shape]: cycles of one core for the memory traffic."""
        return analytic.traffic(table.bytes, self.limits)

    def _work(self, table: ShapeTable, pairs: Pairs) -> Floats:
        needed = self._compute(table)[pairs.shapes] / (self.lattice.rates[pairs.configs] * table.pads(pairs))
        return np.maximum(needed, self._traffic(table)[pairs.shapes])

    def _footprints(self, table: ShapeTable, pairs: Pairs) -> dict[str, Floats]:
        """Logarithm of each footprint as a share of the first and second cache."""
        bytes_, along = self._footprint_table
        found = {}
        for name, per in bytes_.items():
            size = per[pairs.configs] * table.extents[pairs.shapes, along[name][pairs.configs]]
            found[f"{name}_of_l1"] = np.log2(np.maximum(size, 1) / self.limits.l1)
            found[f"{name}_of_l2"] = np.log2(np.maximum(size, 1) / self.limits.l2)
        return found

    @cached_property
    def _footprint_table(self) -> tuple[dict[str, Floats], dict[str, Ints]]:
        """Bytes an element and the number of the extent they run along, by footprint and configuration."""
        numbers = {n: i for i, n in enumerate(self.lattice.extents)}
        bytes_: dict[str, Floats] = {}
        along: dict[str, Ints] = {}
        for i, config in enumerate(self.lattice.configs):
            for name, footprint in self.lattice.kernel_cost(i).footprints.items():
                key = f"{config.family}.{name}"
                bytes_.setdefault(key, np.zeros(len(self.lattice)))[i] = footprint.bytes
                along.setdefault(key, np.zeros(len(self.lattice), np.int64))[i] = numbers[f"{config.family}.{footprint.along}"]
        return bytes_, along
