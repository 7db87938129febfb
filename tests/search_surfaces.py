"""Workloads and cost surfaces with a known optimum: the search is tested on them, with no compiler and no device."""

from __future__ import annotations

import copy
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, fields

from hand_workloads import with_loops

from tilewright.passes.spaces.host.host_matmul import HostMatmulConfig, Pack
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Kind, Loop, Operand, Workload
from tilewright.runtime.limits import HostLimits
from tilewright.runtime.program.dispatch import select
from tilewright.runtime.shape import Expr, ShapeRange
from tilewright.runtime.tensor import DType
from tilewright.search.database.records import TuningLog
from tilewright.search.protocols import Builder, Runner
from tilewright.search.runner.measurer import Environment, MeasureContext
from tilewright.search.runner.replay import ReplayBuilder
from tilewright.search.search_strategy.outcome import Tuned
from tilewright.search.space.lattice import Lattice
from tilewright.search.space.shapes import Dims, ShapeDemand
from tilewright.search.space.task import Task

LIMITS = HostLimits(64, 32, 48 * 1024, 1024 * 1024, 32 * 1024 * 1024, 2)


def dense(columns: int = 2304, depth: int = 768, key: str = "") -> Workload:
    """[d0, depth] x [depth, columns] in f32."""
    m, k, n = Expr.dim("d0"), Expr.of(depth), Expr.of(columns)
    inputs = (Operand(DType.F32, (m, k), 1), Operand(DType.F32, (k, n), 1))
    loops = (Loop("m", m), Loop("n", n), Loop("k", k))
    found = Workload(key or f"dense{columns}x{depth}", f"dense_{columns}x{depth}", Kind.CONTRACTION, "", ("d0",), inputs,
                     (Operand(DType.F32, (m, n), 1),), loops, m * n * k * 2, (m * k + k * n + m * n) * 4)
    return with_loops(found, "m k,k n,m n")


def square_pair() -> Workload:
    """[d0, 64] x [64, d1]: two dynamic extents."""
    m, k, n = Expr.dim("d0"), Expr.of(64), Expr.dim("d1")
    inputs = (Operand(DType.F32, (m, k), 1), Operand(DType.F32, (k, n), 1))
    loops = (Loop("m", m), Loop("n", n), Loop("k", k))
    found = Workload("pair", "pair", Kind.CONTRACTION, "", ("d0", "d1"), inputs, (Operand(DType.F32, (m, n), 1),), loops,
                     m * n * k * 2, (m * k + k * n + m * n) * 4)
    return with_loops(found, "m k,k n,m n")


def matmul_seconds(config: TileConfig, dims: Mapping[str, int], threads: int, columns: int = 2304, depth: int = 768) -> float:
    """A plausible surface: compute, short blocks, reads of columns, copies, prefetch, uneven work units, thread start."""
    assert isinstance(config, HostMatmulConfig)
    m, n, k = dims["d0"], dims.get("d1", columns), depth if "d1" not in dims else 64
    whole, left = divmod(m, config.mr)
    tails = ([left] if config.exact_tails else [b for b in (8, 4, 2, 1) if left & b]) * (left > 0)
    vectors = math.ceil(n / config.columns) * config.nv
    per_vector = 1.2 if config.pack is Pack.PANEL else {0: 2.4, 8: 1.8}.get(config.prefetch, 2.1)
    least = per_vector * (config.nv + 2) / config.nv
    blocks = whole * max(config.mr / 2, least) + sum(max(h / 2, least) for h in tails)
    cycles = vectors * k * blocks * 16 / config.lanes
    if config.pack is Pack.PANEL:
        cycles += k * n / 3 * (math.ceil(m / config.mc) if config.mc else 1)
    units = (math.ceil(m / config.mc) if config.mc else 1) * math.ceil(n / config.columns)
    busy = units / math.ceil(units / threads)
    return float(max(cycles, k * n * 4 / 28) / busy / 4e9 + (3e-6 if threads > 1 else 3e-7))


@dataclass
class Clock:
    """Time that moves when told to."""

    now: float = 0.0
    each: float = 0.05
    device: str = "synthetic"

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += self.each

    def environment(self) -> Environment:
        return Environment(self.device, self)

    def context(self, runner: Runner, log: TuningLog | None = None, builder: Builder | None = None) -> MeasureContext:
        return MeasureContext(builder or ReplayBuilder(), runner, self.environment(), TuningLog() if log is None else log)


class DescribedTask(Task):
    """Its space is described once in a process: that takes longer than many of the searches here."""

    def lattice(self) -> Lattice:
        if self.configs or self.incumbent is not None:
            return super().lattice()
        key = (self.workload, self.limits, self.families, self.ordered)
        if key not in _LATTICES:
            found = _LATTICES[key] = super().lattice()
            found.neighbours(0)
            assert all(len(each) for each in (found.config_columns, found.tiles, found.pads, found.whole))
        shared = copy.copy(_LATTICES[key])
        shared.facts = {}  # what is built tells each search anew
        return shared


_LATTICES: dict[tuple[Hashable, ...], Lattice] = {}


def dense_task(hi: int = 128, workload: Workload | None = None, seed: int = 0) -> Task:
    found = Task.of(workload or dense(), LIMITS, ("host_matmul",), rows_up_to(hi), seed)
    return DescribedTask(**{f.name: getattr(found, f.name) for f in fields(found)})


def rows_up_to(hi: int) -> ShapeDemand:
    """One call, whose rows are any number up to `hi`."""
    return ShapeDemand(ShapeRange.of({"d0": (1, hi)}), [{"d0": Expr.dim("d0")}])


def regret(task: Task, tuned: Tuned, shapes: Sequence[Dims], threads: int) -> list[float]:
    """Of the dispatched kernels against the best of the whole space at each shape."""
    found = []
    for shape in shapes:
        leaf = select(tuned.root, dict(shape))
        mine = matmul_seconds(tuned.configs[leaf.kernel], dict(shape), leaf.threads or threads)
        found.append(mine / min(_least_seconds(task, shape, t) for t in {1, threads}) - 1)
    return found


_LEAST: dict[tuple[str, Dims, int], float] = {}


def _least_seconds(task: Task, shape: Dims, threads: int) -> float:
    """Of the whole space of a workload at a shape, found once: many tests look at the same ones."""
    key = (task.workload.key, shape, threads)
    if key not in _LEAST:
        _LEAST[key] = min(matmul_seconds(c, dict(shape), threads) for c in _space(task))
    return _LEAST[key]


_SPACES: dict[str, tuple[TileConfig, ...]] = {}


def _space(task: Task) -> tuple[TileConfig, ...]:
    """One configuration of those that take equally long."""
    if task.workload.key not in _SPACES:
        seen = {(c.mr, c.exact_tails, c.columns, c.nv, c.pack, c.prefetch, c.lanes, c.mc): c for c in task.lattice().configs}
        _SPACES[task.workload.key] = tuple(seen.values())
    return _SPACES[task.workload.key]
