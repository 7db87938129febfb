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

_MOST_BLOCKS = 32
_SPREAD_FROM = 1 << 16  # columns of a row that one block is slow for


@dataclass(frozen=True)
class GpuRowsConfig(GpuConfig):
    """per_row: threads of a row, from 1 (rows lie along the threads) over a warp to the whole block. vec: elements of one access.
    held: vectors of a row that a thread keeps in registers between sweeps; 0 reads rows of any length again. unroll: vectors of
    one round of a loop over a row. blocks: blocks that share a row; every sweep is then a launch, which joins what the blocks of
    the one before it found, in a fixed order."""

    family: ClassVar[str] = "gpu_rows"
    threads: int = 128
    per_row: int = 32
    vec: int = 4
    held: int = 0
    unroll: int = 2
    blocks: int = 1

    @property
    def columns_held(self) -> int:
        """The longest row that fits the registers."""
        return self.held * self.vec * self.per_row


_SPREAD = GpuRowsConfig(512, 512, 1, 0, 4, blocks=16)


def space(workload: Workload, limits: GpuLimits) -> Iterator[GpuRowsConfig]:
    """All legal configurations."""
    for threads, per_row, vec, held, unroll, blocks in product(
        (64, 128, 256, 512, 1024), (1, 4, 8, 16, 32, 64, 128, 256, 512, 1024), (1, 2, 4), (0, 1, 2, 4, 8), (1, 2, 4), (1, 4, 16)
    ):
        config = GpuRowsConfig(threads, per_row, vec, held, unroll, blocks)
        if why_invalid(config, workload, limits) is None:
            yield config


def why_invalid(config: GpuRowsConfig, workload: Workload, limits: GpuLimits) -> str | None:
    """The rule that the configuration breaks, or None."""
    c = config
    if not all(map(is_power_of_two, (c.per_row, c.vec, c.unroll, c.blocks))):
        return f"power-of-two: {c}"
    if c.per_row > c.threads or c.threads % c.per_row:
        return f"rows-in-block: {c.per_row} threads of a row in blocks of {c.threads}"
    if c.held and c.unroll != 1:
        return "unroll-loops: a row in registers has no loop"
    if c.blocks > 1 and c.held:
        return "blocks-share: a row of several blocks is read again by every sweep"
    if c.blocks > _MOST_BLOCKS:
        return f"blocks-join: {c.blocks} sums of a row, which a thread joins one by one; at most {_MOST_BLOCKS}"
    if c.held * c.vec > 64:
        return f"register-budget: {c.held} vectors of {c.vec} elements"
    columns = _columns(workload).constant
    if c.blocks > 1 and columns is not None and columns < c.blocks * c.per_row * c.vec:
        return f"blocks-filled: {columns} columns over {c.blocks} blocks of {c.per_row} threads"
    if c.held and columns is not None and not c.columns_held // 4 < columns <= c.columns_held:
        return f"row-fits: {columns} columns in {c.held} vectors of {c.vec} elements of {c.per_row} threads"
    return why_invalid_block(c.threads, c.index, limits.threads)


def default(workload: Workload, limits: GpuLimits) -> tuple[tuple[GpuRowsConfig, ...], Node]:
    """A warp holds a short row, a block a long one; longer ones are read again, by several blocks where there are too few rows to
    fill the machine. Single elements where rows are no whole vectors. The last has no guards."""
    if not _along_columns(workload):
        return (GpuRowsConfig(128, 1, 1, 0, 4), GpuRowsConfig(128, 1, 1, 0, 1, index=64)), Leaf(0)
    widest = max((o.dtype.bytes for o in workload.inputs), default=4)
    vec = 4 if widest <= 4 else 2
    columns = _columns(workload)
    safe = GpuRowsConfig(256, 32, 1, 0, 2, index=64)
    wide, single = _steps(vec), _steps(1)
    if columns.constant is not None and columns.constant < _SPREAD_FROM:
        return (next((c for c in wide if columns.constant <= c.columns_held), wide[-1]), safe), Leaf(0)
    shorter = [] if columns.constant is not None else [*wide[:-1], *single]
    configs = tuple(dict.fromkeys((*shorter, wide[-1], _SPREAD, safe)))

    def long(last: GpuRowsConfig) -> Node:
        few = limits.multiprocessors // 4
        return switch(str(workload.size("row")), [(few, Leaf(configs.index(_SPREAD)))], Leaf(configs.index(last)))

    def tree(steps: list[GpuRowsConfig]) -> Node:
        bounds = [*(c.columns_held for c in steps[:-1]), _SPREAD_FROM - 1]
        cases: list[tuple[int, Node]] = [(b, Leaf(configs.index(c))) for b, c in zip(bounds, steps, strict=True)]
        return switch(str(columns), cases, long(steps[-1]))

    if columns.constant is not None:
        return configs, long(wide[-1])
    return configs, Split(str(columns % vec), 0, tree(wide), tree(single))


def _steps(vec: int) -> list[GpuRowsConfig]:
    """By length of row; the last takes any."""
    return [GpuRowsConfig(128, 32, 1, 1, 1), GpuRowsConfig(128, 32, vec, 8 // vec, 1), GpuRowsConfig(128, 32, vec, 32 // vec, 1),
            GpuRowsConfig(256, 256, vec, 32 // vec, 1), GpuRowsConfig(512, 512, vec, 0, 2)]


def _columns(workload: Workload) -> Expr:
    return workload.size("col") if workload.kind is Kind.ROWS else workload.size("k")


def _along_columns(workload: Workload) -> bool:
    """Does memory run along the last column in the operands of full rank? Where nothing is known of them, it is taken to."""
    columns = [d for d, loop in enumerate(workload.loops) if loop.role == ("col" if workload.kind is Kind.ROWS else "k")]
    full = max((len(o.axes) for o in workload.inputs), default=0)
    along = [o.along for o in workload.inputs if o.along is not None and len(o.axes) == full]
    return not along or not columns or columns[-1] in along
