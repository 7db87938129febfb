"""Workloads and cost surfaces with a known optimum: the search is tested on them, with no compiler and no device."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from passes.spaces.host_matmul import HostMatmulConfig, Pack
from passes.tile_config import TileConfig
from passes.workload import Kind, Loop, Operand, Workload
from runtime.limits import HostLimits
from runtime.shape import Expr, ShapeRange
from runtime.tensor import DType
from search.measure import Environment
from search.task import Task

LIMITS = HostLimits(64, 32, 48 * 1024, 1024 * 1024, 32 * 1024 * 1024, 2)


def dense(columns: int = 2304, depth: int = 768, key: str = "") -> Workload:
    """[d0, depth] x [depth, columns] in f32."""
    m, k, n = Expr.dim("d0"), Expr.of(depth), Expr.of(columns)
    inputs = (Operand(DType.F32, (m, k), 1), Operand(DType.F32, (k, n), 1))
    loops = (Loop("m", m), Loop("n", n), Loop("k", k))
    return Workload(key or f"dense{columns}x{depth}", f"dense_{columns}x{depth}", Kind.CONTRACTION, "", ("d0",), inputs,
                    (Operand(DType.F32, (m, n), 1),), loops, m * n * k * 2, (m * k + k * n + m * n) * 4)


def square_pair() -> Workload:
    """[d0, 64] x [64, d1]: two dynamic extents."""
    m, k, n = Expr.dim("d0"), Expr.of(64), Expr.dim("d1")
    inputs = (Operand(DType.F32, (m, k), 1), Operand(DType.F32, (k, n), 1))
    loops = (Loop("m", m), Loop("n", n), Loop("k", k))
    return Workload("pair", "pair", Kind.CONTRACTION, "", ("d0", "d1"), inputs, (Operand(DType.F32, (m, n), 1),), loops,
                    m * n * k * 2, (m * k + k * n + m * n) * 4)


def matmul_seconds(config: TileConfig, dims: Mapping[str, int], threads: int, columns: int = 2304, depth: int = 768) -> float:
    """A plausible surface: compute, padded rows and columns, loads, copies, prefetch, uneven work units, thread start."""
    assert isinstance(config, HostMatmulConfig)
    m, n, k = dims["d0"], dims.get("d1", columns), depth if "d1" not in dims else 64
    rows, cols = math.ceil(m / config.mr) * config.mr, math.ceil(n / config.columns) * config.columns
    latency = max(1.0, 8 / (config.mr * config.nv))
    per_load = config.mr * config.nv / (config.mr + config.nv)
    cycles = rows * cols * k / (2 * config.lanes) * latency * (1 + 0.6 / per_load)
    stream = k * n * 4 * math.ceil(m / config.mr) / 48 * (0.6 if config.prefetch == 8 else 0.8 if config.prefetch else 1.0)
    if config.pack is Pack.PANEL:
        stream = k * n * 4 / 6 + k * n * 4 * math.ceil(m / config.mr) / 200
    chunks = math.ceil(m / config.mc) if config.mc else 1
    units = chunks * math.ceil(n / config.columns)
    if config.pack is Pack.PANEL:
        stream += (chunks - 1) * k * n * 4 / 6
    busy = units / math.ceil(units / threads)
    return float((cycles + 0.5 * stream) / busy / 4e9 + (3e-6 if threads > 1 else 3e-7))


@dataclass
class Clock:
    """Time that moves when told to."""

    now: float = 0.0
    each: float = 0.05
    device: str = "synthetic"
    ticks: int = field(default=0)

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += self.each
        self.ticks += 1

    def environment(self) -> Environment:
        return Environment(self.device, self)


def dense_task(hi: int = 128, workload: Workload | None = None, seed: int = 0) -> Task:
    w = workload or dense()
    return Task.of(w, LIMITS, ("host_matmul",), ShapeRange.of({"d0": (1, hi)}), [{"d0": Expr.dim("d0")}], seed=seed)


def regrets(task: Task, tuned_seconds: list[float], configs: list[TileConfig], shapes: list[Mapping[str, int]],
            threads: int) -> list[float]:
    """Of the dispatched seconds against the best of the whole space at each shape."""
    found = []
    for seconds, shape in zip(tuned_seconds, shapes, strict=True):
        best = min(matmul_seconds(c, shape, t) for c in configs for t in {1, threads})
        found.append(seconds / best - 1)
    return found
