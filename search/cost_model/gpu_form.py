"""GpuForm: what arithmetic alone says of a GPU kernel at a shape (DietCode's `occ` and `pad`, MLSys'22, with units = SMs).

The busiest multiprocessor decides: its blocks share its pipes, a round of resident blocks takes at least as long as one block
alone, and all of them share the memory. Everything is an array over (configuration, shape) pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from passes.spaces.anatomy import Block, Load
from runtime.limits import GpuLimits
from search.cost_model.gpu_rates import GpuRates, resident
from search.space.array_types import Floats, Ints

WARP = 32
_SHARP = 4.0
_JOIN = 2.0  # times as long as reading the sums once
_TURN = 300.0  # cycles between the end of a block and the first step of the next in its place


def overlapped(work: Floats | float, memory: Floats | float) -> Floats:
    """Cycles of work and of memory traffic beside it: little more than the larger, as they overlap well but not wholly."""
    return np.asarray((work**_SHARP + memory**_SHARP) ** (1 / _SHARP), np.float64)


@dataclass(frozen=True)
class Occupancy:
    """What is fitted per kernel, and moves when a log goes to another GPU.

    launch: cycles that a launch takes beside its work. tail: how much of a whole wave an incomplete one costs beyond its share:
    1, as much as a whole one; 0, its share. The time is `launch + work * (pieces + tail * idle) / units`. slower: logarithm by
    which a device is slower than those that its kernels' rates were learned on.
    """

    launch: float = 3000.0
    tail: float = 1.0
    slower: float = 0.0


@dataclass(frozen=True)
class Grid:
    """What a kernel launches at each pair: blocks, those of the busiest multiprocessor, residents, steps of a block; cycles of a
    block on the busiest pipe and alone, cycles that memory needs; launches, and cycles of the one that joins sums of parts."""

    blocks: Floats
    busiest: Floats
    resident: Floats
    steps: Floats
    shared_out: Floats
    alone: Floats
    memory: Floats
    launches: Floats
    joining: Floats


class GpuForm:
    """Of the blocks of a lattice.

    Args:
        blocks: one a configuration. along: number of the extent that each one's steps run along, -1 for none.
    """

    def __init__(self, limits: GpuLimits, blocks: Sequence[Block], along: Ints) -> None:
        self.limits, self.rates, self.along = limits, GpuRates.of(limits), along
        self.occupancy = Occupancy(self.rates.launch)
        rows = [self._row(b) for b in blocks]
        self._columns = {name: np.array([row[name] for row in rows], np.float64) for name in rows[0]}

    def set(self, number: int, block: Block, spills: int) -> None:
        """Take what a built kernel tells in place of what was expected of it."""
        for name, value in (self._row(block) | {"spills": float(spills)}).items():
            self._columns[name][number] = value

    def _row(self, b: Block) -> dict[str, float]:
        plain = {f.name: float(getattr(b, f.name)) for f in fields(Block) if f.name not in ("step", "once", "along")}
        loads = {f"{n}.{part.name}": float(getattr(of, part.name)) for n, of in (("step", b.step), ("once", b.once))
                 for part in fields(Load)}
        return {**plain, **loads, "spills": 0.0,
                "resident": float(resident(b.threads, b.registers, b.shared_bytes, self.limits))}

    def __getitem__(self, name: str) -> Floats:
        return self._columns[name]

    def grid(self, configs: Ints, tiles: Floats, extents: Ints, bytes_: Floats) -> Grid:
        """tiles: of the result. extents: [pair, extent]. bytes_: distinct bytes of the shape."""
        c, rates, units = configs, self.rates, float(self.limits.multiprocessors)
        parts, most = self["parts"][c], self["most"][c]
        blocks = tiles * parts
        extent = np.where(self.along[c] >= 0, extents[np.arange(len(c)), self.along[c]], 1)
        steps = np.maximum(1.0, np.ceil(extent / (self["depth"][c] * parts)))
        issue, shared, moved, matrix = (steps * self[f"step.{n}"][c] + self[f"once.{n}"][c]
                                        for n in ("issue", "shared", "bytes", "matrix"))
        shared_out = np.maximum.reduce([issue / rates.issue, shared, moved / rates.l2, matrix / rates.matrix])
        warps = self["threads"][c] / WARP
        one_step = np.maximum.reduce([self["step.issue"][c] / np.minimum(rates.issue, warps), self["step.shared"][c],
                                      self["step.bytes"][c] / rates.l2, self["step.matrix"][c] / rates.matrix])
        step = one_step + self["chain"][c]
        waiting = np.maximum(0.0, rates.latency - self["ahead"][c] * step) * (self["ahead"][c] > 0)
        alone = rates.latency + _TURN + steps * (step + waiting) + self["once.issue"][c] / np.minimum(rates.issue, warps)
        in_place = np.where(most > 0, np.minimum(self["resident"][c], np.maximum(1.0, most // units)), self["resident"][c])
        memory = bytes_ / (rates.memory * units)
        joining = np.where(parts > 1, rates.latency + _TURN + _JOIN * blocks * self["partial"][c] / (rates.l2 * units), 0.0)
        return Grid(blocks, np.ceil(blocks / units), in_place, steps, shared_out, alone, memory, self["launches"][c], joining)

    def log_cycles(self, grid: Grid, occupancy: Occupancy | None = None) -> Floats:
        """Logarithm of the cycles of all launches; by the device's occupancy terms where none are given."""
        occupancy = occupancy or self.occupancy
        units = float(self.limits.multiprocessors)
        share = grid.blocks / units
        busy = np.maximum(share + occupancy.tail * (grid.busiest - share), 1e-9)
        rounds = np.maximum(np.minimum(grid.busiest, 1.0), busy / grid.resident)
        work = overlapped(np.maximum(busy * grid.shared_out, rounds * grid.alone), grid.memory)
        return np.asarray(np.log(occupancy.launch * grid.launches + work + grid.joining) + occupancy.slower, np.float64)

    def filled(self, grid: Grid) -> Floats:
        """Share of the multiprocessors that is busy: g / (ceil(g / units) * units)."""
        return grid.blocks / (grid.busiest * self.limits.multiprocessors)

    def columns(self, configs: Ints, grid: Grid, pads: Floats) -> dict[str, Floats]:
        """Named features of pairs."""
        units = float(self.limits.multiprocessors)
        rounds = grid.blocks / (units * grid.resident)
        work = grid.busiest * grid.shared_out
        return {
            "pad": pads,
            "occ": self.filled(grid),
            "log_units": np.log2(grid.blocks),
            "log_waves": np.log2(np.ceil(rounds)),
            "last_wave": rounds - (np.ceil(rounds) - 1),
            "resident": np.minimum(grid.resident, grid.busiest),
            "warps_in_flight": np.minimum(grid.resident, grid.busiest) * self["threads"][configs] / WARP,
            "log_steps": np.log2(grid.steps),
            "alone_over_shared": np.log2(grid.alone / (np.minimum(grid.resident, grid.busiest) * grid.shared_out)),
            "work_over_memory": np.log2(work / np.maximum(grid.memory, 1e-9)),
            "launch_share": np.log2(self.rates.launch * grid.launches / np.maximum(work, 1.0)),
        }

    def config_columns(self) -> dict[str, Floats]:
        """Named features of configurations: what a multiprocessor holds of them."""
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
