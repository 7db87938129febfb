"""Choices of `gemv`: contractions of few rows, whose weights are read once, from memory into registers. MLIR-free."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

from tilewright.passes.spaces.gemm_operands import row_and_column_extents
from tilewright.passes.spaces.gpu.gpu_config import (
    GpuConfig,
    is_power_of_two,
    why_invalid_block,
    why_invalid_cluster,
)
from tilewright.passes.spaces.numerics import Numerics
from tilewright.passes.spaces.workload import Kind, Workload
from tilewright.runtime.limits import MULTIPROCESSOR_THREADS, WARP, GpuLimits
from tilewright.runtime.tensor import DType

ROWS = 16  # that a block takes at most
ALONG_K, ALONG_N = 4, 8  # lanes of a warp along k and along the columns
WIDEST = 16  # bytes of one access
IN_FLIGHT = 8  # loads of a thread that are under way at once
_ROWS_EACH = 8  # of a warp that multiplies without tensor cores
_FLOATS = (DType.F32, DType.F16, DType.BF16)
_MATRIX = (DType.F16, DType.BF16)


@dataclass(frozen=True)
class GemvConfig(GpuConfig):
    """rows x bn: rows and columns of a block. warps: parts of k within a block; cluster_k: parts of k over the blocks of a
    cluster, summed over their shared memory in the order of their ranks; split_k: parts of k summed by a second launch instead,
    where there are no clusters. unroll: pieces of k whose weights are on their way at once; a piece is 16 bytes of the narrower
    operand for each of four lanes. vec: elements of one load, as far as layouts allow. tensor: mma.sync multiplies, rows on its
    side of 8. min_blocks_per_sm: blocks that must fit a multiprocessor, which bounds the registers. ahead: a step is loaded while
    the one before multiplies, into registers of its own.
    """

    family: ClassVar[str] = "gemv"
    rows: int = 1
    bn: int = 32
    warps: int = 4
    unroll: int = 2
    vec: int = 4
    cluster_k: int = 1
    split_k: int = 1
    tensor: bool = False
    min_blocks_per_sm: int = 4
    ahead: bool = False

    @property
    def threads(self) -> int:
        return WARP * self.warps * self.rows // self.rows_each

    @property
    def rows_each(self) -> int:
        """Of a warp: as many as registers have room for; other warps take others, with the same weights."""
        return self.rows if self.tensor else min(self.rows, _ROWS_EACH)

    @property
    def columns(self) -> int:
        """Of a thread."""
        return self.bn // ALONG_N

    @property
    def parts(self) -> int:
        """Of k, over blocks."""
        return self.cluster_k * self.split_k

    def around(self, size: int) -> int:
        """Positions of k that the warps of a block take next to each other, of weights of `size` bytes."""
        return self.warps * ALONG_K * WIDEST // size

    def shared_bytes(self) -> int:
        """The sums of every warp."""
        return self.warps * self.rows * (self.bn + 1) * 4

    def registers(self, size: int) -> int:
        """About what a thread needs for weights of `size` bytes: sums, weights and rows of k on their way, addresses."""
        positions = WIDEST // size
        weights = self.columns * positions * size // 4 * self.unroll
        rows = self.rows // 8 if self.tensor else self.rows_each
        loaded = 2 * weights + 4 * rows * self.unroll if self.ahead else weights + 4 * rows
        return self.columns * (4 if self.tensor else rows) + loaded + 24 * self.index // 32


def operand_bytes(workload: Workload) -> int:
    """Of an element of the narrower factor, of which a thread takes 16 bytes along k."""
    return min(f.dtype.bytes for f in workload.factors[:2])


def on_matrix_units(workload: Workload) -> bool:
    """Are both factors of the one type of two bytes that tensor cores multiply and add in f32?"""
    types = {f.dtype for f in workload.factors}
    return len(types) == 1 and types <= set(_MATRIX) and workload.accumulator in (DType.F32, None)


def takes(workload: Workload, limits: GpuLimits, numerics: Numerics) -> str | None:
    """The rule by which the family does not take a contraction, or None."""
    others = [f.dtype.value for f in workload.factors if f.dtype not in _FLOATS]
    if others:
        return f"element-type: operands of {others[0]}; wanted f32, f16 or bf16"
    if workload.accumulator not in (DType.F32, None):
        return f"sums: in {workload.accumulator.value}; wanted f32"
    if sum(loop.role == "k" for loop in workload.loops) != 1:
        return "matrices: k is not one loop"
    rows, _ = row_and_column_extents(workload)
    if rows.constant is not None and rows.constant > ROWS:
        return f"few-rows: {rows.constant} rows; wanted at most {ROWS}"
    return None


def space(workload: Workload, limits: GpuLimits) -> Iterator[GemvConfig]:
    """All legal configurations."""
    matrix = on_matrix_units(workload)
    widest = WIDEST // operand_bytes(workload)
    blocks = product((1, 2, 4, 8, ROWS), (32, 64), (2, 4, 8), (1, 2, 4), (1, widest), (1, 2, 4, 8), (1, 4),
                     (False, True) if matrix else (False,), (1, 2, 3, 4), (False, True))
    for rows, bn, warps, unroll, vec, parts, split, tensor, per_sm, ahead in blocks:
        config = GemvConfig(rows, bn, warps, unroll, vec, parts, split, tensor, per_sm, ahead)
        if why_invalid(config, workload, limits) is None:
            yield config


def why_invalid(config: GemvConfig, workload: Workload, limits: GpuLimits) -> str | None:
    """The rule that the configuration breaks, or None."""
    c = config
    if workload.kind is not Kind.CONTRACTION:
        return f"contraction: the workload is {workload.kind.value}"
    if c.tensor and not on_matrix_units(workload):
        return "element-type: operands are not both f16 or both bf16, summed in f32"
    return why_illegal(c, operand_bytes(workload), limits)


def why_illegal(config: GemvConfig, size: int, limits: GpuLimits) -> str | None:
    """The rule that the configuration breaks for operands of `size` bytes, or None."""
    c = config
    if c.vec * size > WIDEST:
        return f"vector-fits: {c.vec} elements of {size} bytes in one access"
    return why_no_block(c, limits) or why_no_room(c, c.shared_bytes(), c.registers(size), limits)


def why_no_block(config: GemvConfig, limits: GpuLimits) -> str | None:
    """The rule by which no block of threads is of that shape, whatever its weights are, or None."""
    c = config
    if not all(map(is_power_of_two, (c.rows, c.bn, c.warps, c.vec))) or min(c.unroll, c.split_k, c.min_blocks_per_sm) < 1:
        return f"power-of-two: {c}"
    if c.rows > ROWS or (c.tensor and c.rows < 8):
        return f"rows: {c.rows}; wanted at most {ROWS}, of mma.sync at least 8"
    if c.bn < ALONG_K * ALONG_N:
        return f"columns: {c.bn}; lanes take {ALONG_N} times {ALONG_K}"
    if c.cluster_k > 1 and c.split_k > 1:
        return f"one-way-to-split: cluster_k {c.cluster_k} and split_k {c.split_k}"
    if c.min_blocks_per_sm * c.threads > MULTIPROCESSOR_THREADS:
        return f"blocks-fit: {c.min_blocks_per_sm} blocks of {c.threads} threads"
    return why_invalid_cluster(c.cluster_k, limits) or why_invalid_block(c.threads, c.index, limits.threads)


def why_no_room(config: GemvConfig, shared: int, registers: int, limits: GpuLimits) -> str | None:
    """The rule by which a multiprocessor has no room for its blocks, of so much shared memory and registers a thread, or None."""
    c = config
    if c.min_blocks_per_sm * shared > limits.shared_bytes:
        return f"shared-budget: {c.min_blocks_per_sm} blocks of {shared} of {limits.shared_bytes} bytes"
    most = limits.registers_each(c.threads, c.min_blocks_per_sm)
    if registers > most:
        return f"register-budget: about {registers} of {most} registers in each of {c.threads} threads"
    return None
