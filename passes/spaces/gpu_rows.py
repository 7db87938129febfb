"""Choices of `gpu_rows`: reductions along rows and the elementwise work around them, threads side by side. MLIR-free."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

from passes.spaces.gpu_config import GpuConfig, is_power_of_two, why_invalid_block
from passes.workload import Kind, Workload
from runtime.dispatch import Leaf, Node, Split, switch
from runtime.limits import GpuLimits
from runtime.shape import Expr


@dataclass(frozen=True)
class GpuRowsConfig(GpuConfig):
    """per_row: threads of a row, from 1 (rows lie along the threads) over a warp to the whole block. vec: elements of one access.
    held: vectors of a row that a thread keeps in registers between sweeps; 0 reads rows of any length again. unroll: vectors of
    one round of a loop over a row."""

    family: ClassVar[str] = "gpu_rows"
    threads: int = 128
    per_row: int = 32
    vec: int = 4
    held: int = 0
    unroll: int = 2

    @property
    def columns_held(self) -> int:
        """The longest row that fits the registers."""
        return self.held * self.vec * self.per_row


def space(workload: Workload, limits: GpuLimits) -> Iterator[GpuRowsConfig]:
    """All legal configurations."""
    for threads, per_row, vec, held, unroll in product(
        (64, 128, 256, 512, 1024), (1, 4, 8, 16, 32, 64, 128, 256, 512, 1024), (1, 2, 4), (0, 1, 2, 4, 8), (1, 2, 4)
    ):
        config = GpuRowsConfig(threads, per_row, vec, held, unroll)
        if why_invalid(config, workload, limits) is None:
            yield config


def why_invalid(config: GpuRowsConfig, workload: Workload, limits: GpuLimits) -> str | None:
    """The rule that the configuration breaks, or None."""
    c = config
    if not all(map(is_power_of_two, (c.per_row, c.vec, c.unroll))):
        return f"power-of-two: {c}"
    if c.per_row > c.threads or c.threads % c.per_row:
        return f"rows-in-block: {c.per_row} threads of a row in blocks of {c.threads}"
    if c.held and c.unroll != 1:
        return "unroll-loops: a row in registers has no loop"
    if c.held * c.vec > 64:
        return f"register-budget: {c.held} vectors of {c.vec} elements"
    columns = _columns(workload).constant
    if c.held and columns is not None and not c.columns_held // 4 < columns <= c.columns_held:
        return f"row-fits: {columns} columns in {c.held} vectors of {c.vec} elements of {c.per_row} threads"
    return why_invalid_block(c.threads, c.index, limits.threads)


def default(workload: Workload, limits: GpuLimits) -> tuple[tuple[GpuRowsConfig, ...], Node]:
    """A warp holds a short row, a block a long one; longer ones are read again. Single elements where rows are no whole
    vectors. The last has no guards."""
    if not _along_columns(workload):
        return (GpuRowsConfig(128, 1, 1, 0, 4), GpuRowsConfig(128, 1, 1, 0, 1, index=64)), Leaf(0)
    widest = max((o.dtype.bytes for o in workload.inputs), default=4)
    vec = 4 if widest <= 4 else 2
    columns = _columns(workload)
    safe = GpuRowsConfig(256, 32, 1, 0, 2, index=64)
    if columns.constant is not None:
        steps = _steps(vec)
        return (next((c for c in steps if columns.constant <= c.columns_held), steps[-1]), safe), Leaf(0)
    wide, single = _steps(vec), _steps(1)
    configs = tuple(dict.fromkeys((*wide, *single, safe)))
    trees = [switch(str(columns), [(c.columns_held, Leaf(configs.index(c))) for c in steps[:-1]], Leaf(configs.index(steps[-1])))
             for steps in (wide, single)]
    return configs, Split(str(columns % vec), 0, *trees)


def _steps(vec: int) -> list[GpuRowsConfig]:
    """By length of row; the last takes any."""
    return [GpuRowsConfig(128, 32, 1, 1, 1), GpuRowsConfig(128, 32, vec, 8 // vec, 1), GpuRowsConfig(128, 32, vec, 32 // vec, 1),
            GpuRowsConfig(256, 256, vec, 32 // vec, 1), GpuRowsConfig(512, 512, vec, 0, 2)]


def _columns(workload: Workload) -> Expr:
    return workload.size("col") if workload.kind is Kind.ROWS else workload.size("k")


def _along_columns(workload: Workload) -> bool:
    """Do the operands of full rank lie contiguously along the last column?"""
    role = "col" if workload.kind is Kind.ROWS else "k"
    extents = [loop.extent for loop in workload.loops if loop.role == role]
    full = max((len(o.dims) for o in workload.inputs), default=0)
    units = [o.dims[o.unit_axis] for o in workload.inputs if o.unit_axis is not None and len(o.dims) == full]
    return not units or not extents or extents[-1] in units
