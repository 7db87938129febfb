"""Choices of `gpu_rows`: reductions along rows and the elementwise work around them, threads side by side. MLIR-free."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import ClassVar

from tilewright.passes.spaces.gpu.gpu_config import GpuConfig, is_power_of_two, why_invalid_block
from tilewright.passes.spaces.workload import Kind, Workload
from tilewright.runtime.limits import GpuLimits
from tilewright.runtime.shape import Expr

_MOST_BLOCKS = 32
WIDEST = 16  # bytes of one access


@dataclass(frozen=True)
class GpuRowsConfig(GpuConfig):
    """per_row: threads of a row, from 1 (rows lie along the threads) over a warp to the whole block. vec: elements of one access.
    vectors_in_registers: vectors of a row that a thread keeps between sweeps; 0 reads rows of any length again. unroll: vectors
    of one round of a loop over a row. blocks: blocks that share a row; every sweep is then a launch, which joins what the blocks
    of the one before it found, in a fixed order. With reductions in parts a block has the rows of a part, one after the other."""

    family: ClassVar[str] = "gpu_rows"
    former: ClassVar[Mapping[str, str]] = MappingProxyType({"held": "vectors_in_registers"})
    threads: int = 128
    per_row: int = 32
    vec: int = 4
    vectors_in_registers: int = 0
    unroll: int = 2
    blocks: int = 1

    @property
    def columns_in_registers(self) -> int:
        """The longest row that fits the registers."""
        return self.vectors_in_registers * self.vec * self.per_row


def space(workload: Workload, limits: GpuLimits) -> Iterator[GpuRowsConfig]:
    """All legal configurations."""
    threads = product((64, 128, 256, 512, 1024), (1, 4, 8, 16, 32, 64, 128, 256, 512, 1024))
    for block, walk in product(threads, product((1, 2, 4, 8), (0, 1, 2, 4, 8, 16), (1, 2, 4), (1, 4, 16))):
        config = GpuRowsConfig(*block, *walk)
        if why_invalid(config, workload, limits) is None:
            yield config


def why_invalid(config: GpuRowsConfig, workload: Workload, limits: GpuLimits) -> str | None:
    """The rule that the configuration breaks, or None."""
    c = config
    if not all(map(is_power_of_two, (c.per_row, c.vec, c.unroll, c.blocks))):
        return f"power-of-two: {c}"
    if c.per_row > c.threads or c.threads % c.per_row:
        return f"rows-in-block: {c.per_row} threads of a row in blocks of {c.threads}"
    if c.vec > 4 and c.vec > widest_access(workload):
        return f"one-access: vectors of {c.vec} elements; {widest_access(workload)} of the rows' fit {WIDEST} bytes"
    if c.vectors_in_registers and c.unroll != 1:
        return "unroll-loops: a row in registers has no loop"
    if c.blocks > 1 and c.vectors_in_registers:
        return "blocks-share: a row of several blocks is read again by every sweep"
    if c.blocks > _MOST_BLOCKS:
        return f"blocks-join: {c.blocks} sums of a row, which a thread joins one by one; at most {_MOST_BLOCKS}"
    if workload.part_rows and (c.per_row < c.threads or c.blocks > 1):
        return f"parts-of-a-block: the {workload.part_rows} rows of a part pass by one block, {c.per_row} threads on each"
    if c.vectors_in_registers * c.vec > 64:
        return f"register-budget: {c.vectors_in_registers} vectors of {c.vec} elements"
    columns = columns_of(workload).constant
    if c.blocks > 1 and columns is not None and columns < c.blocks * c.per_row * c.vec:
        return f"blocks-filled: {columns} columns over {c.blocks} blocks of {c.per_row} threads"
    if c.vectors_in_registers and columns is not None and not c.columns_in_registers // 4 < columns <= c.columns_in_registers:
        return f"row-fits: {columns} columns in {c.vectors_in_registers} vectors of {c.vec} elements of {c.per_row} threads"
    return why_invalid_block(c.threads, c.index, limits.threads)


def widest_access(workload: Workload) -> int:
    """Elements of the rows that are read which one access takes."""
    full = max((len(o.dims) for o in workload.inputs), default=0)
    return WIDEST // max((o.dtype.bytes for o in workload.inputs if len(o.dims) == full), default=4)


def columns_of(workload: Workload) -> Expr:
    """The length of a row."""
    return workload.size("col") if workload.kind is Kind.ROWS else workload.size("k")
