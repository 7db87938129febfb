"""Choices of `mma_rows`: a product by mma.sync and the work on the rows of its result, which stay in shared memory. MLIR-free."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

from tilewright.passes.spaces.gpu.gpu_config import GpuConfig, is_power_of_two
from tilewright.passes.spaces.gpu.gpu_rows import GpuRowsConfig
from tilewright.passes.spaces.gpu.mma import MmaConfig, why_illegal
from tilewright.passes.spaces.numerics import Numerics
from tilewright.passes.spaces.workload import Workload, told_once
from tilewright.runtime.limits import WARP, GpuLimits
from tilewright.runtime.tensor import DType

WIDEST = 16  # bytes of one access
KEPT_PAD = 8  # elements behind each row that is kept: neither pairs of sums nor vectors of a row meet a bank twice
LONGEST = 32  # elements of a row that a thread holds
_TYPES = (DType.F16, DType.BF16)
_AROUND = 48  # registers of addresses


@dataclass(frozen=True)
class MmaRowsConfig(GpuConfig):
    """bm: rows of a block, whose columns it computes bn at a time; bk: depth of a step; wm x wn: of a warp; stages: steps in
    shared memory; vec: elements of one copy; min_blocks_per_sm: blocks that must fit a multiprocessor, which bounds registers.
    tf32: f32 operands are read as tf32.

    Then a warp takes a row at a time. lanes: elements of one access of it; vectors_in_registers: vectors of it that a thread
    keeps between sweeps; 0 reads them again.
    """

    family: ClassVar[str] = "mma_rows"
    bm: int = 32
    bn: int = 128
    bk: int = 64
    wm: int = 32
    wn: int = 32
    stages: int = 3
    vec: int = 8
    min_blocks_per_sm: int = 1
    tf32: bool = False
    lanes: int = 4
    vectors_in_registers: int = 0

    @property
    def product(self) -> MmaConfig:
        """How a block multiplies."""
        return MmaConfig(self.bm, self.bn, self.bk, self.wm, self.wn, self.stages, self.vec, False, self.min_blocks_per_sm,
                         group_m=1, tf32=self.tf32, index=self.index)

    @property
    def rows(self) -> GpuRowsConfig:
        """How it works on rows."""
        kept = self.vectors_in_registers
        return GpuRowsConfig(self.threads, WARP, self.lanes, kept, 1 if kept else 2, index=self.index)

    @property
    def threads(self) -> int:
        return WARP * (self.bm // self.wm) * (self.bn // self.wn)

    def panels(self, columns: int) -> int:
        """Tiles of the columns that a block computes one after the other."""
        return -(-columns // self.bn)

    def kept_columns(self, columns: int) -> int:
        """Elements between rows that are kept."""
        return self.panels(columns) * self.bn + KEPT_PAD

    def shared_bytes(self, element: int, kept: int, columns: int) -> int:
        """Both tiles of every stage and the rows. element, kept: bytes of an element of a factor, of a row."""
        return self.product.shared_bytes(element) + self.bm * self.kept_columns(columns) * kept

    def registers(self) -> int:
        """About what a thread needs, of sums or of a row."""
        held = self.vectors_in_registers * self.lanes
        return max(self.product.registers(), 2 * held + 2 * self.lanes + _AROUND * self.index // 32)


def takes(workload: Workload, limits: GpuLimits, numerics: Numerics) -> str | None:
    """The rule by which the family does not take a product with its rows, or None."""
    types = {f.dtype for f in workload.factors}
    if not (len(types) == 1 and (types <= set(_TYPES) or (numerics.tf32 and types == {DType.F32}))):
        return "element-type: operands are neither f16, bf16 nor f32 read as tf32"
    if any(o.codes for o in workload.inputs):
        return "codes: weights in few bits are multiplied by another family"
    if workload.kept is None:
        return "rows: what reads the product does not work on its rows"
    if columns_of(workload) is None:
        return "columns-known: how many columns a row has is known when it runs"
    smallest = next(iter(tiles(workload, limits)), None)
    if smallest is not None:
        return None
    return f"shared-budget: rows of {columns_of(workload)} columns in {limits.shared_bytes} bytes"


@told_once
def columns_of(workload: Workload) -> int | None:
    """Columns of the product, where they are known."""
    return workload.size("n").constant


@told_once
def element_bytes(workload: Workload) -> int:
    """Of a factor."""
    return max(f.dtype.bytes for f in workload.factors)


def tiles(workload: Workload, limits: GpuLimits) -> Iterator[MmaRowsConfig]:
    """By rows of a block, fewest first: tiles with as many stages as have room."""
    for bm in (16, 32, 64):
        found = (made for stages in (4, 3, 2) if (made := _tile(workload, bm, stages)) is not None
                 and why_invalid(made, workload, limits) is None)
        first = next(found, None)
        if first is not None:
            yield first


def _tile(workload: Workload, bm: int, stages: int) -> MmaRowsConfig | None:
    columns, size = columns_of(workload), element_bytes(workload)
    if columns is None:
        return None
    most = WIDEST // max(2, _widest(workload))
    lanes = [n for n in (8, 4, 2, 1) if columns % n == 0 and n <= most]
    held = ((n, v) for n in lanes for v in (1, 2, 4, 8, 16, 32) if _row_fits(v * n * WARP, columns) and v * n <= LONGEST)
    access, vectors = next(held, (lanes[0], 0))
    return MmaRowsConfig(bm, 128, 128 // size, min(bm, 32), 32, stages, 16 // size, tf32=size == 4, lanes=access,
                         vectors_in_registers=vectors)


def _widest(workload: Workload) -> int:
    """Bytes of the widest element of a row."""
    every = [o.dtype.bytes for o in (*workload.inputs, *workload.outputs) if len(o.dims) > 1]
    return max([workload.kept.bytes if workload.kept is not None else 4, *every])


def _row_fits(room: int, columns: int) -> bool:
    """Do the registers of a warp have room for a row, without being idle for most of it?"""
    return room // 4 < columns <= room


def space(workload: Workload, limits: GpuLimits) -> Iterator[MmaRowsConfig]:
    """All legal configurations."""
    size = element_bytes(workload)
    blocks = product((16, 32, 64, 128), (64, 128, 256), (64 // size, 128 // size), (16, 32, 64), (16, 32, 64))
    rest = list(product((2, 3, 4), (16 // size, 1), (1, 2), (1, 2, 4, 8), (0, 1, 2, 4, 8)))
    for block, (stages, vec, per_sm, lanes, kept) in product(blocks, rest):
        config = MmaRowsConfig(*block, stages, vec, per_sm, size == 4, lanes, kept)
        if config.threads in (64, 128, 256) and why_invalid(config, workload, limits) is None:
            yield config


def why_invalid(config: MmaRowsConfig, workload: Workload, limits: GpuLimits) -> str | None:
    """The rule that the configuration breaks, or None."""
    c, columns = config, columns_of(workload)
    if workload.kept is None or columns is None:
        return "rows: what reads the product does not work on rows whose length is known"
    size = element_bytes(workload)
    if c.tf32 is not (size == 4):
        return f"element-type: tf32 {c.tf32} of elements of {size} bytes"
    broken = why_illegal(c.product, size, limits)
    if broken is not None:
        return broken
    if not is_power_of_two(c.lanes) or c.lanes > 8:
        return f"one-access: vectors of {c.lanes} elements"
    if c.bm % (c.threads // WARP):
        return f"rows-in-block: {c.bm} rows by {c.threads // WARP} warps"
    room = c.vectors_in_registers * c.lanes * WARP
    if c.vectors_in_registers and not _row_fits(room, columns):
        return f"row-fits: {columns} columns in {c.vectors_in_registers} vectors of {c.lanes} elements of {WARP} threads"
    shared = c.shared_bytes(size, workload.kept.bytes, columns)
    if shared * max(1, c.min_blocks_per_sm) > limits.shared_bytes:
        return f"shared-budget: {shared} of {limits.shared_bytes} bytes"
    most = limits.registers_each(c.threads, c.min_blocks_per_sm)
    return f"register-budget: about {c.registers()} of {most} registers" if c.registers() > most else None
