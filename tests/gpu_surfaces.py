"""Workloads and surfaces for the search on GPU targets, with no compiler and no device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from hand_workloads import with_loops
from search_surfaces import dense, rows_up_to

from tilewright.passes.spaces.family_registry import config_text
from tilewright.passes.spaces.gpu.gpu_grid import Occupancy
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Axis, Kind, Loop, Operand, Workload
from tilewright.runtime.limits import GpuLimits
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType
from tilewright.search.cost_model.forms import form_of
from tilewright.search.cost_model.gpu_form import GpuForm
from tilewright.search.cost_model.pairs import Pairs
from tilewright.search.cost_model.shape_table import ShapeTable
from tilewright.search.space.lattice import Lattice
from tilewright.search.space.task import Task

H100 = GpuLimits.of("sm_90a")


def narrow(columns: int = 512, depth: int = 256) -> Workload:
    """[d0, depth] x [depth, columns] in f16."""
    m, k, n = Expr.dim("d0"), Expr.of(depth), Expr.of(columns)
    inputs = (Operand(DType.F16, (m, k), 1), Operand(DType.F16, (k, n), 1))
    loops = (Loop("m", m), Loop("n", n), Loop("k", k))
    found = Workload("narrow", "narrow", Kind.CONTRACTION, "", ("d0",), inputs, (Operand(DType.F16, (m, n), 1),),
                     loops, m * n * k * 2, (m * k + k * n + m * n) * 2)
    return with_loops(found, "m k,k n,m n")


def product_rows() -> Workload:
    """A softmax behind [d0, 256] x [256, 256] in f16."""
    return replace(narrow(256, 256), name="product_rows", kind=Kind.PRODUCT_ROWS, kept=DType.F16, reductions=3)


def square() -> Workload:
    """[d0, d1] x [d1, d1] in f32: rows of unit stride that are no whole vectors."""
    m, n = Expr.dim("d0"), Expr.dim("d1")
    inputs = (Operand(DType.F32, (m, n), 1), Operand(DType.F32, (n, n), 1))
    loops = (Loop("m", m), Loop("n", n), Loop("k", n))
    found = Workload("square", "square", Kind.CONTRACTION, "", ("d0", "d1"), inputs, (Operand(DType.F32, (m, n), 1),), loops,
                     m * n * n * 2, (m * n * 2 + n * n) * 4)
    return with_loops(found, "m k,k n,m n")


def rows(columns: int = 768) -> Workload:
    """Softmax over [d0, columns] in f32."""
    r, c = Expr.dim("d0"), Expr.of(columns)
    operand = Operand(DType.F32, (r, c), 1)
    found = Workload("rows", "rows", Kind.ROWS, "", ("d0",), (operand,), (operand,), (Loop("row", r), Loop("col", c)), r * c * 5,
                     r * c * 8, reductions=2)
    return with_loops(found, "row col,row col")


def pointwise() -> Workload:
    """An elementwise operator over [d0, 768] in f32."""
    r, c = Expr.dim("d0"), Expr.of(768)
    operand = Operand(DType.F32, (r, c), 1)
    laid_out = replace(operand, axes=(Axis((0,), (1,)), Axis((1,), (1,))))
    return Workload("pointwise", "pointwise", Kind.POINTWISE, "", ("d0",), (laid_out,), (laid_out,),
                    (Loop("p", r), Loop("p", c)), r * c * 4, r * c * 8)


def attention() -> Workload:
    """12 heads of 64 in f16, d0 queries and keys."""
    b, m, d = Expr.of(12), Expr.dim("d0"), Expr.of(64)
    operand = Operand(DType.F16, (b, m, d), 2)
    loops = (Loop("b", b), Loop("m", m), Loop("n", m), Loop("k", d), Loop("e", d))
    found = Workload("attention", "attention", Kind.ATTENTION, "", ("d0",), (operand,) * 3, (operand,), loops,
                     b * m * m * d * 4, b * m * d * 8)
    return with_loops(found, "b m k,b n k,b n e,b m e")


def simt_task(limits: GpuLimits = H100, most: int = 2048) -> Task:
    """A small part of the space of `simt`, over rows."""
    from tilewright.passes.spaces.gpu.simt import SimtConfig

    configs = [SimtConfig(bm, bn, 16, 4, 4, stages, split_k=split) for bm in (16, 32, 64, 128) for bn in (32, 64, 128)
               for stages in (2, 3) for split in (1, 4)]
    whole = Task.of(dense(256, 256), limits, ("simt",), rows_up_to(most))
    legal = [c for c in configs if 64 <= c.threads <= 512]
    return Task(whole.workload, limits, ("simt",), whole.points, whole.held_out, (*legal, *whole.defaults()))


class GpuSurface:
    """Seconds of a GPU with occupancy terms of its own: what arithmetic says, times a rate of each kernel.

    The rates are the same on every such GPU; the terms, the multiprocessors and the clock are not.
    """

    def __init__(self, task: Task, occupancy: Occupancy, clock: float, seed: int = 0, spread: float = 0.25) -> None:
        self.task, self.occupancy, self.clock = task, occupancy, clock
        lattice = task.lattice()
        rng = np.random.default_rng(seed)
        self.rates = dict(zip(lattice.texts, spread * rng.standard_normal(len(lattice)), strict=True))

    def __call__(self, config: TileConfig, dims: Mapping[str, int], threads: int = 1) -> float:
        return float(self.all([config], dims)[0])

    def all(self, configs: Sequence[TileConfig], dims: Mapping[str, int]) -> np.ndarray:
        lattice = Lattice(self.task.workload, self.task.limits, configs)
        form = form_of(lattice)
        assert isinstance(form, GpuForm)
        table = ShapeTable(lattice, (tuple(dims.items()),))
        cycles = form.grid(table, Pairs.product(range(len(lattice)), [0], [1])).log_cycles(self.occupancy)
        return np.exp(cycles + [self.rates[config_text(c)] for c in configs]) / self.clock
