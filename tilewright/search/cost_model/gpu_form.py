"""GpuForm: what arithmetic alone says of a GPU kernel at a shape (DietCode's `occ` and `pad`, MLSys'22, with units = SMs)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tilewright.passes.spaces.gpu.gpu_grid import GpuGrid, Occupancy, block_row, grid_of
from tilewright.passes.spaces.gpu.gpu_rates import GpuRates
from tilewright.passes.spaces.kernel_cost import GpuBlock
from tilewright.runtime.limits import WARP, GpuLimits
from tilewright.search.cost_model.occupancy_fit import device_terms, kernel_terms
from tilewright.search.cost_model.pairs import Pairs
from tilewright.search.cost_model.shape_table import ShapeTable
from tilewright.search.space.array_types import Floats
from tilewright.search.space.kernel_facts import KernelFacts
from tilewright.search.space.lattice import Lattice


class GpuForm:
    """A CostForm of the blocks of a lattice.

    occupancy: the terms of the device, as far as they are known.
    """

    drifts = False
    whole_vectors = True

    def __init__(self, lattice: Lattice, limits: GpuLimits) -> None:
        self.lattice, self.limits, self.rates = lattice, limits, GpuRates.of(limits)
        self.occupancy = Occupancy(self.rates.launch)
        numbers = {n: i for i, n in enumerate(lattice.extents)}
        blocks = [self.block(i) for i in range(len(lattice))]
        along = [numbers.get(f"{c.family}.{b.along}", -1) for c, b in zip(lattice.configs, blocks, strict=True)]
        self._along = np.array(along, np.int64)  # the extent that each one's steps run along, -1 for none
        rows = [self._row(i) for i in range(len(lattice))]
        self._columns = {name: np.array([row[name] for row in rows], np.float64) for name in rows[0]}

    def note(self, config: str, facts: KernelFacts) -> None:
        if self.lattice.note(config, facts):
            number = self.lattice.number(config)
            assert number is not None
            for name, value in self._row(number).items():
                self._columns[name][number] = value

    def block(self, number: int) -> GpuBlock:
        """The block of a configuration, with what was noted of it."""
        block, facts = self.lattice.kernel_cost(number).block, self.lattice.facts.get(number)
        assert block is not None, f"the cost description of {self.lattice.texts[number]} tells no block"
        if facts is None:
            return block
        return replace(block, registers=facts.registers or block.registers, shared_bytes=facts.shared_bytes)

    def config_columns(self) -> dict[str, Floats]:
        """What a multiprocessor holds of them."""
        return {
            "resident": self["resident"],
            "resident_warps": self["resident"] * self["threads"] / WARP,
            "registers": self["registers"],
            "shared_bytes": self["shared_bytes"],
            "spills": self["spills"],
            "issue_over_shared": np.log2(np.maximum(self["step.issue"], 1.0) / 4 / np.maximum(self["step.shared"], 1.0)),
            "issue_over_matrix": np.log2(np.maximum(self["step.issue"], 1.0) / 4 / np.maximum(self["step.matrix"] / 2048, 1.0)),
            "ahead": self["ahead"],
        }

    def shape_columns(self, table: ShapeTable) -> dict[str, Floats]:
        """Logarithms of extents and bytes."""
        return {**table.extent_columns(), "log_bytes": np.log2(table.bytes)}

    def pair_columns(self, table: ShapeTable, pairs: Pairs) -> dict[str, Floats]:
        grid = self.grid(table, pairs)
        rounds = grid.blocks / (float(self.limits.multiprocessors) * grid.resident)
        work = grid.busiest * grid.shared_out
        return {
            "pad": table.pads(pairs),
            "occ": grid.filled,
            "log_units": np.log2(grid.blocks),
            "log_waves": np.log2(np.ceil(rounds)),
            "last_wave": rounds - (np.ceil(rounds) - 1),
            "resident": np.minimum(grid.resident, grid.busiest),
            "warps_in_flight": np.minimum(grid.resident, grid.busiest) * self["threads"][pairs.configs] / WARP,
            "log_steps": np.log2(grid.steps),
            "alone_over_shared": np.log2(grid.alone / (np.minimum(grid.resident, grid.busiest) * grid.shared_out)),
            "work_over_memory": np.log2(work / np.maximum(grid.memory, 1e-9)),
            "launch_share": np.log2(self.rates.launch * grid.launches / np.maximum(work, 1.0)),
            **table.tile_columns(pairs),
        }

    def log_cycles(self, table: ShapeTable, pairs: Pairs) -> Floats:
        return self.grid(table, pairs).log_cycles(self.occupancy)

    def kernel_shifts(self, table: ShapeTable, measured: Pairs, beyond: Floats, targets: Pairs) -> tuple[Floats, Floats]:
        at, to = np.zeros(len(measured)), np.zeros(len(targets))
        here, there = self.grid(table, measured), self.grid(table, targets)
        for config in np.unique(measured.configs):
            m, t = measured.configs == config, targets.configs == config
            terms = kernel_terms(here.only(m), beyond[m], self.occupancy)
            if terms != self.occupancy:
                at[m], to[t] = (g.log_cycles(terms) - g.log_cycles(self.occupancy) for g in (here.only(m), there.only(t)))
        return at, to

    def refit(self, table: ShapeTable, measured: Pairs, beyond: Callable[[], Floats]) -> None:
        self.occupancy = Occupancy(self.rates.launch)
        self.occupancy = device_terms(self.grid(table, measured), beyond(), self.occupancy)

    def grid(self, table: ShapeTable, pairs: Pairs) -> GpuGrid:
        """What the kernels launch."""
        c = pairs.configs
        along, extents = self._along[c], table.extents[pairs.shapes]
        extent = np.where(along >= 0, extents[np.arange(len(c)), along], 1)
        columns = {name: values[c] for name, values in self._columns.items()}
        return grid_of(columns, table.units(pairs), extent, table.bytes[pairs.shapes], self.limits)

    def __getitem__(self, name: str) -> Floats:
        """[configuration]"""
        return self._columns[name]

    def _row(self, number: int) -> dict[str, float]:
        facts = self.lattice.facts.get(number)
        return {**block_row(self.block(number), self.limits), "spills": float(facts.spills) if facts else 0.0}
