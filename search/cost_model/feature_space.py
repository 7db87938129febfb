"""Named features for the cost model: of a configuration in its workload, and of a configuration at a shape.

A row of numbers always travels with its names, so that a model trained on one family or operator reads the rows of another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from passes.workload import Operand, Workload
from search.cost_model import analytic
from search.cost_model.gpu_form import Grid
from search.space.array_types import Floats, Ints, Many
from search.space.guards import Guards
from search.space.lattice import Lattice
from search.space.shapes import Dims

_PAGE = 4096


@dataclass(frozen=True)
class Rows:
    """values: [row, feature]; NaN where a feature does not apply."""

    names: tuple[str, ...]
    values: Floats

    def beside(self, columns: Mapping[str, Floats]) -> Rows:
        """With more columns."""
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


class FeatureSpace:
    """A lattice and shapes, with what the cost model reads of their pairs."""

    def __init__(self, lattice: Lattice, shapes: Sequence[Dims]) -> None:
        self.lattice, self.shapes = lattice, tuple(shapes)

    @cached_property
    def extents(self) -> Ints:
        """[shape, extent]."""
        return np.array([[e.evaluate(dict(s)) for e in self.lattice.extents.values()] for s in self.shapes], np.int64).reshape(
            len(self.shapes), len(self.lattice.extents))

    @cached_property
    def bytes(self) -> Floats:
        """Distinct bytes that each shape reads and writes."""
        w = self.lattice.workload
        return np.array([max(1, w.bytes.evaluate(dict(s))) for s in self.shapes], np.float64)

    @cached_property
    def compute(self) -> Floats:
        """Cycles of one core for the arithmetic of each shape (search/cost_model/analytic.py)."""
        w = self.lattice.workload
        return analytic.compute(np.array([w.flops.evaluate(dict(s)) for s in self.shapes], np.float64), self.lattice.host)

    @cached_property
    def traffic(self) -> Floats:
        """Cycles of one core for the memory traffic of each shape."""
        return analytic.traffic(self.bytes, self.lattice.host)

    @property
    def config_rows(self) -> Rows:
        """One row a configuration: its coordinates and what its family says of it, what its workload is; of a GPU kernel also
        what a multiprocessor holds of it, as far as it was built as its code tells."""
        form = self.lattice.form
        return self._config_rows if form is None else self._config_rows.beside(form.config_columns())

    @cached_property
    def _config_rows(self) -> Rows:
        columns = dict(self.lattice.config_columns)
        for name, value in workload_features(self.lattice.workload).items():
            columns[name] = np.full(len(self.lattice), value)
        return Rows(tuple(columns), np.stack(list(columns.values()), axis=1))

    @cached_property
    def shape_rows(self) -> Rows:
        """One row a shape: logarithms of its extents, work and bytes, strides that share cache sets."""
        w = self.lattice.workload
        if self.lattice.form is not None:
            columns = {f"log_{n}": np.log2(np.maximum(self.extents[:, i], 1)) for i, n in enumerate(self.lattice.extents)}
            columns["log_bytes"] = np.log2(self.bytes)
            return Rows(tuple(columns), np.stack(list(columns.values()), axis=1))
        limits = self.lattice.host
        columns = {f"log_{n}": np.log2(np.maximum(self.extents[:, i], 1)) for i, n in enumerate(self.lattice.extents)}
        columns["log_work"] = np.log2(np.maximum(self.compute, self.traffic))
        columns["compute_over_traffic"] = np.log2(self.compute / self.traffic)
        columns["bytes_of_l2"] = np.log2(self.bytes / limits.l2)
        columns["bytes_of_l3"] = np.log2(self.bytes / limits.l3)
        conflicts = [[stride_conflict(o, dict(s)) for s in self.shapes] for o in (*w.inputs, *w.outputs)]
        columns["conflicting_strides"] = np.sum(np.array(conflicts, np.float64), axis=0)
        return Rows(tuple(columns), np.stack(list(columns.values()), axis=1))

    def pads(self, pairs: Pairs) -> Floats:
        """Share of the time that is not spent on padding and on short blocks."""
        extents, lattice, c = self.extents[pairs.shapes], self.lattice, pairs.configs
        short = analytic.tails(extents, lattice.blocks[c], lattice.least[c], lattice.halved[c])
        return short * analytic.pad(extents, lattice.whole[c], lattice.pads[c], lattice.partial[c])

    def units(self, pairs: Pairs) -> Floats:
        return analytic.units(self.extents[pairs.shapes], self.lattice.units[pairs.configs])

    def legal(self, pairs: Pairs) -> np.ndarray:
        """Does the kernel serve the shape, as far as its anatomy says, and the guards of what was built?"""
        fits = np.all(self.extents[pairs.shapes] <= self.lattice.most[pairs.configs], axis=1)
        return np.asarray(fits if not self.lattice.built else fits & self._guards.hold(pairs.configs, pairs.shapes))

    @cached_property
    def _guards(self) -> Guards:
        return Guards(self.lattice, self.shapes)

    def grid(self, pairs: Pairs) -> Grid:
        """What GPU kernels launch at each pair."""
        assert self.lattice.form is not None
        return self.lattice.form.grid(pairs.configs, self.units(pairs), self.extents[pairs.shapes], self.bytes[pairs.shapes])

    def log_base(self, pairs: Pairs) -> Floats:
        """Logarithm of the cycles expected by arithmetic alone: work / (threads * occ), where work is the larger of
        arithmetic / (rate * pad) and memory traffic, and what comes beside it. On a GPU: search/cost_model/gpu_form.py."""
        if self.lattice.form is not None:
            return self.lattice.form.log_cycles(self.grid(pairs))
        cores = pairs.threads.astype(np.float64)
        pieces = self.units(pairs)
        speed = cores * analytic.occ(pieces, cores)
        bytes_, along = self.lattice.copied
        copied = bytes_[pairs.configs] * self.extents[pairs.shapes, along[pairs.configs]] * self._filled(pairs)
        return np.asarray(np.log(self._work(pairs) / speed + analytic.overhead(pieces / speed, copied)), np.float64)

    def _filled(self, pairs: Pairs) -> Floats:
        """Share of the tiles that is in the result: what a unit copies stops at the extent."""
        tiles = self.lattice.whole[pairs.configs]
        return analytic.pad(self.extents[pairs.shapes], tiles, tiles, np.ones_like(tiles, np.float64))

    def _work(self, pairs: Pairs) -> Floats:
        needed = self.compute[pairs.shapes] / (self.lattice.rates[pairs.configs] * self.pads(pairs))
        return np.maximum(needed, self.traffic[pairs.shapes])

    def pair_rows(self, pairs: Pairs) -> Rows:
        """Features of a kernel at a shape: what the analytic form leaves open."""
        extents, tiles = self.extents[pairs.shapes], self.lattice.tiles[pairs.configs]
        form = self.lattice.form
        columns = self._host_columns(pairs) if form is None else form.columns(pairs.configs, self.grid(pairs), self.pads(pairs))
        for i, name in enumerate(self.lattice.extents):
            columns[f"tiles_{name}"] = np.log2(np.maximum(extents[:, i] / tiles[:, i], 1 / 64))
            columns[f"tail_{name}"] = (extents[:, i] % tiles[:, i]) / tiles[:, i]
        columns |= self._footprints(pairs) if form is None else {}
        shape = self.shape_rows
        for i, name in enumerate(shape.names):
            columns[name] = shape.values[pairs.shapes, i]
        return Rows(tuple(columns), np.stack(list(columns.values()), axis=1))

    def _host_columns(self, pairs: Pairs) -> dict[str, Floats]:
        cores = pairs.threads.astype(np.float64)
        pieces = self.units(pairs)
        waves = np.ceil(pieces / cores)
        return {
            "threads": cores,
            "pad": self.pads(pairs),
            "occ": analytic.occ(pieces, cores),
            "log_units": np.log2(pieces),
            "log_waves": np.log2(waves),
            "last_wave": pieces / cores - (waves - 1),
            "log_work_a_unit": np.log2(self._work(pairs) / pieces),
            "work_over_traffic": np.log2(self._work(pairs) / self.traffic[pairs.shapes]),
        }

    def _footprints(self, pairs: Pairs) -> dict[str, Floats]:
        """Logarithm of each footprint as a share of the first and second cache."""
        bytes_, along = self._footprint_table
        found = {}
        for name, per in bytes_.items():
            size = per[pairs.configs] * self.extents[pairs.shapes, along[name][pairs.configs]]
            found[f"{name}_of_l1"] = np.log2(np.maximum(size, 1) / self.lattice.host.l1)
            found[f"{name}_of_l2"] = np.log2(np.maximum(size, 1) / self.lattice.host.l2)
        return found

    @cached_property
    def _footprint_table(self) -> tuple[dict[str, Floats], dict[str, Ints]]:
        """Bytes an element and the number of the extent they run along, by footprint and configuration."""
        numbers = {n: i for i, n in enumerate(self.lattice.extents)}
        bytes_: dict[str, Floats] = {}
        along: dict[str, Ints] = {}
        for i, config in enumerate(self.lattice.configs):
            for name, footprint in self.lattice.anatomy(i).footprints.items():
                key = f"{config.family}.{name}"
                bytes_.setdefault(key, np.zeros(len(self.lattice)))[i] = footprint.bytes
                along.setdefault(key, np.zeros(len(self.lattice), np.int64))[i] = numbers[f"{config.family}.{footprint.along}"]
        return bytes_, along


def workload_features(workload: Workload) -> Mapping[str, float]:
    """What sets the operators of a family apart: static extents, operands and their layout, arithmetic."""
    found: dict[str, float] = {
        "inputs": len(workload.inputs),
        "outputs": len(workload.outputs),
        "constants": sum(o.constant for o in workload.inputs),
        "widest": max(o.dtype.bytes for o in (*workload.inputs, *workload.outputs)),
    }
    for number, operand in enumerate(workload.inputs[:3]):
        unit = operand.unit_axis
        found[f"unit_axis_from_last_{number}"] = np.nan if unit is None else len(operand.dims) - 1 - unit
    for role in ("b", "m", "n", "k", "row", "col", "p", "r"):
        size = workload.size(role).constant
        found[f"static_{role}"] = np.nan if size is None else np.log2(max(size, 1))
    return found


def stride_conflict(operand: Operand, dims: Mapping[str, int]) -> float:
    """1 when neighbours along the slowest-but-one axis of a dense operand are whole pages apart, 0.5 for half pages."""
    if len(operand.dims) < 2:
        return 0.0
    axis = operand.unit_axis if operand.unit_axis is not None else len(operand.dims) - 1
    pitch = operand.dims[axis].evaluate(dims) * operand.dtype.bytes
    if pitch == 0:
        return 0.0
    return 1.0 if pitch % _PAGE == 0 else 0.5 if pitch % (_PAGE // 2) == 0 else 0.0
